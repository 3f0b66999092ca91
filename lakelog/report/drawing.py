"""Draws values as SVG: a partition's segments over offsets, and a topic's appends over time. Pure; no script is needed.

    a partition    above, times:  for each segment a mark at the time of its newest record, over the segment's offsets
                   below, sizes:  a column for each segment: the height shows its bytes, the pattern shows its fate

Each segment has a fate: what the next maintenance will do to the segment. If neighbouring segments have the same fate
and are too narrow to distinguish, they are drawn as one shape. So a picture has at most a few hundred shapes, however
many segments a partition has. Each shape has a <title> that describes it. page.css defines the colours, and
`pattern_definitions` defines the patterns. The page contains each definition once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lakelog.report.facts import PartitionFacts, SegmentFacts, SegmentFate
from lakelog.report.markup import Child, Markup, element, joined
from lakelog.report.scales import Scale, number_ticks, time_ticks
from lakelog.report.throughput import TimeInterval
from storage_engine.config import TopicConfig
from storage_engine.log.segment_retention import newest_time
from storage_engine.quantities import counted, shown_duration, shown_moment, shown_number, shown_size

FATE_CLASSES = {
    SegmentFate.KEPT: "kept",
    SegmentFate.CLEAN: "clean",
    SegmentFate.DIRTY: "dirty",
    SegmentFate.CLEANED_NEXT: "cleaned-next",
    SegmentFate.ACTIVE: "active",
    SegmentFate.DELETED_NEXT: "deleted-next",
}
"""For each fate, the class in page.css and the pattern with which it is drawn."""

MOST_BLOCKS = 96
"""The range of offsets is divided into this many parts. Neighbouring segments narrower than a part are drawn as one
block."""

_WIDTH = 880
_LEFT, _RIGHT = 120, 868
_TIME_TOP, _TIME_BOTTOM = 26, 122
_SIZE_TOP, _SIZE_BOTTOM = 150, 206
_HEIGHT = 232
_FUTURE_Y = 14
_SHORTEST = 4.0
"""The least size of a column or a mark, so that the smallest remains visible."""


@dataclass(frozen=True)
class DrawnBlock:
    """Neighbouring segments of the same fate, drawn as one shape."""

    fate: SegmentFate
    segments: tuple[SegmentFacts, ...]

    @property
    def base_offset(self) -> int:
        return self.segments[0].segment.base_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].segment.end_offset

    @property
    def bytes(self) -> int:
        return sum(each.segment.size for each in self.segments)

    @property
    def times(self) -> tuple[int, int]:
        """The oldest and the newest of its segments' newest timestamps."""
        times = [newest_time(each.segment) for each in self.segments]
        return min(times), max(times)


def merge_segments(segments: Sequence[SegmentFacts], most: int = MOST_BLOCKS) -> list[DrawnBlock]:
    """Merge neighbouring segments of the same fate into blocks. Each block spans at least 1/`most` of the offsets. Only
    the last block before another fate, or before the end, may be narrower.

    A segment is never divided, and the order does not change. Retention and compaction both begin with the oldest
    segment. So segments of the same fate are neighbours, and there are at most a few blocks more than `most`.
    """
    if not segments:
        return []
    narrowest = (segments[-1].segment.end_offset - segments[0].segment.base_offset) / most
    blocks: list[DrawnBlock] = []
    gathered: list[SegmentFacts] = []
    for each in segments:
        if gathered and (
            each.fate is not gathered[0].fate or each.segment.base_offset - gathered[0].segment.base_offset >= narrowest
        ):
            blocks.append(DrawnBlock(gathered[0].fate, tuple(gathered)))
            gathered = []
        gathered.append(each)
    blocks.append(DrawnBlock(gathered[0].fate, tuple(gathered)))
    return blocks


def pattern_definitions() -> Markup:
    """The patterns that fill shapes, for the beginning of the page. Each fate has a pattern, not only a colour."""
    lines = {
        "dirty": element("circle", cx=4, cy=4, r=1.6, class_="ink"),
        "cleaned-next": element("path", d="M0 4H8", class_="ink"),
        "deleted-next": element("path", d="M-2 2L2 -2M0 8L8 0M6 10L10 6", class_="ink"),
        "active": element("path", d="M4 0V8", class_="ink"),
    }
    patterns = (
        element(
            "pattern",
            element("rect", width=8, height=8, class_=f"ground {name}"),
            lines.get(name),
            id=f"fill-{name}", width=8, height=8, patternUnits="userSpaceOnUse",
        )
        for name in FATE_CLASSES.values()
    )  # fmt: skip
    return element(
        "svg", element("defs", joined(patterns)), class_="definitions", width=0, height=0, aria_hidden="true"
    )


def draw_swatch(fate: SegmentFate) -> Markup:
    """The pattern of a fate, for the legend."""
    filled = element("rect", x=1, y=1, width=26, height=14, class_=f"block {FATE_CLASSES[fate]}")
    return element("svg", filled, viewBox="0 0 28 16", width=28, height=16, class_="swatch", aria_hidden="true")


