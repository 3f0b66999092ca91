"""The .timeindex file (Kafka's TimeIndex): up to which offset no timestamp is larger.

    offset size field
         0    8 timestamp        the largest in the segment so far
         8    4 relative_offset  last offset, relative to the base, of the batch that brought it

Big-endian, both non-decreasing. Sparse and derivable like the offset index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


def decode_time_index(data: bytes) -> npt.NDArray[Any]:
    """The whole entries of a file, dtype TIME_ENTRY; ends before the first that goes back."""
    entries = np.frombuffer(data[: len(data) // TIME_ENTRY.itemsize * TIME_ENTRY.itemsize], TIME_ENTRY)
    timestamps, offsets = (entries[field].astype(np.int64) for field in ("timestamp", "relative_offset"))
    steady = (timestamps[1:] >= timestamps[:-1]) & (offsets[1:] >= offsets[:-1])
    return entries if steady.all() else entries[: int(steady.argmin()) + 1]


def hint_before(entries: npt.NDArray[Any], timestamp: int) -> tuple[int, int] | None:
    """A smaller time, and the relative offset up to which no record has a later one; None where no entry says so.

    Of the entries with a smaller time it is the last but one. The last would save a few batches more. But if it is damaged,
    it may lie after the record that is looked for. The one before it does not, unless it is damaged as well.
    """
    row = int(np.searchsorted(entries["timestamp"].astype(np.int64), timestamp, side="left")) - 2
    return (int(entries["timestamp"][row]), int(entries["relative_offset"][row])) if row >= 0 else None
