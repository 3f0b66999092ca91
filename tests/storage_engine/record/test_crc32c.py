"""Compares every implementation of CRC-32C with the library crc32c, at many lengths and alignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from crc32c import crc32c

from storage_engine.record.kernels.crc32c import FOLDS, IN_KERNELS, crc32c_all, crc_by_folding, crc_by_streams

_LENGTHS = np.concatenate([np.arange(1600), [2047, 2048, 6144, 6145, 6144 + 768, 16 * 1024 - 40, 3 * 6144 + 777]])
_BYTES = np.random.default_rng(7).integers(0, 256, 20_000, np.uint8)
_STARTS = np.arange(len(_LENGTHS)) % 67
_EXPECTED = [crc32c(_BYTES[start : start + length].tobytes()) for start, length in zip(_STARTS, _LENGTHS, strict=True)]


def test_no_ranges_have_no_sums() -> None:
    nothing = np.empty(0, np.int64)
    assert crc32c_all(_BYTES, nothing, nothing).tolist() == []


def test_check_value_of_the_standard() -> None:
    """The vectors are those of RFC 3720, B.4, and the check value in catalogues of CRCs."""
    data = np.frombuffer(b"123456789" + bytes(32) + bytes([255]) * 32, np.uint8)
    found = crc32c_all(data, np.array([0, 9, 41]), np.array([9, 41, 73])).tolist()
    assert found == [0xE3069283, 0x8A9136AA, 0x62A8AB43]


def in_a_kernel(one: Any) -> Callable[..., Any]:
    """Compile a kernel that calls `one` for each range, as crc32c_all does."""

    @numba.njit
    def sum_all(data: Any, starts: Any, ends: Any) -> Any:
        return [one(data, starts[i], ends[i]) for i in range(len(starts))]

    return lambda *arguments: np.array(sum_all(*arguments))


_WAYS = {"as it is called": lambda: crc32c_all}
if IN_KERNELS:
    _WAYS["by streams"] = lambda: in_a_kernel(crc_by_streams)
if FOLDS:
    _WAYS["by folding"] = lambda: in_a_kernel(crc_by_folding)


@pytest.mark.parametrize("way", _WAYS)
def test_sums_are_the_librarys(way: str) -> None:
    assert _WAYS[way]()(_BYTES, _STARTS, _STARTS + _LENGTHS).tolist() == _EXPECTED
