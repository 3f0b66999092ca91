"""Prints a plan as tables that people read: what is done to each segment and why, and why the other segments are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lakelog.cli.output import write_table
from storage_engine.quantities import counted, shown_duration, shown_moment, shown_number, shown_size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from storage_engine.topic.clean.cleaning_plan import Block, PartitionPlan, Plan, SegmentStep, TopicPlan

_MOST_ROWS = 12
"""Of neighbouring segments under the same rule, at most this many are printed: half of them from the beginning, half
from the end. The JSON document lists all."""


def show_plan(planned: Plan) -> None:
    """Print a plan for people."""
    from storage_engine.topic.clean.cleaning_plan import step_summary

    shown = [line for topic in planned.topics for line in _topic_lines(topic)]
    steps = [step for topic in planned.topics for each in topic.partitions for step in each.steps]
    write_table(*shown, f"in all: {step_summary(steps)}. Nothing was changed.")


def _topic_lines(topic: TopicPlan) -> Iterator[RenderableType]:
    from rich.text import Text

    heading = (
        f"{topic.topic}: cleanup.policy {topic.settings['cleanup.policy'] or 'none'}, as of {shown_moment(topic.now_ms)},"
        f" version {topic.version}"
    )
    lines = [
        f"  partition {each.partition}: {block_text(block)}" for each in topic.partitions for block in _note_lines(each)
    ]
    busy = any(each.steps for each in topic.partitions)
    if not busy and not lines:
        size = shown_size(sum(each.bytes_before for each in topic.partitions))
        count = counted(sum(each.segments_before for each in topic.partitions), "segment")
        yield f"{heading}: nothing to do, {size} in {count}"
        return
    yield Text(heading, "bold")
    if busy:
        yield _steps_table(topic)
    yield _partitions_table(topic)
    yield from lines
    if lines:
        yield ""


def _note_lines(plan: PartitionPlan) -> Iterator[Block]:
    """The rules that keep segments. The active segment is always kept. So its rule is omitted if there is any other
    line."""
    return (block for block in plan.blocks if block.kind != "active segment" or not (plan.steps or plan.blocks[1:]))


def _steps_table(topic: TopicPlan) -> Table:
    table = _table("partition", "base offset", "bytes", "what", "by", "found", "limit", left=4)
    half = _MOST_ROWS // 2
    for each in topic.partitions:
        for (action, rule), group in groupby(each.steps, key=lambda step: (step.action, step.rule)):
            steps = list(group)
            hidden = steps[half:-half] if len(steps) > _MOST_ROWS else []
            _add_steps(table, each.partition, steps[:half] if hidden else steps)
            if hidden:
                size = shown_size(sum(step.bytes for step in hidden))
                table.add_row("", f"+ {shown_number(len(hidden))} more", size, action, rule, "", "", style="dim")
                _add_steps(table, each.partition, steps[-half:])
        table.add_section()
    return table


def _add_steps(table: Table, partition: int, steps: Sequence[SegmentStep]) -> None:
    for step in steps:
        offset, size = shown_number(step.base_offset), shown_size(step.bytes)
        table.add_row(str(partition), offset, size, step.action, step.rule, *found_and_limit(step))


def found_and_limit(step: SegmentStep) -> tuple[str, str]:
    """The number that was found, and the limit that it was compared with."""
    found, limit = step.found, step.limit
    match step.rule:
        case "time":
            return f"{shown_duration(found / 1000)} old", f"retention.ms {shown_duration(limit / 1000)}"
        case "size":
            return f"{shown_size(found)} in all", f"retention.bytes {shown_size(limit)}"
        case "start offset":
            return f"ends at {shown_number(found)}", f"log starts at {shown_number(limit)}"
        case "max.compaction.lag.ms":
            return f"dirty for {shown_duration(found / 1000)}", f"{step.rule} {shown_duration(limit / 1000)}"
        case "expired delete horizons":
            return f"the first passed {shown_duration(found / 1000)} ago", "cleaner.clean.expired.horizons"
        case "small neighbours":
            return (
                f"{shown_size(found)} from offset {shown_number(step.into or 0)}",
                f"segment.bytes {shown_size(limit)}",
            )
        case _:
            return f"{found:.3f} dirty", f"min.cleanable.dirty.ratio {limit:g}"


def block_text(block: Block) -> str:
    """One rule that keeps segments: how many segments, which numbers decide this, and until when."""
    kept = f"{counted(block.segments, 'segment')}, {shown_size(block.bytes)}, from offset {shown_number(block.from_offset)}"
    match block.kind:
        case "future timestamp":
            text = f"kept: {kept}, because an earlier segment has a timestamp {shown_duration(-block.found / 1000)} in the future"
        case "consumer":
            names = ", ".join(block.consumers)
            text = (
                f"kept: {kept}, because {names} must still read the records from offset {shown_number(block.found)} on"
            )
        case "min.compaction.lag.ms":
            age, lag = (shown_duration(each / 1000) for each in (block.found, block.limit))
            text = f"not cleaned yet: {kept}, {age} old, min.compaction.lag.ms is {lag}"
        case "open transaction":
            text = f"not cleaned yet: {kept}, a transaction is open from offset {shown_number(block.found)} on"
        case "active segment":
            text = f"not cleaned yet: {kept}, the active segment"
        case _:
            text = f"not due: {kept}, {block.found:.3f} dirty, {block.kind} is {block.limit:g}"
    return f"{text}, until {shown_moment(block.until_ms)}" if block.until_ms is not None else text


def _partitions_table(topic: TopicPlan) -> Table:
    from storage_engine.topic.clean.cleaning_plan import step_summary

    table = _table("partition", "log start", "segments", "bytes", "what", left=1)
    for each in topic.partitions:
        start = _change(shown_number(each.log_start_offset), shown_number(each.log_start_offset_after))
        most = "" if each.exact else "at most "
        segments = _change(shown_number(each.segments_before), shown_number(each.segments_after), most)
        sizes = _change(shown_size(each.bytes_before), shown_size(each.bytes_after), most)
        table.add_row(str(each.partition), start, segments, sizes, step_summary(each.steps))
    return table


def _change(before: str, after: str, most: str = "") -> str:
    return before if before == after and not most else f"{before} -> {most}{after}"


def _table(*columns: str, left: int) -> Table:
    """A table whose last columns contain words. These columns are aligned to the left."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number >= len(columns) - left else "right", overflow="fold")
    return table
