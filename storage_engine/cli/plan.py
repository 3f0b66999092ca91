"""`lakelog plan`: what retention, compaction and merging would do to each segment, by which rule, and what keeps the rest.

Nothing is changed and no segment is opened, but those of topics whose state is from before it knew first timestamps. As
table, or as the document itself, which --save puts into a file. --apply carries a saved plan out as it is, without Spark,
or refuses it where the log has moved on (storage_engine.topic.applying_plans).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.cleaning import tell_compaction, tell_merging
from storage_engine.cli.making_plans import make_plan, read_plan, save_plan
from storage_engine.cli.options import (
    ConfOption,
    NowOption,
    RootOption,
    TopicsOption,
    open_topics,
    settle_view,
)
from storage_engine.cli.output import write, write_error, write_line
from storage_engine.cli.plan_tables import show_plan
from storage_engine.errors import ExitStatus, LogError, UsageError
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_size

if TYPE_CHECKING:
    from storage_engine.topic.retention import RetentionResult
    from storage_engine.topic.topics import Topics


class Format(StrEnum):
    """How a plan is printed."""

    TABLE = "table"
    JSON = "json"


def plan(
    topic: TopicsOption = None,
    now: NowOption = None,
    force: Annotated[bool, typer.Option("--force", help="Plan to compact whatever can be, due or not.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="table: for people. json: the document that --save writes.")
    ] = Format.TABLE,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Keep the plan in a file, too.")] = None,
    apply: Annotated[
        Path | None, typer.Option("--apply", metavar="FILE", help="Carry a saved plan out, or refuse it whole.")
    ] = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Tell what would be deleted, compacted and merged, and why; nothing is changed but by --apply."""
    if apply is not None:
        if topic or now is not None or force or save is not None:
            raise UsageError("--apply", "is given with --topic, --now, --force or --save", "The plan says all of that.")
        if _apply(open_topics(root, conf), apply):
            raise typer.Exit(ExitStatus.PARTIAL)
        return
    topics = open_topics(root, conf)
    from storage_engine.topic.plans import ALL_WORK, encode_plan

    planned, failed = make_plan(topics, topic, now, ALL_WORK, force=force)
    if save is not None:
        save_plan(save, planned)
    if form is Format.JSON:
        write(encode_plan(planned))
    else:
        show_plan(planned)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _apply(topics: Topics, file: Path) -> bool:
    """Whether something of it could not be done."""
    from storage_engine.topic.applying_plans import (
        check_current,
        cleaning_tasks_of,
        merge_tasks_of,
        retain_as_planned,
    )
    from storage_engine.topic.compaction import compact_partitions
    from storage_engine.topic.merging import merge_runs
    from storage_engine.topic.plans import Action

    planned = read_plan(file)
    check_current(planned, topics)
    failed = False
    with display_on_stderr().work("apply") as progress:
        for each in planned.topics:
            chain = topics.chain(each.topic)
            before = chain.newest()
            try:
                if any(step.action is Action.DELETE for part in each.partitions for step in part.steps):
                    _tell_retention(retain_as_planned(chain, topics.broker, each))
                cleaning = cleaning_tasks_of(each, topics, chain.newest())
                compacted = compact_partitions(topics.storage, chain, cleaning, progress)
                failed |= tell_compaction(each.topic, compacted) | bool(compacted.outrun)
                merging = merge_tasks_of(each, topics, chain.newest())
                merged = merge_runs(topics.storage, chain, merging, progress)
                failed |= tell_merging(each.topic, merged) | bool(merged.outrun)
            except LogError as error:
                write_error(error)
                failed = True
            if chain.newest().version > before.version:
                settle_view(topics, each.topic)
    return failed


def _tell_retention(done: RetentionResult) -> None:
    for number, each in enumerate(done.plans):
        if each.deletions:
            write_line(
                f"topic {done.state.topic}, partition {number}: {counted(len(each.deletions), 'segment')} deleted,"
                f" {shown_size(each.bytes)}; begins at offset {each.log_start_offset} now"
            )
    for warning in done.warnings:
        write_error(warning)
