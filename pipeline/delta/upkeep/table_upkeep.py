"""Keeps one Delta table small, with deltalake and without Spark. Each of the four steps can be left out or repeated:

    1. checkpoint   write a checkpoint of Delta's log, if enough commits follow the last checkpoint
    2. log          delete the log's entries that are older than delta.logRetentionDuration and precede a checkpoint
    3. vacuum       delete the files that no version within delta.deletedFileRetentionDuration needs, and the temporary
                    files of killed writers (storage.TEMPORARY) that are older than this duration; a file that no commit
                    names stays for at least a day
    4. files        join small files of each partition, and write files again in which many rows are deleted, all in one
                    commit (OPTIMIZE); no row changes

After a crash, the table is whole: its rows and its newest version are those of before or after a step. Exports, readers
and other runs of this module may work at the same time. Only step 4 makes commits: one that joins
files (`pipeline.delta.upkeep.joining`), and before it one that names the columns with whole statistics, if the table has
no such property (`pipeline.delta.files.skipping_commit`).
If another writer has removed one of the joined files meanwhile, Lakelog commits nothing, and decides step 4 again. If
maintenance has joined a file, and an export merges rows of the same file at that time, Delta refuses the commit of the
export, and the job makes the export again (`pipeline.export.one_export`).

The commit of step 4 has no stamp and no guard (`pipeline.delta.table_stamp`), so the position of the next export does
not change. The position of a table is in the commit with the stamp of the current rows. Delta can delete a commit that
is before an old checkpoint. So step 1 writes no checkpoint after that commit. If another writer wrote a checkpoint
after that commit, steps 1 and 2 are left out until the next export.

Only plain tables (`pipeline.delta.without_spark.plain_table`) and tables with deletion vectors are changed. For the latter,
the log says which vectors are in use (`pipeline.delta.vectors.table_files`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lakelog.delta.rows import has_deletion_vectors
from lakelog.delta_options import delta_options
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.layout_columns import can_partition
from pipeline.delta.table_history import Commit, DeltaLog, find_head
from pipeline.delta.upkeep.joining import join_files
from pipeline.delta.upkeep.small_files import MOST_DELETED, SmallFileRule, decide_joins
from pipeline.delta.vectors.table_files import DataFile, read_files
from pipeline.delta.without_spark.deltalake_errors import deltalake_errors
from pipeline.delta.without_spark.plain_table import have_int96, why_not_plain
from storage_engine.errors import ConflictError
from storage_engine.storage import TEMPORARY_NAME, Storage
from storage_engine.storage.storage_opening import open_storage

_MOST_ATTEMPTS = 5
_CHECKPOINT_INTERVAL = 10
"""Delta's default of delta.checkpointInterval."""
_CHECKPOINT = re.compile(r"_delta_log/([0-9]{20})\.checkpoint\..*parquet")
_PERIOD = re.compile(r"interval [0-9]+ (second|minute|hour|day|week)s?")
"""The periods that deltalake reads as Spark does."""
_PERIODS = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")
_UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_UNCOMMITTED_MS = 86_400_000
"""How long a file that no commit names is kept at least, even if the table has a shorter retention."""
_UNKNOWN_FEATURE = re.compile(r"Feature '([^']+)' is not supported")


@dataclass(frozen=True)
class TableUpkeep:
    """What was done to one table.

    joined, made: the number of files that were joined, or written again without deleted rows, and the number of files that
        replaced them.
    deleted: the number of files that vacuum deleted.
    checkpoint: the version of the new checkpoint; None if no checkpoint was due.
    left_alone: the reason why the table, or its rows, must not be written; None if there is no such reason.
    postponed: whether the budget had no room for joining the files.
    """

    joined: int = 0
    made: int = 0
    deleted: int = 0
    checkpoint: int | None = None
    left_alone: str | None = None
    postponed: bool = False


