"""Defines the report that is made when the log of one partition is loaded, and finds lost records.

For each cut in a .log, the report gives the number of bytes, the reason, and the file that now contains these bytes. The
report also lists the files that were rebuilt or removed, and the records that are missing. The report consists of plain
values.

Some files of a log directory prove that a log once had records:

    recovery-point-offset-checkpoint     the log was durable below this offset
    .index, .timeindex                   an entry stands for a batch in the .log; without a .log, they stand for a segment

A broker lowers the recovery point after it has truncated a log, and retention deletes the newest segment only after the
next segment exists. So in an undamaged directory, no recovery point is above the end of its log. A recovery point below
the end is normal. The high watermark proves nothing: it can be above the end after a crash. The functions read files and
change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from storage_engine.errors import CorruptionError, ExitStatus, LogError, LostRecordsError
from storage_engine.log.checkpoint import RECOVERY_POINTS
from storage_engine.log.filenames import (
    DELETED,
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SWAP,
    TIME_INDEX,
    offset_name,
    offsets_in,
)
from storage_engine.storage import Directory, FolderEntry

if TYPE_CHECKING:
    from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory


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
    rest: what else the log has lost by this cut, as sentences.
    """

    file: str
    position: int
    size: int
    problem: str
    kept_as: str
    fate: CutReason
    rest: str = ""

    @property
    def is_zeros(self) -> bool:
        """Whether all bytes were zero."""
        return not self.kept_as

    def __str__(self) -> str:
        kept = "all zero" if self.is_zeros else f"saved as {self.kept_as}"
        return f"{self.file} at position {self.position}: {self.fate}, {self.size} bytes, {kept}; {self.problem}"

    def error_in(self, directory: str) -> CorruptionError:
        """The cut as an error. directory: the path of the log directory."""
        expected, _, found = self.problem.removeprefix("expected ").partition(", found ")
        kept = "; all of them were zero" if self.is_zeros else f" and saved as {self.kept_as}"
        remedy = f"The {self.size} bytes were cut out{kept}."
        remedy = " ".join(part for part in (remedy, self.rest) if part)
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

    def error_in(self, directory: str) -> LogError:
        """The loss as an error. directory: the path of the log directory."""
        return CorruptionError(
            f"{directory}/{self.file}", 0, "a segment, because it had an index", "no such file",
            f"The offsets {self.base_offset} to {self.end_offset - 1} are missing. Restore the file from a backup or a"
            " replica.",
        )  # fmt: skip


class EmptiedSegment(LostSegment):
    """A segment in the middle of a log, whose .log is empty although its indexes have entries."""

    def error_in(self, directory: str) -> LogError:
        """The loss as an error. directory: the path of the log directory."""
        return LostRecordsError(
            f"{directory}/{self.file}",
            f"is empty, but its indexes have entries: the records from offset {self.base_offset} to"
            f" {self.end_offset - 1} are lost",
            "Restore the file from a backup or a replica.",
        )


@dataclass(frozen=True)
class LostEnd:
    """The end of a log that is missing, although the recovery point proves that it existed.

    folder: the folder of the partition.
    proven_offset: the recovery point.
    end_offset: the end of the log.
    """

    folder: str
    proven_offset: int
    end_offset: int

    def error_in(self, directory: str) -> LogError:
        """The loss as an error. directory: the path of the log directory."""
        return LostRecordsError(
            f"{directory}/{self.folder}",
            f"the recovery point is {self.proven_offset} ({RECOVERY_POINTS}), but the log ends at offset {self.end_offset}: the"
            f" records from {self.end_offset} on are lost",
            "Restore the log from a backup or a replica.",
        )


@dataclass
class RecoveryReport:
    """What loading found and did.

    place: the folder of the partition.
    recovered: base offsets of the segments that were read completely.
    rebuilt: names of files that were derived from the .log files.
    removed: names of files that had no meaning any more.
    cuts: the bytes that were cut out.
    lost: records that are missing, although an index or a checkpoint proves them.
    doubtful: segments of a compacted topic of which only an index was left. After a power cut, an interrupted compaction
        can leave such an index, too.
    """

    place: str
    recovered: list[int] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    lost: list[LostSegment | LostEnd] = field(default_factory=list)
    doubtful: list[LostSegment] = field(default_factory=list)

    @property
    def losses(self) -> list[Cut | LostSegment | LostEnd]:
        """The cuts that a crash does not explain, and the missing records."""
        return [*(cut for cut in self.cuts if cut.fate is not CutReason.TORN_TAIL), *self.lost]

    @property
    def exit_status(self) -> ExitStatus:
        """PARTIAL if the log has lost intact bytes, or bytes that were durable once."""
        return ExitStatus.PARTIAL if self.losses else ExitStatus.DONE


