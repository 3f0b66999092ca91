"""Changes the files of an upsert table with deletion vectors, at the version from which an export was planned.

deltalake 1.6.6 does not write to a table with deletion vectors. So this module writes the commit itself. The guard of the
export is checked as in `pipeline.delta.without_spark.plain_table`. A commit is the next version after the opened version,
or it fails: so no other writer's commit can come between.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable

from lakelog.delta.rows import has_deletion_vectors
from lakelog.delta_options import delta_options
from pipeline.delta.files.row_files import PartitionValues, TableFile, WrittenFile
from pipeline.delta.table_properties import DELETION_VECTORS_PROPERTY
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.vectors.table_files import DataFile, read_files
from pipeline.delta.vectors.vector_files import DeletionVector
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.log_commits import log_json, put_commit
from pipeline.delta.without_spark.plain_table import conflict, has_columns, have_int96, why_not_plain
from storage_engine.errors import StorageError
from storage_engine.storage.storage_opening import open_storage


class VectorTable:
    """A table at one version."""

    def __init__(self, path: str, table: DeltaTable, files: Sequence[DataFile]) -> None:
        self._path = path
        self._table = table
        self.partition_by = table.metadata().partition_columns
        self._storage = open_storage(path)
        self._files = {each.name: each for each in files}

    @classmethod
    def open(
        cls,
        path: str,
        version: int | None,
        columns: pa.Schema,
        partition_by: Sequence[str] | None = (),
        *,
        knows_files: bool = False,
    ) -> VectorTable | None:
        """The table at a version, or at its newest version; None if it has no deletion vectors, or cannot be changed in
        this way, or has other columns or other partition columns.

        Args:
            partition_by: None: the partition columns may be any.
            knows_files: the caller has opened a version with the same files before, so their footers are not read again.

        Raises:
            StorageError: the table cannot be read.
        """
        with deltalake_errors(path, "Nothing was exported."):
            table = DeltaTable(path, version=version, storage_options=delta_options(path))
            fits = has_deletion_vectors(table) and why_not_plain(table, with_vectors=True) is None
            fits = fits and table.metadata().configuration.get(DELETION_VECTORS_PROPERTY) == "true"
            fits = fits and has_columns(table, columns, partition_by)
            if not fits:
                return None
            storage = open_storage(path)
            files = read_files(storage, table.version()).files
            if any(each.is_outside or each.rows is None for each in files):
                return None
            if not knows_files and have_int96(storage, [(each.name, each.size) for each in files]):
                return None
        return cls(path, table, files)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self._table.metadata().id)

    @property
    def files(self) -> list[TableFile]:
        """The files of this version."""
        return [TableFile(each.name, each.size, self._values(each), each.vector) for each in self._files.values()]

    def _values(self, file: DataFile) -> PartitionValues:
        return tuple((name, file.partition[name] or None) for name in self.partition_by)  # an empty text means null

    @property
    def has_no_rows(self) -> bool:
        return not self._files

    def has_rows_left(self, file: TableFile, deleted: int) -> bool:
        """Whether a file of this version has more rows than the deleted ones."""
        return self._files[file.name].rows != deleted

    def change_files(
        self,
        files: Sequence[WrittenFile],
        stamp: Stamp,
        removed: Sequence[TableFile] = (),
        marked: Sequence[tuple[TableFile, DeletionVector]] = (),
    ) -> None:
        """Commit files that were written into the folder of the table. Without files, this is a commit, too.

        Args:
            removed: files of this version, which the commit removes.
            marked: other files of this version, with their new vectors.

        Raises:
            ConflictError: the guard was committed before, or another writer has committed since this version.
            StorageError: the table cannot be written.
        """
        guard = self._table.transaction_version(stamp.app_id)
        if guard is not None and guard >= stamp.version:
            raise conflict(self._path)
        now_ms = time.time_ns() // 1_000_000
        leaving = [self._files[each.name] for each in (*removed, *(file for file, _ in marked))]
        adds = [
            _added(quote(each.name, safe="/="), each.size, each.partition_values, each.modified_ms, each.stats)
            for each in files
        ]
        for file, vector in marked:
            known = self._files[file.name]
            stats = _loosened(known.stats or "{}")
            adds.append(_added(known.path, known.size, known.partition, known.modified_ms, stats, vector))
        metrics = {
            "numFiles": len(files), "numOutputRows": sum(each.rows for each in files),
            "numOutputBytes": sum(each.size for each in files), "numRemovedFiles": len(removed),
            "numDeletionVectorsAdded": len(marked),
        }  # fmt: skip
        version = self._table.version() + 1
        parameters = {"mode": "Append", "partitionBy": json.dumps(self.partition_by)}
        info = {
            "timestamp": now_ms, "operation": "WRITE", "operationParameters": parameters,
            "readVersion": version - 1, "isolationLevel": "Serializable", "isBlindAppend": False,
            "operationMetrics": {name: str(value) for name, value in metrics.items()}, "engineInfo": "Lakelog",
            "userMetadata": stamp.to_json(),
        }  # fmt: skip
        actions: list[Mapping[str, Any]] = [
            {"commitInfo": info},
            {"txn": {"appId": stamp.app_id, "version": stamp.version, "lastUpdated": now_ms}},
            *(each.as_removed(now_ms, changes_rows=True) for each in leaving),
            *adds,
        ]
        if not put_commit(self._storage, version, actions):
            raise conflict(self._path)
        if version % int(self._table.metadata().configuration.get("delta.checkpointInterval", "10")) == 0:
            with suppress(StorageError), deltalake_errors(self._path, ""):  # the commit is done; a later one writes it
                DeltaTable(self._path, version=version, storage_options=delta_options(self._path)).create_checkpoint()


def _loosened(stats: str) -> str:
    """The statistics of a file that has a deletion vector: its bounds include the deleted rows. All numbers stay as they are
    written, because a decimal can have more digits than a float."""
    mark = uuid.uuid4().hex
    found = {**json.loads(stats, parse_float=lambda digits: mark + digits), "tightBounds": False}
    return re.sub(f'"{mark}([^"]*)"', r"\1", log_json(found))


def _added(
    path: str,
    size: int,
    partition_values: Mapping[str, str | None],
    modified_ms: int,
    stats: str,
    vector: DeletionVector | None = None,
) -> Mapping[str, Any]:
    """The action that adds a file. path: percent-encoded."""
    found = {
        "path": path, "partitionValues": partition_values, "size": size, "modificationTime": modified_ms, "dataChange": True,
        "stats": stats,
    }  # fmt: skip
    return {"add": found if vector is None else {**found, "deletionVector": vector.action}}
