"""Which offsets a time range excludes with the help of the .timeindex. Also tests that a wrong bit never excludes too
many offsets.
"""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from storage_engine.log.derived_indexes import derived_indexes
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.record.encoding import encode_records
from storage_engine.record.header import BATCH_HEADER
from storage_engine.topic.readers.time_bounds import first_offset_beyond, first_offset_reaching
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

NOW_MS = 1_700_000_000_000


class Written:
    """A segment of 15 batches of 4 records, with an index entry for nearly each batch."""

    def __init__(self, folder: Path, steps: range, noise: int) -> None:
        chance = random.Random(7)
        self.times = [NOW_MS + 10 * number + chance.randrange(noise) for number in steps]
        rows = [Row(b"%02d" % number, b"v" * 20, timestamp=time) for number, time in enumerate(self.times)]
        run = encode_records(to_table(rows), 200)
        self.positions = [0, *accumulate(run.sizes.tolist())]
        self.bases = [0, *accumulate(run.records.tolist())]
        self.storage = storage_at(folder)
        self.storage.put_new("s.log", run.data.tobytes())
        self.file = SegmentFile("s", 0, len(run.data), len(rows))
        closed = derived_indexes(self.storage, self.file, 100)
        self.storage.put_new("s.index", closed.offset_index_bytes())
        self.storage.put_new("s.timeindex", closed.time_index_bytes())

    def excludes_too_much(self, timestamp: int) -> bool:
        """Whether an offset is excluded that may not be."""
        reaching = next((at for at, time in enumerate(self.times) if time >= timestamp), len(self.times))
        batch = next((base for base, end in pairwise(self.bases) if base <= reaching < end), len(self.times))
        return (
            first_offset_reaching(self.storage, self.file, timestamp) > reaching
            or first_offset_beyond(self.storage, self.file, timestamp) < batch
        )


@pytest.fixture
def rising(tmp_path: Path) -> Written:
    return Written(tmp_path, range(60), 1)


def test_in_rising_times_all_batches_but_those_with_wanted_records_are_excluded(rising: Written) -> None:
    assert len(rising.bases) == 16
    assert rising.bases[1] == 4
    found = {
        wanted: (
            first_offset_reaching(rising.storage, rising.file, NOW_MS + wanted),
            first_offset_beyond(rising.storage, rising.file, NOW_MS + wanted),
        )
        for wanted in (-5, 0, 30, 31, 199, 201, 230, 231, 590, 591)
    }
    assert found == {
        -5: (0, 4), 0: (0, 4), 30: (0, 4), 31: (0, 4), 199: (20, 20), 201: (20, 20), 230: (20, 20), 231: (24, 24),
        590: (56, 56), 591: (60, 60),
    }  # fmt: skip


def test_any_bit_of_an_index_or_of_a_header_may_be_wrong(tmp_path: Path) -> None:
    """Of headers, those of the batches near the wanted time."""
    written = Written(tmp_path, range(60), 60)
    assert BATCH_HEADER.fields is not None
    names = ("batch_length", "base_offset", "last_offset_delta", "max_timestamp")
    fields = [(BATCH_HEADER.fields[name][1], BATCH_HEADER[name].itemsize) for name in names]
    of_headers = [
        position + start + byte
        for position in written.positions[7:12]
        for start, size in fields
        for byte in range(size)
    ]
    for name in ("s.timeindex", "s.index", "s.log"):
        whole = written.storage.read(name)
        for byte in of_headers if name == "s.log" else range(len(whole)):
            for bit in range(8):
                changed = bytearray(whole)
                changed[byte] ^= 1 << bit
                written.storage.replace(name, changed)
                assert not written.excludes_too_much(NOW_MS + 431), f"with bit {bit} of byte {byte} of {name} changed"
        written.storage.replace(name, whole)


def test_a_missing_index_excludes_nothing(rising: Written) -> None:
    for name in ("s.index", "s.timeindex"):
        whole = rising.storage.read(name)
        for size in range(0, len(whole), 5):
            rising.storage.replace(name, whole[:size])
            assert not any(rising.excludes_too_much(NOW_MS + wanted) for wanted in range(-5, 600, 97))
        rising.storage.delete(name)
        assert not any(rising.excludes_too_much(NOW_MS + wanted) for wanted in range(-5, 600, 97))
    assert first_offset_reaching(rising.storage, rising.file, NOW_MS + 300) == 0
    assert first_offset_beyond(rising.storage, rising.file, NOW_MS + 300) == 60
