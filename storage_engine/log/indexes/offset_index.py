"""The .index file (Kafka's OffsetIndex): where in the .log a batch begins.

    offset size field
         0    4 relative_offset  of the batch's last offset to the segment's base offset
         4    4 position         of the batch in the .log

Big-endian, strictly increasing in both. The index is sparse and derivable: SegmentIndexes says which batches get an
entry. An entry is a hint for where to start scanning and is never believed further than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


def decode_offset_index(data: bytes) -> npt.NDArray[Any]:
    """The whole entries of a file, dtype OFFSET_ENTRY; ends before the first that is negative or does not increase.

    A file that was preallocated and not trimmed continues with zeros, which do not increase.
    """
    entries = np.frombuffer(data[: len(data) // OFFSET_ENTRY.itemsize * OFFSET_ENTRY.itemsize], OFFSET_ENTRY)
    offsets, positions = (entries[field].astype(np.int64) for field in ("relative_offset", "position"))
    increasing = (offsets >= 0) & (positions >= 0)
    increasing[1:] &= (offsets[1:] > offsets[:-1]) & (positions[1:] > positions[:-1])
    return entries if increasing.all() else entries[: int(increasing.argmin())]


def position_before(entries: npt.NDArray[Any], relative_offset: int) -> int:
    """Position of the batch to start scanning at for this offset: the largest entry at or below it, else 0."""
    row = int(np.searchsorted(entries["relative_offset"].astype(np.int64), relative_offset, side="right")) - 1
    return int(entries["position"][row]) if row >= 0 else 0
