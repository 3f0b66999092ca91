"""Tests that a damaged or wrong .timeindex does not change which record a timestamp lookup finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage_engine.log.derived_indexes import derived_indexes
from storage_engine.log.segment_reader import SegmentFile, first_record_at
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import encode_records
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.record_tables import Row, to_table

NOW_MS = 1_700_000_000_000


@pytest.fixture
def written(tmp_path: Path) -> tuple[PosixStorage, SegmentFile, list[int]]:
    """Write a segment of small batches whose timestamps mostly increase; returns it and all timestamps."""
    chance = random.Random(7)
    times = [NOW_MS + 10 * number + chance.randrange(60) for number in range(60)]
    rows = [Row(b"%d" % number, b"v" * 20, timestamp=time) for number, time in enumerate(times)]
    data = encode_records(to_table(rows), 200, Codec.NONE).data.tobytes()
    storage = PosixStorage(tmp_path)
    storage.put_new("s.log", data)
    file = SegmentFile("s", 0, len(data), len(rows))
    closed = derived_indexes(storage, file, 300)
    storage.put_new("s.index", closed.offset_index_bytes())
    storage.put_new("s.timeindex", closed.time_index_bytes())
    return storage, file, times


def wrong_answers(storage: PosixStorage, file: SegmentFile, times: list[int]) -> list[int]:
    """Return the timestamps for which the lookup finds another record than a scan of all records."""
    expected = {
        wanted: next(((offset, time, -1) for offset, time in enumerate(times) if time >= wanted), None)
        for wanted in range(NOW_MS - 1, NOW_MS + 670, 61)
    }
    return [wanted for wanted, found in expected.items() if first_record_at(storage, file, wanted) != found]


def test_any_bit_of_a_time_index_may_be_wrong(written) -> None:
    storage, file, times = written
    whole = storage.read("s.timeindex")
    assert len(whole) == 7 * 12
    assert wrong_answers(storage, file, times) == []
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        storage.path("s.timeindex").write_bytes(changed)
        assert wrong_answers(storage, file, times) == [], f"with bit {bit} changed"


def test_a_time_index_may_be_cut_off_moved_or_of_another_segment(written) -> None:
    storage, file, times = written
    whole = storage.read("s.timeindex")
    late = b"".join(entry[:8] + (59).to_bytes(4, "big") for entry in (whole[:12], whole[12:24], whole[24:36]))
    for data in (*(whole[:size] for size in range(len(whole))), *(whole[start:] for start in range(40)), late):
        storage.path("s.timeindex").write_bytes(data)
        assert wrong_answers(storage, file, times) == []
