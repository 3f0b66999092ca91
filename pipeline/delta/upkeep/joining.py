"""Joins files of a Delta table, in one commit that changes no row. Deleted rows of files with deletion vectors are left
out. A list of one file writes this file again without its deleted rows.

    {"commitInfo": {"operation": "OPTIMIZE", ...}}
    {"remove": {"path": "part-...", "dataChange": false, ...}}     one line per file that was joined
    {"add": {"path": "part-...", "dataChange": false, ...}}        one line per new file

Delta's own OPTIMIZE makes commits of the same form. Lakelog writes the commit itself. deltalake's OPTIMIZE commits even
if another OPTIMIZE has replaced the same files meanwhile, and then each row of these files is in the table twice.

To commit, Lakelog creates the next file of Delta's log with one put-if-absent, so two writers never make the same
version. If another writer commits this version first, Lakelog reads the other writer's commit. If the other writer's
commit removed one of the joined files or changed the table's columns, Lakelog commits nothing. Otherwise Lakelog
commits its change as the next version.

In a partitioned table, only files of one partition are joined. The new file is in the folder of one of them.

If all rows of the joined files are deleted, there is no new file.

After a crash before the commit, the new files belong to no version, and a later vacuum deletes them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from lakelog.delta.rows import read_options
from pipeline.delta.files.row_files import GROUP_BYTES, RowFile
from pipeline.delta.vectors.table_files import DataFile
from pipeline.delta.vectors.vector_files import read_vector
from pipeline.delta.without_spark.log_commits import commit_key, put_commit
from storage_engine.clock import Clock, SystemClock
from storage_engine.storage import Storage
from storage_engine.storage.file_object import ReadableObject


def join_files(
    storage: Storage, table: DeltaTable, joins: Sequence[Sequence[DataFile]], clock: Clock | None = None
) -> int | None:
    """Join files; each list becomes one file. Returns the version of the commit; None if another writer removed one of the
    files, or changed the columns.

    Args:
        storage: the storage that begins at the table.
        table: the table, at the version from which the files are.
        joins: the files of a list are in one partition, and below the table.
    """
    clock = clock or SystemClock()
    with_statistics = table.metadata().configuration.get("delta.dataSkippingNumIndexedCols") != "0"
    schema = pa.schema(table.schema().to_arrow())
    columns = pa.schema([each for each in schema if each.name not in table.metadata().partition_columns])
    joined = [each for files in joins for each in files]
    adds = []
    for files in joins:
        made = _joined(storage, files, columns)
        if made is not None:
            path, size, rows, stats = made
            adds.append(
                {"path": path, "partitionValues": files[0].partition, "size": size, "modificationTime": clock.now_ms(),
                 "dataChange": False, "stats": stats if with_statistics else json.dumps({"numRecords": rows})}
            )  # fmt: skip
    version = table.version() + 1
    removes = [each.as_removed(clock.now_ms(), changes_rows=False) for each in joined]
    while True:
        info = {
            "timestamp": clock.now_ms(), "operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"},
            "readVersion": version - 1, "isBlindAppend": False, "engineInfo": "Lakelog",
            "operationMetrics": {"numRemovedFiles": str(len(removes)), "numAddedFiles": str(len(adds))},
        }  # fmt: skip
        actions: list[Mapping[str, Any]] = [{"commitInfo": info}, *removes, *({"add": each} for each in adds)]
        if put_commit(storage, version, actions):
            return version
        if _hinders(storage.read(commit_key(version)), {each.name for each in joined}):
            return None
        version += 1


def _joined(storage: Storage, files: Sequence[DataFile], columns: pa.Schema) -> tuple[str, int, int, str] | None:
    """Write the rows of the files into one file. Returns its path in Delta's log, its size, its rows and its statistics;
    None if there are no rows."""
    folder, slash, _ = files[0].path.rpartition("/")
    path = f"{folder}{slash}part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    made = None
    try:
        for group in _groups(batch for file in files for batch in _rows(storage, file, columns)):
            made = made or RowFile(storage, unquote(path), columns)
            made.write(group)
    except BaseException:
        if made is not None:
            made.abort()
        raise
    if made is None:
        return None
    written = made.close()
    return path, written.size, written.rows, written.stats


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows, in groups of about GROUP_BYTES."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _rows(storage: Storage, file: DataFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are not deleted."""
    deleted = read_vector(storage, file.vector)
    readable = pa.PythonFile(ReadableObject(storage, file.name, file.size), "r")
    fragment = ds.ParquetFileFormat(read_options=read_options()).make_fragment(readable)
    first = 0
    for batch in fragment.scanner(schema=columns, use_threads=False).to_batches():
        stays = np.ones(batch.num_rows, np.bool_)
        begin, end = np.searchsorted(deleted, (first, first + batch.num_rows))
        stays[deleted[begin:end] - first] = False
        first += batch.num_rows
        if stays.any():
            yield batch if stays.all() else batch.filter(pa.array(stays))


def _hinders(commit: bytes, joined: set[str]) -> bool:
    """Whether a commit removed a joined file, or changed the table's columns or properties.

    Args:
        joined: the decoded paths, because writers encode different characters.
    """
    for line in commit.splitlines():
        action = json.loads(line)
        removed = action.get("remove", {}).get("path", "")
        if "metaData" in action or "protocol" in action or unquote(removed) in joined:
            return True
    return False
