"""Record batches to Arrow columns.

Every batch's CRC is checked before a byte of it is believed. Control batches and batches outside the offsets asked for
are passed over by their headers. Compressed and uncompressed batches may be mixed: the records of all are laid behind
one another and decoded by one kernel call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.errors import CorruptionError, LogError
from storage_engine.record.batch import HEADER_BYTES, BatchTable, ByteArray, Int64Array, check_crcs
from storage_engine.record.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME_TYPE,
    RECORDS,
    binary_array,
    header_array,
    no_headers,
)
from storage_engine.record.compression import Codec, decompress
from storage_engine.record.kernels import DECODE_PROBLEMS, INTACT, decode_headers, decode_records

NO_END = np.iinfo(np.int64).max
MOST_DECODED_BYTES = 256 * 1024**2
"""Of several compressed batches in one table. The offsets in Arrow's columns count in 32 bits, and memory ends too."""
_SMALLEST_RECORD = 7
"""Bytes: length, attributes, two deltas, null key, null value, no headers."""


class TooManyBytesError(LogError):
    """Several batches expand to more than MOST_DECODED_BYTES: fewer have to be decoded at once."""


def decode_batches(
    data: ByteArray,
    table: BatchTable,
    file: str,
    file_position: int = 0,
    first_offset: int = 0,
    end_offset: int = NO_END,
    *,
    control: bool = False,
) -> pa.RecordBatch:
    """Decode the records with first_offset <= offset < end_offset.

    Args:
        data: uint8, the bytes that table was scanned from.
        file: what to name in an error. file_position: where in it data begins.
        control: take control records too, which no reader is given.

    Returns:
        Columns as in columns.RECORDS, in the order of the log.

    Raises:
        CorruptionError: a CRC, codec, length or count does not fit; names the batch.
        TooManyBytesError: decode fewer at once; one alone is always taken.
    """
    wanted = (
        (control | ~table.is_control)
        & (table.records_counts > 0)
        & (table.last_offsets >= first_offset)
        & (table.base_offsets < end_offset)
    )
    table = table.select(wanted)
    sections, starts, ends = intact_sections(data, table, file, file_position, MOST_DECODED_BYTES)
    rows = int(table.records_counts.sum())
    size = int((ends - starts).sum())
    offsets, timestamps, header_positions = (np.empty(rows, np.int64) for _ in range(3))
    batch_of_row = np.empty(rows, np.int32)
    key_offsets, value_offsets, header_offsets = (np.empty(rows + 1, np.int32) for _ in range(3))
    keys, values = np.empty(size, np.uint8), np.empty(size, np.uint8)
    key_valid, value_valid = np.empty(rows, np.uint8), np.empty(rows, np.uint8)
    append_times = np.where(table.is_log_append_time, table.max_timestamps, -1)
    problem, batch, position, rows, key_bytes, value_bytes, headers = decode_records(
        sections, starts, ends, table.records_counts, table.base_offsets, table.base_timestamps, append_times,
        first_offset, end_offset, offsets, timestamps, batch_of_row, key_offsets, keys, key_valid, value_offsets,
        values, value_valid, header_offsets, header_positions,
    )  # fmt: skip
    if problem != INTACT:
        raise damaged_batch(problem, position - int(starts[batch]), file, file_position + int(table.positions[batch]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets[:rows]),
            pa.array(timestamps[:rows]),
            pa.array(_timestamp_types(table)[batch_of_row[:rows]]),
            pa.array(table.leader_epochs.astype(np.int32)[batch_of_row[:rows]]),
            binary_array(key_offsets[: rows + 1], keys[:key_bytes], key_valid[:rows]),
            binary_array(value_offsets[: rows + 1], values[:value_bytes], value_valid[:rows]),
            _headers(sections, rows, headers, header_offsets[: rows + 1], header_positions),
        ],
        schema=RECORDS,
    )


def damaged_batch(problem: int, byte: int, file: str, position: int) -> CorruptionError:
    """The error for what a kernel found wrong, at this byte of the records of the batch at this position."""
    expected, found = DECODE_PROBLEMS[problem]
    return CorruptionError(file, position, expected, f"{found} at byte {byte} of its records")


def _timestamp_types(table: BatchTable) -> npt.NDArray[np.int8]:
    return np.where(table.is_log_append_time, LOG_APPEND_TIME_TYPE, CREATE_TIME).astype(np.int8)


def intact_sections(
    data: ByteArray, table: BatchTable, file: str, file_position: int, most_bytes: int = NO_END
) -> tuple[ByteArray, Int64Array, Int64Array]:
    """The records of each batch, uncompressed: bytes, and where each section starts and ends in them.

    Raises:
        CorruptionError: a CRC, codec or count does not fit; names the batch.
        TooManyBytesError: several compressed batches expand to more than most_bytes.
    """
    check_crcs(data, table, file, file_position)
    sections, starts, ends = _uncompressed(data, table, file, file_position, most_bytes)
    _check_counts(table, ends - starts, file, file_position)
    return sections, starts, ends


def _uncompressed(
    data: ByteArray, table: BatchTable, file: str, file_position: int, most_bytes: int
) -> tuple[ByteArray, Int64Array, Int64Array]:
    starts = table.positions + HEADER_BYTES
    ends = table.positions + table.sizes
    codecs = table.codecs
    if not codecs.any():
        return data, starts, ends
    view = data.data
    parts: list[bytes | memoryview] = []
    expanded = 0
    for position, start, end, codec in zip(
        table.positions.tolist(), starts.tolist(), ends.tolist(), codecs.tolist(), strict=True
    ):
        try:
            parts.append(decompress(Codec(codec), view[start:end]) if codec else view[start:end])
        except ValueError as error:
            raise CorruptionError(file, file_position + position, "records of a known codec", str(error)) from error
        expanded += len(parts[-1])
        if expanded > most_bytes and len(table) > 1:
            raise TooManyBytesError(file, f"{len(parts)} of {len(table)} batches expand to {expanded} bytes")
    lengths = np.array([len(part) for part in parts], np.int64)
    ends = np.cumsum(lengths)
    return np.frombuffer(b"".join(parts), np.uint8), ends - lengths, ends


def _check_counts(table: BatchTable, lengths: Int64Array, file: str, file_position: int) -> None:
    """Refuse a count that the bytes cannot hold before memory is taken for it."""
    impossible = np.flatnonzero(table.records_counts * _SMALLEST_RECORD > lengths)
    if len(impossible):
        batch = int(impossible[0])
        raise CorruptionError(
            file,
            file_position + int(table.positions[batch]),
            f"at most {int(lengths[batch]) // _SMALLEST_RECORD} records in {int(lengths[batch])} bytes",
            f"a count of {int(table.records_counts[batch])}",
        )


def _headers(
    sections: ByteArray, rows: int, headers: int, header_offsets: npt.NDArray[np.int32], header_positions: Int64Array
) -> pa.Array:
    if headers == 0:
        return no_headers(rows)
    key_offsets, value_offsets = (np.empty(headers + 1, np.int32), np.empty(headers + 1, np.int32))
    keys, values = np.empty(len(sections), np.uint8), np.empty(len(sections), np.uint8)
    valid = np.empty(headers, np.uint8)
    key_bytes, value_bytes = decode_headers(
        sections, rows, header_offsets, header_positions, key_offsets, keys, value_offsets, values, valid
    )
    names = binary_array(key_offsets, keys[:key_bytes], None, pa.string())
    return header_array(header_offsets, names, binary_array(value_offsets, values[:value_bytes], valid))
