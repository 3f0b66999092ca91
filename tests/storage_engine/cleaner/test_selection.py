"""The choice of the offsets to compact: the range, whether compaction is due, and which segments are compacted
together.
"""

from __future__ import annotations

from storage_engine.cleaner.selection import CompactionBound, CompactionPlan, CompactionReason, group_segments, select
from storage_engine.config import TopicConfig
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry

NOW = 1_700_000_000_000


def segment(base: int, *, size: int = 100, age: int = 1000, records: int = 10) -> Segment:
    return Segment(base, f"s{base}", size, base + records, NOW - age, base + records - 1, NOW)


def partition(*segments: Segment, dirty: int | None = None, start: int = 0) -> PartitionState:
    return PartitionState(
        log_start_offset=start,
        high_watermark=segments[-1].end_offset,
        first_dirty_offset=dirty,
        segments=segments,
    )


def never_asked(each: Segment) -> int | None:
    raise AssertionError(f"{each.name} was opened")


def chosen(part: PartitionState, *, force: bool = False, **settings: float) -> CompactionPlan:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), **settings)  # type: ignore[arg-type]
    return select(part, config, NOW, never_asked, force=force)


def test_a_log_that_was_never_cleaned_is_dirty_up_to_its_active_segment() -> None:
    plan = chosen(partition(segment(0), segment(10), segment(20, size=9000)))
    assert [each.base_offset for each in plan.segments] == [0, 10]
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset, plan.bound) == (
        0,
        20,
        CompactionBound.ACTIVE_SEGMENT,
    )
    assert (plan.clean_bytes, plan.dirty_bytes, plan.reason) == (0, 200, CompactionReason.DIRTY_RATIO)


def test_a_single_segment_is_never_cleaned() -> None:
    plan = chosen(partition(segment(0)), force=True)
    assert (plan.segments, plan.reason) == ((), None)
    assert chosen(PartitionState(log_start_offset=5, high_watermark=5), force=True).reason is None


def test_the_dirty_ratio_has_to_be_passed() -> None:
    part = partition(segment(0), segment(10), segment(20), dirty=10)
    assert chosen(part, min_cleanable_dirty_ratio=0.5).reason is None
    assert chosen(part, min_cleanable_dirty_ratio=0.49).reason is CompactionReason.DIRTY_RATIO
    assert chosen(part, min_cleanable_dirty_ratio=0.5, force=True).reason is CompactionReason.FORCED


def test_a_clean_log_is_not_cleaned_again() -> None:
    part = partition(segment(0), segment(10), dirty=10)
    assert (chosen(part).dirty_bytes, chosen(part, force=True).reason) == (0, None)


def test_a_segment_that_is_clean_and_dirty_counts_on_both_sides() -> None:
    plan = chosen(partition(segment(0), segment(10), segment(20), dirty=15))
    assert (plan.clean_bytes, plan.dirty_bytes) == (200, 100)


def test_a_first_dirty_offset_outside_the_log_begins_again_at_its_start() -> None:
    for dirty in (5, 99):
        plan = chosen(partition(segment(10), segment(20), dirty=dirty, start=12))
        assert (plan.first_dirty_offset, plan.dirty_bytes) == (12, 100)


def test_a_first_dirty_offset_may_be_above_the_high_watermark() -> None:
    part = partition(segment(0), segment(10), segment(20), segment(30), dirty=20)
    plan = chosen(part.model_copy(update={"high_watermark": 10}))
    assert (plan.first_dirty_offset, plan.dirty_bytes, plan.reason) == (20, 0, None)


def test_records_younger_than_the_lag_end_the_range() -> None:
    part = partition(segment(0), segment(10, age=50), segment(20), segment(30))
    plan = chosen(part, min_compaction_lag_ms=100)
    assert (plan.first_uncleanable_offset, plan.bound) == (10, CompactionBound.MIN_COMPACTION_LAG)
    assert [each.base_offset for each in plan.segments] == [0]
    assert chosen(part, min_compaction_lag_ms=50).first_uncleanable_offset == 30
    assert chosen(partition(segment(0, age=50), segment(10)), min_compaction_lag_ms=100).reason is None


def test_records_that_waited_too_long_are_cleaned_whatever_the_ratio() -> None:
    part = partition(segment(0, size=9000), segment(10), segment(20), segment(30), dirty=10)
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=500)
    times = {"s10": NOW - 400, "s20": NOW - 501}
    assert select(part, config, NOW, lambda each: times[each.name]).reason is CompactionReason.MAX_COMPACTION_LAG
    times["s20"] = NOW - 500
    assert select(part, config, NOW, lambda each: times[each.name]).reason is None
    assert select(part, config, NOW, lambda _: None).reason is None


def test_no_segment_is_opened_whose_first_timestamp_is_known_or_is_none() -> None:
    known = [segment(base)._replace(first_timestamp=NOW - 100) for base in range(0, 100_000, 10)]
    empty = segment(100_000, size=0)._replace(largest_timestamp=-1, end_offset=100_000)
    part = partition(*known, empty, segment(100_000), dirty=10)
    assert chosen(part, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=500).reason is None
    overdue = known[9_000]._replace(first_timestamp=NOW - 501)
    part = partition(*known[:9_000], overdue, *known[9_001:], dirty=10)
    reason = chosen(part, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=500).reason
    assert reason is CompactionReason.MAX_COMPACTION_LAG


