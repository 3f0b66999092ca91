"""Which segments retention deletes, by which rule, and which conditions prevent it."""

from __future__ import annotations

from storage_engine.config import TopicConfig
from storage_engine.log.holds import Holds
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_retention import RetentionPlan, RetentionRule, decide_retention

NOW = 1_700_000_000_000
DELETE = frozenset({"delete"})
COMPACT = frozenset({"compact"})


def segment(base: int, *, size: int = 100, age: int = 0, records: int = 10) -> Segment:
    return Segment(base, f"s{base}", size, base + records, NOW - age, base + records - 1, NOW)


def partition(*segments: Segment, start: int = 0, high_watermark: int | None = None) -> PartitionState:
    end = segments[-1].end_offset if high_watermark is None else high_watermark
    return PartitionState(log_start_offset=start, high_watermark=end, segments=segments)


def config(policy: frozenset[str] = DELETE, *, ms: int = -1, size: int = -1) -> TopicConfig:
    return TopicConfig(cleanup_policy=policy, retention_ms=ms, retention_bytes=size)


def taken(plan: RetentionPlan) -> list[tuple[int, RetentionRule]]:
    return [(deletion.segment.base_offset, deletion.rule) for deletion in plan.deletions]


def test_time_takes_what_is_older_up_to_the_first_survivor() -> None:
    part = partition(segment(0, age=500), segment(10, age=100), segment(20, age=500), segment(30))
    plan = decide_retention(part, config(ms=200), NOW)
    assert taken(plan) == [(0, RetentionRule.TIME)]
    assert plan.log_start_offset == 10
    assert plan.bytes == 100


def test_a_segment_as_old_as_the_limit_stays() -> None:
    part = partition(segment(0, age=201), segment(10, age=200), segment(20))
    assert taken(decide_retention(part, config(ms=200), NOW)) == [(0, RetentionRule.TIME)]


def test_a_segment_without_timestamps_is_as_old_as_its_last_change() -> None:
    silent = segment(0)._replace(largest_timestamp=-1, modified_ms=NOW - 300)
    assert taken(decide_retention(partition(silent, segment(10)), config(ms=200), NOW)) == [(0, RetentionRule.TIME)]
    assert not decide_retention(partition(silent._replace(modified_ms=NOW), segment(10)), config(ms=200), NOW).deletions


def test_a_future_timestamp_keeps_what_is_behind_it_and_is_named() -> None:
    part = partition(segment(0, age=500), segment(10, age=-50), segment(20, age=500), segment(30, age=500), segment(40))
    plan = decide_retention(part, config(ms=200), NOW)
    assert taken(plan) == [(0, RetentionRule.TIME)]
    assert plan.blocked is not None
    assert (plan.blocked.segment.base_offset, plan.blocked.ahead_ms) == (10, 50)
    assert [each.base_offset for each in plan.blocked.overdue] == [20, 30]
    assert "50 ms in the future" in str(plan.blocked)


def test_a_future_timestamp_that_keeps_nothing_old_is_no_matter() -> None:
    assert decide_retention(partition(segment(0, age=-50), segment(10)), config(ms=200), NOW).blocked is None


def test_size_takes_the_oldest_while_the_rest_reaches_the_limit() -> None:
    part = partition(segment(0), segment(10), segment(20), segment(30, size=50))
    assert taken(decide_retention(part, config(size=151), NOW)) == [(0, RetentionRule.SIZE)]
    assert taken(decide_retention(part, config(size=150), NOW)) == [(0, RetentionRule.SIZE), (10, RetentionRule.SIZE)]
    assert taken(decide_retention(part, config(size=351), NOW)) == []


def test_size_zero_takes_everything_with_the_full_active_segment() -> None:
    plan = decide_retention(partition(segment(0), segment(10)), config(size=0), NOW)
    assert taken(plan) == [(0, RetentionRule.SIZE), (10, RetentionRule.SIZE)]
    assert plan.log_start_offset == 20


def test_an_empty_newest_segment_stays() -> None:
    part = partition(segment(0), segment(10, size=0, records=0))
    plan = decide_retention(part, config(size=0), NOW)
    assert taken(plan) == [(0, RetentionRule.SIZE)]
    assert plan.log_start_offset == 10


def test_an_old_active_segment_goes_by_time() -> None:
    plan = decide_retention(partition(segment(0, age=500)), config(ms=200), NOW)
    assert taken(plan) == [(0, RetentionRule.TIME)]
    assert plan.log_start_offset == 10


def test_start_offset_takes_segments_of_every_policy_and_never_the_newest() -> None:
    part = partition(segment(0), segment(10), segment(20), start=20)
    for policy in (DELETE, COMPACT, DELETE | COMPACT, frozenset[str]()):
        plan = decide_retention(part, config(policy), NOW)
        assert taken(plan) == [(0, RetentionRule.START_OFFSET), (10, RetentionRule.START_OFFSET)]
        assert plan.log_start_offset == 20
    assert taken(decide_retention(partition(segment(0), segment(10), start=19), config(), NOW)) == [
        (0, RetentionRule.START_OFFSET)
    ]


def test_a_start_offset_inside_a_segment_does_not_move() -> None:
    plan = decide_retention(partition(segment(0), segment(10), segment(20), start=15), config(), NOW)
    assert taken(plan) == [(0, RetentionRule.START_OFFSET)]
    assert plan.log_start_offset == 15


def test_time_and_size_count_only_where_the_policy_has_delete() -> None:
    part = partition(segment(0, age=500), segment(10, age=500), segment(20))
    assert not decide_retention(part, config(COMPACT, ms=200, size=0), NOW).deletions
    assert decide_retention(part, config(COMPACT | DELETE, ms=200), NOW).deletions


