"""Reads ranges of a topic's offsets on Spark's executors. The rows have the columns of Spark's Kafka source.

The driver plans splits from one version of the state. Each split is a range of offsets in one segment. Tasks read the
splits from the storage and usually do not read the state. There is one exception. If compaction has replaced the file
of a split and the file is already deleted, the task reads the newest state. Then the task reads the segments that
replaced the file. Offsets stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakelog.rows import ROWS, as_rows
from lakelog.spark.types import nullable, spark_struct
from storage_engine.clock import SystemClock
from storage_engine.config import LONG_MAX
from storage_engine.errors import NotFoundError, UnknownTopicError
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.isolation import Isolation
from storage_engine.log.segment_reader import SegmentFile, read_records
from storage_engine.progress import Progress
from storage_engine.storage import Readable, Storage
from storage_engine.storage.read_ahead import read_ahead
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import PartitionReader, segments_in_range

_GROUPS_PER_CORE = 4
_LEAST_GROUP_BYTES = 8 << 20
"""A task reads at least so much, if there are other tasks for the other cores."""
_PIECES_PER_GROUP = 4
"""Into how many pieces the splits of a divided partition are cut for a group, so that the groups are about equal."""


@dataclass(frozen=True)
class Split:
    """The records of one segment with first_offset <= offset < end_offset.

    isolation: which records a reader gets.
    aborted: the transactions whose records the reader does not get.
    """

    topic: str
    topic_id: str
    partition: int
    segment: SegmentFile
    first_offset: int
    end_offset: int
    isolation: Isolation
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size of the split in bytes, if the offsets are spread evenly over the segment."""
        first = max(self.first_offset, self.segment.base_offset)
        offsets = min(self.end_offset, self.segment.end_offset) - first
        return self.segment.size * offsets // (self.segment.end_offset - self.segment.base_offset)


def splits_of(
    state: TopicState, partition: int, first_offset: int, end_offset: int, isolation: Isolation
) -> list[Split]:
    """One split for each segment of a partition that has records in this range, in order.

    Args:
        end_offset: for read_committed, at most the last stable offset.
    """
    aborted: tuple[AbortedTransaction, ...] = ()
    if isolation is Isolation.READ_COMMITTED:
        aborted = tuple(state.partitions[partition].aborted_transactions())
    return [
        Split(
            state.topic, state.topic_id, partition, segment, first_offset, end_offset, isolation,
            tuple(each for each in aborted if each.touches(segment.base_offset, segment.end_offset)),
        )
        for segment in segments_in_range(state, partition, first_offset, end_offset)
    ]  # fmt: skip


def grouped(splits: Iterable[Split], group_bytes: float) -> list[list[Split]]:
    """Groups of neighbouring splits, of about `group_bytes` each. A task reads one group."""
    groups: list[list[Split]] = []
    room = 0.0
    for split in splits:
        if room <= 0 or not groups:
            groups.append([])
            room = group_bytes
        groups[-1].append(split)
        room -= split.size
    return groups


