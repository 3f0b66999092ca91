"""One partition of a plain Kafka log directory, open for reading and writing (Kafka's UnifiedLog, as a facade).

    orders-0/
      00000000000000000000.log .index .timeindex         a closed segment
      00000000000000052110.log .index .timeindex         the active one; its indexes are preallocated
      00000000000000052110.snapshot                      the producers at its base offset
      leader-epoch-checkpoint  partition.metadata

What is decided is decided elsewhere: what may go in (admission, validator), when to roll (GrowingSegment), what retention
drops (retention), what a load finds (recovery). Here files follow, in an order that any crash leaves loadable.

Appended records are durable once they lie below the recovery point, which flush() moves to the log's end; a roll does
so too. There is one replica, so the high watermark is the log's end.

All methods may be called from any thread, and take effect one after another; readers work on what the log was when they
began. One process has a log open, under the lock of its directory (LogManager). After an error of the storage nothing
is written any more: only loading the log again can tell what is there.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage_engine.checkpoint import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_partition_metadata,
)
from storage_engine.cleaner.cleaner import (
    CleanedPartition,
    CleaningTask,
    aborted_in_reach,
    clean_partition,
    last_batches,
)
from storage_engine.cleaner.replacement import delete_segments
from storage_engine.cleaner.selection import select
from storage_engine.clock import Clock
from storage_engine.config import LONG_MAX
from storage_engine.errors import (
    CorruptionError,
    InvalidRecordError,
    NotFoundError,
    OffsetOutOfRangeError,
    StorageError,
)
from storage_engine.log.active_segment import ActiveSegment
from storage_engine.log.admission import admit_batches, compression_level
from storage_engine.log.filenames import (
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    SegmentFolder,
    offset_name,
)
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.isolation import Isolation
from storage_engine.log.leader_epochs import Epochs, begin_epoch, cut_start
from storage_engine.log.log_reader import LogReader
from storage_engine.log.offset_index import decode_offset_index
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producer_snapshot import encode_snapshot
from storage_engine.log.producer_state import aborted_among
from storage_engine.log.recovery import LoadedLog, LoadOptions, RecoveryReport, load_log
from storage_engine.log.retention import RetentionPlan, decide_retention
from storage_engine.log.segment_reader import SegmentFile, first_batch_timestamp, read_chunks
from storage_engine.log.segment_swap import put_aside, swap_in
from storage_engine.log.time_index import decode_time_index
from storage_engine.log.transaction_index import ABORTED_ENTRY_BYTES
from storage_engine.log.validator import Verdict, judge_records, record_limit, refusal
from storage_engine.log_config import LogConfig
from storage_engine.record.batch import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    BatchTable,
    ByteArray,
    Int64Array,
    scan_batches,
    scan_header,
    stamp_batches,
)
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import encode_records
from storage_engine.storage import DirectoryStorage

DEFAULT_BATCH_BYTES = 16_384
"""What Kafka's producers fill a batch up to (batch.size)."""
_LOOK_UP_BYTES = 16_384
_MOST_CACHED_INDEXES = 64


class Appended(NamedTuple):
    """Where records went: first_offset <= offset < end_offset."""

    first_offset: int
    end_offset: int


class BatchPlace(NamedTuple):
    """Where a batch lies: in the segment with this base offset, at this position."""

    base_offset: int
    position: int


@dataclass(frozen=True)
class _PutAside:
    """Files that are .deleted, to be removed once it is due."""

    due_ms: int
    keys: tuple[str, ...]


