"""Contains the compiled loops that write and read runs of keys. A run (key_runs) contains entries of map_kernels,
sorted by bucket.

The keys of the dirty part are added to a map. The keys of the clean part are only looked up in this map. An entry of
the clean part is marked: it contains ~ordinal (the bitwise complement) instead of the ordinal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from storage_engine.cleaner.map_kernels import (
    AT_ONCE,
    ENTRY_WORDS,
    KEY_MAP,
    MAP_FULL,
    SOON,
    ask_for_entry,
    entry_words,
    find,
    hash_key,
    mark,
    note,
    read_record,
    write_entry,
)
from storage_engine.record.kernels.columns import SECTIONS_IN, Int64Array
from storage_engine.record.kernels.compiled import (
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
    prefetch,
)
from storage_engine.record.kernels.decode_kernels import BAD_COUNT, INTACT

BUCKETS = 4096
RUN_FULL = 101
"""write_entries stopped before a batch because the run has no room for its keys."""
_BUCKET_SHIFT = 28  # above the bits that select a slot, below the bits that a slot stores


@inlined
def _bucket(hashed: Any) -> Any:
    return (hashed >> _BUCKET_SHIFT) & (BUCKETS - 1)


class RunArrays(NamedTuple):
    """A run of keys while it is written.

    used: the number of words in use by entries, shape (1,).
    words: the number of words of each bucket.
    dirty_words, dirty_entries: the number of words and entries of the dirty part in each bucket.
    """

    entries: Int64Array
    used: Int64Array
    words: Int64Array
    dirty_words: Int64Array
    dirty_entries: Int64Array


@kernel(
    integers(3), SECTIONS_IN, INT64_IN, INT64_IN, INT64_IN, INT64, INT64, INT64, columns(RunArrays, *[INT64_OUT] * 5)
)
def write_entries(
    sections: Any,
    records_counts: Any,
    base_offsets: Any,
    ordinals: Any,
    first_batch: Any,
    first_dirty_offset: Any,
    seed: Any,
    run: Any,
) -> Any:
    """Write an entry for each record with a key.

    Returns (problem, batch, place). The problem is INTACT; or RUN_FULL, with the batch at which to continue and the
    number of words that it can need; or the kind of damage, with the damaged batch and its position.
    """
    for batch in range(first_batch, len(sections.starts)):
        position = sections.starts[batch]
        end = sections.ends[batch]
        most = (ENTRY_WORDS + 1) * records_counts[batch] + ((end - position) >> 3)
        if run.used[0] + most > len(run.entries):
            return RUN_FULL, batch, most
        previous_delta = np.int64(-1)
        for i in range(records_counts[batch]):
            problem, record_end, _, _, offset_delta, key_start, key_length, _ = read_record(
                sections.data, position, end, previous_delta
            )
            if problem != INTACT:
                return problem, batch, position
            previous_delta = offset_delta
            position = record_end
            if key_length < 0:
                continue
            ordinal = ordinals[batch] + i
            bucket = _bucket(hash_key(sections.data, key_start, key_length, seed))
            size = entry_words(key_length)
            run.words[bucket] += size
            if base_offsets[batch] + offset_delta >= first_dirty_offset:
                run.dirty_words[bucket] += size
                run.dirty_entries[bucket] += 1
            else:
                ordinal = ~ordinal
            write_entry(run.entries, run.used[0], ordinal, sections.data, key_start, key_length)
            run.used[0] += size
        if position != end:
            return BAD_COUNT, batch, position
    return INTACT, 0, 0


@kernel(VOID, INT64_IN, BYTES_IN, INT64, INT64, INT64_OUT, INT64_OUT)
def sort_entries(entries: Any, bytes_of_entries: Any, end: Any, seed: Any, places: Any, out: Any) -> None:
    """Sort entries by bucket. Inside a bucket they stay in the order of the log.

    Args:
        places: where each bucket begins in out. On return, where each bucket ends.
    """
    place = 0
    while place < end:
        length = entries[place + 1]
        bucket = _bucket(hash_key(bytes_of_entries, 8 * (place + ENTRY_WORDS), length, seed))
        size = entry_words(length)
        to = places[bucket]
        for i in range(size):
            out[to + i] = entries[place + i]
        places[bucket] = to + size
        place += size


@kernel(integers(2), INT64_IN, BYTES_IN, INT64, INT64, INT64, KEY_MAP, INT64, BYTES_OUT)
def take_entries(
    entries: Any, bytes_of_entries: Any, begin: Any, dirty: Any, base: Any, keys: Any, first: Any, outdated: Any
) -> Any:
    """Note the keys of the dirty part, or look up the keys of the clean part, and mark the records that are outdated.

    dirty: 1 processes the entries of the dirty part, 0 those of the clean part.
    base: is added to the ordinals of the entries.
    outdated: one bit for each record, beginning at ordinal `first`.

    Returns (problem, place). The problem is MAP_FULL, with the place at which to continue; or INTACT, with the place of
    the first incomplete entry.
    """
    mask = np.int64(len(keys.table) - 1)
    place = begin
    while True:
        count = np.int64(0)
        ahead = place
        while count < AT_ONCE and ahead + ENTRY_WORDS <= len(entries):
            length = entries[ahead + 1]
            behind = ahead + entry_words(length)
            if length < 0 or behind > len(entries):
                break
            if (entries[ahead] >= 0) == (dirty == 1):
                hashed = hash_key(bytes_of_entries, 8 * (ahead + ENTRY_WORDS), length, keys.seed)
                prefetch(keys.table, hashed & mask)
                keys.scratch[count] = hashed
                keys.scratch[AT_ONCE + count] = ahead
                count += 1
            ahead = behind
        for i in range(count):
            if i + SOON < count:
                ask_for_entry(keys.table, keys.arena, keys.scratch[i + SOON])
            at = keys.scratch[AT_ONCE + i]
            length = entries[at + 1]
            key = 8 * (at + ENTRY_WORDS)
            if dirty == 1:
                if not note(
                    keys.table, keys.arena, keys.used, bytes_of_entries, key, length, keys.scratch[i], entries[at] + base,
                    outdated, first,
                ):  # fmt: skip
                    return MAP_FULL, at
            else:
                _, known = find(keys.table, keys.arena, bytes_of_entries, key, length, keys.scratch[i])
                if known != 0:
                    mark(outdated, ~entries[at] + base - first)
        if ahead == place:
            return INTACT, place
        place = ahead
