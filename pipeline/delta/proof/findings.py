"""The result of a proof: rows that differ from the log, and rows that the log can no longer prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_DIFFERENCES = 100
"""How many differences are listed. The others are only counted."""

RETENTION = "retention has deleted the record"
COMPACTION = "compaction may have removed the record"
OTHER_MODEL = "the record does not fit today's model"
EARLIER_MODEL = "an earlier model may have decoded the record"
ADDED_COLUMN = "the row is older than one of its columns"
DEFAULT_VALUE = "a value may be the default of its column"
UNKNOWN_START = "the table may begin after the record"
NOT_READ = "the record is older than the version of --since"
SEVERAL_PARTITIONS = "the key may have had records in several partitions"


class Difference(NamedTuple):
    """A row of the table, or a record of the log without a row. No part of the record is in it.

    partition, offset: the place of the record; None if the difference belongs to no record, or to no partition.
    problem: how the table differs from the log.
    """

    partition: int | None
    offset: int | None
    problem: str


@dataclass
class Findings:
    """What a comparison found.

    equal: the number of rows that equal their records.
    differing: the number of differences.
    differences: the first of these differences, in the order in which they were found.
    unprovable: by reason, the number of rows or records about which the log no longer says anything.
    unprovable_stale: the number of these rows for which only `_stale_since` cannot be proved.
    """

    equal: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)
    unprovable: Counter[str] = field(default_factory=Counter)
    unprovable_stale: int = 0

    def differs(self, partition: int | None, offset: int | None, problem: str) -> None:
        """Add a difference."""
        self.differing += 1
        if len(self.differences) < MOST_DIFFERENCES:
            at = None if partition is None else int(partition), None if offset is None else int(offset)
            self.differences.append(Difference(*at, problem))

    def add(self, other: Findings) -> None:
        """Add the findings of another part of the table."""
        self.equal += other.equal
        self.differing += other.differing
        self.differences += other.differences[: MOST_DIFFERENCES - len(self.differences)]
        self.unprovable += other.unprovable
        self.unprovable_stale += other.unprovable_stale


@dataclass(frozen=True)
class PartitionEvidence:
    """What is known about the log of one partition after it was read.

    position: the table's position, the next offset to export.
    log_start_offset: records below it were deleted by retention.
    compacted_end: below it, compaction may have removed records.
    tombstones_end: below it, compaction may have removed tombstones.
    was_compacted_meanwhile: compaction has reached records that the proof did not read, so any older record may be
        gone because of them.
    began: the first offset that the first export read; None if the table's commits do not say so.
    read_from: records below it were not read.
    """

    position: int
    log_start_offset: int = 0
    compacted_end: int = 0
    tombstones_end: int = 0
    was_compacted_meanwhile: bool = False
    began: int | None = 0
    read_from: int = 0

    def why_gone(self, offset: int) -> str | None:
        """Why a record may have been in the log that is no longer there; None if it was never there."""
        if offset < self.log_start_offset:
            return RETENTION
        if offset < self.read_from:
            return NOT_READ
        return COMPACTION if offset < self.compacted_end else None


NO_EVIDENCE = PartitionEvidence(position=0)
"""For a partition that the topic does not have."""

Evidence = Mapping[int, PartitionEvidence]
"""By partition."""
