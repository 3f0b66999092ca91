"""The compiled loops of the key map, and the cleaner's reader of records.

Records are numbered in the order of the log; a record's number is its ordinal. For each key the map stores the ordinal
of the key's newest record. The map consists of two int64 arrays. One array, the table, is a hash table with open
addressing and linear probing. The number of slots is a power of two. A slot is

    0                                                free
    upper 23 bits of the key's hash << 40 | place    the key's entry begins at this place of the arena

The other array, the arena, contains the entries, one after another from place 8 on. A run of keys on disk has the same
entries (run_kernels):

    0  ordinal
    1  length of the key in bytes
    2  the key, eight bytes in a word, lowest byte first, the last word filled with zeros

The loops compare whole keys; the hash only selects the slot at which a search begins. The hash has a random seed, so
nobody can choose keys that collide. With many keys, the table is larger than any CPU cache. So the loops first hash
the keys of a few records, and prefetch the slots of these keys. Then the loops look up each record while the entries
of the next records are loaded into the cache.

The loops check each length that they read from disk: the bytes of this length must end inside their section.
record.kernels has the same checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from storage_engine.record.kernels.columns import SECTIONS_IN, Int64Array
from storage_engine.record.kernels.compiled import (
    BOUNDS_CHECKED,
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    VOID,
    columns,
    inlined,
    integers,
    kernel,
    load_64,
    prefetch,
)
from storage_engine.record.kernels.decode_kernels import (
    BAD_COUNT,
    BAD_KEY_LENGTH,
    BAD_OFFSET,
    BAD_RECORD_LENGTH,
    BAD_VALUE_LENGTH,
    BAD_VARINT,
    INTACT,
)
from storage_engine.record.kernels.varint import read_varint

MAP_FULL = 100
"""The kernel stopped before a batch or an entry because the map has no room for one of its keys."""
FIRST_PLACE = 8
ENTRY_WORDS = 2
"""Words of an entry before its key."""
AT_ONCE = 64
"""Number of records that are read before they are looked up."""
SCRATCH_WORDS = 3 * AT_ONCE
SOON = 8
"""Entries are prefetched for this many records ahead."""
_PLACE_BITS = 40
_PLACE = (1 << _PLACE_BITS) - 1


@inlined
def load_word(data: Any, position: Any, length: Any) -> Any:
    """The first eight bytes at a position as a word, lowest byte first; if `length` is less than eight, filled with
    zeros.
    """
    if BOUNDS_CHECKED or position + 8 > len(data):
        word = np.uint64(0)
        for i in range(min(length, 8)):
            word |= np.uint64(data[position + i]) << np.uint64(8 * i)
        return np.int64(word)
    word = np.uint64(load_64(data, position))
    if length < 8:
        word &= (np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)
    return np.int64(word)


@inlined
def hash_key(data: Any, start: Any, length: Any, seed: Any) -> Any:
    """Hash the bytes of a key to 64 bits, mixed as in the finaliser of MurmurHash3."""
    mixed = np.uint64(seed) ^ (np.uint64(length) * np.uint64(0x9E3779B97F4A7C15))
    for at in range(0, length, 8):
        mixed = (mixed ^ np.uint64(load_word(data, start + at, length - at))) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return np.int64(mixed)


@inlined
def entry_words(length: Any) -> Any:
    """Number of words of an entry whose key has this many bytes."""
    return ENTRY_WORDS + ((length + 7) >> 3)


@inlined
def write_entry(entries: Any, place: Any, ordinal: Any, data: Any, start: Any, length: Any) -> None:
    """Write an entry whose key is in data."""
    entries[place] = ordinal
    entries[place + 1] = length
    for at in range(0, length, 8):
        entries[place + ENTRY_WORDS + (at >> 3)] = load_word(data, start + at, length - at)


@inlined
def _tag(hashed: Any) -> Any:
    """The bits of a key's hash that a slot stores above the place."""
    return np.int64(np.uint64(hashed) >> np.uint64(_PLACE_BITS + 1))