def keep_table(
    path: str, rule: SmallFileRule, has_room: Callable[[int], bool] = lambda _: True, *, has_stamps: bool = True
) -> TableUpkeep | None:
    """Do all steps that are due; None if there is no table.

    Args:
        path: path or URI of the table.
        has_room: called with a number of bytes; returns whether so many bytes may be copied.
        has_stamps: whether commits of the table have stamps.

    Raises:
        ConflictError: other writers committed during every attempt of step 4. The other steps are done.
        ExportRefusedError: the table's log cannot be read.
        NewerTableError: a newer Lakelog exported to the table. Nothing was changed.
        StorageError: the table cannot be read or written.
    """
    needed = _oldest_needed_commit(path, has_stamps=has_stamps)
    if needed is None:
        return None
    with deltalake_errors(path, "No row is lost or doubled: the next maintenance repeats the upkeep."):
        try:
            table = DeltaTable(path, storage_options=delta_options(path))
        except DeltaError as error:
            if (feature := _UNKNOWN_FEATURE.search(str(error))) is None:
                raise
            return TableUpkeep(left_alone=f"needs the feature {feature[1]} of Delta's protocol")
        if (reason := _why_not_writable(table)) is not None:
            return TableUpkeep(left_alone=reason)
        checkpoint = _write_checkpoint(path, table, needed)
        _expire_log(path, table, needed)
        deleted = _vacuum(path, table)
        files = _join_small_files(path, rule, has_room)
        if files.left_alone is None:
            fit_skipping(path)
    return replace(files, deleted=deleted, checkpoint=checkpoint)


def _why_not_writable(table: DeltaTable) -> str | None:
    if (reason := why_not_plain(table, with_vectors=True)) is not None:
        return reason
    columns = pa.schema(table.schema().to_arrow())
    for name in table.metadata().partition_columns:
        if not can_partition(columns.field(name).type):
            return f"is partitioned by the column {name}, which is {columns.field(name).type}"
    properties = table.metadata().configuration
    for name in _PERIODS:
        if name in properties and _PERIOD.fullmatch(properties[name]) is None:
            return f"has the property {name} = {properties[name]}, which deltalake cannot read"
    return None


def _oldest_needed_commit(path: str, *, has_stamps: bool) -> int | None:
    """The oldest commit that must stay in the log; None if there is no table. It is the commit with the stamp of the
    current rows. If no commit has a stamp, it is the newest commit."""
    log = DeltaLog(path)
    if log.newest is None or not has_stamps:
        return log.newest
    last_read = log.newest

    def commits() -> Iterator[Commit]:
        nonlocal last_read
        for commit in log.commits():
            last_read = commit.version
            yield commit

    head = find_head(commits(), lambda: log.versions[-1], lambda _: True)
    if head.current is not None:
        return last_read
    return log.newest if head.newest is None else head.next_guard - 1


# --- The steps ------------------------------------------------------------------------------------------------------


def _checkpoints(path: str) -> list[int]:
    """The versions that have a checkpoint, or a part of one."""
    files = open_storage(path).list("_delta_log/")
    return [int(found[1]) for file in files if (found := _CHECKPOINT.fullmatch(file.key))]


def _write_checkpoint(path: str, table: DeltaTable, version: int) -> int | None:
    """Write a checkpoint of a version, if it is due. deltalake then also deletes old entries of the log, before an
    earlier checkpoint."""
    interval = int(table.metadata().configuration.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))
    newest = max(_checkpoints(path), default=-1)
    if version - newest < interval:
        return None
    DeltaTable(path, version=version, storage_options=delta_options(path)).create_checkpoint()
    return version


