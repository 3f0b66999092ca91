"""Reads and writes one partition of a plain Kafka log directory (as Kafka's UnifiedLog does).

    orders-0/
      00000000000000000000.log .index .timeindex         a closed segment
      00000000000000052110.log .index .timeindex         the active segment; its indexes are preallocated
      00000000000000052110.snapshot                      the producers at the base offset of the active segment
      leader-epoch-checkpoint  partition.metadata

Other modules decide which records are admitted (admission, validator), and when to roll (growing_segment). Other
modules also select the segments that retention deletes (segment_retention), and load a log (log_loading). LocalLog
writes segments, BatchLookup finds batches, and segment_swap marks segments as deleted and swaps them. The order of
these calls ensures that the log can be loaded after a crash at any point.

Appended records are durable below the recovery point. flush() and each roll move the recovery point to the log's end.
If there is one replica, the high watermark is the log's end. If there are several, the caller of `open` gives it.

Any thread may call any method. Calls that change the log run one after another; a reader sees the log as it was when
the read began. Only one process at a time has a log open: the process that has locked the log's directory (LogManager).
After an error of the storage nothing more is written, because only loading the log shows what is on the disk. But if a
disk is full, and nothing of the log has changed yet, the log can be used as before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

import pyarrow as pa

from storage_engine.cleaner.cleaner import CleanedPartition, clean_partition
from storage_engine.cleaner.replacement import delete_segments
from storage_engine.clock import Clock
from storage_engine.config import LONG_MAX
from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.errors import InvalidRecordError, OffsetOutOfRangeError, StorageError, StorageFullError
from storage_engine.kafka_dir.batch_lookup import BatchLookup, BatchPlace
from storage_engine.kafka_dir.local_log import Appended, Failure, LocalLog
from storage_engine.kafka_dir.log_loading import LoadedLog, LoadOptions, load_log, settle_topic_id
from storage_engine.kafka_dir.recovery_report import RecoveryReport
from storage_engine.kafka_dir.segment_swap import DeletedFiles, put_segments_aside, swap_in_cleaned
from storage_engine.kafka_dir.upkeep.due_compaction import due_task
from storage_engine.log.admission import admit_batches, admit_records
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.segment_retention import RetentionPlan, decide_retention
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import ByteArray
from storage_engine.record.compression import Codec
from storage_engine.storage import Directory

DEFAULT_BATCH_BYTES = 16_384
"""The size up to which Kafka's producers fill a batch (batch.size)."""


