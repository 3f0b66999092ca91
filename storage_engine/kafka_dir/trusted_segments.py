"""Loads a segment from its indexes, without reading its batches.

An index is trusted if three conditions are met: its size is a whole number of entries, its last entry is inside the
.log, and it has an entry if the .log needs one. Readers check the batch at an entry's position, so a wrong entry
costs only time. A damaged .txnindex is rebuilt. A missing .txnindex is rebuilt if transactions may have been aborted.
Only one thread may load a log, and the log's directory must be locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_files import LogFiles
from storage_engine.kafka_dir.producers_at import KnownProducers
from storage_engine.log.filenames import INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, offset_name
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET, UNKNOWN_LATENESS, GrowingSegment
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY, decode_offset_index
from storage_engine.log.indexes.time_index import TIME_ENTRY, decode_time_index
from storage_engine.log.indexes.transaction_index import (
    AbortedTransaction,
    decode_transaction_index,
    encode_transaction_index,
)
from storage_engine.log.intact_batches import DamagedLog
from storage_engine.log.partition_state import Segment
from storage_engine.log.producers.producer_snapshot import HEADER_BYTES as EMPTY_SNAPSHOT_BYTES
from storage_engine.log.producers.producer_state import aborted_among
from storage_engine.log.segment_reader import SegmentFile, TransactionRanges, first_batch_timestamp, read_chunks
from storage_engine.record.batch import UNKNOWN_SMALLEST, BatchTable, scan_header
from storage_engine.record.decoding import NO_END
from storage_engine.record.header import (
    HEADER_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
)
from storage_engine.storage import Storage


class FoundSegment(NamedTuple):
    """The contents of a segment: its indexes, and the entries of its .txnindex."""

    growing: GrowingSegment
    aborted: tuple[AbortedTransaction, ...]


class TrustedSegments:
    """The segments of a log that is being loaded, according to their indexes."""

    def __init__(
        self, files: LogFiles, producers: KnownProducers, index_interval_bytes: int, log_start_offset: int
    ) -> None:
        self._files = files
        self._producers = producers
        self._index_interval_bytes = index_interval_bytes
        self._log_start_offset = log_start_offset

    def closed(self, number: int) -> Segment | None:
        """A closed segment according to its indexes; None if they are not plausible."""
        base, following = self._files.bases[number], self._files.following(number)
        times = self._largest_timestamp(base, following)
        if times is None or not self._index_checks_out(base, following):
            return None
        aborted = self._aborted(number, following)
        return Segment(
            base, offset_name(base), self._files.size(base), following, *times, self._files.modified_ms(base), aborted
        )

    def newest(self) -> FoundSegment | None:
        """The newest segment according to its indexes and the batches after the last entry; None if they do not fit."""
        base = self._files.bases[-1]
        if self._largest_timestamp(base, NO_END) is None or not self._index_checks_out(base, NO_END):
            return None
        end = base + MOST_RELATIVE_OFFSET + 1
        file = SegmentFile(self._files.key(base, ""), base, self._files.size(base), end)
        growing = resume_segment(self._files.storage, file, self._index_interval_bytes)
        if growing is None or (growing.size and growing.largest_timestamp_offset >= growing.end_offset):
            return None
        return FoundSegment(growing, self._aborted(len(self._files.bases) - 1, growing.end_offset))

    def _index_checks_out(self, base: int, following: int) -> bool:
        """Whether the .index is plausible for its .log. Readers check the batch at an entry's position."""
        size, index_size = self._files.size(base), self._files.size(base, INDEX)
        if not self._files.has(base, INDEX) or index_size % OFFSET_ENTRY.itemsize:
            return False
        if not index_size:
            return self._needs_no_entry(base, size)
        last = self._files.storage.read(self._files.key(base, INDEX), index_size - OFFSET_ENTRY.itemsize)
        relative_offset, position = np.frombuffer(last, OFFSET_ENTRY)[0].tolist()
        return bool(0 <= relative_offset < following - base and 0 < position < size)

    def _needs_no_entry(self, base: int, size: int) -> bool:
        """Whether the .index needs no entry, because no batch begins after the first index.interval.bytes of the .log."""
        interval = self._index_interval_bytes
        if size <= interval:
            return True
        data = self._files.storage.read(self._files.key(base), 0, interval + LOG_OVERHEAD)
        position = 0
        while position <= interval:
            length = int.from_bytes(data[position + LENGTH_POSITION : position + LOG_OVERHEAD], "big", signed=True)
            if length <= 0:
                return False
            position += LOG_OVERHEAD + length
        return position == size

    def _first_header(self, base: int) -> BatchTable:
        """The header of the first batch: a table with one row, or with no row if there is no batch."""
        return scan_header(np.frombuffer(self._files.storage.read(self._files.key(base), 0, HEADER_BYTES), np.uint8))

    def _largest_timestamp(self, base: int, following: int) -> tuple[int, int] | None:
        """The largest timestamp and its offset according to the .timeindex; None if it is not plausible for its .log."""
        index_size = self._files.size(base, TIME_INDEX)
        if not self._files.has(base, TIME_INDEX) or index_size % TIME_ENTRY.itemsize:
            return None
        if not index_size:
            has_timestamp = (self._first_header(base).max_timestamps >= 0).any()
            return None if has_timestamp else (NO_TIMESTAMP, base)
        last = self._files.storage.read(self._files.key(base, TIME_INDEX), index_size - TIME_ENTRY.itemsize)
        timestamp, relative_offset = np.frombuffer(last, TIME_ENTRY)[0].tolist()
        # A file that was preallocated but not trimmed has zeros at its end.
        trimmed = index_size == TIME_ENTRY.itemsize or (timestamp, relative_offset) != (0, 0)
        sane = trimmed and timestamp >= 0 and 0 <= relative_offset < following - base
        return (timestamp, base + relative_offset) if sane else None

    def _aborted(self, number: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The entries of the .txnindex. The file is rebuilt if it is damaged. It is also rebuilt if it is missing and
        it is possible that it had entries.
        """
        base = self._files.bases[number]
        indexed = self.indexed_aborted(base)
        if indexed is not None and not self._lacks_transaction_index(base, end_offset):
            return indexed
        ended = self._producers.replay(number, self._producers.at(base), base, NO_END).ended
        # Two kinds of transactions need no entry although a snapshot can name them: those of which compaction left only
        # the marker, and those that ended below the log start.
        left = [
            each
            for each in ended
            if each.transaction.last_offset >= self._log_start_offset
            and (each.has_records or self._has_records(each.transaction))
        ]
        self.write_aborted(base, aborted := aborted_among(left))
        return aborted

    def _has_records(self, transaction: AbortedTransaction) -> bool:
        """Whether the log has a record of a transaction."""
        first, end = transaction.first_offset, transaction.last_offset
        ranges = TransactionRanges([transaction])
        for number, base in enumerate(self._files.bases):
            following = self._files.following(number)
            if following <= first or base >= end:
                continue
            for chunk in DamagedLog(
                self._files.storage, self._files.key(base), base, self._files.size(base), following
            ).chunks():
                table = chunk.table.select((chunk.table.base_offsets >= first) & (chunk.table.base_offsets < end))
                if (ranges.holding(table) & (table.records_counts > 0)).any():
                    return True
        return False

    def _lacks_transaction_index(self, base: int, end_offset: int) -> bool:
        """Whether a segment without .txnindex may contain aborted transactions. This is so if a producer that has ended
        a transaction is known at the segment's end.
        """
        if self._files.has(base, TRANSACTION_INDEX) or not self._files.size(base):
            return False
        if self._files.size(end_offset, SNAPSHOT) in (0, EMPTY_SNAPSHOT_BYTES):
            return False
        after = self._producers.snapshot(end_offset)
        return after is not None and any(each.coordinator_epoch >= 0 for each in after.entries())

    def indexed_aborted(self, base: int) -> tuple[AbortedTransaction, ...] | None:
        """The entries of the .txnindex; None if it is damaged."""
        if not self._files.has(base, TRANSACTION_INDEX):
            return ()
        key = self._files.key(base, TRANSACTION_INDEX)
        try:
            return decode_transaction_index(self._files.storage.read(key), key)
        except CorruptionError:
            return None

    def write_aborted(self, base: int, aborted: Sequence[AbortedTransaction]) -> None:
        if aborted:
            self._files.write(offset_name(base) + TRANSACTION_INDEX, encode_transaction_index(aborted))
        elif self._files.has(base, TRANSACTION_INDEX):
            self._files.remove(offset_name(base) + TRANSACTION_INDEX)


def resume_segment(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment | None:
    """A segment according to its indexes and the batches after their last entries; None if they do not fit.

    Raises:
        NotFoundError: a file is missing.
    """
    offsets = decode_offset_index(storage.read(file.stem + INDEX))
    times = decode_time_index(storage.read(file.stem + TIME_INDEX))
    segment = GrowingSegment(
        file.base_offset, 0, index_interval_bytes, offset_entries=offsets.tolist(), time_entries=times.tolist()
    )
    if segment.time_entries:
        timestamp, relative_offset = segment.time_entries[-1]
        segment.largest_timestamp, segment.largest_timestamp_offset = timestamp, file.base_offset + relative_offset
    position = segment.offset_entries[-1][1] if segment.offset_entries else 0
    try:
        if file.size:
            first = first_batch_timestamp(storage, file)
            segment.first_timestamp = NO_TIMESTAMP if first is None else first
        for chunk in read_chunks(storage, file, position):
            segment.end_offset = int(chunk.table.last_offsets[-1]) + 1
            newest = int(chunk.table.max_timestamps.argmax())
            if chunk.table.max_timestamps[newest] > segment.largest_timestamp:
                segment.largest_timestamp = int(chunk.table.max_timestamps[newest])
                segment.largest_timestamp_offset = int(chunk.table.last_offsets[newest])
    except CorruptionError:
        return None
    segment.size = file.size
    # Not every header was read.
    segment.smallest_timestamp, segment.largest_lateness_ms = UNKNOWN_SMALLEST, UNKNOWN_LATENESS
    return segment
