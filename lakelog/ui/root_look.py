"""Looks at all topics of a root: collects the figures of the overview, and the problems that an operator should see.

A look reads the states and the files of consumers, and usually no records. There is one exception: to decide whether a
group has stopped, a look needs the age of the group's oldest unread record (lakelog.metrics.consumer_status). This
record is read only if the group seems to have stopped. One look reads such records from at most MOST_PROBES partitions.

The first look reads the states of all topics, which takes about three milliseconds per topic. Later looks read only
newer versions. If a version is damaged after a look has read it, the damage is found when the whole topic is read
again. Each look reads at most TOPICS_ANEW topics again: the topics that were not read for the longest time, if this
time is longer than ANEW_MS. Each page about a single topic reads the whole state of this topic again. A look does not
compare the files of segments with the state; the page of the topic does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lakelog.metrics.consumer_status import LEAST_WINDOW_MS, ConsumerStatus, consumer_status
from storage_engine.errors import LogError, NoRootError
from storage_engine.log.partition_state import PartitionState
from storage_engine.quantities import shown_duration
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.consumer_files import Consumer, Consumers, KeptConsumers
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics, is_root
from storage_engine.topic.witnesses import shown_offsets

ANEW_MS = 60_000
TOPICS_ANEW = 100
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
    topic: the topic, which has a page.
    group: the group with this finding; empty if it concerns the whole topic.
    """

    kind: str
    topic: str
    text: str
    group: str = ""


@dataclass(frozen=True)
class RootLook:
    """A root at one moment. unreadable: the topics that cannot be read, with their errors."""

    now_ms: int
    topics: tuple[TopicRow, ...]
    unreadable: Mapping[str, LogError]

    @property
    def names(self) -> list[str]:
        """The names of all topics, in order."""
        return sorted([*(each.name for each in self.topics), *self.unreadable])

    def attention(self) -> Iterator[Attention]:
        """What asks for attention, the most serious first."""
        for name, error in self.unreadable.items():
            yield Attention("not readable", name, str(error))
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


class RootWatcher:
    """Looks at one root again and again. Several threads may use it; they look one after another."""

    def __init__(self, topics: Callable[[], Topics]) -> None:
        """
        Args:
            topics: opens the topics for one look.
        """
        self._topics = topics
        self._lock = threading.Lock()
        self._chains: dict[str, StateChain] = {}
        self._read_ms: dict[str, int] = {}
        self._totals: dict[str, tuple[str, TopicTotals]] = {}
        self._consumers: dict[str, KeptConsumers] = {}

    def look(self) -> RootLook:
        """Look at the root.

        Raises:
            NoRootError: the path is an empty directory. If a mount disappears, an empty directory remains.
            StorageError: the root cannot be listed.
        """
        with self._lock:
            topics = self._topics()
            now_ms = topics.clock.now_ms()
            self._forget_oldest(now_ms)
            states, unreadable = topics.states(shown_offsets(topics.storage), self._chains)
            if not (states or unreadable or is_root(topics.storage)):
                raise NoRootError(
                    f"root {topics.storage.uri}", "this path has no topics: the folder meta/ is missing or empty",
                    "Check whether the file system is mounted. `lakelog topics create` creates the first topic of a root.",
                )  # fmt: skip
            for name in unreadable:
                self._chains.pop(name, None)
            self._read_ms = {name: self._read_ms.get(name, now_ms) for name in self._chains}
            probes = Probes(MOST_PROBES)
            self._consumers = {each.topic: self._consumers.get(each.topic) or KeptConsumers() for each in states}
            rows = []
            for state in states:
                try:
                    rows.append(self._row(topics, state, now_ms, probes))
                except LogError as error:
                    unreadable[state.topic] = error
            return RootLook(now_ms, tuple(rows), dict(sorted(unreadable.items())))

    def _forget_oldest(self, now_ms: int) -> None:
        oldest = sorted((read_ms, name) for name, read_ms in self._read_ms.items() if now_ms - read_ms > ANEW_MS)
        for _, name in oldest[:TOPICS_ANEW]:
            self._chains.pop(name, None)
            del self._read_ms[name]

    def _row(self, topics: Topics, state: TopicState, now_ms: int, probes: Probes) -> TopicRow:
        known = self._totals.get(state.topic)
        totals = known[1] if known is not None and known[0] == state.id else totals_of(state)
        self._totals[state.topic] = state.id, totals
        consumers = self._consumers[state.topic].read(topics.storage, state, now_ms)
        rows = tuple(consumer_rows(topics, state, consumers, now_ms, probes))
        return TopicRow(state, totals, rows, consumers.damaged)


class Probes:
    """Limits how many records a look reads to find the age of unread records."""

    def __init__(self, left: int) -> None:
        self.left = left


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
        status = consumer_status(each.samples, count, None, now_ms)
        if status is ConsumerStatus.STOP:
            oldest, empty = _oldest_ms(topics.storage, topics.chain(state.topic), state, unread, now_ms, probes)
            status = consumer_status(each.samples, count - empty, oldest, now_ms)
        yield ConsumerRow(each, state.topic, lag, count, status)


def _position(consumer: Consumer, number: int, part: PartitionState) -> int:
    return consumer.positions.get(number, part.log_start_offset)


def _first_unread(consumer: Consumer, number: int, part: PartitionState) -> int:
    return max(part.log_start_offset, consumer.positions.get(number, 0))


def _oldest_ms(
    storage: Storage, chain: StateChain, state: TopicState, unread: Mapping[int, int], now_ms: int, probes: Probes
) -> tuple[int | None, int]:
    """The timestamp of an unread record that is old enough to show that a group has stopped; or else the oldest timestamp
    that was found; None if there is none. Also the number of unread offsets that have no record, such as markers.

    Args:
        unread: the first unread offset of each partition with unread offsets.
    """
    found: list[int] = []
    empty = 0
    for number, first in list(unread.items())[:PROBES_OF_A_GROUP]:
        if not probes.left:
            break
        probes.left -= 1
        try:
            oldest = PartitionReader(storage, chain, number, state).oldest_unread(first)
        except LogError:
            continue  # the age stays unknown; reading the partition reports the error
        if oldest is None:
            empty += state.partitions[number].last_stable_offset - first
        elif oldest >= 0:
            found.append(oldest)
            if now_ms - oldest > LEAST_WINDOW_MS:
                break
    return min(found, default=None), empty
