"""Commits a change of a Delta table's metadata without Spark: comments of columns, or properties. No row, no file and no
type changes.

The commit is put under the name of the table's next version, which succeeds for exactly one writer. If another writer
was first, the change is decided again, with the newer version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from deltalake import DeltaTable

from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.log_commits import put_commit
from pipeline.delta.without_spark.table_opening import open_or_none
from storage_engine.errors import ConflictError, UnsupportedError
from storage_engine.storage.storage_opening import open_storage

_ATTEMPTS = 5
_WRITER_VERSION = 7
_FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "columnMapping", "timestampNtz", "deletionVectors",
    "domainMetadata", "clustering", "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Features of Delta's protocol that ask nothing of a commit that changes only metadata."""


def change_metadata(
    path: str,
    operation: str,
    what: str,
    unchanged: str,
    remedy: str,
    *,
    columns: Callable[[DeltaTable], Any] = lambda _: None,
    properties: Callable[[DeltaTable], Mapping[str, str] | None] = lambda _: None,
) -> int | None:
    """Change the columns or the properties of a table in one commit.

    Args:
        operation: the name of the operation in the table's history.
        what: what is changed, for messages.
        unchanged: what is true if nothing can be changed, for messages.
        remedy: what somebody can do if Lakelog cannot commit, for messages.
        columns: returns the new schema as in Delta's log; None: the schema stays.
        properties: returns all new properties; None: the properties stay.

    Returns:
        The version that was committed; None if there is no table, or nothing had to be changed.

    Raises:
        UnsupportedError: the table needs a feature for which Lakelog cannot commit this.
        ConflictError: other writers committed again and again.
        StorageError: the table cannot be read or written.
    """
    for _ in range(_ATTEMPTS):
        with deltalake_errors(path, unchanged, "cannot be read"):
            table = open_or_none(path)
        if table is None:
            return None
        schema, configuration = columns(table), properties(table)
        if schema is None and configuration is None:
            return None
        _check_protocol(path, table, what, f"{unchanged} {remedy}")
        version = table.version() + 1
        if put_commit(open_storage(path), version, _actions(table, operation, schema, configuration)):
            return version
    raise ConflictError(
        path, f"other writers changed the table again and again while {what} were written",
        f"{unchanged} The next export writes the {what}.",
    )  # fmt: skip


def _check_protocol(path: str, table: DeltaTable, what: str, remedy: str) -> None:
    protocol = table.protocol()
    strange = sorted({*(protocol.writer_features or ())} - _FEATURES)
    if strange or protocol.min_writer_version > _WRITER_VERSION:
        needed = f"the feature {', '.join(strange)}" if strange else f"writer version {protocol.min_writer_version}"
        raise UnsupportedError(path, f"needs {needed} of Delta's protocol, so {what} cannot be written", remedy)


def _actions(
    table: DeltaTable, operation: str, columns: Any, properties: Mapping[str, str] | None
) -> list[Mapping[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    found = table.metadata()
    metadata = {
        "id": str(found.id),
        "name": found.name,
        "description": found.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json() if columns is None else json.dumps(columns, separators=(",", ":")),
        "partitionColumns": found.partition_columns,
        "createdTime": found.created_time,
        "configuration": found.configuration if properties is None else dict(properties),
    }
    return [
        {"commitInfo": {"timestamp": now_ms, "operation": operation, "operationParameters": {}}},
        {"metaData": {name: value for name, value in metadata.items() if value is not None}},
    ]
