"""A segment as it grows, batch by batch: its size, its largest timestamp, its index entries, and when it is full.

Kafka's LogSegment.append and shouldRoll as pure bookkeeping, without a file: planning asks it where a batch will lie
and writes nothing; the cleaner and the rebuilding of indexes feed it the batches of a file. So every .index and
.timeindex is a function of the bytes of its .log, and equal bytes have equal indexes.
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
from storage_engine.record.batch import BatchTable, Int64Array
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.record.kernels.compiled import INT64, INT64_IN, integers, kernel

MOST_RELATIVE_OFFSET = 2**31 - 1
"""Index entries hold relative offsets in four bytes; a segment never spans more."""


_PAIRS_OUT = types.Array(types.int64, 2, "C")


@kernel(
    integers(6),
    INT64_IN,  # sizes of batches
    INT64_IN,  # their last offsets
    INT64_IN,  # their largest timestamps
    INT64,  # base offset
    INT64,  # bytes between two entries
    INT64,  # size
    INT64,  # bytes since the last entry
    INT64,  # largest timestamp
    INT64,  # its offset
    INT64,  # timestamp of the last time entry
    _PAIRS_OUT,  # offset entries
    _PAIRS_OUT,  # time entries
)
def _grow(
    sizes: Any,
    last_offsets: Any,
    max_timestamps: Any,
    base_offset: Any,
    interval: Any,
    size: Any,
    since_entry: Any,
    largest: Any,
    largest_offset: Any,
    last_time: Any,
    offset_entries: Any,
    time_entries: Any,
) -> Any:
    """GrowingSegment.append for many batches.

    Returns (size, bytes since the last entry, largest timestamp, its offset, offset entries, time entries).
    """
    offsets = 0
    times = 0
    for batch in range(len(sizes)):
        if max_timestamps[batch] > largest:
            largest = max_timestamps[batch]
            largest_offset = last_offsets[batch]
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
    return size, since_entry, largest, largest_offset, offsets, times


@dataclass
class GrowingSegment:
    """The state of one segment between two batches.

    base_offset: of the segment. created_ms: wall clock. jitter_ms: taken off segment.ms, drawn once a segment.
    size: bytes so far. end_offset: behind the last record. first_timestamp: the first batch's largest.
    largest_timestamp_offset: last offset of the batch that brought the largest timestamp.
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
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)
    _bytes_since_entry: int = 0

    def __post_init__(self) -> None:
        if self.end_offset < 0:
            self.end_offset = self.base_offset
            self.largest_timestamp_offset = self.base_offset

    def copy(self) -> Self:
        """One that can grow without changing this."""
        twin = copy.copy(self)
        twin.offset_entries = list(self.offset_entries)
        twin.time_entries = list(self.time_entries)
        return twin

    def resumed(self, created_ms: int, jitter_ms: int) -> Self:
        """This segment as a process takes it up that did not write it: the bytes since the last entry are not known."""
        return dataclasses.replace(self, created_ms=created_ms, jitter_ms=jitter_ms, _bytes_since_entry=0)

    def must_roll(self, config: TopicConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch needs a new segment (Kafka's LogSegment.shouldRoll).

        Args:
            size: of the incoming batch, in bytes. last_offset, max_timestamp: its own.
            now_ms: wall clock, for a segment whose first batch has no timestamp.
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

    def append(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Take in one batch: at most one entry each is added, before its bytes are counted."""
        assert last_offset >= self.end_offset, "offsets increase"
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_entries.append((last_offset - self.base_offset, self.size))
            self._append_time_entry()
            self._bytes_since_entry = 0
        self.size += size
        self.end_offset = last_offset + 1
        self._bytes_since_entry += size

    def append_all(self, table: BatchTable) -> None:
        """Take in many batches."""
        self.append_columns(table.sizes, table.last_offsets, table.max_timestamps)

    def append_columns(self, sizes: Int64Array, last_offsets: Int64Array, max_timestamps: Int64Array) -> None:
        """Take in many batches, of which these are the facts."""
        if not len(sizes):
            return
        assert last_offsets[0] >= self.end_offset, "offsets increase"
        if self.first_timestamp is None:
            self.first_timestamp = int(max_timestamps[0])
        offset_entries, time_entries = np.empty((2, len(sizes), 2), np.int64)
        last_time = self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP
        self.size, self._bytes_since_entry, self.largest_timestamp, self.largest_timestamp_offset, offsets, times = _grow(
            sizes, last_offsets, max_timestamps, self.base_offset, self.index_interval_bytes, self.size,
            self._bytes_since_entry, self.largest_timestamp, self.largest_timestamp_offset, last_time, offset_entries,
            time_entries,
        )  # fmt: skip
        self.end_offset = int(last_offsets[-1]) + 1
        self.offset_entries += map(tuple, offset_entries[:offsets].tolist())
        self.time_entries += map(tuple, time_entries[:times].tolist())

    def seal(self) -> None:
        """The last time entry, which Kafka adds when a segment is rolled or its log closed."""
        self._append_time_entry()

    def _append_time_entry(self) -> None:
        last = self.time_entries[-1][0] if self.time_entries else NO_TIMESTAMP
        if self.largest_timestamp > last:
            self.time_entries.append((self.largest_timestamp, self.largest_timestamp_offset - self.base_offset))

    def segment(
        self, name: str, modified_ms: int, aborted: tuple[AbortedTransaction, ...] = (), horizon_ms: int = NO_TIMESTAMP
    ) -> Segment:
        """This segment as a partition's state names it, under a name and with what its batches' headers do not tell."""
        first_timestamp = NO_TIMESTAMP if self.first_timestamp is None else max(self.first_timestamp, NO_TIMESTAMP)
        return Segment(
            self.base_offset, name, self.size, self.end_offset, self.largest_timestamp, self.largest_timestamp_offset,
            modified_ms, aborted, first_timestamp, horizon_ms,
        )  # fmt: skip

    def offset_index_bytes(self, first_entry: int = 0) -> bytes:
        """The .index file from this entry on."""
        return np.array(self.offset_entries[first_entry:], OFFSET_ENTRY).tobytes()

    def time_index_bytes(self, first_entry: int = 0) -> bytes:
        """The .timeindex file from this entry on."""
        return np.array(self.time_entries[first_entry:], TIME_ENTRY).tobytes()


def roll_ms(config: TopicConfig) -> int:
    """Compacted logs roll early enough for max.compaction.lag.ms to be kept (LogConfig.maxSegmentMs)."""
    if config.compact and config.max_compaction_lag_ms > 0:
        return min(config.max_compaction_lag_ms, config.segment_ms)
    return config.segment_ms


def index_segment(base_offset: int, table: BatchTable, index_interval_bytes: int) -> GrowingSegment:
    """The indexes that belong to a sealed segment with these batches."""
    segment = GrowingSegment(base_offset, 0, index_interval_bytes)
    segment.append_all(table)
    segment.seal()
    return segment
