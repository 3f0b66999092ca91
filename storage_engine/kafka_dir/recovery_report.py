"""Defines the report that is made when the log of one partition is loaded. For each cut in a .log, the report gives the
number of bytes, the reason, and the file that now contains these bytes. The report also lists the files that were
rebuilt or removed. The report consists of plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from storage_engine.errors import CorruptionError, ExitStatus


class CutReason(StrEnum):
    """The reason why bytes were cut out of a .log."""

    TORN_TAIL = "torn tail"
    """The bytes follow all intact batches of the log. A crash leaves such bytes; they were never durable."""
    QUARANTINED = "quarantined"
    """Intact batches follow the bytes. These batches were kept."""
    TRUNCATED = "truncated"
    """The bytes begin with damage. As in Kafka, the log now ends there, and intact batches after the damage are lost."""


@dataclass(frozen=True)
class Cut:
    """Bytes that recovery cut out of a log.

    file: the .log.
    position: the position of the first byte in the .log.
    size: number of bytes.
    problem: what was expected and what was found at the position.
    kept_as: the file that now contains the bytes; empty if all bytes were zero.
    fate: the reason.
    """

    file: str
    position: int
    size: int
    problem: str
    kept_as: str
    fate: CutReason

    def __str__(self) -> str:
        kept = f"saved as {self.kept_as}" if self.kept_as else "all zero"
        return f"{self.file} at position {self.position}: {self.fate}, {self.size} bytes, {kept}; {self.problem}"

    def error_in(self, directory: str) -> CorruptionError:
        """The cut as an error. directory: the path of the log directory."""
        expected, _, found = self.problem.removeprefix("expected ").partition(", found ")
        remedy = f"The {self.size} bytes were cut out and saved as {self.kept_as}." if self.kept_as else ""
        return CorruptionError(f"{directory}/{self.file}", self.position, expected, found, remedy)


@dataclass(frozen=True)
class LostSegment:
    """A segment in the middle of a log, of which only an index was left.

    file: the .log that is missing.
    base_offset, end_offset: the offsets that are missing.
    """

    file: str
    base_offset: int
    end_offset: int

    def error_in(self, directory: str) -> CorruptionError:
        """The loss as an error. directory: the path of the log directory."""
        return CorruptionError(
            f"{directory}/{self.file}", 0, "a segment, because it had an index", "no such file",
            f"The offsets {self.base_offset} to {self.end_offset - 1} are missing. Restore the file from a backup or a"
            " replica.",
        )  # fmt: skip


@dataclass
class RecoveryReport:
    """What loading found and did.

    place: the folder of the partition.
    recovered: base offsets of the segments that were read completely.
    rebuilt: names of files that were derived from the .log files.
    removed: names of files that had no meaning any more.
    cuts: the bytes that were cut out.
    lost: segments that are missing.
    """

    place: str
    recovered: list[int] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    lost: list[LostSegment] = field(default_factory=list)

    @property
    def losses(self) -> list[Cut | LostSegment]:
        """The cuts that a crash does not explain, and the missing segments."""
        return [*(cut for cut in self.cuts if cut.fate is not CutReason.TORN_TAIL), *self.lost]

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL if the log has lost intact bytes, or bytes that were durable once."""
        return ExitStatus.PARTIAL if self.losses else ExitStatus.DONE
