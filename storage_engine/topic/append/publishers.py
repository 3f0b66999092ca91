"""Copies the bytes of a planned append into the files of a topic.

A publisher executes an append plan. The publisher copies the staged runs in order, checks each batch against its CRC,
writes the base offset and the leader epoch into each batch, and writes the index entries. When `publish` returns, each
.log that was written is durable. Readers see the new bytes only after a commit names them. There are three publishers:

AppendingPublisher   Used if files of the storage can grow. Threads of this process append to .log files, which remain
                     open for the next publish. A .log is written only through the descriptor that created it. If there
                     are more of these files than the process is allowed to keep open, the publisher closes some of them
                     permanently, as soon as they are durable. The next publish begins a new segment in the partitions
                     of the closed files.
NewFilesPublisher    Used if files cannot grow. Threads of this process write only new files.
pipeline.ingest.spark_publisher
                     Used if one process is too slow. The tasks of a Spark job write only new files.

No file name is used twice, and no position of a file is ever written with two different values. When a thread or task
writes a new file, it makes the file's name from the base offset, the version of the plan, and a random token of the
attempt. So an attempt that fails, is repeated, or runs at the same time as another attempt can only leave files that no
version names. Index files are not synced, and not left open: they can be rebuilt, and readers check them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from storage_engine.errors import CorruptionError, NotFoundError, StorageError
from storage_engine.log.filenames import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    data_folder,
    data_key,
    new_segment_name,
)
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.phases import FSYNC, Phases, added_up
from storage_engine.record.batch import Int64Array, scan_batches
from storage_engine.record.crc import check_crcs
from storage_engine.record.stamping import stamped_starts
from storage_engine.storage import GrowingFiles, Storage
from storage_engine.storage.open_files import OpenFileShare, threads_that_write
from storage_engine.topic.append.append_plan import AppendPlan, BatchSlice, OpenSegment, PartitionAppend, SegmentAppend

COPY = "publish"
"""The phase in which staged bytes are copied, by this process or by a Spark job."""

_CHUNK_BYTES = 1024**2
"""The size of one read. It is small enough that the bytes are still in the processor's cache when they are written."""
_THREADS = 16
"""Threads mostly wait for the disk. A disk syncs many files together in about the time that one file takes."""


class Publisher(Protocol):
    """Publishes plans. Only one thread may use it. After each publish without an error, the caller calls keep or
    abandon.
    """

    def open_segments(self) -> Mapping[int, OpenSegment]:
        """The segments, by partition, to which the next publish can append."""

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        """Write the batches and index entries of the plan. Every .log is durable on return.

        Returns:
            The plan with the final names of new segments.

        Raises:
            StorageError: no part of the plan may be committed. New files were deleted, or remain without a version that
                names them.
        """

    def keep(self, plan: AppendPlan) -> None:
        """The caller calls this after the commit of a published plan."""

    def abandon(self, plan: AppendPlan) -> None:
        """The caller calls this if a published plan was not committed. The publisher never writes to the files of the
        plan again.
        """

    def close(self) -> None:
        """Close all files permanently."""


def publisher_for(storage: Storage) -> Publisher:
    """The publisher for one process on this storage."""
    return AppendingPublisher(storage, storage.growing) if storage.growing is not None else NewFilesPublisher(storage)


