"""Writes one segment into the view: its .log, linked or copied, and its indexes as Kafka leaves them in a closed log.

A .log is linked if the file has no bytes beyond its committed size. A file that an uncommitted publish has grown, or
that cannot be linked, is copied up to its committed size. Indexes are written again.

**Settling recognises a settled file** by its modification time, so it needs no list of settled files. The milliseconds
are the segment's own, which Kafka reads; the digits below them are a hash of the segment's name, its committed size and
the size of the file itself. A file that was made from another source, was written to or was cut off has another time
and is made again. If a file system does not store these digits, each settle makes these files again.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from storage_engine.errors import CorruptionError, NotFoundError, StorageError
from storage_engine.log.derived_indexes import derived_indexes, grow_to_end
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import decode_offset_index
from storage_engine.log.indexes.time_index import decode_time_index
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage import FolderEntry, Storage, ViewableStorage


def show_log(
    storage: ViewableStorage,
    file: SegmentFile,
    segment: Segment,
    stored: FolderEntry | None,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    """Show the committed bytes of a .log.

    Args:
        stored: the file under data/. shown: where, without a suffix. there: what the folder shows now.

    Raises:
        NotFoundError, CorruptionError: the file under data/ is missing, or shorter than the state says.
        StorageError: the storage refused.
    """
    if stored is None:
        raise NotFoundError(file.key, "the state names it, and it is not there", "Restore the file from a backup.")
    if stored.size < segment.size and not storage.read(file.key, segment.size - 1, 1):
        # Read, because on NFS a size may be an old one until the file is opened.
        raise CorruptionError(
            file.key, stored.size, f"{segment.size} committed bytes", str(stored.size),
            "Restore the file from a backup.",
        )  # fmt: skip
    time = _settled_ns(segment, segment.size)
    entry = there.get(offset_name(segment.base_offset) + LOG)
    if stored.size == segment.size:
        if entry is not None and (entry.file_id, entry.modified_ns) == (stored.file_id, time):
            return
        try:
            storage.show(file.key, shown + LOG, time)
            return
        except NotFoundError:
            raise
        except StorageError:
            pass  # log/ on another file system, or another user's file: a copy does as well
    if entry is None or entry.file_id == stored.file_id or (entry.size, entry.modified_ns) != (segment.size, time):
        storage.show_copy(file.key, segment.size, shown + LOG, time)


def show_indexes(
    storage: ViewableStorage,
    file: SegmentFile,
    segment: Segment,
    index_interval_bytes: int,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    """Show a segment's .index and .timeindex; arguments as show_log.

    Raises:
        CorruptionError: the .log does not hold whole batches with rising offsets.
    """
    entries = [there.get(offset_name(segment.base_offset) + suffix) for suffix in (INDEX, TIME_INDEX)]
    if all(entry is not None and entry.modified_ns == _settled_ns(segment, entry.size) for entry in entries):
        return
    closed = _closed_indexes(storage, file, segment, index_interval_bytes)
    indexes = {INDEX: closed.offset_index_bytes(), TIME_INDEX: closed.time_index_bytes()}
    for suffix, data in indexes.items():
        storage.show_bytes(data, shown + suffix, _settled_ns(segment, len(data)))


def _settled_ns(segment: Segment, size: int) -> int:
    """The time of change by which a file of this size, made from this segment, is known again."""
    return segment.modified_ms * 1_000_000 + zlib.crc32(f"{segment.name} {segment.size} {size}".encode()) % 1_000_000


def _closed_indexes(storage: Storage, file: SegmentFile, segment: Segment, index_interval_bytes: int) -> GrowingSegment:
    """The indexes of a segment's committed bytes, as Kafka leaves them in a log that was closed.

    The files under data/ may lack the closing time entry, hold entries of bytes that were never committed, and have
    lost sectors in a power cut, which then are missing or zeros. Where all entries rise, none before the last was lost:
    they are taken if the last one's batch ends at its offset, and from there on the .log is read. Else, and where the
    outcome is not what the state knows about the segment, all of the .log is read.

    Raises:
        CorruptionError: the .log does not hold whole batches with rising offsets.
    """
    resumed = _resume_at_last_entry(storage, file, index_interval_bytes)
    if resumed is not None:
        grow_to_end(storage, file, resumed)
        largest = resumed.end_offset, resumed.largest_timestamp, resumed.largest_timestamp_offset
        if largest == (segment.end_offset, segment.largest_timestamp, segment.largest_timestamp_offset):
            return resumed
    return derived_indexes(storage, file, index_interval_bytes)


def _resume_at_last_entry(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment | None:
    """The segment as it was when its last committed index entry was added; None where the indexes do not say."""
    try:
        offset_bytes, time_bytes = storage.read(file.stem + INDEX), storage.read(file.stem + TIME_INDEX)
    except NotFoundError:
        return None
    offsets, times = decode_offset_index(offset_bytes), decode_time_index(time_bytes)
    timestamps = times["timestamp"].astype(np.int64)
    if (offsets.nbytes, times.nbytes) != (len(offset_bytes), len(time_bytes)) or (np.diff(timestamps) <= 0).any():
        return None
    offsets = offsets[offsets["position"].astype(np.int64) < file.size]
    if not len(offsets) or int(offsets[0]["position"]) <= 0:
        return None
    relative_offset, position = (int(offsets[-1][field]) for field in ("relative_offset", "position"))
    # A time entry at or below that offset was there at that moment: one that came later tells of a later batch.
    times = times[times["relative_offset"].astype(np.int64) <= relative_offset]
    largest, largest_at = times[-1].tolist() if len(times) else (NO_TIMESTAMP, 0)
    try:
        chunk = next(read_chunks(storage, file, position), None)
    except CorruptionError:
        return None
    if (
        chunk is None
        or int(chunk.table.last_offsets[0]) != file.base_offset + relative_offset
        or int(chunk.table.max_timestamps[0]) > largest
    ):
        return None
    return GrowingSegment(
        file.base_offset,
        0,
        index_interval_bytes,
        size=position,
        end_offset=file.base_offset + relative_offset,
        largest_timestamp=largest,
        largest_timestamp_offset=file.base_offset + largest_at,
        offset_entries=offsets.tolist(),
        time_entries=times.tolist(),
    )
