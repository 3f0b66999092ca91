"""Defines the common parts of all publishers: the protocol Publisher, and functions that read and stamp staged
batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from storage_engine.config import TopicConfig
from storage_engine.errors import CorruptionError, StorageError, StorageUnavailableError
from storage_engine.phases import Phases, added_up
from storage_engine.record.batch import Int64Array, scan_batches
from storage_engine.record.crc import check_crcs
from storage_engine.record.stamping import stamped_starts
from storage_engine.storage import Storage
from storage_engine.topic.append.append_plan import AppendPlan, BatchSlice, OpenSegment, PartitionAppend
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.dropped_files import delete_segment

_T = TypeVar("_T")
COPY = "publish"
"""The phase in which staged bytes are copied, by this process or by a Spark job."""

THREADS = 16
"""Threads mostly wait for the storage. A disk syncs many files together in about the time that one file takes."""
_CHUNK_BYTES = 1024**2
"""The size of one read. It is small enough that the bytes are still in the processor's cache when they are written."""


class Publisher(Protocol):
    """Publishes plans. Only one thread may use it. After each publish without an error, the caller calls keep or
    abandon.
    """

    def prepare(self, state: TopicState, config: TopicConfig, partitions: Iterable[int]) -> None:
        """Begin to read what the next publish needs to continue the active segments of these partitions. Does not wait
        for the storage.
        """

    def open_segments(self) -> Mapping[int, OpenSegment]:
        """The segments, by partition, to which the next publish can append. Waits for the reads that have begun."""

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        """Write the batches and index entries of the plan. Every .log is durable on return.

        Returns:
            The plan with the final names of new segments.

        Raises:
            StorageError: the caller must not commit any part of the plan. New files were deleted, or remain without a
                version that names them.
        """

    def keep(self, plan: AppendPlan) -> None:
        """The caller calls this after the commit of a published plan."""

    def abandon(self, plan: AppendPlan) -> None:
        """The caller calls this if a published plan was not committed. The publisher never writes to the files of the
        plan again.
        """

    def close(self) -> None:
        """Close all files permanently."""


class StagedReads(Protocol):
    """Reads staged files. Every Storage has this method."""

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes: ...


def run_together(threads: ThreadPoolExecutor, calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Do the calls in parallel; returns their results in order. When the function returns or raises, all calls that have
    begun have ended, and no other call begins: the caller closes or deletes the files that they write.

    Raises:
        StorageUnavailableError: no thread can be started.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    given_up = threading.Event()

    def do(call: Callable[[], _T]) -> _T:
        if given_up.is_set():
            raise CancelledError
        return call()

    futures: list[Future[_T]] = []
    try:
        for call in calls:
            try:
                futures.append(threads.submit(do, call))
            except RuntimeError as error:  # the call is possibly in the queue of the threads nevertheless
                raise StorageUnavailableError(
                    "this process",
                    f"cannot start a thread: {error}",
                    "Raise the limit of threads of the user or container.",
                ) from None
        wait(futures)
    except BaseException:
        given_up.set()
        wait(futures)
        raise
    return [future.result() for future in futures]


def each_partition(
    threads: ThreadPoolExecutor,
    plan: AppendPlan,
    phases: Phases,
    publish: Callable[[AppendPlan, PartitionAppend, Phases], PartitionAppend],
) -> tuple[PartitionAppend, ...]:
    """Publish all partitions in parallel. When the function returns or raises, all threads have finished."""
    each = [Phases() for _ in plan.partitions]
    taken: dict[str, float] = {}
    with phases.together(taken, COPY):
        parts = zip(plan.partitions, each, strict=True)
        results = run_together(threads, [partial(publish, plan, part, own) for part, own in parts])
        taken.update(added_up(own.seconds for own in each))
    return tuple(results)


def stamped(staged: StagedReads, batch_slice: BatchSlice, leader_epoch: int) -> Iterator[list[bytes | memoryview]]:
    """The batches of a slice with their base offsets and leader epoch, in chunks. The parts of a chunk are written in
    one call.

    Raises:
        CorruptionError: a staged batch has changed. Staged files need not survive a power cut of the host that wrote
            them.
    """
    starts = stamped_starts(batch_slice.sizes, batch_slice.base_offsets, leader_epoch)
    ends = np.cumsum(batch_slice.sizes)
    first = 0
    while first < len(ends):
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + _CHUNK_BYTES, side="right")))
        length = int(ends[stop - 1]) - done
        if batch_slice.data is None:
            found = staged.read(batch_slice.key, batch_slice.source + done, length)
        else:
            found = batch_slice.data[done : done + length]
        _check_staged(found, batch_slice.sizes[first:stop], batch_slice.key, batch_slice.source + done)
        view = memoryview(found)
        parts: list[bytes | memoryview] = []
        for start, end, size in zip(starts[first:stop], ends[first:stop], batch_slice.sizes[first:stop], strict=True):
            stamp = start.tobytes()
            parts += [stamp, view[end - done - size + len(stamp) : end - done]]
        yield parts
        first = stop


def _check_staged(staged: bytes, sizes: Int64Array, key: str, position: int) -> None:
    data = np.frombuffer(staged, np.uint8)
    try:
        table = scan_batches(data, key, position)
        if not np.array_equal(table.sizes, sizes):
            raise CorruptionError(key, position, f"{sizes.sum()} staged bytes", f"{table.sizes.sum()}")
        check_crcs(data, table, key, position)
    except CorruptionError as error:
        raise error.with_remedy("Nothing was committed. Run the job again.") from error


def delete_new(storage: Storage, stems: Iterable[str]) -> None:
    """Delete the new segments of a failed publish, because the storage may be full. No commit has tried to name these
    segments.

    After the first error, the remaining files are not deleted: the storage may be unavailable, and no reader uses the
    files.
    """
    with suppress(StorageError):
        for stem in stems:
            delete_segment(storage, stem)
