"""Writes the keys of a part of a log to a temporary file, sorted so that they can be read bucket by bucket.

    run       header: 4,097 int64: the word at which each bucket begins, then the end of the last bucket
              words:  int64, the entries of map_kernels; inside a bucket in the order of the log

The bucket of a key is twelve bits of its seeded hash. In each run, the entries of neighbouring buckets are
contiguous. So neighbouring buckets can be read together. A map with only the keys of some buckets shows which records
of these buckets are outdated. If the keys of one part of the log need more than the given memory, several runs are
written for that part. A run is read only by the compaction that wrote it. So a run is not synced, and the reader
checks only the lengths in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from storage_engine.cleaner.run_kernels import BUCKETS, RUN_FULL, RunArrays, sort_entries, write_entries
from storage_engine.errors import CorruptionError
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.batch import ByteArray, Int64Array
from storage_engine.record.decoding import damaged_batch
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.decode_kernels import INTACT

_WORD = 8
_HEADER_BYTES = _WORD * (BUCKETS + 1)
_LEAST_PIECE_BYTES = 4096


@dataclass(frozen=True)
class KeyRuns:
    """Describes a file of runs. Picklable.

    positions: where each run begins in the file.
    records: number of records in the part of the log, with and without keys.
    dirty_words: int64 of shape (BUCKETS,), words of the dirty part's keys.
    dirty_entries: int64 of shape (BUCKETS,), number of entries of the dirty part's keys.
    """

    positions: tuple[int, ...]
    records: int
    dirty_words: Int64Array
    dirty_entries: Int64Array


@dataclass(frozen=True)
class RunFile:
    """A file of runs, open for reading.

    place: the name for error messages.
    read: returns the `length` bytes that begin at a position.
    base: ordinal of the first record of this part of the log.
    judged: whether the records of this part are examined. If not, only the dirty keys of this part are used.
    """

    place: str
    read: Callable[[int, int], bytes]
    runs: KeyRuns
    base: int = 0
    judged: bool = True

    def pieces(self, first: int, end: int, piece_bytes: int) -> Iterator[RunPiece]:
        """The words of the buckets from `first` up to but not including `end`, run by run.

        Raises:
            CorruptionError: the file does not contain the words that were written.
        """
        for position in self.runs.positions:
            bounds = np.frombuffer(self.read(position + _WORD * first, _WORD * (end - first + 1)), np.int64)
            begin, behind = (position + _HEADER_BYTES + _WORD * int(bounds[row]) for row in (0, end - first))
            wanted = max(piece_bytes, _LEAST_PIECE_BYTES)
            while begin < behind:
                data = self.read(begin, min(wanted, behind - begin))
                piece = RunPiece(np.frombuffer(data, np.uint8))
                yield piece
                if piece.taken == 0 and len(data) == behind - begin:
                    raise CorruptionError(self.place, begin, "a whole entry of a key", "an entry that is cut off")
                wanted = max(piece_bytes, _LEAST_PIECE_BYTES) if piece.taken else 2 * wanted
                begin += _WORD * piece.taken


@dataclass
class RunPiece:
    """Words of a run. taken: how many words the caller has used so far; the caller updates it after whole entries."""

    data: ByteArray
    taken: int = 0

    @property
    def words(self) -> Int64Array:
        return self.data.view(np.int64)


class RunWriter:
    """Writes the keys of a part of a log as runs, chunk by chunk."""

    def __init__(
        self, write: Callable[[memoryview], None], memory_bytes: int, first_dirty_offset: int, seed: int
    ) -> None:
        """
        Args:
            write: receives the bytes of the file in order.
            memory_bytes: the memory for one run. The keys of a run are in memory twice when they are sorted, so a run
                can have half as many bytes. A very large batch can need more memory.
        """
        self._write = write
        self._first_dirty_offset = first_dirty_offset
        self._seed = seed
        self._entries: Int64Array = np.empty(max(memory_bytes // (2 * _WORD), 1), np.int64)
        self._used: Int64Array = np.zeros(1, np.int64)
        self._words, self._dirty_words, self._dirty_entries = (np.zeros(BUCKETS, np.int64) for _ in range(3))
        self._positions: list[int] = []
        self._end = 0
        self._records = 0

    def add(
        self, chunk: Chunk, has_keys: np.ndarray[tuple[int], np.dtype[np.bool_]], records: Sections, file: str
    ) -> None:
        """Add the next batches of the log.

        Args:
            has_keys: bool of shape (batches,), the batches whose keys are used.
            records: the records of the batches whose keys are used.

        Raises:
            CorruptionError: the contents of a batch do not match its header.
        """
        ordinals = self._records + np.cumsum(chunk.table.records_counts) - chunk.table.records_counts
        self._records += int(chunk.table.records_counts.sum())
        table = chunk.table.select(has_keys)
        batch = 0
        while True:
            problem, batch, place = write_entries(
                records, table.records_counts, table.base_offsets, ordinals[has_keys], batch, self._first_dirty_offset,
                self._seed, RunArrays(self._entries, self._used, self._words, self._dirty_words, self._dirty_entries),
            )  # fmt: skip
            if problem == INTACT:
                return
            if problem != RUN_FULL:
                position = chunk.position + int(table.positions[batch])
                raise damaged_batch(problem, place - int(records.starts[batch]), file, position)
            self._end_run()
            if place > len(self._entries):
                self._entries = np.empty(place, np.int64)

    def finish(self) -> KeyRuns:
        """Write the last run."""
        self._end_run()
        return KeyRuns(tuple(self._positions), self._records, self._dirty_words, self._dirty_entries)

    def _end_run(self) -> None:
        end = int(self._used[0])
        if end == 0:
            return
        bounds = np.concatenate(([0], np.cumsum(self._words)))
        sorted_entries = np.empty(end, np.int64)
        sort_entries(self._entries, self._entries.view(np.uint8), end, self._seed, bounds[:-1].copy(), sorted_entries)
        self._write(bounds.data.cast("B"))
        self._write(sorted_entries.data.cast("B"))
        self._positions.append(self._end)
        self._end += _HEADER_BYTES + _WORD * end
        self._used[0] = 0
        self._words[:] = 0
