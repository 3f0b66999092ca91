"""`lakelog compact`: the compaction job's work without Spark, one partition after another.

A partition is compacted once if it is due, by min.cleanable.dirty.ratio and max.compaction.lag.ms; --force asks only
whether there is something to clean. One that cannot be is named, and the others are compacted all the same.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, open_topics, settle_view
from storage_engine.cli.output import write_line
from storage_engine.errors import ExitStatus
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_number, shown_size

if TYPE_CHECKING:
    from storage_engine.cleaner.cleaner import CleanedPartition

_LONG_MAX = 2**63 - 1


def compact(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be given several times.")
    ] = None,
    now: Annotated[
        int | None, typer.Option("--now", metavar="MS", min=0, max=_LONG_MAX, help="What time it is, else the clock's.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compact whatever can be, due or not.")] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Compact topics now, as the compaction job does, without Spark."""
    topics = open_topics(root, conf)
    names = list(dict.fromkeys(topic)) if topic else list(topics.names())
    states = [topics.state(name) for name in names]
    from storage_engine.clock import ManualClock
    from storage_engine.topic.cleaning import compact_topic

    clock = topics.clock if now is None else ManualClock(now)
    failed = False
    changed = []
    with display_on_stderr().work("compact") as progress:
        for state in states:
            chain = topics.chain(state.topic)
            done = compact_topic(
                topics.storage, chain, topics.config(state), topics.broker, clock, force=force, progress=progress
            )
            for each in done.cleaned:
                write_line(_told(state.topic, each))
            for outrun in done.outrun:
                write_line(f"topic {state.topic}, partition {outrun.partition}: changed meanwhile, nothing was done")
            for failure in done.failed:
                print(f"lakelog: topic {state.topic}, {failure}", file=sys.stderr)
            failed |= bool(done.failed)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _told(topic: str, cleaned: CleanedPartition) -> str:
    before, after = (counted(len(each), "segment") for each in (cleaned.replaced, cleaned.segments))
    return (
        f"topic {topic}, partition {cleaned.partition}: compacted up to offset {cleaned.first_dirty_offset},"
        f" {shown_number(cleaned.records_before)} records to {shown_number(cleaned.records_after)},"
        f" {shown_size(cleaned.bytes_before)} in {before} to {shown_size(cleaned.bytes_after)} in {after}"
    )
