"""`lakelog merge`: the merging of small segments that the maintenance job does, without Spark, one run after another.

Neighbours become one segment where that is worth the copying and nothing gets coarser by it than the topic's settings
allow (storage_engine.cleaner.merging). A damaged run is named, and the others are merged all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.cleaning import clean_each, only_plan, tell_merging
from storage_engine.cli.options import ConfOption, RootOption, TopicsOption, open_topics
from storage_engine.errors import ExitStatus

if TYPE_CHECKING:
    from storage_engine.progress import Meter
    from storage_engine.topic.merging import MergeResult
    from storage_engine.topic.state import TopicState
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
    from storage_engine.topic.plans import Work

    return only_plan(topics, named, None, {Work.MERGING})


def _merge(topics: Topics, named: list[str] | None) -> bool:
    """Whether something could not be merged."""
    from storage_engine.topic.merging import merge_topic

    def clean(state: TopicState, progress: Meter) -> MergeResult:
        chain, config = topics.chain(state.topic), topics.config(state)
        bytes_per_second = topics.broker.log_cleaner_io_max_bytes_per_second
        return merge_topic(topics.storage, chain, config, progress, bytes_per_second)

    return clean_each(topics, named, "merge", clean, tell_merging)