def draw_partition(topic: str, facts: PartitionFacts, config: TopicConfig, now_ms: int) -> Markup:
    """Draw a partition's segments: their times and their sizes.

    Args:
        facts: a partition with at least one segment.
        config: the settings of its topic. The limit of retention.ms is drawn if it is inside the range of times.
    """
    blocks = merge_segments(facts.segments)
    part = facts.state
    first = min(part.log_start_offset, blocks[0].base_offset)
    offsets = Scale(first, max(part.high_watermark, blocks[-1].end_offset), _LEFT, _RIGHT)
    times = _time_scale(facts.segments, now_ms)
    sizes = Scale(0, max(block.bytes for block in blocks), _SIZE_BOTTOM, _SIZE_TOP)
    shapes: list[Child] = [
        *_time_axis(times),
        *_size_axis(sizes),
        *_offset_axis(offsets),
        *_limits(facts, config, times, offsets, now_ms),
        *(_draw_block(block, offsets, times, sizes, now_ms) for block in blocks),
    ]
    fates = ", ".join(
        f"{shown_number(number)} {fate}"
        for fate in SegmentFate
        if (number := sum(each.fate is fate for each in facts.segments))
    )
    return _picture(
        f"{topic}, partition {facts.number}: {counted(len(facts.segments), 'segment')}, {shown_size(part.size)}: {fates}",
        _HEIGHT,
        shapes,
    )


def _time_scale(segments: Sequence[SegmentFacts], now_ms: int) -> Scale:
    """The scale of times up to now. Later times have a separate row above, because they would compress the scale.

    If the segments have different times, and the time since the newest one is longer than the time between the oldest
    and the newest one, the scale ends at the newest one. Otherwise the scale ends at the present time.
    """
    known = [newest_time(each.segment) for each in segments if each.age_ms >= 0]
    low = min(known, default=now_ms)
    high = max(known, default=now_ms)
    if now_ms - high <= high - low or high == low:
        high = now_ms
    return Scale(low, high, _TIME_BOTTOM - _SHORTEST, _TIME_TOP)


def _draw_block(block: DrawnBlock, offsets: Scale, times: Scale, sizes: Scale, now_ms: int) -> Markup:
    left = min(offsets(block.base_offset), _RIGHT - 2.0)
    width = max(2.0, offsets(block.end_offset) - left)
    oldest, newest = block.times
    top = sizes(block.bytes)
    column = element(
        "rect", x=left, y=min(top, _SIZE_BOTTOM - _SHORTEST), width=width,
        height=max(_SHORTEST, _SIZE_BOTTOM - top), class_=f"block {FATE_CLASSES[block.fate]}",
    )  # fmt: skip
    shapes = [element("title", _block_text(block, now_ms)), column]
    if oldest <= now_ms:
        upper, lower = times(min(newest, now_ms)), times(oldest)
        guessed = all(each.segment.largest_timestamp < 0 for each in block.segments)
        shapes.append(
            element(
                "rect", x=left, y=upper, width=width, height=max(_SHORTEST, lower - upper),
                class_="mark guessed" if guessed else "mark",
            )
        )  # fmt: skip
    if newest > now_ms:
        middle = left + width / 2
        shapes.append(element("path", d=f"M{middle - 5:.1f} {_FUTURE_Y + 6}h10l-5 -9z", class_="mark future"))
    return element("g", *shapes)


def _block_text(block: DrawnBlock, now_ms: int) -> str:
    """The lines of a block's tooltip."""
    oldest, newest = block.times
    segments = block.segments
    lines = [
        f"{shown_number(len(segments))} segments"
        if len(segments) > 1
        else f"segment {shown_number(block.base_offset)}",
        f"offsets {shown_number(block.base_offset)} to {shown_number(block.end_offset - 1)}",
        f"{shown_size(block.bytes)}",
    ]
    if all(each.segment.largest_timestamp < 0 for each in segments):
        lines.append(f"no timestamps; last modified {shown_moment(newest)}")
    else:
        lines.append(f"newest record {shown_moment(newest)}, {age(now_ms - newest)}")
        if oldest != newest:
            lines.append(f"newest record of the oldest segment {shown_moment(oldest)}")
    lines.append("active" if segments[-1].active and block.fate is SegmentFate.ACTIVE else str(block.fate))
    lines += sorted({f"by {each.deletion.rule}" for each in segments if each.deletion})
    return "\n".join(lines)


def age(ms: int) -> str:
    """A duration as text: how long ago, or how far in the future."""
    return f"{shown_duration(abs(ms) / 1000)} {'ahead' if ms < 0 else 'old'}"


