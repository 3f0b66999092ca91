"""The newest offset of each key in the dirty part of a partition, in bounded memory.

Half of the memory is a hash table, half holds the keys' bytes, by which keys are compared exactly. Where either half is
full the map ends early, at an offset: what lies behind is left for the next compaction. The memory of both is taken
from the operating system only as it is used.

One map serves one compaction of one partition, in one thread.
"""

from __future__ import annotations

import secrets

import numpy as np

from storage_engine.cleaner.map_kernels import MAP_FULL, SLOT_COLUMNS, index_keys
from storage_engine.errors import ConfigError
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.decode_kernels import INTACT
from storage_engine.record.decoding import damaged_batch, intact_sections

_SLOT_BYTES = 8 * SLOT_COLUMNS
_LOAD = 0.75
"""Used share of the slots beyond which probing gets slow."""
_FEWEST_SLOTS = 8


class OffsetMap:
    """Keys of the records from first_offset on, each with the offset of its newest record.

    full_at: None, or the offset of the first record that found no room; all below it are in the map, and none
    behind it.
    """

    def __init__(self, memory_bytes: int, first_offset: int, most_keys: int) -> None:
        """
        Args:
            memory_bytes: for slots and keys together (log.cleaner.dedupe.buffer.size).
            first_offset: records below it are not noted.
            most_keys: a bound on how many keys there can be, which saves memory where it is small.
        """
        slots = max(_FEWEST_SLOTS, min(int(most_keys / _LOAD) + 2, memory_bytes // 2 // _SLOT_BYTES))
        self.table = np.zeros((slots, SLOT_COLUMNS), np.int64)
        self.arena = np.empty(max(1, memory_bytes - self.table.nbytes), np.uint8)
        self.seed = secrets.randbits(63)
        self.full_at: int | None = None
        self._first_offset = first_offset
        self._most_entries = int(slots * _LOAD)
        self._used = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._used[0])

    def add(self, chunk: Chunk, file: str) -> None:
        """Note the keys of a chunk of batches that lies behind all that came before, up to where the map is full.

        Raises:
            CorruptionError: a batch does not hold what its header says.
            ConfigError: there is no room for a single key.
        """
        table = chunk.table.select((chunk.table.records_counts > 0) & (chunk.table.last_offsets >= self._first_offset))
        sections, starts, ends = intact_sections(chunk.data, table, file, chunk.position)
        problem, batch, place = index_keys(
            sections, starts, ends, table.records_counts, table.base_offsets, self._first_offset, self.seed,
            self._most_entries, self.table, self.arena, self._used,
        )  # fmt: skip
        if problem == INTACT:
            return
        if problem != MAP_FULL:
            position = chunk.position + int(table.positions[batch])
            raise damaged_batch(problem, place - int(starts[batch]), file, position)
        if not len(self):
            raise ConfigError(
                "log.cleaner.dedupe.buffer.size", f"no key fits, the first of {file} neither", "Give it more bytes."
            )
        self.full_at = place
