"""Joins files of a plain Delta table, in one commit that changes no row.

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

After a crash before the commit, the new files belong to no version, and a later vacuum deletes them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lakelog.delta.rows import READ_OPTIONS
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import AlreadyExistsError
from storage_engine.storage import Storage

_ROWS = 1 << 16


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    path: as in Delta's log, where some characters are percent-encoded.
    partition: the values of the partition columns as in Delta's log; empty if the table has no partitions.
    """

    path: str
    size: int
    partition: Mapping[str, str | None]


def join_files(
    storage: Storage, table: DeltaTable, joins: Sequence[Sequence[str]], clock: Clock | None = None
) -> int | None:
    """Join files; each list of names becomes one file. Returns the version of the commit; None if another writer
    removed one of the files, or changed the columns.

    Args:
        storage: the storage that begins at the table.
        table: a plain table, at any version.
        joins: the paths of files; the files of a list are in one partition.
    """
    clock = clock or SystemClock()
    joined = {name for names in joins for name in names}
    files = {each.path: each for each in files_of(table)}
    with_statistics = table.metadata().configuration.get("delta.dataSkippingNumIndexedCols") != "0"
    dataset = table.to_pyarrow_dataset(parquet_read_options=READ_OPTIONS)
    inside = [name for name in dataset.schema.names if name not in table.metadata().partition_columns]
    columns = pa.schema([dataset.schema.field(name) for name in inside])
    fragments = {fragment.path: fragment for fragment in dataset.get_fragments()}
    adds = []
    for names in joins:
        parts = (fragments[unquote(name)] for name in names)
        rows = (batch for part in parts for batch in part.to_batches(dataset.schema, columns=inside, batch_size=_ROWS))
        folder, slash, _ = names[0].rpartition("/")
        name = f"{folder}{slash}part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        content, statistics = _written(rows, columns, with_statistics=with_statistics)
        storage.put_new(unquote(name), content)
        adds.append(
            {"path": name, "partitionValues": files[names[0]].partition, "size": content.size, "modificationTime": clock.now_ms(),
             "dataChange": False, "stats": json.dumps(statistics)}
        )  # fmt: skip
    removes = [
        {"path": name, "partitionValues": files[name].partition, "size": files[name].size, "deletionTimestamp": clock.now_ms(),
         "dataChange": False, "extendedFileMetadata": True}
        for name in sorted(joined)
    ]  # fmt: skip
    version = table.version() + 1
    while True:
        info = {
            "timestamp": clock.now_ms(), "operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"},
            "readVersion": version - 1, "isBlindAppend": False, "engineInfo": "Lakelog",
            "operationMetrics": {"numRemovedFiles": str(len(removes)), "numAddedFiles": str(len(adds))},
        }  # fmt: skip
        actions = [{"commitInfo": info}, *({"remove": each} for each in removes), *({"add": each} for each in adds)]
        commit = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        key = f"_delta_log/{version:020d}.json"
        try:
            storage.put_new(key, commit.encode())
        except AlreadyExistsError:
            there = storage.read(key)
            if there == commit.encode():
                return version  # the reply to an earlier try was lost
            if _hinders(there, joined):
                return None
            version += 1
        else:
            return version


def files_of(table: DeltaTable) -> list[DataFile]:
    """The files of the table. Its partition columns have texts, whole numbers, booleans and dates only."""
    columns = table.metadata().partition_columns
    actions = table.get_add_actions(flatten=True)
    partitions = zip(*(actions[f"partition.{name}"].to_pylist() for name in columns), strict=True)
    values = list(partitions) if columns else [()] * len(actions["path"])
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [
        DataFile(path, size, {name: _partition_text(value) for name, value in zip(columns, found, strict=True)})
        for path, size, found in zip(paths, sizes, values, strict=True)
    ]


def _partition_text(value: object) -> str | None:
    """The form of a value in Delta's log."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hinders(commit: bytes, joined: set[str]) -> bool:
    """Whether a commit removed a joined file, or changed the table's columns or properties."""
    decoded = {unquote(name) for name in joined}  # writers encode different characters
    for line in commit.splitlines():
        action = json.loads(line)
        removed = action.get("remove", {}).get("path", "")
        if "metaData" in action or "protocol" in action or unquote(removed) in decoded:
            return True
    return False


def _written(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, *, with_statistics: bool
) -> tuple[pa.Buffer, dict[str, Any]]:
    """The bytes of a Parquet file with these rows, and their statistics for Delta's log: the number of rows, and the
    smallest and the largest value of each column of whole numbers. Queries use these values to skip files."""
    whole = [each.name for each in schema if pa.types.is_signed_integer(each.type)] if with_statistics else []
    smallest: dict[str, int] = {}
    largest: dict[str, int] = {}
    nulls = dict.fromkeys(whole, 0)
    count = 0
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="snappy") as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
            for name in whole:
                nulls[name] += batch[name].null_count
                if batch[name].null_count < batch.num_rows:
                    found = pc.min_max(batch[name]).as_py()
                    smallest[name] = min(smallest.get(name, found["min"]), found["min"])
                    largest[name] = max(largest.get(name, found["max"]), found["max"])
    statistics: dict[str, Any] = {"numRecords": count}
    if whole:
        statistics |= {"minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return sink.getvalue(), statistics
