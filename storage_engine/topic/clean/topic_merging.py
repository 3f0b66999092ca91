"""Merges small neighbouring segments of a topic into new files (cleaner.segment_merging), and commits one version
that names the new files (topic.clean.state_swap).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from storage_engine.cleaner.replacement import Replacement
from storage_engine.cleaner.segment_merging import MergeTask, merge_segments, plan_merges
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder, data_folder
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import ChangeNote, TopicState
from storage_engine.topic.clean.state_swap import (
    CleaningResult,
    Failure,
    do_in_turn,
    result_or_failure,
    swap,
    swapped_in,
)

MergeResult = CleaningResult[Replacement]


def merge_tasks(state: TopicState, config: TopicConfig, bytes_per_second: float = inf) -> list[MergeTask]:
    """A task for each run of small neighbouring segments that the rules of cleaner.segment_merging select.

    Args:
        bytes_per_second: the limit of each task for reading and writing. It is the task's share of
            log.cleaner.io.max.bytes.per.second.
    """
    if state.deleted:
        return []
    return [
        MergeTask(
            state.topic, state.topic_id, number, SegmentFolder(data_folder(state.topic_id, number), state.version), run,
            config.index_interval_bytes, bytes_per_second,
        )
        for number, part in enumerate(state.partitions)
        for run in plan_merges(part, config)
    ]  # fmt: skip


def run_merge_task(storage: Storage, task: MergeTask, progress: Progress = NO_PROGRESS) -> Replacement | Failure:
    """Merge a run of segments into a new file. An error is returned as a value, so that other runs are still merged."""
    return result_or_failure(task.partition, lambda: merge_segments(storage, task, progress))


def swap_merged(storage: Storage, chain: StateChain, outcomes: Sequence[Replacement | Failure]) -> MergeResult:
    """Commit one version that names the merged segments in place of the old segments. Errors are those of
    topic.clean.topic_compaction.swap_cleaned."""

    def note(merged: Sequence[Replacement]) -> ChangeNote:
        return ChangeNote(f"merge of {sum(len(each.replaced) for each in merged)} segments")

    return swap(storage, chain, outcomes, swapped_in, note)


def merge_runs(
    storage: Storage, chain: StateChain, tasks: Sequence[MergeTask], progress: Progress = NO_PROGRESS
) -> MergeResult:
    """Run merge tasks in this process, one after another, and commit their results as one version."""
    return do_in_turn(storage, chain, tasks, run_merge_task, swap_merged, progress)


def merge_topic(
    storage: Storage,
    chain: StateChain,
    config: TopicConfig,
    progress: Progress = NO_PROGRESS,
    bytes_per_second: float = inf,
) -> MergeResult:
    """Merge the small neighbouring segments of a topic in this process, one run after another."""
    return merge_runs(storage, chain, merge_tasks(chain.newest(), config, bytes_per_second), progress)
