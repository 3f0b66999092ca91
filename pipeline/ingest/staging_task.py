"""Runs in each Spark task of a micro-batch: writes the task's rows as record batches and dead letters, and reports the
files.

The Arrow batches of the task become final record batches, in one file per topic. Each attempt of a task chooses a
random name for its file. Rows that a topic does not accept are written to a Parquet file in the same folder. If the
position of a row in the source shows that the topic already contains the row, the task skips the row. At the end, the
task reports the file and position of each run. A run is the record batches of one partition.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from lakelog.spark.sink.sink_staging import chosen_partitions, gathered
from pipeline.delta.dead_letters import INGEST_DEAD_LETTERS, Refusal
from pipeline.ingest.rows.record_rows import ROWS
from pipeline.ingest.source_positions import RowPositions
from pipeline.model_changes import NO_SCHEMAS, TopicSchemas
from schemas.event_schema import EventSchema
from storage_engine.config import TopicConfig
from storage_engine.log.validator import Verdict, judge_records
from storage_engine.phases import Phases
from storage_engine.record.record_columns import TO_APPEND, is_utf8
from storage_engine.storage import NewFile, Storage
from storage_engine.storage.file_object import FileObject
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter

_BAD_PARTITION = 255
"""A further verdict: the topic has no partition with the number that the partition expression returned."""
_UNKNOWN_TOPIC = 254
"""A further verdict: the topic expression returned a topic that the ingest does not feed."""
_INVALID = 253
"""A further verdict: the value or the key does not fit its schema."""
_REFUSED = 128
"""Further verdicts: this number plus a Refusal, for rows that were refused before staging."""
REPORT = pa.schema(
    {
        "runs": pa.string(),
        "dead_letters": pa.string(),
        "highest": pa.string(),
        "already_committed": pa.int64(),
        "gave_up": pa.bool_(),
        "seconds": pa.string(),
    }
)
"""The columns of a task's report. The report has one row. Documents are JSON."""

HAND_OVER = "Spark to Arrow"
ENCODE = "encode"
"""Phases of a task. Two more phases are the writing and the syncing of staged files."""

IS_LARGE = "is_large"
"""An optional column of the rows: true if Spark emptied the row because of its size."""
_ENOUGH_BYTES = 4 * 1024**2
"""The number of bytes of rows that are collected before the rows are encoded. Small Arrow batches would give small
record batches."""
_MOST_TIMES_ENOUGH = 8
"""With several topics, _ENOUGH_BYTES is multiplied by the number of topics, but at most by this number."""


@dataclass(frozen=True)
class StagingTopic:
    """One topic of a micro-batch.

    folder: the folder for its staged files.
    positions: by source partition, the highest position that is committed to the topic.
    schemas: the schemas that check values and keys.
    """

    name: str
    folder: str
    partitions: int
    config: TopicConfig
    encoding: Encoding
    positions: Mapping[str, int]
    schemas: TopicSchemas = NO_SCHEMAS


