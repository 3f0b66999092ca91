"""`lakelog merge`: merges small segments as the maintenance job does, but without Spark, one group after another.

A group of neighbouring segments becomes one segment if the merge is worth the cost of copying. The topic's settings
must also allow a segment of this size and time span (storage_engine.cleaner.segment_merging). If a segment of a group
is damaged, the error is printed, and the other groups are still merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.clean.cleaning_commands import clean_each, only_plan, print_merging
from lakelog.cli.options import ConfOption, RootOption, TopicsOption, open_topics
from storage_engine.errors import ExitStatus

if TYPE_CHECKING:
    from storage_engine.progress import Meter
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.clean.topic_merging import MergeResult
    from storage_engine.topic.topics import Topics


def merge(
    topic: TopicsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be merged, as `lakelog plan` does.")
    ] = False,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Merge small neighbouring segments now, as the maintenance job does, but without Spark."""
    topics = open_topics(root, conf)
    failed = _plan(topics, topic) if dry_run else _merge(topics, topic)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _plan(topics: Topics, named: list[str] | None) -> bool:
    """Returns whether the plan of a topic could not be made."""
    from storage_engine.topic.clean.cleaning_plan import Work

    return only_plan(topics, named, None, {Work.MERGING})


def _merge(topics: Topics, named: list[str] | None) -> bool:
    """Returns whether something could not be merged."""
    from storage_engine.topic.clean.topic_merging import merge_topic

    def clean(state: TopicState, progress: Meter) -> MergeResult:
        chain, config = topics.chain(state.topic), topics.config(state)
        bytes_per_second = topics.broker.log_cleaner_io_max_bytes_per_second
        return merge_topic(topics.storage, chain, config, progress, bytes_per_second)

    return clean_each(topics, named, "merge", clean, print_merging)
