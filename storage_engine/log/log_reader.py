"""Reads one partition in the state of one moment: records in order, and Kafka's lookups by offset and time.

A LogReader uses a PartitionState, and the storage with the files of the partition. These files are in data/ of a
root, or in a Kafka log directory. A LogReader never reads a newer state. If cleaning has deleted a file in the
meantime, a read raises NotFoundError. The caller then makes a new reader from a newer state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa

from storage_engine.errors import OffsetOutOfRangeError
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.isolation import Isolation
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.storage import Storage
from storage_engine.storage.read_ahead import read_ahead

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


class LogReader:
    """One partition at one moment. It is immutable and thread-safe."""

    def __init__(
        self, storage: Storage, partition: PartitionState, stem_of: Callable[[Segment], str], place: str
    ) -> None:
        """
        Args:
            stem_of: returns the storage key of a segment's files, without a suffix.
            place: the name of the partition in an error.
        """
        self._storage = storage
        self._stem_of = stem_of
        self._place = place
        self.partition = partition

    def end_offset(self, isolation: Isolation) -> int:
        """Return the offset after the last record that a reader may get."""
        return self.partition.end_offset(isolation)

    def check_offset(self, offset: int) -> None:
        """Check that reading may begin at this offset.

        Raises:
            OffsetOutOfRangeError: the offset is below the log start offset or above the high watermark.
        """
        part = self.partition
        if not part.log_start_offset <= offset <= part.high_watermark:
            raise OffsetOutOfRangeError(
                self._place,
                f"expected an offset from {part.log_start_offset} to {part.high_watermark}, found {offset}",
                "Read from an offset in that range, or from `earliest`.",
            )

    def segment_file(self, segment: Segment) -> SegmentFile:
        """Return the file of a segment, for segment_reader."""
        return SegmentFile(self._stem_of(segment), segment.base_offset, segment.size, segment.end_offset)

    def read_segments(
        self, first_offset: int, end_offset: int, isolation: Isolation
    ) -> Iterator[tuple[Segment, Iterator[pa.RecordBatch]]]:
        """Yield each segment with its records with first_offset <= offset < end_offset, in columns.RECORDS.

        Raises:
            CorruptionError: committed bytes are damaged.
            NotFoundError: a file was deleted.
        """
        segments = self.partition.segments
        aborted = self._aborted(first_offset) if isolation is Isolation.READ_COMMITTED else ()
        start = max(0, bisect_right(segments, first_offset, key=lambda segment: segment.base_offset) - 1)
        end = bisect_left(segments, end_offset, key=lambda segment: segment.base_offset)
        found = [each for each in segments[start:end] if each.end_offset > first_offset and each.size]
        whole = (self.segment_file(each) for each in found if each.end_offset <= end_offset)
        reads = read_ahead(self._storage, ((file.key, file.size) for file in whole))
        for segment in found:
            yield segment, read_records(reads, self.segment_file(segment), first_offset, end_offset, aborted)

    def read(
        self, first_offset: int, end_offset: int | None = None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records from first_offset to end_offset that the isolation allows, in columns.RECORDS.

        Raises:
            OffsetOutOfRangeError: as in check_offset. This call raises it; the other errors are raised by the iterator.
            CorruptionError, NotFoundError: as in read_segments.
        """
        self.check_offset(first_offset)
        end = self.end_offset(isolation)
        segments = self.read_segments(first_offset, end if end_offset is None else min(end_offset, end), isolation)
        return chain.from_iterable(records for _, records in segments)

    def _aborted(self, first_offset: int) -> tuple[AbortedTransaction, ...]:
        return tuple(each for each in self.partition.aborted_transactions() if each.last_offset >= first_offset)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """Return the offset for a time, as Kafka's ListOffsets does. For a timestamp, Kafka looks only into the first
        segment whose largest timestamp is high enough. A segment without timestamps counts with the time of its last
        change. So if compaction has emptied a segment, Kafka may find no record, although a later segment has one.

        Args:
            time: LATEST, EARLIEST, MAX_TIMESTAMP, or a timestamp. For a timestamp, the result is the first record that
                has this timestamp or a later timestamp.

        Returns:
            (offset, timestamp, leader epoch). The timestamp is -1 for LATEST and EARLIEST. None if there is no such
            record, or if the isolation hides the record.

        Raises:
            CorruptionError, NotFoundError: as in read_segments.
        """
        part = self.partition
        end = self.end_offset(isolation)
        if time == LATEST:
            return end, -1, part.epoch_at(end)
        if time == EARLIEST:
            return part.log_start_offset, -1, part.epoch_at(part.log_start_offset)
        segment = _newest_of(part) if time == MAX_TIMESTAMP else _first_reaching(part, time)
        if segment is None:
            return None
        timestamp = segment.largest_timestamp if time == MAX_TIMESTAMP else time
        found = first_record_at(self._storage, self.segment_file(segment), timestamp, part.log_start_offset)
        return found if found and found[0] < end else None

    def first_at(self, timestamp: int, isolation: Isolation) -> tuple[int, int, int] | None:
        """Return the first record, from the log start offset on, with this timestamp or a later timestamp. Other than
        offset_at, this method finds the record in whatever segment it is.

        Args:
            timestamp: at least 0.

        Returns:
            (offset, timestamp, leader epoch). None if there is no such record, or if the isolation hides the record.

        Raises:
            CorruptionError, NotFoundError: as in read_segments.
        """
        start = self.partition.log_start_offset
        for segment in self.partition.segments:
            if segment.largest_timestamp >= timestamp and segment.end_offset > start:
                found = first_record_at(self._storage, self.segment_file(segment), timestamp, start)
                if found is not None:
                    return found if found[0] < self.end_offset(isolation) else None
        return None


def _newest_of(part: PartitionState) -> Segment | None:
    """Return the first segment that has the largest timestamp of all."""
    segments = [segment for segment in part.segments if segment.largest_timestamp >= 0]
    return max(segments, key=lambda segment: segment.largest_timestamp, default=None)


def _first_reaching(part: PartitionState, timestamp: int) -> Segment | None:
    """Return the first segment whose largest timestamp is at least this timestamp. For a segment without timestamps, the
    time of its last change is used, as in Kafka."""
    for segment in part.segments:
        largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms
        if largest >= timestamp:
            return segment
    return None
