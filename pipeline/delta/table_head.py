"""Finds the head of an exported Delta table: its newest version, and the stamps that describe its rows.

The head comes from the table's history (pipeline.delta.delta_log), without Spark. So an export without new records ends
within a second. After a write, `check_committed` finds the commit of the write in the same history.

**The guard.** Delta silently skips a write whose txnVersion is not higher than the last txnVersion of the same
txnAppId. The guard of an export is the txnVersion of its commit: the table version of the newest commit with a stamp,
plus one. A guard that is derived from the position would not work. RESTORE restores the older rows and their position,
but not the older txnVersion, so Delta would skip all later commits. Table versions never decrease, so a new guard is
higher than all earlier ones.

Two exports that continue from the same stamp have the same guard, whatever other writers have committed, and Delta
accepts only one of them. `check_committed` detects that a write was skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from pipeline.delta.delta_log import Commit, DeltaLog
from pipeline.delta.table_stamp import Stamp, TableHead
from storage_engine.errors import ConflictError


def read_head(table: str, table_id: str | None = None) -> TableHead | None:
    """The head of the table at a path or URI; None if there is no table.

    Args:
        table_id: if given, only stamps with this id count.

    Raises:
        ExportRefusedError: the history cannot be read.
        NewerTableError: a newer Lakelog exported to the table.
    """
    log = DeltaLog(table)
    if not log.versions:
        return None
    return find_head(log.commits(), log.versions[-1], lambda stamp: table_id is None or stamp.table_id == table_id)


def find_head(commits: Iterable[Commit], oldest: int, counts: Callable[[Stamp], bool]) -> TableHead:
    """Find the head in a history, newest commit first. Commits below the current stamp are not read.

    A RESTORE to a timestamp does not record the restored version, so the position of the rows is then unknown.

    Args:
        oldest: the oldest version of the history.
        counts: whether a stamp counts.
    """
    newest = current = version = table_id = None
    counted_to: int | None = None  # the newest version whose stamp counts; None: not known
    guard = 0
    for commit in commits:
        if version is None:
            version = counted_to = commit.version
            # If old history was deleted, an earlier guard may be as high as the table's version.
            guard = 0 if oldest == 0 else version + 1
        table_id = table_id or commit.table_id
        stamp = Stamp.from_json(commit.user_metadata)
        if stamp is not None and counts(stamp):
            if newest is None:
                newest, guard = stamp, commit.version + 1
            if counted_to is not None and commit.version <= counted_to:
                current = stamp
                break
        elif commit.operation == "RESTORE" and counted_to is not None and commit.version <= counted_to:
            restored = commit.parameters.get("version")
            counted_to = None if restored is None else int(restored)
    assert version is not None, "the history of a table has a commit"
    return TableHead(version, current, newest, guard, table_id or (newest.table_id if newest else None))


def check_committed(table: str, planned_from: int, stamp: Stamp) -> Commit:
    """The commit that carries `stamp`.

    Args:
        planned_from: the table's version when the positions of the stamp were decided.

    Raises:
        ConflictError: Delta skipped the write because another export committed first, or the table was restored between
            the decision and the commit.
    """
    before: list[Commit] = []  # the commits between the decision and the write, if the write is found
    found = None
    for commit in takewhile(lambda each: each.version > planned_from, DeltaLog(table).commits()):
        if found is not None:
            before.append(commit)
        elif Stamp.from_json(commit.user_metadata) == stamp:
            found = commit
    if found is None:
        raise ConflictError(
            table,
            f"another export committed after version {planned_from}, and this export was not written",
            "Nothing is lost: start this export again.",
        )
    for commit in before:
        if commit.operation == "RESTORE":
            raise ConflictError(
                table,
                f"version {commit.version} restored the table, and then version {found.version} was committed by an"
                " export that had been planned before the restore",
                f"Restore the table to version {commit.version} and start the export again.",
            )
    return found