def _vacuum(path: str, table: DeltaTable) -> int:
    """Delete the files that no version within the retention needs. deltalake finds these files by the time of their
    removal. If no commit names a file, the time of the file's last change decides: the commit of a running export, replay
    or rebuild may still name it. deltalake does not know the files with deletion vectors: without `needed`, it would
    delete vectors that are in use."""
    storage = open_storage(path)
    tables: dict[str, bool] = {}
    now_ms, retention_ms = time.time_ns() // 1_000_000, _retention_ms(table)
    uncommitted_ms = max(retention_ms, _UNCOMMITTED_MS)
    found = table.vacuum(dry_run=True, full=True)
    needed: set[str] = set()
    if found and (has_deletion_vectors(table) or retention_ms < uncommitted_ms):
        files = read_files(storage, table.version())
        needed = files.needed(now_ms - retention_ms)
        if retention_ms < uncommitted_ms:
            old = table.vacuum(uncommitted_ms // _UNITS_MS["hour"], dry_run=True, full=True)
            needed |= {*found} - {*old} - files.needed(0)
    found += _temporary_files(storage, now_ms - uncommitted_ms)
    unneeded = [key for key in found if key not in needed and not _is_in_inner_table(storage, key, tables)]
    for key in unneeded:
        storage.delete(key)
    return len(unneeded)


def _temporary_files(storage: Storage, before_ms: int) -> Iterator[str]:
    """The temporary files of Lakelog's writers that were last changed before this time. deltalake's VACUUM finds them in
    other folders, but passes over a key that begins with a dot or with an underscore. On an object store, the check of
    conditional puts deletes the files that an earlier check left."""
    if (folders := storage.folders) is None:
        return
    for folder in ("", "_delta_log/"):
        for entry in folders.entries(folder):
            if not entry.is_folder and TEMPORARY_NAME.fullmatch(entry.name) and entry.modified_ms < before_ms:
                yield f"{folder}{entry.name}"


def _retention_ms(table: DeltaTable) -> int:
    """How long removed files are kept."""
    period = table.metadata().configuration.get(_PERIODS[0], "interval 1 week")
    _, count, unit = period.split()
    return int(count) * _UNITS_MS[unit.removesuffix("s")]


def _is_in_inner_table(storage: Storage, key: str, tables: dict[str, bool]) -> bool:
    """Whether a file belongs to another table, whose folder is inside the folder of this table.

    Args:
        tables: whether a folder contains a table, for the folders that were looked at.
    """
    folders = key.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        folder = "/".join(folders[:depth])
        if folder not in tables:
            tables[folder] = next(storage.list(f"{folder}/_delta_log/"), None) is not None
        if tables[folder]:
            return True
    return False


def _expire_log(path: str, table: DeltaTable, needed: int) -> None:
    """Delete the log's old entries, if none of them is the commit `needed` or a later commit."""
    wanted = table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true"
    if wanted and max(_checkpoints(path), default=-1) <= needed:
        table.cleanup_metadata()


def _joins(files: Sequence[DataFile], rule: SmallFileRule) -> list[list[DataFile]]:
    """The files to join, for each partition of the table, and the files to write again without their deleted rows."""
    partitions: dict[frozenset[tuple[str, str | None]], dict[str, DataFile]] = {}
    for each in files:
        if not each.is_outside:
            partitions.setdefault(frozenset(each.partition.items()), {})[each.name] = each
    joins = []
    for part in partitions.values():
        names = decide_joins({name: each.size for name, each in part.items()}, rule)
        joins += [[part[name] for name in each] for each in names]
        alone = part.keys() - {name for each in names for name in each}
        joins += [[part[name]] for name in sorted(alone) if part[name].deleted_share > MOST_DELETED]
    return joins


def _join_small_files(path: str, rule: SmallFileRule, has_room: Callable[[int], bool]) -> TableUpkeep:
    """Join small files, if there are too many. Write files again in which many rows are deleted."""
    storage = open_storage(path)
    for _ in range(_MOST_ATTEMPTS):
        table = DeltaTable(path, storage_options=delta_options(path))
        if (reason := _why_not_writable(table)) is not None:
            return TableUpkeep(left_alone=reason)
        joins = _joins(read_files(storage, table.version()).files, rule)
        joined = [each for files in joins for each in files]
        if not joins:
            return TableUpkeep()
        if not has_room(sum(each.size for each in joined)):
            return TableUpkeep(postponed=True)
        if have_int96(storage, [(each.name, each.size) for each in joined]):
            return TableUpkeep(left_alone="has files with timestamps of type INT96")
        if fit_skipping(path) is not None:
            continue
        if join_files(storage, table, joins) is not None:
            return TableUpkeep(joined=len(joined), made=len(joins))
    raise ConflictError(
        path,
        f"other writers changed the table during each of {_MOST_ATTEMPTS} attempts to join its small files",
        "Nothing is lost: the next maintenance tries again.",
    )
