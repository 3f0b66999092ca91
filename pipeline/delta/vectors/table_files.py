"""Reads the files of a Delta table from its log, with their deletion vectors. The library deltalake does not show the
vectors of files.

    <table>/_delta_log/00000000000000000010.checkpoint.parquet     all actions up to a version; perhaps in several parts
    <table>/_delta_log/00000000000000000011.json                   the actions of one commit

A file of a table has a path and perhaps a deletion vector. If the vector changes, the log has a `remove` of the file with
the old vector, and an `add` of the same path with the new vector.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from pipeline.delta.vectors.vector_files import DeletionVector
from pipeline.delta.without_spark.log_commits import commit_key
from storage_engine.errors import NotFoundError, StorageError
from storage_engine.storage import Storage, StoredFile
from storage_engine.storage.file_object import ReadableObject

_FOLDER = "_delta_log/"
_CHECKPOINT = re.compile(_FOLDER + r"([0-9]{20})\.checkpoint\.(?:[0-9]{10}\.([0-9]{10})\.)?parquet")
_FIELDS = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector", "deletionTimestamp")
_OUTSIDE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
"""The beginning of a path that is not below the table."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as Delta's log names it.

    path: some characters are percent-encoded.
    partition: the values of the partition columns by name, in no fixed order; empty if the table has no partitions.
    stats: the statistics, as JSON.
    """

    path: str
    size: int
    partition: Mapping[str, str | None]
    modified_ms: int
    stats: str | None
    vector: DeletionVector | None

    @property
    def name(self) -> str:
        """The key of the file in the table's folder."""
        return unquote(self.path)

    @property
    def is_outside(self) -> bool:
        """Whether the file or its vector is not below the table, as in a clone."""
        return _OUTSIDE.match(self.path) is not None or (self.vector is not None and self.vector.is_outside)

    @property
    def rows(self) -> int | None:
        """The number of rows, with the deleted rows; None if the log does not say it."""
        found = json.loads(self.stats or "{}").get("numRecords")
        return None if found is None else int(found)

    @property
    def deleted_share(self) -> float:
        """The share of the rows that are deleted; 0 if it is not known."""
        return self.vector.rows / self.rows if self.vector is not None and self.rows else 0

    def as_removed(self, now_ms: int, *, changes_rows: bool) -> dict[str, Any]:
        """The action that removes the file."""
        found = {
            "path": self.path, "deletionTimestamp": now_ms, "dataChange": changes_rows, "extendedFileMetadata": True,
            "partitionValues": self.partition, "size": self.size,
        }  # fmt: skip
        return {"remove": found if self.vector is None else {**found, "deletionVector": self.vector.action}}


@dataclass(frozen=True)
class RemovedFile:
    """A file of an older version."""

    name: str
    removed_ms: int
    vector: DeletionVector | None


@dataclass(frozen=True)
class TableFiles:
    """The files of one version, and the files of older versions that the log still names."""

    files: list[DataFile]
    removed: list[RemovedFile]

    def needed(self, since_ms: int) -> set[str]:
        """The keys of the files, also of those with vectors, that the version needs, or a version that was the newest at
        or after a moment."""
        found: list[DataFile | RemovedFile] = [*self.files]
        found += [each for each in self.removed if each.removed_ms >= since_ms]
        names = {each.name for each in found}
        vectors = (each.vector.file for each in found if each.vector is not None)
        return names | {file for file in vectors if file is not None}


def read_files(storage: Storage, version: int) -> TableFiles:
    """The files of a version.

    Args:
        storage: the storage that begins at the table.

    Raises:
        StorageError: the log cannot be read.
    """
    files: dict[tuple[str, DeletionVector | None], DataFile] = {}
    removed: dict[tuple[str, DeletionVector | None], RemovedFile] = {}
    for action in _actions(storage, version):
        found = action.get("add") or action.get("remove")
        if found is None:
            continue
        vector = found.get("deletionVector")
        key = unquote(found["path"]), None if vector is None else DeletionVector.from_action(vector)
        if action.get("add"):
            removed.pop(key, None)
            files[key] = DataFile(
                found["path"], found["size"], dict(found.get("partitionValues") or {}), found["modificationTime"],
                found.get("stats"), key[1],
            )  # fmt: skip
        else:
            files.pop(key, None)
            removed[key] = RemovedFile(key[0], found.get("deletionTimestamp") or 0, key[1])
    return TableFiles(list(files.values()), list(removed.values()))


def _actions(storage: Storage, version: int) -> Iterator[Mapping[str, Any]]:
    checkpoints: dict[tuple[int, int], list[StoredFile]] = {}  # by version and number of parts
    for file in storage.list(_FOLDER):
        if (found := _CHECKPOINT.fullmatch(file.key)) and int(found[1]) <= version:
            checkpoints.setdefault((int(found[1]), int(found[2] or 1)), []).append(file)
    whole = [each for each, files in checkpoints.items() if len(files) == each[1]]
    newest, count = max(whole, default=(-1, 0))
    for part in checkpoints.get((newest, count), ()):
        names = [f"{action}.{field}" for action in ("add", "remove") for field in _FIELDS]
        for batch in pq.ParquetFile(ReadableObject(storage, part.key, part.size)).iter_batches(columns=names):
            yield from batch.to_pylist()
    for number in range(newest + 1, version + 1):
        try:
            content = storage.read(commit_key(number))
        except NotFoundError as error:
            raise StorageError(
                f"{storage.uri}/{commit_key(number)}",
                "is missing, and no later checkpoint replaces it",
                "Restore the file from a backup.",
            ) from error
        yield from map(json.loads, content.splitlines())
