"""Reading one partition as it was at one moment: records in order, and Kafka's look-ups by offset and time.

Works on a PartitionState and the storage that has its files, a topic's under data/ or those of a Kafka log directory,
and never looks for a newer state: where files have gone meanwhile, whoever made the reader makes another one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa

from storage_engine.errors import OffsetOutOfRangeError
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.isolation import Isolation
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.storage import Storage

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3


class LogReader:
    """One partition at one moment. Immutable; any number of threads may read."""

    def __init__(
        self, storage: Storage, partition: PartitionState, stem_of: Callable[[Segment], str], place: str
    ) -> None:
        """
        Args:
            stem_of: the storage key of a segment's files, without a suffix.
            place: what to call the partition in an error.
        """
        self._storage = storage
        self._stem_of = stem_of
        self._place = place
        self.partition = partition

    def end_offset(self, isolation: Isolation) -> int:
        """Behind the last record that a reader may be given."""
        return self.partition.end_offset(isolation)

    def check_offset(self, offset: int) -> None:
        """Check that reading may begin here.

        Raises:
            OffsetOutOfRangeError: below the log start offset or above the high watermark.
        """
        part = self.partition
        if not part.log_start_offset <= offset <= part.high_watermark:
            raise OffsetOutOfRangeError(
                self._place,
                f"offset {offset} lies outside {part.log_start_offset} to {part.high_watermark}",
                "Read from an offset in that range, or from `earliest`.",
            )

    def segment_file(self, segment: Segment) -> SegmentFile:
        """What reading a segment needs."""
        return SegmentFile(self._stem_of(segment), segment.base_offset, segment.size, segment.end_offset)

    def read_segments(
        self, first_offset: int, end_offset: int, isolation: Isolation
    ) -> Iterator[tuple[Segment, Iterator[pa.RecordBatch]]]:
        """Segment by segment, the records with first_offset <= offset < end_offset, in columns.RECORDS.

        Raises:
            CorruptionError: committed bytes have changed.
            NotFoundError: a file is gone.
        """
        segments = self.partition.segments
        aborted = self._aborted(first_offset) if isolation is Isolation.READ_COMMITTED else ()
        start = max(0, bisect_right(segments, first_offset, key=lambda segment: segment.base_offset) - 1)
        for segment in segments[start:]:
            if segment.base_offset >= end_offset:
                return
            if segment.end_offset > first_offset and segment.size:
                file = self.segment_file(segment)
                yield segment, read_records(self._storage, file, first_offset, end_offset, aborted)

    def read(
        self, first_offset: int, end_offset: int | None = None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Iterator[pa.RecordBatch]:
        """Records from first_offset up to end_offset or what the isolation allows, in columns.RECORDS.

        Raises:
            OffsetOutOfRangeError: as check_offset, by this call; what follows comes with the records.
            CorruptionError, NotFoundError: as read_segments.
        """
        self.check_offset(first_offset)
        end = self.end_offset(isolation)
        segments = self.read_segments(first_offset, end if end_offset is None else min(end_offset, end), isolation)
        return chain.from_iterable(records for _, records in segments)

    def _aborted(self, first_offset: int) -> tuple[AbortedTransaction, ...]:
        return tuple(each for each in self.partition.aborted_transactions() if each.last_offset >= first_offset)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """Kafka's ListOffsets: LATEST, EARLIEST, MAX_TIMESTAMP, or the first record not older than a timestamp.

        Returns:
            (offset, timestamp, leader epoch); the timestamp is -1 for LATEST and EARLIEST. None: no such record, or it
            lies behind what the isolation allows.

        Raises:
            CorruptionError, NotFoundError: as read_segments.
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


def _newest_of(part: PartitionState) -> Segment | None:
    """The first segment with the strictly greatest timestamp."""
    segments = [segment for segment in part.segments if segment.largest_timestamp >= 0]
    return max(segments, key=lambda segment: segment.largest_timestamp, default=None)


def _first_reaching(part: PartitionState, timestamp: int) -> Segment | None:
    """The first segment whose largest timestamp is at least this one.

    As in Kafka a segment without any timestamp counts with the time of its last change, so that one emptied by
    compaction hides what is behind it.
    """
    for segment in part.segments:
        largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms
        if largest >= timestamp:
            return segment
    return None
