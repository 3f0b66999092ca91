"""Contains the functions of the Spark tasks that upsert rows into a table.

    ReduceRecords   reads and decodes records, writes the rows of the newest ones into new files, and lists the records
    FindRows        finds the rows of the table that have keys of the list
    RewriteFiles    writes groups of files again, without the rows that are dropped

Each task writes new files only, and returns their names. So a task can fail, or run twice: the driver gets the result of
one attempt, and no commit names the files of the others (`pipeline.delta.files.row_files`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import RowSum, added
from pipeline.delta.export_plan import Export
from pipeline.delta.files.key_index import FOUND, INDEX, ROW, TOMBSTONE, UNDECODABLE, FileChange
from pipeline.delta.files.row_files import (
    GROUP_BYTES,
    LETTER_COLUMNS,
    RowFiles,
    TableFile,
    Written,
    WrittenFile,
    letters_of,
    record_counts,
)
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST, STALE_SINCE, nullable_columns, table_columns
from pipeline.delta.rows.row_decoding import newest_of_keys
from pipeline.delta.vectors.vector_files import read_vector
from pipeline.delta.without_spark.row_changes import stale_array
from storage_engine.errors import NotFoundError, StorageError
from storage_engine.storage import Storage
from storage_engine.storage.file_object import ReadableObject
from storage_engine.storage.storage_opening import open_storage

REDUCED = pa.schema([*LETTER_COLUMNS, ("_index", pa.binary())])
"""The columns of ReduceRecords. One row of each task has `_written` and `_index`: the list of the records (`packed`), or
null if the list would be too large. The other rows are the records that cannot be decoded."""
FOUND_ROWS = pa.schema([("number", pa.int64()), ("found", pa.binary())])
"""The columns of FindRows: the number of a file, and the rows that were found, with the columns FOUND and perhaps the
digests (`packed`)."""
REWRITTEN = pa.schema([("number", pa.int64()), ("files", pa.string()), ("went", pa.string())])
"""The columns of RewriteFiles: the number of a group, the files that replace its files, and the sums of the rows that
were dropped (`rewritten_of`)."""


def packed(table: pa.Table) -> bytes:
    """The table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> pa.Table:
    """The reverse of `packed`."""
    return pa.ipc.open_stream(data).read_all()


@dataclass(frozen=True)
class ReduceRecords:
    """Writes the rows of the newest records. most_bytes: the largest size of the list of a task."""

    export: Export
    most_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = Written()
        index: list[pa.Table] = [INDEX.empty_table()]
        size = 0
        with RowFiles(self.export) as files:
            for batch in newest_of_keys(batches, self.export):
                is_bad = batch["_reason"].is_valid()
                bad = batch.filter(is_bad)
                written += Written(counts=record_counts(batch, bad))
                yield from letters_of(bad, REDUCED)
                good = batch.filter(pc.invert(is_bad)) if bad.num_rows else batch
                entries = listed(good, bad, files)
                index += entries
                size += sum(each.nbytes for each in entries)
                if size > self.most_bytes:
                    break
        whole = packed(pa.concat_tables(index)) if size <= self.most_bytes else None
        yield pa.RecordBatch.from_pylist([{"_written": (written + files.written).to_json(), "_index": whole}], REDUCED)


def listed(good: pa.RecordBatch, bad: pa.RecordBatch, files: RowFiles) -> list[pa.Table]:
    """Write the rows of decoded records into files. Returns the list of these records, columns as in INDEX.

    Args:
        good: the records that can be decoded, with the columns of the table.
        bad: the records that cannot be decoded.
    """
    index = [
        _entries(bad.filter(bad["_key"].is_valid()), UNDECODABLE),
        _entries(good.filter(good["_tombstone"]), TOMBSTONE),
    ]
    for part in files.by_partition(good.filter(pc.invert(good["_tombstone"]))):
        for rows in _slices(part):
            index.append(_entries(rows, ROW, *files.next_row))
            files.write(rows.append_column(STALE_SINCE, pa.nulls(rows.num_rows, STALE_SINCE.type)))
    return index


