"""Tests that offset and time indexes are read up to their first impossible entry."""

from __future__ import annotations

import struct

import pytest

from storage_engine.log.indexes.offset_index import decode_offset_index, position_before
from storage_engine.log.indexes.time_index import decode_time_index, hint_before


@pytest.mark.parametrize(
    ("entries", "good"),
    [
        ([], 0),
        ([(3, 100)], 1),
        ([(3, 100), (9, 4200)], 2),
        ([(3, 100), (9, 4200), (0, 0), (0, 0)], 2),
        ([(3, 100), (3, 4200)], 1),
        ([(3, 100), (9, 100)], 1),
        ([(3, -100), (9, 4200)], 0),
        ([(-3, 100), (9, 4200)], 0),
        ([(3, 100), (-9, -4200), (12, 5000)], 1),
        ([(-9, -4200), (-8, -100)], 0),
    ],
)
def test_offset_entries_are_positive_and_increase(entries: list[tuple[int, int]], good: int) -> None:
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    for cut_off in (b"", b"\0\0\0"):
        found = decode_offset_index(data + cut_off)
        assert [tuple(entry) for entry in found.tolist()] == entries[:good]
        assert position_before(found, 2**31 - 1) == (entries[good - 1][1] if good else 0)


@pytest.mark.parametrize(
    ("entries", "good"),
    [([], 0), ([(5, 1)], 1), ([(5, 1), (5, 1), (8, 4)], 3), ([(5, 1), (4, 2)], 1), ([(5, 3), (6, 2), (7, 4)], 1)],
)
def test_time_entries_never_go_back(entries: list[tuple[int, int]], good: int) -> None:
    found = decode_time_index(b"".join(struct.pack(">qi", *entry) for entry in entries))
    assert [tuple(entry) for entry in found.tolist()] == entries[:good]
    assert hint_before(found, 2**62) == (entries[good - 2] if good > 1 else None)
