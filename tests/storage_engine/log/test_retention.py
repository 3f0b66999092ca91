"""Which segments retention takes, by which rule, and what stops it."""

from __future__ import annotations

from storage_engine.config import TopicConfig
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.retention import RetentionPlan, Rule, decide_retention

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


def taken(plan: RetentionPlan) -> list[tuple[int, Rule]]:
    return [(deletion.segment.base_offset, deletion.rule) for deletion in plan.deletions]


def test_time_takes_what_is_older_up_to_the_first_survivor() -> None:
    part = partition(segment(0, age=500), segment(10, age=100), segment(20, age=500), segment(30))
    plan = decide_retention(part, config(ms=200), NOW)
    assert taken(plan) == [(0, Rule.TIME)]
    assert plan.log_start_offset == 10
    assert plan.bytes == 100


def test_a_segment_as_old_as_the_limit_stays() -> None:
    part = partition(segment(0, age=201), segment(10, age=200), segment(20))
    assert taken(decide_retention(part, config(ms=200), NOW)) == [(0, Rule.TIME)]


def test_a_segment_without_timestamps_is_as_old_as_its_last_change() -> None:
    silent = segment(0)._replace(largest_timestamp=-1, modified_ms=NOW - 300)
    assert taken(decide_retention(partition(silent, segment(10)), config(ms=200), NOW)) == [(0, Rule.TIME)]
    assert not decide_retention(partition(silent._replace(modified_ms=NOW), segment(10)), config(ms=200), NOW).deletions


def test_a_future_timestamp_keeps_what_is_behind_it_and_is_named() -> None:
    part = partition(segment(0, age=500), segment(10, age=-50), segment(20, age=500), segment(30, age=500), segment(40))
    plan = decide_retention(part, config(ms=200), NOW)
    assert taken(plan) == [(0, Rule.TIME)]
    assert plan.blocked is not None
    assert (plan.blocked.segment.base_offset, plan.blocked.ahead_ms) == (10, 50)
    assert [each.base_offset for each in plan.blocked.overdue] == [20, 30]
    assert "50 ms in the future" in str(plan.blocked)


def test_a_future_timestamp_that_keeps_nothing_old_is_no_matter() -> None:
    assert decide_retention(partition(segment(0, age=-50), segment(10)), config(ms=200), NOW).blocked is None


def test_size_takes_the_oldest_while_the_rest_reaches_the_limit() -> None:
    part = partition(segment(0), segment(10), segment(20), segment(30, size=50))
    assert taken(decide_retention(part, config(size=151), NOW)) == [(0, Rule.SIZE)]
    assert taken(decide_retention(part, config(size=150), NOW)) == [(0, Rule.SIZE), (10, Rule.SIZE)]
    assert taken(decide_retention(part, config(size=351), NOW)) == []


def test_size_zero_takes_everything_with_the_full_active_segment() -> None:
    plan = decide_retention(partition(segment(0), segment(10)), config(size=0), NOW)
    assert taken(plan) == [(0, Rule.SIZE), (10, Rule.SIZE)]
    assert plan.log_start_offset == 20


def test_an_empty_newest_segment_stays() -> None:
    part = partition(segment(0), segment(10, size=0, records=0))
    plan = decide_retention(part, config(size=0), NOW)
    assert taken(plan) == [(0, Rule.SIZE)]
    assert plan.log_start_offset == 10


def test_an_old_active_segment_goes_by_time() -> None:
    plan = decide_retention(partition(segment(0, age=500)), config(ms=200), NOW)
    assert taken(plan) == [(0, Rule.TIME)]
    assert plan.log_start_offset == 10


def test_start_offset_takes_segments_of_every_policy_and_never_the_newest() -> None:
    part = partition(segment(0), segment(10), segment(20), start=20)
    for policy in (DELETE, COMPACT, DELETE | COMPACT, frozenset[str]()):
        plan = decide_retention(part, config(policy), NOW)
        assert taken(plan) == [(0, Rule.START_OFFSET), (10, Rule.START_OFFSET)]
        assert plan.log_start_offset == 20
    assert taken(decide_retention(partition(segment(0), segment(10), start=19), config(), NOW)) == [
        (0, Rule.START_OFFSET)
    ]


def test_a_start_offset_inside_a_segment_does_not_move() -> None:
    plan = decide_retention(partition(segment(0), segment(10), segment(20), start=15), config(), NOW)
    assert taken(plan) == [(0, Rule.START_OFFSET)]
    assert plan.log_start_offset == 15


def test_time_and_size_count_only_where_the_policy_has_delete() -> None:
    part = partition(segment(0, age=500), segment(10, age=500), segment(20))
    assert not decide_retention(part, config(COMPACT, ms=200, size=0), NOW).deletions
    assert decide_retention(part, config(COMPACT | DELETE, ms=200), NOW).deletions


def test_nothing_goes_at_or_above_the_high_watermark() -> None:
    part = partition(segment(0), segment(10), segment(20), high_watermark=15)
    assert taken(decide_retention(part, config(size=0), NOW)) == [(0, Rule.SIZE)]


def test_each_pass_goes_on_where_the_one_before_ended() -> None:
    part = partition(
        segment(0), segment(10), segment(20, age=500), segment(30, age=500), segment(40, age=500), segment(50), start=10
    )
    assert taken(decide_retention(part, config(ms=200, size=400), NOW)) == [
        (0, Rule.START_OFFSET),
        (10, Rule.SIZE),
        (20, Rule.TIME),
        (30, Rule.TIME),
        (40, Rule.TIME),
    ]


def test_a_plan_says_the_rule_and_the_numbers() -> None:
    part = partition(segment(0, age=500), segment(10))
    (deletion,) = decide_retention(part, config(ms=200), NOW).deletions
    assert str(deletion) == "segment 0, 100 bytes, by time: 500 ms old, retention.ms is 200"


def test_a_partition_without_segments_has_nothing_to_lose() -> None:
    part = PartitionState(log_start_offset=7, high_watermark=7)
    assert decide_retention(part, config(ms=0, size=0), NOW) == RetentionPlan((), 7)