class AppendingPublisher:
    """Appends to .log files that this process created.

    The operating system limits the number of open files (storage.open_files). If a publish has more partitions than the
    limit allows, it continues the files that are open. For each of the other partitions, it creates, writes, syncs and
    closes a file. The files of the newest publish have priority to remain open, then the most recently used files of
    older publishes.
    """

    def __init__(self, storage: Storage, growing: GrowingFiles) -> None:
        self._storage = storage
        self._growing = growing
        self._open: dict[int, _OpenLog] = {}  # least recently used first
        self._share = OpenFileShare()
        self._threads = ThreadPoolExecutor(threads_that_write(_THREADS))

    def open_segments(self) -> Mapping[int, OpenSegment]:
        return {partition: log.segment for partition, log in self._open.items()}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        try:
            self._close_idle(plan)
            _each_partition(self._threads, plan, phases, self._publish_partition)
        except BaseException:
            self.abandon(plan)
            for part in plan.partitions:
                _delete_new(self._storage, plan.topic_id, part)
            raise
        return plan

    def _close_idle(self, plan: AppendPlan) -> None:
        """Close as many files of partitions outside the plan as the plan's partitions need to stay within the limit."""
        used = {part.partition for part in plan.partitions}
        idle = [partition for partition in self._open if partition not in used]
        wanted = len(used) + len(idle)
        for partition in idle[: max(0, wanted - self._share.want(wanted))]:
            self._close(partition)

    def _publish_partition(self, plan: AppendPlan, part: PartitionAppend, phases: Phases) -> PartitionAppend:
        with phases.phase(COPY):
            for append in part.appends:
                if append.is_new:
                    log = _OpenLog(self._growing, plan.topic_id, part.partition, append.name, append.before)
                    previous = self._open.get(part.partition)
                    self._open[part.partition] = log
                    if previous is not None:
                        log.has_place = previous.has_place
                        previous.file.close()
                log = self._open[part.partition]
                for batch_slice in append.slices:
                    log.copy(self._storage, batch_slice, plan.leader_epoch)
                log.write_indexes(self._storage, self._growing, append)
                if append.slices:
                    with phases.phase(FSYNC):
                        log.file.sync()
            log = self._open[part.partition]
            if log.has_place:
                log.has_place = self._share.may_keep()
            else:
                log.has_place = self._share.take()
            if not log.has_place:
                self._close(part.partition)
        return part

    def keep(self, plan: AppendPlan) -> None:
        for part in plan.partitions:
            log = self._open.pop(part.partition, None)
            if log is not None:
                log.segment = OpenSegment(part.appends[-1].name, part.appends[-1].after)
                self._open[part.partition] = log

    def abandon(self, plan: AppendPlan) -> None:
        for part in plan.partitions:
            self._close(part.partition)

    def close(self) -> None:
        for partition in list(self._open):
            self._close(partition)
        self._share.close()
        self._threads.shutdown()

    def _close(self, partition: int) -> None:
        """Close a partition's file, if one is open. This file is never opened for writing again."""
        log = self._open.pop(partition, None)
        if log is not None:
            try:
                log.file.close()
            finally:
                if log.has_place:
                    self._share.give_back()


class _OpenLog:
    """An active segment that this process created. Its .log is open; its index files are closed.

    has_place: whether the .log may remain open after the publish.
    """

    def __init__(self, files: GrowingFiles, topic_id: str, partition: int, name: str, growing: GrowingSegment) -> None:
        self.segment = OpenSegment(name, growing)
        self.has_place = False
        self._stem = data_key(topic_id, partition, name, "")
        self.file = files.create(self._stem + LOG)

    def copy(self, storage: Storage, batch_slice: BatchSlice, leader_epoch: int) -> None:
        """Copy staged batches to their position in the .log."""
        position = batch_slice.position
        for parts in _stamped(storage, batch_slice, leader_epoch):
            self.file.write_at(position, parts)
            position += sum(map(len, parts))

    def write_indexes(self, storage: Storage, files: GrowingFiles, append: SegmentAppend) -> None:
        """Write the index entries that an append added. For a new segment, create the index files."""
        before, after = append.before, append.after
        for suffix, size, first, entries in (
            (INDEX, OFFSET_ENTRY.itemsize, len(before.offset_entries), after.offset_index_bytes),
            (TIME_INDEX, TIME_ENTRY.itemsize, len(before.time_entries), after.time_index_bytes),
        ):
            data = entries(first)
            if append.is_new:
                with storage.new_file(self._stem + suffix, durable=False) as file:
                    if data:
                        file.write(data)
            elif data:
                with suppress(NotFoundError):  # the file was deleted by hand; readers work without it
                    files.write_derivable(self._stem + suffix, first * size, data)


