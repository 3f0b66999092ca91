"""Chooses the partition of a record by its key, as Kafka's BuiltInPartitioner does.

The partition of a key is (murmur2(key) & 0x7fffffff) mod partitions, so all records of one key are in one partition. In
one call, all records without a key get the same partition, which the caller chooses. The functions are pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.record.kernels.compiled import BYTES_IN, INT32_IN, INT32_OUT, INT64, VOID, inlined, kernel
from storage_engine.record.record_columns import byte_column

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)


@inlined
def _murmur2(data: Any, start: Any, end: Any) -> Any:
    length = end - start
    h = np.uint32(_SEED ^ np.uint32(length))
    position = start
    while position + 4 <= end:
        k = np.uint32(
            np.uint32(data[position])
            | (np.uint32(data[position + 1]) << np.uint32(8))
            | (np.uint32(data[position + 2]) << np.uint32(16))
            | (np.uint32(data[position + 3]) << np.uint32(24))
        )
        k = np.uint32(k * _MULTIPLIER)
        k ^= k >> np.uint32(24)
        k = np.uint32(k * _MULTIPLIER)
        h = np.uint32(h * _MULTIPLIER)
        h ^= k
        position += 4
    rest = end - position
    if rest == 3:
        h ^= np.uint32(data[position + 2]) << np.uint32(16)
    if rest >= 2:
        h ^= np.uint32(data[position + 1]) << np.uint32(8)
    if rest >= 1:
        h ^= np.uint32(data[position])
        h = np.uint32(h * _MULTIPLIER)
    h ^= h >> np.uint32(13)
    h = np.uint32(h * _MULTIPLIER)
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel(VOID, INT32_IN, BYTES_IN, BYTES_IN, INT64, INT64, INT64, INT32_OUT)
def _partition_keys(offsets: Any, keys: Any, validity: Any, shift: Any, partitions: Any, sticky: Any, out: Any) -> None:
    for row in range(len(out)):
        bit = row + shift
        if len(validity) == 0 or (validity[bit >> 3] >> (bit & 7)) & 1 == 1:
            h = _murmur2(keys, np.int64(offsets[row]), np.int64(offsets[row + 1]))
            out[row] = np.int64(h & np.uint32(0x7FFFFFFF)) % partitions
        else:
            out[row] = sticky


def partition_keys(keys: pa.Array, partitions: int, sticky: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key, int32 of shape (rows,). Rows without a key get `sticky`."""
    out = np.empty(len(keys), np.int32)
    _partition_keys(*byte_column(keys), partitions, sticky, out)
    return out
