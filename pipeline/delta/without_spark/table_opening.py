"""Opens a Delta table with the deltalake library, and creates a table.

The first commit of a table, version 0, creates the table. The library deltalake is not used for this commit, because
deltalake 1.6.6 does not notice that another process has committed version 0 first. In this case, deltalake commits the
columns again as version 1, together with the rows and the guard. But version 0 can already contain the same rows and
the same guard. So `create_table` writes version 0 with the storage's own put-if-absent, which succeeds for exactly one
process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError

from lakelog.delta.rows import DELETION_VECTORS
from lakelog.delta_options import delta_options
from pipeline.delta.table_properties import DELETION_VECTORS_PROPERTY
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.log_commits import put_commit
from storage_engine.storage.storage_opening import open_storage

_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_PROTOCOL_WITH_VECTORS = {
    "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [DELETION_VECTORS],
    "writerFeatures": [DELETION_VECTORS, "invariants", "appendOnly"],
}  # fmt: skip
"""As Spark writes it."""


def open_or_none(table: str) -> DeltaTable | None:
    """The newest version of the table at a path or URI; None if there is no table.

    DeltaTable.is_deltatable is not used: it keeps Python's lock while it waits for the storage, so all threads of the
    process would wait, too.
    """
    try:
        return DeltaTable(table, storage_options=delta_options(table))
    except TableNotFoundError:
        return None


def column_names(table: str) -> list[str]:
    """The columns of the newest version of a table; none if there is no table.

    Raises:
        StorageError: the table cannot be read.
    """
    with deltalake_errors(table, "Nothing was changed.", "cannot be read"):
        opened = open_or_none(table)
        return [] if opened is None else [each.name for each in opened.schema().fields]


def create_table(
    table: str, columns: pa.Schema, properties: Mapping[str, str], partition_by: Sequence[str] = ()
) -> bool:
    """Create an empty table with these columns. False: another process has created a table.

    Raises:
        StorageError: the table cannot be written.
    """
    now_ms = time.time_ns() // 1_000_000
    actions: list[Mapping[str, Any]] = [
        {"commitInfo": {"timestamp": now_ms, "operation": "CREATE TABLE", "operationParameters": {}}},
        {"protocol": _PROTOCOL_WITH_VECTORS if properties.get(DELETION_VECTORS_PROPERTY) == "true" else _PROTOCOL},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": Schema.from_arrow(columns).to_json(),
                "partitionColumns": list(partition_by),
                "createdTime": now_ms,
                "configuration": dict(properties),
            }
        },
    ]
    return put_commit(open_storage(table), 0, actions)
