"""Finds every intact batch in a damaged .log, and the byte ranges that are damaged.

A batch is intact if three conditions are met. The values in its header are possible, its CRC matches, and its offsets
are in order: above the offsets of the batch before it, and below the base offset of the next segment. A damaged batch
can still have the right length in its header. So reading first tries the byte after this length, and continues there
if an intact batch begins there. Otherwise, reading continues at the next byte at which an intact batch begins.

Offsets are outside the CRC. Sometimes the offsets of a batch do not fit between the offsets of its two neighbors. If
the neighbors' offsets are in order, only the batch between the neighbors counts as damaged. Recovery uses this
module. Only one thread at a time may use a DamagedLog.

A crash can leave a torn tail: bytes at the end of the newest .log that are not a whole, intact batch. If an intact
batch follows such bytes, they are not a torn tail, but damage.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_engine.errors import CorruptionError
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET
from storage_engine.log.segment_reader import READ_BYTES, Chunk, SegmentFile, read_chunks
from storage_engine.record.batch import UNKNOWN_COUNT, BatchTable, ByteArray, scan_header, scan_until_damage
from storage_engine.record.crc import check_crcs, first_changed_batch
from storage_engine.record.header import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    SHORTEST,
)
from storage_engine.storage import Storage

_SHORTEST_BATCH = LOG_OVERHEAD + SHORTEST[0]
_REMEDY = "`lakelog verify --repair` cuts out only the damaged bytes."


class Damage(NamedTuple):
    """Bytes of a .log that are not an intact batch.

    problem: what was expected and what was found at the position.
    """

    position: int
    size: int
    problem: str

    @property
    def end(self) -> int:
        return self.position + self.size


class DamagedLog:
    """Reads one .log once, from front to back, during recovery."""

    def __init__(self, storage: Storage, key: str, base_offset: int, size: int, end_offset: int) -> None:
        """
        Args:
            end_offset: the base offset of the next segment, or a number above every possible offset.
        """
        self.damages: list[Damage] = []
        self._storage = storage
        self.key = key
        self._size = size
        self._lowest = base_offset
        self._end_offset = min(end_offset, base_offset + MOST_RELATIVE_OFFSET + 1)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the intact batches in order. `damages` has the damaged ranges up to the last batch that was yielded."""
        position, wanted = 0, READ_BYTES
        while position < self._size:
            length = min(wanted, self._size - position)
            data = np.frombuffer(self._storage.read(self.key, position, length), np.uint8)
            table, problem = scan_until_damage(data, self.key, position)
            changed = first_changed_batch(data, table, self.key, position)
            if changed is not None:
                table, problem = _before(table, changed.position - position), changed
            row, found = self._first_misplaced(table)
            if row is not None:
                taken, bad = table.select(slice(0, row)), position + int(table.positions[row])
                end = bad + int(table.sizes[row])
            elif problem is not None:
                taken, bad, found = table, problem.position, problem.problem
                end = None
            elif position + table.end == self._size:
                taken, bad, end = table, self._size, self._size
            elif position + length == self._size:
                taken, bad, end = table, position + table.end, None
                found = f"expected a complete batch, found {self._size - bad} bytes"
            elif not len(table):
                claimed = LOG_OVERHEAD + _big_endian(data, LENGTH_POSITION, 4)
                if claimed > wanted and self._is_batch(position):
                    wanted = claimed
                    continue
                taken, bad, end = table, position, None
                found = "expected a complete batch, found a batch that ends after the file or has a wrong CRC"
            else:
                # The last batch is read again together with the next batch, which may show that the last batch has
                # wrong offsets.
                taken = table.select(slice(0, -1)) if len(table) > 1 else table
                bad = end = position + taken.end
            if len(taken):
                self._lowest = int(taken.last_offsets[-1]) + 1
                yield Chunk(data, position, taken)
            position = end if end is not None else self._next_batch(bad)
            wanted = READ_BYTES
            if position > bad:
                self.damages.append(Damage(bad, position - bad, found))

    def _first_misplaced(self, table: BatchTable) -> tuple[int | None, str]:
        """Return the first row with wrong offsets, and what is wrong with them."""
        lows = np.concatenate(([self._lowest], table.last_offsets[:-1] + 1))
        firsts = _first_offsets(table)
        wrong = np.flatnonzero((firsts < lows) | (table.last_offsets >= self._end_offset))
        if not len(wrong):
            return None, ""
        row = int(wrong[0])
        before = int(lows[row - 1]) if row else 0
        if row and table.last_offsets[row] < self._end_offset and firsts[row] >= before:
            row -= 1  # this batch fits if the batch before it is ignored, so the batch before it is damaged
        return row, (
            f"expected offsets from {lows[row]} to {self._end_offset - 1},"
            f" found a batch with {firsts[row]} to {table.last_offsets[row]}"
        )

    def _next_batch(self, position: int) -> int:
        """Return the position of the next intact batch after the damaged bytes; the file's size if there is no intact
        batch.
        """
        header = self._storage.read(self.key, position, LOG_OVERHEAD)
        if len(header) == LOG_OVERHEAD:
            claimed = position + LOG_OVERHEAD + _big_endian(np.frombuffer(header, np.uint8), LENGTH_POSITION, 4)
            if claimed == self._size or (claimed > position and self._is_batch(claimed)):
                return claimed
        position += 1
        while position < self._size:
            data = np.frombuffer(self._storage.read(self.key, position, READ_BYTES), np.uint8)
            if len(data) < _SHORTEST_BATCH:
                break
            for candidate in self._candidates(data).tolist():
                if self._is_batch(position + candidate):
                    return int(position + candidate)
            position += len(data) - _SHORTEST_BATCH + 1
        return self._size

    def _candidates(self, data: ByteArray) -> npt.NDArray[np.intp]:
        """Return the positions at which magic, offset and length of a header are possible."""
        starts = len(data) - _SHORTEST_BATCH + 1
        found = np.flatnonzero(data[MAGIC_POSITION : MAGIC_POSITION + starts] <= MAGIC)
        heads = np.lib.stride_tricks.sliding_window_view(data, LOG_OVERHEAD)[found]
        offsets = np.ascontiguousarray(heads[:, :LENGTH_POSITION]).view(">i8")[:, 0]
        lengths = np.ascontiguousarray(heads[:, LENGTH_POSITION:]).view(">i4")[:, 0]
        possible = (offsets >= self._lowest) & (offsets < self._end_offset)
        possible &= (lengths >= SHORTEST[0]) & (lengths <= self._size)
        return found[possible]

    def _is_batch(self, position: int) -> bool:
        """Whether an intact batch begins at this position. The offsets of its neighbors are not considered."""
        data = np.frombuffer(self._storage.read(self.key, position, HEADER_BYTES), np.uint8)
        table = scan_header(data)
        if not len(table):
            return False
        end = position + int(table.sizes[0])
        if end > self._size or not (
            self._lowest <= int(_first_offsets(table)[0]) <= int(table.last_offsets[0]) < self._end_offset
        ):
            return False
        crc = (
            self._crc(zlib.crc32, position + MAGIC_POSITION, end)
            if table.is_legacy[0]
            else self._crc(crc32c, position + CRC_START, end)
        )
        return crc == int(table.crcs[0])

    def _crc(self, checksum: Callable[[bytes, int], int], position: int, end: int) -> int:
        """Return the checksum of a range, read in pieces."""
        crc = 0
        while position < end and (data := self._storage.read(self.key, position, min(READ_BYTES, end - position))):
            crc = checksum(data, crc)
            position += len(data)
        return crc