class PartitionLog:
    """An open log; see the module. `report` says what loading it found."""

    def __init__(
        self,
        storage: DirectoryStorage,
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
        self._config = config
        self._clock = clock
        self._lock = threading.RLock()
        self._cleaning = threading.Lock()
        self._failure: StorageError | None = None
        self._first_dirty_offset = first_dirty_offset
        self._flushed_ms = clock.now_ms()
        self._put_aside: list[_PutAside] = []
        self._take(loaded)

    def _take(self, loaded: LoadedLog) -> None:
        self._closed = loaded.closed
        self._epochs: Epochs = loaded.leader_epochs
        self._producers = loaded.producers
        self._log_start_offset = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point
        self._indexes: dict[str, tuple[Int64Array, Int64Array]] = {}
        self._state: PartitionState | None = None
        growing = loaded.active
        growing.jitter_ms = self._jitter_ms()
        self._active = ActiveSegment(
            self._storage, self.folder, growing, self._config, loaded.aborted, loaded.active_modified_ms
        )

    @classmethod
    def open(
        cls,
        storage: DirectoryStorage,
        folder: str,
        config: LogConfig,
        clock: Clock,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        first_dirty_offset: int | None = None,
        topic_id: str | None = None,
        leader_epoch: int | None = None,
        producer_expiration_ms: int = 86_400_000,
        kafka_way: bool = False,
    ) -> PartitionLog:
        """Load the log in a folder, made where it is missing, and take it into use.

        Args:
            folder: storage key, without a slash at its end.
            clean, recovery_point, log_start_offset, producer_expiration_ms, kafka_way: as in recovery.LoadOptions.
            first_dirty_offset: from the cleaner's checkpoint.
            topic_id: for a folder without partition.metadata.
            leader_epoch: begins at the log's end, if it is newer than what the log knows; epoch 0 where it knows none.

        Raises:
            CorruptionError: as recovery.load_log; or the folder belongs to another topic id.
            StorageError: the storage refused or failed.
        """
        options = LoadOptions(
            clock.now_ms(), clean, recovery_point, log_start_offset, producer_expiration_ms, kafka_way
        )
        loaded = load_log(storage, folder, config, options)
        log = cls(
            storage, folder, config, clock, loaded, _settle_topic_id(storage, folder, topic_id), first_dirty_offset
        )
        log.become_leader(log.leader_epoch if leader_epoch is None else leader_epoch)
        return log

    # What it is.

    @property
    def config(self) -> LogConfig:
        """What holds for it now; a change is felt by the next call."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        with self._lock:
            self._config = config

    @property
    def log_start_offset(self) -> int:
        """Below it nothing is read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """What the next record gets; the high watermark, too."""
        return self._active.growing.end_offset

    @property
    def recovery_point(self) -> int:
        """All below it is durable."""
        return self._recovery_point

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
        return (self._closed[0] if self._closed else self._active.segment()).base_offset

    def state(self) -> PartitionState:
        """The partition as it is now."""
        with self._lock:
            if self._state is None:
                # All parts come from types that were checked; with a thousand segments checking again takes its time.
                self._state = PartitionState.model_construct(
                    log_start_offset=self._log_start_offset,
                    high_watermark=self.log_end_offset,
                    first_dirty_offset=self._first_dirty_offset,
                    segments=(*self._closed, self._active.segment()),
                    leader_epochs=self._epochs,
                    listed=None,
                    producers=self._producers.entries(),
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
            closed, active = self._closed, self._active.segment()
            start, end = self._log_start_offset, active.end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(self.folder, f"offset {offset} lies outside {start} to {end}")
        number = max(0, bisect_right(closed, offset, key=lambda segment: segment.base_offset) - 1)
        if not closed or offset >= active.base_offset:
            number = len(closed)
        while number <= len(closed):
            segment = closed[number] if number < len(closed) else active
            place = self._locate_in(segment, offset)
            if place is not None:
                return place
            number += 1
        return None

    def _locate_in(self, segment: Segment, offset: int) -> BatchPlace | None:
        if not segment.size or offset >= segment.end_offset:
            return None
        indexed_offset, position = self._indexed_position(segment, offset)
        if position and not self._ends_at(segment, position, indexed_offset):
            position = 0  # the index is wrong, and only a shortcut
        for chunk in read_chunks(self._storage, self._file(segment), position, _LOOK_UP_BYTES):
            row = int(np.searchsorted(chunk.table.last_offsets, offset))
            if row < len(chunk.table):
                return BatchPlace(segment.base_offset, chunk.position + int(chunk.table.positions[row]))
        return None

    def _ends_at(self, segment: Segment, position: int, offset: int) -> bool:
        data = self._storage.read(f"{self.folder}/{segment.name}{LOG}", position, HEADER_BYTES)
        return bool((scan_header(np.frombuffer(data, np.uint8)).last_offsets == offset).any())

    def _file(self, segment: Segment) -> SegmentFile:
        return SegmentFile(f"{self.folder}/{segment.name}", segment.base_offset, segment.size, segment.end_offset)

    def _indexed_position(self, segment: Segment, offset: int) -> tuple[int, int]:
        """The last index entry at or below an offset: its offset, and the position of the batch that ends there."""
        base = segment.base_offset
        if base == self._active.growing.base_offset:
            entries = self._active.growing.offset_entries
            row = bisect_right(entries, offset - base, key=lambda entry: entry[0]) - 1
            return (base + entries[row][0], entries[row][1]) if row >= 0 else (base, 0)
        offsets, positions = self._closed_index(segment.name)
        row = int(np.searchsorted(offsets, offset - base, side="right")) - 1
        return (base + int(offsets[row]), int(positions[row])) if row >= 0 else (base, 0)

    def _closed_index(self, name: str) -> tuple[Int64Array, Int64Array]:
        found = self._indexes.get(name)
        if found is None:
            entries = decode_offset_index(self._storage.read(f"{self.folder}/{name}{INDEX}"))
            found = entries["relative_offset"].astype(np.int64), entries["position"].astype(np.int64)
            if len(self._indexes) >= _MOST_CACHED_INDEXES:
                self._indexes.clear()
            self._indexes[name] = found
        return found

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
        now_ms, config = self._clock.now_ms(), self._config
        refused = np.flatnonzero(verdicts := judge_records(records, config, now_ms))
        if len(refused):
            row = int(refused[0])
            raise refusal(Verdict(int(verdicts[row])), f"{self.folder}, record {row}", config)
        chosen = codec if config.compression_type == "producer" else Codec.of(config.compression_type)
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        run = encode_records(
            records, min(batch_bytes, record_limit(config)), chosen, level=compression_level(config, chosen),
            append_time=append_time,
        )  # fmt: skip
        return self._append(run.data, now_ms)

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
        return self._append(admit_batches(data, self._config, now_ms, self.folder, control=control), now_ms)

    def _append(self, data: ByteArray, now_ms: int) -> Appended:
        """Give batches their offsets, and write them, rolling in between where it is due."""
        with self._lock, self._failing():
            first_offset = self.log_end_offset
            stamp_batches(data, scan_batches(data, self.folder).sizes, first_offset, self.leader_epoch)
            table = scan_batches(data, self.folder)
            self._check_producers(data, table)
            row = 0
            while row < len(table):
                row = self._append_until_full(data, table, row, now_ms)
            self._state = None
            if self.log_end_offset - self._recovery_point >= self._config.flush_messages:
                self.flush()
            return Appended(first_offset, self.log_end_offset)

    def _check_producers(self, data: ByteArray, table: BatchTable) -> None:
        """Refuse what no broker lets in, before a byte of it is written."""
        if (table.producer_ids != NO_PRODUCER_ID).any():
            try:
                self._producers.copy().replay(data, table, self.folder)
            except CorruptionError as error:
                raise InvalidRecordError(
                    f"{self.folder}, byte {error.position} of the append", error.problem
                ) from error

    def _append_until_full(self, data: ByteArray, table: BatchTable, row: int, now_ms: int) -> int:
        """Write the batches from a row on that still fit into the active segment, which may be rolled first.

        Returns:
            The row to go on from.
        """
        if self._must_roll(self._active.growing, table, row, now_ms):
            self._roll(now_ms)
        ahead = self._active.growing.copy()
        stop = row
        while stop == row or (stop < len(table) and not self._must_roll(ahead, table, stop, now_ms)):
            ahead.append(int(table.sizes[stop]), int(table.last_offsets[stop]), int(table.max_timestamps[stop]))
            stop += 1
        part = table.select(slice(row, stop))
        self._active.append(data[int(part.positions[0]) : part.end], part, now_ms)
        self._active.add_aborted(aborted_among(self._producers.replay(data, part, self.folder)))
        return stop

    def _must_roll(self, growing: GrowingSegment, table: BatchTable, row: int, now_ms: int) -> bool:
        size, last_offset, timestamp = (
            int(column[row]) for column in (table.sizes, table.last_offsets, table.max_timestamps)
        )
        return growing.must_roll(self._config, size, last_offset, timestamp, now_ms)

    def roll(self) -> int:
        """Close the active segment, if it holds anything, and begin a new one; returns its base offset."""
        with self._lock, self._failing():
            if self._active.growing.size:
                self._roll(self._clock.now_ms())
            return self._active.growing.base_offset

    def _roll(self, now_ms: int) -> None:
        """The new segment's name is durable once a flush or another roll syncs it; without it nothing is lost."""
        self._closed = (*self._closed, self._active.close())
        base = self.log_end_offset
        self._recovery_point, self._flushed_ms = base, now_ms
        self._write_snapshot(base)
        growing = GrowingSegment(base, now_ms, self._config.index_interval_bytes, self._jitter_ms())
        self._active = ActiveSegment(self._storage, self.folder, growing, self._config, modified_ms=now_ms)
        self._state = None

    def _jitter_ms(self) -> int:
        """Drawn for each segment, so that partitions which began together do not all roll together."""
        most = min(self._config.segment_jitter_ms, self._config.segment_ms)
        return random.randrange(most) if most else 0

    def _has(self, name: str) -> bool:
        return any(entry.name == name for entry in self._storage.entries(self.folder))

    def _write_snapshot(self, offset: int) -> None:
        self._storage.replace(
            f"{self.folder}/{offset_name(offset)}{SNAPSHOT}", encode_snapshot(self._producers.entries())
        )

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
            if self._recovery_point < self.log_end_offset:
                self._active.sync()
            self._recovery_point, self._flushed_ms = self.log_end_offset, self._clock.now_ms()
            return self._recovery_point

    def flush_if_due(self) -> bool:
        """Flush where flush.ms have passed since the last time."""
        with self._lock:
            waited_ms = self._clock.now_ms() - self._flushed_ms
            due = self._recovery_point < self.log_end_offset and waited_ms >= self._config.flush_ms
            if due:
                self.flush()
            return due

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget producers that have been silent for so long."""
        with self._lock:
            self._producers.expire(self._clock.now_ms(), expiration_ms)
            self._state = None

    def truncate_to(self, offset: int) -> int:
        """Cut the log off: what lies at or behind an offset goes, and the rest of a batch that the offset is in.

        Returns:
            The log's end.

        Raises:
            OffsetOutOfRangeError: below the log start offset.
        """
        with self._lock, self._failing():
            if offset >= self.log_end_offset:
                return self.log_end_offset
            if offset < self._log_start_offset:
                raise OffsetOutOfRangeError(
                    self.folder, f"offset {offset} lies below the log start offset {self._log_start_offset}"
                )
            segments = (*self._closed, self._active.close())
            number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
            # The newest goes first: what a crash leaves is always a whole log that ends somewhere.
            for segment in reversed(segments[number + 1 :]):
                self._delete([segment])
            self._cut_off(segments[number], offset)
            options = LoadOptions(
                self._clock.now_ms(), clean=True, log_start_offset=self._log_start_offset,
                producer_expiration_ms=LONG_MAX,
            )  # fmt: skip
            recovery_point = self._recovery_point
            self._take(load_log(self._storage, self.folder, self._config, options))
            self._recovery_point = min(recovery_point, self.log_end_offset)
            return self.log_end_offset

    def _cut_off(self, segment: Segment, offset: int) -> None:
        """Cut a closed segment's files off before the batch that an offset is in, or that comes next."""
        place = self._locate_in(segment, offset)
        if place is None:
            return
        stem = f"{self.folder}/{segment.name}"
        chunk = next(read_chunks(self._storage, self._file(segment), place.position, _LOOK_UP_BYTES))
        last_offset = chunk.table.last_offsets[0]
        offsets = decode_offset_index(self._storage.read(stem + INDEX))
        times = decode_time_index(self._storage.read(stem + TIME_INDEX))
        sizes = {
            LOG: place.position,
            INDEX: offsets[offsets["position"] < place.position].nbytes,
            TIME_INDEX: times[times["relative_offset"] < last_offset - segment.base_offset].nbytes,
        }
        if segment.aborted:
            kept = [each for each in segment.aborted if each.last_offset < last_offset]
            sizes[TRANSACTION_INDEX] = len(kept) * ABORTED_ENTRY_BYTES
        for suffix, size in sizes.items():
            with closing(self._storage.open(stem + suffix)) as cut:
                cut.truncate(size)
                cut.sync()

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
            plan = decide_retention(self.state(), self._config, now_ms)
            if not plan.deletions:
                return plan
            gone = [deletion.segment.base_offset for deletion in plan.deletions]
            if self._active.growing.base_offset in gone:
                self._roll(now_ms)
            self._advance_start(plan.log_start_offset)
            dropped = [segment for segment in self._closed if segment.base_offset in gone]
            self._closed = self._closed[len(dropped) :]
            self._delete(dropped)
            self._state = None
            return plan

    def _delete(self, segments: Sequence[Segment]) -> None:
        """Put segments' files aside, to be deleted later."""
        names = {entry.name for entry in self._storage.entries(self.folder)}
        keys: list[str] = []
        for segment in segments:
            files = (segment.name + suffix for suffix in (LOG, *INDEX_SUFFIXES, SNAPSHOT))
            keys += put_aside(self._storage, self.folder, files, names)
            self._indexes.pop(segment.name, None)
        self._storage.sync_names(self.folder)
        self._schedule_deletion(keys)

    def _schedule_deletion(self, keys: Sequence[str]) -> None:
        self._put_aside.append(_PutAside(self._clock.now_ms() + self._config.file_delete_delay_ms, tuple(keys)))

    def delete_due_files(self) -> int:
        """Delete the files that were put aside file.delete.delay.ms ago; returns how many."""
        with self._lock:
            now_ms = self._clock.now_ms()
            due = [each for each in self._put_aside if each.due_ms <= now_ms]
            self._put_aside = [each for each in self._put_aside if each.due_ms > now_ms]
            keys = [key for each in due for key in each.keys]
            for key in keys:
                self._storage.delete(key)
            return len(keys)

    def compact(self, *, force: bool = False, memory_bytes: int = 128 * 1024**2) -> CleanedPartition | None:
        """Compact the closed segments in place, if that is due; appends go on meanwhile.

        Args:
            force: compact what is dirty, due or not.
            memory_bytes: log.cleaner.dedupe.buffer.size.

        Returns:
            What was done, None where nothing was due, or the segments were dropped meanwhile.

        Raises:
            InvalidRecordError, CorruptionError, ConfigError, StorageError: as cleaner.clean_partition; nothing changed.
        """
        with self._cleaning:
            state, now_ms = self.state(), self._clock.now_ms()
            plan = select(
                state, self._config, now_ms,
                lambda segment: first_batch_timestamp(self._storage, self._file(segment)), force=force,
            )  # fmt: skip
            if plan.reason is None:
                return None
            files = SegmentFolder(f"{self.folder}/", None)
            task = CleaningTask(
                self.folder, "", 0, files, plan, self._config, memory_bytes, now_ms,
                last_batches(state.producers), aborted_in_reach(state),
            )  # fmt: skip
            cleaned = clean_partition(self._storage, task)
            with self._lock, self._failing():
                if not set(cleaned.replaced) <= set(self._closed):
                    delete_segments(self._storage, files, cleaned.segments)
                    return None
                self._swap_in(cleaned)
            return cleaned

    def _swap_in(self, cleaned: CleanedPartition) -> None:
        """Put compacted segments in the place of those that they were made from, each group by itself."""
        ends = [segment.base_offset for segment in cleaned.segments[1:]] + [LONG_MAX]
        for segment, end in zip(cleaned.segments, ends, strict=True):
            for suffix in SEGMENT_SUFFIXES:
                key = cleaned.files.new_key(segment.name, suffix)
                self._storage.set_modified(key, segment.modified_ms * 1_000_000)
            old = [each for each in cleaned.replaced if segment.base_offset <= each.base_offset < end]
            self._schedule_deletion(
                swap_in(self._storage, self.folder, segment.base_offset, [each.base_offset for each in old])
            )
        replaced = set(cleaned.replaced)
        self._closed = (*cleaned.segments, *(each for each in self._closed if each not in replaced))
        self._indexes.clear()
        self._first_dirty_offset, self._state = cleaned.first_dirty_offset, None

    # The end.

    def close(self) -> None:
        """Leave the log as a broker leaves it: indexes trimmed, all of it durable, the producers at its end known.

        A .snapshot that is there stays, as a broker's does: it may name producers that were forgotten since.
        """
        with self._lock, self._failing():
            self._active.close()
            self._recovery_point = self.log_end_offset
            name = offset_name(self.log_end_offset) + SNAPSHOT
            if self.log_end_offset > self.first_base_offset and not self._has(name):
                self._write_snapshot(self.log_end_offset)
            self._failure = StorageError(self.folder, "the log is closed", "Open it again.")

    def abandon(self) -> None:
        """Let go of the files as they are, as a crash would; the next load mends what has to be."""
        with self._lock:
            self._active.abandon()
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


def _settle_topic_id(storage: DirectoryStorage, folder: str, topic_id: str | None) -> str | None:
    """The id in partition.metadata, which is written where it is missing and the id is known."""
    key = f"{folder}/{PARTITION_METADATA}"
    try:
        found = decode_partition_metadata(storage.read(key), key)
    except NotFoundError:
        if topic_id is not None:
            storage.replace(key, encode_partition_metadata(topic_id))
        return topic_id
    if topic_id is not None and found != topic_id:
        raise CorruptionError(
            key, 0, f"topic id {topic_id}", found,
            "The folder belongs to another topic of the same name: move it away.",
        )  # fmt: skip
    return found
