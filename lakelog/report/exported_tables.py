"""Counts the stale rows of exported tables. A row is stale if a newer record of its key cannot be decoded.

The topic's registered consumers include its exports, and name the tables of these exports. Only the column
`_stale_since` is read. deltalake is imported only if a table exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from lakelog.delta.rows import open_rows
from lakelog.delta_options import delta_options, shown_error
from lakelog.optional import optional
from storage_engine.errors import StorageError
from storage_engine.storage import Storage
from storage_engine.topic.readers.consumer_files import Consumer, exported_table

_COLUMN = "_stale_since"


@dataclass(frozen=True)
class StaleRows:
    """The number of stale rows in an upsert table. table: the key of the table below the root."""

    table: str
    count: int


def count_stale_rows(storage: Storage, consumers: Iterable[Consumer]) -> tuple[StaleRows, ...]:
    """The tables with stale rows, among the tables that a topic's exports fill.

    Raises:
        StorageError: a table cannot be read.
    """
    found = []
    for consumer in consumers:
        table = exported_table(consumer)
        if table is not None and (count := _count(storage, table)):
            found.append(StaleRows(table, count))
    return tuple(found)


def _count(storage: Storage, table: str) -> int:
    if next(storage.list(f"{table}/_delta_log/"), None) is None:
        return 0
    with optional("deltalake", "lakelog[delta]", "The report on exported tables"):
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

    path = f"{storage.uri}/{table}"
    try:
        opened = DeltaTable(path, storage_options=delta_options(path))
        if _COLUMN not in opened.schema().to_arrow().names:
            return 0
        return sum(batch.num_rows - batch.column(0).null_count for batch in open_rows(opened, [_COLUMN]))
    except (DeltaError, pa.ArrowException, OSError) as error:
        problem = f"expected an exported Delta table; found {shown_error(path, error)}"
        raise StorageError(path, problem, "Restore the table, or export to another table.") from error
