"""Writes base offset, leader epoch and length into the headers of encoded batches.

Base offset and leader epoch are outside the CRC, so a batch can be stamped without a new CRC. The functions change the
given bytes in place. During the call, no other thread may use these bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.header import (
    BASE_OFFSET_POSITION,
    CODEC_MASK,
    CRC_START,
    EPOCH_POSITION,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    STAMPED_START,
)
from storage_engine.record.kernels.compiled import BYTES_IN, BYTES_OUT, INT64, INT64_IN, INT64_OUT, VOID, kernel
from storage_engine.record.kernels.varint import read_big_endian


@kernel(VOID, BYTES_OUT, INT64_IN, INT64, INT64_OUT)
def _stamp(data: Any, sizes: Any, leader_epoch: Any, next_offset: Any) -> None:
    position = 0
    for batch in range(len(sizes)):
        base_offset = next_offset[0]
        for i in range(8):
            data[position + BASE_OFFSET_POSITION + i] = (base_offset >> (56 - 8 * i)) & 0xFF
        for i in range(4):
            data[position + EPOCH_POSITION + i] = (leader_epoch >> (24 - 8 * i)) & 0xFF
        next_offset[0] = base_offset + read_big_endian(data, position + LAST_OFFSET_DELTA_POSITION, 4) + 1
        position += sizes[batch]


def stamp_batches(data: ByteArray, sizes: Int64Array, base_offset: int, leader_epoch: int) -> int:
    """Write consecutive base offsets and the leader epoch into consecutive batches, in place.

    Args:
        data: uint8, writable; exactly these batches.
        sizes: int64, the bytes of each batch.

    Returns:
        The offset after the last record.
    """
    assert int(sizes.sum()) == len(data), "the sizes must cover the bytes"
    next_offset = np.array([base_offset], np.int64)
    _stamp(data, sizes, leader_epoch, next_offset)
    return int(next_offset[0])


def stamped_starts(sizes: Int64Array, base_offsets: Int64Array, leader_epoch: int) -> npt.NDArray[np.void]:
    """Return the first bytes of each batch's header, up to the leader epoch, as a log stamps them.

    An append to a log changes no other bytes of a batch.

    Returns:
        STAMPED_START, shape (batches,).
    """
    starts = np.empty(len(sizes), STAMPED_START)
    starts["base_offset"] = base_offsets
    starts["batch_length"] = sizes - LOG_OVERHEAD
    starts["partition_leader_epoch"] = leader_epoch
    return starts


def stamp_leader_epoch(data: ByteArray, table: BatchTable, leader_epoch: int) -> None:
    """Write a leader epoch into batches, in place. Batches of magic 0 and 1 have no leader epoch, and do not change.

    Args:
        data: uint8, writable: the bytes from which the table was scanned.
    """
    starts = table.positions[~table.is_legacy]
    for i, byte in enumerate(leader_epoch.to_bytes(4, "big")):
        data[starts + EPOCH_POSITION + i] = byte


@kernel(VOID, BYTES_IN, INT64_IN, BYTES_OUT, INT64_IN)
def copy_headers(data: Any, sizes: Any, out: Any, out_sizes: Any) -> None:
    """Copy the headers of batches to batches with compressed records, and write the new lengths.

    If a batch has the same size as before, its records are not compressed, and its codec becomes Codec.NONE.
    """
    source = 0
    position = 0
    for batch in range(len(sizes)):
        for i in range(HEADER_BYTES):
            out[position + i] = data[source + i]
        length = out_sizes[batch] - LOG_OVERHEAD
        for i in range(4):
            out[position + LENGTH_POSITION + i] = (length >> (24 - 8 * i)) & 0xFF
        if out_sizes[batch] == sizes[batch]:
            out[position + CRC_START + 1] &= 0xFF ^ CODEC_MASK
        source += sizes[batch]
        position += out_sizes[batch]
