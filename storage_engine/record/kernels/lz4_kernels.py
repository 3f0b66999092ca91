"""Decompresses the LZ4 frames of many batches in one call.

The library cramjam needs one call per batch, and for a batch of some kilobytes the call and the steps around it take as
long as the decompression. So this kernel decompresses the frames that Kafka writes: independent blocks of at most 64
KiB, without checksums. A block is a list of sequences. A sequence is a token (the number of literals and the length of
the match, four bits each), the literals, and the match: its distance as two bytes. A number of 15 is continued in more
bytes (lz4_Block_format.md of the LZ4 project).

The kernel reports no damage. It stops before a frame that it does not decompress, and the caller decompresses this
frame with cramjam. The kernel refuses at least what cramjam refuses, so both have the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.record.kernels.compiled import (
    BLOCK,
    BOUNDS_CHECKED,
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    copy_2,
    copy_16,
    copy_block,
    inlined,
    kernel,
    load_32,
)
from storage_engine.record.kernels.varint import SLACK, copy_bytes

HEAD = bytes.fromhex("04224d18 60 40 82")
"""Magic, version 1 with independent blocks, blocks of 64 KiB, checksum of the head."""
BLOCK_BYTES = 64 * 1024
STORED = 1 << 31
"""This bit of a block's size is set if the block is not compressed."""
_HEAD = np.frombuffer(HEAD, np.uint8)
_LONG = 15  # four bits with this value are continued
_SHORTEST_MATCH = 4
_LAST_LITERALS = 5  # the last bytes of a block are literals
_LAST_MATCH = 12  # a match begins at least this many bytes before the end of a block
_LAST_SEQUENCE = 2 + 1 + _LAST_LITERALS  # bytes of a distance, a token and the last literals


@inlined
def _long_number(data: Any, position: Any, end: Any, number: Any) -> Any:
    """Return (number, next position) of a number that is continued; the position is -1 if `end` cuts it off."""
    while True:
        if position >= end:
            return number, np.int64(-1)
        byte = np.int64(data[position])
        position += 1
        number += byte
        if byte != 255:
            return number, np.int64(position)


