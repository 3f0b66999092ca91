"""Runs in each Spark task of a write: encodes its rows and stages them, one file per topic.

The task reports the runs of record batches that it staged. Readers see no row before the driver commits the runs. A
task that fails leaves no file. If the driver does not use the report of a task, the files of this task remain until a
sweep deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from lakelog.garbage_collection import exempt_modules_from_collection
from lakelog.given_records import to_append
from lakelog.opening import open_topics
from lakelog.spark.sink.sink_options import SinkOptions
from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError
from storage_engine.log.validator import Verdict, judge_records, refusal
from storage_engine.record.partitioner import partition_keys
from storage_engine.topic.append.appending import DEFAULT_BATCH_BYTES, Encoding, stage_records
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, staging_folder
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.topics import Topics

_QUERY_ID = "sql.streaming.queryId"
"""The property that Spark gives the tasks of a stream."""
_ENOUGH_BYTES = 4 * 1024**2
"""Rows are collected until they have this many bytes, and are then encoded. Otherwise small Arrow batches would become
small record batches."""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The report of one task.

    query: the id of the streaming query; None in a batch write.
    runs: by the topic's name and id, the staged runs.
    """

    query: str | None = None
    runs: Mapping[tuple[str, str], tuple[StagedRun, ...]] = field(default_factory=dict)


def stage_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions, *, durable: bool) -> StagedRows:
    """Stage the rows of this task.

    Args:
        batches: rows with the columns that `check_columns` accepts.
        durable: the staged files survive a power cut, because a list will name them.

    Raises:
        UnknownTopicError: there is no such topic.
        InvalidRecordError: a row has no topic, or names a partition that its topic does not have.
        RecordError: the topic's settings refuse a record. The error names the first such row.
        StorageError: the storage refused or failed.
    """
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    topics = open_topics(options.root, None, lambda _: None)
    with ExitStack() as opened:
        staged: dict[str, _TopicStaging] = {}
        first_row = 0
        for rows in gathered((batch for batch in batches if batch.num_rows), _ENOUGH_BYTES):
            for name, chosen in _by_topic(rows, options.topic, task, first_row):
                if name not in staged:
                    staged[name] = _TopicStaging.begin(topics, name, options, opened, durable=durable)
                of_topic = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
                staged[name].stage(of_topic, task, chosen + first_row, topics.clock.now_ms())
            first_row += rows.num_rows
    exempt_modules_from_collection()
    runs = {(name, each.state.topic_id): tuple(each.writer.runs) for name, each in staged.items()}
    return StagedRows(context.getLocalProperty(_QUERY_ID) if context else None, runs)


@dataclass(frozen=True)
class _TopicStaging:
    """One topic of a task."""

    state: TopicState
    config: TopicConfig
    compression: str
    writer: StagingWriter

    @classmethod
    def begin(
        cls, topics: Topics, name: str, options: SinkOptions, opened: ExitStack, *, durable: bool
    ) -> _TopicStaging:
        state = topics.state(name)
        folder = staging_folder(state.topic_id, state.version)
        writer = opened.enter_context(StagingWriter(topics.storage, folder, durable=durable))
        return cls(state, topics.config(state), options.compression, writer)

    def stage(self, rows: pa.RecordBatch, task: int, numbers: npt.NDArray[np.int64], now_ms: int) -> None:
        """Stage rows of this topic. numbers: int64, shape (rows,), the number of each row within the task."""

        def place(row: int) -> str:
            return f"topic {self.state.topic}, row {numbers[row]} of task {task}"

        records = to_append({name: rows[name] for name in rows.schema.names}, rows.num_rows, now_ms)
        verdicts = judge_records(records, self.config, now_ms)
        if len(refused := np.flatnonzero(verdicts)):
            row = int(refused[0])
            raise refusal(Verdict(int(verdicts[row])), place(row), self.config)
        count = len(self.state.partitions)
        given = rows["partition"] if "partition" in rows.schema.names else None
        partitions = chosen_partitions(records["key"], given, count, (int(numbers[0]) + task) % count)
        wrong = np.flatnonzero((partitions < 0) | (partitions >= len(self.state.partitions)))
        if len(wrong):
            row = int(wrong[0])
            raise InvalidRecordError(
                place(row), f"names partition {partitions[row]}, but the topic has only {len(self.state.partitions)} partitions",
                "Name an existing partition, or use NULL in the column `partition`.",
            )  # fmt: skip
        encoding = Encoding.of(self.config, now_ms, DEFAULT_BATCH_BYTES, self.compression)
        stage_records(self.writer, records, partitions, encoding)


def chosen_partitions(keys: pa.Array, given: pa.Array | None, count: int, sticky: int) -> npt.NDArray[np.int32]:
    """The partition of each record: the given partition, else the partition that the key determines, else `sticky`.

    Args:
        given: int32; null for records without a given partition. None if no record has one.
        count: the number of partitions of the topic. Given partitions are not compared with it.

    Returns:
        int32, shape (records,).
    """
    by_key = partition_keys(keys, count, sticky)
    if given is None or given.null_count == len(given):
        return by_key
    explicit: npt.NDArray[np.int32] = given.fill_null(0).to_numpy()
    return np.where(given.is_valid().to_numpy(zero_copy_only=False), explicit, by_key)


def _by_topic(
    rows: pa.RecordBatch, topic: str | None, task: int, first_row: int
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """The topics of the rows, each with the numbers of its rows in ascending order."""
    if topic is not None:
        yield topic, np.arange(rows.num_rows)
        return
    names = rows["topic"]
    if names.null_count:
        row = int(np.flatnonzero(names.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidRecordError(
            f"row {first_row + row} of task {task}", "the column `topic` is null",
            "Fill the column, or give the option topic, which is used for all rows.",
        )  # fmt: skip
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy()
    for code, name in enumerate(coded.dictionary.to_pylist()):
        yield name, np.flatnonzero(codes == code)


def gathered(batches: Iterable[pa.RecordBatch], enough: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least `enough` bytes, except the last one. A single batch is not copied."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= enough:
            yield _one(waiting)
            waiting, size = [], 0
    if waiting:
        yield _one(waiting)


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