def _entries(rows: pa.RecordBatch, kind: int, file: int = 0, first_row: int = 0) -> pa.Table:
    count = rows.num_rows
    arrays = [
        *(rows[name] for name in COORDINATES.names),
        pa.array(np.full(count, kind, np.int8)),
        pa.array(np.full(count, file, np.int32)),
        pa.array(np.arange(first_row, first_row + count, dtype=np.int64)),
    ]
    return pa.table(arrays, names=INDEX.names).cast(INDEX)


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that are not much larger than a row group."""
    count = -(-rows.nbytes // GROUP_BYTES)
    step = max(1, -(-rows.num_rows // max(1, count)))
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


@dataclass(frozen=True)
class FindRows:
    """Finds the rows that have one of the keys. The tasks get the numbers of the files.

    with_digests: whether the rows are returned with their digests.
    """

    export: Export
    files: Sequence[TableFile]
    keys: pa.Array
    with_digests: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.export.table)
        columns = pa.schema([*FOUND, DIGEST]) if self.with_digests else FOUND
        for number in _ids(batches):
            file = self.files[number]
            read = ["_key", *(name for name in columns.names if name not in ("row", "key"))]
            deleted = read_vector(storage, file.vector)
            found = [columns.empty_table()]
            first = 0
            for rows in _batches(storage, file, self.export, read):
                keys = pc.index_in(rows["_key"], value_set=self.keys)
                places = pc.indices_nonzero(keys.is_valid()).to_numpy().astype(np.int64)
                places = places[~np.isin(places + first, deleted)]
                matching = pa.Table.from_batches([rows]).take(pa.array(places)).drop_columns("_key")
                matching = matching.append_column("key", keys.take(pa.array(places)))
                matching = matching.append_column("row", pa.array(places + first))
                found.append(matching.select(columns.names).cast(columns))
                first += rows.num_rows
            yield pa.record_batch([[number], [packed(pa.concat_tables(found))]], schema=FOUND_ROWS)


@dataclass(frozen=True)
class RewriteFiles:
    """Writes files again, with their changes. The rows of a group of files come into one new file, if it does not become
    too large. The files of a group are in the same partition of the table. If a file stays in the table, only its stale
    rows are written. The tasks get the numbers of the groups."""

    export: Export
    groups: Sequence[Sequence[tuple[TableFile, FileChange]]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(self.export.table)
        for number in _ids(batches):
            went: dict[int, RowSum] = {}
            with RowFiles(self.export) as files:
                files.begin_partition(self.groups[number][0][0].partition_values)
                for file, change in self.groups[number]:
                    first = 0
                    for batch in _batches(storage, file, self.export):
                        rows, dropped = _changed(batch, first, change)
                        first += batch.num_rows
                        files.write(rows)
                        if self.export.digest and dropped.num_rows:
                            went = added(went, sums_by_partition(dropped["_partition"], dropped[DIGEST.name]))
            documents = (
                json.dumps([asdict(each) for each in files.written.files]),
                json.dumps({each: total.to_pair() for each, total in went.items()}),
            )
            yield pa.record_batch([[number], *([each] for each in documents)], schema=REWRITTEN)


def rewritten_of(files: str, went: str) -> tuple[list[WrittenFile], dict[int, RowSum]]:
    """The files that replace the files of a group, and the rows that were dropped, by partition.

    Args:
        files, went: columns of REWRITTEN.
    """
    sums = {int(each): RowSum.from_pair(pair) for each, pair in json.loads(went).items()}
    return [WrittenFile(**each) for each in json.loads(files)], sums


def _ids(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def _batches(
    storage: Storage, file: TableFile, export: Export, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads a file of the table, with the columns of the table. A column that the file does not have is null, or has the
    value of the file's partition. One row group at a time is in memory.

    Raises:
        StorageError: the file is missing or damaged.
    """
    schema = nullable_columns(table_columns(export))
    readable = pa.PythonFile(ReadableObject(storage, file.name, file.size), "r")
    try:
        fragment = ds.ParquetFileFormat().make_fragment(readable, partition_expression=_equals(file, schema))
        for number in range(fragment.num_row_groups):
            group = fragment.subset(row_group_ids=[number])
            yield from group.scanner(schema=schema, columns=columns, use_threads=False).to_batches()
    except NotFoundError:
        raise _unreadable(storage, file, "is missing, although the table names it") from None
    except (OSError, pa.ArrowException):  # Arrow's message may contain a value
        raise _unreadable(storage, file, "cannot be read: the file is damaged") from None


def _equals(file: TableFile, schema: pa.Schema) -> ds.Expression | None:
    """The values of the file's partition, as a condition; None if there is none."""
    values = ((name, text, schema.field(name).type) for name, text in file.partition_values if text is not None)
    conditions = [ds.field(name) == pa.scalar(text).cast(kind) for name, text, kind in values]
    return reduce(and_, conditions) if conditions else None


def _unreadable(storage: Storage, file: TableFile, problem: str) -> StorageError:
    return StorageError(
        f"{storage.uri}/{file.name}", problem,
        "Nothing was exported. Restore the file from a backup, or restore the table to an older version.",
    )  # fmt: skip


def _changed(batch: pa.RecordBatch, first: int, change: FileChange) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows that are written again, and the rows that are dropped. first: the number of the first row in its file."""
    end = first + batch.num_rows
    if stale := {row - first: place for row, place in change.stale.items() if first <= row < end}:
        number = batch.schema.get_field_index(STALE_SINCE.name)
        values = pa.concat_arrays([batch.column(number), stale_array(stale.values()).cast(batch.column(number).type)])
        places = np.arange(batch.num_rows)
        places[list(stale)] = batch.num_rows + np.arange(len(stale))
        batch = batch.set_column(number, batch.schema.field(number), values.take(pa.array(places)))
    if change.stays:
        return batch.take(pa.array([*stale], pa.int64())), batch.slice(0, 0)
    begins, ends = np.searchsorted(change.dropped, (first, end))
    stays = np.ones(batch.num_rows, np.bool_)
    stays[change.dropped[begins:ends] - first] = False
    return batch.filter(pa.array(stays)), batch.filter(pa.array(~stays))
