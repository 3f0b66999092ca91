"""Publishes an append: appends the batches to files that this process keeps open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from storage_engine.config import TopicConfig
from storage_engine.errors import NotFoundError
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, data_key
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.phases import FSYNC, Phases
from storage_engine.storage import GrowingFiles, Storage
from storage_engine.storage.open_files import OpenFileShare, threads_that_write
from storage_engine.topic.append.append_plan import AppendPlan, BatchSlice, OpenSegment, PartitionAppend, SegmentAppend
from storage_engine.topic.append.publishing import COPY, THREADS, delete_new, each_partition, stamped
from storage_engine.topic.chain.topic_state import TopicState


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
        self._threads = ThreadPoolExecutor(threads_that_write(THREADS))

    def prepare(self, state: TopicState, config: TopicConfig, partitions: Iterable[int]) -> None:
        """Does nothing: a file that another process wrote is never continued."""

    def open_segments(self) -> Mapping[int, OpenSegment]:
        return {partition: log.segment for partition, log in self._open.items()}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        try:
            self._close_idle(plan)
            each_partition(self._threads, plan, phases, self._publish_partition)
        except BaseException:
            self.abandon(plan)
            for part in plan.partitions:
                new = (append.name for append in part.appends if append.is_new)
                delete_new(self._storage, (data_key(plan.topic_id, part.partition, name, "") for name in new))
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
        for parts in stamped(storage, batch_slice, leader_epoch):
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
