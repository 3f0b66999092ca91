"""Writes rows into new Parquet files of a Delta table. Each task of a Spark job writes its own files.

The rows go from Arrow into the files, so Spark builds no row. A task returns only a description of its files, the sums of
the digests, and the counts. No reader of the table sees the files until a commit names them. If a task fails, or Spark
runs a task twice, files without a commit are left. VACUUM deletes them, as it deletes the files of Spark's own writer.

    <table>/part-<id of the file>.snappy.parquet
    <table>/<column>=<value>/part-<id of the file>.snappy.parquet      in a table with partitions
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import PartitionCounts, RowSum, added
from pipeline.delta.dead_letter_share import Counts
from pipeline.delta.export_plan import Export
from pipeline.delta.files.file_statistics import delta_statistics
from pipeline.delta.layout_columns import NULL_FOLDER
from pipeline.delta.rows.row_columns import (
    COORDINATES,
    COUNTS,
    DIGEST,
    HANDLING,
    RAW_VALUE,
    REASONS,
    nullable_columns,
    table_columns,
)
from pipeline.delta.rows.row_decoding import counted
from pipeline.delta.vectors.vector_files import DeletionVector
from storage_engine.storage import Storage
from storage_engine.storage.file_object import FileObject
from storage_engine.storage.storage_opening import open_storage

GROUP_BYTES = 32 << 20
"""About the size of a row group, in memory."""
_FILE_BYTES = 256 << 20
"""About the largest size of a file."""
_ALL_DIFFERENT = {"_offset", "_timestamp", DIGEST.name, RAW_VALUE}
"""Columns of which a dictionary would only take time: nearly all their values are different."""
RESULT = pa.schema([("_written", pa.string())])
"""In the rows that a task returns: what the task wrote, as JSON. One row of each task has it."""
LETTER_COLUMNS = pa.schema([*RESULT, *COORDINATES, *HANDLING])
"""The columns of a task that decodes records: its other rows are the records that cannot be decoded."""
PartitionValues = tuple[tuple[str, str | None], ...]
"""The columns that partition a table, in the order of the table, with their values in one file: as texts, as in Delta's
log. Empty if the table has no partitions."""


@dataclass(frozen=True)
class WrittenFile:
    """A file of a table that no commit names yet. stats, partition_values: as in Delta's log."""

    name: str
    size: int
    rows: int
    modified_ms: int
    stats: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)


class TableFile(NamedTuple):
    """A file of a table. name: the path in the folder of the table. size: in bytes. vector: its deletion vector."""

    name: str
    size: int
    partition_values: PartitionValues = ()
    vector: DeletionVector | None = None


