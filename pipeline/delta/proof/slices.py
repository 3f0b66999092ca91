"""Divides a table and its topic into parts that fit in memory. Each part is read and compared by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_engine.record.partitioner import partition_keys

ROWS_AT_ONCE = 2_000_000
"""About so many rows and records are compared at once."""
_OFFSETS_TOGETHER = 4096


@dataclass(frozen=True)
class Slice:
    """A part of a table and of its topic.

    number, slices: this part, from 0, and the number of parts.
    by_key: whether the key of a record decides to which part it belongs; else its offset.
    """

    number: int
    slices: int
    by_key: bool

    def contains(self, keys: pa.Array, offsets: pa.Array) -> pa.BooleanArray:
        """Which records or rows belong to this part."""
        if self.slices == 1:
            return pa.array(np.ones(len(keys), np.bool_))
        if self.by_key:
            return pa.array(partition_keys(keys, self.slices, 0) == self.number)
        groups = np.array(offsets.fill_null(0).to_numpy(zero_copy_only=False), np.int64) // _OFFSETS_TOGETHER
        return pa.array(groups % self.slices == self.number)


def slices_of(rows: int, *, by_key: bool) -> list[Slice]:
    """The parts of a table and a topic that together have this number of rows and records."""
    count = max(1, -(-rows // ROWS_AT_ONCE))
    return [Slice(number, count, by_key) for number in range(count)]
