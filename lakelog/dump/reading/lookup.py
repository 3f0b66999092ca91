"""Finds the entry of a .log for an offset in the same way as Kafka, even if an index is wrong.

    offset --.index--> start position --.log, header by header--> first entry that ends at or after the offset

A dump shows what Kafka would find. So the search in the .index follows OffsetIndex.lookup step by step. If entries are
out of order, another binary search could find another entry than Kafka.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from lakelog.dump.reading.entries import LogEntries, LogFile, entry_at
from storage_engine.errors import CorruptionError
from storage_engine.log.indexes.offset_index import OFFSET_ENTRY

DERIVABLE = "This index can be rebuilt from the .log file."
"""The remedy for a damaged index."""
_WARM_ENTRIES = 8192 // OFFSET_ENTRY.itemsize


def indexed_position(entries: npt.NDArray[Any], relative_offset: int) -> int:
    """The position at which Kafka starts to look for an offset, given the entries of the .index.

    Kafka tries the last entries first, because they are in the page cache.
    """
    if not len(entries):
        return 0
    offsets, positions = entries["relative_offset"], entries["position"]
    first_warm = max(0, len(entries) - 1 - _WARM_ENTRIES)
    if offsets[first_warm] < relative_offset:
        low, high = first_warm, len(entries) - 1
    elif offsets[0] > relative_offset:
        return 0
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) // 2
        if offsets[middle] == relative_offset:
            return int(positions[middle])
        if offsets[middle] > relative_offset:
            high = middle - 1
        else:
            low = middle
    return int(positions[low])


class Cursor:
    """Finds entries by their offsets. The search continues from the entry that was found last, if the result is the
    same as with a new search."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._start = self._offset = 0
        self._reached = 0

    def first_to(self, start: int, offset: int) -> LogEntries | None:
        """Search from the position `start`. Returns the header of the first entry that ends at or after the offset;
        None if there is no such entry.

        Raises:
            CorruptionError: the position is outside the log, or an entry has an impossible length.
        """
        position = start
        if start >= self._start and offset >= self._offset:
            position = max(start, self._reached)
        if not 0 <= position <= self._log.size:
            place = f"a position up to {self._log.size} in the .index"
            raise CorruptionError(self._log.name, self._log.size, place, str(position), DERIVABLE)
        while (entry := entry_at(self._log, position)) is not None and last_offset(entry) < offset:
            position = entry.end
        self._start, self._offset, self._reached = start, offset, position
        return entry


def last_offset(entry: LogEntries) -> int:
    """The last offset of a single entry."""
    return int(entry.table.last_offsets[0])