@inlined
def find(table: Any, arena: Any, data: Any, start: Any, length: Any, hashed: Any) -> Any:
    """Returns (slot, place) of the key, or (a free slot for the key, 0)."""
    mask = np.int64(len(table) - 1)
    tag = _tag(hashed)
    slot = hashed & mask
    while table[slot] != 0:
        if table[slot] >> _PLACE_BITS == tag:
            place = table[slot] & _PLACE
            if arena[place + 1] == length:
                word = place + ENTRY_WORDS
                at = np.int64(0)
                while at < length and arena[word] == load_word(data, start + at, length - at):
                    word += 1
                    at += 8
                if at >= length:
                    return slot, place
        slot = (slot + 1) & mask
    return slot, np.int64(0)


@inlined
def mark(outdated: Any, number: Any) -> None:
    """Set the bit of a record if `outdated` has a bit for it."""
    if 0 <= number < 8 * len(outdated):
        outdated[number >> 3] |= np.uint8(1) << np.uint8(number & 7)


@inlined
def note(
    table: Any, arena: Any, used: Any, data: Any, start: Any, length: Any, hashed: Any, ordinal: Any, outdated: Any,
    first: Any,
) -> Any:  # fmt: skip
    """Store that a key has a record with this ordinal, and mark the older record that becomes outdated. Returns False
    if the map has no room.

    Storing the same record twice changes nothing. Only records that have a bit in `outdated` are marked; the lowest bit
    of the first byte of `outdated` belongs to ordinal `first`.
    """
    slot, place = find(table, arena, data, start, length, hashed)
    if place != 0:
        if arena[place] != ordinal:
            mark(outdated, min(arena[place], ordinal) - first)
            arena[place] = max(arena[place], ordinal)
        return True
    place = used[1]
    behind = place + entry_words(length)
    if used[0] >= len(table) * 5 >> 3 or behind > len(arena):
        return False
    table[slot] = _tag(hashed) << _PLACE_BITS | place
    write_entry(arena, place, ordinal, data, start, length)
    used[0] += 1
    used[1] = behind
    return True


