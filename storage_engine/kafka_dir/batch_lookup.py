"""Finds the batch that contains an offset in an open log. Kafka's LocalLog.read does the same search.

A binary search finds the segment, and the .index of the segment gives a position. Batch headers are read from this
position on. An index entry is used only if the batch at the entry's position ends at the entry's offset. If the entry
is wrong, the segment is read from its start. An index stays in memory after its first use. The caller passes the
segments to each lookup, so any thread may look up offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from storage_engine.log.filenames import INDEX, LOG
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import decode_offset_index
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.batch import Int64Array, scan_header
from storage_engine.record.header import HEADER_BYTES
from storage_engine.storage import Storage

_LOOK_UP_BYTES = 16_384
_MOST_CACHED_INDEXES = 64


class BatchPlace(NamedTuple):
    """The place of a batch: the base offset of its segment, and the position in the .log."""

    base_offset: int
    position: int


class BatchLookup:
    """Finds batches in the log of one folder."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder
        self._indexes: dict[str, tuple[Int64Array, Int64Array]] = {}

    def forget(self) -> None:
        """Drop the indexes in memory. Called after segments were deleted or replaced."""
        self._indexes.clear()

    def locate(
        self, closed: Sequence[Segment], active: Segment, growing: GrowingSegment, offset: int
    ) -> BatchPlace | None:
        """The place of the first batch that ends at or after an offset; None at the log's end.

        Args:
            closed, active: the segments of the log.
            growing: the index entries of the active segment.

        Raises:
            CorruptionError, NotFoundError: as LogReader.read_segments.
        """
        number = max(0, bisect_right(closed, offset, key=lambda segment: segment.base_offset) - 1)
        if not closed or offset >= active.base_offset:
            number = len(closed)
        while number <= len(closed):
            segment = closed[number] if number < len(closed) else active
            place = self._locate_in(segment, growing, offset)
            if place is not None:
                return place
            number += 1
        return None

    def _locate_in(self, segment: Segment, growing: GrowingSegment, offset: int) -> BatchPlace | None:
        if not segment.size or offset >= segment.end_offset:
            return None
        if segment.base_offset == growing.base_offset:
            indexed_offset, position = _entry_of(growing, offset)
        else:
            indexed_offset, position = self._closed_entry(segment, offset)
        if position and not self._ends_at(segment, position, indexed_offset):
            position = 0
        file = SegmentFile(f"{self._folder}/{segment.name}", segment.base_offset, segment.size, segment.end_offset)
        for chunk in read_chunks(self._storage, file, position, _LOOK_UP_BYTES):
            row = int(np.searchsorted(chunk.table.last_offsets, offset))
            if row < len(chunk.table):
                return BatchPlace(segment.base_offset, chunk.position + int(chunk.table.positions[row]))
        return None

    def _ends_at(self, segment: Segment, position: int, offset: int) -> bool:
        data = self._storage.read(f"{self._folder}/{segment.name}{LOG}", position, HEADER_BYTES)
        return bool((scan_header(np.frombuffer(data, np.uint8)).last_offsets == offset).any())

    def _closed_entry(self, segment: Segment, offset: int) -> tuple[int, int]:
        """The last index entry at or below an offset: its offset, and the position of the batch that ends at this
        offset.
        """
        offsets, positions = self._closed_index(segment.name)
        row = int(np.searchsorted(offsets, offset - segment.base_offset, side="right")) - 1
        return (segment.base_offset + int(offsets[row]), int(positions[row])) if row >= 0 else (segment.base_offset, 0)

    def _closed_index(self, name: str) -> tuple[Int64Array, Int64Array]:
        found = self._indexes.get(name)
        if found is None:
            entries = decode_offset_index(self._storage.read(f"{self._folder}/{name}{INDEX}"))
            found = entries["relative_offset"].astype(np.int64), entries["position"].astype(np.int64)
            if len(self._indexes) >= _MOST_CACHED_INDEXES:
                self._indexes.clear()
            self._indexes[name] = found
        return found


def _entry_of(growing: GrowingSegment, offset: int) -> tuple[int, int]:
    """Like _closed_entry, for the active segment."""
    base, entries = growing.base_offset, growing.offset_entries
    row = bisect_right(entries, offset - base, key=lambda entry: entry[0]) - 1
    return (base + entries[row][0], entries[row][1]) if row >= 0 else (base, 0)
