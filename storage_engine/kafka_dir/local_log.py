"""Defines LocalLog: the segments of an open log, its leader epochs, the producers at the end of the log, and the offset
up to which the log is durable. Also defines Failure, the error after which a log is not written.

Like Kafka's LocalLog, this class gives batches their offsets and writes the batches to the newest segment. When a
roll is due, LocalLog syncs and closes this segment, writes a snapshot of the producers at the new base offset, and
begins a new segment. The PartitionLog that owns the LocalLog decides which records may be appended, and when segments
are deleted.

The class is not thread-safe: the PartitionLog makes one call at a time. After an error nothing more may be written,
except after an error of write_snapshot, begin_epoch or store_epochs, which then have changed nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from storage_engine.config.kafka_dir_keys import LogConfig
from storage_engine.errors import CorruptionError, InvalidRecordError, StorageError
from storage_engine.kafka_dir.active_segment import ActiveSegment
from storage_engine.kafka_dir.log_loading import LoadedLog
from storage_engine.log.checkpoint import LEADER_EPOCHS, encode_leader_epochs
from storage_engine.log.filenames import LOG, SNAPSHOT, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.leader_epochs import Epochs, begin_epoch, cut_start
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.header import NO_PRODUCER_ID
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage import Directory


class Appended(NamedTuple):
    """The offsets that records got: first_offset <= offset < end_offset."""

    first_offset: int
    end_offset: int


class Failure:
    """The error after which an open log can no longer be changed; None before."""

    def __init__(self) -> None:
        self.error: StorageError | None = None

    @contextmanager
    def ending(self, *harmless: type[StorageError]) -> Iterator[None]:
        """Run a change of the log's files. If it fails, every later change raises the same error.

        Args:
            harmless: errors before which nothing has changed.
        """
        if self.error is not None:
            raise self.error
        try:
            yield
        except StorageError as error:
            if not isinstance(error, harmless):
                self.error = error
            raise


class LocalLog:
    """The segments of one open log.

    closed: all segments but the newest.
    producers: those at the log's end.
    replicated_producers: those at the high watermark; None if the log did not end above it when it was loaded.
    epochs: each leader epoch with its first offset.
    flushed_ms: when the recovery point was last moved.
    config: the current configuration.
    """

    def __init__(self, storage: Directory, folder: str, config: LogConfig, loaded: LoadedLog, now_ms: int) -> None:
        self.config = config
        self.closed: tuple[Segment, ...] = loaded.closed
        self.producers: Producers = loaded.producers
        self.replicated_producers = loaded.replicated_producers
        self.epochs: Epochs = loaded.leader_epochs
        self._recovery_point = loaded.recovery_point
        self.flushed_ms = now_ms
        self._storage = storage
        self._folder = folder
        self._stored_epochs = self.epochs
        growing = loaded.active
        growing.jitter_ms = self._jitter_ms()
        self._active = ActiveSegment(storage, folder, growing, config, loaded.aborted, loaded.active_modified_ms)

    @property
    def growing(self) -> GrowingSegment:
        """Describes the contents of the newest segment."""
        return self._active.growing

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._active.growing.end_offset

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return (self.closed[0] if self.closed else self.active_segment()).base_offset

    @property
    def recovery_point(self) -> int:
        """All records of the log below this offset are durable. As in Kafka, it is never below the first segment."""
        return max(self._recovery_point, self.first_base_offset)

    def active_segment(self) -> Segment:
        """Describes the newest segment for readers."""
        return self._active.segment()

    def state(self, log_start_offset: int, high_watermark: int, first_dirty_offset: int | None) -> PartitionState:
        """A description of the log for readers, for retention and for compaction."""
        # The parts are validated already. With a thousand segments, validating them again would take long.
        # A transaction is open until its marker is below the high watermark: another leader can replace the marker.
        producers = self.producers if self.replicated_producers is None else self.replicated_producers
        return PartitionState.model_construct(
            log_start_offset=log_start_offset,
            high_watermark=min(self.end_offset, max(high_watermark, log_start_offset)),
            first_dirty_offset=first_dirty_offset,
            segments=(*self.closed, self.active_segment()),
            leader_epochs=self.epochs,
            listed=None,
            producers=producers.entries(),
        )

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Drop the producers that have not written for this time."""
        for producers in (self.producers, self.replicated_producers):
            if producers is not None:
                producers.expire(now_ms, expiration_ms)

    def append(self, data: ByteArray, leader_epoch: int, now_ms: int) -> Appended:
        """Give batches their offsets and an epoch, and write them. Rolls before a batch if a roll is due.

        Args:
            data: uint8, whole batches. The topic admits each of them. The array is changed in place.

        Raises:
            RecordError: a batch does not fit the state of its producer; none of the batches was appended.
        """
        first_offset = self.end_offset
        stamp_batches(data, scan_batches(data, self._folder).sizes, first_offset, leader_epoch)
        table = scan_batches(data, self._folder)
        self._check_producers(data, table)
        row = 0
        while row < len(table):
            row = self._append_until_full(data, table, row, now_ms)
        return Appended(first_offset, self.end_offset)

    def _check_producers(self, data: ByteArray, table: BatchTable) -> None:
        """Refuse batches that no broker would accept, before a byte of them is written."""
        if (table.producer_ids != NO_PRODUCER_ID).any():
            try:
                self.producers.copy().replay(data, table, self._folder)
            except CorruptionError as error:
                raise InvalidRecordError(
                    f"{self._folder}, byte {error.position} of the append", error.problem
                ) from error

    def _append_until_full(self, data: ByteArray, table: BatchTable, row: int, now_ms: int) -> int:
        """Write batches, beginning with the batch in `row`, as long as they fit into the newest segment. If a roll is
        due, roll first.

        Returns:
            The row of the next batch to write.
        """
        if self._must_roll(self._active.growing, table, row, now_ms):
            self.write_snapshot()
            self.roll(now_ms)
        ahead = self._active.growing.copy()
        columns = table.sizes, table.last_offsets, table.max_timestamps, table.min_timestamps
        stop = row
        while stop == row or (stop < len(table) and not self._must_roll(ahead, table, stop, now_ms)):
            ahead.append(*(int(column[stop]) for column in columns))
            stop += 1
        part = table.select(slice(row, stop))
        self._active.append(data[int(part.positions[0]) : part.end], part, now_ms)
        self._active.add_aborted(aborted_among(self.producers.replay(data, part, self._folder)))
        return stop

    def _must_roll(self, growing: GrowingSegment, table: BatchTable, row: int, now_ms: int) -> bool:
        size, last_offset, timestamp = (
            int(column[row]) for column in (table.sizes, table.last_offsets, table.max_timestamps)
        )
        return growing.must_roll(self.config, size, last_offset, timestamp, now_ms)

    def roll(self, now_ms: int, *, is_flush: bool = True) -> None:
        """Begin a new segment, after write_snapshot. Its name is durable after the next flush or roll. If a crash comes
        before that, no durable record is lost.

        Args:
            is_flush: whether flush.ms begins again.
        """
        self._sync_closed()
        self.closed = (*self.closed, self._active.close())
        base = self.end_offset
        self._mark_durable(base, now_ms if is_flush else self.flushed_ms)
        growing = GrowingSegment(base, now_ms, self.config.index_interval_bytes, self._jitter_ms())
        self._active = ActiveSegment(self._storage, self._folder, growing, self.config, modified_ms=now_ms)

    def _jitter_ms(self) -> int:
        """The jitter is chosen at random for each segment, so that partitions which began at the same time roll at
        different times.
        """
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return random.randrange(most) if most else 0

    def write_snapshot(self) -> None:
        """Write a .snapshot of the producers at the log's end. Each roll needs it. The log changes only after it, so a
        disk without space for the snapshot leaves the log as it was.
        """
        self._storage.replace(
            f"{self._folder}/{offset_name(self.end_offset)}{SNAPSHOT}", encode_snapshot(self.producers.entries())
        )

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at the log's end, and store it."""
        epochs = begin_epoch(self.epochs, epoch, self.end_offset)
        self._write_epochs(epochs)
        self.epochs = epochs

    def cut_epochs(self, start_offset: int) -> None:
        """Drop the leader epochs below a new log start. The file keeps them until store_epochs. Loading cuts them, too."""
        self.epochs = cut_start(self.epochs, start_offset)

    def store_epochs(self) -> None:
        """Write the leader epochs, if the file has others."""
        if self.epochs != self._stored_epochs:
            self._write_epochs(self.epochs)

    def _write_epochs(self, epochs: Epochs) -> None:
        self._storage.replace(f"{self._folder}/{LEADER_EPOCHS}", encode_leader_epochs(epochs))
        self._stored_epochs = epochs

    def flush(self, now_ms: int) -> None:
        """Make all appended records durable, and move the recovery point to the log's end."""
        if self.recovery_point < self.end_offset:
            self._sync_closed()
            self._active.sync()
        self._mark_durable(self.end_offset, now_ms)

    def _mark_durable(self, offset: int, now_ms: int) -> None:
        """Move the recovery point to an offset. As in Kafka's LocalLog.markFlushed, this counts as a flush only if records
        have become durable. So a roll right after a flush does not delay the next flush.
        """
        if offset > self.recovery_point:
            self._recovery_point, self.flushed_ms = offset, now_ms

    def _sync_closed(self) -> None:
        """Make the closed segments above the recovery point durable. This class syncs each segment that it closes. But
        after a crash, the log may have closed segments that another program wrote and did not sync.
        """
        unsynced = [each for each in self.closed if each.end_offset > self.recovery_point]
        for segment in unsynced:
            self._storage.sync_file(f"{self._folder}/{segment.name}{LOG}")
        if unsynced:
            self._storage.sync_names(self._folder)

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages records are not durable, or flush.ms have passed since the last flush."""
        left = self.end_offset - self.recovery_point
        return left > 0 and (left >= self.config.flush_messages or now_ms - self.flushed_ms >= self.config.flush_ms)

    def close(self) -> None:
        """Close the files as a broker would; see PartitionLog.close."""
        self._sync_closed()
        self._active.close()
        self._recovery_point = self.end_offset
        name = offset_name(self.end_offset) + SNAPSHOT
        there = {entry.name for entry in self._storage.entries(self._folder)}
        if self.end_offset > self.first_base_offset and name not in there:
            self.write_snapshot()
        self.store_epochs()

    def abandon(self) -> None:
        """Close the files without syncing them."""
        self._active.abandon()
