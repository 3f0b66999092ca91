"""Finds files that VACUUM deleted before the commit that names them was made.

An export first writes files, and then commits their names. Until the commit, VACUUM counts these files as files of a
crashed writer, and deletes them after delta.deletedFileRetentionDuration (default: 7 days). If a process is paused for
longer, for example with its virtual machine, and no other commit is made meanwhile, Delta accepts the late commit. The
table then names files that do not exist. So an export that took more than a minute looks for its files after the commit.
"""

from __future__ import annotations

import json
from functools import partial
from urllib.parse import unquote

from pipeline.delta.vectors.vector_files import DeletionVector
from pipeline.delta.without_spark.log_commits import commit_key
from storage_engine.errors import ConflictError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.storage.small_requests import results_of
from storage_engine.storage.storage_opening import open_storage

_CHECKED_AFTER_MS = 60_000


class DeletedFilesError(ConflictError):
    """Another writer deleted files of an export before the export committed them."""


def check_files(table: str, version: int, took_ms: int) -> None:
    """Check that the files of a commit exist, if the export took more than a minute.

    Args:
        table: path or URI of the table.
        took_ms: the time between the start of the export and now.

    Raises:
        DeletedFilesError: a file does not exist.
        StorageError: the table cannot be read.
    """
    if took_ms < _CHECKED_AFTER_MS:
        return
    storage = open_storage(table)
    names = _added(storage, version)
    exist = results_of(storage, partial(_exists, storage), names)
    missing = [name for name, there in zip(names, exist, strict=True) if not there]
    if missing:
        raise DeletedFilesError(
            table,
            f"{len(missing)} of the files that version {version} added were deleted before the commit, for example by"
            " VACUUM, because the export took longer than delta.deletedFileRetentionDuration; the first is"
            f" {missing[0]}",
            f"Restore the table to version {version - 1} and start the export again.",
        )


def _added(storage: Storage, version: int) -> list[str]:
    """The files below the table that a commit added, with those of deletion vectors. Other files have absolute paths."""
    try:
        commit = storage.read(commit_key(version))
    except NotFoundError:  # Delta has deleted the old commit
        return []
    added = [action["add"] for action in map(json.loads, commit.splitlines()) if "add" in action]
    names = [unquote(each["path"]) for each in added]
    vectors = {DeletionVector.from_action(each["deletionVector"]).file for each in added if each.get("deletionVector")}
    names += sorted(name for name in vectors if name is not None)
    return [name for name in names if "://" not in name and not name.startswith(("/", "file:"))]


def _exists(storage: Storage, name: str) -> bool:
    try:
        storage.read(name, 0, 1)
    except NotFoundError:
        return False
    return True