@dataclass(frozen=True)
class StagingTask:
    """The function of every Spark task of a micro-batch. Spark pickles it.

    root: the URI of the storage.
    spreads: the column `topic` gives the topic of each row; otherwise there is only one topic.
    listed: a list will name the staged files, and a repetition of the micro-batch uses this list.
    positioned: the rows have positions.
    now_ms: the time of the micro-batch.
    schema_setting: the setting that gives the source's schema.
    """

    root: str
    topics: tuple[StagingTopic, ...]
    spreads: bool
    listed: bool
    positioned: bool
    now_ms: int
    query_id: str
    batch_id: int
    schema_setting: str = Refusal.MALFORMED.setting

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of one task; yields one report. The rows have the columns of
        pipeline.ingest.rows.record_rows.ROWS."""
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        storage = open_storage(self.root)
        try:
            yield self._stage(batches, storage, task)
        except _LargeRowError:
            yield _report(gave_up=True)

    def _stage(self, batches: Iterable[pa.RecordBatch], storage: Storage, task: int) -> pa.RecordBatch:
        first_row = already_committed = 0
        highest: dict[str, int] = {}
        phases = Phases()
        with ExitStack() as opened:
            opened.enter_context(phases.phase(HAND_OVER))
            topics = [_TopicFiles.of(topic, storage, opened, phases, self.listed) for topic in self.topics]
            nowhere = opened.enter_context(DeadLetterFile(storage, self.topics[0].folder))
            enough = _ENOUGH_BYTES * min(len(topics), _MOST_TIMES_ENOUGH)
            for number, batch in enumerate(gathered(_not_emptied(batches), enough)):
                with phases.phase(ENCODE):
                    rows = _without_keyless_headers(_completed(batch))
                    spread = self._spread(rows)
                    if self.positioned:
                        # The fields of a malformed row may have any value, for example a position far ahead.
                        malformed = pc.equal(rows["refused"], Refusal.MALFORMED).fill_null(False)
                        positions = RowPositions.of(batch, malformed.to_numpy(zero_copy_only=False))
                        positions.raise_highest(highest)
                        rows = _without_position_refused(rows, positions)
                        spread = self._not_committed(spread, positions)
                        already_committed += rows.num_rows - sum(map(len, spread))
                    *of_topics, unknown = spread
                    for files, chosen in zip(topics, of_topics, strict=True):
                        if len(chosen):
                            sticky = (self.batch_id + task + number) % files.topic.partitions
                            self._stage_rows(_taken(rows, chosen), files, sticky, task, chosen + first_row)
                    if len(unknown):
                        nowhere.write(self._of_unknown_topics(_taken(rows, unknown), task, unknown + first_row))
                    first_row += rows.num_rows
        letters = [(files.topic.name, files.dead_letters) for files in topics] + [(None, nowhere)]
        runs = {files.topic.name: files.staging.runs for files in topics}
        return _report(runs, letters, highest, already_committed, phases.seconds)

    def _spread(self, rows: pa.RecordBatch) -> list[npt.NDArray[np.int64]]:
        """By topic, the numbers of its rows. The last element has the numbers of the rows with an unknown topic."""
        if not self.spreads:
            return [np.arange(rows.num_rows), np.empty(0, np.int64)]
        names = pa.array([topic.name for topic in self.topics])
        chosen = pc.index_in(rows["topic"], names).fill_null(len(names)).to_numpy()
        return [np.flatnonzero(chosen == index) for index in range(len(names) + 1)]

    def _not_committed(
        self, spread: Sequence[npt.NDArray[np.int64]], positions: RowPositions
    ) -> list[npt.NDArray[np.int64]]:
        """The numbers of the rows that are not committed yet. A row with an unknown topic becomes a dead letter. Such a
        row counts as committed if it is at or below the positions of all topics."""
        committed = [positions.committed(topic.positions) for topic in self.topics]
        committed.append(np.logical_and.reduce(committed))
        return [chosen[~done[chosen]] for chosen, done in zip(spread, committed, strict=True)]

    def _stage_rows(
        self, rows: pa.RecordBatch, files: _TopicFiles, sticky: int, task: int, numbers: npt.NDArray[np.int64]
    ) -> None:
        topic = files.topic
        records = self._to_append(rows)
        verdicts = judge_records(records, topic.config, self.now_ms)
        partitions = chosen_partitions(rows["key"].cast(pa.binary()), rows["partition"], topic.partitions, sticky)
        verdicts[(partitions < 0) | (partitions >= topic.partitions)] = _BAD_PARTITION
        verdicts = _refused(rows, verdicts)
        invalid = _invalid(records, "value", verdicts, topic.schemas.values)
        of_keys = _invalid(records, "key", verdicts, topic.schemas.keys)
        # A tombstone deletes the row of its key whether or not the key can be decoded.
        invalid |= {row: reason for row, reason in of_keys.items() if records["value"][row].is_valid}
        verdicts[list(invalid)] = _INVALID
        admitted = verdicts == Verdict.ADMITTED
        stage_records(files.staging, records, np.where(admitted, partitions, np.int32(-1)), topic.encoding)
        if not admitted.all():
            names = pa.repeat(topic.name, rows.num_rows)
            files.dead_letters.write(self._dead_letters(rows, verdicts, names, task, numbers, invalid))

    def _of_unknown_topics(self, rows: pa.RecordBatch, task: int, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        verdicts = _refused(rows, np.full(rows.num_rows, _UNKNOWN_TOPIC, np.uint8))
        return self._dead_letters(rows, verdicts, rows["topic"].fill_null(""), task, numbers)

    def _to_append(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        timestamps = rows["timestamp"].fill_null(self.now_ms)
        columns = [rows["key"], rows["value"], rows["headers"], timestamps]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, TO_APPEND, strict=True)], schema=TO_APPEND
        )

    def _dead_letters(
        self,
        rows: pa.RecordBatch,
        verdicts: npt.NDArray[np.uint8],
        topics: pa.StringArray,
        task: int,
        numbers: npt.NDArray[np.int64],
        details: Mapping[int, str] = {},
    ) -> pa.RecordBatch:
        """The dead letters: the rows that were not admitted.

        Args:
            topics: the topic of each row.
            numbers: the number of each row within the task.
            details: by row, a detail that replaces the detail of the row's verdict.
        """
        refused = np.flatnonzero(verdicts)
        count = len(refused)
        reasons = [_REASONS[verdict] for verdict in verdicts[refused].tolist()]
        dead = rows.take(pa.array(refused))
        columns = {
            "reason": [reason for reason, _ in reasons],
            "detail": [
                details.get(row, detail).replace(Refusal.MALFORMED.setting, self.schema_setting)
                for row, (_, detail) in zip(refused.tolist(), reasons, strict=True)
            ],
            "topic": topics.take(pa.array(refused)),
            "query_id": [self.query_id] * count,
            "batch_id": [self.batch_id] * count,
            "task": [task] * count,
            "row": numbers[refused],
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
    _UNKNOWN_TOPIC: ("unknown_topic", "ingest.topics does not name the topic of the row"),
    _BAD_PARTITION: ("bad_partition", "the topic has no partition with this number"),
    _INVALID: ("invalid", "the value or the key does not fit its schema"),
    **{_REFUSED + refusal: (refusal.reason, refusal.detail) for refusal in Refusal},
}


def _invalid(
    records: pa.RecordBatch, name: str, verdicts: npt.NDArray[np.uint8], schema: EventSchema | None
) -> dict[int, str]:
    """By row, the reason why a value or a key of an admitted record does not fit its schema.

    Args:
        name: the name of the column with the values or the keys.
    """
    if schema is None:
        return {}
    admitted = np.flatnonzero(verdicts == Verdict.ADMITTED)
    values, headers = (records[each].take(pa.array(admitted)) for each in (name, "headers"))
    decoded = schema.decode(values.cast(pa.binary()), headers)
    return {int(admitted[error.row]): f"{error.reason}, by the schema {schema.text}" for error in decoded.errors}


class _LargeRowError(Exception):
    """Spark emptied a row because of its size, so the staged rows are not complete."""


def _report(
    runs: Mapping[str, Sequence[StagedRun]] = {},
    dead_letters: Sequence[tuple[str | None, DeadLetterFile]] = (),
    highest: Mapping[str, int] = {},
    already_committed: int = 0,
    seconds: Mapping[str, float] = {},
    *,
    gave_up: bool = False,
) -> pa.RecordBatch:
    report = {
        "runs": json.dumps({topic: [run.to_json() for run in staged] for topic, staged in runs.items()}),
        "dead_letters": json.dumps([[topic, file.key, file.reasons] for topic, file in dead_letters if file.reasons]),
        "highest": json.dumps(highest),
        "already_committed": already_committed,
        "gave_up": gave_up,
        "seconds": json.dumps(seconds),
    }
    return pa.RecordBatch.from_pylist([report], REPORT)


def _taken(rows: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The chosen rows. chosen: row numbers, ascending and distinct."""
    return rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))


