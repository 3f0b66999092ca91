"""Finds files that VACUUM deleted before the commit that names them was made.

An export first writes files, and then commits their names. Until the commit, VACUUM counts these files as files of a
crashed writer, and deletes them after delta.deletedFileRetentionDuration (default: 7 days). If a process is paused for
longer, for example with its virtual machine, and no other commit is made meanwhile, Delta accepts the late commit. The
table then names files that do not exist. So an export that took more than a minute looks for its files after the commit.
If a file is missing, the export does not register its positions. As long as the registered positions are not those of the
table, each run first looks for the files of the last export. So no run continues such a table, until it is restored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from urllib.parse import unquote

from pipeline.delta.table_history import DeltaLog
from pipeline.delta.table_stamp import TableHead, stamp_document
from pipeline.delta.vectors.vector_files import DeletionVector
from pipeline.delta.without_spark.log_commits import commit_key
from storage_engine.errors import ConflictError, NotFoundError
from storage_engine.storage import Storage, exists
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
    _check(storage, table, version, _names(storage, version, "add"))


def check_last_export(table: str, head: TableHead) -> None:
    """Check that the files of the last export exist. Files that later commits removed may be missing.

    Raises:
        DeletedFilesError: a file does not exist.
        StorageError: the table cannot be read.
    """
    if head.current is None:
        return
    storage = open_storage(table)
    removed: set[str] = set()
    for commit in DeltaLog(table).commits():
        stamp = stamp_document(commit.user_metadata)
        if stamp is not None and stamp.get("id") == head.current.id:
            added = _names(storage, commit.version, "add")
            _check(storage, table, commit.version, [name for name in added if name not in removed])
            break
        removed.update(_names(storage, commit.version, "remove"))


def _check(storage: Storage, table: str, version: int, names: Sequence[str]) -> None:
    exist = results_of(storage, partial(exists, storage), names)
    missing = [name for name, there in zip(names, exist, strict=True) if not there]
    if missing:
        raise DeletedFilesError(
            table,
            f"{len(missing)} of the files that version {version} added were deleted before the commit, for example by"
            " VACUUM, because the export took longer than delta.deletedFileRetentionDuration; the first is"
            f" {missing[0]}",
            f"Restore the table to version {version - 1} and start the export again.",
        )


def _names(storage: Storage, version: int, kind: str) -> list[str]:
    """The files below the table that a commit added or removed, with those of deletion vectors. Other files have absolute
    paths.

    Args:
        kind: add or remove.
    """
    try:
        commit = storage.read(commit_key(version))
    except NotFoundError:  # Delta has deleted the old commit
        return []
    found = [action[kind] for action in map(json.loads, commit.splitlines()) if kind in action]
    names = [unquote(each["path"]) for each in found]
    vectors = {DeletionVector.from_action(each["deletionVector"]).file for each in found if each.get("deletionVector")}
    names += sorted(name for name in vectors if name is not None)
    return [name for name in names if "://" not in name and not name.startswith(("/", "file:"))]
