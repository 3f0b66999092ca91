"""Compacts a topic: selects the partitions that are due, writes new files partition by partition (cleaner.cleaner), and
commits one version that names the new files (topic.clean.state_swap).

If a registered consumer (topic.readers.consumer_files) has not read a tombstone, the tombstone remains for up to
consumer.max.hold.ms after its delete horizon. The result names the consumers for which tombstones remain. The result
also names the consumers that had not read a removed tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    aborted_in_reach,
    clean_partition,
    last_batches,
)
from storage_engine.cleaner.selection import CompactionPlan, select
from storage_engine.clock import Clock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import LogError
from storage_engine.log.filenames import SegmentFolder, data_folder
from storage_engine.log.holds import NO_HOLDS, Holds
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_state import active_producers
from storage_engine.log.segment_reader import first_batch_timestamp
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.quantities import shown_moment, shown_number
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import ChangeNote, Removal, TopicState
from storage_engine.topic.clean.state_swap import (
    CleaningResult,
    Failure,
    do_in_turn,
    result_or_failure,
    swap,
    swapped_in,
)
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.readers.reader import segment_file

CompactionResult = CleaningResult[CleanedPartition]


def plan_compaction(
    storage: Storage,
    state: TopicState,
    number: int,
    config: TopicConfig,
    now_ms: int,
    holds: Holds,
    *,
    force: bool = False,
) -> CompactionPlan:
    """Decide what compaction would do to a partition now.

    Args:
        number: the partition.
        holds: the positions of the partition's registered consumers.
        force: also select a partition whose compaction is not due.
    """

    def first_timestamp(segment: Segment) -> int | None:
        return first_batch_timestamp(storage, segment_file(state.topic_id, number, segment))

    return select(
        state.partitions[number], config, now_ms, first_timestamp, force=force, hold_offset=holds.offset,
        max_hold_ms=config.consumer_max_hold_ms,
    )  # fmt: skip


def cleaning_tasks(
    storage: Storage,
    state: TopicState,
    config: TopicConfig,
    broker: BrokerConfig,
    now_ms: int,
    *,
    force: bool = False,
    at_once: int = 1,
    failures: list[Failure] | None = None,
) -> list[CleaningTask]:
    """A task for each partition whose compaction is due; no tasks if cleanup.policy does not contain `compact`.

    Args:
        force: also compact partitions that are not due.
        at_once: how many tasks will run at the same time. The tasks share log.cleaner.io.max.bytes.per.second.
        failures: receives the errors of partitions that could not be planned. If `failures` is None, the errors are
            raised.
    """
    if not config.compact or state.deleted:
        return []
    consumers = read_consumers(storage, state)
    plans: dict[int, CompactionPlan] = {}
    for number in range(len(state.partitions)):
        try:
            plans[number] = plan_compaction(
                storage, state, number, config, now_ms, consumers.holds(number), force=force
            )
        except LogError as error:
            if failures is None:
                raise
            failures.append(Failure(number, error))
    return [
        CleaningTask(
            state.topic, state.topic_id, number,
            SegmentFolder(data_folder(state.topic_id, number), state.version), plan, config,
            broker.log_cleaner_dedupe_buffer_bytes, now_ms,
            last_batches(active_producers(state.partitions[number].producers, now_ms, broker.producer_id_expiration_ms)),
            aborted_in_reach(state.partitions[number]), consumers.holds(number).offset, config.consumer_max_hold_ms,
            broker.log_cleaner_io_max_bytes_per_second / at_once,
        )
        for number, plan in plans.items()
        if plan.reason is not None
    ]  # fmt: skip


def run_cleaning_task(
    storage: Storage, task: CleaningTask, progress: Progress = NO_PROGRESS
) -> CleanedPartition | Failure:
    """Compact a partition into new files. An error is returned as a value, so that other partitions are still
    compacted."""
    return result_or_failure(task.partition, lambda: clean_partition(storage, task, progress))


def swap_cleaned(
    storage: Storage, chain: StateChain, outcomes: Sequence[CleanedPartition | Failure]
) -> CompactionResult:
    """Commit one version that names the compacted segments in place of the old segments.

    Raises:
        LogError: the version could not be put. The new files are not deleted, because a version may name them.
    """

    def cleaned(part: PartitionState, each: CleanedPartition) -> PartitionState:
        return swapped_in(part, each).model_copy(
            update={
                "first_dirty_offset": each.first_dirty_offset,
                "tombstones_end": max(part.tombstones_end, each.tombstones_end),
            }
        )

    consumers = read_consumers(storage, chain.newest())

    def behind(each: CleanedPartition) -> Holds:
        return consumers.holds(each.partition).behind(each.first_dirty_offset)

    def note(taken: Sequence[CleanedPartition]) -> ChangeNote:
        removed = tuple(_removal(each, behind(each) if each.took_unread_tombstones else NO_HOLDS) for each in taken)
        return ChangeNote(f"compaction of {len(taken)} partitions", removed)

    result = swap(storage, chain, outcomes, cleaned, note)
    warnings = [
        f"topic {result.state.topic}, partition {each.partition}: {warning}"
        for each in result.cleaned
        for warning in _warnings(each, behind(each))
    ]
    return replace(result, warnings=tuple(warnings))


def _removal(each: CleanedPartition, unread_by: Holds) -> Removal:
    causes = {
        "outdated": each.outdated,
        "tombstones": each.tombstones,
        "aborted": each.aborted,
        "without a key": each.keyless,
        "transaction markers": each.markers,
    }
    return Removal(
        partition=each.partition,
        by="compaction",
        from_offset=each.replaced[0].base_offset,
        to_offset=each.first_dirty_offset,
        segments=len(each.replaced) - len(each.segments),
        bytes=each.bytes_before - each.bytes_after,
        records={cause: count for cause, count in causes.items() if count},
        unread_by=tuple(unread_by.positions),
    )


def _warnings(each: CleanedPartition, behind: Holds) -> Iterator[str]:
    if each.held_batches and behind:
        yield (
            f"{behind} {behind.verb('prevent')} the deletion of tombstones whose delete horizon has passed"
            f" (batches: {shown_number(each.held_batches)}); the first batch is kept until"
            f" {shown_moment(each.held_until_ms)}"
        )
    if each.took_unread_tombstones and behind:
        yield f"after consumer.max.hold.ms, compaction removed tombstones that {behind.names} may not have read"


def compact_partitions(
    storage: Storage, chain: StateChain, tasks: Sequence[CleaningTask], progress: Progress = NO_PROGRESS
) -> CompactionResult:
    """Run compaction tasks in this process, one after another, and commit their results as one version."""
    return do_in_turn(storage, chain, tasks, run_cleaning_task, swap_cleaned, progress)


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
    failures: list[Failure] = []
    tasks = cleaning_tasks(storage, chain.newest(), config, broker, clock.now_ms(), force=force, failures=failures)
    done = compact_partitions(storage, chain, tasks, progress)
    return replace(done, failed=(*failures, *done.failed))
