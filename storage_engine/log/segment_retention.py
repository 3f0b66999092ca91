"""Selects the segments that retention deletes from a partition (Kafka's UnifiedLog.deleteOldSegments).

There are three passes, one after another. Each pass starts at the oldest segment, and ends at the first segment that
the pass keeps. A pass deletes a segment if:

    start offset   the next segment begins at or below the log start offset; this pass runs for every cleanup.policy
    size           without the segment, the partition still has a size of at least retention.bytes
    time           the largest timestamp of the segment is older than retention.ms

The size pass and the time pass run only if cleanup.policy has delete. No pass deletes a segment whose end is above
the high watermark. An empty newest segment is kept; a newest segment with records can be deleted. If all segments are
deleted, the log start offset becomes the high watermark.

If a segment has a timestamp in the future, the time pass keeps this segment and all segments after it. The retention
plan reports the segment.

With retention.respect.consumers, Lakelog adds a rule to Kafka's rules. The size pass and the time pass keep a segment
that a registered consumer has not read, and all segments after it. The rule keeps the segment for at most
consumer.max.hold.ms after the moment at which retention would have deleted the segment. The rule also keeps segments
that compaction has emptied, so that the consumer's position stays in the log. The retention plan names the consumers.
All functions are pure.
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


class RetentionRule(StrEnum):
    """The pass that deletes a segment."""

    START_OFFSET = "start offset"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True)
class Deletion:
    """One segment that retention deletes.

    found, limit: the two numbers that the rule compares:
        start offset: the base offset of the next segment, and the log start offset.
        size: the bytes of the partition before this deletion, and retention.bytes.
        time: the age of the segment and retention.ms, in milliseconds.
    """

    segment: Segment
    rule: RetentionRule
    found: int
    limit: int

    def __str__(self) -> str:
        reason = {
            RetentionRule.START_OFFSET: f"the next segment begins at offset {self.found}, and the log starts at offset"
            f" {self.limit}",
            RetentionRule.SIZE: f"the partition has {self.found} bytes, and retention.bytes is {self.limit}",
            RetentionRule.TIME: f"it is {self.found} ms old, and retention.ms is {self.limit}",
        }[self.rule]
        return f"segment {self.segment.base_offset}, {self.segment.size} bytes, by {self.rule}: {reason}"


@dataclass(frozen=True)
class FutureTimestamp:
    """A segment that the time pass keeps, because its largest timestamp is in the future.

    ahead_ms: how far the timestamp is in the future.
    overdue: the later segments that are old enough to be deleted, but are kept because of this segment.
    """

    segment: Segment
    ahead_ms: int
    overdue: tuple[Segment, ...]

    def __str__(self) -> str:
        return (
            f"segment {self.segment.base_offset} has a timestamp {self.ahead_ms} ms in the future, so"
            f" {len(self.overdue)} overdue segments after it are kept, with {sum(each.size for each in self.overdue)}"
            " bytes"
        )


@dataclass(frozen=True)
class HeldBack:
    """The segments that retention would delete if registered consumers had read them.

    deletions: never empty, the oldest segment first.
    consumers: the consumers that have not read the first of these segments.
    until_ms: the time at which the first of these segments is deleted, even if consumers have not read it.
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
    """The segments that are deleted from one partition, the oldest first, and the log start offset afterwards."""

    deletions: tuple[Deletion, ...]
    log_start_offset: int
    blocked: FutureTimestamp | None = None
    held: HeldBack | None = None

    @property
    def bytes(self) -> int:
        return sum(deletion.segment.size for deletion in self.deletions)


def decide_retention(part: PartitionState, config: TopicConfig, now_ms: int, holds: Holds = NO_HOLDS) -> RetentionPlan:
    """Decide which segments are deleted from a partition now.

    Args:
        holds: the registered consumers of the partition.
    """
    segments = list(part.segments)
    deletions: list[Deletion] = []
    size = part.size

    def take(rule: RetentionRule, verdict: Callable[[Segment, Segment | None], tuple[int, int] | None]) -> None:
        """Run one pass. `verdict` gets a segment and the next segment. It returns the compared numbers, or None."""
        nonlocal size
        gone = 0
        for segment in segments:
            following = segments[gone + 1] if gone + 1 < len(segments) else None
            end = segment.end_offset if following is None else following.base_offset
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

    take(RetentionRule.START_OFFSET, by_start_offset)
    if config.delete and config.retention_bytes >= 0:
        take(RetentionRule.SIZE, by_size)
    blocked = None
    if config.delete and config.retention_ms >= 0:
        take(RetentionRule.TIME, by_time)
        blocked = _future_timestamp(segments, config, now_ms)
    held = _held_back(deletions, part, config, now_ms, holds) if config.retention_respect_consumers else None
    if held:
        del deletions[-len(held.deletions) :]
    start = part.log_start_offset
    if deletions:
        left = part.segments[len(deletions) :]
        start = max(start, left[0].base_offset if left else part.high_watermark)
    return RetentionPlan(tuple(deletions), start, blocked, held)


def due_times(part: PartitionState, config: TopicConfig, deletions: Sequence[Deletion]) -> list[int]:
    """When retention could first delete each of a partition's oldest segments. This is never before the last write to the
    segment, even if the timestamps are old. For the rule of the start offset, it is the time of this write.

    Args:
        deletions: of the partition's oldest segments, in order.
    """
    bytes_up_to = list(accumulate(segment.size for segment in part.segments))
    found = []
    for number, (segment, rule) in enumerate((each.segment, each.rule) for each in deletions):
        due_ms = segment.modified_ms
        if rule is RetentionRule.TIME:
            due_ms = max(due_ms, newest_time(segment) + config.retention_ms)
        elif rule is RetentionRule.SIZE:
            enough = bisect_left(bytes_up_to, bytes_up_to[number] + config.retention_bytes)
            due_ms = part.segments[max(number, enough - 1)].modified_ms
        found.append(due_ms)
    return found


def newest_time(segment: Segment) -> int:
    """Return a segment's largest timestamp; without timestamps, the time of its last change
    (LogSegment.largestTimestamp).
    """
    return segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms


def _future_timestamp(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> FutureTimestamp | None:
    if not segments or newest_time(segments[0]) <= now_ms:
        return None
    overdue = tuple(each for each in segments[1:] if each.size and now_ms - newest_time(each) > config.retention_ms)
    return FutureTimestamp(segments[0], newest_time(segments[0]) - now_ms, overdue) if overdue else None


def _held_back(
    deletions: Sequence[Deletion], part: PartitionState, config: TopicConfig, now_ms: int, holds: Holds
) -> HeldBack | None:
    """Return the deletions that must wait for consumers: the first deletion that a consumer holds back, and all later
    deletions.
    """
    due_ms = due_times(part, config, deletions)
    next_starts = [*(segment.base_offset for segment in part.segments[1:]), part.high_watermark]
    for number, deletion in enumerate(deletions):
        behind = holds.behind(next_starts[number])
        if not behind or deletion.rule is RetentionRule.START_OFFSET:
            continue
        until_ms = due_ms[number] + config.consumer_max_hold_ms
        if now_ms < until_ms:
            return HeldBack(tuple(deletions[number:]), behind, until_ms)
    return None