def _limits(facts: PartitionFacts, config: TopicConfig, times: Scale, offsets: Scale, now_ms: int) -> Iterator[Markup]:
    """Lines at the present time, at the limit of retention by time, and at the log start offset."""
    if times.high == now_ms:
        yield _level(times(now_ms), "now")
    limit = now_ms - config.retention_ms
    if config.delete and config.retention_ms >= 0 and times.low < limit < times.high:
        yield _level(times(limit), "retention.ms")
    if any(each.age_ms < 0 for each in facts.segments):
        yield element("text", "in the future", x=_LEFT - 8, y=_FUTURE_Y + 4, class_="end")
    start = facts.state.log_start_offset
    if facts.segments[0].segment.base_offset < start:
        x = offsets(start)
        title = element(
            "title", f"log start offset {shown_number(start)}: readers do not get records before this offset"
        )
        line = element("path", d=f"M{x:.1f} {_TIME_TOP}V{_SIZE_BOTTOM}", class_="limit")
        yield element("g", title, line, element("text", "log start", x=x + 4, y=_SIZE_TOP - 6, class_="limit-text"))


def _level(y: float, text: str) -> Markup:
    line = element("path", d=f"M{_LEFT} {y:.1f}H{_RIGHT}", class_="limit")
    return element("g", line, element("text", text, x=_RIGHT, y=y - 4, class_="end limit-text"))


def _time_axis(times: Scale) -> Iterator[Markup]:
    ticks = time_ticks(int(times.low), int(times.high), 4)
    if not ticks:  # the range is too short for a round time
        ticks = [(int(times.high), shown_moment(int(times.high))[:19])]
    for at, label in ticks:
        yield _grid_line(times(at), label)
    yield element("text", "newest record", x=_LEFT - 8, y=_TIME_BOTTOM + 12, class_="end axis")


def _size_axis(sizes: Scale) -> Iterator[Markup]:
    for value in number_ticks(0, int(sizes.high), 3):
        yield _grid_line(sizes(value), shown_size(value))


def _grid_line(y: float, label: str) -> Markup:
    line = element("path", d=f"M{_LEFT} {y:.1f}H{_RIGHT}", class_="grid")
    return joined([line, element("text", label, x=_LEFT - 8, y=y + 4, class_="end")])


def _offset_axis(offsets: Scale) -> Iterator[Markup]:
    for at in number_ticks(int(offsets.low), int(offsets.high), 7):
        x = offsets(at)
        yield element("path", d=f"M{x:.1f} {_SIZE_BOTTOM}v4", class_="tick")
        side = "end" if x > _RIGHT - 20 else "middle"
        yield element("text", shown_number(at), x=x, y=_SIZE_BOTTOM + 18, class_=side)
    yield element("text", "offset", x=_LEFT - 8, y=_SIZE_BOTTOM + 18, class_="end axis")


def draw_rates(topic: str, shown: Sequence[TimeInterval]) -> Markup:
    """Draw records per second over time."""

    def text(each: TimeInterval) -> str:
        appends = counted(each.appends, "append")
        return f"{each.records_per_second:,.1f} records/s: {shown_number(each.records)} records in {appends}"

    return _draw_intervals(
        f"{topic}: records per second over time", shown, "records/s", lambda each: each.records_per_second, text
    )


def draw_batch_sizes(topic: str, shown: Sequence[TimeInterval]) -> Markup:
    """Draw the number of records in the largest append, over time."""

    def text(each: TimeInterval) -> str:
        if each.appends == 1:
            return f"1 append of {shown_number(each.records)} records, {shown_size(each.bytes)}"
        return (
            f"{counted(each.appends, 'append')}: at most {shown_number(each.largest)} records per append,"
            f" {each.mean:,.1f} on average, {shown_size(each.bytes)} in all"
        )

    return _draw_intervals(
        f"{topic}: records of an append over time", shown, "records", lambda each: each.largest, text
    )


def _draw_intervals(
    label: str,
    shown: Sequence[TimeInterval],
    unit: str,
    value: Callable[[TimeInterval], float],
    text: Callable[[TimeInterval], str],
) -> Markup:
    """Draw a column for each interval that has an append."""
    top, bottom = 22, 112
    times = Scale(shown[0].start_ms, shown[-1].end_ms, _LEFT, _RIGHT)
    highest = max(value(each) for each in shown)
    heights = Scale(0, highest, bottom, top)
    shapes: list[Child] = [element("text", unit, x=_LEFT - 8, y=12, class_="end axis")]
    shapes += [_grid_line(heights(tick), shown_number(tick)) for tick in number_ticks(0, int(highest), 4)]
    for at, written in time_ticks(shown[0].start_ms, shown[-1].end_ms, 6):
        x = times(at)
        shapes.append(element("path", d=f"M{x:.1f} {bottom}v4", class_="tick"))
        side = "end" if x > _RIGHT - 36 else "middle"
        shapes.append(element("text", written, x=x, y=bottom + 18, class_=side))
    for each in shown:
        if not each.appends:
            continue
        left, right = times(each.start_ms), times(each.end_ms)
        y = min(heights(value(each)), bottom - 1.5)
        title = element(
            "title",
            f"{shown_moment(each.start_ms)}, {shown_duration((each.end_ms - each.start_ms) / 1000)}\n{text(each)}",
        )
        width = max(1.5, right - left - 1)
        shapes.append(element("rect", title, x=left, y=y, width=width, height=bottom - y, class_="column"))
    return _picture(label, bottom + 26, shapes)


def _picture(label: str, height: int, shapes: Sequence[Child]) -> Markup:
    return element("svg", *shapes, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=label, class_="picture")