def pieces(split: Split, most_bytes: float) -> list[Split]:
    """A split, divided into pieces of about the same size, each at most `most_bytes`. A piece has at least one offset."""
    first = max(split.first_offset, split.segment.base_offset)
    offsets = min(split.end_offset, split.segment.end_offset) - first
    count = min(offsets, math.ceil(split.size / most_bytes))
    cuts = [first + offsets * number // count for number in range(1, count)] if count > 1 else []
    return [
        replace(split, first_offset=begin, end_offset=end)
        for begin, end in zip([split.first_offset, *cuts], [*cuts, split.end_offset], strict=True)
    ]


def task_groups(splits: Iterable[Split], cores: int, *, by_key: bool = False) -> list[list[Split]]:
    """The splits that each task reads, some tasks for each core. Small partitions share a task, and large partitions are
    divided.

    Args:
        splits: in the order of the log, partition by partition.
        by_key: the tasks look for records with equal keys. Then a partition is divided only if it is larger than the
            share of a core.
    """
    partitions = [list(found) for _, found in groupby(splits, key=lambda each: each.partition)]
    sizes = [sum(split.size for split in found) for found in partitions]
    share = max(sum(sizes) / cores, 1.0)
    group_bytes = max(share / _GROUPS_PER_CORE, min(share, _LEAST_GROUP_BYTES))
    groups: list[list[Split]] = []
    room = 0.0
    for found, size in zip(partitions, sizes, strict=True):
        count = round(size / (share if by_key else group_bytes))
        if count > 1:
            groups += _divided(found, size / count)
            room = 0.0
        elif groups and room > size / 2:
            groups[-1] += found
            room -= size
        else:
            groups.append(found)
            room = group_bytes - size
    return groups


def _divided(splits: Iterable[Split], group_bytes: float) -> Iterator[list[Split]]:
    """The splits of a partition, in groups of this size."""
    groups: dict[int, list[Split]] = {}
    before = 0
    for split in splits:
        for piece in pieces(split, group_bytes / _PIECES_PER_GROUP):
            groups.setdefault(int((before + piece.size / 2) / group_bytes), []).append(piece)
            before += piece.size
    yield from groups.values()


def ahead_of(storage: Storage, splits: Iterable[Split]) -> Readable:
    """What to read these splits from, in this order: it reads ahead in the segments that are read to their end."""
    whole = {each.segment.key: each.segment.size for each in splits if each.segment.end_offset <= each.end_offset}
    return read_ahead(storage, whole.items())


def read_split(
    storage: Storage,
    split: Split,
    reads: Readable | None = None,
    *,
    required_from: int = LONG_MAX,
    if_lost: str = "",
) -> Iterator[pa.RecordBatch]:
    """The records of a split in the order of the log, columns as in ROWS.

    Args:
        reads: from ahead_of; by default, the storage.
        required_from: an offset. If retention meanwhile deletes this offset or a higher offset, an error is raised.
            Lower offsets that retention deletes are skipped.
        if_lost: what the user of the calling program can do after this error.

    Raises:
        OffsetOutOfRangeError: retention deleted records at or above required_from.
        UnknownTopicError: the topic was deleted meanwhile.
        CorruptionError: the contents of a batch contradict its header.
    """
    offset = split.first_offset
    try:
        for records in read_records(reads or storage, split.segment, offset, split.end_offset, split.aborted):
            yield as_rows(records, split.topic, split.partition)
            offset = records["offset"][-1].as_py() + 1
    except NotFoundError:
        reader = PartitionReader(storage, StateChain(storage, split.topic, SystemClock()), split.partition)
        if reader.topic_id != split.topic_id:
            raise UnknownTopicError(
                f"topic {split.topic}", "was deleted and created again while it was read", "Read the topic again."
            ) from None
        end_offset = min(split.end_offset, split.segment.end_offset)
        offset = reader.first_left(max(offset, split.segment.base_offset), end_offset, required_from, if_lost)
        if offset < end_offset:
            again = reader.read(offset, end_offset, split.isolation, required_from=required_from, if_lost=if_lost)
            for records in again:
                yield as_rows(records, split.topic, split.partition)


Rows = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class RecordTask:
    """What a Spark task does with records.

    function: gets the records, with the columns of ROWS and in the order of the log, and returns the rows of the task.
    columns: the columns of these rows.
    by_key: the function looks for records with equal keys, so it needs few tasks for a partition.
    """

    function: Callable[[Rows], Rows]
    columns: pa.Schema
    by_key: bool = False

    def of(self, records: DataFrame) -> DataFrame:
        """The rows of the tasks that get these records."""
        return records.mapInArrow(self.function, nullable(spark_struct(self.columns)))


RECORDS = RecordTask(iter, ROWS)
"""Returns the records as they are."""


@dataclass(frozen=True)
class _ReadGroups:
    """The function of a Spark task: it receives the numbers of groups, and reads the splits of each group."""

    root: str
    groups: tuple[tuple[Split, ...], ...]
    required: Mapping[int, int]
    progress: Progress
    then: Callable[[Rows], Rows]
    if_lost: str

    def __call__(self, batches: Rows) -> Iterator[pa.RecordBatch]:
        yield from self.then(self._records(batches))

    def _records(self, batches: Rows) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.root)
        for group in [number for batch in batches for number in batch["id"].to_pylist()]:
            reads = ahead_of(storage, self.groups[group])
            for split in self.groups[group]:
                required_from = self.required.get(split.partition, LONG_MAX)
                for records in read_split(storage, split, reads, required_from=required_from, if_lost=self.if_lost):
                    self.progress.advance(records.num_rows)
                    yield records
                self.progress.advance(size=split.size)


def read_topic(
    spark: SparkSession,
    storage: Storage,
    state: TopicState,
    first: Mapping[int, int],
    end: Mapping[int, int],
    required: Mapping[int, int],
    progress: Progress,
    then: RecordTask = RECORDS,
    if_lost: str = "",
) -> DataFrame:
    """The committed records of some partitions, columns as in ROWS; a task's rows are in the order of the log.

    Args:
        first: by partition, the first offset.
        end: by partition, the offset after the last, at most the last stable offset.
        required: by partition, an offset. If retention deletes records at or above this offset before they are read, this
            is an error. In a partition without an entry, deleted records are skipped.
        progress: is advanced by the records that are read, and by the bytes of the segments that they are read from.
        then: what each task does with its records. The result has the columns of this work.
        if_lost: what the user can do after the error about required records.
    """
    splits = [
        split
        for number in sorted(first)
        for split in splits_of(state, number, first[number], end[number], Isolation.READ_COMMITTED)
    ]
    progress.expect(size=sum(split.size for split in splits))
    groups = task_groups(splits, spark.sparkContext.defaultParallelism, by_key=then.by_key)
    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    named = tuple(tuple(group) for group in groups)
    read = _ReadGroups(storage.uri, named, dict(required), progress, then.function, if_lost)
    return numbers.mapInArrow(read, nullable(spark_struct(then.columns)))
