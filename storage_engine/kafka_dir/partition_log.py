"""One partition of a plain Kafka log directory, open for reading and writing (Kafka's UnifiedLog, as a facade).

    orders-0/
      00000000000000000000.log .index .timeindex         a closed segment
      00000000000000052110.log .index .timeindex         the active one; its indexes are preallocated
      00000000000000052110.snapshot                      the producers at its base offset
      leader-epoch-checkpoint  partition.metadata

What is decided is decided elsewhere: what may go in (admission, validator), when to roll (GrowingSegment), what retention
drops (retention), what a load finds (loading). Segments are written by LocalLog, looked up in by BatchLookup, put aside
and swapped by segment_swap. Here all of it happens in an order that any crash leaves loadable.

Appended records are durable once they lie below the recovery point, which flush() moves to the log's end; a roll does
so too. There is one replica, so the high watermark is the log's end.

All methods may be called from any thread, and take effect one after another; readers work on what the log was when they
began. One process has a log open, under the lock of its directory (LogManager). After an error of the storage nothing
is written any more: only loading the log again can tell what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

import pyarrow as pa

from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    aborted_in_reach,
    clean_partition,
    last_batches,
)
from storage_engine.cleaner.replacement import delete_segments, file_of
from storage_engine.cleaner.selection import select
from storage_engine.clock import Clock
from storage_engine.config.kafka_dir import LogConfig
from storage_engine.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    StorageError,
)
from storage_engine.kafka_dir.batch_lookup import BatchLookup, BatchPlace
from storage_engine.kafka_dir.loading import LoadedLog, LoadOptions, load_log, settle_topic_id
from storage_engine.kafka_dir.local_log import Appended, LocalLog
from storage_engine.kafka_dir.recovery_report import RecoveryReport
from storage_engine.kafka_dir.segment_swap import DeletedFiles, put_segments_aside, swap_in_cleaned
from storage_engine.log.admission import admit_batches, admit_records
from storage_engine.log.checkpoint import (
    LEADER_EPOCHS,
    encode_leader_epochs,
)
from storage_engine.log.filenames import (
    SegmentFolder,
)
from storage_engine.log.isolation import Isolation
from storage_engine.log.leader_epochs import Epochs, begin_epoch, cut_start
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import PartitionState
from storage_engine.log.retention import RetentionPlan, decide_retention
from storage_engine.log.segment_reader import first_batch_timestamp
from storage_engine.record.batch import ByteArray
from storage_engine.record.compression import Codec
from storage_engine.storage import Directory

DEFAULT_BATCH_BYTES = 16_384
"""What Kafka's producers fill a batch up to (batch.size)."""


