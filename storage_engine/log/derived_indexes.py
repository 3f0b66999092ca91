"""Derives the indexes of a segment from its .log: the same indexes that Kafka writes for a closed log."""

from __future__ import annotations

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.storage import Storage


def derived_indexes(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment:
    """Derive offset and time index from the .log alone. Existing index files are not read.

    Raises:
        CorruptionError: a batch in the .log is damaged or incomplete, or offsets do not increase.
    """
    growing = GrowingSegment(file.base_offset, 0, index_interval_bytes)
    grow_to_end(storage, file, growing)
    return growing


def grow_to_end(storage: Storage, file: SegmentFile, growing: GrowingSegment) -> None:
    """Add the committed batches after `growing.size` to the indexes, then the last time entry of a closed segment.

    Raises:
        CorruptionError: as in derived_indexes.
    """
    for chunk in read_chunks(storage, file, growing.size):
        last_offsets = chunk.table.last_offsets
        if int(last_offsets[0]) < growing.end_offset or (np.diff(last_offsets) <= 0).any():
            raise CorruptionError(
                file.key, chunk.position, f"increasing offsets, each at least {growing.end_offset}", "a lower offset",
                "Restore the file from a backup.",
            )  # fmt: skip
        growing.append_all(chunk.table)
    growing.seal()
