"""Measures how far the consumers of a topic are behind. Repeated measurements cost little.

A consumer's file is read again only if a listing shows that it has changed. The age of the lag needs the timestamp of
the first unread record. That record is read once. Its timestamp is kept until the consumer's position changes, or until
the segment of the record is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lakelog.metrics.consumer_status import ConsumerStatus, consumer_status
from lakelog.metrics.figures import ConsumerFigures, PartitionLag
from storage_engine.clock import tells_age
from storage_engine.errors import LogError
from storage_engine.log.partition_state import PartitionState
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided, open_producers
from storage_engine.topic.readers.consumer_files import Consumer, Consumers, KeptConsumers
from storage_engine.topic.readers.reader import PartitionReader

_NO_RECORD = -2
_ANY_END = -1
_Place = tuple[int, int, str, int]
"""A partition, the first unread offset, the name of the segment in which the search for the record begins, and the offset at
which the search ends: _ANY_END if the record was found, because a later end does not change the result."""


@dataclass(frozen=True)
class TopicLag:
    """The consumers of a topic. error: why a timestamp could not be read; empty if nothing failed."""

    known: Consumers
    consumers: tuple[ConsumerFigures, ...]
    error: str


class LagMeter:
    """Measures the consumers of one topic. Only one thread may use it."""

    def __init__(self, storage: Storage, chain: StateChain) -> None:
        self._storage = storage
        self._chain = chain
        self._consumers = KeptConsumers()
        self._first_ms: dict[_Place, int] = {}

    def measure(self, state: TopicState, now_ms: int, listed: Iterable[StoredFile] | None = None) -> TopicLag:
        """Measure all consumers of the topic.

        Args:
            state: the topic's newest state.
            listed: the files of the topic's consumers, if the caller has just listed them.

        Raises:
            StorageError: the consumers cannot be listed.
        """
        consumers = self._consumers.read(self._storage, state, now_ms, listed)
        if consumers.known and open_producers(state):
            state = newest_decided(self._storage, self._chain)
        reading = _Reading(self._storage, self._chain, state, self._first_ms)
        figures = tuple(reading.figures(each, now_ms) for each in consumers.known)
        self._first_ms = reading.used
        return TopicLag(consumers, figures, reading.error)


class _Reading:
    """One measurement. used: the timestamps that it needed."""

    def __init__(self, storage: Storage, chain: StateChain, state: TopicState, first_ms: dict[_Place, int]) -> None:
        self._storage = storage
        self._chain = chain
        self._state = state
        self._known = first_ms
        self.used: dict[_Place, int] = {}
        self.error = ""

    def figures(self, consumer: Consumer, now_ms: int) -> ConsumerFigures:
        is_active = consumer.is_active(now_ms)
        found = ConsumerFigures(
            name=consumer.name, kind=consumer.kind, partitions=tuple(self._lags(consumer, now_ms)),
            status=ConsumerStatus.OK, updated_ms=consumer.updated_ms,
            member=consumer.member if is_active else "", host=consumer.host if is_active else "",
        )  # fmt: skip
        status = consumer_status(consumer.kind, consumer.samples, found.unread, found.oldest_unread_ms, now_ms)
        return replace(found, status=status)

    def _lags(self, consumer: Consumer, now_ms: int) -> Iterator[PartitionLag]:
        for number, part in enumerate(self._state.partitions):
            position = consumer.positions.get(number)
            first = max(part.log_start_offset, position or 0)
            unread = max(0, part.last_stable_offset - first)
            oldest_ms = self._oldest_ms(number, part, first) if unread else None
            yield PartitionLag(
                partition=number,
                position=position,
                lag=max(0, part.high_watermark - (part.log_start_offset if position is None else position)),
                unread=0 if oldest_ms == _NO_RECORD else unread,
                oldest_unread_ms=oldest_ms if oldest_ms is not None and tells_age(oldest_ms, now_ms) else None,
            )

    def _oldest_ms(self, number: int, part: PartitionState, first: int) -> int | None:
        """The timestamp of the first unread record; -1 if it has none, _NO_RECORD if there is no such record, and None if
        the log cannot be read."""
        name = next((each.name for each in part.segments if each.end_offset > first), "")
        end = part.last_stable_offset
        for place in ((number, first, name, _ANY_END), (number, first, name, end)):
            if (kept := self.used.get(place, self._known.get(place))) is not None:
                self.used[place] = kept
                return kept
        try:
            found = PartitionReader(self._storage, self._chain, number, self._state).oldest_unread(first)
        except LogError as error:
            self.error = str(error)
            return None
        if found is None:
            self.used[number, first, name, end] = _NO_RECORD
            return _NO_RECORD
        self.used[number, first, name, _ANY_END] = found
        return found
