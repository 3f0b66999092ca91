"""`lakelog merge`: the merging of small segments that the maintenance job does, without Spark, one run after another.

Neighbours become one segment where that is worth the copying and nothing gets coarser by it than the topic's settings
allow (storage_engine.cleaner.merging). A damaged run is named, and the others are merged all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, TopicsOption, open_topics, readable_states, settle_view
from storage_engine.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, LogError
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_size

if TYPE_CHECKING:
    from storage_engine.topic.merging import MergeResult
    from storage_engine.topic.topics import Topics


def merge(
    topic: TopicsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be merged, as `lakelog plan` does.")
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Merge small neighbouring segments now, as the maintenance job does, without Spark."""
    topics = open_topics(root, conf)
    failed = _plan(topics, topic) if dry_run else _merge(topics, topic)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _plan(topics: Topics, named: list[str] | None) -> bool:
    """Whether a topic could not be planned for."""
    from storage_engine.cli.making_plans import make_plan
    from storage_engine.cli.plan_tables import show_plan
    from storage_engine.topic.plans import Work

    planned, failed = make_plan(topics, named, None, {Work.MERGING})
    show_plan(planned)
    return failed


def _merge(topics: Topics, named: list[str] | None) -> bool:
    """Whether something could not be merged."""
    states, failed = readable_states(topics, named)
    from storage_engine.topic.merging import merge_topic

    changed = []
    with display_on_stderr().work("merge") as progress:
        for state in states:
            try:
                done = merge_topic(
                    topics.storage, topics.chain(state.topic), topics.config(state), progress,
                    topics.broker.log_cleaner_io_max_bytes_per_second,
                )  # fmt: skip
            except LogError as error:
                write_error(error)
                failed = True
                continue
            failed |= tell_merging(state.topic, done)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    return failed


def tell_merging(topic: str, done: MergeResult) -> bool:
    """Print what was done to a topic's runs; whether one could not be merged."""
    for each in done.cleaned:
        write_line(
            f"topic {topic}, partition {each.partition}: {counted(len(each.replaced), 'segment')} from offset"
            f" {each.replaced[0].base_offset} on merged, {shown_size(each.bytes_after)}"
        )
    for outrun in done.outrun:
        write_line(f"topic {topic}, partition {outrun.partition}: changed meanwhile, nothing was done")
    for failure in done.failed:
        write_error(f"topic {topic}, {failure}")
    return bool(done.failed)
