"""Computes the size, the largest timestamp and the index entries of a segment while batches are appended to it.

A GrowingSegment also decides when the segment is full (Kafka's LogSegment.append and shouldRoll). A GrowingSegment
neither reads nor writes files. Planning uses a GrowingSegment to compute the positions of new batches. The cleaner
passes the batches of a file to a GrowingSegment. The code that rebuilds indexes does the same. So every .index and
.timeindex depends only on the bytes of the .log, and equal bytes have equal indexes. Only one thread at a time may
use a GrowingSegment.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numba import types

from storage_engine.config import TopicConfig
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.partition_state import Segment
from storage_engine.record.batch import NO_SMALLEST, BatchTable, Int64Array
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.record.kernels.compiled import INT64, INT64_IN, integers, kernel

MOST_RELATIVE_OFFSET = 2**31 - 1
"""Index entries have relative offsets of four bytes, so no segment spans more offsets."""


UNKNOWN_LATENESS = 2**63 - 1
"""The value for a lateness that is not known. The maximum of this value and any other lateness is this value."""

_PAIRS_OUT = types.Array(types.int64, 2, "C")


@kernel(
    integers(7),
    INT64_IN,  # sizes of batches
    INT64_IN,  # their last offsets
    INT64_IN,  # their largest timestamps
    INT64_IN,  # their smallest timestamps
    INT64,  # base offset
    INT64,  # bytes between two entries
    INT64,  # size
    INT64,  # bytes since the last entry
    INT64,  # largest timestamp
    INT64,  # its offset
    INT64,  # largest lateness
    INT64,  # timestamp of the last time entry
    _PAIRS_OUT,  # offset entries
    _PAIRS_OUT,  # time entries
)
def _grow(
    sizes: Any,
    last_offsets: Any,
    max_timestamps: Any,
    min_timestamps: Any,
    base_offset: Any,
    interval: Any,
    size: Any,
    since_entry: Any,
    largest: Any,
    largest_offset: Any,
    lateness: Any,
    last_time: Any,
    offset_entries: Any,
    time_entries: Any,
) -> Any:
    """Like GrowingSegment.append, for many batches.

    Returns (size, bytes since the last entry, largest timestamp, its offset, largest lateness, offset entries, time
    entries).
    """
    offsets = 0
    times = 0
    for batch in range(len(sizes)):
        if max_timestamps[batch] > largest:
            largest = max_timestamps[batch]
            largest_offset = last_offsets[batch]
        late = largest - min_timestamps[batch] if min_timestamps[batch] >= 0 else UNKNOWN_LATENESS
        lateness = max(lateness, late)
        if since_entry > interval:
            offset_entries[offsets, 0] = last_offsets[batch] - base_offset
            offset_entries[offsets, 1] = size
            offsets += 1
            if largest > last_time:
                time_entries[times, 0] = largest
                time_entries[times, 1] = largest_offset - base_offset
                times += 1
                last_time = largest
            since_entry = 0
        size += sizes[batch]
        since_entry += sizes[batch]
    return size, since_entry, largest, largest_offset, lateness, offsets, times


@dataclass
class GrowingSegment:
    """The facts about one segment, between two appends.

    base_offset: the base offset of the segment.
    created_ms: the wall clock time of its creation.
    jitter_ms: a random time that is subtracted from segment.ms, chosen once for each segment.
    size: bytes so far.
    end_offset: the offset after the last record.
    first_timestamp: the largest timestamp of the first batch.
    largest_timestamp_offset: the last offset of the first batch that has the largest timestamp.
    smallest_timestamp: the smallest timestamp of all records; NO_SMALLEST if there are no records, UNKNOWN_SMALLEST if
        it is not known.
    largest_lateness_ms: the largest lateness of all records, as defined in Segment; UNKNOWN_LATENESS if it is not
        known.
    """

    base_offset: int
    created_ms: int
    index_interval_bytes: int
    jitter_ms: int = 0
    size: int = 0
    end_offset: int = -1
    first_timestamp: int | None = None
    largest_timestamp: int = NO_TIMESTAMP
    largest_timestamp_offset: int = -1
    smallest_timestamp: int = NO_SMALLEST
    largest_lateness_ms: int = 0
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)
    _bytes_since_entry: int = 0

    def __post_init__(self) -> None:
        if self.end_offset < 0:
            self.end_offset = self.base_offset
            self.largest_timestamp_offset = self.base_offset

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.offset_entries = list(self.offset_entries)
        twin.time_entries = list(self.time_entries)
        return twin

    def resumed(self, created_ms: int, jitter_ms: int) -> Self:
        """Return this segment for a process that did not write it. The bytes up to the next index entry are counted
        from this point on.
        """
        return dataclasses.replace(self, created_ms=created_ms, jitter_ms=jitter_ms, _bytes_since_entry=0)

    def must_roll(self, config: TopicConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch needs a new segment (Kafka's LogSegment.shouldRoll).

        Args:
            size: the size of the new batch in bytes.
            last_offset, max_timestamp: those of the new batch.
            now_ms: the wall clock time, for a segment whose first batch has no timestamp.
        """
        if self.size > config.segment_bytes - size:
            return True
        if self.size > 0 and self._waited_ms(max_timestamp, now_ms) > roll_ms(config) - self.jitter_ms:
            return True
        if len(self.offset_entries) >= config.segment_index_bytes // OFFSET_ENTRY.itemsize:
            return True
        if len(self.time_entries) >= config.segment_index_bytes // TIME_ENTRY.itemsize - 1:
            return True
        return last_offset - self.base_offset > MOST_RELATIVE_OFFSET

    def _waited_ms(self, max_timestamp: int, now_ms: int) -> int:
        if self.first_timestamp is not None and self.first_timestamp >= 0:
            return max_timestamp - self.first_timestamp
        return now_ms - self.created_ms

    def append(self, size: int, last_offset: int, max_timestamp: int, min_timestamp: int) -> None:
        """Append one batch. Each index gets at most one entry, before the bytes of the batch are counted."""
        assert last_offset >= self.end_offset, "offsets increase"
        self.smallest_timestamp = min(self.smallest_timestamp, min_timestamp)
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset
        late = self.largest_timestamp - min_timestamp if min_timestamp >= 0 else UNKNOWN_LATENESS
        self.largest_lateness_ms = max(self.largest_lateness_ms, late)
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_entries.append((last_offset - self.base_offset, self.size))
            self._append_time_entry()
            self._bytes_since_entry = 0
        self.size += size
        self.end_offset = last_offset + 1
        self._bytes_since_entry += size

    def append_all(self, table: BatchTable) -> None:
        """Append many batches."""
        self.append_columns(table.sizes, table.last_offsets, table.max_timestamps, table.min_timestamps)

    def append_columns(
        self, sizes: Int64Array, last_offsets: Int64Array, max_timestamps: Int64Array, min_timestamps: Int64Array
    ) -> None:
        """Append many batches, given by their sizes, last offsets, and largest and smallest timestamps."""
        if not len(sizes):
            return
        self.smallest_timestamp = min(self.smallest_timestamp, int(min_timestamps.min()))
        assert last_offsets[0] >= self.end_offset, "offsets increase"
        if self.first_timestamp is None:
            self.first_timestamp = int(max_timestamps[0])
        offset_entries, time_entries = np.empty((2, len(sizes), 2), np.int64)
        last_time = self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP
        (
            self.size, self._bytes_since_entry, self.largest_timestamp, self.largest_timestamp_offset,
            self.largest_lateness_ms, offsets, times,
        ) = _grow(
            sizes, last_offsets, max_timestamps, min_timestamps, self.base_offset, self.index_interval_bytes, self.size,
            self._bytes_since_entry, self.largest_timestamp, self.largest_timestamp_offset, self.largest_lateness_ms,
            last_time, offset_entries, time_entries,
        )  # fmt: skip
        self.end_offset = int(last_offsets[-1]) + 1
        self.offset_entries += map(tuple, offset_entries[:offsets].tolist())
        self.time_entries += map(tuple, time_entries[:times].tolist())

    def seal(self) -> None:
        """Add the last time entry, as Kafka does when a segment is rolled or its log is closed."""
        self._append_time_entry()

    def _append_time_entry(self) -> None:
        last = self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP
        if self.largest_timestamp > last:
            self.time_entries.append((self.largest_timestamp, self.largest_timestamp_offset - self.base_offset))

    def segment(
        self, name: str, modified_ms: int, aborted: tuple[AbortedTransaction, ...] = (), horizon_ms: int = NO_TIMESTAMP
    ) -> Segment:
        """Return this segment for a partition's state. The arguments are the facts that batch headers do not have."""
        first_timestamp = NO_TIMESTAMP if self.first_timestamp is None else max(self.first_timestamp, NO_TIMESTAMP)
        # A foreign batch may have a timestamp below -1, which the state cannot have.
        smallest = self.smallest_timestamp if NO_TIMESTAMP <= self.smallest_timestamp < NO_SMALLEST else None
        lateness = self.largest_lateness_ms if self.largest_lateness_ms < UNKNOWN_LATENESS else None
        return Segment(
            self.base_offset, name, self.size, self.end_offset, self.largest_timestamp, self.largest_timestamp_offset,
            modified_ms, aborted, first_timestamp, horizon_ms, smallest, lateness,
        )  # fmt: skip

    def offset_index_bytes(self, first_entry: int = 0) -> bytes:
        """Return the bytes of the .index file, beginning with this entry."""
        return np.array(self.offset_entries[first_entry:], OFFSET_ENTRY).tobytes()

    def time_index_bytes(self, first_entry: int = 0) -> bytes:
        """Return the bytes of the .timeindex file, beginning with this entry."""
        return np.array(self.time_entries[first_entry:], TIME_ENTRY).tobytes()


def roll_ms(config: TopicConfig) -> int:
    """Return the time after which a segment is rolled. Compacted logs also roll after max.compaction.lag.ms, because
    only closed segments are compacted (LogConfig.maxSegmentMs)."""
    if config.compact and config.max_compaction_lag_ms > 0:
        return min(config.max_compaction_lag_ms, config.segment_ms)
    return config.segment_ms


def index_segment(base_offset: int, table: BatchTable, index_interval_bytes: int) -> GrowingSegment:
    """Return a closed segment that has these batches."""
    segment = GrowingSegment(base_offset, 0, index_interval_bytes)
    segment.append_all(table)
    segment.seal()
    return segment