@inlined
def read_record(data: Any, position: Any, end: Any, previous_delta: Any) -> Any:
    """Read the fields of one record that cleaning needs.

    Returns (problem, record end, timestamp delta, position of the offset delta, offset delta, key start, key length,
    value length). If the problem is not INTACT, the other values have no meaning.
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


@inlined
def read_some(
    sections: Any, position: Any, end: Any, previous_delta: Any, count: Any, first_delta: Any, seed: Any, table: Any,
    scratch: Any,
) -> Any:  # fmt: skip
    """Read a number of records into scratch: the hash, start and length of each key. A length of -1 means that the
    record has no key, or that its key was not requested.

    Returns (problem, the position after these records or of the problem, the last offset delta).
    """
    mask = np.int64(len(table) - 1)
    for i in range(count):
        problem, record_end, _, _, offset_delta, key_start, key_length, _ = read_record(
            sections, position, end, previous_delta
        )
        if problem != INTACT:
            return problem, position, previous_delta
        previous_delta = offset_delta
        position = record_end
        hashed = np.int64(0)
        if offset_delta < first_delta:
            key_length = np.int64(-1)
        if key_length >= 0:
            hashed = hash_key(sections, key_start, key_length, seed)
            prefetch(table, hashed & mask)
        scratch[i] = hashed
        scratch[AT_ONCE + i] = key_start
        scratch[2 * AT_ONCE + i] = key_length
    return np.int64(INTACT), position, previous_delta


@inlined
def ask_for_entry(table: Any, arena: Any, hashed: Any) -> None:
    prefetch(arena, table[hashed & (len(table) - 1)] & _PLACE)


@kernel(VOID, INT64, INT64_OUT, INT64_IN, BYTES_IN, INT64, INT64_OUT)
def fill_table(seed: Any, table: Any, arena: Any, bytes_of_arena: Any, end: Any, scratch: Any) -> None:
    """Insert the entries up to a place into an empty table, which must have room for them."""
    mask = np.int64(len(table) - 1)
    place = np.int64(FIRST_PLACE)
    while place < end:
        count = np.int64(0)
        while place < end and count < AT_ONCE:
            length = arena[place + 1]
            hashed = hash_key(bytes_of_arena, 8 * (place + ENTRY_WORDS), length, seed)
            prefetch(table, hashed & mask)
            scratch[count] = hashed
            scratch[AT_ONCE + count] = place
            count += 1
            place += entry_words(length)
        for i in range(count):
            slot = scratch[i] & mask
            while table[slot] != 0:
                slot = (slot + 1) & mask
            table[slot] = _tag(scratch[i]) << _PLACE_BITS | scratch[AT_ONCE + i]


class MapArrays(NamedTuple):
    """A map of keys.

    seed: seeds the hash.
    used: the number of entries, and the place for the next entry.
    """

    seed: int
    table: Int64Array
    arena: Int64Array
    used: Int64Array
    scratch: Int64Array


KEY_MAP = columns(MapArrays, INT64, INT64_OUT, INT64_OUT, INT64_OUT, INT64_OUT)


@kernel(integers(3), SECTIONS_IN, INT64_IN, INT64_IN, INT64_IN, INT64, INT64, KEY_MAP, BYTES_OUT)
def index_keys(
    sections: Any,
    records_counts: Any,
    base_offsets: Any,
    ordinals: Any,
    first_batch: Any,
    first_offset: Any,
    keys: Any,
    outdated: Any,
) -> Any:
    """Note the keys of the records at and after first_offset, and mark the records that become outdated.

    ordinals: the ordinal of each batch's first record.
    outdated: one bit for each record, beginning at ordinal 0.

    Returns (problem, batch, position). The problem is INTACT; or MAP_FULL, with the batch at which to continue; or the
    kind of damage, with the damaged batch.
    """
    for batch in range(first_batch, len(sections.starts)):
        position = sections.starts[batch]
        end = sections.ends[batch]
        previous_delta = np.int64(-1)
        base_ordinal = ordinals[batch]
        first = np.int64(0)
        while first < records_counts[batch]:
            count = min(AT_ONCE, records_counts[batch] - first)
            problem, position, previous_delta = read_some(
                sections.data, position, end, previous_delta, count, first_offset - base_offsets[batch],
                keys.seed, keys.table, keys.scratch,
            )  # fmt: skip
            if problem != INTACT:
                return problem, batch, position
            for i in range(count):
                if i + SOON < count:
                    ask_for_entry(keys.table, keys.arena, keys.scratch[i + SOON])
                key_length = keys.scratch[2 * AT_ONCE + i]
                if key_length >= 0 and not note(
                    keys.table, keys.arena, keys.used, sections.data, keys.scratch[AT_ONCE + i], key_length, keys.scratch[i],
                    base_ordinal + first + i, outdated, np.int64(0),
                ):  # fmt: skip
                    return MAP_FULL, batch, position
            first += count
        if position != end:
            return BAD_COUNT, batch, position
    return INTACT, 0, 0


@kernel(integers(3), SECTIONS_IN, INT64_IN, INT64_IN, INT64_IN, KEY_MAP, BYTES_OUT)
def find_outdated(sections: Any, records_counts: Any, ordinals: Any, places: Any, keys: Any, outdated: Any) -> Any:
    """Decide for each record whether the map has a newer record of its key. If so, its byte in outdated is set to 1.

    The bytes of a batch begin at the batch's place in outdated. Returns the same values as index_keys.
    """
    for batch in range(len(sections.starts)):
        position = sections.starts[batch]
        end = sections.ends[batch]
        previous_delta = np.int64(-1)
        first = np.int64(0)
        while first < records_counts[batch]:
            count = min(AT_ONCE, records_counts[batch] - first)
            problem, position, previous_delta = read_some(
                sections.data, position, end, previous_delta, count, np.int64(0), keys.seed, keys.table, keys.scratch,
            )  # fmt: skip
            if problem != INTACT:
                return problem, batch, position
            for i in range(count):
                if i + SOON < count:
                    ask_for_entry(keys.table, keys.arena, keys.scratch[i + SOON])
                known = np.int64(0)
                key_length = keys.scratch[2 * AT_ONCE + i]
                if key_length >= 0:
                    _, known = find(
                        keys.table, keys.arena, sections.data, keys.scratch[AT_ONCE + i], key_length, keys.scratch[i]
                    )
                newer = known != 0 and keys.arena[known] > ordinals[batch] + first + i
                outdated[places[batch] + first + i] = np.uint8(newer)
            first += count
        if position != end:
            return BAD_COUNT, batch, position
    return INTACT, 0, 0
