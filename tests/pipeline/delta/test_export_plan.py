"""The plan of an export, tested without Spark. Each case is one line: a table, a log, and the options of the command
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportMode,
    ExportModeError,
    ExportPlan,
    ExportRefusedError,
    Gap,
    OffsetRefusedError,
    PartitionOffsets,
    PositionAheadError,
    TopicRecreatedError,
    decide_export,
)
from pipeline.delta.replaying import decide_replay
from pipeline.delta.table_stamp import Began, Recent, Stamp, TableHead, known_positions

UPSERT, APPEND = ExportMode.UPSERT, ExportMode.APPEND
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
STAMP = Stamp("orders", TOPIC_ID, "table", UPSERT, {0: 10, 1: 4}, version=7, recent=Recent(100, 3))


def export(mode: ExportMode) -> Export:
    return Export("orders", TOPIC_ID, mode, None, "/tables/orders", "/tables/dead_letters")


def head_of(mode: ExportMode, positions: Mapping[int, int]) -> TableHead:
    stamp = replace(STAMP, mode=mode, positions=positions)
    return TableHead(8, current=stamp, newest=stamp, next_guard=9, table_id=stamp.table_id)


def decided(
    mode: ExportMode,
    positions: Mapping[int, int] | None,
    ranges: Mapping[int, PartitionOffsets],
    bounds: ExportBounds = NO_BOUNDS,
) -> ExportPlan:
    """positions: None if there is no table."""
    head = None if positions is None else head_of(mode, positions)
    return decide_export(export(mode), head, positions or {}, ranges, bounds)


ONE = {0: PartitionOffsets(0, 20)}
TRIMMED = {0: PartitionOffsets(15, 20)}
NO_TOMBSTONES = {0: PartitionOffsets(2, 20, tombstones_end=12)}
COMPACTED = {0: PartitionOffsets(0, 20, compacted_end=8)}


@pytest.mark.parametrize(
    ("mode", "positions", "ranges", "bounds", "expected"),
    [
        pytest.param(APPEND, None, ONE, NO_BOUNDS, ({0: 0}, {0: 20}, (), (), ()), id="no-table"),
        pytest.param(APPEND, None, TRIMMED, NO_BOUNDS, ({0: 15}, {0: 20}, (), (), ()), id="no-table-has-no-gap"),
        pytest.param(APPEND, {0: 10}, ONE, NO_BOUNDS, ({0: 10}, {0: 20}, (), (), ()), id="goes-on"),
        pytest.param(APPEND, {0: 20}, ONE, NO_BOUNDS, ({0: 20}, {0: 20}, (), (), ()), id="nothing-new"),
        pytest.param(
            APPEND, {0: 20}, ONE | {1: PartitionOffsets(3, 5)}, NO_BOUNDS,
            ({0: 20, 1: 3}, {0: 20, 1: 5}, (Gap(1, 0, 3),), (), ()), id="new-partition-after-retention",
        ),
        pytest.param(
            APPEND, {0: 10}, TRIMMED, NO_BOUNDS, ({0: 15}, {0: 20}, (Gap(0, 10, 15),), (), ()), id="gap-by-retention"
        ),
        pytest.param(UPSERT, {0: 10}, NO_TOMBSTONES, NO_BOUNDS, ({0: 2}, {0: 20}, (), (0,), ()), id="read-again"),
        pytest.param(APPEND, {0: 10}, NO_TOMBSTONES, NO_BOUNDS, ({0: 10}, {0: 20}, (), (), ()), id="append-never-again"),
        pytest.param(UPSERT, {0: 12}, NO_TOMBSTONES, NO_BOUNDS, ({0: 12}, {0: 20}, (), (), ()), id="tombstones-were-read"),
        pytest.param(UPSERT, None, NO_TOMBSTONES, NO_BOUNDS, ({0: 2}, {0: 20}, (), (), ()), id="no-table-reads-all-anyway"),
        pytest.param(
            UPSERT, {0: 1}, {0: PartitionOffsets(3, 3, tombstones_end=3)}, NO_BOUNDS, ({0: 3}, {0: 3}, (Gap(0, 1, 3),), (), ()),
            id="nothing-left-to-read-again",
        ),
        pytest.param(
            APPEND, {0: 10}, COMPACTED, ExportBounds(from_offsets={0: 8}), ({0: 8}, {0: 20}, (), (), (0,)), id="from-offset"
        ),
        pytest.param(
            APPEND, {0: 10}, ONE, ExportBounds(from_offsets={0: 10}), ({0: 10}, {0: 20}, (), (), ()), id="from-where-it-is-anyway"
        ),
        pytest.param(
            UPSERT, {0: 10}, COMPACTED, ExportBounds(from_offsets={0: 2}), ({0: 2}, {0: 20}, (), (), (0,)),
            id="upsert-from-compacted-offset",
        ),
        pytest.param(
            UPSERT, {0: 10}, NO_TOMBSTONES, ExportBounds(from_offsets={0: 5}), ({0: 2}, {0: 20}, (), (0,), (0,)),
            id="read-again-wins-over-from-offset",
        ),
        pytest.param(APPEND, None, ONE, ExportBounds(from_time={0: 17}), ({0: 17}, {0: 20}, (), (), ()), id="from-time-no-table"),
        pytest.param(
            APPEND, {0: 10}, ONE, ExportBounds(from_time={0: 17}), ({0: 10}, {0: 20}, (), (), ()), id="from-time-skips-nothing"
        ),
        pytest.param(
            APPEND, {0: 10}, ONE, ExportBounds(from_time={0: 3}, from_offsets={0: 5}), ({0: 5}, {0: 20}, (), (), (0,)),
            id="from-offset-wins-over-from-time",
        ),
        pytest.param(
            APPEND, {0: 10, 1: 4}, ONE | {1: PartitionOffsets(0, 9)}, ExportBounds(up_to={0: 15}),
            ({0: 10, 1: 4}, {0: 15, 1: 4}, (), (), ()), id="up-to-leaves-the-other-partitions",
        ),
    ],
)  # fmt: skip
def test_plan_says_where_an_export_begins_and_ends(
    mode: ExportMode, positions: Mapping[int, int] | None, ranges: Mapping[int, PartitionOffsets], bounds: ExportBounds,
    expected: tuple[object, ...],
) -> None:  # fmt: skip
    plan = decided(mode, positions, ranges, bounds)
    assert (plan.start, plan.end, plan.gaps, plan.reread, plan.replaced) == expected
    assert plan.before == ({} if positions is None else dict.fromkeys(ranges, 0) | dict(positions))


@pytest.mark.parametrize(
    ("mode", "positions", "ranges", "bounds", "error", "says"),
    [
        (APPEND, {0: 21}, ONE, NO_BOUNDS, PositionAheadError, "up to offset 21, but the log ends at offset 20"),
        (APPEND, {0: 10}, ONE, ExportBounds(from_offsets={1: 0}), OffsetRefusedError, "has the partitions 0 to 0"),
        (APPEND, {0: 10}, ONE, ExportBounds(from_offsets={0: 11}), OffsetRefusedError, "would be missing"),
        (APPEND, {0: 10}, ONE, ExportBounds(from_offsets={0: 21}), OffsetRefusedError, "has the offsets 0 to 20"),
        (APPEND, None, TRIMMED, ExportBounds(from_offsets={0: 14}), OffsetRefusedError, "has the offsets 15 to 20"),
        (APPEND, {0: 10}, COMPACTED, ExportBounds(from_offsets={0: 7}), OffsetRefusedError, "compaction has removed"),
        (APPEND, {0: 10}, ONE, ExportBounds(up_to={0: 9}), OffsetRefusedError, "has the offsets 10 to 20 to export"),
        (APPEND, {0: 10}, ONE, ExportBounds(up_to={0: 21}), OffsetRefusedError, "has the offsets 10 to 20 to export"),
        (APPEND, {0: 10}, ONE, ExportBounds(up_to={3: 1}), OffsetRefusedError, "has no such partition"),
        (
            APPEND,
            {0: 10},
            ONE,
            ExportBounds({0: 5}, up_to={0: 8}),
            OffsetRefusedError,
            "replaces rows of .* up to offset 10",
        ),
        (
            UPSERT,
            {0: 10},
            NO_TOMBSTONES,
            ExportBounds(up_to={0: 9}),
            OffsetRefusedError,
            "replaces rows of .* up to offset 10",
        ),
    ],
)
def test_plan_is_refused_where_rows_would_be_lost_or_offsets_mean_nothing(
    mode: ExportMode, positions: Mapping[int, int] | None, ranges: Mapping[int, PartitionOffsets], bounds: ExportBounds,
    error: type[ExportRefusedError], says: str,
) -> None:  # fmt: skip
    with pytest.raises(error, match=says):
        decided(mode, positions, ranges, bounds)


def test_table_of_another_topic_or_mode_is_refused_whatever_was_restored() -> None:
    head = replace(head_of(UPSERT, {0: 10}), current=None)
    with pytest.raises(TopicRecreatedError, match="deleted and created again"):
        decide_export(replace(export(UPSERT), topic_id="B" * 22), head, {}, ONE)
    with pytest.raises(ExportModeError, match="was exported in upsert mode; the mode in the settings is now append"):
        decide_export(export(APPEND), head, {}, ONE)


def test_plan_carries_guard_share_and_version_of_the_table_that_it_was_decided_on() -> None:
    plan = decided(APPEND, {0: 10}, ONE)
    assert plan.head is not None
    assert (plan.head.next_guard, plan.recent, plan.table_version) == (9, Recent(100, 3), 8)
    no_table = decided(APPEND, None, ONE)
    assert (no_table.head, no_table.recent, no_table.table_version) == (None, Recent(), None)


def test_position_moves_only_where_something_is_read() -> None:
    ranges = ONE | {1: PartitionOffsets(0, 4)}
    assert decided(APPEND, {0: 10, 1: 4}, ranges).waiting == [0]
    assert decided(APPEND, {0: 10, 1: 4}, ranges).positions == {0: 20, 1: 4}
    assert decided(APPEND, {0: 20}, {0: PartitionOffsets(0, 20), 1: PartitionOffsets(0, 0)}).positions == {0: 20, 1: 0}


def test_rows_made_anew_go_from_the_offset_that_is_read_from() -> None:
    plan = decided(APPEND, {0: 10, 1: 4}, ONE | {1: PartitionOffsets(0, 6)}, ExportBounds(from_offsets={0: 5}))
    assert plan.replaced_rows == "(_partition = 0 AND _offset >= 5) OR (_partition = 1 AND _offset >= 4)"
    assert plan.rebuilt == {0: 5}
    assert plan.required == {0: 5, 1: 4}
    assert decided(APPEND, {0: 10}, ONE).replaced_rows is None


@pytest.mark.parametrize(
    ("tombstones_end", "from_offsets", "start"),
    [
        (0, {0: 5}, {0: 5, 1: 2, 2: 0}),  # other partitions are read from their start
        (0, {0: 5, 1: 3}, {0: 0, 1: 2, 2: 0}),
        (12, {}, {0: 0, 1: 2, 2: 0}),
        (12, {1: 3}, {0: 0, 1: 2, 2: 0}),
        (0, {0: 10}, {0: 10, 1: 4, 2: 7}),
    ],
)
def test_an_upsert_that_goes_back_reads_all_records_that_may_be_newer(
    tombstones_end: int, from_offsets: Mapping[int, int], start: Mapping[int, int]
) -> None:
    ranges = {
        0: PartitionOffsets(0, 20, tombstones_end=tombstones_end),
        1: PartitionOffsets(2, 9),
        2: PartitionOffsets(0, 9),
    }
    positions = {0: 10, 1: 4, 2: 7}
    plan = decided(UPSERT, positions, ranges, ExportBounds(from_offsets=from_offsets))
    assert (plan.start, plan.positions) == (start, {0: 20, 1: 9, 2: 9})
    if not tombstones_end:  # an accepted end offset of one partition does not move the position of another one back
        plan = decided(UPSERT, positions, ranges, ExportBounds(from_offsets=from_offsets, up_to={0: 20, 1: 9}))
        assert (plan.start, plan.positions) == (start, {0: 20, 1: 9, 2: 7})
        with pytest.raises(OffsetRefusedError, match="has the offsets 7 to 9 to export"):
            decided(UPSERT, positions, ranges, ExportBounds(from_offsets=from_offsets, up_to={0: 20, 1: 9, 2: 6}))
    appended = decided(APPEND, positions, ranges, ExportBounds(from_offsets=from_offsets))
    assert appended.start == positions | dict(from_offsets)


def test_an_upsert_that_goes_back_leaves_out_what_the_first_export_has_left_out() -> None:
    head = head_of(UPSERT, {0: 10, 1: 9, 2: 7})
    assert head.current is not None
    head = replace(head, current=replace(head.current, began=Began({0: 6, 1: 4}, 3)))
    ranges = {0: PartitionOffsets(0, 20), 1: PartitionOffsets(0, 9), 2: PartitionOffsets(2, 9)}
    for from_offsets, start in (({0: 5}, {0: 5, 1: 4, 2: 2}), ({0: 8, 1: 3}, {0: 6, 1: 3, 2: 2})):
        bounds = ExportBounds(from_offsets=from_offsets)
        plan = decide_export(export(UPSERT), head, {0: 10, 1: 9, 2: 7}, ranges, bounds)
        assert plan.start == start
        assert plan.began == Began({each: min(first, start[each]) for each, first in ((0, 6), (1, 4))}, 3)


def test_positions_are_those_of_the_current_stamp_or_left_to_the_rows() -> None:
    assert known_positions(None) == {}
    assert known_positions(head_of(UPSERT, {0: 10})) == {0: 10}
    assert known_positions(TableHead(3, None, STAMP, 8)) is None


@pytest.mark.parametrize(
    ("mode", "first_letters", "start"),
    [
        (APPEND, {0: 6}, {0: 6}),
        (APPEND, {0: 1}, {0: 3}),  # the log begins at 3
        (UPSERT, {0: 6}, {0: 6, 1: 0}),
        (UPSERT, {0: 6, 1: 2}, {0: 3, 1: 0}),  # a key of each may have a newer record in the other
        (APPEND, {}, {}),
    ],
)
def test_replay_reads_from_the_first_open_dead_letter_to_the_position(
    mode: ExportMode, first_letters: Mapping[int, int], start: Mapping[int, int]
) -> None:
    before, ranges = (
        {0: 10, 1: 4, 2: 5},
        {0: PartitionOffsets(3, 20), 1: PartitionOffsets(0, 9), 2: PartitionOffsets(5, 9)},
    )
    assert decide_replay(mode, before, ranges, first_letters) == (start, {each: before[each] for each in start})
