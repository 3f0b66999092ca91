"""Reads the .timeindex file (Kafka's TimeIndex). Each entry has an offset, and the largest timestamp up to this offset.

    offset size field
         0    8 timestamp        the largest timestamp in the segment so far
         8    4 relative_offset  the last offset of the batch with that timestamp, minus the segment's base offset

All numbers are big-endian, and no field decreases. The file has entries only for some batches, and can be rebuilt
from the .log.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


def decode_time_index(data: bytes) -> npt.NDArray[Any]:
    """Return the entries of a file, dtype TIME_ENTRY. The first entry with a lower timestamp or offset, and all entries
    after it, are left out.
    """
    entries = np.frombuffer(data[: len(data) // TIME_ENTRY.itemsize * TIME_ENTRY.itemsize], TIME_ENTRY)
    timestamps, offsets = (entries[field].astype(np.int64) for field in ("timestamp", "relative_offset"))
    steady = (timestamps[1:] >= timestamps[:-1]) & (offsets[1:] >= offsets[:-1])
    return entries if steady.all() else entries[: int(steady.argmin()) + 1]


def hint_before(entries: npt.NDArray[Any], timestamp: int) -> tuple[int, int] | None:
    """Return an entry before the first record with this timestamp, as (timestamp, relative offset), or None.

    The result is the second to last of the entries with a smaller timestamp. With the last of these entries, a scan
    would read a few batches less. But if the last entry is damaged, its offset may be after the requested record. The
    entry before it is safe unless both entries are damaged.
    """
    row = int(np.searchsorted(entries["timestamp"].astype(np.int64), timestamp, side="left")) - 2
    return (int(entries["timestamp"][row]), int(entries["relative_offset"][row])) if row >= 0 else None
