"""Selects the segments that retention deletes from a partition (Kafka's UnifiedLog.deleteOldSegments). Pure.

Three passes, one after another, each from the oldest segment on up to the first that it spares:

    start offset   the next segment begins at or below the log start offset; for every cleanup.policy
    size           the partition stays at or above retention.bytes without it
    time           its largest timestamp is older than retention.ms

Size and time count only where cleanup.policy has delete. No pass goes beyond the high watermark, and an empty newest
segment stays; a full one may go, active or not. Where all go, the log start offset meets the high watermark.

A timestamp in the future keeps its segment and all behind it, however old those are: the plan says so.

Beyond Kafka, under retention.respect.consumers: what size or time would take stays while the log start offset would pass
a registered consumer, with all behind it, for at most consumer.max.hold.ms since it could have gone. So stays a segment
that compaction emptied, too: who goes on from an offset in it finds that offset in the log. The plan names who holds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from storage_engine.config import TopicConfig
from storage_engine.log.holds import NO_HOLDS, Holds
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.quantities import counted, shown_moment, shown_size


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
class HeldBack:
    """What would go, if consumers had read it.

    deletions: never empty, oldest first. consumers: those that the log start offset would pass if the first of them went.
    until_ms: when that one goes, read or not.
    """

    deletions: tuple[Deletion, ...]
    consumers: Holds
    until_ms: int

    @property
    def bytes(self) -> int:
        return sum(deletion.segment.size for deletion in self.deletions)

    def __str__(self) -> str:
        return (
            f"{self.consumers} {self.consumers.verb('hold')} back {counted(len(self.deletions), 'segment')},"
            f" {shown_size(self.bytes)}, until {shown_moment(self.until_ms)}"
        )


@dataclass(frozen=True)
class RetentionPlan:
    """What goes from one partition, oldest first, and where the log starts afterwards."""

    deletions: tuple[Deletion, ...]
    log_start_offset: int
    blocked: FutureTimestamp | None = None
    held: HeldBack | None = None

    @property
    def bytes(self) -> int:
        return sum(deletion.segment.size for deletion in self.deletions)


def decide_retention(part: PartitionState, config: TopicConfig, now_ms: int, holds: Holds = NO_HOLDS) -> RetentionPlan:
    """What goes from a partition now. holds: who reads it."""
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
    held = _held_back(deletions, part, config, now_ms, holds) if config.retention_respect_consumers else None
    if held:
        del deletions[-len(held.deletions) :]
    start = part.log_start_offset
    if deletions:
        left = part.segments[len(deletions) :]
        start = max(start, left[0].base_offset if left else part.high_watermark)
    return RetentionPlan(tuple(deletions), start, blocked, held)


def newest_time(segment: Segment) -> int:
    """A segment's largest timestamp; where it has none, when it was last changed (LogSegment.largestTimestamp)."""
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms


def _future_timestamp(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> FutureTimestamp | None:
    if not segments or newest_time(segments[0]) <= now_ms:
        return None
    overdue = tuple(each for each in segments[1:] if each.size and now_ms - newest_time(each) > config.retention_ms)
    return FutureTimestamp(segments[0], newest_time(segments[0]) - now_ms, overdue) if overdue else None


def _held_back(
    deletions: Sequence[Deletion], part: PartitionState, config: TopicConfig, now_ms: int, holds: Holds
) -> HeldBack | None:
    """What of a partition's first segments has to stay: from the first on that is held, those that a rule would take."""
    bytes_up_to = list(accumulate(segment.size for segment in part.segments))
    next_starts = [*(segment.base_offset for segment in part.segments[1:]), part.high_watermark]
    for number, (segment, rule) in enumerate((each.segment, each.rule) for each in deletions):
        behind = holds.behind(next_starts[number])
        if not behind or rule is Rule.START_OFFSET:
            continue
        # Since when it could have gone: not before it was written, however old the timestamps are that it was given.
        if rule is Rule.TIME:
            due_ms = max(segment.modified_ms, newest_time(segment) + config.retention_ms)
        else:
            enough = bisect_left(bytes_up_to, bytes_up_to[number] + config.retention_bytes)
            due_ms = part.segments[max(number, enough - 1)].modified_ms
        until_ms = due_ms + config.consumer_max_hold_ms
        if now_ms < until_ms:
            return HeldBack(tuple(deletions[number:]), behind, until_ms)
    return None
