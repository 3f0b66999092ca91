"""Finds the times of a topic's last changes, by kind: append, retention, compaction, ...

The history of a topic describes each change in one line of text. This module recognises the kind of a change by the
beginning of its line. A change with any other line counts as OTHER.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.topic.chain.version_notes import VersionNote


class ChangeKind(StrEnum):
    """What a version did to its topic."""

    CREATE = "create"
    APPEND = "append"
    TAKE_OVER = "take-over"
    RETENTION = "retention"
    COMPACTION = "compaction"
    MERGE = "merge"
    DELETE_FILES = "delete-files"
    SWEEP = "sweep"
    DELETE_RECORDS = "delete-records"
    ALTER = "alter"
    IMPORT = "import"
    REPAIR = "repair"
    OTHER = "other"


CLEANING = (
    ChangeKind.RETENTION,
    ChangeKind.COMPACTION,
    ChangeKind.MERGE,
    ChangeKind.DELETE_FILES,
    ChangeKind.SWEEP,
)
"""The changes that maintenance makes."""
_BEGINNINGS = (
    (ChangeKind.CREATE, r"created with "),
    (ChangeKind.APPEND, r"append of |batch -?\d+ of query "),
    (ChangeKind.TAKE_OVER, r"query .* took over"),
    (ChangeKind.RETENTION, r"retention$"),
    (ChangeKind.COMPACTION, r"compaction of "),
    (ChangeKind.MERGE, r"merge of "),
    (ChangeKind.DELETE_FILES, r"deleted the files of "),
    (ChangeKind.SWEEP, r"sweep floor |swept "),
    (ChangeKind.DELETE_RECORDS, r"records of partition \d+ deleted "),
    (ChangeKind.ALTER, r"altered$|recorded the fields of "),
    (ChangeKind.IMPORT, r"imported "),
    (ChangeKind.REPAIR, r"restored from version "),
)


def kind_of(change: str) -> ChangeKind:
    """The kind of a change, from its line in the topic's history."""
    return next((kind for kind, beginning in _BEGINNINGS if re.match(beginning, change)), ChangeKind.OTHER)


@dataclass(frozen=True)
class RecentChanges:
    """The last changes of a topic that are known.

    last_ms: the time of the last change of each kind, in milliseconds since 1970.
    take_overs_ms: the times of the last take-overs, the newest first.
    since_ms: the time of the oldest version that was read. Changes before it are unknown.
    is_whole: whether the topic's first version was read, so every change is known.
    """

    last_ms: Mapping[ChangeKind, int]
    take_overs_ms: tuple[int, ...]
    since_ms: int
    is_whole: bool = False

    def last_cleaned_ms(self) -> int | None:
        """The time of the last change that maintenance made; None if unknown."""
        return max((self.last_ms[kind] for kind in CLEANING if kind in self.last_ms), default=None)

    def take_overs_since(self, ms: int) -> int:
        """The number of take-overs at or after this time."""
        return sum(each >= ms for each in self.take_overs_ms)


MOST_TAKE_OVERS = 100


def recent_changes(notes: Iterable[VersionNote], older: RecentChanges | None = None) -> RecentChanges:
    """The last changes of a topic.

    Args:
        notes: versions of the topic, the newest first, without gaps.
        older: the changes before these notes; None if they are unknown.
    """
    last: dict[ChangeKind, int] = {}
    take_overs: list[int] = []
    oldest: VersionNote | None = None
    for note in notes:
        kind = kind_of(note.change)
        last.setdefault(kind, note.written_ms)
        if kind is ChangeKind.TAKE_OVER:
            take_overs.append(note.written_ms)
        oldest = note
    if older is None:
        since_ms, is_whole = (oldest.written_ms, oldest.version == 0) if oldest else (0, False)
        return RecentChanges(last, tuple(take_overs[:MOST_TAKE_OVERS]), since_ms, is_whole)
    all_take_overs = (*take_overs, *older.take_overs_ms)[:MOST_TAKE_OVERS]
    return RecentChanges({**older.last_ms, **last}, all_take_overs, older.since_ms, older.is_whole)
