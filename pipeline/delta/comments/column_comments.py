"""Writes the descriptions of a model's fields as comments into the schema of an exported table.

Delta keeps the comment of a field in the field's metadata, also of a field inside a struct. After each export with or
without Spark, the comments are compared with the model. If they differ, one more commit writes them. The commit changes
only the table's metadata: no row, no file, no type and no property. A fresh table gets its comments from this commit, too.

A field without a description keeps the comment that it has. So a comment that somebody else wrote stays there, unless the
model describes the field.

The commit is put under the name of the table's next version, which succeeds for exactly one writer. If another writer
was first, the comments are compared again, with the newer version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from pipeline.delta.export_plan import Export
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.log_commits import put_commit
from pipeline.delta.without_spark.table_opening import open_or_none
from schemas.descriptions import FieldPath, descriptions_of
from storage_engine.errors import ConflictError, UnsupportedError
from storage_engine.storage.storage_opening import open_storage

_ATTEMPTS = 5
_WRITER_VERSION = 7
_FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "columnMapping", "timestampNtz", "deletionVectors",
    "domainMetadata", "clustering", "v2Checkpoint", "vacuumProtocolCheck",
}  # fmt: skip
"""Features of Delta's protocol that ask nothing of a commit that changes only comments."""


def write_comments(export: Export) -> int | None:
    """Give the exported table the descriptions of its model, if it does not have them.

    Returns:
        The version that was committed; None if there is no table, or nothing had to be changed.

    Raises:
        UnsupportedError: the table needs a feature for which Lakelog cannot commit comments.
        ConflictError: other writers committed again and again.
        StorageError: the table cannot be read or written.
    """
    schemas = (each for each in (export.schema, export.key_schema) if each is not None)
    wanted = {path: text for schema in schemas for path, text in descriptions_of(schema).items()}
    if not wanted:
        return None
    for _ in range(_ATTEMPTS):
        with deltalake_errors(export.table, "The rows are exported, but not the comments.", "cannot be read"):
            table = open_or_none(export.table)
        if table is None:
            return None
        columns = json.loads(table.schema().to_json())
        if not _comment(columns, {tuple(map(str.lower, path)): text for path, text in wanted.items()}):
            return None
        _check_protocol(export.table, table)
        version = table.version() + 1
        if put_commit(open_storage(export.table), version, _actions(table, columns)):
            return version
    raise ConflictError(
        export.table,
        "other writers changed the table again and again while the comments of its columns were written",
        "The rows are exported. The next export writes the comments.",
    )


def _comment(node: Any, wanted: Mapping[FieldPath, str], outer: FieldPath = ()) -> bool:
    """Put the comments into a type of Delta's schema. Returns whether one of them was different.

    Args:
        wanted: the comments by path. Delta ignores the case of names, so the paths are in lower case.
    """
    if not isinstance(node, dict):
        return False
    changed = False
    for field in node.get("fields", ()):
        path = (*outer, field["name"].lower())
        metadata = field["metadata"]
        if path in wanted and metadata.get("comment") != wanted[path]:
            metadata["comment"] = wanted[path]
            changed = True
        changed = _comment(field["type"], wanted, path) or changed
    for inner in ("elementType", "valueType"):
        changed = _comment(node.get(inner), wanted, outer) or changed
    return changed


def _check_protocol(path: str, table: DeltaTable) -> None:
    protocol = table.protocol()
    strange = sorted({*(protocol.writer_features or ())} - _FEATURES)
    if strange or protocol.min_writer_version > _WRITER_VERSION:
        needed = f"the feature {', '.join(strange)}" if strange else f"writer version {protocol.min_writer_version}"
        raise UnsupportedError(
            path,
            f"needs {needed} of Delta's protocol, so the comments of its columns cannot be written",
            "The rows are exported. Write the comments with ALTER TABLE in Spark, or make the table without this feature.",
        )


def _actions(table: DeltaTable, columns: Any) -> list[Mapping[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    found = table.metadata()
    metadata = {
        "id": str(found.id),
        "name": found.name,
        "description": found.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(columns, separators=(",", ":")),
        "partitionColumns": found.partition_columns,
        "createdTime": found.created_time,
        "configuration": found.configuration,
    }
    return [
        {"commitInfo": {"timestamp": now_ms, "operation": "CHANGE COLUMNS", "operationParameters": {}}},
        {"metaData": {name: value for name, value in metadata.items() if value is not None}},
    ]
