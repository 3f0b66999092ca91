"""A Lakelog topic as a source for Spark: spark.read and spark.readStream with format("lakelog").

Rows and options are those of Spark's Kafka source, so that changing the format is the whole migration:

    root                   where the topic is; the ingest job gives its own root by default
    subscribe              a topic, or several separated by commas
    startingOffsets        earliest (the default) or latest: where a new stream begins; a batch reads from earliest
    maxOffsetsPerTrigger   the most offsets of a micro-batch, shared among the partitions by how many wait in each
    failOnDataLoss         true (the default): offsets that retention deleted before they were read end the stream;
                           false: the stream goes on at the log start offset
    kafka.isolation.level  read_uncommitted (the default, as in Kafka) or read_committed: up to the last stable offset,
                           without the records of aborted transactions

Spark asks for positions in a process beside the driver. That process follows the topics' states and plans what tasks read:
files, sizes and offsets. A position has the topic's id and the next offset of each partition:

    {"flights": {"topic_id": "3Yc...", "offsets": {"0": 52110, "1": 48007}}}

A partition that was added begins at offset 0. Gaps that compaction left count as offsets and give no rows. A topic that was
deleted and created again counts as lost data; the stream does not go on with the new topic unless failOnDataLoss is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lakelog.rows import ROWS
from lakelog.spark.reading import Split, grouped, read_split, splits_of
from lakelog.spark.types import spark_struct
from storage_engine.clock import SystemClock
from storage_engine.config import LONG_MAX, nearest, shown
from storage_engine.errors import ConfigError, InvalidTopicNameError, OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.storage.opening import open_storage
from storage_engine.topic.chain.decisions import newest_decided
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.readers.reader import lost_offsets
from storage_engine.topic.witnesses import newest_state, shown_offsets
from storage_engine.topic_name import check_topic_name

LAKELOG = "lakelog"
"""The source's name."""

_ISOLATION = "kafka.isolation.level"
_OPTIONS = ("root", "subscribe", "startingOffsets", "maxOffsetsPerTrigger", "failOnDataLoss", _ISOLATION)
_TASK_BYTES = 8 << 20
"""About how much one task reads: a second of work, compared with the tens of milliseconds that starting a task takes."""


class TopicPosition(TypedDict):
    """The position of a stream in one topic.

    topic_id: the topic's id.
    offsets: the next offset, by the partition's number as text, because JSON has only text as keys.
    """

    topic_id: str
    offsets: dict[str, int]


Position = dict[str, TopicPosition]
"""The position of a stream, by topic. Spark compares positions as text, so topics and partitions are in order."""


def subscribed_topics(subscribe: str) -> list[str]:
    """The topics of the option `subscribe`, each once and in order."""
    return sorted({name for part in subscribe.split(",") if (name := part.strip())})


def earliest_position(options: Mapping[str, str]) -> Position:
    """Where a new stream with these options begins, if it begins with the earliest records.

    Raises:
        ConfigError: an option is missing, unknown or has a value that it may not have.
        UnknownTopicError: there is no such topic.
    """
    return _Subscription(options, streaming=True).earliest()


