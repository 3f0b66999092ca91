"""Looks up the topics of a read, and the offsets at which the read begins and ends.

A lookup reads the state of each topic once, and takes all its results from this state. So the results are consistent
with one another. An offset in an option is used unchanged. If an option asks for the end of the log, the lookup finds
the current end. A batch looks up the end again when it runs (tasks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from lakelog.spark.options.bounds import EARLIEST, LATEST, Bound, Edge, Offsets, Time, Times, listed, option_of
from lakelog.spark.options.partition_json import Where
from lakelog.spark.options.source_options import CommonOptions
from lakelog.spark.options.topic_choice import Assigned, SubscribedPattern
from lakelog.spark.options.user_options import wrong
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig, shown
from storage_engine.errors import ConfigError, InvalidTopicNameError, UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.topic.witnesses import lost_chain, newest_state, shown_offsets
from storage_engine.topic_name import check_topic_name

_EARLIEST_LOCAL, _LATEST_TIERED = -4, -5
"""Times that ask Kafka for the earliest offset on a broker's disk, and for the latest offset in its tiered storage. In
Lakelog, the earliest offset on disk is the log start offset, and there is no tiered storage."""

States = Mapping[str, TopicState]
"""The newest state of each topic of a read, by name."""


class FoundOffset(NamedTuple):
    """The offset of a bound in one partition.

    at_edge: whether the bound is the earliest or the latest offset of the partition. These offsets can change.
    """

    offset: int
    at_edge: bool = False


class ReadTopics:
    """The topics of one read, for one thread."""

    def __init__(self, options: CommonOptions) -> None:
        self.storage: Storage = open_storage(options.root)
        self.isolation: Isolation = options.isolation
        self._choice = options.topics
        self._latest_if_no_match = options.latest_if_no_match
        self._chains: dict[str, StateChain] = {}
        self._shown = shown_offsets(self.storage)

    def states(self) -> States:
        """The newest state of each topic, with the decisions about its transactions.

        Raises:
            ConfigError: an option contains a name that no topic may have.
            UnknownTopicError: a topic that an option names does not exist.
            CorruptionError: a state is damaged, or has lost versions.
        """
        if not isinstance(self._choice, SubscribedPattern):
            return {topic: self._state(topic) for topic in self._choice.topics}
        topics = Topics(self.storage, BrokerConfig(), SystemClock())
        states = {}
        for topic in topics.names(with_deleted=True):
            if self._choice.may_read(topic):
                with suppress(UnknownTopicError):  # it was deleted
                    states[topic] = self._state(topic)
        return states

    def _state(self, topic: str) -> TopicState:
        if topic not in self._chains:
            self._chains[topic] = self._chain(topic)
        chain = self._chains[topic]
        if newest_state(self.storage, chain, self._shown) is None and (lost := lost_chain(self.storage, chain)):
            raise lost
        state = newest_decided(self.storage, chain)
        if state.deleted:
            raise UnknownTopicError(f"topic {topic}", "was deleted", "`lakelog topics list` shows the topics.")
        return state

    def _chain(self, topic: str) -> StateChain:
        try:
            return StateChain(self.storage, check_topic_name(topic), SystemClock())
        except InvalidTopicNameError as error:
            raise wrong("subscribe", f"found {shown(topic)}: {error.problem}", error.remedy) from None

    def partitions(self, states: States) -> Iterator[Where]:
        """The partitions that are read, in order."""
        for topic, state in sorted(states.items()):
            for number in range(len(state.partitions)):
                if not isinstance(self._choice, Assigned) or (topic, number) in self._choice.partitions:
                    yield topic, number

    def earliest(self, states: States) -> dict[Where, int]:
        """The log start offset of each partition."""
        return {(topic, n): states[topic].partitions[n].log_start_offset for topic, n in self.partitions(states)}

    def latest(self, states: States) -> dict[Where, int]:
        """The end of each partition, for readers with this isolation."""
        return {
            (topic, number): states[topic].partitions[number].end_offset(self.isolation)
            for topic, number in self.partitions(states)
        }

    def found(self, bound: Bound, states: States, *, starting: bool) -> dict[Where, FoundOffset]:
        """The offset of a bound in each partition.

        Args:
            starting: whether the bound is the start of the read, not its end. If no record is at or after the bound's
                time, this is an error for a start, unless the options allow it. For an end, the latest offset is used.

        Raises:
            ConfigError: the bound does not name exactly the partitions that are read, or has a negative number without a
                meaning, or a partition has no record at or after the bound's time.
        """
        earliest, latest = self.earliest(states), self.latest(states)
        option = option_of(bound, "starting" if starting else "ending")
        if isinstance(bound, Edge):
            edge = earliest if bound is Edge.EARLIEST else latest
            return {where: FoundOffset(offset, at_edge=True) for where, offset in edge.items()}
        if isinstance(bound, Offsets):
            _check_same(option, bound.by_partition, latest)
            edges = {EARLIEST: earliest, LATEST: latest}
            for where, given in sorted(bound.by_partition.items()):
                if given < EARLIEST:
                    raise _negative(option, "offset", given, where)
            return {
                where: FoundOffset(edges[offset][where], at_edge=True) if offset in edges else FoundOffset(offset)
                for where, offset in bound.by_partition.items()
            }
        if isinstance(bound, Times):
            _check_same(option, bound.by_partition, latest)
        found = {}
        for where, end in latest.items():
            time = bound.ms if isinstance(bound, Time) else bound.by_partition[where]
            if time < _LATEST_TIERED:
                raise _negative(option, "time", time, where)
            offset = self._offset_at(where, time, states)
            if offset is None and starting and not self._latest_if_no_match:
                raise wrong(
                    option, f"{where[0]}-{where[1]} has no record at or after the time {time}, so no offset matches",
                    "Give an earlier time, or set startingOffsetsByTimestampStrategy to latest.",
                )  # fmt: skip
            found[where] = FoundOffset(end if offset is None else offset)
        return found

    def _offset_at(self, where: Where, time: int, states: States) -> int | None:
        topic, number = where
        if time == _LATEST_TIERED:
            return None
        if time == _EARLIEST_LOCAL:
            return states[topic].partitions[number].log_start_offset
        found = PartitionReader(self.storage, self._chains[topic], number, states[topic]).offset_at(
            time, self.isolation
        )
        return None if found is None else found[0]


def _negative(option: str, kind: str, number: int, where: Where) -> ConfigError:
    return wrong(
        option, f"found {number} as the {kind} for {where[0]}-{where[1]}",
        "Give 0 or more, -1 for the latest offset, or -2 for the earliest.",
    )  # fmt: skip


def _check_same(option: str, named: Mapping[Where, int], read: Mapping[Where, int]) -> None:
    if named.keys() != read.keys():
        raise wrong(
            option, f"gives offsets for the partitions {listed(named)}, but the query reads {listed(read)}",
            "Give an offset for each partition that the query reads, and no other. The offset -1 means the latest"
            " offset, and -2 means the earliest offset.",
        )  # fmt: skip
