"""Kernels that compress with snappy. record.compression compresses the records of one batch with them, and
record.encoding the records of all batches of a run.

The records of a batch become a stream in the framing of snappy-java: HEAD, then blocks. A block is an int32 length
(big-endian) and a raw snappy block of at most BLOCK_BYTES of records. A raw block is the number of its records' bytes,
as an unsigned varint, and then elements. The lowest two bits of an element's first byte, the tag, are its kind:

    0 literal     bytes that follow. Bits 2-7 of the tag are the length - 1, up to 59. With 60 or 61, the length - 1 is
                  in the next one or two bytes (little-endian)
    1 near copy   4 to 11 bytes that occurred less than 2048 bytes before. Bits 2-4 are the length - 4, bits 5-7 the
                  upper bits of the distance. The lower 8 bits of the distance follow
    2 copy        1 to 64 bytes. Bits 2-7 are the length - 1. The distance follows in two bytes (little-endian)

Many element sequences decompress to the same bytes. These kernels choose the same elements as the C++ library snappy
1.1.10, which Kafka calls through snappy-java 1.1.10. So Lakelog and Kafka write the same bytes. The choice follows from
four rules, which must not change:

- A table has one slot per hash of four bytes, and a slot has the last place in the block with this hash. The place 0
  also means "no place". The number of slots depends on the size of the block, and the table is cleared for each block.
- A search compares the four bytes at each place with the bytes at the place in their slot. After 32 places without a
  match, the search skips every second byte, after about 32 more bytes two of three bytes, and so on.
- A match extends as far as possible. The place before its end and its end are entered in the table. If the end matches
  too, another copy follows without a literal.
- No search begins in the last bytes of a block (_REST). These bytes become a literal.

The library also has a hash that uses the CRC instruction of a processor. The builds of snappy-java for Linux on x86_64
and aarch64 do not contain this hash.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.kernels.compiled import (
    BOUNDS_CHECKED,
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    copy_block,
    inlined,
    kernel,
    load_64,
    store_32,
    trailing_zeros,
)
from storage_engine.record.kernels.varint import copy_bytes, four_bytes, write_big_endian

HEAD = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
"""The head of a stream: the magic bytes, the version, and the oldest compatible version."""
MAGIC_BYTES = 8
BLOCK_BYTES = 32 * 1024
SLOTS = 1 << 14
"""The length of the table, uint16, that callers give to a kernel. A kernel changes the table, so each thread needs its
own table.
"""

_FEWEST_SLOTS = 1 << 8
_MULTIPLIER = 0x1E35A7BD
_HASH_SHIFT = 18  # 32 - the bits of SLOTS
_REST = 15
_CLOSE = 16  # places at the start of a search, which are searched without skipping
_SKIP_SHIFT = 5
_NEAR = 2048
_NEAR_LENGTH = 12
_LONGEST = 64
_HEAD_BYTES = np.frombuffer(HEAD, np.uint8)
_TABLE = types.Array(types.uint16, 1, "C")


@inlined
def _eight(data: Any, position: Any) -> Any:
    if BOUNDS_CHECKED:
        return four_bytes(data, position) | four_bytes(data, position + 4) << 32
    return load_64(data, position)


@inlined
def _write_four(out: Any, position: Any, value: Any) -> None:
    """Write four bytes. Callers need up to three of these bytes, and overwrite the rest."""
    if BOUNDS_CHECKED:
        for i in range(4):
            out[position + i] = np.uint8(value >> (8 * i) & 0xFF)
    else:
        store_32(out, position, value)


@inlined
def _slot(word: Any, mask: Any) -> Any:
    """The slot of four bytes. Unsigned, because numba then checks for no negative index."""
    return np.uint64(word * _MULTIPLIER >> _HASH_SHIFT & mask)


@inlined
def _write_literal(data: Any, start: Any, end: Any, out: Any, position: Any) -> Any:
    last = end - start - 1
    if last < 60:
        _write_four(out, position, last << 2)
        position += 1
    elif last < 256:
        _write_four(out, position, 60 << 2 | last << 8)
        position += 2
    else:
        _write_four(out, position, 61 << 2 | last << 8)
        position += 3
    return copy_bytes(out, position, data, start, end)


@inlined
def _write_short_copy(out: Any, position: Any, distance: Any, length: Any) -> Any:
    """Write a copy of less than _NEAR_LENGTH bytes. A branch would be hard to predict, so there is none."""
    near = distance < _NEAR
    tag = 1 - (4 << 2) + (distance >> 3 & 0xE0) if near else 2 - (1 << 2)
    _write_four(out, position, tag + (length << 2) + (distance << 8))
    return position + (2 if near else 3)


@inlined
def _write_copy(out: Any, position: Any, distance: Any, length: Any) -> Any:
    """Write a copy of up to _LONGEST bytes."""
    _write_four(out, position, 2 + (length - 1 << 2) + (distance << 8))
    return position + 3


@inlined
def _write_long_copy(out: Any, position: Any, distance: Any, length: Any) -> Any:
    """Write copies for a match of any length; the last copy has at least four bytes."""
    while length >= _LONGEST + 4:
        position = _write_copy(out, position, distance, _LONGEST)
        length -= _LONGEST
    if length > _LONGEST:
        position = _write_copy(out, position, distance, _LONGEST - 4)
        length -= _LONGEST - 4
    if length < _NEAR_LENGTH:
        return _write_short_copy(out, position, distance, length)
    return _write_copy(out, position, distance, length)


@inlined
def _next_match(data: Any, block: Any, literal: Any, limit: Any, table: Any, mask: Any, out: Any, position: Any) -> Any:
    """Search for a match after `literal`, and write the bytes before the match as a literal.

    Returns the place of the match, the earlier place with the same bytes, and the position in `out`. The first place is
    -1 if there is no match up to `limit`.
    """
    place = literal + 1
    word = four_bytes(data, place)
    skip = 1 << _SKIP_SHIFT
    if limit - place >= _CLOSE:
        for i in range(_CLOSE):
            slot = _slot(word, mask)
            earlier = block + np.int64(table[slot])
            table[slot] = np.uint16(place + i - block)
            if four_bytes(data, earlier) == word:
                if BOUNDS_CHECKED:
                    return place + i, earlier, _write_literal(data, literal, place + i, out, position)
                _write_four(out, position, i << 2)
                copy_block(out, position + 1, data, literal)
                return place + i, earlier, position + i + 2
            word = four_bytes(data, place + i + 1)
        place += _CLOSE
        skip += _CLOSE
    while True:
        slot = _slot(word, mask)
        step = skip >> _SKIP_SHIFT
        skip += step
        following = place + step
        if following > limit:
            return np.int64(-1), np.int64(0), position
        earlier = block + np.int64(table[slot])
        table[slot] = np.uint16(place - block)
        if four_bytes(data, earlier) == word:
            return place, earlier, _write_literal(data, literal, place, out, position)
        place = following
        word = four_bytes(data, place)


@inlined
def _extend(data: Any, earlier: Any, place: Any, end: Any, out: Any, position: Any) -> Any:
    """Write the copies of a match, whose first four bytes are equal.

    Returns the place after the match, the position in `out`, and the four bytes at this place (0 if they are in _REST).
    Most matches are short. For them, the four bytes come from bytes that are already loaded, which saves time because
    the next step must wait for the four bytes.
    """
    distance = place - earlier
    old = earlier + 4
    new = place + 4
    loaded = _eight(data, new)  # `place` is at most end - 16, so these bytes and four more are in the block
    difference = _eight(data, old) ^ loaded
    if difference != 0:
        bits = trailing_zeros(difference)
        later = _eight(data, new + 4)
        word = (later if difference & 0xFFFFFFFF == 0 else loaded) >> (bits & 24) & 0xFFFFFFFF
        length = 4 + (bits >> 3)
        return place + length, _write_short_copy(out, position, distance, length), word
    old += 8
    new += 8
    if new <= end - 16:
        difference = _eight(data, old) ^ _eight(data, new)
        if difference != 0:
            new += trailing_zeros(difference) >> 3
            return new, _write_copy(out, position, distance, new - place), four_bytes(data, new)
        old += 8
        new += 8
    ended = False
    while not ended and new <= end - 8:
        equal = trailing_zeros(_eight(data, old) ^ _eight(data, new)) >> 3
        old += equal
        new += equal
        ended = equal < 8
    while not ended and new < end and data[old] == data[new]:
        old += 1
        new += 1
    word = four_bytes(data, new) if new < end - _REST else np.int64(0)
    return new, _write_long_copy(out, position, distance, new - place), word


@inlined
def _compress_block(data: Any, block: Any, end: Any, table: Any, out: Any, position: Any) -> Any:
    """Write data[block:end] as a raw block; returns the position after it."""
    size = end - block
    while size >= 128:
        out[position] = np.uint8(size & 0x7F | 0x80)
        size >>= 7
        position += 1
    out[position] = np.uint8(size)
    position += 1
    slots = _FEWEST_SLOTS
    while slots < end - block and slots < SLOTS:
        slots *= 2
    for i in range(slots):
        table[i] = 0
    mask = slots - 1
    limit = end - _REST
    literal = block
    while literal < limit:
        place, earlier, position = _next_match(data, block, literal, limit, table, mask, out, position)
        if place < 0:
            break
        while True:
            literal, position, word = _extend(data, earlier, place, end, out, position)
            if literal >= limit:
                break
            table[_slot(four_bytes(data, literal - 1), mask)] = np.uint16(literal - 1 - block)
            slot = _slot(word, mask)
            place = literal
            earlier = block + np.int64(table[slot])
            table[slot] = np.uint16(place - block)
            if four_bytes(data, earlier) != word:
                break
    return _write_literal(data, literal, end, out, position) if literal < end else position


@inlined
def _compress_stream(data: Any, start: Any, end: Any, table: Any, out: Any, position: Any) -> Any:
    """Write data[start:end] as a stream; returns the position after it."""
    for i in range(len(_HEAD_BYTES)):
        out[position + i] = _HEAD_BYTES[i]
    position += len(_HEAD_BYTES)
    while start < end:
        block_end = min(start + BLOCK_BYTES, end)
        after = _compress_block(data, start, block_end, table, out, position + 4)
        write_big_endian(out, position, after - position - 4, 4)
        position = after
        start = block_end
    return position


@kernel(INT64, BYTES_IN, _TABLE, BYTES_OUT)
def compress_stream(data: Any, table: Any, out: Any) -> Any:
    """Write `data` as a stream; returns its size.

    table: uint16, shape (SLOTS,).
    out: has space for compression.compress_bound(len(data)). The bytes after the stream may be overwritten.
    """
    zero = np.int64(0)  # a literal 0 would compile the functions twice
    return _compress_stream(data, zero, len(data), table, out, zero)


@kernel(INT64, BYTES_IN, INT64_IN, INT64, _TABLE, BYTES_OUT, INT64_OUT)
def compress_batches(data: Any, sizes: Any, batch_bytes: Any, table: Any, out: Any, compressed_sizes: Any) -> Any:
    """Compress the records of consecutive batches; returns the bytes that the compressed batches take in `out`.

    The space for each header is left free. The records of a batch are copied as they are if compression does not change
    their size, or if the compressed batch is larger than batch_bytes and larger than the batch itself.

    table: uint16, shape (SLOTS,).
    out: has space for compression.compress_bound of each size.
    compressed_sizes: shape (batches,), gets the bytes of each batch with its header.
    """
    source = position = 0
    for batch in range(len(sizes)):
        size = sizes[batch]
        start = source + HEADER_BYTES
        body = position + HEADER_BYTES
        source += size
        end = _compress_stream(data, start, source, table, out, body)
        if end - body == source - start or end - position > max(size, batch_bytes):
            end = copy_bytes(out, body, data, start, source)
        compressed_sizes[batch] = end - position
        position = end
    return position


def compress_with_snappy(data: memoryview, out: memoryview) -> int:
    """Write `data` as a stream to the start of `out`, which has space for compression.compress_bound(len(data)); returns
    the size of the stream.
    """
    table = np.empty(SLOTS, np.uint16)
    return int(compress_stream(np.frombuffer(data, np.uint8), table, np.frombuffer(out, np.uint8)))
