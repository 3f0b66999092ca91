"""Defines the findings of a check as values: which file, which position, what was expected there and what was found.

A problem is an error in a file. A note is worth knowing, but no error (unused bytes after a crash, files that no
partition owns). A finding never holds a record's key or value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from storage_engine.errors import CorruptionError, LogError

RESTORE = "restore the file from a backup"
"""What to do about a file that nothing proves."""


class Kind(StrEnum):
    """What is concerned, and with it what can be done."""

    TORN = "torn"
    """The end of the newest .log is no whole batch: what a crash leaves of bytes that were never durable."""
    CORRUPT = "corrupt"
    """Bytes of a .log that were good and no longer are."""
    INDEX = "index"
    """An .index or .timeindex; derivable from the .log."""
    TRANSACTION_INDEX = "txnindex"
    """A .txnindex; derivable while compaction has taken nothing."""
    SNAPSHOT = "snapshot"
    """A .snapshot of producers; derivable while compaction and expiry have taken nothing."""
    CHECKPOINT = "checkpoint"
    """A checkpoint of the directory, or the leader epochs of a partition."""
    METADATA = "metadata"
    """partition.metadata or meta.properties: which topic, node and cluster this belongs to."""
    LEFT_OVER = "left-over"
    """A file or folder that is of an interrupted step, or of nobody."""
    STATE = "state"
    """A topic's state under a root, or files against it."""
    VIEW = "view"
    """log/ under a root does not show what the state says."""
    UNREADABLE = "unreadable"
    """The storage refused."""


@dataclass(frozen=True)
class Finding:
    """One thing found.

    position: byte position in the file, 0 where it is the file as a whole. meaning: what it means and what to do.
    """

    kind: Kind
    file: str
    position: int
    expected: str
    found: str
    meaning: str = ""
    is_note: bool = False

    def __str__(self) -> str:
        meaning = f": {self.meaning}" if self.meaning else ""
        fact = f"{self.file} at position {self.position}: expected {self.expected}, found {self.found}"
        return f"{'note: ' if self.is_note else ''}{fact} ({self.kind}{meaning})"

    def as_json(self) -> dict[str, Any]:
        """The same as fields."""
        return {
            "kind": str(self.kind), "note": self.is_note, "file": self.file, "position": self.position,
            "expected": self.expected, "found": self.found, "meaning": self.meaning,
        }  # fmt: skip


@dataclass(frozen=True)
class Restored:
    """What a repair has brought back. file: of it. what: in words. source: where it was taken from.

    is_loss: whether something may be missing for good.
    """

    file: str
    what: str
    source: str
    is_loss: bool = False

    def __str__(self) -> str:
        return f"restored: {self.file}: {self.what}, from {self.source}"

    def as_json(self) -> dict[str, Any]:
        """The same as fields."""
        return {
            "kind": str(Kind.STATE), "note": True, "file": self.file, "restored": self.what, "source": self.source,
            "loss": self.is_loss,
        }  # fmt: skip


def of_error(error: LogError, kind: Kind, meaning: str = "") -> Finding:
    """The finding that an error tells; what the storage refuses is UNREADABLE, whatever was looked for."""
    if isinstance(error, CorruptionError):
        return Finding(kind, error.file, error.position, error.expected, error.found, meaning or error.remedy)
    return Finding(Kind.UNREADABLE, error.place, 0, "a file that can be read", error.problem, error.remedy)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Those that are no notes."""
    return [finding for finding in findings if not finding.is_note]


def placed(finding: Finding, uri: str) -> Finding:
    """With the file's whole path, where an error has its key."""
    return finding if finding.file.startswith(uri) else replace(finding, file=f"{uri}/{finding.file}")
