"""Reads the history of a Delta table from the JSON files of its log, without Spark.

    <table>/_delta_log/00000000000000000007.json     a commit: one action per line

Two kinds of actions are used. `commitInfo` describes the commit, and contains the stamp of an export
(pipeline.delta.table_stamp). `metaData` contains the id of the table; only commits that create the table or change its
columns or properties have this action.

The history contains every commit whose file Delta has not deleted yet, like DESCRIBE HISTORY. Spark would need a query
to read the same files. In a small export, such a query would take about a quarter of the whole time. Commits are read
one by one, the newest first. No more commits are read than the caller asks for.

The head of an exported table is its newest version, with the stamps that describe its rows. `read_head` finds the head
in the history. An export that finds no new records reads only the head, so it ends within a second. After a write,
`check_committed` finds the commit of the write in the same history.

**The guard.** Delta silently skips a write whose txnVersion is not higher than the last txnVersion of the same
txnAppId. The guard of an export is the txnVersion of its commit: the table version of the newest commit with a stamp,
plus one. The guard is not derived from the position, because this would not work after a RESTORE. A RESTORE brings back
the older rows and their position, but not the older txnVersion. So Delta would skip all later commits whose guards come
from the position. Table versions never decrease, so a new guard is higher than all earlier guards.

Two exports that continue from the same stamp have the same guard, so Delta accepts only one of them. Commits of other
writers do not change the guard. `check_committed` detects that a write was skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from pipeline.delta.export_plan import (
    Export,
    ExportBounds,
    ExportPlan,
    ExportRefusedError,
    PartitionOffsets,
    decide_export,
)
from pipeline.delta.rows.field_paths import FieldPath, fields_in_json
from pipeline.delta.table_stamp import Stamp, TableHead, known_positions, stamp_document
from pipeline.delta.without_spark.log_commits import commit_key
from storage_engine.errors import ConflictError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage

_FOLDER = "_delta_log/"
_COMMIT = re.compile(_FOLDER + r"([0-9]{20})\.json")
_AFTER_COMMITS = re.compile(_FOLDER + r"([0-9]{20}\.(checkpoint\..+|crc)|_last_checkpoint)")
"""Files that writers add after a commit. If a first commit is being written, or was interrupted, the log has only other
files: a writer's temporary file, or the empty object with which Spark marks a folder on S3."""


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    operation: Delta's name of the operation, such as MERGE; empty if the writer recorded no name.
    parameters, metrics: Delta's operationParameters and operationMetrics.
    user_metadata: the text that the writer added to the commit.
    table_id: Delta's id of the table, if the commit contains it.
    adds_files: whether the commit adds files with rows.
    changes_rows: whether the commit adds or removes rows. A commit that only joins files changes no rows.
    columns: the names of the table's columns from this commit on, if the commit sets them.
    inner_fields: the fields inside these columns.
    """

    version: int
    operation: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    user_metadata: str | None = None
    table_id: str | None = None
    adds_files: bool = False
    changes_rows: bool = False
    columns: frozenset[str] | None = None
    inner_fields: frozenset[FieldPath] = field(default=frozenset(), compare=False)


class DeltaLog:
    """The commits in the log of one table, up to the newest commit at the time when this object is created.

    At first, only the files from the last checkpoint on are listed. In a table with many commits, the commits that a run
    needs are nearly always among them. The whole log is listed only if older commits are needed.
    """

    def __init__(self, table: str) -> None:
        """List the log of the table at a path or URI.

        Raises:
            ExportRefusedError: the log had commits, and has none now.
        """
        self._table = table
        self._storage: Storage = open_storage(table)
        self._recent: list[int] = []
        if checkpoint := self._last_checkpoint():
            self._recent = self._list(f"{_FOLDER}{checkpoint:020d}")
        self._all = None if self._recent else self._list()
        self._recent = self._recent or self._all or []

    @property
    def versions(self) -> list[int]:
        """All versions in the log, the newest first; empty if there is no table."""
        if self._all is None:
            self._all = [version for version in self._list() if version <= self._recent[0]]
        return self._all

    @property
    def newest(self) -> int | None:
        """The newest version; None if there is no table."""
        return self._recent[0] if self._recent else None

    def without_commit(self, version: int) -> ExportRefusedError:
        """The error for a version that the log does not have."""
        return ExportRefusedError(
            self._table,
            f"has no commit of version {version} in its log",
            f"Choose a version from {self.versions[-1]} to {self.newest}.",
        )

    def _list(self, after: str = "") -> list[int]:
        """The versions in the part of the log after a key, the newest first."""
        keys = [file.key for file in self._storage.list(_FOLDER, after)]
        versions = sorted((int(found[1]) for key in keys if (found := _COMMIT.fullmatch(key))), reverse=True)
        if not versions and not after and any(map(_AFTER_COMMITS.fullmatch, keys)):
            raise ExportRefusedError(
                self._table,
                f"has no commit in {_FOLDER}",
                "Restore the table from a backup, or export to another table.",
            )
        return versions

    def _last_checkpoint(self) -> int:
        """The version of the last checkpoint, as its file says; 0 if it is not known."""
        try:
            version = json.loads(self._storage.read(f"{_FOLDER}_last_checkpoint"))["version"]
        except (NotFoundError, ValueError, TypeError, KeyError):
            return 0
        return version if isinstance(version, int) and version > 0 else 0

    def commits(self) -> Iterator[Commit]:
        """The commits, the newest first. The history ends at a commit that Delta has deleted meanwhile.

        Raises:
            ExportRefusedError: a commit cannot be parsed.
        """
        for version in self._newest_first():
            try:
                content = self._storage.read(commit_key(version))
            except NotFoundError:
                return
            try:
                yield _parsed(version, content)
            except (ValueError, AttributeError) as error:
                raise ExportRefusedError(
                    f"{self._table}/{commit_key(version)}",
                    "is not a commit of a Delta table",
                    "Restore the file from a backup, or export to another table.",
                ) from error

    def _newest_first(self) -> Iterator[int]:
        yield from self._recent
        for version in self.versions:
            if version < self._recent[-1]:
                yield version


def _parsed(version: int, content: bytes) -> Commit:
    info: dict[str, Any] = {}
    table_id = None
    adds_files = changes_rows = False
    columns, inner_fields = None, frozenset[FieldPath]()
    for line in content.splitlines():
        action = json.loads(line)
        adds_files = adds_files or "add" in action
        changes_rows = changes_rows or _changes_rows(action)
        info = action.get("commitInfo", info)
        metadata = action.get("metaData", {})
        table_id = metadata.get("id", table_id)
        if "schemaString" in metadata:
            found = fields_in_json(metadata["schemaString"])
            columns = frozenset(each for each in found if isinstance(each, str))
            inner_fields = frozenset(each for each in found if not isinstance(each, str))
    return Commit(
        version,
        info.get("operation") or "",
        info.get("operationParameters") or {},
        info.get("operationMetrics") or {},
        info.get("userMetadata"),
        table_id,
        adds_files,
        changes_rows,
        columns,
        inner_fields,
    )


def _changes_rows(action: Mapping[str, Any]) -> bool:
    file = action.get("add") or action.get("remove")
    if file is None or not file.get("dataChange", True):
        return False
    return "remove" in action or json.loads(file.get("stats") or "{}").get("numRecords") != 0


# --- The head of an exported table ----------------------------------------------------------------------------------


def read_head(table: str, table_id: str | None = None) -> TableHead | None:
    """The head of the table at a path or URI; None if there is no table.

    Args:
        table_id: if given, only stamps with this id count.

    Raises:
        ExportRefusedError: the history cannot be read.
        NewerTableError: a newer Lakelog exported to the table.
    """
    log = DeltaLog(table)
    if log.newest is None:
        return None
    return find_head(
        log.commits(), lambda: log.versions[-1], lambda stamp: table_id is None or stamp.table_id == table_id
    )


def find_head(commits: Iterable[Commit], oldest: Callable[[], int], counts: Callable[[Stamp], bool]) -> TableHead:
    """Find the head in a history, newest commit first. Commits before the current stamp are not read, or with a chain
    commits before its base.

    A RESTORE to a timestamp does not record the restored version, so the position of the rows is then unknown.

    Args:
        oldest: returns the oldest version of the history. Called only if no stamp counts.
        counts: returns whether a stamp counts. Other stamps are ignored.
    """
    newest = current = version = table_id = foreign = None
    is_new = False
    counted_to: int | None = None  # the newest version whose stamp counts; None: not known
    guard = 0
    for commit in commits:
        if version is None:
            version = counted_to = commit.version
            is_new = version == 0 and not commit.adds_files
        table_id = table_id or commit.table_id
        stamp = stamp_in(commit)
        is_undone = counted_to is None or commit.version > counted_to
        if stamp is None and commit.changes_rows and not is_undone and (current or commit.operation != "RESTORE"):
            foreign = commit.version
        if current is None and stamp is not None and counts(stamp):
            if newest is None:
                newest, guard = stamp, commit.version + 1
            current = None if is_undone else stamp
            if current is not None and replaces_all_rows(commit, current):
                break
        elif current is None and commit.operation == "RESTORE" and not is_undone:
            restored = commit.parameters.get("version")
            counted_to = None if restored is None else int(restored)
        # The commits between the base and the commit of the chain are read, too.
        if current is not None and (current.chain is None or commit.version <= current.chain.base + 1):
            break
    assert version is not None, "the history of a table has a commit"
    if newest is None and oldest() > 0:
        guard = version + 1  # old history was deleted, and an earlier guard may be as high as the table's version
    table_id = table_id or (newest.table_id if newest else None)
    return TableHead(version, current, newest, guard, table_id, is_new, foreign)


def replaces_all_rows(commit: Commit, stamp: Stamp) -> bool:
    """Whether the commit replaces all rows and continues no chain, so no earlier commit matters. A rebuild does so."""
    begins = stamp.chain is None or stamp.chain.previous is None
    mode, predicate = (commit.parameters.get(name) for name in ("mode", "predicate"))
    return begins and commit.operation == "WRITE" and mode == "Overwrite" and predicate in (None, "[]")


def stamp_in(commit: Commit) -> Stamp | None:
    """The stamp of a commit; None if it has none.

    Raises:
        ExportRefusedError: the stamp cannot be read.
        NewerTableError: a newer Lakelog exported to the table.
    """
    try:
        return Stamp.from_json(commit.user_metadata)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ExportRefusedError(
            f"commit {commit.version} of the table",
            "has a stamp of Lakelog that cannot be read",
            "Restore the commit from a backup, or export to another table.",
        ) from error


def plan_from_history(
    export: Export, ranges: Mapping[int, PartitionOffsets], bounds: ExportBounds
) -> ExportPlan | None:
    """The plan of the next run; None if the history no longer contains the table's position.

    Args:
        ranges: the offsets of the topic's partitions, from one version of its state.

    Raises:
        ExportRefusedError: the table does not fit the topic, or the options do not fit. Each subclass has a remedy.
    """
    head = read_head(export.table)
    check_foreign(export, head)
    # A killed export may have created the table only.
    before = {} if head is not None and head.is_new else known_positions(head)
    return None if before is None else decide_export(export, head, before, ranges, bounds)


class ForeignCommitError(ExportRefusedError):
    """Another writer changed rows of a table whose rows have digests."""


def check_foreign(export: Export, head: TableHead | None) -> None:
    """Check that no other writer changed rows since the last export, if the table has a chain.

    Raises:
        ForeignCommitError: another writer changed rows.
    """
    has_chain = head is not None and head.current is not None and head.current.chain is not None
    if export.digest and has_chain and head is not None and head.foreign is not None:
        raise ForeignCommitError(
            export.table,
            f"version {head.foreign} was committed by another writer and changed rows, so the digests in the stamps no"
            " longer fit the rows",
            f"Nothing was exported. Choose one: (1) RESTORE the table to version {head.foreign - 1}, and run the export"
            " again; (2) make the table again from the log with --rebuild; (3) keep the changed rows, and end the chain of"
            f" digests with {export.section}.digest: false.",
        )


def as_in_table(export: Export, head: TableHead | None) -> Export:
    """The export with or without digests. A new table has digests if the settings ask for them. Any other table keeps them
    only if its stamps have a chain."""
    if head is None or head.is_new:
        return export
    return replace(export, digest=export.digest and head.current is not None and head.current.chain is not None)


def why_chain_ends(export: Export, head: TableHead | None, has_digests: Callable[[], bool]) -> str | None:
    """Why a commit after `head` ends the table's chain of digests, as a clause; None if the commit ends no chain.

    Args:
        has_digests: returns whether the table has digests. Called only if the log no longer says it.
    """
    if head is None or head.is_new:
        return None
    if head.current is not None:
        return f"{export.section}.digest is false" if head.current.chain is not None and not export.digest else None
    if head.newest is None:
        return "the table's log no longer has the stamp of an export" if has_digests() else None
    restored = "the table was restored, and its log does not have the stamp of the restored rows"
    return restored if head.newest.chain is not None else None


def head_as_before(export: Export, before: TableHead | None) -> TableHead:
    """The table's head after its columns were changed.

    Raises:
        ConflictError: another export moved the positions meanwhile. With the guard of the new head, the records of the old
            plan would be written a second time.
        ForeignCommitError: another writer changed rows meanwhile.
    """
    head = read_head(export.table)
    known = (before.current, before.newest) if before else (None, None)
    if head is None or (head.current, head.newest) != known:
        raise ConflictError(
            export.table,
            "another export changed the table during this export",
            "Nothing is lost: start this job again.",
        )
    check_foreign(export, head)
    return head


def were_files_joined(table: str, since: int) -> bool:
    """Whether writers made commits after a version, and all of them only joined files or changed no file (OPTIMIZE,
    VACUUM). Then the rows and the positions are those of that version."""
    commits = list(takewhile(lambda each: each.version > since, DeltaLog(table).commits()))
    return bool(commits) and not any(each.changes_rows or stamp_in(each) is not None for each in commits)


def check_committed(table: str, planned_from: int, stamp: Stamp) -> Commit:
    """The commit that contains `stamp`. If there is one, the stamps of other commits need not be readable.

    Args:
        planned_from: the table's version when the positions of the stamp were decided.

    Raises:
        ConflictError: Delta skipped the write because another export committed first, or the table was restored between
            the decision and the commit.
        ExportRefusedError: there is no such commit, but a later stamp that cannot be read.
    """
    commits = list(takewhile(lambda each: each.version > planned_from, DeltaLog(table).commits()))
    written = stamp_document(stamp.to_json())
    at = next((at for at, each in enumerate(commits) if stamp_document(each.user_metadata) == written), None)
    if at is None:
        for commit in commits:
            stamp_in(commit)
        raise ConflictError(
            table,
            f"another export committed after version {planned_from}, and this export was not written",
            "Nothing is lost: start this export again.",
        )
    found = commits[at]
    for commit in commits[at + 1 :]:
        if commit.operation == "RESTORE":
            raise ConflictError(
                table,
                f"version {commit.version} restored the table, and then version {found.version} was committed by an"
                " export that had been planned before the restore",
                f"Restore the table to version {commit.version} and start the export again.",
            )
    return found
