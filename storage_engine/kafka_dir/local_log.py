"""The segments of an open log, the producers at its end, and how far it is durable (Kafka's LocalLog).

Batches get their offsets here and are written to the newest segment, which is rolled where it is due: it is closed durably,
the producers at the new base offset are written down, and a new one begins. What may be appended, and when anything goes,
is decided by the PartitionLog that has these segments.

Not synchronised; the PartitionLog sees to that. After an error nothing may be written any more.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from storage_engine.config.kafka_dir import LogConfig
from storage_engine.errors import CorruptionError, InvalidRecordError
from storage_engine.kafka_dir.active_segment import ActiveSegment
from storage_engine.kafka_dir.loading import LoadedLog
from storage_engine.log.filenames import SNAPSHOT, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.partition_state import Segment
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.header import NO_PRODUCER_ID
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage import Directory


class Appended(NamedTuple):
    """Where records went: first_offset <= offset < end_offset."""

    first_offset: int
    end_offset: int


class LocalLog:
    """See the module.

    closed: all segments but the newest. producers: those at the log's end. recovery_point: all below it is durable.
    flushed_ms: when it was moved. config: what holds for it now.
    """

    def __init__(self, storage: Directory, folder: str, config: LogConfig, loaded: LoadedLog, now_ms: int) -> None:
        self.config = config
        self.closed: tuple[Segment, ...] = loaded.closed
        self.producers: Producers = loaded.producers
        self.recovery_point: int = loaded.recovery_point
        self.flushed_ms = now_ms
        self._storage = storage
        self._folder = folder
        growing = loaded.active
        growing.jitter_ms = self._jitter_ms()
        self._active = ActiveSegment(storage, folder, growing, config, loaded.aborted, loaded.active_modified_ms)

    @property
    def growing(self) -> GrowingSegment:
        """The newest segment's content."""
        return self._active.growing

    @property
    def end_offset(self) -> int:
        """What the next record gets."""
        return self._active.growing.end_offset

    @property
    def first_base_offset(self) -> int:
        """Of the oldest segment."""
        return (self.closed[0] if self.closed else self.active_segment()).base_offset

    def active_segment(self) -> Segment:
        """The newest segment as readers see it."""
        return self._active.segment()

    def append(self, data: ByteArray, leader_epoch: int, now_ms: int) -> Appended:
        """Give batches their offsets and an epoch, and write them, rolling in between where it is due.

        Args:
            data: uint8, whole batches that may be appended; changed in place.

        Raises:
            RecordError: the producers refuse one of them; none of them was appended.
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
        """Refuse what no broker lets in, before a byte of it is written."""
        if (table.producer_ids != NO_PRODUCER_ID).any():
            try:
                self.producers.copy().replay(data, table, self._folder)
            except CorruptionError as error:
                raise InvalidRecordError(
                    f"{self._folder}, byte {error.position} of the append", error.problem
                ) from error

    def _append_until_full(self, data: ByteArray, table: BatchTable, row: int, now_ms: int) -> int:
        """Write the batches from a row on that still fit into the newest segment, which may be rolled first.

        Returns:
            The row to go on from.
        """
        if self._must_roll(self._active.growing, table, row, now_ms):
            self.roll(now_ms)
        ahead = self._active.growing.copy()
        stop = row
        while stop == row or (stop < len(table) and not self._must_roll(ahead, table, stop, now_ms)):
            ahead.append(int(table.sizes[stop]), int(table.last_offsets[stop]), int(table.max_timestamps[stop]))
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

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, whose name is durable once a flush or another roll syncs it; without it nothing is
        lost."""
        self.closed = (*self.closed, self._active.close())
        base = self.end_offset
        self.recovery_point, self.flushed_ms = base, now_ms
        self._write_snapshot(base)
        growing = GrowingSegment(base, now_ms, self.config.index_interval_bytes, self._jitter_ms())
        self._active = ActiveSegment(self._storage, self._folder, growing, self.config, modified_ms=now_ms)

    def _jitter_ms(self) -> int:
        """Drawn for each segment, so that partitions which began together do not all roll together."""
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return random.randrange(most) if most else 0

    def _write_snapshot(self, offset: int) -> None:
        self._storage.replace(
            f"{self._folder}/{offset_name(offset)}{SNAPSHOT}", encode_snapshot(self.producers.entries())
        )

    def flush(self, now_ms: int) -> None:
        """Make all that was appended durable, and move the recovery point to the log's end."""
        if self.recovery_point < self.end_offset:
            self._active.sync()
        self.recovery_point, self.flushed_ms = self.end_offset, now_ms

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.ms have passed since the last flush, and anything was appended."""
        return self.recovery_point < self.end_offset and now_ms - self.flushed_ms >= self.config.flush_ms

    def close(self) -> None:
        """Leave the files as a broker leaves them; see PartitionLog.close."""
        self._active.close()
        self.recovery_point = self.end_offset
        name = offset_name(self.end_offset) + SNAPSHOT
        there = {entry.name for entry in self._storage.entries(self._folder)}
        if self.end_offset > self.first_base_offset and name not in there:
            self._write_snapshot(self.end_offset)

    def abandon(self) -> None:
        """Let go of the files as they are."""
        self._active.abandon()
