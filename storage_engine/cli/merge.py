"""`lakelog merge`: the merging of small segments that the maintenance job does, without Spark, one run after another.

Neighbours become one segment where that is worth the copying and nothing gets coarser by it than the topic's settings
allow (storage_engine.cleaner.merging). A damaged run is named, and the others are merged all the same.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import ConfOption, RootOption, TopicsOption, chosen_topics, open_topics, settle_view
from storage_engine.cli.output import write_line
from storage_engine.errors import ExitStatus
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_size

if TYPE_CHECKING:
    from storage_engine.topic.merging import MergeResult


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
    if dry_run:
        from storage_engine.cli.plan import show_plan
        from storage_engine.topic.plans import Work, plan_topics

        show_plan(plan_topics(topics, chosen_topics(topics, topic), topics.clock.now_ms(), {Work.MERGING}))
        return
    states = [topics.state(name) for name in chosen_topics(topics, topic)]
    from storage_engine.topic.merging import merge_topic

    failed = False
    changed = []
    with display_on_stderr().work("merge") as progress:
        for state in states:
            done = merge_topic(
                topics.storage, topics.chain(state.topic), topics.config(state), progress,
                topics.broker.log_cleaner_io_max_bytes_per_second,
            )  # fmt: skip
            failed |= tell_merging(state.topic, done)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


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
        print(f"lakelog: topic {topic}, {failure}", file=sys.stderr)
    return bool(done.failed)
