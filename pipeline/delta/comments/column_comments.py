"""Writes the descriptions of a model's fields as comments into the schema of an exported table.

Delta keeps the comment of a field in the field's metadata, also of a field inside a struct. After each export with or
without Spark, the comments are compared with the model. If they differ, one more commit writes them. The commit changes
only the table's metadata: no row, no file, no type and no property. A fresh table gets its comments from this commit, too.

A field without a description keeps the comment that it has. So a comment that somebody else wrote stays there, unless the
model describes the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from pipeline.delta.export_plan import Export
from pipeline.delta.without_spark.metadata_commit import change_metadata
from schemas.descriptions import FieldPath, descriptions_of

_UNCHANGED = "The rows are exported."
_REMEDY = "Write the comments with ALTER TABLE in Spark, or make the table without this feature."


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
    by_path = {tuple(map(str.lower, path)): text for path, text in wanted.items()}

    def changed(table: DeltaTable) -> Any:
        columns = json.loads(table.schema().to_json())
        return columns if _comment(columns, by_path) else None

    return change_metadata(
        export.table, "CHANGE COLUMNS", "the comments of its columns", _UNCHANGED, _REMEDY, columns=changed
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