def _refused(rows: pa.RecordBatch, verdicts: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The verdicts; for rows that were refused before staging, the earlier refusal."""
    refusals = rows["refused"].fill_null(0).to_numpy().astype(np.uint8)
    return np.where(refusals, _REFUSED + refusals, verdicts)


def _without_position_refused(rows: pa.RecordBatch, positions: RowPositions) -> pa.RecordBatch:
    """The rows; rows without a position are marked as refused."""
    without = positions.unknown
    return _with_refused(rows, without, Refusal.NO_POSITION) if without.any() else rows


def _without_keyless_headers(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows; if a header of a row is null, or has a key that is null or not UTF-8, the row is refused and loses its
    headers."""
    headers = rows["headers"]
    pairs = headers.flatten()
    keys = pairs.field(0)
    are_utf8 = is_utf8(keys)
    if are_utf8 and not (pairs.null_count or keys.null_count):
        return rows
    wrong = pc.or_(pc.is_null(pairs), pc.is_null(keys))
    if not are_utf8:
        wrong = pc.or_(wrong, pa.array([not is_utf8(keys[place : place + 1]) for place in range(len(keys))]))
    keyless = np.zeros(rows.num_rows, np.bool_)
    keyless[pc.list_parent_indices(headers).filter(wrong).to_numpy()] = True
    kept = pc.if_else(pa.array(keyless), pa.scalar(None, headers.type), headers)
    rows = rows.set_column(rows.schema.get_field_index("headers"), "headers", kept)
    return _with_refused(rows, keyless, Refusal.HEADERS_FAILED)


def _with_refused(rows: pa.RecordBatch, which: npt.NDArray[np.bool_], refusal: Refusal) -> pa.RecordBatch:
    """The rows; the marked rows are refused. A row that is refused already keeps its first reason."""
    refused = pc.coalesce(rows["refused"], pc.if_else(pa.array(which), pa.scalar(refusal, pa.int8()), None))
    return rows.set_column(rows.schema.get_field_index("refused"), "refused", refused.cast(pa.int8()))


def _not_emptied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches.

    Raises:
        _LargeRowError: Spark emptied a row.
    """
    for batch in batches:
        if IS_LARGE in batch.schema.names and pc.any(batch[IS_LARGE]).as_py():
            raise _LargeRowError
        yield batch


def _completed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with every column of ROWS; columns that were left out are null."""
    return pa.RecordBatch.from_arrays(
        [
            rows[field.name] if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
            for field in ROWS
        ],
        ROWS.names,
    )


def _as(column: object, kind: pa.DataType) -> pa.Array:
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


class DeadLetterFile:
    """A Parquet file that is created when its first rows are written. At the end of the `with` block, the file is
    complete or does not exist."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._file: NewFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self.key = f"{folder}{secrets.token_hex(8)}.parquet"
        self.reasons: Counter[str] = Counter()

    def write(self, rows: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = self._storage.new_file(self.key)
            self._writer = pq.ParquetWriter(FileObject(self._file), INGEST_DEAD_LETTERS)
        assert self._writer is not None, "created together with the file"
        self._writer.write_batch(rows)
        self.reasons.update(rows["reason"].to_pylist())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if error is not None or self._writer is None:
            self._file.abort()
            return
        with self._file:
            self._writer.close()


@dataclass(frozen=True)
class _TopicFiles:
    """The files that one task writes for one topic."""

    topic: StagingTopic
    staging: StagingWriter
    dead_letters: DeadLetterFile

    @classmethod
    def of(cls, topic: StagingTopic, storage: Storage, opened: ExitStack, phases: Phases, listed: bool) -> Self:
        """The files of a topic. When `opened` is closed, each file is complete or does not exist.

        Args:
            listed: a list will name the files.
        """
        is_inline = storage.growing is None and not listed  # a request would take longer than the bytes
        staging = opened.enter_context(StagingWriter(storage, topic.folder, phases, durable=listed, inline=is_inline))
        return cls(topic, staging, opened.enter_context(DeadLetterFile(storage, topic.folder)))