def without_torn_tail(storage: Storage, file: SegmentFile) -> SegmentFile:
    """The file up to its last whole, intact batch, if the bytes after it are not a batch.

    Raises:
        CorruptionError: an intact batch follows the bytes that are not a batch.
        StorageError: the file cannot be read.
    """
    size = file.size
    while True:
        last: Chunk | None = None
        try:
            for chunk in read_chunks(storage, replace(file, size=size)):
                last = chunk
        except CorruptionError as error:
            size = error.position
            continue
        if last is None or _last_batch_is_intact(last, file.key):
            break
        size = last.position + int(last.table.positions[-1])
    if size < file.size:
        _check_torn(storage, file)
    return replace(file, size=size)


def _last_batch_is_intact(chunk: Chunk, file: str) -> bool:
    try:
        check_crcs(chunk.data, chunk.table.select(slice(len(chunk.table) - 1, None)), file)
    except CorruptionError:
        return False
    return True


def _check_torn(storage: Storage, file: SegmentFile) -> None:
    log = DamagedLog(storage, file.key, file.base_offset, file.size, file.end_offset)
    for _ in log.chunks():
        if log.damages:
            raise CorruptionError(
                file.key, log.damages[0].position, "an intact batch", "damage, and intact batches after it", _REMEDY
            )


def _first_offsets(table: BatchTable) -> npt.NDArray[np.int64]:
    """Return the first offset of each batch. For a wrapper of magic 0 or 1, return the last offset, because only
    decoding shows the first.
    """
    return np.where(table.records_counts == UNKNOWN_COUNT, table.last_offsets, table.base_offsets)


def _before(table: BatchTable, position: int) -> BatchTable:
    return table.select(table.positions < position)


def _big_endian(data: ByteArray, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size].tobytes(), "big", signed=True)
