"""The offset map's compiled loops, and how the cleaner reads a record.

The map is a hash table with open addressing and linear probing, int64 of shape (slots, 3):

    0  tag      the lower 32 bits of the key's hash, then the key's length in 32 bits
    1  offset   of the key's newest record
    2  start    of the key's bytes in the arena, plus 1; 0: the slot is free

Keys are compared byte by byte; the hash only says where to look. It is seeded, so that nobody can choose keys that
collide. As in record.kernels, each length read from disk is held against the end of its section before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from storage_engine.record.compiled import BYTES_IN, BYTES_OUT, INT64, INT64_IN, INT64_OUT, inlined, integers, kernel
from storage_engine.record.decode_kernels import (
    BAD_COUNT,
    BAD_KEY_LENGTH,
    BAD_OFFSET,
    BAD_RECORD_LENGTH,
    BAD_VALUE_LENGTH,
    BAD_VARINT,
    INTACT,
)
from storage_engine.record.varint import copy_bytes, read_varint

SLOT_COLUMNS = 3
MAP_FULL = 100
"""index_keys stopped before a key for which the map has no room."""

_TABLE_OUT = types.Array(types.int64, 2, "C")


@inlined
def _hash(data: Any, start: Any, end: Any, seed: Any) -> Any:
    """64 bits from the key's bytes, eight at a time, mixed as in MurmurHash3's finaliser."""
    mixed = np.uint64(seed) ^ (np.uint64(end - start) * np.uint64(0x9E3779B97F4A7C15))
    position = start
    while position + 8 <= end:
        word = (
            np.uint64(data[position])
            | (np.uint64(data[position + 1]) << np.uint64(8))
            | (np.uint64(data[position + 2]) << np.uint64(16))
            | (np.uint64(data[position + 3]) << np.uint64(24))
            | (np.uint64(data[position + 4]) << np.uint64(32))
            | (np.uint64(data[position + 5]) << np.uint64(40))
            | (np.uint64(data[position + 6]) << np.uint64(48))
            | (np.uint64(data[position + 7]) << np.uint64(56))
        )
        mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        position += 8
    word = np.uint64(0)
    shift = 0
    while position < end:
        word |= np.uint64(data[position]) << np.uint64(shift)
        shift += 8
        position += 1
    mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


@inlined
def find(table: Any, arena: Any, data: Any, start: Any, length: Any, seed: Any) -> Any:
    """(slot, tag): where the key is, or the free slot where it belongs."""
    hashed = _hash(data, start, start + length, seed)
    tag = np.int64(hashed << np.uint64(32)) | length
    slots = np.uint64(len(table))
    slot = np.int64(((hashed >> np.uint64(32)) * slots) >> np.uint64(32))
    while table[slot, 2] != 0:
        if table[slot, 0] == tag:
            there = table[slot, 2] - 1
            equal = True
            for i in range(length):
                if arena[there + i] != data[start + i]:
                    equal = False
                    break
            if equal:
                break
        slot = slot + 1 if slot + 1 < len(table) else np.int64(0)
    return slot, tag


@inlined
def read_record(data: Any, position: Any, end: Any, previous_delta: Any) -> Any:
    """One record, as far as cleaning looks at it.

    (problem, record end, timestamp delta, position of the offset delta, offset delta, key start, key length, value
    length); only the problem means something where it is not INTACT.
    """
    nothing = np.int64(0)
    length, position = read_varint(data, position, end, 28)
    if position < 0:
        return BAD_VARINT, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    record_end = position + length
    if length < 1 or record_end > end:
        return BAD_RECORD_LENGTH, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    timestamp_delta, position = read_varint(data, position + 1, record_end, 63)
    if position < 0:
        return BAD_VARINT, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    tail = position
    offset_delta, position = read_varint(data, position, record_end, 28)
    if position < 0:
        return BAD_VARINT, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    if offset_delta <= previous_delta:
        return BAD_OFFSET, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    key_length, position = read_varint(data, position, record_end, 28)
    if position < 0:
        return BAD_VARINT, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    key_start = position
    if key_length > 0:
        position += key_length
    if position > record_end:
        return BAD_KEY_LENGTH, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    value_length, position = read_varint(data, position, record_end, 28)
    if position < 0:
        return BAD_VARINT, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    if value_length > record_end - position:
        return BAD_VALUE_LENGTH, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    return INTACT, record_end, timestamp_delta, tail, offset_delta, key_start, key_length, value_length


@kernel(
    integers(3),
    BYTES_IN,  # sections
    INT64_IN,  # where each batch's records begin
    INT64_IN,  # and end
    INT64_IN,  # records counts
    INT64_IN,  # base offsets
    INT64,  # first offset wanted
    INT64,  # seed
    INT64,  # most entries
    _TABLE_OUT,
    BYTES_OUT,  # arena
    INT64_OUT,  # entries, bytes in the arena
)
def index_keys(
    sections: Any,
    starts: Any,
    ends: Any,
    records_counts: Any,
    base_offsets: Any,
    first_offset: Any,
    seed: Any,
    most_entries: Any,
    table: Any,
    arena: Any,
    used: Any,
) -> Any:
    """Note the offset of each key's last record from first_offset on.

    Returns (problem, batch, place): INTACT; MAP_FULL, with the offset of the first record that is not noted; or what is
    wrong with which batch, and the position.
    """
    for batch in range(len(starts)):
        position = starts[batch]
        end = ends[batch]
        previous_delta = np.int64(-1)
        for _ in range(records_counts[batch]):
            problem, record_end, _, _, offset_delta, key_start, key_length, _ = read_record(
                sections, position, end, previous_delta
            )
            if problem != INTACT:
                return problem, batch, position
            previous_delta = offset_delta
            position = record_end
            offset = base_offsets[batch] + offset_delta
            if key_length < 0 or offset < first_offset:
                continue
            slot, tag = find(table, arena, sections, key_start, key_length, seed)
            if table[slot, 2] == 0:
                if used[0] >= most_entries or used[1] + key_length > len(arena):
                    return MAP_FULL, batch, offset
                table[slot, 0] = tag
                table[slot, 2] = used[1] + 1
                used[0] += 1
                used[1] = copy_bytes(arena, used[1], sections, key_start, key_start + key_length)
            table[slot, 1] = offset
        if position != end:
            return BAD_COUNT, batch, position
    return INTACT, 0, 0
