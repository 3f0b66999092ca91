"""Kernels that encode columns of records to batches, for record.encoding.

A record (Kafka's DefaultRecord) has these fields. All integers are zig-zag varints.

    length            number of bytes after this field
    attributes        one byte, 0
    timestamp delta   the timestamp minus the batch's base timestamp, 64 bits
    offset delta      the offset minus the batch's base offset
    key length, key   -1: null
    value length, value
    header count, then per header: key length, key, value length (-1: null), value

Variable-length columns have Arrow's layout: int32 offsets of shape (rows + 1,), one array of bytes, and a validity
bitmap, least significant bit first, which is empty if no row is null. `shift` is the position of row 0 in the bitmap.
The kernels do not check their input columns, because Arrow guarantees that they are valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    CRC_POSITION,
    CRC_START,
    EPOCH_POSITION,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORDS_COUNT_POSITION,
)
from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT32_IN,
    INT64,
    INT64_IN,
    INT64_OUT,
    VOID,
    inlined,
    kernel,
)
from storage_engine.record.kernels.crc32c import IN_KERNELS, crc_of
from storage_engine.record.kernels.varint import copy_bytes, varint_size, write_big_endian, write_varint


@inlined
def _is_valid(validity: Any, bit: Any) -> Any:
    return len(validity) == 0 or (validity[bit >> 3] >> (bit & 7)) & 1 == 1


_ROWS = (
    INT64_IN,  # the rows to encode, in this order
    INT64_IN,  # timestamps
    INT32_IN,  # key offsets
    BYTES_IN,  # keys
    BYTES_IN,  # key validity
    INT64,  # key shift
    INT32_IN,  # value offsets
    BYTES_IN,  # values
    BYTES_IN,  # value validity
    INT64,  # value shift
    INT32_IN,  # header list offsets
    INT32_IN,  # header key offsets
    BYTES_IN,  # header keys
    INT32_IN,  # header value offsets
    BYTES_IN,  # header values
    BYTES_IN,  # header value validity
    INT64,  # header value shift
)


@kernel(INT64, *_ROWS, INT64, INT64_OUT, INT64_OUT, INT64_OUT)
def plan_batches(
    rows: Any,
    timestamps: Any,
    key_offsets: Any,
    keys: Any,
    key_validity: Any,
    key_shift: Any,
    value_offsets: Any,
    values: Any,
    value_validity: Any,
    value_shift: Any,
    header_offsets: Any,
    header_key_offsets: Any,
    header_keys: Any,
    header_value_offsets: Any,
    header_values: Any,
    header_value_validity: Any,
    header_value_shift: Any,
    batch_bytes: Any,
    body_sizes: Any,
    batch_starts: Any,
    batch_sizes: Any,
) -> Any:
    """Divide rows into batches as a producer does. Only a batch of a single record may be larger than batch_bytes.

    body_sizes (rows,) gets the value of each record's length field. batch_starts (rows,) gets the index of each batch's
    first row, and batch_sizes (rows,) its size in bytes with its header. Returns the number of batches.
    """
    batches = 0
    first = 0
    for i in range(len(rows)):
        row = rows[i]
        body = 1
        if _is_valid(key_validity, row + key_shift):
            size = np.int64(key_offsets[row + 1]) - np.int64(key_offsets[row])
            body += varint_size(size) + size
        else:
            body += 1
        if _is_valid(value_validity, row + value_shift):
            size = np.int64(value_offsets[row + 1]) - np.int64(value_offsets[row])
            body += varint_size(size) + size
        else:
            body += 1
        if len(header_offsets) == 0:
            body += 1
        else:
            first_header = np.int64(header_offsets[row])
            last_header = np.int64(header_offsets[row + 1])
            body += varint_size(last_header - first_header)
            for header in range(first_header, last_header):
                size = np.int64(header_key_offsets[header + 1]) - np.int64(header_key_offsets[header])
                body += varint_size(size) + size
                if _is_valid(header_value_validity, header + header_value_shift):
                    size = np.int64(header_value_offsets[header + 1]) - np.int64(header_value_offsets[header])
                    body += varint_size(size) + size
                else:
                    body += 1
        if batches > 0:
            deltas = varint_size(timestamps[row] - timestamps[rows[first]]) + varint_size(np.int64(i - first))
            total = varint_size(body + deltas) + body + deltas
            if batch_sizes[batches - 1] + total <= batch_bytes:
                body_sizes[i] = body + deltas
                batch_sizes[batches - 1] += total
                continue
        first = i
        body_sizes[i] = body + 2
        batch_starts[batches] = i
        batch_sizes[batches] = HEADER_BYTES + varint_size(body + 2) + body + 2
        batches += 1
    return batches


@kernel(VOID, *_ROWS, INT64_IN, INT64_IN, INT64_IN, INT64, INT64, INT64, INT64, INT64, INT64, BYTES_OUT, INT64_OUT)
def write_batches(
    rows: Any,
    timestamps: Any,
    key_offsets: Any,
    keys: Any,
    key_validity: Any,
    key_shift: Any,
    value_offsets: Any,
    values: Any,
    value_validity: Any,
    value_shift: Any,
    header_offsets: Any,
    header_key_offsets: Any,
    header_keys: Any,
    header_value_offsets: Any,
    header_values: Any,
    header_value_validity: Any,
    header_value_shift: Any,
    body_sizes: Any,
    batch_starts: Any,
    batch_sizes: Any,
    attributes: Any,
    append_time: Any,
    producer_id: Any,
    producer_epoch: Any,
    base_sequence: Any,
    seal: Any,
    out: Any,
    max_timestamps: Any,
) -> None:
    """Write the planned batches one after another, with base offsets that count from 0.

    seal: 1 to write the CRCs, which requires crc32c.IN_KERNELS; 0 to leave them 0.
    append_time: -1, or the time of LogAppendTime. As in a broker, only the header has it; records keep their deltas.
    base_sequence: the sequence of the first record, -1 without sequences. After 2^31 - 1 sequences continue with 0.
    max_timestamps: (batches,) gets the largest timestamp of each batch.
    """
    batches = len(batch_starts)
    position = 0
    for batch in range(batches):
        first = batch_starts[batch]
        stop = batch_starts[batch + 1] if batch + 1 < batches else len(rows)
        header_position = position
        base_timestamp = timestamps[rows[first]]
        max_timestamp = base_timestamp
        position += HEADER_BYTES
        for i in range(first, stop):
            row = rows[i]
            timestamp = timestamps[row]
            max_timestamp = max(max_timestamp, timestamp)
            position = write_varint(out, position, body_sizes[i])
            out[position] = 0
            position += 1
            position = write_varint(out, position, timestamp - base_timestamp)
            position = write_varint(out, position, np.int64(i - first))
            if _is_valid(key_validity, row + key_shift):
                start = np.int64(key_offsets[row])
                end = np.int64(key_offsets[row + 1])
                position = write_varint(out, position, end - start)
                position = copy_bytes(out, position, keys, start, end)
            else:
                out[position] = 1
                position += 1
            if _is_valid(value_validity, row + value_shift):
                start = np.int64(value_offsets[row])
                end = np.int64(value_offsets[row + 1])
                position = write_varint(out, position, end - start)
                position = copy_bytes(out, position, values, start, end)
            else:
                out[position] = 1
                position += 1
            if len(header_offsets) == 0:
                out[position] = 0
                position += 1
                continue
            first_header = np.int64(header_offsets[row])
            last_header = np.int64(header_offsets[row + 1])
            position = write_varint(out, position, last_header - first_header)
            for header in range(first_header, last_header):
                start = np.int64(header_key_offsets[header])
                end = np.int64(header_key_offsets[header + 1])
                position = write_varint(out, position, end - start)
                position = copy_bytes(out, position, header_keys, start, end)
                if _is_valid(header_value_validity, header + header_value_shift):
                    start = np.int64(header_value_offsets[header])
                    end = np.int64(header_value_offsets[header + 1])
                    position = write_varint(out, position, end - start)
                    position = copy_bytes(out, position, header_values, start, end)
                else:
                    out[position] = 1
                    position += 1
        if append_time >= 0:
            max_timestamp = append_time
        max_timestamps[batch] = max_timestamp
        write_big_endian(out, header_position + BASE_OFFSET_POSITION, np.int64(first), 8)
        write_big_endian(out, header_position + LENGTH_POSITION, batch_sizes[batch] - LOG_OVERHEAD, 4)
        write_big_endian(out, header_position + EPOCH_POSITION, np.int64(NO_LEADER_EPOCH), 4)
        out[header_position + MAGIC_POSITION] = MAGIC
        write_big_endian(out, header_position + CRC_POSITION, np.int64(0), 4)
        write_big_endian(out, header_position + ATTRIBUTES_POSITION, attributes, 2)
        write_big_endian(out, header_position + LAST_OFFSET_DELTA_POSITION, np.int64(stop - first - 1), 4)
        write_big_endian(out, header_position + BASE_TIMESTAMP_POSITION, base_timestamp, 8)
        write_big_endian(out, header_position + MAX_TIMESTAMP_POSITION, max_timestamp, 8)
        sequence = np.int64(NO_SEQUENCE) if base_sequence < 0 else (base_sequence + np.int64(first)) & 0x7FFFFFFF
        write_big_endian(out, header_position + PRODUCER_ID_POSITION, producer_id, 8)
        write_big_endian(out, header_position + PRODUCER_EPOCH_POSITION, producer_epoch, 2)
        write_big_endian(out, header_position + BASE_SEQUENCE_POSITION, sequence, 4)
        write_big_endian(out, header_position + RECORDS_COUNT_POSITION, np.int64(stop - first), 4)
        if IN_KERNELS:  # a condition by itself, so that numba can leave the branch out
            if seal != 0:
                crc = crc_of(out, header_position + CRC_START, position)
                write_big_endian(out, header_position + CRC_POSITION, crc, 4)
