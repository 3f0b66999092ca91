"""Finds the newest record of each key in the dirty part of a partition, in bounded memory.

The map starts small and grows with the number of keys, up to a given size. The map compares whole keys, not only their
hashes. If the map is full, its caller (passes.py) divides the keys into several passes. One map serves one compaction
of one partition, in one thread.
"""

from __future__ import annotations

import secrets

import numpy as np

from storage_engine.cleaner.map_kernels import FIRST_PLACE, SCRATCH_WORDS, MapArrays, fill_table
from storage_engine.record.batch import Int64Array

_WORD = 8
_FIRST_SLOTS = 64 * 1024
_FEWEST_SLOTS = 8


class KeyMap:
    """Keys with the ordinals of their newest records (map_kernels).

    seed: seeds the hash.
    """

    def __init__(self, memory_bytes: int, seed: int | None = None) -> None:
        """
        Args:
            memory_bytes: the memory for slots and entries together, in bytes.
        """
        self.seed = secrets.randbits(63) if seed is None else seed
        self.scratch: Int64Array = np.empty(SCRATCH_WORDS, np.int64)
        self._memory_words = max(memory_bytes // _WORD, 2 * _FEWEST_SLOTS)
        slots = _FEWEST_SLOTS
        while slots < _FIRST_SLOTS and 8 * slots <= self._memory_words:
            slots *= 2
        self.table: Int64Array = np.zeros(slots, np.int64)
        self.used: Int64Array = np.array([0, FIRST_PLACE], np.int64)
        self._all_entries: Int64Array = np.empty(self._memory_words, np.int64)  # pages get memory on first use
        self.entries = self._all_entries[: self._memory_words - slots]

    def __len__(self) -> int:
        return int(self.used[0])

    @property
    def arrays(self) -> MapArrays:
        """The arrays for the kernels. The arrays are replaced when the map grows."""
        return MapArrays(self.seed, self.table, self.entries, self.used, self.scratch)

    def grow(self) -> bool:
        """Double the number of slots. Returns False if a larger table would not help, or would leave no room for the
        entries.
        """
        slots = 2 * len(self.table)
        used = int(self.used[1])
        if 2 * len(self) < len(self.table) or slots + used > self._memory_words:
            return False
        del self.table  # free it before the larger one is allocated
        self.table = np.zeros(slots, np.int64)
        self.entries = self._all_entries[: self._memory_words - slots]
        fill_table(self.seed, self.table, self.entries, self._all_entries.view(np.uint8), used, self.scratch)
        return True
