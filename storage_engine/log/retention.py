"""Which segments a partition no longer has to keep (Kafka's UnifiedLog.deleteOldSegments). Pure.

Three passes, one after another, each from the oldest segment on up to the first that it spares:

    start offset   the next segment begins at or below the log start offset; for every cleanup.policy
    size           the partition stays at or above retention.bytes without it
    time           its largest timestamp is older than retention.ms

Size and time count only where cleanup.policy has delete. No pass goes beyond the high watermark, and an empty newest
segment stays; a full one may go, active or not. Where all go, the log start offset meets the high watermark.

A timestamp in the future keeps its segment and all behind it, however old those are: the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.config import TopicConfig
from storage_engine.log.partition_state import PartitionState, Segment


class Rule(StrEnum):
    """Why a segment goes: the pass that took it."""

    START_OFFSET = "start offset"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True)
class Deletion:
    """One segment that goes.

    found, limit: the numbers that were compared. start offset: the next segment's base offset and the log start offset.
    size: bytes of the partition before this segment went, and retention.bytes. time: age and retention.ms.
    """

    segment: Segment
    rule: Rule
    found: int
    limit: int

    def __str__(self) -> str:
        reason = {
            Rule.START_OFFSET: f"the next one begins at {self.found}, the log at {self.limit}",
            Rule.SIZE: f"the partition has {self.found} bytes, retention.bytes is {self.limit}",
            Rule.TIME: f"{self.found} ms old, retention.ms is {self.limit}",
        }[self.rule]
        return f"segment {self.segment.base_offset}, {self.segment.size} bytes, by {self.rule}: {reason}"


@dataclass(frozen=True)
class FutureTimestamp:
    """A segment that the pass by time spares because its clock is ahead of ours.

    ahead_ms: by how much. overdue: the segments behind it that are old enough to go, and have to stay.
    """

    segment: Segment
    ahead_ms: int
    overdue: tuple[Segment, ...]

    def __str__(self) -> str:
        return (
            f"segment {self.segment.base_offset} has a timestamp {self.ahead_ms} ms in the future, so"
            f" {len(self.overdue)} older segments behind it stay, with {sum(each.size for each in self.overdue)} bytes"
        )


@dataclass(frozen=True)
class RetentionPlan:
    """What goes from one partition, oldest first, and where the log starts afterwards."""

    deletions: tuple[Deletion, ...]
    log_start_offset: int
    blocked: FutureTimestamp | None = None

    @property
    def bytes(self) -> int:
        return sum(deletion.segment.size for deletion in self.deletions)


def decide_retention(part: PartitionState, config: TopicConfig, now_ms: int) -> RetentionPlan:
    """What goes from a partition now."""
    segments = list(part.segments)
    deletions: list[Deletion] = []
    size = part.size

    def take(rule: Rule, verdict: Callable[[Segment, Segment | None], tuple[int, int] | None]) -> None:
        """One pass: `verdict` gives the numbers by which a segment goes, for it and the next one."""
        nonlocal size
        gone = 0
        for segment in segments:
            following = segments[gone + 1] if gone + 1 < len(segments) else None
            end = part.high_watermark if following is None else following.base_offset
            numbers = verdict(segment, following) if part.high_watermark >= end else None
            if numbers is None or (following is None and segment.size == 0):
                break
            deletions.append(Deletion(segment, rule, *numbers))
            size -= segment.size
            gone += 1
        del segments[:gone]

    def by_start_offset(_: Segment, following: Segment | None) -> tuple[int, int] | None:
        start = part.log_start_offset
        return (following.base_offset, start) if following and following.base_offset <= start else None

    def by_size(segment: Segment, _: Segment | None) -> tuple[int, int] | None:
        return (size, config.retention_bytes) if size - segment.size >= config.retention_bytes else None

    def by_time(segment: Segment, _: Segment | None) -> tuple[int, int] | None:
        age_ms = now_ms - newest_time(segment)
        return (age_ms, config.retention_ms) if age_ms > config.retention_ms else None

    take(Rule.START_OFFSET, by_start_offset)
    if config.delete and config.retention_bytes >= 0:
        take(Rule.SIZE, by_size)
    blocked = None
    if config.delete and config.retention_ms >= 0:
        take(Rule.TIME, by_time)
        blocked = _future_timestamp(segments, config, now_ms)
    start = part.log_start_offset
    if deletions:
        start = max(start, segments[0].base_offset if segments else part.high_watermark)
    return RetentionPlan(tuple(deletions), start, blocked)


def newest_time(segment: Segment) -> int:
    """A segment's largest timestamp; where it has none, when it was last changed (LogSegment.largestTimestamp)."""
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms


def _future_timestamp(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> FutureTimestamp | None:
    if not segments or newest_time(segments[0]) <= now_ms:
        return None
    overdue = tuple(each for each in segments[1:] if each.size and now_ms - newest_time(each) > config.retention_ms)
    return FutureTimestamp(segments[0], newest_time(segments[0]) - now_ms, overdue) if overdue else None
