"""Staging a micro-batch on Spark's executors: rows in, record batches and dead letters on storage, a report out.

Each task of the micro-batch, as it lies and without a shuffle, turns its Arrow batches into final record batches in one
file named after the attempt, and writes what the topic may not hold to a Parquet file beside it. Then it reports where
each run lies. Spark takes the report of exactly one attempt of each task, so a failed or speculative one leaves files
that nobody names.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pipeline.dead_letters import INGEST_DEAD_LETTERS, Refusal
from storage_engine.config import TopicConfig
from storage_engine.log.validator import Verdict, judge_records
from storage_engine.record.columns import TO_APPEND
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage import NewFile, Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.appending import Encoding, stage_records
from storage_engine.topic.staging import StagedRun, StagingWriter

_BAD_PARTITION = 255
"""Beside the validator's verdicts: the partition expression named one that the topic does not have."""
_REFUSED = 128
"""Beside them, too: this and a Refusal, for rows that were refused before they came here."""
_REPORT = "runs string, dead_letters string"


@dataclass(frozen=True)
class StagedDeadLetters:
    """One task's dead letters: their file, and how many there are by reason."""

    key: str
    reasons: Counter[str]


@dataclass(frozen=True)
class StagedBatch:
    """What the tasks of a micro-batch reported, in the order of the tasks."""

    runs: tuple[StagedRun, ...]
    dead_letters: tuple[StagedDeadLetters, ...]

    @property
    def reasons(self) -> Counter[str]:
        return sum((letters.reasons for letters in self.dead_letters), Counter())


@dataclass(frozen=True)
class StagingTask:
    """What every task of a micro-batch is told. Spark pickles it.

    root: the storage's URI. folder: where this micro-batch is staged. now_ms: the micro-batch's time.
    """

    root: str
    folder: str
    topic: str
    partitions: int
    config: TopicConfig
    encoding: Encoding
    now_ms: int
    query_id: str
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage one task's rows, columns as in pipeline.rows.ROWS; yields its one report."""
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        storage = open_storage(self.root)
        first_row = 0
        with StagingWriter(storage, self.folder) as staging, _DeadLetterFile(storage, self.folder) as dead_letters:
            for number, rows in enumerate(batches):
                records = self._to_append(rows)
                verdicts = judge_records(records, self.config, self.now_ms)
                partitions = self._partitions(rows, sticky=(self.batch_id + task + number) % self.partitions)
                verdicts[(partitions < 0) | (partitions >= self.partitions)] = _BAD_PARTITION
                refusals = rows["refused"].fill_null(0).to_numpy().astype(np.uint8)
                verdicts = np.where(refusals, _REFUSED + refusals, verdicts)
                admitted = verdicts == Verdict.ADMITTED
                stage_records(staging, records, np.where(admitted, partitions, np.int32(-1)), self.encoding)
                if not admitted.all():
                    dead_letters.write(self._dead_letters(rows, verdicts, task, first_row))
                first_row += rows.num_rows
        report = {
            "runs": json.dumps([run.to_json() for run in staging.runs]),
            "dead_letters": json.dumps([dead_letters.key, dead_letters.reasons] if dead_letters.reasons else None),
        }
        yield pa.RecordBatch.from_pylist([report])

    def _to_append(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        timestamps = rows["timestamp"].fill_null(self.now_ms)
        columns = [rows["key"], rows["value"], rows["headers"], timestamps]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, TO_APPEND, strict=True)], schema=TO_APPEND
        )

    def _partitions(self, rows: pa.RecordBatch, sticky: int) -> npt.NDArray[np.int32]:
        chosen = partition_keys(rows["key"].cast(pa.binary()), self.partitions, sticky)
        given = rows["partition"]
        if given.null_count == len(given):
            return chosen
        explicit: npt.NDArray[np.int32] = given.fill_null(0).to_numpy()
        return np.where(given.is_valid().to_numpy(zero_copy_only=False), explicit, chosen)

    def _dead_letters(
        self, rows: pa.RecordBatch, verdicts: npt.NDArray[np.uint8], task: int, first_row: int
    ) -> pa.RecordBatch:
        refused = np.flatnonzero(verdicts)
        count = len(refused)
        reasons = [_REASONS[verdict] for verdict in verdicts[refused].tolist()]
        dead = rows.take(pa.array(refused))
        columns = {
            "reason": [reason for reason, _ in reasons],
            "detail": [detail for _, detail in reasons],
            "topic": [self.topic] * count,
            "query_id": [self.query_id] * count,
            "batch_id": [self.batch_id] * count,
            "task": [task] * count,
            "row": refused + first_row,
            "source": dead["source"],
            "key": dead["key"],
            "value": dead["value"],
            "headers": dead["headers"],
        }
        return pa.RecordBatch.from_arrays(
            [_as(columns[field.name], field.type) for field in INGEST_DEAD_LETTERS], schema=INGEST_DEAD_LETTERS
        )


_REASONS = {
    int(Verdict.NO_KEY): ("no_key", "the topic is compacted and the record has no key"),
    int(Verdict.TOO_LARGE): ("too_large", "the record is larger than max.message.bytes or segment.bytes"),
    int(Verdict.BAD_TIMESTAMP): ("bad_timestamp", "the timestamp is unreadable, negative or too far from the clock"),
    _BAD_PARTITION: ("bad_partition", "the topic has no partition of this number"),
    **{_REFUSED + refusal: (refusal.reason, refusal.detail) for refusal in Refusal},
}


def _as(column: object, kind: pa.DataType) -> pa.Array:
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


class _DeadLetterFile:
    """A Parquet file that comes into being with its first rows; as a context it is complete, or not there."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._file: NewFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self.key = f"{folder}{secrets.token_hex(8)}.parquet"
        self.reasons: Counter[str] = Counter()

    def write(self, rows: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = self._storage.new_file(self.key)
            self._writer = pq.ParquetWriter(pa.PythonFile(_Sink(self._file), "w"), INGEST_DEAD_LETTERS)
        assert self._writer is not None, "made with its file"
        self._writer.write_batch(rows)
        self.reasons.update(rows["reason"].to_pylist())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None or self._writer is None:
            return
        if error is None:
            self._writer.close()
            self._file.close()
        else:
            self._file.abort()


class _Sink:
    """A NewFile as the writable file object that pyarrow asks for."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self.closed = False

    def write(self, data: bytes) -> int:
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def stage_batch(rows: DataFrame, task: StagingTask) -> StagedBatch:
    """Run the staging of one micro-batch on Spark and collect its reports."""
    reports = rows.mapInArrow(task, _REPORT).collect()  # in the order of the tasks
    runs = [StagedRun.from_json(run) for report in reports for run in json.loads(report["runs"])]
    letters = [json.loads(report["dead_letters"]) for report in reports]
    return StagedBatch(tuple(runs), tuple(StagedDeadLetters(found[0], Counter(found[1])) for found in letters if found))
