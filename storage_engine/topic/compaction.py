"""Compaction of a topic: what is due, done partition by partition into new files (cleaner.cleaner), and one version that
names them (topic.swapping).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    aborted_in_reach,
    clean_partition,
    last_batches,
)
from storage_engine.cleaner.selection import CleaningPlan, select
from storage_engine.clock import Clock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import LogError
from storage_engine.log.filenames import SegmentFolder, data_folder
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producer_state import active_producers
from storage_engine.log.segment_reader import first_batch_timestamp
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.storage import Storage
from storage_engine.topic.reader import segment_file
from storage_engine.topic.state import TopicState
from storage_engine.topic.state_chain import StateChain
from storage_engine.topic.swapping import CleaningResult, Failure, swap, swapped_in

CompactionResult = CleaningResult[CleanedPartition]


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


def run_cleaning_task(
    storage: Storage, task: CleaningTask, progress: Progress = NO_PROGRESS
) -> CleanedPartition | Failure:
    """Compact a partition into new files; its own errors become a value, so that they stop no other partition."""
    try:
        return clean_partition(storage, task, progress)
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
        return swapped_in(part, each).model_copy(update={"first_dirty_offset": each.first_dirty_offset})

    count = sum(isinstance(outcome, CleanedPartition) for outcome in outcomes)
    return swap(storage, chain, outcomes, cleaned, f"compaction of {count} partitions")


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
