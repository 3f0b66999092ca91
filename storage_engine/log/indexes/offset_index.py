"""Reads the .index file (Kafka's OffsetIndex), which contains the positions of some batches in the .log.

    offset size field
         0    4 relative_offset  the batch's last offset minus the segment's base offset
         4    4 position         the position of the batch in the .log

All numbers are big-endian, and both fields strictly increase. log.growing_segment decides which batches get an entry.
The file can be rebuilt from the .log. An entry only suggests the position at which a scan can start. Readers check
the batch at this position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


def decode_offset_index(data: bytes) -> npt.NDArray[Any]:
    """Return the entries of a file, dtype OFFSET_ENTRY. The first entry that is negative or does not increase, and all
    entries after it, are left out.

    A preallocated file that was not truncated ends with zeros. These zeros are entries that do not increase.
    """
    entries = np.frombuffer(data[: len(data) // OFFSET_ENTRY.itemsize * OFFSET_ENTRY.itemsize], OFFSET_ENTRY)
    offsets, positions = (entries[field].astype(np.int64) for field in ("relative_offset", "position"))
    increasing = (offsets >= 0) & (positions >= 0)
    increasing[1:] &= (offsets[1:] > offsets[:-1]) & (positions[1:] > positions[:-1])
    return entries if increasing.all() else entries[: int(increasing.argmin())]


def position_before(entries: npt.NDArray[Any], relative_offset: int) -> int:
    """Return the position at which a scan for this offset can start: the position of the last entry at or below the
    offset; 0 without such an entry.
    """
    row = int(np.searchsorted(entries["relative_offset"].astype(np.int64), relative_offset, side="right")) - 1
    return int(entries["position"][row]) if row >= 0 else 0
