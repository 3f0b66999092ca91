"""Writes one segment into the view (log/): its .log and its index files. The index files are the same as in a closed
log of Kafka.

A .log is linked if the file under data/ has no bytes beyond its committed size, and if a link is possible. In all other
cases, the committed bytes are copied. Index files are always written as new files.

**Up-to-date files are recognised by their modification time**, so no list of these files is needed. Kafka reads the
modification time in milliseconds as the time of the segment's last change. The digits below the millisecond are a
hash of three values: the segment's name, its committed size, and the size of the file in the view. The digits do not
match if a file was made from another segment, or was changed or truncated. If the digits do not match, the file is
written again. If a file system does not store the digits below the millisecond, the files are written again each time
the topic is settled.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from storage_engine.errors import CorruptionError, NotFoundError, StorageError
from storage_engine.log.derived_indexes import derived_indexes, grow_to_end
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, offset_name
from storage_engine.log.growing_segment import UNKNOWN_LATENESS, GrowingSegment
from storage_engine.log.indexes.offset_index import decode_offset_index
from storage_engine.log.indexes.time_index import decode_time_index
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.batch import UNKNOWN_SMALLEST
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage import FolderEntry, Storage, View


def show_log(
    storage: Storage,
    view: View,
    file: SegmentFile,
    segment: Segment,
    stored: FolderEntry | None,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    """Write the committed bytes of a .log into the view.

    Args:
        stored: the file under data/; None if it is missing.
        shown: the path of the segment in the view, without a suffix.
        there: the present files of the partition's folder in the view.

    Raises:
        NotFoundError, CorruptionError: the file under data/ is missing, or shorter than its committed size.
        StorageError: the storage refused.
    """
    if stored is None:
        raise NotFoundError(file.key, "is missing, although the state names it", "Restore the file from a backup.")
    if stored.size < segment.size and not storage.read(file.key, segment.size - 1, 1):
        # The read is necessary: on NFS a listing may show an old size until the file is opened.
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
            view.show(file.key, shown + LOG, time)
            return
        except NotFoundError:
            raise
        except StorageError:
            pass  # log/ is on another file system, or the file belongs to another user: copy it instead
    if entry is None or entry.file_id == stored.file_id or (entry.size, entry.modified_ns) != (segment.size, time):
        view.show_copy(file.key, segment.size, shown + LOG, time)


def show_indexes(
    storage: Storage,
    view: View,
    file: SegmentFile,
    segment: Segment,
    index_interval_bytes: int,
    shown: str,
    there: Mapping[str, FolderEntry],
) -> None:
    """Write a segment's .index and .timeindex into the view. Arguments are those of show_log.

    Raises:
        CorruptionError: the .log does not consist of complete batches with increasing offsets.
    """
    entries = [there.get(offset_name(segment.base_offset) + suffix) for suffix in (INDEX, TIME_INDEX)]
    if all(entry is not None and entry.modified_ns == _settled_ns(segment, entry.size) for entry in entries):
        return
    closed = _closed_indexes(storage, file, segment, index_interval_bytes)
    indexes = {INDEX: closed.offset_index_bytes(), TIME_INDEX: closed.time_index_bytes()}
    for suffix, data in indexes.items():
        view.show_bytes(data, shown + suffix, _settled_ns(segment, len(data)))


def _settled_ns(segment: Segment, size: int) -> int:
    """The modification time, in nanoseconds, of an up-to-date file of this size that was made from this segment."""
    return segment.modified_ms * 1_000_000 + zlib.crc32(f"{segment.name} {segment.size} {size}".encode()) % 1_000_000


def _closed_indexes(storage: Storage, file: SegmentFile, segment: Segment, index_interval_bytes: int) -> GrowingSegment:
    """The indexes of a segment's committed bytes, as Kafka leaves them in a closed log.

    The index files under data/ may lack the last time entry, and may have entries for bytes that were never committed.
    A power cut may have left some of their sectors missing or zero. If all entries increase, no entry before the last
    one was lost. The entries are used if the batch at the last entry's position ends at this entry's offset. Then only
    the rest of the .log is read. If the batch does not end there, or if the result does not agree with the state, the
    whole .log is read.

    Raises:
        CorruptionError: the .log does not consist of complete batches with increasing offsets.
    """
    resumed = _resume_at_last_entry(storage, file, index_interval_bytes)
    if resumed is not None:
        grow_to_end(storage, file, resumed)
        largest = resumed.end_offset, resumed.largest_timestamp, resumed.largest_timestamp_offset
        if largest == (segment.end_offset, segment.largest_timestamp, segment.largest_timestamp_offset):
            return resumed
    return derived_indexes(storage, file, index_interval_bytes)


def _resume_at_last_entry(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment | None:
    """The segment at the time when its last committed index entry was added; None if the index files are not usable."""
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
    # Time entries up to that offset existed at that moment. Later time entries are for later batches.
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
        smallest_timestamp=UNKNOWN_SMALLEST,  # not every header was read
        largest_lateness_ms=UNKNOWN_LATENESS,
        offset_entries=offsets.tolist(),
        time_entries=times.tolist(),
    )
