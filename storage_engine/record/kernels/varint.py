"""Reads and writes varints and big-endian integers, and copies bytes. The kernels of other modules use these
functions.

A varint is an unsigned integer in groups of seven bits, the lowest group first. The eighth bit is set in all groups but
the last. Signed integers are zig-zag encoded first: 0, -1, 1, -2 become 0, 1, 2, 3. read_varint is the only function
that checks the end of its array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.record.kernels.compiled import BLOCK, BOUNDS_CHECKED, copy_block, inlined, load_32, load_64, memcpy

SLACK = BLOCK
"""Spare bytes at the end of an output array. Because of these bytes, copy_bytes can always copy whole blocks."""
INLINE_BYTES = 12
"""An Arrow view stores up to this number of bytes in itself."""
_SHORT = 128
"""Above this number of bytes, memcpy is faster than copying in blocks."""


@inlined
def varint_size(value: Any) -> Any:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag >= 128:
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(out: Any, position: Any, value: Any) -> Any:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag >= 128:
        out[position] = np.uint8((zigzag & np.uint64(0x7F)) | np.uint64(0x80))
        zigzag >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(zigzag)
    return position + 1


@inlined
def read_varint(data: Any, position: Any, end: Any, last_shift: Any) -> Any:
    """Return (value, next position). The position is -1 if the varint is too long, or `end` cuts it off."""
    if position + 2 <= end:  # nearly all varints are this short
        low = np.int64(data[position])
        if low < 128:
            return low >> 1 ^ -(low & 1), np.int64(position + 1)
        high = np.int64(data[position + 1])
        if high < 128:
            return (low & 127 | high << 7) >> 1 ^ -(low & 1), np.int64(position + 2)
    zigzag = np.uint64(0)
    shift = 0
    while True:
        if position >= end or shift > last_shift:
            return np.int64(0), np.int64(-1)
        byte = data[position]
        position += 1
        zigzag |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 128:
            return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1)), np.int64(position)
        shift += 7


@inlined
def copy_bytes(out: Any, position: Any, data: Any, start: Any, end: Any) -> Any:
    """Copy data[start:end] to out[position:]; returns the position after the copied bytes.

    A small number of bytes is copied in whole blocks, so up to a block of bytes after them in `out` may be overwritten.
    So outputs must be written from front to back.
    """
    length = end - start
    if BOUNDS_CHECKED:
        for i in range(length):
            out[position + i] = data[start + i]
    elif length <= _SHORT and end + BLOCK <= len(data) and position + length + BLOCK <= len(out):
        copied = 0
        while copied < length:
            copy_block(out, position + copied, data, start + copied)
            copied += BLOCK
    else:
        memcpy(out, position, data, start, length)
    return position + length


@inlined
def write_view(views: Any, row: Any, data: Any, start: Any, length: Any, buffer: Any) -> None:
    """Write Arrow's 16-byte view of data[start : start + length] as two integers. `buffer` is the number of `data` in
    its Arrow array.

    A view begins with the length. Then it has either the bytes themselves (at most 12), or the first four bytes, the
    buffer number and the position.
    """
    if length > INLINE_BYTES:
        views[2 * row] = length | four_bytes(data, start) << 32
        views[2 * row + 1] = buffer | start << 32
        return
    if BOUNDS_CHECKED or start + INLINE_BYTES > len(data):
        first = np.int64(0)
        rest = np.int64(0)
        for i in range(min(length, 4)):
            first |= np.int64(data[start + i]) << (8 * i)
        for i in range(4, length):
            rest |= np.int64(data[start + i]) << (8 * (i - 4))
    else:
        first = load_32(data, start)
        rest = load_64(data, start + 4)
        if length < 4:
            first &= (np.int64(1) << (8 * length)) - 1
        if length <= 4:
            rest = np.int64(0)
        elif length < INLINE_BYTES:
            rest &= (np.int64(1) << (8 * (length - 4))) - 1
    views[2 * row] = length | first << 32
    views[2 * row + 1] = rest


@inlined
def four_bytes(data: Any, start: Any) -> Any:
    """Return data[start : start + 4] as an unsigned little-endian integer."""
    if BOUNDS_CHECKED:
        value = np.int64(0)
        for i in range(4):
            value |= np.int64(data[start + i]) << (8 * i)
        return value
    return load_32(data, start)


@inlined
def write_big_endian(out: Any, position: Any, value: Any, size: Any) -> None:
    for i in range(size):
        out[position + i] = np.uint8((value >> (8 * (size - 1 - i))) & 0xFF)


@inlined
def read_big_endian(data: Any, position: Any, size: Any) -> Any:
    """Read a signed integer of `size` bytes."""
    value = np.int64(data[position])
    if value >= 128:
        value -= 256
    for i in range(1, size):
        value = (value << 8) | np.int64(data[position + i])
    return value
