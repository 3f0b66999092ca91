"""Finds two offsets of a segment: all records before the first offset are too early, and all records from the second
offset on are too late.

The .timeindex gives both offsets, and the headers of some batches confirm the offsets. A damaged byte must not
exclude a record. But indexes have no CRC, and these functions do not check the CRCs of batches. So an offset is used
only if the .timeindex and the headers agree. If the .timeindex and the headers disagree, or if the .timeindex has no
useful entry, the result excludes fewer records, or no records. The functions read only some batch headers of 61 bytes
each, and no records. The functions keep no state between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from storage_engine.errors import NotFoundError
from storage_engine.log.filenames import TIME_INDEX
from storage_engine.log.indexes.time_index import decode_time_index
from storage_engine.log.segment_reader import SegmentFile, header_at, position_of
from storage_engine.record.batch import Int64Array
from storage_engine.storage import Storage

_MOST_HEADERS = 64
"""At most this many headers are read for one offset. Two entries are usually one batch or a few kilobytes apart."""


class _Entry(NamedTuple):
    """An entry of the .timeindex, with an absolute offset."""

    timestamp: int
    offset: int


class _Header(NamedTuple):
    """The offsets of a batch, and its largest timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int

    def confirms(self, entry: _Entry) -> bool:
        """Whether the batch has the offset and the timestamp of an entry."""
        return self.base_offset <= entry.offset <= self.last_offset and self.timestamp == entry.timestamp


def first_offset_reaching(storage: Storage, segment: SegmentFile, timestamp: int) -> int:
    """Return an offset before which no record of a segment has at least this timestamp.

    The last two entries with smaller timestamps are used, and the headers between them. If the last entry is damaged,
    its offset may be after the wanted record. The headers show that.

    Raises:
        NotFoundError: the .log was deleted.
    """
    timestamps, offsets = _entries(storage, segment)
    stop = int(np.searchsorted(timestamps, timestamp))
    earlier = [_Entry(int(timestamps[row]), int(offsets[row])) for row in range(max(0, stop - 2), stop)]
    begin = position_of(storage, segment, earlier[0].offset) if len(earlier) == 2 else 0
    found = segment.base_offset
    for header in _headers(storage, segment, begin):
        if header.timestamp >= timestamp:
            break
        while earlier and header.confirms(earlier[0]):
            found = earlier[0].offset + 1
            del earlier[0]
        if not earlier or header.last_offset >= earlier[0].offset:
            break
    return found


def first_offset_beyond(storage: Storage, segment: SegmentFile, timestamp: int) -> int:
    """Return an offset of a segment. All records from this offset on are in or after a batch whose largest timestamp is
    at least the given timestamp. Usually, the result is the base offset of the first such batch. If the .timeindex
    names no such batch, the result is the end offset.

    Raises:
        NotFoundError: the .log was deleted.
    """
    timestamps, offsets = _entries(storage, segment)
    row = int(np.searchsorted(timestamps, timestamp))
    if row < len(timestamps):
        entry = _Entry(int(timestamps[row]), int(offsets[row]))
        for header in _headers(storage, segment, position_of(storage, segment, entry.offset)):
            if header.confirms(entry):
                return header.base_offset if header.last_offset == entry.offset else entry.offset + 1
            if header.last_offset >= entry.offset:
                break
    return segment.end_offset


def _entries(storage: Storage, segment: SegmentFile) -> tuple[Int64Array, Int64Array]:
    """The timestamps of the .timeindex and their absolute offsets; none if the file is missing."""
    try:
        entries = decode_time_index(storage.read(segment.stem + TIME_INDEX))
    except NotFoundError:
        entries = decode_time_index(b"")
    timestamps, offsets = (entries[field].astype(np.int64) for field in ("timestamp", "relative_offset"))
    return timestamps, offsets + segment.base_offset


def _headers(storage: Storage, segment: SegmentFile, position: int) -> Iterator[_Header]:
    """The headers from a batch's position on, up to the first that is damaged, and at most _MOST_HEADERS."""
    for _ in range(_MOST_HEADERS):
        if position >= segment.size:
            return
        table = header_at(storage, segment, position)
        if not len(table):
            return
        yield _Header(int(table.base_offsets[0]), int(table.last_offsets[0]), int(table.max_timestamps[0]))
        position += int(table.sizes[0])
