"""Reads the headers of consecutive record batches into a table of columns, without reading the records.

The table has one row per batch; each entry of magic 0 or 1 counts as a batch. record.header describes the layout of a
header. One pass over the bytes fills the table. The pass ends at the first impossible length, magic, offset or count,
with an error that names the place. This module does not check CRCs; record.crc checks them. All functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from storage_engine.errors import CorruptionError
from storage_engine.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_HEADER,
    CODEC_MASK,
    CONTROL,
    CRC_POSITION,
    DELETE_HORIZON,
    EPOCH_POSITION,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_POSITION,
    LEGACY_ATTRIBUTES_POSITION,
    LEGACY_CRC_POSITION,
    LEGACY_TIMESTAMP_POSITION,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORDS_COUNT_POSITION,
    SHORTEST,
)
from storage_engine.record.kernels.compiled import BYTES_IN, INT64, inlined, integers, kernel
from storage_engine.record.kernels.varint import read_big_endian

Int64Array = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

UNKNOWN_COUNT = -1
"""The records count of a wrapper, an entry with compressed messages inside. Only decompression shows their number."""
UNKNOWN_SMALLEST = -(2**63)
"""The value for a smallest timestamp that is not known. The minimum of this value and any other timestamp is this
value.
"""
NO_SMALLEST = 2**63 - 1
"""The value for the smallest timestamp if there is no record. The minimum of this value and any other timestamp is the
other timestamp.
"""

_COLUMNS = 14
(
    _POSITION,
    _SIZE,
    _BASE_OFFSET,
    _LAST_OFFSET,
    _LEADER_EPOCH,
    _ATTRIBUTES,
    _BASE_TIMESTAMP,
    _MAX_TIMESTAMP,
    _PRODUCER_ID,
    _PRODUCER_EPOCH,
    _BASE_SEQUENCE,
    _RECORDS_COUNT,
    _CRC,
    _MAGIC,
) = range(_COLUMNS)

_NO_OFFSET = 2**63 - 1  # the offset after a batch must fit into 64 bits, too
_COMPLETE = 0
_BAD_LENGTH = 1
_BAD_MAGIC = 2
_BAD_COUNT = 3
_BAD_OFFSET = 4


@dataclass(frozen=True)
class BatchTable:
    """Headers of consecutive batches, one array per field, all int64 of shape (batches,).

    positions: from the start of the scanned bytes.
    sizes: in bytes, with the whole header.

    Entries of magic 0 and 1 have no leader epoch, no producer and no sequence: these fields are -1. Their attributes
    are the codec and LogAppendTime. Both timestamps are the entry's timestamp, or -1 with magic 0. An entry with a
    codec is a wrapper of several messages. The last offset of a wrapper is exact. Its base offset is the lowest offset
    that is possible after the entry before it. Its records count is UNKNOWN_COUNT.
    """

    positions: Int64Array
    sizes: Int64Array
    base_offsets: Int64Array
    last_offsets: Int64Array
    leader_epochs: Int64Array
    attributes: Int64Array
    base_timestamps: Int64Array
    max_timestamps: Int64Array
    producer_ids: Int64Array
    producer_epochs: Int64Array
    base_sequences: Int64Array
    records_counts: Int64Array
    crcs: Int64Array
    magics: Int64Array

    def __len__(self) -> int:
        return len(self.positions)

    def select(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> BatchTable:
        """Return the rows that a numpy index selects."""
        return BatchTable(*(column[chosen] for column in vars(self).values()))

    @property
    def end(self) -> int:
        """The position after the last batch, 0 without batches."""
        return int(self.positions[-1] + self.sizes[-1]) if len(self) else 0

    @property
    def codecs(self) -> Int64Array:
        return self.attributes & CODEC_MASK

    @property
    def is_legacy(self) -> npt.NDArray[np.bool_]:
        """Whether each batch is an entry of magic 0 or 1."""
        legacy: npt.NDArray[np.bool_] = self.magics < MAGIC
        return legacy

    @property
    def is_control(self) -> npt.NDArray[np.bool_]:
        control: npt.NDArray[np.bool_] = (self.attributes & CONTROL) != 0
        return control

    @property
    def is_log_append_time(self) -> npt.NDArray[np.bool_]:
        log_append_time: npt.NDArray[np.bool_] = (self.attributes & LOG_APPEND_TIME) != 0
        return log_append_time

    @property
    def min_timestamps(self) -> Int64Array:
        """The smallest timestamp of each batch, if the header of the batch shows it.

        A header has only the largest timestamp. This is also the smallest timestamp if the batch has LogAppendTime,
        magic 0, or only one record. A batch without records gets NO_SMALLEST. All other batches get UNKNOWN_SMALLEST.
        """
        known = self.is_log_append_time | (self.magics == 0) | (self.records_counts == 1)
        found = np.where(known, self.max_timestamps, UNKNOWN_SMALLEST)
        return np.where(self.records_counts == 0, NO_SMALLEST, found)

    @property
    def delete_horizons(self) -> Int64Array:
        """The delete horizon of each batch in milliseconds, -1 if the batch has none."""
        return np.where((self.attributes & DELETE_HORIZON) != 0, self.base_timestamps, -1)


@kernel(INT64, BYTES_IN, INT64, INT64)
def _count_batches(data: Any, start: Any, end: Any) -> Any:
    """Count the batches by their lengths alone. _scan needs at most this number of rows."""
    count = 0
    position = start
    while position + LOG_OVERHEAD <= end:
        length = read_big_endian(data, position + LENGTH_POSITION, 4)
        if length < SHORTEST[0] or position + LOG_OVERHEAD + length > end:
            break
        position += LOG_OVERHEAD + length
        count += 1
    return count


@inlined
def _read_legacy_header(data: Any, position: Any, length: Any, magic: Any, table: Any, row: Any) -> Any:
    if length < SHORTEST[magic]:
        return _BAD_LENGTH
    offset = read_big_endian(data, position + BASE_OFFSET_POSITION, 8)
    if offset < 0 or offset == _NO_OFFSET:
        return _BAD_OFFSET
    attributes = np.int64(data[position + LEGACY_ATTRIBUTES_POSITION]) & CODEC_MASK
    timestamp = np.int64(NO_TIMESTAMP)
    if magic == 1:
        attributes |= np.int64(data[position + LEGACY_ATTRIBUTES_POSITION]) & LOG_APPEND_TIME
        timestamp = read_big_endian(data, position + LEGACY_TIMESTAMP_POSITION, 8)
    wrapper = attributes & CODEC_MASK != 0
    base_offset = offset
    if wrapper:
        lowest = table[_LAST_OFFSET, row - 1] + 1 if row > 0 else np.int64(0)
        base_offset = min(lowest, offset)
    table[_BASE_OFFSET, row] = base_offset
    table[_LAST_OFFSET, row] = offset
    table[_LEADER_EPOCH, row] = NO_LEADER_EPOCH
    table[_ATTRIBUTES, row] = attributes
    table[_BASE_TIMESTAMP, row] = timestamp
    table[_MAX_TIMESTAMP, row] = timestamp
    table[_PRODUCER_ID, row] = NO_PRODUCER_ID
    table[_PRODUCER_EPOCH, row] = NO_PRODUCER_EPOCH
    table[_BASE_SEQUENCE, row] = NO_SEQUENCE
    table[_RECORDS_COUNT, row] = UNKNOWN_COUNT if wrapper else 1
    table[_CRC, row] = read_big_endian(data, position + LEGACY_CRC_POSITION, 4) & 0xFFFFFFFF
    return _COMPLETE


@kernel(integers(2), BYTES_IN, INT64, INT64, INT64, types.Array(types.int64, 2, "C"))
def _scan(data: Any, start: Any, end: Any, whole_end: Any, table: Any) -> Any:
    """Fill one row of the table for each batch that begins before `end`; returns the reason and position of the stop.

    A batch that ends after `whole_end` is incomplete, and ends the scan without a problem.
    """
    position = start
    row = 0
    while position + LOG_OVERHEAD <= end:
        length = read_big_endian(data, position + LENGTH_POSITION, 4)
        if length < SHORTEST[0]:
            return _BAD_LENGTH, position
        if position + LOG_OVERHEAD + length > whole_end:
            return _COMPLETE, position
        magic = data[position + MAGIC_POSITION]
        if magic == MAGIC:
            if length < SHORTEST[MAGIC]:
                return _BAD_LENGTH, position
            base_offset = read_big_endian(data, position + BASE_OFFSET_POSITION, 8)
            last_offset_delta = read_big_endian(data, position + LAST_OFFSET_DELTA_POSITION, 4)
            records_count = read_big_endian(data, position + RECORDS_COUNT_POSITION, 4)
            if records_count < 0 or last_offset_delta < 0 or base_offset < 0:
                return _BAD_COUNT, position
            if base_offset >= _NO_OFFSET - last_offset_delta:
                return _BAD_COUNT, position
            table[_BASE_OFFSET, row] = base_offset
            table[_LAST_OFFSET, row] = base_offset + last_offset_delta
            table[_LEADER_EPOCH, row] = read_big_endian(data, position + EPOCH_POSITION, 4)
            table[_ATTRIBUTES, row] = read_big_endian(data, position + ATTRIBUTES_POSITION, 2)
            table[_BASE_TIMESTAMP, row] = read_big_endian(data, position + BASE_TIMESTAMP_POSITION, 8)
            table[_MAX_TIMESTAMP, row] = read_big_endian(data, position + MAX_TIMESTAMP_POSITION, 8)
            table[_PRODUCER_ID, row] = read_big_endian(data, position + PRODUCER_ID_POSITION, 8)
            table[_PRODUCER_EPOCH, row] = read_big_endian(data, position + PRODUCER_EPOCH_POSITION, 2)
            table[_BASE_SEQUENCE, row] = read_big_endian(data, position + BASE_SEQUENCE_POSITION, 4)
            table[_RECORDS_COUNT, row] = records_count
            table[_CRC, row] = read_big_endian(data, position + CRC_POSITION, 4) & 0xFFFFFFFF
        elif magic < MAGIC:
            problem = _read_legacy_header(data, position, length, magic, table, row)
            if problem != _COMPLETE:
                return problem, position
        else:
            return _BAD_MAGIC, position
        table[_POSITION, row] = position
        table[_SIZE, row] = LOG_OVERHEAD + length
        table[_MAGIC, row] = magic
        position += LOG_OVERHEAD + length
        row += 1
    return _COMPLETE, position


def scan_header(data: ByteArray) -> BatchTable:
    """Read the header at the start of some bytes; returns a table with one row, or with no row if no batch begins
    there.

    Args:
        data: uint8, shape (bytes,); HEADER_BYTES bytes, or fewer at the end of a file.
    """
    header = np.zeros(HEADER_BYTES, np.uint8)
    header[: len(data)] = data[:HEADER_BYTES]
    table = np.empty((_COLUMNS, 1), np.int64)
    problem, _ = _scan(header, 0, LOG_OVERHEAD, np.iinfo(np.int64).max, table)
    return BatchTable(*table[:, : 1 if problem == _COMPLETE else 0])


def scan_batches(data: ByteArray, file: str, file_position: int = 0) -> BatchTable:
    """Read the headers of all complete batches in some bytes, but not their records or CRCs.

    Args:
        data: uint8, shape (bytes,); begins with a batch. An incomplete batch at the end is ignored.
        file: the file to name in an error.
        file_position: the position of `data` in that file.

    Raises:
        CorruptionError: a header has an impossible length, magic, offset or count.
    """
    table, problem = scan_until_damage(data, file, file_position)
    if problem is not None:
        raise problem
    return table


def scan_until_damage(data: ByteArray, file: str, file_position: int = 0) -> tuple[BatchTable, CorruptionError | None]:
    """Like scan_batches. But if a header is damaged, return the batches before it and the error."""
    table = np.empty((_COLUMNS, _count_batches(data, 0, len(data))), np.int64)
    problem, position = _scan(data, 0, len(data), len(data), table)
    if problem == _COMPLETE:
        return BatchTable(*table), None
    return scan_batches(data[:position], file, file_position), _damaged_header(
        data, problem, position, file, file_position
    )


def _damaged_header(data: ByteArray, problem: int, position: int, file: str, file_position: int) -> CorruptionError:
    header = np.zeros(1, BATCH_HEADER)
    available = data[position : position + HEADER_BYTES]
    header.view(np.uint8)[: len(available)] = available
    fact = header[0]
    magic = int(fact["magic"])
    expected, found = {
        _BAD_LENGTH: (
            f"a batch length of at least {SHORTEST[magic if 0 <= magic <= MAGIC else 0]}", str(fact["batch_length"])
        ),
        _BAD_MAGIC: (f"magic 0 to {MAGIC}", str(magic)),
        _BAD_OFFSET: ("an offset from 0 to 2^63 - 2", str(fact["base_offset"])),
        _BAD_COUNT: (
            "an offset, last offset delta and record count that are not negative, and a last offset below 2^63 - 1",
            f"{fact['base_offset']}, {fact['last_offset_delta']} and {fact['records_count']}",
        ),
    }[problem]  # fmt: skip
    return CorruptionError(file, file_position + position, expected, found)
