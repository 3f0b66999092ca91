"""Computes the range of an open log that a compaction would clean, and selects the log that is cleaned next
(LogCleanerManager)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from storage_engine.cleaner.cleaner import CleaningTask, aborted_in_reach, last_batches
from storage_engine.cleaner.replacement import file_of
from storage_engine.cleaner.selection import CompactionPlan, select
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.log.segment_reader import first_batch_timestamp
from storage_engine.storage import Storage

Log = TypeVar("Log")


def select_in_place(
    storage: Storage, state: PartitionState, config: TopicConfig, folder: str, now_ms: int, *, force: bool = False
) -> CompactionPlan:
    """What compaction would clean now in a partition's folder, and whether this is due. Arguments as in `select`."""
    files = SegmentFolder(f"{folder}/", None)
    return select(
        state, config, now_ms, lambda segment: first_batch_timestamp(storage, file_of(files, segment)), force=force
    )


def due_task(
    storage: Storage,
    state: PartitionState,
    writers: Iterable[ProducerEntry],
    config: TopicConfig,
    folder: str,
    now_ms: int,
    *,
    force: bool,
    memory_bytes: int,
    bytes_per_second: float,
) -> CleaningTask | None:
    """The compaction of a partition's folder; None if no compaction is due. Arguments as in PartitionLog.compact.

    Args:
        writers: the producers at the log's end. The last batch of each of them is kept. Their transactions are in `state`,
            which has the producers at the high watermark.
    """
    plan = select_in_place(storage, state, config, folder, now_ms, force=force)
    if plan.reason is None:
        return None
    return CleaningTask(
        folder, "", 0, SegmentFolder(f"{folder}/", None), plan, config, memory_bytes, now_ms,
        last_batches(writers), aborted_in_reach(state), bytes_per_second=bytes_per_second,
    )  # fmt: skip


def filthiest(plans: Mapping[Log, CompactionPlan]) -> Log | None:
    """The log with the largest dirty ratio of those whose compaction is due; None if none is due. The function is pure."""
    due = [log for log, plan in plans.items() if plan.reason is not None]
    return max(due, key=lambda log: plans[log].dirty_ratio, default=None)
