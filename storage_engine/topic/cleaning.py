"""Compaction, merging and the deletion of dropped files, as changes to a topic's state.

    compaction   new files are written first (cleaner.cleaner); one version then names them in place of the old, on all
                 partitions for which the old are still all named; the work on the others is thrown away
    merging      the same with small neighbours (cleaner.merging), run by run
    deletion     the files of segments dropped file.delete.delay.ms ago go, then a version forgets them

A dropped segment stays in the state, and on storage, for readers that hold an older version. After a crash the log is
as before or as after a version, never between; files that were written and not named mean nothing, files that are
deleted twice do no harm. Nothing here takes a topic over: ingests go on, and who loses a race decides again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    aborted_in_reach,
    clean_partition,
    last_batches,
)
from storage_engine.cleaner.merging import MergeTask, merge_segments, plan_merges
from storage_engine.cleaner.replacement import Replacement, delete_segments
from storage_engine.cleaner.selection import CleaningPlan, select
from storage_engine.clock import Clock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import LogError
from storage_engine.log.filenames import SEGMENT_SUFFIXES, SegmentFolder, data_folder, data_key
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producer_state import active_producers
from storage_engine.log.segment_reader import first_batch_timestamp
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.reader import segment_file
from storage_engine.topic.state import DroppedFile, TopicState
from storage_engine.topic.state_chain import StateChain, drop_listing


@dataclass(frozen=True)
class Failure:
    """A partition that could not be compacted, or of which a run could not be merged, and why. Nothing was changed."""

    partition: int
    error: LogError

    def __str__(self) -> str:
        return f"partition {self.partition}: {self.error}"


_Made = TypeVar("_Made", bound=Replacement)


@dataclass(frozen=True)
class CleaningResult(Generic[_Made]):
    """What compaction or merging did to a topic.

    cleaned: swapped in. outrun: thrown away, because the partition had changed meanwhile. failed: by its own error.
    """

    state: TopicState
    cleaned: tuple[_Made, ...] = ()
    outrun: tuple[_Made, ...] = ()
    failed: tuple[Failure, ...] = ()


CompactionResult = CleaningResult[CleanedPartition]
MergeResult = CleaningResult[Replacement]


def _dropped(state: TopicState, partition: int, segment: Segment, now_ms: int) -> DroppedFile:
    return DroppedFile(state.topic_id, partition, segment.name, now_ms)


def plan_compaction(
    storage: Storage, state: TopicState, number: int, config: TopicConfig, now_ms: int, *, force: bool = False
) -> CleaningPlan:
    """What compaction would do to a partition now."""

    def first_timestamp(segment: Segment) -> int | None:
        return first_batch_timestamp(storage, segment_file(state.topic_id, number, segment))

    return select(state.partitions[number], config, now_ms, first_timestamp, force=force)


def cleaning_tasks(
    storage: Storage, state: TopicState, config: TopicConfig, broker: BrokerConfig, now_ms: int, *, force: bool = False
) -> list[CleaningTask]:
    """A task for each partition whose compaction is due; none where cleanup.policy has no compact."""
    if not config.compact or state.deleted:
        return []
    plans = [
        plan_compaction(storage, state, number, config, now_ms, force=force) for number in range(len(state.partitions))
    ]
    return [
        CleaningTask(
            state.topic, state.topic_id, number,
            SegmentFolder(data_folder(state.topic_id, number), state.version), plan, config,
            broker.log_cleaner_dedupe_buffer_bytes, now_ms,
            last_batches(active_producers(part.producers, now_ms, broker.producer_id_expiration_ms)),
            aborted_in_reach(part),
        )
        for number, (part, plan) in enumerate(zip(state.partitions, plans, strict=True))
        if plan.reason is not None
    ]  # fmt: skip


def merge_tasks(state: TopicState, config: TopicConfig) -> list[MergeTask]:
    """A task for each run of small neighbours that is worth merging."""
    if state.deleted:
        return []
    return [
        MergeTask(
            state.topic, state.topic_id, number, SegmentFolder(data_folder(state.topic_id, number), state.version), run,
            config.index_interval_bytes,
        )
        for number, part in enumerate(state.partitions)
        for run in plan_merges(part, config)
    ]  # fmt: skip


def run_cleaning_task(
    storage: Storage, task: CleaningTask, progress: Progress = NO_PROGRESS
) -> CleanedPartition | Failure:
    """Compact a partition into new files; its own errors become a value, so that they stop no other partition."""
    try:
        return clean_partition(storage, task, progress)
    except LogError as error:
        return Failure(task.partition, error)


def run_merge_task(storage: Storage, task: MergeTask, progress: Progress = NO_PROGRESS) -> Replacement | Failure:
    """Merge a run into a new file; its own errors become a value, so that they stop no other run."""
    try:
        return merge_segments(storage, task, progress)
    except LogError as error:
        return Failure(task.partition, error)


def swap_cleaned(
    storage: Storage, chain: StateChain, outcomes: Sequence[CleanedPartition | Failure]
) -> CompactionResult:
    """Name compacted segments in place of the old, as one version.

    Raises:
        LogError: the version could not be put. The new files stay: it is not known whether they are named.
    """

    def cleaned(part: PartitionState, each: CleanedPartition) -> PartitionState:
        return _swapped(part, each).model_copy(update={"first_dirty_offset": each.first_dirty_offset})

    count = sum(isinstance(outcome, CleanedPartition) for outcome in outcomes)
    return _swap(storage, chain, outcomes, cleaned, f"compaction of {count} partitions")


def swap_merged(storage: Storage, chain: StateChain, outcomes: Sequence[Replacement | Failure]) -> MergeResult:
    """Name merged segments in place of the old, as one version; raises as swap_cleaned."""
    count = sum(len(outcome.replaced) for outcome in outcomes if isinstance(outcome, Replacement))
    return _swap(storage, chain, outcomes, _swapped, f"merge of {count} segments")


def _swap(
    storage: Storage,
    chain: StateChain,
    outcomes: Sequence[_Made | Failure],
    swapped: Callable[[PartitionState, _Made], PartitionState],
    what: str,
) -> CleaningResult[_Made]:
    failed = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    done = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    taken: list[_Made] = []

    def change(state: TopicState) -> TopicState | None:
        taken.clear()
        changed: dict[int, PartitionState] = {}
        for each in done:
            planned_at = each.files.version
            assert planned_at is not None, "under a root every file is named after its plan"
            if not state.deleted and state.topic_id == each.topic_id and not state.bars(planned_at):
                part = changed.get(each.partition, state.partitions[each.partition])
                if _still_named(part, each):
                    changed[each.partition] = swapped(part, each)
                    taken.append(each)
        if not taken:
            return None
        now_ms = chain.clock.now_ms()
        dropped = tuple(_dropped(state, each.partition, old, now_ms) for each in taken for old in each.replaced)
        return state.with_partitions(changed).model_copy(update={"dropped": state.dropped + dropped})

    state = chain.commit(change, what)
    outrun = tuple(each for each in done if each not in taken)
    for each in outrun:
        delete_segments(storage, each.files, each.segments)
    return CleaningResult(state, tuple(taken), outrun, failed)


def _place_of(part: PartitionState, made: Replacement) -> int:
    """Where the replaced segments stand in a partition that has them."""
    return bisect_left(part.segments, made.replaced[0].base_offset, key=lambda segment: segment.base_offset)


def _still_named(part: PartitionState, made: Replacement) -> bool:
    """Whether all the replaced segments are there, as they were, one behind another."""
    first = _place_of(part, made)
    return part.segments[first : first + len(made.replaced)] == made.replaced


def _swapped(part: PartitionState, made: Replacement) -> PartitionState:
    first = _place_of(part, made)
    rest = part.segments[first + len(made.replaced) :]
    return drop_listing(part).model_copy(update={"segments": part.segments[:first] + made.segments + rest})


def compact_topic(
    storage: Storage,
    chain: StateChain,
    config: TopicConfig,
    broker: BrokerConfig,
    clock: Clock,
    *,
    force: bool = False,
    progress: Progress = NO_PROGRESS,
) -> CompactionResult:
    """Compact a topic in this process, one partition after another."""
    state = chain.newest()
    tasks = cleaning_tasks(storage, state, config, broker, clock.now_ms(), force=force)
    if not tasks:
        return CompactionResult(state)
    progress.expect(size=sum(task.bytes_to_read for task in tasks))
    return swap_cleaned(storage, chain, [run_cleaning_task(storage, task, progress) for task in tasks])


def merge_topic(
    storage: Storage, chain: StateChain, config: TopicConfig, progress: Progress = NO_PROGRESS
) -> MergeResult:
    """Merge small neighbours of a topic in this process, one run after another."""
    state = chain.newest()
    tasks = merge_tasks(state, config)
    if not tasks:
        return MergeResult(state)
    progress.expect(size=sum(task.bytes_to_read for task in tasks))
    return swap_merged(storage, chain, [run_merge_task(storage, task, progress) for task in tasks])


def delete_dropped(storage: Storage, chain: StateChain, config: TopicConfig, now_ms: int) -> tuple[DroppedFile, ...]:
    """Delete the files of segments that were dropped file.delete.delay.ms ago, of a deleted topic as well.

    The files go before the version that forgets them: a crash between the two deletes them once more.

    Returns:
        What went.
    """
    due = tuple(each for each in chain.newest().dropped if now_ms - each.dropped_ms >= config.file_delete_delay_ms)
    if not due:
        return ()
    for each in due:
        for suffix in SEGMENT_SUFFIXES:
            storage.delete(data_key(each.topic_id, each.partition, each.name, suffix))
    gone = set(due)

    def change(state: TopicState) -> TopicState | None:
        left = tuple(each for each in state.dropped if each not in gone)
        return state.model_copy(update={"dropped": left}) if len(left) < len(state.dropped) else None

    chain.commit(change, f"deleted the files of {len(due)} dropped segments")
    return due