class PartitionLog:
    """An open log; see the module. `report` says what loading it found."""

    def __init__(
        self,
        storage: Directory,
        folder: str,
        config: LogConfig,
        clock: Clock,
        loaded: LoadedLog,
        topic_id: str | None,
        first_dirty_offset: int | None,
    ) -> None:
        """Take a loaded log into use; `open` does both."""
        self.report: RecoveryReport = loaded.report
        self.folder = folder
        self.topic_id = topic_id
        self._storage = storage
        self._clock = clock
        self._lock = threading.RLock()
        self._cleaning = threading.Lock()
        self._failure: StorageError | None = None
        self._first_dirty_offset = first_dirty_offset
        self._deleted = DeletedFiles(storage)
        self._lookup = BatchLookup(storage, folder)
        self._log = LocalLog(storage, folder, config, loaded, clock.now_ms())
        self._epochs: Epochs = loaded.leader_epochs
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
    ) -> PartitionLog:
        """Load the log in a folder, made where it is missing, and take it into use.

        Args:
            folder: storage key, without a slash at its end.
            clean, recovery_point, log_start_offset, producer_expiration_ms: as in loading.LoadOptions.
            first_dirty_offset: from the cleaner's checkpoint.
            topic_id: for a folder without partition.metadata.

        Raises:
            CorruptionError: as loading.load_log; or the folder belongs to another topic id.
            StorageError: the storage refused or failed.
        """
        options = LoadOptions(clock.now_ms(), clean, recovery_point, log_start_offset, producer_expiration_ms)
        loaded = load_log(storage, folder, config, options)
        log = cls(
            storage, folder, config, clock, loaded, settle_topic_id(storage, folder, topic_id), first_dirty_offset
        )
        log.become_leader(log.leader_epoch)  # epoch 0, where the log knows none
        return log

    # What it is.

    @property
    def config(self) -> LogConfig:
        """What holds for it now; a change is felt by the next call."""
        return self._log.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        with self._lock:
            self._log.config = config

    @property
    def log_start_offset(self) -> int:
        """Below it nothing is read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """What the next record gets; the high watermark, too."""
        return self._log.end_offset

    @property
    def recovery_point(self) -> int:
        """All below it is durable."""
        return self._log.recovery_point

    @property
    def first_dirty_offset(self) -> int | None:
        """Up to where it was compacted; None before the first time."""
        return self._first_dirty_offset

    @property
    def leader_epoch(self) -> int:
        """The newest; appended batches get it."""
        return self._epochs[-1].epoch if self._epochs else 0

    @property
    def first_base_offset(self) -> int:
        """Of the oldest segment."""
        return self._log.first_base_offset

    def state(self) -> PartitionState:
        """The partition as it is now."""
        with self._lock:
            if self._state is None:
                # All parts come from types that were checked; with a thousand segments checking again takes its time.
                self._state = PartitionState.model_construct(
                    log_start_offset=self._log_start_offset,
                    high_watermark=self.log_end_offset,
                    first_dirty_offset=self._first_dirty_offset,
                    segments=(*self._log.closed, self._log.active_segment()),
                    leader_epochs=self._epochs,
                    listed=None,
                    producers=self._log.producers.entries(),
                )
            return self._state

    # Reading.

    def reader(self) -> LogReader:
        """A reader of the log as it is now. What retention or compaction takes away stays file.delete.delay.ms longer,
        under names that the reader does not know: NotFoundError then asks for a new reader."""
        return LogReader(self._storage, self.state(), lambda segment: f"{self.folder}/{segment.name}", self.folder)

    def read(
        self, first_offset: int, end_offset: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Iterator[pa.RecordBatch]:
        """As LogReader.read, of the log as it is now.

        Raises:
            OffsetOutOfRangeError: first_offset lies outside the log.
        """
        reader = self.reader()
        reader.check_offset(first_offset)
        return reader.read(first_offset, end_offset, isolation)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """As LogReader.offset_at, of the log as it is now."""
        return self.reader().offset_at(time, isolation)

    def locate(self, offset: int) -> BatchPlace | None:
        """Where the first batch lies that ends at or behind an offset (LocalLog.read's translation); None at the log's
        end. Takes logarithmic time in segments and index entries, and reads some headers.

        Raises:
            OffsetOutOfRangeError: the offset lies outside the log.
            CorruptionError, NotFoundError: as LogReader.read_segments.
        """
        with self._lock:
            closed, growing, active = self._log.closed, self._log.growing, self._log.active_segment()
            start, end = self._log_start_offset, active.end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(self.folder, f"offset {offset} lies outside {start} to {end}")
        return self._lookup.locate(closed, active, growing, offset)

    # Writing.

    def append_records(
        self, records: pa.RecordBatch, codec: Codec = Codec.NONE, batch_bytes: int = DEFAULT_BATCH_BYTES
    ) -> Appended:
        """Append records, encoded as the topic wants them.

        Args:
            records: columns as in record.columns.TO_APPEND.
            codec: where compression.type is `producer`.

        Raises:
            RecordError: names the first record that the topic may not hold; none of them was appended.
            StorageError: the storage failed; see the module.
        """
        now_ms = self._clock.now_ms()
        data = admit_records(records, self.config, now_ms, self.folder, codec, batch_bytes)
        return self._append(data, now_ms)

    def append_batches(self, data: ByteArray, *, control: bool = False) -> Appended:
        """Append batches that somebody encoded, of producers with or without an id.

        Args:
            data: uint8, whole batches; their offsets and leader epochs mean nothing.
            control: as in admission.admit_batches; the markers that end transactions come so.

        Raises:
            CorruptionError: these are no batches.
            RecordError: the topic may not hold one of them; none of them was appended.
            StorageError: the storage failed; see the module.
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
        """Close the active segment, if it holds anything, and begin a new one; returns its base offset."""
        with self._lock, self._failing():
            if self._log.growing.size:
                self._log.roll(self._clock.now_ms())
                self._state = None
            return self._log.growing.base_offset

    def become_leader(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end, unless the log knows it already.

        Raises:
            InvalidRecordError: the log knows a newer one.
        """
        with self._lock, self._failing():
            if self._epochs and epoch < self.leader_epoch:
                raise InvalidRecordError(
                    f"{self.folder}, leader epoch {epoch}", f"is older than {self.leader_epoch}, which the log knows"
                )
            if not self._epochs or epoch > self.leader_epoch:
                self._set_epochs(begin_epoch(self._epochs, epoch, self.log_end_offset))

    def _set_epochs(self, epochs: Epochs) -> None:
        if epochs != self._epochs:
            self._storage.replace(f"{self.folder}/{LEADER_EPOCHS}", encode_leader_epochs(epochs))
            self._epochs, self._state = epochs, None

    def flush(self) -> int:
        """Make all that was appended durable; returns the recovery point, which is the log's end then."""
        with self._lock, self._failing():
            self._log.flush(self._clock.now_ms())
            return self.recovery_point

    def flush_if_due(self) -> bool:
        """Flush where flush.ms have passed since the last time."""
        with self._lock:
            due = self._log.is_flush_due(self._clock.now_ms())
            if due:
                self.flush()
            return due

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget producers that have been silent for so long."""
        with self._lock:
            self._log.producers.expire(self._clock.now_ms(), expiration_ms)
            self._state = None

    # What goes.

    def delete_records(self, offset: int) -> int:
        """Let the log start at an offset; retention drops the segments that lie below it.

        Returns:
            The log start offset.

        Raises:
            OffsetOutOfRangeError: the offset lies above the log's end.
        """
        with self._lock, self._failing():
            if offset > self.log_end_offset:
                raise OffsetOutOfRangeError(
                    self.folder, f"offset {offset} lies above the log's end {self.log_end_offset}"
                )
            self._advance_start(offset)
            return self._log_start_offset

    def _advance_start(self, offset: int) -> None:
        if offset > self._log_start_offset:
            self._log_start_offset, self._state = offset, None
            self._set_epochs(cut_start(self._epochs, offset))

    def apply_retention(self) -> RetentionPlan:
        """Drop the segments that the topic need not keep any more; returns what went and why."""
        with self._lock, self._failing():
            now_ms = self._clock.now_ms()
            plan = decide_retention(self.state(), self.config, now_ms)
            if not plan.deletions:
                return plan
            gone = [deletion.segment.base_offset for deletion in plan.deletions]
            if self._log.growing.base_offset in gone:
                self._log.roll(now_ms)
                self._state = None
            self._advance_start(plan.log_start_offset)
            dropped = [segment for segment in self._log.closed if segment.base_offset in gone]
            self._log.closed = self._log.closed[len(dropped) :]
            self._forget_files(put_segments_aside(self._storage, self.folder, dropped))
            self._state = None
            return plan

    def _forget_files(self, keys: Sequence[str]) -> None:
        """Let files that are .deleted by now go later."""
        self._lookup.forget()
        self._deleted.schedule(keys, self._clock.now_ms() + self.config.file_delete_delay_ms)

    def delete_due_files(self) -> int:
        """Delete the files that were put aside file.delete.delay.ms ago; returns how many."""
        with self._lock:
            return self._deleted.delete_due(self._clock.now_ms())

    def compact(
        self, *, force: bool = False, memory_bytes: int = 128 * 1024**2, bytes_per_second: float = inf
    ) -> CleanedPartition | None:
        """Compact the closed segments in place, if that is due; appends go on meanwhile.

        Args:
            force: compact what is dirty, due or not.
            memory_bytes: log.cleaner.dedupe.buffer.size. bytes_per_second: log.cleaner.io.max.bytes.per.second.

        Returns:
            What was done, None where nothing was due, or the segments were dropped meanwhile.

        Raises:
            CorruptionError, ConfigError, StorageError: as cleaner.clean_partition; nothing changed.
        """
        with self._cleaning:
            state, now_ms = self.state(), self._clock.now_ms()
            files = SegmentFolder(f"{self.folder}/", None)
            plan = select(
                state, self.config, now_ms,
                lambda segment: first_batch_timestamp(self._storage, file_of(files, segment)), force=force,
            )  # fmt: skip
            if plan.reason is None:
                return None
            task = CleaningTask(
                self.folder, "", 0, files, plan, self.config, memory_bytes, now_ms,
                last_batches(state.producers), aborted_in_reach(state), bytes_per_second=bytes_per_second,
            )  # fmt: skip
            cleaned = clean_partition(self._storage, task)
            replaced = set(cleaned.replaced)
            with self._lock, self._failing():
                if not replaced <= set(self._log.closed):
                    delete_segments(self._storage, files, cleaned.segments)
                    return None
                self._forget_files(swap_in_cleaned(self._storage, self.folder, cleaned))
                kept = (each for each in self._log.closed if each not in replaced)
                self._log.closed = (*cleaned.segments, *kept)
                self._first_dirty_offset, self._state = cleaned.first_dirty_offset, None
            return cleaned

    # The end.

    def close(self) -> None:
        """Leave the log as a broker leaves it: indexes trimmed, all of it durable, the producers at its end known.

        A .snapshot that is there stays, as a broker's does: it may name producers that were forgotten since.
        """
        with self._lock, self._failing():
            self._log.close()
            self._failure = StorageError(self.folder, "the log is closed", "Open it again.")

    def abandon(self) -> None:
        """Let go of the files as they are, as a crash would; the next load mends what has to be."""
        with self._lock:
            self._log.abandon()
            self._failure = StorageError(self.folder, "the log is closed", "Open it again.")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Do something to the files, which may not fail half-way unnoticed."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except StorageError as error:
            self._failure = error
            raise
