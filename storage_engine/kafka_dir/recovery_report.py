"""Reports as values what loading the log of one partition found and did: the bytes that were cut out of a .log, each
with the reason and the file that has them now, and the files that were derived again or removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from storage_engine.errors import CorruptionError, ExitStatus


class Fate(StrEnum):
    """Why bytes were cut out of a .log."""

    TORN_TAIL = "torn tail"
    """Behind all intact batches of the log: what a crash leaves of bytes that were never durable."""
    QUARANTINED = "quarantined"
    """Intact batches lie behind them, and stayed."""


@dataclass(frozen=True)
class Cut:
    """Bytes that recovery took out of a log.

    file: the .log. problem: what was expected and found at the position. kept_as: the file that has the bytes now,
    empty where all of them were zero.
    """

    file: str
    position: int
    size: int
    problem: str
    kept_as: str
    fate: Fate

    def __str__(self) -> str:
        kept = f"kept as {self.kept_as}" if self.kept_as else "all zero"
        return f"{self.file} at position {self.position}: {self.fate}, {self.size} bytes, {kept}; {self.problem}"

    @property
    def error(self) -> CorruptionError:
        """The same as an error."""
        expected, _, found = self.problem.removeprefix("expected ").partition(", found ")
        remedy = f"The {self.size} bytes were cut out and kept as {self.kept_as}." if self.kept_as else ""
        return CorruptionError(self.file, self.position, expected, found, remedy)


@dataclass
class RecoveryReport:
    """What loading found and did. recovered: base offsets of the segments that were read through. rebuilt, removed:
    names of files that were derived again, and of those that had no meaning any more."""

    place: str
    recovered: list[int] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    @property
    def losses(self) -> list[Cut]:
        """The cuts that no crash explains."""
        return [cut for cut in self.cuts if cut.fate is not Fate.TORN_TAIL]

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL where intact or once durable bytes are no longer in the log."""
        return ExitStatus.PARTIAL if self.losses else ExitStatus.DONE
