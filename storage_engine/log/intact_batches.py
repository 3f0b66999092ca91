"""Reading a .log that may be damaged anywhere: every intact batch of it, and where the bytes lie that are none.

A batch is intact if its header is sane, its CRC fits and its offsets lie behind those of the batch before it and before
those of the next segment. Behind damage, reading goes on where the damaged batch says that it ends, if an intact batch
begins there, else at the next byte at which one does. Offsets lie outside of the CRC: where one batch's do not fit its
neighbours', which fit each other, it is that one that is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET
from storage_engine.log.segment_reader import READ_BYTES, Chunk
from storage_engine.record.batch import (
    BATCH_HEADER,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchTable,
    ByteArray,
    first_changed_batch,
    scan_until_damage,
)
from storage_engine.storage import Storage


class Damage(NamedTuple):
    """Bytes of a .log that are no intact batch. problem: what was expected and found at the position."""

    position: int
    size: int
    problem: str

    @property
    def end(self) -> int:
        return self.position + self.size


class DamagedLog:
    """One .log on its way through recovery; read once, from front to back."""

    def __init__(self, storage: Storage, key: str, base_offset: int, size: int, end_offset: int) -> None:
        """
        Args:
            end_offset: the base offset of the next segment, or a bound that no offset reaches.
        """
        self.damages: list[Damage] = []
        self._storage = storage
        self._key = key
        self._size = size
        self._lowest = base_offset
        self._end_offset = min(end_offset, base_offset + MOST_RELATIVE_OFFSET + 1)

    def chunks(self) -> Iterator[Chunk]:
        """The intact batches, in order; `damages` has what lies between and behind those given so far."""
        position, wanted = 0, READ_BYTES
        while position < self._size:
            length = min(wanted, self._size - position)
            data = np.frombuffer(self._storage.read(self._key, position, length), np.uint8)
            table, problem = scan_until_damage(data, self._key, position)
            changed = first_changed_batch(data, table, self._key, position)
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
                found = f"expected a whole batch, found {self._size - bad} bytes"
            elif not len(table):
                claimed = LOG_OVERHEAD + _big_endian(data, LENGTH_POSITION, 4)
                if claimed > wanted and self._is_batch(position):
                    wanted = claimed
                    continue
                taken, bad, end = table, position, None
                found = "expected a whole batch, found one that leaves the file or has another CRC"
            else:
                # The last batch is read once more with its successor, which may show that its offsets are wrong.
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
        """The first row whose offsets do not fit, and what is wrong with them."""
        lows = np.concatenate(([self._lowest], table.last_offsets[:-1] + 1))
        wrong = np.flatnonzero((table.base_offsets < lows) | (table.last_offsets >= self._end_offset))
        if not len(wrong):
            return None, ""
        row = int(wrong[0])
        before = int(lows[row - 1]) if row else 0
        if row and table.last_offsets[row] < self._end_offset and table.base_offsets[row] >= before:
            row -= 1  # without the one before it, this one fits
        return row, (
            f"expected offsets from {lows[row]} to {self._end_offset - 1},"
            f" found a batch with {table.base_offsets[row]} to {table.last_offsets[row]}"
        )

    def _next_batch(self, position: int) -> int:
        """Where reading can go on behind the damaged batch at this position; the file's size where it cannot."""
        header = self._storage.read(self._key, position, LOG_OVERHEAD)
        if len(header) == LOG_OVERHEAD:
            claimed = position + LOG_OVERHEAD + _big_endian(np.frombuffer(header, np.uint8), LENGTH_POSITION, 4)
            if claimed == self._size or (claimed > position and self._is_batch(claimed)):
                return claimed
        position += 1
        while position < self._size:
            data = np.frombuffer(self._storage.read(self._key, position, READ_BYTES), np.uint8)
            if len(data) < HEADER_BYTES:
                break
            for candidate in self._candidates(data).tolist():
                if self._is_batch(position + candidate):
                    return int(position + candidate)
            position += len(data) - HEADER_BYTES + 1
        return self._size

    def _candidates(self, data: ByteArray) -> npt.NDArray[np.intp]:
        """Positions at which a header may begin: its magic is right, and its offset and length are possible."""
        starts = len(data) - HEADER_BYTES + 1
        found = np.flatnonzero(data[MAGIC_POSITION : MAGIC_POSITION + starts] == MAGIC)
        heads = np.lib.stride_tricks.sliding_window_view(data, LOG_OVERHEAD)[found]
        offsets = np.ascontiguousarray(heads[:, :LENGTH_POSITION]).view(">i8")[:, 0]
        lengths = np.ascontiguousarray(heads[:, LENGTH_POSITION:]).view(">i4")[:, 0]
        possible = (offsets >= self._lowest) & (offsets < self._end_offset) & (lengths >= HEADER_BYTES - LOG_OVERHEAD)
        return found[possible]

    def _is_batch(self, position: int) -> bool:
        """Whether an intact batch begins here, as far as can be told without its neighbours."""
        data = self._storage.read(self._key, position, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return False
        header = np.frombuffer(data, BATCH_HEADER)[0]
        end = position + LOG_OVERHEAD + int(header["batch_length"])
        last_offset = int(header["base_offset"]) + int(header["last_offset_delta"])
        return (
            int(header["magic"]) == MAGIC
            and position + HEADER_BYTES <= end <= self._size
            and self._lowest <= int(header["base_offset"]) <= last_offset < self._end_offset
            and self._crc(position + CRC_START, end) == int.from_bytes(data[CRC_POSITION:CRC_START], "big")
        )

    def _crc(self, position: int, end: int) -> int:
        """CRC-32C of a range, in bounded memory."""
        crc = 0
        while position < end and (data := self._storage.read(self._key, position, min(READ_BYTES, end - position))):
            crc = crc32c(data, crc)
            position += len(data)
        return crc


def _before(table: BatchTable, position: int) -> BatchTable:
    return table.select(table.positions < position)


def _big_endian(data: ByteArray, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size].tobytes(), "big", signed=True)
