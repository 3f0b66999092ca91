"""Derives the indexes of a segment from its .log, as Kafka leaves them in a closed log."""

from __future__ import annotations

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.storage import Storage


def derived_indexes(storage: Storage, file: SegmentFile, index_interval_bytes: int) -> GrowingSegment:
    """All of them from the .log alone, whatever the files beside it hold.

    Raises:
        CorruptionError: the .log does not hold whole batches with rising offsets.
    """
    growing = GrowingSegment(file.base_offset, 0, index_interval_bytes)
    grow_to_end(storage, file, growing)
    return growing


def grow_to_end(storage: Storage, file: SegmentFile, growing: GrowingSegment) -> None:
    """Take in the rest of the committed bytes, and close.

    Raises:
        CorruptionError: as derived_indexes.
    """
    for chunk in read_chunks(storage, file, growing.size):
        last_offsets = chunk.table.last_offsets
        if int(last_offsets[0]) < growing.end_offset or (np.diff(last_offsets) <= 0).any():
            raise CorruptionError(
                file.key, chunk.position, f"offsets that rise from {growing.end_offset}", "one that goes back",
                "Restore the file from a backup.",
            )  # fmt: skip
        growing.append_all(chunk.table)
    growing.seal()