def test_nothing_goes_at_or_above_the_high_watermark() -> None:
    part = partition(segment(0), segment(10), segment(20), high_watermark=15)
    assert taken(decide_retention(part, config(size=0), NOW)) == [(0, RetentionRule.SIZE)]


def test_each_pass_goes_on_where_the_one_before_ended() -> None:
    part = partition(
        segment(0), segment(10), segment(20, age=500), segment(30, age=500), segment(40, age=500), segment(50), start=10
    )
    assert taken(decide_retention(part, config(ms=200, size=400), NOW)) == [
        (0, RetentionRule.START_OFFSET),
        (10, RetentionRule.SIZE),
        (20, RetentionRule.TIME),
        (30, RetentionRule.TIME),
        (40, RetentionRule.TIME),
    ]


def test_a_plan_says_the_rule_and_the_numbers() -> None:
    part = partition(segment(0, age=500), segment(10))
    (deletion,) = decide_retention(part, config(ms=200), NOW).deletions
    assert str(deletion) == "segment 0, 100 bytes, by time: it is 500 ms old, and retention.ms is 200"


def test_a_partition_without_segments_has_nothing_to_lose() -> None:
    part = PartitionState(log_start_offset=7, high_watermark=7)
    assert decide_retention(part, config(ms=0, size=0), NOW) == RetentionPlan((), 7)


def held(
    part: PartitionState, *, ms: int = -1, size: int = -1, hold_ms: int = 1000, now_ms: int = NOW, **read_up_to: int
) -> RetentionPlan:
    topic = TopicConfig(
        retention_ms=ms, retention_bytes=size, retention_respect_consumers=True, consumer_max_hold_ms=hold_ms
    )
    return decide_retention(part, topic, now_ms, Holds(read_up_to))


def test_what_a_consumer_has_not_read_through_stays_with_all_behind_it() -> None:
    part = partition(segment(0, age=500), segment(10, age=500), segment(20, age=500), segment(30))
    plan = held(part, ms=200, slow=19, fast=30)
    assert taken(plan) == [(0, RetentionRule.TIME)]
    assert plan.log_start_offset == 10
    assert plan.held is not None
    assert [each.segment.base_offset for each in plan.held.deletions] == [10, 20]
    assert plan.held.consumers == Holds({"slow": 19})
    assert str(plan.held) == "slow, at offset 19, holds back 2 segments, 200 B, until 2023-11-14 22:13:21.000Z"


def test_several_consumers_are_all_named() -> None:
    plan = held(partition(segment(0, age=500), segment(10)), ms=200, b=1, a=9, done=10)
    assert str(plan.held).startswith("a, at offset 9, and b, at offset 1, hold back 1 segment, 100 B, until ")


def test_consumers_that_have_read_it_hold_nothing_back() -> None:
    part = partition(segment(0, age=500), segment(10, age=500), segment(20))
    assert held(part, ms=200, one=20, other=25) == decide_retention(part, config(ms=200), NOW)


def test_consumers_hold_back_nothing_where_the_topic_does_not_ask_for_it() -> None:
    part = partition(segment(0, age=500), segment(10))
    assert decide_retention(part, config(ms=200), NOW, Holds({"slow": 0})) == decide_retention(
        part, config(ms=200), NOW
    )


def test_a_deleted_start_is_held_back_by_nobody() -> None:
    part = partition(segment(0, age=500), segment(10, age=500), segment(20), start=10)
    assert taken(held(part, ms=200, slow=0)) == [(0, RetentionRule.START_OFFSET)]


def test_time_is_held_for_so_long_after_the_segment_was_due() -> None:
    written = segment(0)._replace(largest_timestamp=NOW, modified_ms=NOW)
    part = partition(written, segment(10, age=-1100))
    assert taken(held(part, ms=200, now_ms=NOW + 1199, slow=0)) == []
    assert taken(held(part, ms=200, now_ms=NOW + 1200, slow=0)) == [(0, RetentionRule.TIME)]


def test_old_records_that_came_just_now_are_held_from_now_on() -> None:
    plan = held(partition(segment(0, age=100_000), segment(10)), ms=200, slow=0)
    assert plan.held is not None
    assert plan.held.until_ms == NOW + 1000


def test_size_is_held_from_when_the_segments_behind_were_enough() -> None:
    times = (NOW - 5000, NOW - 4000, NOW - 700, NOW)
    part = partition(*(segment(10 * n)._replace(modified_ms=at) for n, at in enumerate(times)))
    # Without the first there were not enough before NOW - 4000, without the second not before NOW - 700.
    plan = held(part, size=101, slow=0)
    assert taken(plan) == [(0, RetentionRule.SIZE)]
    assert plan.held is not None
    assert [each.segment.base_offset for each in plan.held.deletions] == [10]
    assert plan.held.until_ms == NOW - 700 + 1000
    assert taken(held(part, size=0, hold_ms=6000, slow=0)) == []
    assert taken(held(part, size=0, hold_ms=5000, slow=0)) == [(0, RetentionRule.SIZE)]


def test_the_log_start_passes_no_consumer_whose_next_records_compaction_removed() -> None:
    emptied = partition(segment(0, age=500), segment(10, size=0, age=500), segment(20))
    assert taken(held(emptied, ms=200, export=10)) == [(0, RetentionRule.TIME)]
    assert held(emptied, ms=200, export=10).log_start_offset == 10
    assert taken(held(emptied, ms=200, export=20)) == [(0, RetentionRule.TIME), (10, RetentionRule.TIME)]

    without = partition(segment(0, age=500), segment(20))  # and nothing is left of what lay between
    assert taken(held(without, ms=200, export=10)) == []
    assert taken(held(without, ms=200, export=20)) == [(0, RetentionRule.TIME)]
