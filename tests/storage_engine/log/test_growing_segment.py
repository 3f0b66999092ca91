"""Tests that appending many batches in one call gives the same indexes as appending them one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.record.batch import NO_SMALLEST, UNKNOWN_SMALLEST

BASE = 1000
_SMALLEST = st.integers(-1, 50) | st.sampled_from([UNKNOWN_SMALLEST, NO_SMALLEST])
_BATCHES = st.lists(st.tuples(st.integers(61, 300), st.integers(1, 9), st.integers(-1, 50), _SMALLEST), max_size=30)


@given(pieces=st.lists(_BATCHES, max_size=4), interval=st.sampled_from([0, 100, 500, 4096]))
def test_batches_at_once_are_indexed_as_one_by_one(pieces, interval) -> None:
    one_by_one, at_once = (GrowingSegment(BASE, 0, interval) for _ in range(2))
    offset = BASE
    for piece in pieces:
        last_offsets = []
        for size, records, timestamp, smallest in piece:
            last_offsets.append(offset + records - 1)
            one_by_one.append(size, last_offsets[-1], timestamp, smallest)
            offset += records
        sizes, _, timestamps, smallest_ones = np.array(piece, np.int64).reshape(-1, 4).T.copy()
        at_once.append_columns(sizes, np.array(last_offsets, np.int64), timestamps, smallest_ones)
    for each in (one_by_one, at_once):
        each.seal()
    assert dataclasses.asdict(at_once) == dataclasses.asdict(one_by_one)
    assert at_once.offset_index_bytes() == one_by_one.offset_index_bytes()
    assert at_once.time_index_bytes() == one_by_one.time_index_bytes()
