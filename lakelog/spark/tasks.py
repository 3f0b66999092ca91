"""Plans and runs the tasks of a read: divides segments into pieces, combines pieces into tasks, and returns the rows of
a task.

Spark plans a DataFrame once, but can run the DataFrame many times. If a batch begins at the earliest offset, or ends at
the latest offset, each run looks up this offset again. A partition can lose offsets after the plan was made. So its
first task skips deleted offsets. The last task of the whole read also reads the records that were committed after the
plan was made, in all partitions. To find these records, the last task uses one state of each topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakelog.garbage_collection import exempt_modules_from_collection
from lakelog.rows import as_rows
from lakelog.spark.options.partition_json import Where
from lakelog.spark.ranges import GO_ON
from lakelog.spark.read_topics import States
from lakelog.spark.shares import OffsetRange, divided
from lakelog.spark.source_columns import as_source_rows
from lakelog.spark.splits import Split, ahead_of, grouped, pieces, read_split, splits_of
from storage_engine.clock import SystemClock
from storage_engine.config import LONG_MAX
from storage_engine.errors import UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.reader import PartitionReader

_TASK_BYTES = 16 << 20
"""A task reads at least about this many bytes, if there are so many. Reading them takes about a tenth of a second; the
start and the end of a task take tens of milliseconds."""
_PIECE_BYTES = 2 * _TASK_BYTES
"""Segments are divided into pieces of at most about this size, so a task reads hardly more than this from one segment."""


@dataclass(frozen=True)
class Tail:
    """The records that a topic gets after the plan is made: in each partition, the offsets from `ends` on."""

    topic: str
    topic_id: str
    ends: Mapping[int, int]
    isolation: Isolation


@dataclass(frozen=True)
class Task:
    """The records that one task reads.

    required_from: by partition, an offset. No record at or above this offset is allowed to be missing.
    from_earliest: the partitions that the task reads from their start, at the time when the task runs.
    tails: the topics of which the task also reads the records that were committed after the plan was made.
    """

    splits: tuple[Split, ...] = ()
    required_from: Mapping[Where, int] = field(default_factory=dict)
    from_earliest: frozenset[Where] = frozenset()
    tails: tuple[Tail, ...] = ()


@dataclass(frozen=True)
class TaskReader:
    """Reads tasks on the executors."""

    root: str
    include_headers: bool

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in the order of the log for each partition."""
        storage = open_storage(self.root)
        for rows in _rows(storage, task):
            yield as_source_rows(rows, include_headers=self.include_headers)
        exempt_modules_from_collection()


def planned_tasks(
    states: States,
    ranges: Iterable[OffsetRange],
    isolation: Isolation,
    *,
    least: int | None,
    most: int | None,
    required_from: Mapping[Where, int],
    from_earliest: Collection[Where] = (),
    to_latest: Collection[Where] = (),
) -> list[Task]:
    """The tasks that read some ranges. The tasks have about the same size in bytes, unless `least` or `most` is given.

    Args:
        least: the smallest number of tasks.
        most: the largest number of offsets in a task.
        from_earliest: partitions that are read from their start, at the time when the tasks run.
        to_latest: partitions that are read up to their end, at the time when the tasks run.
    """
    ranges = list(ranges)
    groups: Sequence[Sequence[Split]]
    if least is None and most is None:
        splits = [
            piece
            for each in ranges
            for split in _splits(states, each, isolation)
            for piece in pieces(split, _PIECE_BYTES)
        ]
        groups = grouped(splits, _TASK_BYTES)
    else:
        groups = [_splits(states, each, isolation) for each in divided(ranges, least, most)]
    starts = {
        (each.topic, each.partition, each.first) for each in ranges if (each.topic, each.partition) in from_earliest
    }
    tasks = [Task(tuple(group), required_from, _begun(group, starts)) for group in groups]
    tails = _tails(states, ranges, to_latest, isolation)
    if tails:
        last = tasks.pop() if tasks else Task(required_from=required_from)
        tasks.append(replace(last, tails=tails))
    return tasks


def _begun(splits: Iterable[Split], starts: Collection[tuple[str, int, int]]) -> frozenset[Where]:
    """The partitions whose first records are in these splits."""
    return frozenset(
        (each.topic, each.partition)
        for each in splits
        if each.segment.base_offset <= each.first_offset and (each.topic, each.partition, each.first_offset) in starts
    )


def _splits(states: States, each: OffsetRange, isolation: Isolation) -> list[Split]:
    return splits_of(states[each.topic], each.partition, each.first, each.end, isolation)


def _tails(
    states: States, ranges: Iterable[OffsetRange], to_latest: Collection[Where], isolation: Isolation
) -> tuple[Tail, ...]:
    ends: dict[str, dict[int, int]] = {}
    for each in ranges:
        if (each.topic, each.partition) in to_latest:
            ends.setdefault(each.topic, {})[each.partition] = each.end
    return tuple(Tail(topic, states[topic].topic_id, parts, isolation) for topic, parts in ends.items())


def _rows(storage: Storage, task: Task) -> Iterator[pa.RecordBatch]:
    starts = {topic: _log_starts(storage, topic) for topic in {topic for topic, _ in task.from_earliest}}
    reads = ahead_of(storage, task.splits)
    for split in task.splits:
        where = split.topic, split.partition
        begin = split.first_offset
        if where in task.from_earliest:
            begin = max(begin, starts[split.topic].get(split.partition, 0))
        if begin < min(split.end_offset, split.segment.end_offset):
            left = replace(split, first_offset=begin)
            required_from = task.required_from.get(where, LONG_MAX)
            yield from read_split(storage, left, reads, required_from=required_from, if_lost=GO_ON)
    for tail in task.tails:
        yield from _read_tail(storage, tail)


def _log_starts(storage: Storage, topic: str) -> dict[int, int]:
    state = StateChain(storage, topic, SystemClock()).newest()
    return {number: partition.log_start_offset for number, partition in enumerate(state.partitions)}


def _read_tail(storage: Storage, tail: Tail) -> Iterator[pa.RecordBatch]:
    chain = StateChain(storage, tail.topic, SystemClock())
    state = newest_decided(storage, chain)
    if state.deleted or state.topic_id != tail.topic_id:
        raise UnknownTopicError(f"topic {tail.topic}", "was deleted while it was read", "Read the topic again.")
    for number, end in tail.ends.items():
        reader = PartitionReader(storage, chain, number, state)
        first = max(end, reader.partition.log_start_offset)
        if first < reader.end_offset(tail.isolation):
            for records in reader.read(first, None, tail.isolation):
                yield as_rows(records, tail.topic, number)