class LakelogSource(DataSource):
    """The source that lakelog.register makes known to a session."""

    @classmethod
    def name(cls) -> str:
        return LAKELOG

    def schema(self) -> StructType:
        return spark_struct(ROWS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it has no other
        return _BatchReader(_Subscription(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return _StreamReader(_Subscription(self.options, streaming=True))


class _Subscription:
    """The options, checked, and the topics that they name."""

    def __init__(self, options: Mapping[str, str], *, streaming: bool) -> None:
        """
        Raises:
            ConfigError: an option is missing, unknown or has a value that it may not have.
        """
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in {known.lower() for known in _OPTIONS}:
                raise _wrong(name, "is unknown", f"The nearest is {nearest(name, _OPTIONS)}.")
        for name in ("root", "subscribe"):
            if not given.get(name, "").strip():
                raise _wrong(name, "is missing", "Both root and subscribe are needed.")
        self.storage = open_storage(given["root"])
        self._chains = {topic: self._chain(topic) for topic in subscribed_topics(given["subscribe"])}
        self._shown = shown_offsets(self.storage)
        self.from_latest = _choice(given, "startingOffsets", "earliest", "latest") == "latest"
        if self.from_latest and not streaming:
            raise _wrong("startingOffsets", "found latest, which leaves nothing to a batch", "Leave it out.")
        self.fail_on_data_loss = _choice(given, "failOnDataLoss", "true", "false") == "true"
        self.most_offsets = _whole_number(given, "maxOffsetsPerTrigger")
        self.isolation = Isolation(_choice(given, _ISOLATION, Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED))

    def _chain(self, topic: str) -> StateChain:
        try:
            return StateChain(self.storage, check_topic_name(topic), SystemClock())
        except InvalidTopicNameError as error:
            raise _wrong("subscribe", f"found {shown(topic)}: {error.problem}", error.remedy) from None

    def states(self) -> dict[str, TopicState]:
        """The newest state of each topic, with the decisions about its transactions.

        Raises:
            UnknownTopicError: there is no such topic.
            CorruptionError: a state is damaged, or has lost versions.
        """
        for chain in self._chains.values():
            newest_state(self.storage, chain, self._shown)
        states = {topic: newest_decided(self.storage, chain) for topic, chain in self._chains.items()}
        for topic, state in states.items():
            if state.deleted:
                raise UnknownTopicError(f"topic {topic}", "was deleted", "`lakelog topics list` shows the topics.")
        return states

    def earliest(self) -> Position:
        return {
            topic: _position(state, [partition.log_start_offset for partition in state.partitions])
            for topic, state in self.states().items()
        }

    def latest(self) -> Position:
        return {
            topic: _position(state, [partition.end_offset(self.isolation) for partition in state.partitions])
            for topic, state in self.states().items()
        }

    def planned(self, start: Position, end: Position) -> list[InputPartition]:
        """The splits that tasks read between two positions, in groups.

        Raises:
            OffsetOutOfRangeError: some of the records are no longer there, and failOnDataLoss is true.
        """
        states = self.states()
        splits: list[Split] = []
        for topic, until in end.items():
            state = states.get(topic)
            if state is None or state.topic_id != until["topic_id"]:
                if self.fail_on_data_loss:
                    raise _another_topic(topic)
                continue
            begun = start.get(topic)
            if begun is not None and begun["topic_id"] != until["topic_id"]:
                begun = None  # latestOffset has allowed this
            for number, end_offset in until["offsets"].items():
                log_start_offset = state.partitions[int(number)].log_start_offset
                first_offset = begun["offsets"].get(number, 0) if begun else log_start_offset
                if first_offset < min(log_start_offset, end_offset):
                    if self.fail_on_data_loss:
                        raise lost_offsets(topic, int(number), first_offset, log_start_offset)
                    first_offset = log_start_offset
                splits += splits_of(state, int(number), first_offset, end_offset, self.isolation)
        return [InputPartition(group) for group in grouped(splits, _TASK_BYTES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of a task. If there was nothing to plan, Spark runs a task without a value."""
        for split in partition.value or ():
            yield from read_split(self.storage, split, required_from=0 if self.fail_on_data_loss else LONG_MAX)


class _BatchReader(DataSourceReader):
    """Reads the records that exist when the read is planned."""

    def __init__(self, subscription: _Subscription) -> None:
        self._subscription = subscription

    def partitions(self) -> list[InputPartition]:
        return self._subscription.planned(self._subscription.earliest(), self._subscription.latest())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._subscription.read(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. The names of the methods are Spark's."""

    def __init__(self, subscription: _Subscription) -> None:
        self._subscription = subscription
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(self._subscription.latest() if self._subscription.from_latest else self._subscription.earliest())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._subscription.most_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._subscription.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = self._target or self._subscription.latest()
        if self._subscription.fail_on_data_loss:
            for topic in start.keys() & end.keys():
                if start[topic]["topic_id"] != end[topic]["topic_id"]:
                    raise _another_topic(topic)
        end = _not_before(start, end)
        return dict(_limited(start, end, limit.max_rows)) if isinstance(limit, ReadMaxRows) else dict(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(self._subscription.latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._subscription.planned(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._subscription.read(partition)


def _position(state: TopicState, offsets: list[int]) -> TopicPosition:
    return {"topic_id": state.topic_id, "offsets": {str(number): offset for number, offset in enumerate(offsets)}}


def _not_before(start: Position, end: Position) -> Position:
    """The position `end`, but no partition before `start`: a stream that switches to read_committed would go back otherwise."""
    return {
        topic: {
            "topic_id": position["topic_id"],
            "offsets": {
                number: max(offset, _begun(start, end, topic, number)) for number, offset in position["offsets"].items()
            },
        }
        for topic, position in end.items()
    }


def _begun(start: Position, end: Position, topic: str, number: str) -> int:
    """The next offset of a partition at `start`; 0 if the partition or the topic is new."""
    begun = start.get(topic)
    same = begun is not None and begun["topic_id"] == end[topic]["topic_id"]
    return begun["offsets"].get(number, 0) if begun is not None and same else 0


def _limited(start: Position, end: Position, most: int) -> Position:
    """A position at most `most` offsets after `start`. Each partition moves by its share of the waiting offsets."""
    waiting = {
        (topic, number): offset - _begun(start, end, topic, number)
        for topic, position in end.items()
        for number, offset in position["offsets"].items()
    }
    total = sum(waiting.values())
    if total <= most:
        return end
    shares = {where: most * offsets // total for where, offsets in waiting.items()}
    left = most - sum(shares.values())  # what rounding left: less than one offset for each that waits
    for where in [where for where, offsets in waiting.items() if offsets > shares[where]][:left]:
        shares[where] += 1
    return {
        topic: {
            "topic_id": position["topic_id"],
            "offsets": {
                number: _begun(start, end, topic, number) + shares[topic, number] for number in position["offsets"]
            },
        }
        for topic, position in end.items()
    }


def _another_topic(topic: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"topic {topic}", "is not the one that this stream has read: it was deleted and created again",
        "Begin a new checkpoint, or set failOnDataLoss to false to read the new topic from its start.",
    )  # fmt: skip


def _choice(given: Mapping[str, str], option: str, default: str, other: str) -> str:
    value = given.get(option.lower(), default).strip().lower()
    if value not in (default, other):
        raise _wrong(option, f"found {shown(value)}", f"Choose {default} or {other}.")
    return value


def _whole_number(given: Mapping[str, str], option: str) -> int | None:
    value = given.get(option.lower())
    if value is None:
        return None
    if not (value.strip().isdecimal() and int(value) > 0):
        raise _wrong(option, f"found {shown(value)}", "Give a whole number above 0.")
    return int(value)


def _wrong(option: str, problem: str, remedy: str) -> ConfigError:
    return ConfigError(f"source {LAKELOG}, option {option}", problem, remedy)
