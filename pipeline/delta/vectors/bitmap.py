"""Encodes and decodes the bitmap of a deletion vector: the numbers of the rows of a file that are deleted.

    4 bytes    the magic number 1681511377
    8 bytes    the number of the parts
    parts      4 bytes with the upper 32 bits of the numbers, and a Roaring bitmap of the lower 32 bits

All integers are little-endian. This is the "portable" form of a 64-bit Roaring bitmap, as the protocol of Delta asks. A
Roaring bitmap has a container for each value of the upper 16 bits of its numbers:

    array     at most 4096 numbers: the lower 16 bits of each number
    bitset    more numbers: 8192 bytes, with one bit for each of the 65536 numbers
    runs      the first number of each run, and its length minus one

Lakelog writes arrays and bitsets, and reads all three. The functions are pure.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_MAGIC = 1_681_511_377
_WITHOUT_RUNS, _WITH_RUNS = 12346, 12347
"""The first number of a Roaring bitmap."""
_MOST_IN_ARRAY = 4096
_BITSET_BYTES = 8192
_FEW_CONTAINERS = 4
"""A bitmap with runs and with fewer containers does not contain the places of the containers."""


def encode(numbers: Numbers) -> bytes:
    """The bitmap of these numbers.

    Args:
        numbers: sorted, each once, at least 0.
    """
    uppers, begins = np.unique(numbers >> 32, return_index=True)
    parts = [struct.pack("<IQ", _MAGIC, len(uppers))]
    for upper, lower in zip(uppers.tolist(), np.split(numbers & 0xFFFFFFFF, begins[1:]), strict=False):
        parts += [struct.pack("<I", upper), _encoded_part(lower)]
    return b"".join(parts)


def _encoded_part(numbers: Numbers) -> bytes:
    keys, begins = np.unique(numbers >> 16, return_index=True)
    containers = [_container(each & 0xFFFF) for each in np.split(numbers, begins[1:])]
    counts = np.diff([*begins, len(numbers)])
    head = np.column_stack((keys, counts - 1)).astype("<u2").tobytes()
    first = 8 + len(head) + 4 * len(keys)
    places = first + np.cumsum([0, *(len(each) for each in containers[:-1])])
    return b"".join(
        (struct.pack("<II", _WITHOUT_RUNS, len(keys)), head, places.astype("<u4").tobytes(), *containers)
    )  # fmt: skip


def _container(numbers: Numbers) -> bytes:
    if len(numbers) <= _MOST_IN_ARRAY:
        return numbers.astype("<u2").tobytes()
    bits = np.zeros(8 * _BITSET_BYTES, np.bool_)
    bits[numbers] = True
    return np.packbits(bits, bitorder="little").tobytes()


def decode(data: bytes) -> Numbers:
    """The numbers of a bitmap, sorted.

    Raises:
        ValueError: the bytes are no bitmap.
    """
    try:
        magic, count = struct.unpack_from("<IQ", data)
        if magic != _MAGIC:
            raise ValueError(f"a bitmap begins with the magic number {magic}")
        found = [np.zeros(0, np.int64)]
        position = struct.calcsize("<IQ")
        for _ in range(count):
            (upper,) = struct.unpack_from("<I", data, position)
            numbers, position = _decoded_part(data, position + 4)
            found.append(numbers | (upper << 32))
    except struct.error as error:
        raise ValueError("a bitmap ends too early") from error
    return np.concatenate(found)


def _decoded_part(data: bytes, position: int) -> tuple[Numbers, int]:
    """The numbers of a Roaring bitmap, and the position after it."""
    (cookie,) = struct.unpack_from("<I", data, position)
    position += 4
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = _bits(data, position, -(-count // 8))
        position += -(-count // 8)
        has_places = count >= _FEW_CONTAINERS
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, position)
        flags = np.zeros(count, np.uint8)
        position += 4
        has_places = True
    else:
        raise ValueError(f"a bitmap has the first number {cookie}")
    heads = _array(data, position, "<u2", 2 * count).reshape(count, 2).astype(np.int64)
    position += 4 * count + (4 * count if has_places else 0)
    found = [np.zeros(0, np.int64)]
    for (key, last), has_runs in zip(heads.tolist(), flags.tolist(), strict=False):
        numbers, position = _decoded_container(data, position, last + 1, has_runs=bool(has_runs))
        found.append(numbers | (key << 16))
    return np.concatenate(found), position


def _decoded_container(data: bytes, position: int, count: int, *, has_runs: bool) -> tuple[Numbers, int]:
    if has_runs:
        (runs,) = struct.unpack_from("<H", data, position)
        starts, rest = _array(data, position + 2, "<u2", 2 * runs).reshape(runs, 2).astype(np.int64).T
        lengths = rest + 1
        before = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return before + np.arange(lengths.sum()), position + 2 + 4 * runs
    if count <= _MOST_IN_ARRAY:
        return _array(data, position, "<u2", count).astype(np.int64), position + 2 * count
    return np.flatnonzero(_bits(data, position, _BITSET_BYTES)).astype(np.int64), position + _BITSET_BYTES


def _bits(data: bytes, position: int, size: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(_array(data, position, "u1", size).astype(np.uint8), bitorder="little")


def _array(data: bytes, position: int, kind: str, count: int) -> npt.NDArray[np.generic]:
    if position + np.dtype(kind).itemsize * count > len(data):
        raise ValueError("a bitmap ends too early")
    return np.frombuffer(data, kind, count, position)
