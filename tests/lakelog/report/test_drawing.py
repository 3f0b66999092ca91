"""The pictures of a report: each picture has a description, has few shapes for any number of segments, and has all
shapes inside its frame.
"""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.report.drawing import (
    FATE_CLASSES,
    MOST_BLOCKS,
    draw_batch_sizes,
    draw_partition,
    draw_rates,
    merge_segments,
    pattern_definitions,
)
from lakelog.report.facts import PartitionFacts, SegmentFacts, SegmentFate, describe_partition
from lakelog.report.throughput import TimeInterval
from storage_engine.config import TopicConfig
from storage_engine.log.partition_state import PartitionState, Segment
from tests.lakelog.report.roots import DAY, HOUR, NOW, partition, segments

CONFIG = TopicConfig()


def facts(part: PartitionState, config: TopicConfig = CONFIG) -> PartitionFacts:
    return describe_partition(0, part, config, NOW, None)


def draw(part: PartitionState, config: TopicConfig = CONFIG) -> ElementTree.Element:
    return ElementTree.fromstring(draw_partition("t", facts(part, config), config, NOW))


def shapes(picture: ElementTree.Element, class_: str) -> list[ElementTree.Element]:
    return [each for each in picture.iter() if class_ in each.get("class", "").split()]


def assert_within(picture: ElementTree.Element) -> None:
    """Every rectangle lies in the frame and can be seen."""
    *_, width, height = (float(number) for number in picture.get("viewBox", "").split())
    rectangles = list(picture.iter("rect"))
    assert rectangles
    for each in rectangles:
        x, y, wide, high = (float(each.get(name, "nan")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width + 0.1
        assert 0 <= y <= y + high <= height + 0.1
        assert wide >= 1.5
        assert high >= 1.4


@st.composite
def partitions(draw: st.DrawFn) -> PartitionState:
    lengths = draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=300))
    of: list[Segment] = []
    for length in lengths:
        base = of[-1].end_offset if of else draw(st.integers(0, 2**50))
        size = draw(st.integers(0, 2**31))
        time = draw(st.one_of(st.integers(-1, 2**62), st.integers(NOW - DAY, NOW + HOUR)))
        of.append(Segment(base, f"{base}", size, base + length, time, base, NOW))
    start = draw(st.integers(of[0].base_offset, of[-1].end_offset))
    return partition(*of, log_start_offset=start)


@given(partitions())
def test_any_partition_is_drawn_within_the_frame_with_few_shapes(part: PartitionState) -> None:
    picture = draw(part)
    assert_within(picture)
    assert 1 <= len(shapes(picture, "block")) <= MOST_BLOCKS + len(SegmentFate)
    assert all(each.find("title") is not None for each in picture.iter("g") if shapes(each, "block"))


@given(st.lists(st.tuples(st.integers(1, 10**6), st.sampled_from(SegmentFate)), max_size=400))
def test_merging_loses_no_segment_and_joins_only_neighbours_of_one_fate(each: list[tuple[int, SegmentFate]]) -> None:
    listed: list[SegmentFacts] = []
    for length, fate in each:
        base = listed[-1].segment.end_offset if listed else 0
        listed.append(SegmentFacts(Segment(base, f"{base}", 1, base + length, 0, 0, 0), fate, False, 0, None))
    blocks = merge_segments(listed)
    assert [segment for block in blocks for segment in block.segments] == listed
    assert all({segment.fate for segment in block.segments} == {block.fate} for block in blocks)


def test_five_thousand_segments_are_drawn_as_a_few() -> None:
    part = partition(*segments(*range(10, 50_010, 10), newest=[NOW - (5000 - n) * HOUR for n in range(5000)]))
    markup = draw_partition("t", facts(part), CONFIG, NOW)
    assert len(markup) < 100_000
    picture = ElementTree.fromstring(markup)
    told = "t, partition 0: 5,000 segments, 5.0 MB: 167 kept, 1 active, 4,832 deleted next"
    assert picture.get("aria-label") == told
    assert {each.get("class") for each in shapes(picture, "block")} == {
        "block kept",
        "block active",
        "block deleted-next",
    }


def test_one_segment_is_a_picture() -> None:
    picture = draw(partition(*segments(7)))
    assert_within(picture)
    (block,) = shapes(picture, "block")
    assert block.get("class") == "block active"
    title = next(picture.iter("title")).text
    assert title == "segment 0\noffsets 0 to 6\n1.0 kB\nnewest record 2023-11-14 22:13:20.000Z, 0.0 s old\nactive"


def test_times_in_the_future_stand_apart_and_leave_the_others_their_places() -> None:
    past = segments(10, 20, 30, newest=[NOW - 2 * HOUR, NOW - HOUR, NOW])
    with_future = (*past[:2], past[2]._replace(largest_timestamp=2**62))
    (before, after) = draw(partition(*past)), draw(partition(*with_future))
    marks = [[each.get("y") for each in shapes(picture, "mark") if each.tag == "rect"] for picture in (before, after)]
    assert marks[1] == marks[0][:2]
    assert len(shapes(after, "future")) == 1
    assert not shapes(before, "future")


def test_a_segment_without_timestamps_has_a_hollow_mark() -> None:
    picture = draw(partition(*segments(10, 20, newest=[-1, NOW])))
    assert [each.get("class") for each in shapes(picture, "mark")] == ["mark guessed", "mark"]
    assert "no timestamps; last modified 2023-11-14 22:13:20.000Z" in (next(picture.iter("title")).text or "")


def test_limits_are_drawn_where_they_lie_among_the_times() -> None:
    part = partition(*segments(10, 20, newest=[NOW - 3 * DAY, NOW - DAY]), log_start_offset=5)
    words = [each.text for each in draw(part, replace(CONFIG, retention_ms=2 * DAY)).iter("text")]
    assert {"now", "retention.ms", "log start"} <= set(words)
    words = [each.text for each in draw(partition(*part.segments), replace(CONFIG, retention_ms=-1)).iter("text")]
    assert not {"retention.ms", "log start"} & set(words)


def test_every_fate_has_a_pattern_of_its_own() -> None:
    defined = ElementTree.fromstring(pattern_definitions())
    patterns = {each.get("id"): ElementTree.tostring(each) for each in defined.iter("pattern")}
    assert set(patterns) == {f"fill-{name}" for name in FATE_CLASSES.values()}
    assert set(FATE_CLASSES) == set(SegmentFate)


@pytest.mark.parametrize("drawn", [draw_rates, draw_batch_sizes])
def test_appends_are_columns_with_words(drawn) -> None:
    shown = [
        TimeInterval(NOW, NOW + 1000, 2, 30, 3000, 20),
        TimeInterval(NOW + 1000, NOW + 2000),
        TimeInterval(NOW + 2000, NOW + 3000, 1, 10**9, 7, 10**9),
    ]
    picture = ElementTree.fromstring(drawn("t", shown))
    assert_within(picture)
    columns = shapes(picture, "column")
    assert len(columns) == 2
    assert float(columns[1].get("height", 0)) > 50 > float(columns[0].get("height", 0))
    assert "2 appends" in (columns[0][0].text or "")


def test_words_are_escaped() -> None:
    markup = draw_partition('<script>"&', facts(partition(*segments(7))), CONFIG, NOW)
    assert "<script>" not in markup
    assert ElementTree.fromstring(markup).get("aria-label", "").startswith('<script>"&, partition 0:')