@dataclass(frozen=True)
class NewSegments:
    """The segments of one partition in a plan that writes only new files. This object is small, and can be pickled.

    folder: the folder of the files, with a slash at its end.
    version: the version that the plan was made on.
    leader_epoch: is written into each batch.
    appends: the new segments.
    word: a part of all file names.
    """

    folder: str
    version: int
    leader_epoch: int
    appends: tuple[SegmentAppend, ...]
    word: str = ""

    @classmethod
    def of(cls, plan: AppendPlan, part: PartitionAppend, word: str = "") -> NewSegments:
        """
        Args:
            plan: a plan that was made without open segments.
        """
        folder = data_folder(plan.topic_id, part.partition)
        return cls(folder, plan.version, plan.leader_epoch, part.appends, word)

    def write(self, storage: Storage) -> tuple[str, ...]:
        """Write the complete segments under new random names, and make them durable. The call can be repeated, also by
        another process.

        Returns:
            The names, in the order of the segments.

        Raises:
            StorageError: the storage refused or failed. The files of this call were deleted, if the storage allowed it.
        """
        names: list[str] = []
        try:
            for append in self.appends:
                assert append.is_new, "the plan was made without open segments"
                names.append(new_segment_name(append.after.base_offset, self.version, self.word))
                self._write_segment(storage, append, names[-1])
        except BaseException:
            with suppress(StorageError):
                for name in names:
                    for suffix in SEGMENT_SUFFIXES:
                        storage.delete(f"{self.folder}{name}{suffix}")
            raise
        return tuple(names)

    def delete_all(self, storage: Storage) -> None:
        """Delete the files of all attempts with this word. Call it only if no commit can name these files any more."""
        assert self.word, "without a word the files of other plans would match"
        for file in storage.list(self.folder):
            if f".{self.version}.{self.word}" in file.key:
                storage.delete(file.key)

    def _write_segment(self, storage: Storage, append: SegmentAppend, name: str) -> None:
        with storage.new_file(f"{self.folder}{name}{LOG}") as log:
            for batch_slice in append.slices:
                for parts in _stamped(storage, batch_slice, self.leader_epoch):
                    log.write(b"".join(parts))
        sealed = append.after.copy()
        sealed.seal()  # no later publish appends to this segment
        for suffix, entries in ((INDEX, sealed.offset_index_bytes()), (TIME_INDEX, sealed.time_index_bytes())):
            with storage.new_file(f"{self.folder}{name}{suffix}") as index:
                index.write(entries)


def with_names(part: PartitionAppend, names: tuple[str, ...]) -> PartitionAppend:
    """The plan with the final names of its new segments."""
    appends = zip(part.appends, names, strict=True)
    return replace(part, appends=tuple(replace(append, name=name) for append, name in appends))


class NewFilesPublisher:
    """Writes only new files, so that no file is open after a publish."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(threads_that_write(_THREADS))

    def open_segments(self) -> Mapping[int, OpenSegment]:
        return {}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        written: list[PartitionAppend] = []

        def write(_: AppendPlan, part: PartitionAppend, phases: Phases) -> PartitionAppend:
            with phases.phase(COPY):
                named = with_names(part, NewSegments.of(plan, part).write(self._storage))
            written.append(named)
            return named

        try:
            return replace(plan, partitions=_each_partition(self._threads, plan, phases, write))
        except BaseException:
            for part in written:
                _delete_new(self._storage, plan.topic_id, part)
            raise

    def keep(self, plan: AppendPlan) -> None:
        """Nothing to do: all files are complete."""

    def abandon(self, plan: AppendPlan) -> None:
        """Nothing to do: no file is open."""

    def close(self) -> None:
        self._threads.shutdown()


def _each_partition(
    threads: ThreadPoolExecutor,
    plan: AppendPlan,
    phases: Phases,
    publish: Callable[[AppendPlan, PartitionAppend, Phases], PartitionAppend],
) -> tuple[PartitionAppend, ...]:
    """Publish all partitions in parallel. When the function returns or raises, all threads have finished."""
    each = [Phases() for _ in plan.partitions]
    taken: dict[str, float] = {}
    with phases.together(taken, COPY):
        if len(plan.partitions) <= 1:
            results = [publish(plan, part, own) for part, own in zip(plan.partitions, each, strict=True)]
        else:
            futures = [
                threads.submit(publish, plan, part, own) for part, own in zip(plan.partitions, each, strict=True)
            ]
            try:
                wait(futures)
            except (
                BaseException
            ):  # Ctrl-C: wait for the threads, because the caller closes the files that they write to
                wait(futures)
                raise
            results = [future.result() for future in futures]
        taken.update(added_up(own.seconds for own in each))
    return tuple(results)


def _stamped(storage: Storage, batch_slice: BatchSlice, leader_epoch: int) -> Iterator[list[bytes | memoryview]]:
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
        staged = storage.read(batch_slice.key, batch_slice.source + done, int(ends[stop - 1]) - done)
        _check_staged(staged, batch_slice.sizes[first:stop], batch_slice.key, batch_slice.source + done)
        view = memoryview(staged)
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


def _delete_new(storage: Storage, topic_id: str, part: PartitionAppend) -> None:
    """Delete the new segments of a failed publish, because the storage may be full. No commit has tried to name these
    segments.

    After the first error, the remaining files are not deleted: the storage may be unavailable, and no reader uses the
    files.
    """
    with suppress(StorageError):
        for append in part.appends:
            if append.is_new:
                for suffix in SEGMENT_SUFFIXES:
                    storage.delete(data_key(topic_id, part.partition, append.name, suffix))
