"""Reads the history of a Delta table from the JSON files of its log, without Spark.

    <table>/_delta_log/00000000000000000007.json     a commit: one action per line

Two kinds of actions are used. `commitInfo` describes the commit, and contains the stamp of an export
(pipeline.delta.table_stamp). `metaData` contains the id of the table; only commits that create the table or change its
columns or properties have this action.

The history has every commit whose file Delta has not deleted yet, as DESCRIBE HISTORY does. Spark reads the same files
with a query, which takes longer than all other steps of a small export together. Commits are read one by one, the
newest first, and only as far as the caller asks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.delta.export_plan import ExportRefusedError
from storage_engine.errors import NotFoundError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage

_FOLDER = "_delta_log/"
_COMMIT = re.compile(_FOLDER + r"([0-9]{20})\.json")


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    operation: Delta's name, such as MERGE; empty if the writer recorded none.
    parameters, metrics: Delta's operationParameters and operationMetrics.
    user_metadata: the text that the writer added to the commit.
    table_id: Delta's id of the table, if the commit contains it.
    """

    version: int
    operation: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None
    table_id: str | None = None


class DeltaLog:
    """The commits of one table, as its log was listed when this object was created."""

    def __init__(self, table: str) -> None:
        """List the log of the table at a path or URI.

        Raises:
            ExportRefusedError: the log has files, but no commit.
        """
        self._table = table
        self._storage: Storage = open_storage(table)
        keys = [file.key for file in self._storage.list(_FOLDER)]
        self.versions = sorted((int(found[1]) for key in keys if (found := _COMMIT.fullmatch(key))), reverse=True)
        """The newest version first; empty if there is no table."""
        if keys and not self.versions:
            raise ExportRefusedError(
                table, f"has no commit in {_FOLDER}", "Restore the table from a backup, or export to another table."
            )

    def commits(self) -> Iterator[Commit]:
        """The commits, the newest first. The history ends at a commit that Delta has deleted meanwhile.

        Raises:
            ExportRefusedError: a commit cannot be parsed.
        """
        for version in self.versions:
            try:
                content = self._storage.read(f"{_FOLDER}{version:020d}.json")
            except NotFoundError:
                return
            try:
                yield _parsed(version, content)
            except (ValueError, AttributeError) as error:
                raise ExportRefusedError(
                    f"{self._table}/{_FOLDER}{version:020d}.json",
                    "is not a commit of a Delta table",
                    "Restore the file from a backup, or export to another table.",
                ) from error


def _parsed(version: int, content: bytes) -> Commit:
    info: dict[str, Any] = {}
    table_id = None
    for line in content.splitlines():
        action = json.loads(line)
        info = action.get("commitInfo", info)
        table_id = action.get("metaData", {}).get("id", table_id)
    return Commit(
        version,
        info.get("operation") or "",
        info.get("operationParameters") or {},
        info.get("operationMetrics") or {},
        info.get("userMetadata"),
        table_id,
    )
