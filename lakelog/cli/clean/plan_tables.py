"""Prints a plan as tables that people read: what is done to each segment and why, and why the other segments are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lakelog.cli.output import write_table
from lakelog.inspection.plan_texts import block_text, found_and_limit
from storage_engine.quantities import counted, shown_moment, shown_number, shown_size

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
