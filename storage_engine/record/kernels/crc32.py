"""Computes the CRC-32 of IEEE 802.3. Messages of magic 0 and 1 have this CRC. (Record batches have a CRC-32C.)

Each message in a wrapper has its own CRC, and one library call per message would be slow. So kernels compute the CRCs,
eight bytes at a time (Kounavis and Berry, "slicing by 8").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.record.kernels.compiled import BYTES_IN, INT64_IN, INT64_OUT, VOID, inlined, kernel

_POLYNOMIAL = 0xEDB88320
_SLICES = 8


def _tables() -> npt.NDArray[np.uint32]:
    """Return the tables of slicing by 8: row n has the remainder of each byte value followed by n zero bytes."""
    tables = np.zeros((_SLICES, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = np.where(tables[0] & 1, (tables[0] >> 1) ^ np.uint32(_POLYNOMIAL), tables[0] >> 1)
    for row in range(1, _SLICES):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables


_TABLES = _tables()


@inlined
def crc32(data: Any, start: Any, end: Any) -> Any:
    """Return the CRC-32 of data[start:end]."""
    crc = np.uint32(0xFFFFFFFF)
    position = start
    while position + _SLICES <= end:
        following = np.uint32(0)
        for i in range(4):
            crc ^= np.uint32(data[position + i]) << np.uint32(8 * i)
        for i in range(4):
            following ^= _TABLES[3 - i, data[position + 4 + i]]
        crc = (
            following
            ^ _TABLES[7, crc & np.uint32(0xFF)]
            ^ _TABLES[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _TABLES[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _TABLES[4, crc >> np.uint32(24)]
        )
        position += _SLICES
    while position < end:
        crc = (crc >> np.uint32(8)) ^ _TABLES[0, (crc ^ np.uint32(data[position])) & np.uint32(0xFF)]
        position += 1
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@kernel(VOID, BYTES_IN, INT64_IN, INT64_IN, INT64_OUT)
def _crc32_all(data: Any, starts: Any, ends: Any, out: Any) -> None:
    for i in range(len(starts)):
        out[i] = crc32(data, starts[i], ends[i])


def crc32_all(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the CRC-32 of each data[start:end], int64 of shape (ranges,)."""
    out = np.empty(len(starts), np.int64)
    _crc32_all(data, starts, ends, out)
    return out
