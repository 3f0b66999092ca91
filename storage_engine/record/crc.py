"""Computes, writes and checks the CRC of each batch.

A batch of magic 2 has a CRC-32C. An entry of magic 0 or 1 has a CRC-32 of IEEE 802.3. record.header shows which bytes
each CRC covers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.header import (
    CRC_POSITION,
    CRC_START,
    LEGACY_CRC_START,
)
from storage_engine.record.kernels.compiled import BYTES_OUT, INT64_IN, VOID, kernel
from storage_engine.record.kernels.crc32 import crc32_all
from storage_engine.record.kernels.crc32c import crc32c_all


def batch_crcs(data: ByteArray, sizes: Int64Array) -> Int64Array:
    """Return the CRC-32C of each of these consecutive batches."""
    ends = np.cumsum(sizes)
    return crc32c_all(data, ends - sizes + CRC_START, ends)


@kernel(VOID, BYTES_OUT, INT64_IN, INT64_IN)
def write_crcs(data: Any, sizes: Any, crcs: Any) -> None:
    """Write these CRCs into the headers of consecutive batches."""
    position = 0
    for batch in range(len(sizes)):
        for i in range(4):
            data[position + CRC_POSITION + i] = (crcs[batch] >> (24 - 8 * i)) & 0xFF
        position += sizes[batch]


def check_crcs(data: ByteArray, table: BatchTable, file: str, file_position: int = 0) -> None:
    """Compare each batch with the CRC in its header.

    Raises:
        CorruptionError: the bytes of a batch have changed. The error names the first such batch.
    """
    problem = first_changed_batch(data, table, file, file_position)
    if problem is not None:
        raise problem


def first_changed_batch(
    data: ByteArray, table: BatchTable, file: str, file_position: int = 0
) -> CorruptionError | None:
    """Return the error for the first batch whose bytes do not match its CRC; None if all match."""
    legacy = table.is_legacy
    ends = table.positions + table.sizes
    if legacy.any():
        computed = np.empty(len(table), np.int64)
        computed[~legacy] = crc32c_all(data, table.positions[~legacy] + CRC_START, ends[~legacy])
        computed[legacy] = crc32_all(data, table.positions[legacy] + LEGACY_CRC_START, ends[legacy])
    else:
        computed = crc32c_all(data, table.positions + CRC_START, ends)
    changed = computed != table.crcs
    if not changed.any():
        return None
    batch = int(changed.argmax())
    kind = "an entry with CRC-32" if legacy[batch] else "a batch with CRC-32C"
    return CorruptionError(
        file, file_position + int(table.positions[batch]), f"{kind} {table.crcs[batch]:08x}",
        f"bytes with {computed[batch]:08x}", "Restore this file from a backup or a replica.",
    )  # fmt: skip
