"""The bitmaps of deletion vectors: the bytes that Roaring's specification gives, and all kinds of containers."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from pipeline.delta.vectors.bitmap import decode, encode

MAGIC = struct.pack("<I", 1_681_511_377)
SMALL = MAGIC + bytes.fromhex(
    "0100000000000000"  # one part
    "00000000"  # its upper 32 bits
    "3a300000 02000000"  # without runs, two containers
    "0000 0100  0100 0000"  # the upper 16 bits and the number of values less one, of each container
    "18000000 1c000000"  # the places of the containers
    "0100 0300  0500"  # the values
)
WITH_RUNS = MAGIC + bytes.fromhex(
    "0200000000000000"  # two parts
    "00000000"
    "3b300100"  # with runs, two containers
    "01"  # the first container has runs
    "0000 0400  0200 0100"
    "0200 0a00 0200 1400 0100"  # two runs: 10 to 12, 20 and 21
    "0700 0900"
    "01000000"
    "3a300000 01000000 0000 0000 10000000 0200"
)


def test_the_bytes_are_those_of_the_specification() -> None:
    assert encode(np.array([1, 3, 65541])) == SMALL
    assert decode(SMALL).tolist() == [1, 3, 65541]
    assert encode(np.array([], np.int64)) == MAGIC + bytes(8)


def test_runs_are_read() -> None:
    assert decode(WITH_RUNS).tolist() == [10, 11, 12, 20, 21, 131079, 131081, (1 << 32) + 2]


@pytest.mark.parametrize("seed", range(20))
def test_all_numbers_come_back(seed: int) -> None:
    chance = random.Random(seed)
    numbers: set[int] = set()
    for _ in range(chance.randrange(6)):
        first = chance.choice([0, 65536 * chance.randrange(9), 1 << 32, 5 << 32])
        count = chance.choice([1, 4095, 4096, 4097, 9000, 65536])
        numbers |= {first + each for each in chance.sample(range(65536), count)}
    found = np.array(sorted(numbers), np.int64)
    assert decode(encode(found)).tolist() == found.tolist()


@pytest.mark.parametrize("data", [SMALL, WITH_RUNS])
def test_a_cut_bitmap_is_an_error(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(ValueError, match="a bitmap"):
            decode(data[:length])
    with pytest.raises(ValueError, match="first number"):
        decode(data[:16] + b"\0" + data[17:])
    with pytest.raises(ValueError, match="magic number"):
        decode(b"\0" + data[1:])
