"""The figures of all topics of a root at one moment, and the problems that an operator should see.

The figures come from the states and the files of consumers, and usually from no records. There is one exception: to
decide whether a group has stopped, the age of the group's oldest unread record is needed
(lakelog.metrics.consumer_status). This record is read only if the group seems to have stopped. The segments' files are
not compared with the state; the page of the topic does this. background/root_watcher.py collects the figures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakelog.metrics.consumer_status import LEAST_WINDOW_MS, ConsumerStatus, consumer_status
from storage_engine.clock import tells_age
from storage_engine.errors import LogError
from storage_engine.log.partition_state import PartitionState
from storage_engine.quantities import shown_duration
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import Consumer, Consumers
from storage_engine.topic.topics import Topics

MOST_PROBES = 64
PROBES_OF_A_GROUP = 8


@dataclass(frozen=True)
class TopicTotals:
    """The sums over all partitions of a topic, from one version of its state.

    appended: the sum of the high watermarks, which is the number of records ever appended.
    bytes: the committed bytes of all segments.
    newest_ms: the largest timestamp of a record, in milliseconds since 1970; -1 if there is none.
    """

    partitions: int
    segments: int
    appended: int
    bytes: int
    newest_ms: int


@dataclass(frozen=True)
class ConsumerRow:
    """A consumer of a topic.

    lag: the sum of the lags of its partitions: the high watermark minus the position, or minus the log start offset if the
        consumer has read nothing.
    unread: the number of offsets that the consumer can still read.
    """

    consumer: Consumer
    topic: str
    lag: int
    unread: int
    status: ConsumerStatus


@dataclass(frozen=True)
class TopicRow:
    """A topic that can be read."""

    state: TopicState
    totals: TopicTotals
    consumers: tuple[ConsumerRow, ...]
    damaged: tuple[LogError, ...]

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self.state.topic

    @property
    def largest_lag(self) -> ConsumerRow | None:
        """The consumer with the largest lag; None if the topic has no consumer."""
        return max(self.consumers, key=lambda each: each.lag, default=None)


@dataclass(frozen=True)
class Attention:
    """Something that an operator should look at.

    kind: one or two words.
    topic: the topic, which has a page; empty if it concerns the root.
    group: the group with this finding; empty if it concerns the whole topic.
    """

    kind: str
    topic: str
    text: str
    group: str = ""


@dataclass(frozen=True)
class RootLook:
    """A root at one moment, or the part of a root that was read so far.

    unreadable: the topics that cannot be read, with their errors.
    unread: the names that were found, but not read yet. The topics of some of these names may be deleted.
    reports_error: why the reports of ingests cannot be listed; None if they can be listed.
    is_listed: whether all names were found.
    is_newest: whether everything was read after the page was asked for.
    """

    now_ms: int
    topics: tuple[TopicRow, ...] = ()
    unreadable: Mapping[str, LogError] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    reports_error: LogError | None = None
    is_listed: bool = True
    is_newest: bool = True

    @property
    def names(self) -> list[str]:
        """The names of all topics, in order."""
        return sorted([*(each.name for each in self.topics), *self.unreadable, *self.unread])

    @property
    def is_complete(self) -> bool:
        """Whether all topics were read. If not, sums over topics are too small."""
        return self.is_listed and not self.unread

    def attention(self) -> Iterator[Attention]:
        """What asks for attention, the most serious first."""
        for name, error in self.unreadable.items():
            yield Attention("not readable", name, str(error))
        if self.reports_error is not None:
            yield Attention("not readable", "", str(self.reports_error))
        for topic in self.topics:
            yield from (Attention("damaged", topic.name, str(each)) for each in topic.damaged)
        for topic in self.topics:
            for each in topic.consumers:
                if each.status is not ConsumerStatus.OK:
                    age = shown_duration(max(0, self.now_ms - each.consumer.updated_ms) / 1000)
                    text = f"lag {each.lag:,}; the last commit was {age} ago"
                    yield Attention(str(each.status), topic.name, text, each.consumer.name)
        for topic in self.topics:
            if (ahead := topic.totals.newest_ms - self.now_ms) > 0:
                text = (
                    f"the newest record is {shown_duration(ahead / 1000)} in the future. Correct the producer's clock."
                )
                yield Attention("time in the future", topic.name, text)


class Probes:
    """Limits how many records a look reads to find the age of unread records."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one of the probes that are left, if there is one. Several threads may call this."""
        with self._lock:
            if self._left == 0:
                return False
            self._left -= 1
            return True


def totals_of(state: TopicState) -> TopicTotals:
    """The sums over the partitions of a state. Pure."""
    parts = state.partitions
    return TopicTotals(
        partitions=len(parts),
        segments=sum(len(part.segments) for part in parts),
        appended=sum(part.high_watermark for part in parts),
        bytes=sum(part.size for part in parts),
        newest_ms=max((part.largest_timestamp for part in parts), default=-1),
    )


def consumer_rows(
    topics: Topics, state: TopicState, consumers: Consumers, now_ms: int, probes: Probes
) -> Iterator[ConsumerRow]:
    """The consumers of a topic with their lag and status.

    Args:
        probes: how many records may be read. Without a probe, the age of unread records counts as unknown.
    """
    for each in consumers.known:
        lag = sum(
            max(0, part.high_watermark - _position(each, number, part)) for number, part in enumerate(state.partitions)
        )
        unread = {number: first for number, part in enumerate(state.partitions)
                  if (first := _first_unread(each, number, part)) < part.last_stable_offset}  # fmt: skip
        count = sum(state.partitions[number].last_stable_offset - first for number, first in unread.items())
        status = consumer_status(each.kind, each.samples, count, None, now_ms)
        if status is ConsumerStatus.STOP:
            oldest, empty = _oldest_ms(topics.storage, topics.chain(state.topic), state, unread, now_ms, probes)
            status = consumer_status(each.kind, each.samples, count - empty, oldest, now_ms)
        yield ConsumerRow(each, state.topic, lag, count, status)


def _position(consumer: Consumer, number: int, part: PartitionState) -> int:
    return consumer.positions.get(number, part.log_start_offset)


def _first_unread(consumer: Consumer, number: int, part: PartitionState) -> int:
    return max(part.log_start_offset, consumer.positions.get(number, 0))


def _oldest_ms(
    storage: Storage, chain: StateChain, state: TopicState, unread: Mapping[int, int], now_ms: int, probes: Probes
) -> tuple[int | None, int]:
    """The timestamp of an unread record that is old enough to show that a group has stopped. Or else the oldest timestamp of
    the first unread records that may be read; None if there is none. The partitions with the oldest records come first, as
    they are the most likely to show it. Also the number of unread offsets that have no record, such as markers.

    Args:
        unread: the first unread offset of each partition with unread offsets.
    """
    from storage_engine.topic.readers.reader import PartitionReader  # slow, and rarely needed

    found: list[int] = []
    empty = 0
    oldest_first = sorted(unread, key=lambda number: state.partitions[number].largest_timestamp)
    for done, number in enumerate(oldest_first):
        if done == PROBES_OF_A_GROUP or not probes.take():
            break
        first = unread[number]
        try:
            oldest = PartitionReader(storage, chain, number, state).oldest_unread(first)
        except LogError:
            continue  # the age stays unknown; reading the partition reports the error
        if oldest is None:
            empty += state.partitions[number].last_stable_offset - first
        elif tells_age(oldest, now_ms):
            found.append(oldest)
            if now_ms - oldest > LEAST_WINDOW_MS:
                break
    return min(found, default=None), empty