@inlined
def _copy_match(out: Any, position: Any, distance: Any, length: Any) -> Any:
    """Repeat `length` bytes from `distance` bytes before the position. Up to BLOCK bytes after them are overwritten."""
    copied = 0
    if BOUNDS_CHECKED:
        for i in range(length):
            out[position + i] = out[position + i - distance]
        return
    if distance < BLOCK:  # after some bytes, the same bytes are also a multiple of the distance before
        far = distance * ((BLOCK + distance - 1) // distance)
        while copied < min(length, far - distance):
            out[position + copied] = out[position + copied - distance]
            copied += 1
        distance = far
    while copied < length:
        copy_block(out, position + copied, out, position + copied - distance)
        copied += BLOCK


@inlined
def _decompress_short_sequences(data: Any, position: Any, end: Any, out: Any, written: Any, start: Any) -> Any:
    """Decompress sequences until one has a long number or may be one of the last. Returns the next positions in `data`
    and in `out`; the first is -1 if a distance is impossible.

    Nearly all sequences are short. Each is copied in two blocks, so there is only one condition that is hard to predict.
    """
    end -= 1 + _LONG + 2 + BLOCK
    limit = start + BLOCK_BYTES - _LONG - _LONG - _SHORTEST_MATCH - _LAST_MATCH
    while position < end and written < limit:
        token = np.int64(data[np.uint64(position)])  # unsigned, because numba then checks for no negative index
        length = token >> 4
        match = token & _LONG
        if length == _LONG or match == _LONG:
            break
        copy_16(out, written, data, position + 1)
        position += 1 + length
        written += length
        distance = load_32(data, position) & 0xFFFF
        if distance > written - start:
            return np.int64(-1), written
        if distance >= 16:
            copy_16(out, written, out, written - distance)
            copy_2(out, written + 16, out, written + 16 - distance)
        elif distance > 0:
            _copy_match(out, written, distance, match + _SHORTEST_MATCH)
        else:
            return np.int64(-1), written
        written += match + _SHORTEST_MATCH
        position += 2
    return position, written


@inlined
def _decompress_block(data: Any, position: Any, end: Any, out: Any, start: Any) -> Any:
    """Decompress data[position:end] to out[start:], which has BLOCK_BYTES + SLACK bytes. Returns the end in `out`, or
    -1.
    """
    written = start
    limit = start + BLOCK_BYTES
    while position < end:
        if not BOUNDS_CHECKED:
            position, written = _decompress_short_sequences(data, position, end, out, written, start)
            if position < 0:
                return np.int64(-1)
        token = np.int64(data[position])
        position += 1
        length = token >> 4
        if length == _LONG:
            length, position = _long_number(data, position, end, length)
            if position < 0:
                return np.int64(-1)
        literals_end = position + length
        is_last = literals_end == end
        if not is_last and (literals_end > end - _LAST_SEQUENCE or written + length > limit - _LAST_MATCH):
            return np.int64(-1)
        if written + length > limit:
            return np.int64(-1)
        written = copy_bytes(out, written, data, position, literals_end)
        if is_last:
            return np.int64(written)
        distance = np.int64(data[literals_end]) | np.int64(data[literals_end + 1]) << 8
        position = literals_end + 2
        length = token & _LONG
        if length == _LONG:
            length, position = _long_number(data, position, end, length)
            if position < 0:
                return np.int64(-1)
        length += _SHORTEST_MATCH
        if distance == 0 or distance > written - start or written + length > limit - _LAST_LITERALS:
            return np.int64(-1)
        _copy_match(out, written, distance, length)
        written += length
    return np.int64(-1)


@inlined
def _has_head(data: Any, start: Any, end: Any) -> Any:
    if end - start < len(_HEAD):
        return False
    same = True
    for i in range(len(_HEAD)):
        same &= data[start + i] == _HEAD[i]
    return same


@inlined
def _little_endian(data: Any, position: Any) -> Any:
    number = np.int64(0)
    for i in range(4):
        number |= np.int64(data[position + i]) << (8 * i)
    return number


@inlined
def _decompress_frame(data: Any, position: Any, end: Any, out: Any, start: Any) -> Any:
    """Decompress one frame to out[start:]; returns the end in `out`, or -1."""
    if not _has_head(data, position, end):
        return np.int64(-1)
    position += len(_HEAD)
    written = np.int64(start)
    while position + 4 <= end:
        size = _little_endian(data, position)
        position += 4
        if size == 0:
            return written
        stored = size & STORED != 0
        size &= STORED - 1
        if size > end - position or len(out) - written < BLOCK_BYTES + SLACK:
            return np.int64(-1)
        if not stored:
            written = _decompress_block(data, position, position + size, out, written)
        elif size <= BLOCK_BYTES:
            written = copy_bytes(out, written, data, position, position + size)
        else:
            return np.int64(-1)
        if written < 0:
            return np.int64(-1)
        position += size
    return np.int64(-1)


@kernel(INT64, BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64, BYTES_OUT, INT64, INT64, INT64, INT64, INT64_OUT)
def decompress_frames(
    data: Any,
    starts: Any,
    ends: Any,
    codecs: Any,
    codec: Any,
    out: Any,
    start: Any,
    most_of_frame: Any,
    most: Any,
    first: Any,
    bounds: Any,
) -> Any:
    """Decompress the sections from `first` on, one after another, as long as they have this codec.

    Args:
        start: the position in `out` to which `bounds` is relative.
        most_of_frame, most: the largest number of bytes that a section and all sections may decompress to.
        bounds: the end of section i in `out` is bounds[i + 1].

    Returns:
        The number of the section that is not decompressed.
    """
    for section in range(first, len(starts)):
        if codecs[section] != codec:
            return section
        before = start + bounds[section]
        written = _decompress_frame(data, starts[section], ends[section], out, before)
        if written < 0 or written - before > most_of_frame or written - start > most:
            return section
        bounds[section + 1] = written - start
    return len(starts)