@dataclass(frozen=True)
class Written:
    """What one or more tasks wrote.

    came: by partition of the topic, the rows and the sum of their digests; empty if the rows have no digests.
    counts: by partition, the numbers of records by the kinds of `Written.count`.
    """

    files: tuple[WrittenFile, ...] = ()
    came: Mapping[int, RowSum] = field(default_factory=dict)
    counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def __add__(self, other: Written) -> Written:
        counts = {each: dict(found) for each, found in self.counts.items()}
        for partition, found in other.counts.items():
            total = counts.setdefault(partition, {})
            for name, count in found.items():
                total[name] = total.get(name, 0) + count
        return Written((*self.files, *other.files), added(self.came, other.came), counts)

    def to_json(self) -> str:
        return json.dumps(
            {
                "files": [asdict(each) for each in self.files],
                "came": {each: total.to_pair() for each, total in self.came.items()},
                "counts": self.counts,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Written:
        document = json.loads(text)
        return cls(
            tuple(WrittenFile(**each) for each in document["files"]),
            {int(each): RowSum.from_pair(pair) for each, pair in document["came"].items()},
            {int(each): found for each, found in document["counts"].items()},
        )


@dataclass(frozen=True)
class AppendRecords:
    """The function of a task that decodes records and writes their rows. Its result has the columns LETTER_COLUMNS."""

    export: Export

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = Written()
        with RowFiles(self.export) as files:
            for batch in counted(batches, self.export):
                is_bad = batch["_reason"].is_valid()
                bad = batch.filter(is_bad)
                written += Written(counts=record_counts(batch, bad))
                yield from letters_of(bad, LETTER_COLUMNS)
                files.write(batch.filter(pc.invert(is_bad)) if bad.num_rows else batch)
        yield pa.RecordBatch.from_pylist([{"_written": (written + files.written).to_json()}], LETTER_COLUMNS)


@dataclass(frozen=True)
class WriteRows:
    """The function of a task that writes rows with the columns of the table. Its result has the column of RESULT."""

    export: Export

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with RowFiles(self.export) as files:
            for batch in batches:
                files.write(batch)
        yield pa.record_batch([pa.array([files.written.to_json()])], schema=RESULT)


def letters_of(bad: pa.RecordBatch, columns: pa.Schema) -> list[pa.RecordBatch]:
    """Records that cannot be decoded, as rows of a task's result.

    Args:
        columns: LETTER_COLUMNS, perhaps with others, which are null.
    """
    if not bad.num_rows:
        return []
    arrays = [
        bad[each.name].cast(each.type) if each.name in bad.schema.names else pa.nulls(bad.num_rows, each.type)
        for each in columns
    ]
    return [pa.record_batch(arrays, schema=columns)]


def record_counts(batch: pa.RecordBatch | pa.Table, bad: pa.RecordBatch | pa.Table) -> Mapping[int, Mapping[str, int]]:
    """By partition: how many records there are, how many of them are tombstones, how many have each reason of a dead
    letter, and how many have a reason and are tombstones.

    Args:
        batch: rows with the columns COUNTS.
        bad: those of the rows that could not be decoded.
    """
    counts: dict[int, dict[str, int]] = {}
    by_partition = pa.table({name: batch[name] for name in ("_partition", *COUNTS.names)}).group_by("_partition")
    for found in by_partition.aggregate([(name, "sum") for name in COUNTS.names]).to_pylist():
        names = {"records": found["_records_sum"], "tombstones": found["_nulls_sum"]}
        counts[found["_partition"]] = {name: count for name, count in names.items() if count}

    def add(name: str, partitions: pa.Array) -> None:
        for found in pc.value_counts(partitions).to_pylist():
            counts[found["values"]][name] = found["counts"]

    if bad.num_rows:
        add("null_values", bad["_partition"].filter(bad["_tombstone"]))
        for reason in pc.unique(bad["_reason"]).to_pylist():
            add(reason, bad["_partition"].filter(pc.equal(bad["_reason"], reason)))
    return counts


def counts_of(written: Written) -> Counts:
    """The counts of the records."""
    by_partition = written.counts.values()
    totals = {
        name: sum(found.get(name, 0) for found in by_partition)
        for name in ("records", "tombstones", "null_values", *REASONS)
    }
    return Counts(
        totals["records"],
        totals["tombstones"],
        {reason: totals[reason] for reason in REASONS if totals[reason]},
        totals["null_values"],
        {each: _partition_counts(found) for each, found in written.counts.items()},
    )


def _partition_counts(found: Mapping[str, int]) -> PartitionCounts:
    dead_letters = sum(found.get(reason, 0) for reason in REASONS)
    return PartitionCounts(found["records"], found.get("tombstones", 0), dead_letters)


class RowFiles:
    """The new files of one task. At the end of the `with` block, the files are complete; after an error, they are
    deleted.

    In a table with partitions, `begin_partition` or `by_partition` chooses the partition before rows are written.
    """

    def __init__(self, export: Export) -> None:
        self.written = Written()
        self._partitions = export.layout.partitions
        columns = nullable_columns(table_columns(export))
        self._columns = pa.schema([each for each in columns if each.name not in self._partitions])
        self._values: PartitionValues = ()
        self._storage = open_storage(export.table)
        self._file: RowFile | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    @property
    def next_row(self) -> tuple[int, int]:
        """The number of the file in `written.files`, and the number of the row in the file, that the next row gets."""
        return len(self.written.files), self._rows

    def begin_partition(self, values: PartitionValues) -> None:
        """Write the following rows into other files. They have these values in the partition columns."""
        if self._waiting:
            self._write_group()
        self._end_file()
        self._values = values

    def by_partition(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows in parts, one for each partition of the table. `write` then writes into this partition."""
        if not self._partitions:
            yield rows
            return
        texts = [rows[name].cast(pa.string()).to_pylist() for name in self._partitions]
        places: dict[PartitionValues, list[int]] = {}
        for row, values in enumerate(zip(*texts, strict=True)):
            places.setdefault(tuple(zip(self._partitions, values, strict=True)), []).append(row)
        for values, part in places.items():
            self.begin_partition(values)
            yield rows.take(pa.array(part))

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows into one file. They have the columns of the table, and perhaps others."""
        if not batch.num_rows:
            return
        rows = batch.select(self._columns.names).cast(self._columns)
        if DIGEST.name in self._columns.names:
            self.written += Written(came=sums_by_partition(batch["_partition"], rows[DIGEST.name]))
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._file is None:
            name = f"{_folder_of(self._values)}part-{uuid.uuid4()}.snappy.parquet"
            self._file = RowFile(self._storage, name, self._columns)
        self._file.write(pa.Table.from_batches(self._waiting))
        self._waiting, self._bytes = [], 0
        if self._file.size >= _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            made = replace(self._file.close(), partition_values=dict(self._values))
            self.written += Written(files=(made,))
            self._file, self._rows = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._waiting:
                self._write_group()
            self._end_file()
            return
        if self._file is not None:
            self._file.abort()
        for each in self.written.files:
            self._storage.delete(each.name)


def _folder_of(values: PartitionValues) -> str:
    """The folder of a partition in the folder of the table, as deltalake names it. Delta's log has the values of the
    partition columns, too, but Polars reads them from the names of the folders."""
    return "".join(f"{name}={NULL_FOLDER if text is None else quote(text, safe='')}/" for name, text in values)


class RowFile:
    """One new file."""

    def __init__(self, storage: Storage, name: str, columns: pa.Schema) -> None:
        self._name = name
        self._columns = columns
        self._file = storage.new_file(self._name)
        self._sink = FileObject(self._file)
        leaves = _leaves(columns)
        self._writer = pq.ParquetWriter(
            self._sink, columns,
            compression={each: "none" if each == DIGEST.name else "snappy" for each in leaves},
            use_dictionary=[each for each in leaves if each not in _ALL_DIFFERENT],
        )  # fmt: skip

    @property
    def size(self) -> int:
        return self._sink.size

    def write(self, rows: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(rows, row_group_size=len(rows))

    def close(self) -> WrittenFile:
        self._writer.close()
        self._file.close()
        footer = self._writer.writer.metadata
        stats = delta_statistics(self._columns, footer)
        return WrittenFile(self._name, self._sink.size, footer.num_rows, time.time_ns() // 1_000_000, stats)

    def abort(self) -> None:
        self._file.abort()


def _leaves(columns: pa.Schema) -> list[str]:
    """The names of all columns in a Parquet file, also of those inside other columns."""
    footer = io.BytesIO()
    pq.write_metadata(columns, footer)
    schema = pq.read_metadata(footer).schema
    return [schema.column(number).path for number in range(len(schema))]