def lost_end(
    partition: tuple[str, int], end_offset: int, recovery_points: Mapping[tuple[str, int], int]
) -> LostEnd | None:
    """The records that are missing at the end of a log; None if the recovery point is not above the end."""
    offset = recovery_points.get(partition, 0)
    return LostEnd(f"{partition[0]}-{partition[1]}", offset, end_offset) if offset > end_offset else None


def emptied_segments(storage: Directory, folder: str, entries: Mapping[str, FolderEntry]) -> Iterator[EmptiedSegment]:
    """The segments whose .log is empty although an index has an entry. Compaction also leaves empty segments, but their
    indexes are empty, too. The newest segment does not count: its indexes can be preallocated, and a crash can keep
    entries for batches that were not synced.
    """
    for base, following in pairwise(offsets_in(entries, LOG)):
        name = offset_name(base)
        if entries[name + LOG].size == 0:
            indexes = [storage.read(f"{folder}/{name}{each}") for each in (INDEX, TIME_INDEX) if name + each in entries]
            if any(index.strip(b"\0") for index in indexes):
                yield EmptiedSegment(f"{folder}/{name}{LOG}", base, following)


def stray_bases(names: Collection[str]) -> list[int]:
    """The base offsets of the indexes without a .log, sorted. If the folder has the .log under another name, a swap or a
    deletion was interrupted, and the index is not listed.

    Args:
        names: all names in the folder of a partition.
    """
    bases = {base for suffix in INDEX_SUFFIXES for base in offsets_in(names, suffix)}
    return [
        base
        for base in sorted(bases)
        if not any(offset_name(base) + LOG + each in names for each in ("", SWAP, DELETED))
    ]


def missing_segments(
    storage: Directory, folder: str, entries: Mapping[str, FolderEntry], stray: Iterable[int], log_start_offset: int
) -> Iterator[LostSegment]:
    """The segments between two others of which only an index is left.

    Args:
        stray: the base offsets in stray_bases.
        log_start_offset: segments below it are not reported.
    """
    from storage_engine.log.intact_batches import DamagedLog  # NumPy is loaded only if a .log must be read

    bases = offsets_in(entries, LOG)
    for base in stray:
        number = bisect_right(bases, base)
        if not 0 < number < len(bases) or base < log_start_offset:
            continue
        before = f"{folder}/{offset_name(bases[number - 1])}{LOG}"
        size = entries[offset_name(bases[number - 1]) + LOG].size
        log = DamagedLog(storage, before, bases[number - 1], size, bases[number])
        # Compaction joins segments: then the segment before has the offsets of the index.
        if not any((chunk.table.last_offsets >= base).any() for chunk in log.chunks()):
            yield LostSegment(f"{folder}/{offset_name(base)}{LOG}", base, bases[number])


def lost_in(directory: LogDirectory, found: Sequence[FoundPartition]) -> Iterator[LogError]:
    """An error for each loss of records in these partitions of a log directory.

    Raises:
        CorruptionError: a checkpoint is malformed.
        StorageError: a file cannot be read.
    """
    storage, path = directory.storage, str(directory.path)
    recovery_points = directory.checkpoint(RECOVERY_POINTS)
    for each in found:
        folder, start = each.name.folder, each.state.log_start_offset
        entries = {entry.name: entry for entry in storage.entries(folder)}
        for missing in missing_segments(storage, folder, entries, stray_bases(entries), start):
            yield missing.error_in(path)
        yield from (
            emptied.error_in(path)
            for emptied in emptied_segments(storage, folder, entries)
            if emptied.end_offset > start
        )
        end = lost_end(each.name, each.state.high_watermark, recovery_points)
        if end is not None:
            yield end.error_in(path)
