"""The 61-byte header of a record batch, magic 2 (Kafka's DefaultRecordBatch), and tables of headers in columns.

    offset size field
         0    8 base_offset             stamped when the batch gets its place in the log; outside the CRC
         8    4 batch_length            bytes after this field
        12    4 partition_leader_epoch  stamped with base_offset; outside the CRC
        16    1 magic                   2
        17    4 crc                     CRC-32C (Castagnoli) of byte 21 to the end
        21    2 attributes              bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
        23    4 last_offset_delta
        27    8 base_timestamp          of the first record; the delete horizon where bit 6 is set
        35    8 max_timestamp
        43    8 producer_id             -1: none
        51    2 producer_epoch          -1: none
        53    4 base_sequence           -1: none
        57    4 records_count
        61      records                 compressed as one block where a codec is set

All big-endian. Because base_offset and partition_leader_epoch lie outside the CRC, a batch is encoded once, by whoever
has the records, and takes its place later without being read again. These numbers never change.

What brokers before 0.11 wrote has magic 0 or 1 (record.legacy): entries that share the first two fields and the place of
the magic, and are read but never written. Each counts as a batch here, so that a log may mix all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from storage_engine.errors import CorruptionError
from storage_engine.record.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    VOID,
    inlined,
    integers,
    kernel,
)
from storage_engine.record.crc32 import crc32_all
from storage_engine.record.crc32c import crc32c_all
from storage_engine.record.varint import read_big_endian

BATCH_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
STAMPED_START = np.dtype([("base_offset", ">i8"), ("batch_length", ">i4"), ("partition_leader_epoch", ">i4")])
HEADER_BYTES = BATCH_HEADER.itemsize
assert HEADER_BYTES == 61


def _position(field: str) -> int:
    offset = BATCH_HEADER.fields[field][1] if BATCH_HEADER.fields else 0
    return int(offset)


LENGTH_POSITION = _position("batch_length")
EPOCH_POSITION = _position("partition_leader_epoch")
MAGIC_POSITION = _position("magic")
CRC_POSITION = _position("crc")
CRC_START = _position("attributes")
LAST_OFFSET_DELTA_POSITION = _position("last_offset_delta")
LOG_OVERHEAD = EPOCH_POSITION
"""base_offset and batch_length: what must be read to know where a batch ends."""

MAGIC = 2
HEADER_BYTES_UP_TO_MAGIC = MAGIC_POSITION + 1
LEGACY_CRC_POSITION = LOG_OVERHEAD
LEGACY_ATTRIBUTES_POSITION = HEADER_BYTES_UP_TO_MAGIC
LEGACY_TIMESTAMP_POSITION = LEGACY_ATTRIBUTES_POSITION + 1
CODEC_MASK = 0x07
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5
DELETE_HORIZON = 1 << 6
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_LEADER_EPOCH = -1
UNKNOWN_COUNT = -1

Int64Array = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

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

_NO_OFFSET = 2**63 - 1  # the offset behind a batch has to be a number of 64 bits, too
SHORTEST = (14, 22, HEADER_BYTES - LOG_OVERHEAD)
"""By magic, the least that stands behind a length; for 0 and 1 that is a message with neither key nor value."""
_COMPLETE = 0
_BAD_LENGTH = 1
_BAD_MAGIC = 2
_BAD_COUNT = 3
_BAD_OFFSET = 4


@dataclass(frozen=True)
class BatchTable:
    """Headers of neighbouring batches, one array per field, all int64 of shape (batches,).

    positions are relative to the bytes that were scanned; sizes include the whole header.

    Entries of magic 0 and 1 have no leader epoch, no producer and no sequence (-1), and of the attributes the codec and
    LogAppendTime; both timestamps are the entry's own, -1 for magic 0. An entry with a codec is a wrapper of several
    messages: its last offset is exact, its base offset the lowest that the entries before it leave for its first message,
    and its records count UNKNOWN_COUNT.
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
        """The rows that a numpy index picks."""
        return BatchTable(*(column[chosen] for column in vars(self).values()))

    @property
    def end(self) -> int:
        """Position behind the last batch, 0 where there is none."""
        return int(self.positions[-1] + self.sizes[-1]) if len(self) else 0

    @property
    def codecs(self) -> Int64Array:
        return self.attributes & CODEC_MASK

    @property
    def is_legacy(self) -> npt.NDArray[np.bool_]:
        """Which are entries of magic 0 or 1."""
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
    def delete_horizons(self) -> Int64Array:
        """The delete horizon in milliseconds, -1 where the batch has none."""
        return np.where((self.attributes & DELETE_HORIZON) != 0, self.base_timestamps, -1)


