"""Cleans one topic after another for the cleaning commands, and prints each result. An error in one topic does not stop
the work on the other topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from lakelog.cli.clean.plan_files import make_plan
from lakelog.cli.clean.plan_tables import show_plan
from lakelog.cli.options import readable_states, settle_view
from lakelog.cli.output import write_error, write_line
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import LogError
from storage_engine.quantities import counted, shown_number, shown_size

if TYPE_CHECKING:
    from storage_engine.cleaner.cleaner import CleanedPartition
    from storage_engine.progress import Meter
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.clean.cleaning_plan import Work
    from storage_engine.topic.clean.topic_compaction import CompactionResult
    from storage_engine.topic.clean.topic_merging import MergeResult
    from storage_engine.topic.clean.topic_retention import RetentionResult
    from storage_engine.topic.topics import Topics

    Done = TypeVar("Done", CompactionResult, MergeResult)


def clean_each(
    topics: Topics,
    named: list[str] | None,
    work: str,
    clean: Callable[[TopicState, Meter], Done],
    print_result: Callable[[str, Done], bool],
) -> bool:
    """Clean the topics of TopicsOption, and update log/ for the topics that have changed.

    Args:
        named: the topics; None for all.
        work: the name of the work, for the progress display.
        clean: cleans one topic.
        print_result: prints the result for a topic, and returns whether something could not be done.

    Returns:
        Whether something could not be done.
    """
    states, failed = readable_states(topics, named)
    changed = []
    idle = 0
    with display_on_stderr().work(work) as progress:
        for state in states:
            try:
                done = clean(state, progress)
            except LogError as error:
                write_error(error)
                failed = True
                continue
            failed |= print_result(state.topic, done)
            idle += not (done.cleaned or done.changed_meanwhile or done.failed)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    if idle == len(states):
        write_line(f"{work}: there is nothing to {work} in {counted(len(states), 'topic')}")
    return failed


def only_plan(
    topics: Topics, named: list[str] | None, now: int | None, work: Collection[Work], *, force: bool = False
) -> bool:
    """Print the plan of each topic. Returns whether the plan of a topic could not be made."""
    planned, failed = make_plan(topics, named, now, work, force=force)
    show_plan(planned)
    return failed


def print_compaction(topic: str, done: CompactionResult) -> bool:
    """Print the result for a topic's partitions. Returns whether a partition could not be compacted."""
    for each in done.cleaned:
        write_line(compaction_line(f"topic {topic}, partition {each.partition}", each))
    for warning in done.warnings:
        write_error(warning)
    return _print_not_done(topic, done)


def compaction_line(place: str, cleaned: CleanedPartition) -> str:
    """The result of compacting a partition, as a line of text."""
    before, after = (counted(len(each), "segment") for each in (cleaned.replaced, cleaned.segments))
    return (
        f"{place}: compacted up to offset {cleaned.first_dirty_offset},"
        f" {shown_number(cleaned.records_before)} records to {shown_number(cleaned.records_after)},"
        f" {shown_size(cleaned.bytes_before)} in {before} to {shown_size(cleaned.bytes_after)} in {after}"
    )


def print_merging(topic: str, done: MergeResult) -> bool:
    """Print the result for a topic's runs of segments. Returns whether a run could not be merged."""
    for each in done.cleaned:
        write_line(
            f"topic {topic}, partition {each.partition}: merged {counted(len(each.replaced), 'segment')}, beginning at"
            f" offset {each.replaced[0].base_offset}, into one segment of {shown_size(each.bytes_after)}"
        )
    return _print_not_done(topic, done)


def print_retention(done: RetentionResult) -> None:
    """Print what retention has deleted from a topic's partitions, and its warnings."""
    for number, each in enumerate(done.plans):
        if each.deletions:
            write_line(
                f"topic {done.state.topic}, partition {number}: {counted(len(each.deletions), 'segment')} deleted,"
                f" {shown_size(each.bytes)}; the partition now begins at offset {each.log_start_offset}"
            )
    for warning in done.warnings:
        write_error(warning)


def _print_not_done(topic: str, done: CompactionResult | MergeResult) -> bool:
    for changed_meanwhile in done.changed_meanwhile:
        write_line(
            f"topic {topic}, partition {changed_meanwhile.partition}: changed during the work, so nothing was done"
        )
    for failure in done.failed:
        write_error(f"topic {topic}, {failure}")
    return bool(done.failed)
