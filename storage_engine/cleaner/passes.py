"""Finds the outdated records of a log. A record is outdated if the dirty part has a newer record with the same key.

If the keys of the dirty part fit into the given memory, one map contains them all. While the map is filled, a bit is
set for each record that becomes outdated. Records of the clean part are looked up in the map when the cleaner reads
them.

If the keys do not fit into memory, a compaction first writes the keys of the whole range to a temporary file. The
file consists of runs, which are sorted by hash bucket (key_runs). The range is then examined in portions. Each record
of a portion needs one bit of memory, so the memory limits the size of a portion. Each portion takes one or more
passes over the runs. A pass loads as many neighbouring buckets as fit into a map. The pass first reads the dirty
entries of these buckets, and then the clean entries. For each outdated record, the pass sets a bit.

Both methods, with and without the temporary file, find the same outdated records. So a compaction with little memory
has the same result as a compaction with much memory. One compaction is enough for the whole dirty part. During the
passes, the map uses half of the given memory, and the runs or bits use the other half. A compaction needs more than
the given memory only for a single large batch, or for a large bucket (one of 4,096).
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from storage_engine.cleaner.key_runs import RunFile, RunWriter
from storage_engine.cleaner.map_kernels import MAP_FULL, find_outdated, index_keys
from storage_engine.cleaner.offset_map import KeyMap
from storage_engine.cleaner.run_kernels import BUCKETS, take_entries
from storage_engine.errors import StorageError
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.batch import ByteArray, Int64Array
from storage_engine.record.decoding import damaged_batch, intact_sections
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.decode_kernels import INTACT
from storage_engine.record.sections import Room

_LONG_AGO = -(2**62)
"""Ordinals of the dirty part begin at 0. All records of the clean part have this ordinal."""
_WORDS_BESIDE = 4
"""Words that the table of a map needs for each entry, in addition to the words of the entry itself."""


@dataclass(frozen=True)
class KeyedChunk:
    """Batches as input for the key map.

    has_keys: bool of shape (batches,), the batches whose keys are used. The CRCs of the other batches are checked
        already.
    file: the name for error messages.
    room: memory for the uncompressed records.
    """

    chunk: Chunk
    has_keys: npt.NDArray[np.bool_]
    file: str
    room: Room

    def records_of(self, chosen: npt.NDArray[np.bool_]) -> Sections:
        """The records of the chosen batches.

        Raises:
            CorruptionError: a CRC, codec or record count is wrong. The error names the batch.
        """
        table = self.chunk.table.select(chosen)
        return intact_sections(self.chunk.data, table, self.file, self.chunk.position, self.room)


class OutdatedRecords(Protocol):
    """Shows which records are outdated. Its methods are called for one chunk after another, in the order of the log.

    keys: the number of distinct keys in the dirty part; complete after the last chunk.
    """

    @property
    def keys(self) -> int: ...

    def whole(self, chunk: Chunk) -> npt.NDArray[np.bool_]:
        """Return, for each batch of the next chunk, whether all its records are already known to be outdated; bool of
        shape (batches,).

        The records themselves are not read. Call this method before `of`, for the same chunk.
        """

    def of(self, chunk: Chunk, judged: npt.NDArray[np.bool_], records: Sections, file: str) -> ByteArray:
        """Return one number for each record of these batches: 1 for an outdated record, otherwise 0; uint8 of shape
        (records,).

        Args:
            judged: bool of shape (batches,): whether the answers for the batch's records are used.
            records: the records of all batches; empty for batches that are not judged.

        Raises:
            CorruptionError: the content of a batch differs from its header.
        """


@contextmanager
def outdated_records(
    memory_bytes: int, first_dirty_offset: int, read: Callable[[int], Iterable[KeyedChunk]]
) -> Iterator[OutdatedRecords]:
    """Choose between one map and several passes, and prepare the answers.

    Args:
        read: returns the batches of the range, beginning with a batch at this offset or earlier.

    Raises:
        CorruptionError: the contents of a batch do not match its header.
        StorageError: the storage, or the folder for temporary files, refused a call, or failed.
    """
    found = _InOneMap(memory_bytes, first_dirty_offset)
    if all(map(found.add, read(first_dirty_offset))):
        yield found
        return
    del found  # frees its memory before the runs need it
    seed = secrets.randbits(63)
    with _temporary_file() as (write, read_back, place):
        writer = RunWriter(write, memory_bytes // 2, first_dirty_offset, seed)
        for each in read(0):
            write_keys(writer, each)
        runs = writer.finish()
        del writer
        yield OutdatedByRuns([RunFile(place, read_back, runs)], memory_bytes, seed)


def write_keys(writer: RunWriter, keyed: KeyedChunk) -> None:
    """Add the keys of a chunk to the runs.

    Raises:
        CorruptionError, StorageError: as outdated_records.
    """
    has_keys = keyed.has_keys & (keyed.chunk.table.records_counts > 0)
    writer.add(keyed.chunk, has_keys, keyed.records_of(has_keys), keyed.file)


class _InOneMap:
    """Records of the dirty part have the ordinals 0, 1, 2 and so on. If a batch begins before the first dirty offset
    and contains this offset, all its records have negative ordinals, up to -1.
    """

    def __init__(self, memory_bytes: int, first_dirty_offset: int) -> None:
        self._first_offset = first_dirty_offset
        self._bits: ByteArray = np.zeros(max(memory_bytes // 8, 1), np.uint8)
        self._map = KeyMap(memory_bytes - len(self._bits))
        self._indexed = 0
        self._asked = 0

    @property
    def keys(self) -> int:
        return len(self._map)

    def add(self, keyed: KeyedChunk) -> bool:
        """Store the keys of the next batches. Returns False if they do not fit."""
        table = keyed.chunk.table
        dirty = table.base_offsets >= self._first_offset
        counts = np.where(dirty, table.records_counts, 0)
        ordinals = np.where(dirty, self._indexed + np.cumsum(counts) - counts, -table.records_counts)
        self._indexed += int(counts.sum())
        if self._indexed > 8 * len(self._bits):
            return False
        wanted = keyed.has_keys & (table.records_counts > 0) & (table.last_offsets >= self._first_offset)
        records, table, ordinals = keyed.records_of(wanted), table.select(wanted), ordinals[wanted]
        batch = 0
        while True:
            problem, batch, place = index_keys(
                records, table.records_counts, table.base_offsets, ordinals, batch, self._first_offset,
                self._map.arrays, self._bits,
            )  # fmt: skip
            if problem == INTACT:
                return True
            if problem != MAP_FULL:
                position = keyed.chunk.position + int(table.positions[batch])
                raise damaged_batch(problem, place - int(records.starts[batch]), keyed.file, position)
            if not self._map.grow():
                return False

    def whole(self, chunk: Chunk) -> npt.NDArray[np.bool_]:
        counts = np.where(chunk.table.base_offsets >= self._first_offset, chunk.table.records_counts, 0)
        return _all_marked(_bits_to_bytes(self._bits, self._asked, int(counts.sum())), counts)

    def of(self, chunk: Chunk, judged: npt.NDArray[np.bool_], records: Sections, file: str) -> ByteArray:
        table = chunk.table
        dirty = table.base_offsets >= self._first_offset
        known = int(table.records_counts[dirty].sum())
        self._asked += known
        marked = _bits_to_bytes(self._bits, self._asked - known, known)
        if dirty.all():
            return marked
        first = table.records_counts[~dirty]
        looked_up: ByteArray = np.zeros(int(first.sum()), np.uint8)
        places = np.cumsum(first) - first
        wanted = ~dirty & judged & (table.records_counts > 0)
        places = places[wanted[~dirty]]
        table = table.select(wanted)
        ordinals = np.where(table.last_offsets >= self._first_offset, -table.records_counts, _LONG_AGO)
        chosen = Sections(records.data, records.starts[wanted], records.ends[wanted])
        problem, batch, place = find_outdated(
            chosen, table.records_counts, ordinals, places, self._map.arrays, looked_up
        )
        if problem != INTACT:
            raise damaged_batch(
                problem, place - int(chosen.starts[batch]), file, chunk.position + int(table.positions[batch])
            )
        return np.concatenate((looked_up, marked))


class OutdatedByRuns:
    """Finds the outdated records with several passes over the runs. Ordinals count from the beginning of the range,
    even if the caller asks about only one part of the range.
    """

    def __init__(self, files: Sequence[RunFile], memory_bytes: int, seed: int, first_asked: int = 0) -> None:
        """
        Args:
            files: the runs of all parts that have dirty records, and of the parts that are judged.
            first_asked: ordinal of the first record that is judged.
        """
        self.keys = 0
        self._files = files
        self._seed = seed
        self._piece_bytes = memory_bytes // 8
        self._map_bytes = memory_bytes // 2
        self._most_bits = memory_bytes  # these bits take an eighth of the memory
        self._asked = self._first = first_asked
        self._bits: ByteArray = np.zeros(0, np.uint8)
        self._end = max(each.base + each.runs.records for each in files if each.judged)

    def whole(self, chunk: Chunk) -> npt.NDArray[np.bool_]:
        counts = chunk.table.records_counts
        return _all_marked(self._next(int(counts.sum())), counts)

    def of(self, chunk: Chunk, judged: npt.NDArray[np.bool_], records: Sections, file: str) -> ByteArray:  # noqa: ARG002
        marked = self._next(int(chunk.table.records_counts.sum()))
        self._asked += len(marked)
        return marked

    def _next(self, count: int) -> ByteArray:
        """Return one number for each of the next `count` records: 1 for an outdated record, otherwise 0."""
        if self._asked + count > self._first + 8 * len(self._bits):
            self._first = self._asked
            bits = max(count, min(self._most_bits, self._end - self._first))
            self._bits = np.zeros((bits + 7) // 8, np.uint8)
            self.keys = sum(self._pass(*buckets) for buckets in self._passes())
        return _bits_to_bytes(self._bits, self._asked - self._first, count)

    def _passes(self) -> Iterator[tuple[int, int, int]]:
        """For each pass: the first bucket, the bucket after the last, and the most bytes that their keys can need."""
        words: Int64Array = sum(
            (each.runs.dirty_words + _WORDS_BESIDE * each.runs.dirty_entries for each in self._files),
            np.zeros(BUCKETS, np.int64),
        )
        sizes = np.cumsum(8 * words)
        first = 0
        while first < BUCKETS:
            before = int(sizes[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(sizes, before + self._map_bytes, side="right")))
            yield first, end, int(sizes[end - 1]) - before
            first = end

    def _pass(self, first: int, end: int, most_bytes: int) -> int:
        """Mark the records that are outdated by the keys of these buckets. Returns the number of keys."""
        keys = KeyMap(4 * most_bytes // 3 + 1024, self._seed)  # a quarter can be slots from the start
        for dirty in (True, False):
            for file in self._files:
                if not dirty and not file.judged:
                    continue
                for piece in file.pieces(first, end, self._piece_bytes):
                    while True:
                        problem, piece.taken = take_entries(
                            piece.words, piece.data, piece.taken, int(dirty), file.base, keys.arrays,
                            self._first, self._bits,
                        )  # fmt: skip
                        if problem != MAP_FULL:
                            break
                        grown = keys.grow()
                        assert grown, "a map has room for all keys of its pass"
        return len(keys)


def _bits_to_bytes(bits: ByteArray, first: int, count: int) -> ByteArray:
    begin = first // 8
    found = np.unpackbits(bits[begin : (first + count + 7) // 8], bitorder="little")
    return found[first - 8 * begin :][:count]


def _all_marked(marked: ByteArray, counts: Int64Array) -> npt.NDArray[np.bool_]:
    """Which batches have only marked records. counts: number of records of each batch."""
    so_far = np.concatenate(([0], np.cumsum(marked, dtype=np.int64)))
    ends = np.cumsum(counts)
    found: npt.NDArray[np.bool_] = (counts > 0) & (so_far[ends] - so_far[ends - counts] == counts)
    return found


@contextmanager
def _temporary_file() -> Iterator[tuple[Callable[[memoryview], None], Callable[[int, int], bytes], str]]:
    """Return a function that writes to a temporary file, a function that reads from it, and its name for error
    messages. The file has no name on disk, so it disappears when the process ends, even if the process is killed.
    """
    place = f"a temporary file in {tempfile.gettempdir()}"

    def failed(error: OSError) -> StorageError:
        return StorageError(
            place,
            f"the keys of a compaction cannot be written or read: {error}",
            "If the disk is full, set TMPDIR to a folder with more space.",
        )

    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise failed(error) from error
    with file:

        def write(data: memoryview) -> None:
            try:
                while len(data):
                    data = data[file.write(data) :]
            except OSError as error:
                raise failed(error) from error

        def read(position: int, length: int) -> bytes:
            try:
                return os.pread(file.fileno(), length, position)
            except OSError as error:
                raise failed(error) from error

        yield write, read, place
