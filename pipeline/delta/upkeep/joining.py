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

After a crash before the commit, the new files belong to no version, and a later vacuum deletes them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from lakelog.delta.rows import READ_OPTIONS
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import AlreadyExistsError
from storage_engine.storage import Storage

_ROWS = 1 << 16


def join_files(
    storage: Storage, table: DeltaTable, joins: Sequence[Sequence[str]], clock: Clock | None = None
) -> int | None:
    """Join files; each list of names becomes one file. Returns the version of the commit; None if another writer
    removed one of the files, or changed the columns.

    Args:
        storage: the storage that begins at the table.
        table: a plain table, at any version.
    """
    clock = clock or SystemClock()
    joined = {name for names in joins for name in names}
    with_statistics = table.metadata().configuration.get("delta.dataSkippingNumIndexedCols") != "0"
    dataset = table.to_pyarrow_dataset(parquet_read_options=READ_OPTIONS)
    fragments = {fragment.path: fragment for fragment in dataset.get_fragments()}
    adds = []
    for names in joins:
        rows = (
            batch for name in names for batch in fragments[name].to_batches(schema=dataset.schema, batch_size=_ROWS)
        )
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        content, statistics = _written(rows, dataset.schema, with_statistics=with_statistics)
        storage.put_new(name, content)
        adds.append(
            {"path": name, "partitionValues": {}, "size": content.size, "modificationTime": clock.now_ms(),
             "dataChange": False, "stats": json.dumps(statistics)}
        )  # fmt: skip
    sizes = sizes_of(table)
    removes = [
        {"path": name, "partitionValues": {}, "size": sizes[name], "deletionTimestamp": clock.now_ms(),
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


def sizes_of(table: DeltaTable) -> dict[str, int]:
    """The bytes of each file of the table, by the file's path below the table."""
    actions = table.get_add_actions(flatten=True)
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _hinders(commit: bytes, joined: set[str]) -> bool:
    """Whether a commit removed a joined file, or changed the table's columns or properties."""
    for line in commit.splitlines():
        action = json.loads(line)
        if "metaData" in action or "protocol" in action or action.get("remove", {}).get("path") in joined:
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