def with_horizons(*horizons: int) -> PartitionState:
    """A clean log, whose tombstones may go at these times."""
    segments = [segment(10 * number)._replace(horizon_ms=horizon) for number, horizon in enumerate(horizons)]
    return partition(*segments, segment(10 * len(horizons)), dirty=10 * len(horizons))


def test_a_clean_log_with_a_passed_horizon_is_due_only_where_that_is_asked_for() -> None:
    part = with_horizons(-1, NOW)
    assert chosen(part).reason is None
    plan = chosen(part, cleaner_clean_expired_horizons=True)
    assert plan.reason is CompactionReason.EXPIRED_HORIZONS
    assert [each.base_offset for each in plan.segments] == [0, 10]
    assert (plan.first_dirty_offset, plan.dirty_bytes) == (20, 0)
    assert chosen(with_horizons(-1, NOW + 1), cleaner_clean_expired_horizons=True).reason is None
    assert chosen(with_horizons(-1, -1), cleaner_clean_expired_horizons=True).reason is None


def test_a_horizon_in_what_cannot_be_cleaned_yet_makes_nothing_due() -> None:
    part = partition(segment(0), segment(10, age=50)._replace(horizon_ms=NOW - 1), segment(20), dirty=10)
    assert chosen(part, min_compaction_lag_ms=100, cleaner_clean_expired_horizons=True).reason is None


def test_a_passed_horizon_counts_only_where_no_consumer_holds_it() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), cleaner_clean_expired_horizons=True)

    def reason(hold_offset: int, max_hold_ms: int) -> CompactionReason | None:
        part = with_horizons(-1, NOW - 100)
        return select(part, config, NOW, never_asked, hold_offset=hold_offset, max_hold_ms=max_hold_ms).reason

    assert reason(hold_offset=20, max_hold_ms=1000) is CompactionReason.EXPIRED_HORIZONS
    assert reason(hold_offset=19, max_hold_ms=101) is None
    assert reason(hold_offset=19, max_hold_ms=100) is CompactionReason.EXPIRED_HORIZONS


def grouped(
    *segments: Segment, end: int = 10_000, index: int = 0, time_index: int = 0, **limits: int
) -> list[list[int]]:
    config = TopicConfig(
        segment_bytes=limits.get("segment_bytes", 10_000), segment_index_bytes=limits.get("most", 1000)
    )
    groups = group_segments(segments, config, end, lambda _: (index, time_index))
    return [[each.base_offset for each in group] for group in groups]


def test_neighbours_join_while_their_bytes_fit() -> None:
    segments = segment(0), segment(10), segment(20), segment(30, size=250), segment(40)
    assert grouped(*segments, segment_bytes=200) == [[0, 10], [20], [30], [40]]
    assert grouped(*segments, segment_bytes=300) == [[0, 10, 20], [30], [40]]


def test_neighbours_join_while_each_kind_of_index_fits() -> None:
    segments = segment(0), segment(10), segment(20)
    assert grouped(*segments, index=500) == [[0, 10], [20]]
    assert grouped(*segments, time_index=501) == [[0], [10], [20]]


def test_a_group_spans_no_more_offsets_than_an_index_entry_holds() -> None:
    assert grouped(segment(0), segment(10), segment(2**31), end=2**31 + 10) == [[0, 10], [2**31]]
    assert grouped(segment(0), segment(10), segment(2**31 + 1), end=2**32) == [[0], [10], [2**31 + 1]]
    empty = segment(2**31, size=0)
    assert grouped(segment(0), segment(10), empty, end=2**32) == [[0, 10, 2**31]]


def test_nothing_makes_no_group() -> None:
    assert grouped() == []


def with_open_transaction(part: PartitionState, first_offset: int) -> PartitionState:
    entry = ProducerEntry(7, 0, 0, first_offset, 0, NOW, -1, first_offset)
    return part.model_copy(update={"producers": (entry,)})


def test_an_open_transaction_ends_the_range_at_its_segment() -> None:
    part = partition(segment(0), segment(10), segment(20), segment(30))
    plan = chosen(with_open_transaction(part, 15))
    assert (plan.first_uncleanable_offset, plan.bound) == (10, CompactionBound.OPEN_TRANSACTION)
    assert [each.base_offset for each in plan.segments] == [0]
    assert chosen(with_open_transaction(part, 35)).bound is CompactionBound.ACTIVE_SEGMENT


def test_a_transaction_below_the_log_start_ends_the_range_at_the_next_batch() -> None:
    part = partition(segment(0), segment(10, records=2), segment(20), segment(30), start=15)
    assert chosen(with_open_transaction(part, 5)).first_uncleanable_offset == 20


def test_a_high_watermark_ends_the_range_at_its_segment_also_if_the_segment_is_empty() -> None:
    part = partition(segment(0), segment(10), segment(20, size=0, records=0), segment(30))
    below = part.model_copy(update={"high_watermark": 20})
    assert chosen(below).first_uncleanable_offset == 20
