"""Selects the range of a partition for a compaction, decides whether the compaction is due, and groups the segments.
All functions are pure.

    log start ... first dirty offset ............... first uncleanable offset ... high watermark
    |  clean, compacted before  |  dirty and cleanable      |  not cleanable yet: at least the active segment  |

The first dirty offset is the end of the last compaction. The first uncleanable offset is the base offset of one of
these segments, whichever comes first in the log:

    the active segment
    the first dirty segment with a record younger than min.compaction.lag.ms
    the segment in which the oldest open transaction begins

If the dirty part has a record with a key, all older records with this key are outdated, in the dirty part and in the
clean part.

Kafka has two rules (LogCleanerManager and LogToClean). Compaction is due when more than min.cleanable.dirty.ratio of
the cleanable bytes are dirty. Compaction is also due when a dirty record is older than max.compaction.lag.ms. With
cleaner.clean.expired.horizons, Lakelog adds a third rule. Compaction is also due when the delete horizon of a
tombstone or a marker has passed, and a segment still contains this tombstone or marker.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_retention import newest_time
from storage_engine.record.header import NO_TIMESTAMP


class CompactionBound(StrEnum):
    """The rule that sets the first uncleanable offset."""

    ACTIVE_SEGMENT = "active segment"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    OPEN_TRANSACTION = "open transaction"


class CompactionReason(StrEnum):
    """Why compaction is due."""

    DIRTY_RATIO = "dirty ratio"
    MAX_COMPACTION_LAG = "max.compaction.lag.ms"
    EXPIRED_HORIZONS = "expired delete horizons"
    FORCED = "forced"


@dataclass(frozen=True)
class CompactionPlan:
    """The range that a compaction of a partition would clean, and whether the compaction is due.

    segments: those below the first uncleanable offset, oldest first.
    clean_bytes: bytes of the segments below the first dirty offset.
    dirty_bytes: bytes of the segments at and above the first dirty offset.
    bound: the rule that ends the range.
    reason: None if compaction is not due.
    oldest_ms: timestamp of the dirty record that makes compaction due by max.compaction.lag.ms.
    """

    segments: tuple[Segment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    bound: CompactionBound
    reason: CompactionReason | None
    oldest_ms: int | None = None

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def select(
    part: PartitionState,
    config: TopicConfig,
    now_ms: int,
    read_first_timestamp: Callable[[Segment], int | None],
    *,
    force: bool = False,
    hold_offset: int = LONG_MAX,
    max_hold_ms: int = 0,
) -> CompactionPlan:
    """Select the range of a partition to clean now, and decide whether compaction is due.

    Args:
        read_first_timestamp: reads the timestamp of a segment's first batch. This function is called only if the
            decision depends on max.compaction.lag.ms, and only for segments that have timestamps but whose
            first_timestamp is None.
        force: clean the dirty and cleanable segments even if compaction is not due.
        hold_offset, max_hold_ms: at and after hold_offset, tombstones and markers are kept max_hold_ms longer.
    """
    first_dirty = part.log_start_offset if part.first_dirty_offset is None else part.first_dirty_offset
    active = part.active_segment
    log_end = part.high_watermark if active is None else max(part.high_watermark, active.end_offset)
    if not part.log_start_offset <= first_dirty <= log_end:
        first_dirty = part.log_start_offset
    if active is None:
        return CompactionPlan((), first_dirty, first_dirty, 0, 0, CompactionBound.ACTIVE_SEGMENT, None)
    dirty = _between(part.segments, first_dirty, active.base_offset)
    uncleanable, bound = _first_uncleanable(part, active, dirty, config, now_ms)
    segments = tuple(each for each in part.segments if each.base_offset < uncleanable)
    clean_bytes = sum(each.size for each in part.segments if each.base_offset < first_dirty)
    dirty_bytes = sum(each.size for each in _between(part.segments, first_dirty, uncleanable))
    plan = CompactionPlan(segments, first_dirty, uncleanable, clean_bytes, dirty_bytes, bound, None)

    def first_timestamp(segment: Segment) -> int:
        if segment.first_timestamp is not None:
            return segment.first_timestamp
        found = read_first_timestamp(segment) if segment.largest_timestamp > 0 else None
        return NO_TIMESTAMP if found is None else found

    reason, oldest_ms = None, None
    if force and dirty_bytes:
        reason = CompactionReason.FORCED
    elif plan.dirty_ratio > config.min_cleanable_dirty_ratio:
        reason = CompactionReason.DIRTY_RATIO
    elif dirty_bytes and config.max_compaction_lag_ms < LONG_MAX:
        latest = now_ms - config.max_compaction_lag_ms
        oldest_ms = next((time for each in dirty if 0 < (time := first_timestamp(each)) < latest), None)
        if oldest_ms is not None:
            reason = CompactionReason.MAX_COMPACTION_LAG
    if reason is None and config.cleaner_clean_expired_horizons:
        held_now_ms = now_ms - max_hold_ms
        if any(
            0 <= each.horizon_ms <= (now_ms if each.end_offset <= hold_offset else held_now_ms) for each in segments
        ):
            reason = CompactionReason.EXPIRED_HORIZONS
    return replace(plan, reason=reason, oldest_ms=oldest_ms)


def _first_uncleanable(
    part: PartitionState, active: Segment, dirty: Sequence[Segment], config: TopicConfig, now_ms: int
) -> tuple[int, CompactionBound]:
    """The lowest of the bounds, and the rule that sets it."""
    uncleanable, bound = active.base_offset, CompactionBound.ACTIVE_SEGMENT
    if config.min_compaction_lag_ms > 0:
        young = (each for each in dirty if newest_time(each) > now_ms - config.min_compaction_lag_ms)
        first_young = next(young, None)
        if first_young is not None:
            uncleanable, bound = first_young.base_offset, CompactionBound.MIN_COMPACTION_LAG
    if part.last_stable_offset < uncleanable:
        # The segment that contains this offset is uncleanable as a whole. If no batch is at the first offset of an open
        # transaction, this is the segment of the next batch.
        after = _between(part.segments, part.last_stable_offset, uncleanable)
        if part.last_stable_offset < part.high_watermark:
            after = tuple(each for each in after if each.size and each.end_offset > part.last_stable_offset)
        unstable = next(iter(after), None)
        if unstable is not None:
            uncleanable, bound = unstable.base_offset, CompactionBound.OPEN_TRANSACTION
    return uncleanable, bound


def _between(segments: Sequence[Segment], offset: int, end: int) -> tuple[Segment, ...]:
    """The segment that contains `offset`, and all later segments that begin before `end`."""
    if offset >= end:
        return ()
    bases = [each.base_offset for each in segments]
    return tuple(segments[max(0, bisect_right(bases, offset) - 1) : bisect_left(bases, end)])


def group_segments(
    segments: Sequence[Segment],
    config: TopicConfig,
    first_uncleanable_offset: int,
    index_sizes: Callable[[Segment], tuple[int, int]],
) -> list[tuple[Segment, ...]]:
    """Group neighbouring segments that will become one segment (Cleaner.groupSegmentsBySize).

    Sizes are those before cleaning. The sum of the .log sizes must not exceed segment.bytes, the sum of each kind of
    index must not exceed segment.index.bytes, and the offsets must fit into an index entry. An empty segment always
    fits into a group.

    Args:
        index_sizes: returns the bytes of a segment's .index and .timeindex.
    """
    groups: list[tuple[Segment, ...]] = []
    number = 0
    while number < len(segments):
        first = segments[number]
        group = [first]
        log_bytes, (index_bytes, time_index_bytes) = first.size, index_sizes(first)
        number += 1
        while number < len(segments) and log_bytes + segments[number].size <= config.segment_bytes:
            segment = segments[number]
            end = segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable_offset
            more_index_bytes, more_time_index_bytes = index_sizes(segment)
            if index_bytes + more_index_bytes > config.segment_index_bytes:
                break
            if time_index_bytes + more_time_index_bytes > config.segment_index_bytes:
                break
            if segment.size and end - 1 - first.base_offset > MOST_RELATIVE_OFFSET:
                break
            group.append(segment)
            log_bytes += segment.size
            index_bytes += more_index_bytes
            time_index_bytes += more_time_index_bytes
            number += 1
        groups.append(tuple(group))
    return groups
