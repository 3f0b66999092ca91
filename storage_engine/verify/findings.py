"""Defines the findings of a check as values: the file, the position, the expected content and the content that was
found.

A problem is an error in a file. A note is useful to know but is not an error, for example unused bytes after a crash,
or files that no partition owns. A finding never contains a record's key or value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from storage_engine.errors import CorruptionError, LogError

RESTORE = "restore the file from a backup"
"""The remedy for a file that cannot be proven from other files."""


class Kind(StrEnum):
    """The kind of a finding. It says which kind of file the finding concerns, and so which remedies are possible."""

    TORN = "torn"
    """The end of the newest .log is not a whole batch. A crash leaves such bytes; they were never durable."""
    CORRUPT = "corrupt"
    """Bytes of a .log that were correct earlier, and are wrong now."""
    INDEX = "index"
    """An .index or .timeindex. It can be derived from the .log."""
    TRANSACTION_INDEX = "txnindex"
    """A .txnindex. It can be derived if compaction has deleted nothing."""
    SNAPSHOT = "snapshot"
    """A .snapshot of producers. It can be derived if compaction and expiry have deleted nothing."""
    CHECKPOINT = "checkpoint"
    """A checkpoint of the directory, or the leader epochs of a partition."""
    METADATA = "metadata"
    """partition.metadata or meta.properties: the topic, node and cluster to which the folder belongs."""
    LEFT_OVER = "left-over"
    """A file or folder that an interrupted step left, or that is unknown."""
    STATE = "state"
    """A topic's state under a root, or a file that contradicts the state."""
    VIEW = "view"
    """The view, log/ under a root, does not match the state."""
    UNREADABLE = "unreadable"
    """The storage refused."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    position: byte position in the file; 0 if the finding concerns the file as a whole.
    meaning: what the finding means and what to do.
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
        """The finding as JSON fields."""
        return {
            "kind": str(self.kind), "note": self.is_note, "file": self.file, "position": self.position,
            "expected": self.expected, "found": self.found, "meaning": self.meaning,
        }  # fmt: skip


@dataclass(frozen=True)
class Restored:
    """Something that a repair restored.

    file: the restored file.
    what: the restored part, in words.
    source: where the restored part was taken from.
    is_loss: whether something is possibly lost, even though the file was restored.
    """

    file: str
    what: str
    source: str
    is_loss: bool = False

    def __str__(self) -> str:
        return f"restored: {self.file}: {self.what}, from {self.source}"

    def as_json(self) -> dict[str, Any]:
        """The restored part as JSON fields."""
        return {
            "kind": str(Kind.STATE), "note": True, "file": self.file, "restored": self.what, "source": self.source,
            "loss": self.is_loss,
        }  # fmt: skip


def of_error(error: LogError, kind: Kind, meaning: str = "") -> Finding:
    """The finding for an error. If the storage refused, the kind of the finding is UNREADABLE, whatever `kind` says."""
    if isinstance(error, CorruptionError):
        return Finding(kind, error.file, error.position, error.expected, error.found, meaning or error.remedy)
    return Finding(Kind.UNREADABLE, error.place, 0, "a file that can be read", error.problem, error.remedy)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that are not notes."""
    return [finding for finding in findings if not finding.is_note]


def placed(finding: Finding, uri: str) -> Finding:
    """The finding with the whole path of its file. An error names only the storage key."""
    return finding if finding.file.startswith(uri) else replace(finding, file=f"{uri}/{finding.file}")