class PartitionLog:
    """An open log. `report`: what loading found."""

    def __init__(
        self,
        storage: Directory,
        folder: str,
        config: LogConfig,
        clock: Clock,
        loaded: LoadedLog,
        topic_id: str | None,
        first_dirty_offset: int | None,
        high_watermark: int,
    ) -> None:
        """Use a log that is loaded already. `open` loads a log and calls this constructor."""
        self.report: RecoveryReport = loaded.report
        self.folder = folder
        self.topic_id = topic_id
        self._storage = storage
        self._clock = clock
        self._lock = threading.RLock()
        self._cleaning = threading.Lock()
        self._failure = Failure()
        self._failing = self._failure.ending
        self._first_dirty_offset = None if (first_dirty_offset or 0) > loaded.active.end_offset else first_dirty_offset
        self._high_watermark = high_watermark
        self._deleted = DeletedFiles(storage)
        self._lookup = BatchLookup(storage, folder)
        self._log = LocalLog(storage, folder, config, loaded, clock.now_ms())
        self._log_start_offset = loaded.log_start_offset
        self._state: PartitionState | None = None

    @classmethod
    def open(
        cls,
        storage: Directory,
        folder: str,
        config: LogConfig,
        clock: Clock,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        first_dirty_offset: int | None = None,
        topic_id: str | None = None,
        producer_expiration_ms: int = 86_400_000,
        truncates: bool = False,
        high_watermark: int = LONG_MAX,
        leads: bool = True,
    ) -> PartitionLog:
        """Load the log in a folder, or create it, and open it.

        Args:
            folder: storage key, without a slash at its end.
            clean, recovery_point, log_start_offset, producer_expiration_ms, truncates: as in log_loading.LoadOptions.
            first_dirty_offset: from the cleaner's checkpoint.
            topic_id: for a folder without partition.metadata.
            high_watermark: records at and above it are not deleted and not compacted; by default, the log's end.
            leads: whether a log without a leader epoch begins epoch 0.

        Raises:
            CorruptionError: as log_loading.load_log; or the folder belongs to another topic id.
            StorageError: the storage refused or failed.
        """
        now_ms = clock.now_ms()
        options = LoadOptions(
            now_ms, clean, recovery_point, log_start_offset, producer_expiration_ms, truncates, high_watermark
        )
        loaded = load_log(storage, folder, config, options)
        found_id = settle_topic_id(storage, folder, topic_id)
        log = cls(storage, folder, config, clock, loaded, found_id, first_dirty_offset, high_watermark)
        if leads:
            log.become_leader(log.leader_epoch)  # begins epoch 0 if the log has no epoch
        return log

    # Properties

    @property
    def config(self) -> LogConfig:
        """The current configuration. A change takes effect with the next call."""
        return self._log.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        with self._lock:
            self._log.config = config

    @property
    def log_start_offset(self) -> int:
        """Records below this offset are not read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.end_offset

    @property
    def recovery_point(self) -> int:
        """All records of the log below this offset are durable. As in Kafka, it is never below the first segment."""
        return self._log.recovery_point

    @property
    def first_dirty_offset(self) -> int | None:
        """The log is compacted below this offset; None before the first compaction."""
        return self._first_dirty_offset

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch. Appended batches get this epoch."""
        return self._log.epochs[-1].epoch if self._log.epochs else 0

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._log.first_base_offset

    @property
    def is_writable(self) -> bool:
        """Whether the log can be changed. It cannot after a failed write, and after it was closed."""
        return self._failure.error is None

    def state(self) -> PartitionState:
        """A description of the partition as it is now."""
        with self._lock:
            if self._state is None:
                self._state = self._log.state(self._log_start_offset, self._high_watermark, self._first_dirty_offset)
            return self._state

    # Reading

    def reader(self) -> LogReader:
        """A reader of the log as it is now. If retention or compaction deletes a segment later, the reader raises
        NotFoundError, and the caller makes a new reader. The files of the segment are kept under other names for
        file.delete.delay.ms.
        """
        return LogReader(self._storage, self.state(), lambda segment: f"{self.folder}/{segment.name}", self.folder)

    def read(
        self, first_offset: int, end_offset: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Iterator[pa.RecordBatch]:
        """Like LogReader.read, on the log as it is now.

        Raises:
            OffsetOutOfRangeError: first_offset is outside the log.
        """
        reader = self.reader()
        reader.check_offset(first_offset)
        return reader.read(first_offset, end_offset, isolation)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """Like LogReader.offset_at, on the log as it is now."""
        return self.reader().offset_at(time, isolation)

    def locate(self, offset: int) -> BatchPlace | None:
        """The place of the first batch that ends at or after an offset; None at the log's end. Kafka's LocalLog.read
        finds it in the same way. The time grows with the logarithm of the numbers of segments and index entries. A few
        headers are read.

        Raises:
            OffsetOutOfRangeError: the offset is outside the log.
            CorruptionError, NotFoundError: as LogReader.read_segments.
        """
        with self._lock:
            closed, growing, active = self._log.closed, self._log.growing, self._log.active_segment()
            start, end = self._log_start_offset, active.end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(self.folder, f"offset {offset} is outside the log ({start} to {end})")
        return self._lookup.locate(closed, active, growing, offset)

    # Writing

    def append_records(
        self, records: pa.RecordBatch, codec: Codec = Codec.NONE, batch_bytes: int = DEFAULT_BATCH_BYTES
    ) -> Appended:
        """Encode records as the topic's configuration says, and append them.

        Args:
            records: columns as in record.record_columns.TO_APPEND.
            codec: used if compression.type is `producer`.

        Raises:
            RecordError: names the first record that the topic does not admit; none of the records was appended.
            StorageError: the storage failed; the log can no longer be written.
        """
        now_ms = self._clock.now_ms()
        data = admit_records(records, self.config, now_ms, self.folder, codec, batch_bytes)
        return self._append(data, now_ms)

    def append_batches(self, data: ByteArray, *, control: bool = False) -> Appended:
        """Append encoded batches, of producers with or without an id.

        Args:
            data: uint8, whole batches. Their offsets and leader epochs are replaced.
            control: as in admission.admit_batches. True for the markers that end transactions.

        Raises:
            CorruptionError: the bytes are not batches.
            RecordError: the topic does not admit one of the batches; none of the batches was appended.
            StorageError: the storage failed; the log can no longer be written.
        """
        now_ms = self._clock.now_ms()
        return self._append(admit_batches(data, self.config, now_ms, self.folder, control=control), now_ms)

    def _append(self, data: ByteArray, now_ms: int) -> Appended:
        with self._lock, self._failing():
            appended = self._log.append(data, self.leader_epoch, now_ms)
            self._state = None
            if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
                self.flush()
            return appended

    def roll(self) -> int:
        """Close the active segment, if it is not empty, and begin a new one. Returns its base offset."""
        with self._lock, self._failing(StorageFullError):
            if self._log.growing.size:
                self._roll(self._clock.now_ms())
            return self._log.growing.base_offset

    def _roll(self, now_ms: int, *, is_flush: bool = True) -> None:
        self._log.write_snapshot()
        with self._failing():
            self._log.roll(now_ms, is_flush=is_flush)
        self._state = None

    def become_leader(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end, unless the log has this epoch already.

        Raises:
            InvalidRecordError: the log has a newer epoch.
        """
        with self._lock, self._failing(StorageFullError):
            if self._log.epochs and epoch < self.leader_epoch:
                raise InvalidRecordError(
                    f"{self.folder}, leader epoch {epoch}", f"is older than the log's leader epoch {self.leader_epoch}"
                )
            if not self._log.epochs or epoch > self.leader_epoch:
                self._log.begin_epoch(epoch)
                self._state = None

    def flush(self) -> int:
        """Make all appended records durable. Returns the recovery point, which is then the log's end."""
        with self._lock, self._failing():
            self._log.flush(self._clock.now_ms())
            return self.recovery_point

    def flush_if_due(self) -> bool:
        """Flush if flush.ms have passed since the last flush."""
        with self._lock:
            due = self._log.is_flush_due(self._clock.now_ms())
            if due:
                self.flush()
            return due

    def expire_producers(self, expiration_ms: int) -> None:
        """Drop the producers that have not written for this time."""
        with self._lock:
            self._log.expire_producers(self._clock.now_ms(), expiration_ms)
            self._state = None

    # Deleting and compacting

    def delete_records(self, offset: int) -> int:
        """Move the log start offset forward. Retention deletes the segments below it.

        Returns:
            The log start offset.

        Raises:
            OffsetOutOfRangeError: the offset is above the log's end.
        """
        with self._lock, self._failing():
            if offset > self.log_end_offset:
                raise OffsetOutOfRangeError(
                    self.folder, f"offset {offset} is above the log's end {self.log_end_offset}"
                )
            self._advance_start(offset)
            self._store_epochs()
            return self._log_start_offset

    def _advance_start(self, offset: int) -> None:
        if offset > self._log_start_offset:
            self._log_start_offset, self._state = offset, None
            self._log.cut_epochs(offset)

    def _store_epochs(self) -> None:
        """Store the leader epochs after the log start has moved; as in Kafka, later if the disk is full."""
        with suppress(StorageFullError):
            self._log.store_epochs()

    def apply_retention(self) -> RetentionPlan:
        """Delete the segments that retention does not keep. Returns the deleted segments and the reasons. No space is
        needed, except to delete the newest segment, because another segment must begin before. On a full disk, only
        the segments before the newest are deleted.

        Raises:
            StorageFullError: only the newest segment is left to delete, and the disk is full.
        """
        with self._lock, self._failing(StorageFullError):
            now_ms = self._clock.now_ms()
            plan = decide_retention(self.state(), self.config, now_ms)
            closed = plan.deletions[: len(self._log.closed)]
            self._delete_oldest(len(closed))
            if len(closed) < len(plan.deletions):
                try:
                    self._roll(now_ms, is_flush=False)
                    self._delete_oldest(1)
                except StorageFullError:
                    if not closed:
                        raise
                    plan = replace(plan, deletions=closed, log_start_offset=self._log_start_offset)
            self._store_epochs()
            return plan

    def _delete_oldest(self, count: int) -> None:
        if count:
            with self._failing():
                keys = put_segments_aside(self._storage, self.folder, self._log.closed[:count])
            self._log.closed, self._state = self._log.closed[count:], None
            self._forget_files(keys)
            self._advance_start(self.first_base_offset)

    def _forget_files(self, keys: Sequence[str]) -> None:
        """Schedule the deletion of files that have been renamed to .deleted."""
        self._lookup.forget()
        self._deleted.schedule(keys, self._clock.now_ms() + self.config.file_delete_delay_ms)

    def delete_due_files(self) -> int:
        """Delete the .deleted files that were renamed at least file.delete.delay.ms ago. Returns their number."""
        with self._lock:
            return self._deleted.delete_due(self._clock.now_ms())

    def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 * 1024**2,
        bytes_per_second: float = inf,
        progress: Progress = NO_PROGRESS,
    ) -> CleanedPartition | None:
        """Compact the closed segments in place, if this is due. Appends continue meanwhile.

        Args:
            force: compact a dirty log even if this is not due.
            memory_bytes: log.cleaner.dedupe.buffer.size.
            bytes_per_second: log.cleaner.io.max.bytes.per.second.
            progress: as in cleaner.clean_partition.

        Returns:
            The result. None if no compaction was due, or if the segments were deleted meanwhile.

        Raises:
            CorruptionError, ConfigError, StorageError: as cleaner.clean_partition; nothing changed.
        """
        with self._cleaning:
            with self._lock, self._failing():
                state, writers = self.state(), self._log.producers.entries()
            task = due_task(
                self._storage, state, writers, self.config, self.folder, self._clock.now_ms(), force=force,
                memory_bytes=memory_bytes, bytes_per_second=bytes_per_second,
            )  # fmt: skip
            if task is None:
                return None
            cleaned = clean_partition(self._storage, task, progress)
            replaced = set(cleaned.replaced)
            with self._lock, self._failing():
                if not replaced <= set(self._log.closed):
                    delete_segments(self._storage, task.files, cleaned.segments)
                    return None
                self._forget_files(swap_in_cleaned(self._storage, self.folder, cleaned))
                kept = (each for each in self._log.closed if each not in replaced)
                self._log.closed = (*cleaned.segments, *kept)
                self._first_dirty_offset, self._state = cleaned.first_dirty_offset, None
            return cleaned

    # Closing

    def close(self) -> None:
        """Close the log as a broker would: indexes are trimmed, everything is durable, and a .snapshot has the
        producers at the log's end.

        As in a broker, an existing .snapshot is not replaced, even if some of its producers have expired meanwhile.
        """
        with self._lock, self._failing():
            self._log.close()
            self._failure.error = StorageError(self.folder, "the log is closed", "Open the log again.")

    def abandon(self) -> None:
        """Close the files without syncing them, as a crash would. The next load repairs the log."""
        with self._lock:
            self._log.abandon()
            self._failure.error = StorageError(self.folder, "the log is closed", "Open the log again.")