@kernel(INT64, BYTES_IN, INT64, INT64)
def _count_batches(data: Any, start: Any, end: Any) -> Any:
    """How many rows _scan may need, which stops where this does or earlier."""
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
    offset = read_big_endian(data, position, 8)
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
    table[_PRODUCER_EPOCH, row] = -1
    table[_BASE_SEQUENCE, row] = -1
    table[_RECORDS_COUNT, row] = UNKNOWN_COUNT if wrapper else 1
    table[_CRC, row] = read_big_endian(data, position + LEGACY_CRC_POSITION, 4) & 0xFFFFFFFF
    return _COMPLETE


@kernel(integers(2), BYTES_IN, INT64, INT64, INT64, types.Array(types.int64, 2, "C"))
def _scan(data: Any, start: Any, end: Any, whole_end: Any, table: Any) -> Any:
    """Fill one row of the table per batch that begins before end; returns why it stopped and where.

    A batch that goes beyond whole_end counts as cut off.
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
            base_offset = read_big_endian(data, position, 8)
            last_offset_delta = read_big_endian(data, position + 23, 4)
            records_count = read_big_endian(data, position + 57, 4)
            if records_count < 0 or last_offset_delta < 0 or base_offset < 0:
                return _BAD_COUNT, position
            if base_offset >= _NO_OFFSET - last_offset_delta:
                return _BAD_COUNT, position
            table[_BASE_OFFSET, row] = base_offset
            table[_LAST_OFFSET, row] = base_offset + last_offset_delta
            table[_LEADER_EPOCH, row] = read_big_endian(data, position + 12, 4)
            table[_ATTRIBUTES, row] = read_big_endian(data, position + 21, 2)
            table[_BASE_TIMESTAMP, row] = read_big_endian(data, position + 27, 8)
            table[_MAX_TIMESTAMP, row] = read_big_endian(data, position + 35, 8)
            table[_PRODUCER_ID, row] = read_big_endian(data, position + 43, 8)
            table[_PRODUCER_EPOCH, row] = read_big_endian(data, position + 51, 2)
            table[_BASE_SEQUENCE, row] = read_big_endian(data, position + 53, 4)
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
    """The header at the start of some bytes: a table of one row, or of none where no batch begins.

    Args:
        data: uint8, shape (bytes,); HEADER_BYTES of them, or less where a file ends.
    """
    header = np.zeros(HEADER_BYTES, np.uint8)
    header[: len(data)] = data[:HEADER_BYTES]
    table = np.empty((_COLUMNS, 1), np.int64)
    problem, _ = _scan(header, 0, LOG_OVERHEAD, np.iinfo(np.int64).max, table)
    return BatchTable(*table[:, : 1 if problem == _COMPLETE else 0])


def scan_batches(data: ByteArray, file: str, file_position: int = 0) -> BatchTable:
    """Read the headers of all whole batches in some bytes, without looking at their records or CRCs.

    Args:
        data: uint8, shape (bytes,); begins with a batch. A batch that is cut off at the end is left out.
        file: what to name in an error.
        file_position: where in that file data begins.

    Raises:
        CorruptionError: a length, magic or count that no writer leaves; the table up to there is lost with it.
    """
    table, problem = scan_until_damage(data, file, file_position)
    if problem is not None:
        raise problem
    return table


def scan_until_damage(data: ByteArray, file: str, file_position: int = 0) -> tuple[BatchTable, CorruptionError | None]:
    """As scan_batches; where a header is damaged, the batches before it, and the error that names it."""
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


def batch_crcs(data: ByteArray, sizes: Int64Array) -> Int64Array:
    """CRC-32C of each of these neighbouring batches."""
    ends = np.cumsum(sizes)
    return crc32c_all(data, ends - sizes + CRC_START, ends)


@kernel(VOID, BYTES_OUT, INT64_IN, INT64_IN)
def write_crcs(data: Any, sizes: Any, crcs: Any) -> None:
    """Write these CRCs into the headers of neighbouring batches."""
    position = 0
    for batch in range(len(sizes)):
        for i in range(4):
            data[position + CRC_POSITION + i] = (crcs[batch] >> (24 - 8 * i)) & 0xFF
        position += sizes[batch]


@kernel(VOID, BYTES_IN, INT64_IN, BYTES_OUT, INT64_IN)
def copy_headers(data: Any, sizes: Any, out: Any, out_sizes: Any) -> None:
    """Give batches whose records have another size now the headers they had, with the length and codec that they have.

    A batch of the same size as before counts as one whose records are not compressed.
    """
    source = 0
    position = 0
    for batch in range(len(sizes)):
        for i in range(HEADER_BYTES):
            out[position + i] = data[source + i]
        length = out_sizes[batch] - LOG_OVERHEAD
        for i in range(4):
            out[position + LENGTH_POSITION + i] = (length >> (24 - 8 * i)) & 0xFF
        if out_sizes[batch] == sizes[batch]:
            out[position + CRC_START + 1] &= 0xFF ^ CODEC_MASK
        source += sizes[batch]
        position += out_sizes[batch]


def check_crcs(data: ByteArray, table: BatchTable, file: str, file_position: int = 0) -> None:
    """Compare each batch with the CRC in its header.

    Raises:
        CorruptionError: names the first batch whose bytes have changed.
    """
    problem = first_changed_batch(data, table, file, file_position)
    if problem is not None:
        raise problem


def first_changed_batch(
    data: ByteArray, table: BatchTable, file: str, file_position: int = 0
) -> CorruptionError | None:
    """The error for the first batch whose bytes are not those of its CRC; None where all are intact."""
    legacy = table.is_legacy
    ends = table.positions + table.sizes
    if legacy.any():
        computed = np.empty(len(table), np.int64)
        computed[~legacy] = crc32c_all(data, table.positions[~legacy] + CRC_START, ends[~legacy])
        computed[legacy] = crc32_all(data, table.positions[legacy] + MAGIC_POSITION, ends[legacy])
    else:
        computed = crc32c_all(data, table.positions + CRC_START, ends)
    changed = computed != table.crcs
    if not changed.any():
        return None
    batch = int(changed.argmax())
    kind = "an entry with CRC-32" if legacy[batch] else "a batch with CRC-32C"
    return CorruptionError(
        file, file_position + int(table.positions[batch]), f"{kind} {table.crcs[batch]:08x}",
        f"bytes with {computed[batch]:08x}",
    )  # fmt: skip


@kernel(VOID, BYTES_OUT, INT64_IN, INT64, INT64_OUT)
def _stamp(data: Any, sizes: Any, leader_epoch: Any, next_offset: Any) -> None:
    position = 0
    for batch in range(len(sizes)):
        base_offset = next_offset[0]
        for i in range(8):
            data[position + i] = (base_offset >> (56 - 8 * i)) & 0xFF
        for i in range(4):
            data[position + EPOCH_POSITION + i] = (leader_epoch >> (24 - 8 * i)) & 0xFF
        next_offset[0] = base_offset + read_big_endian(data, position + LAST_OFFSET_DELTA_POSITION, 4) + 1
        position += sizes[batch]


def stamp_batches(data: ByteArray, sizes: Int64Array, base_offset: int, leader_epoch: int) -> int:
    """Write base offsets, one after another, and the leader epoch into neighbouring batches, in place.

    Args:
        data: uint8, writable; holds exactly the batches.
        sizes: int64, bytes of each batch.

    Returns:
        The offset behind the last record.
    """
    assert int(sizes.sum()) == len(data), "the sizes must cover the bytes"
    next_offset = np.array([base_offset], np.int64)
    _stamp(data, sizes, leader_epoch, next_offset)
    return int(next_offset[0])


def stamped_starts(sizes: Int64Array, base_offsets: Int64Array, leader_epoch: int) -> npt.NDArray[np.void]:
    """The first bytes of each batch's header, up to the leader epoch, with what a log stamps into them: all that differs
    between a batch as it was encoded and as it lies in a log.

    Returns:
        STAMPED_START, shape (batches,).
    """
    starts = np.empty(len(sizes), STAMPED_START)
    starts["base_offset"] = base_offsets
    starts["batch_length"] = sizes - LOG_OVERHEAD
    starts["partition_leader_epoch"] = leader_epoch
    return starts


def stamp_leader_epoch(data: ByteArray, table: BatchTable, leader_epoch: int) -> None:
    """Write a leader epoch into batches where they lie; those of an older magic have none.

    Args:
        data: uint8, writable: the bytes that table was scanned from.
    """
    starts = table.positions[~table.is_legacy]
    for i, byte in enumerate(leader_epoch.to_bytes(4, "big")):
        data[starts + EPOCH_POSITION + i] = byte
