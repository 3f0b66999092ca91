"""Records to bytes and back, in columns: the compiled heart of the codec.

A record (Kafka's DefaultRecord), all integers zig-zag varints:

    length            bytes after this field
    attributes        one byte, 0
    timestamp delta   to the batch's base timestamp, 64 bits
    offset delta      to the batch's base offset
    key length, key   -1: null
    value length, value
    header count, then per header: key length, key, value length (-1: null), value

Variable-length columns come as Arrow lays them out: int32 offsets of shape (rows + 1,), one array of bytes, and a
validity bitmap, least significant bit first, empty where nothing is null. `shift` is the position of row 0 in that
bitmap. Kernels check nothing about their input columns, which Arrow vouches for, and everything about bytes that come
from disk: each length is held against the end of its section before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.record.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT32_IN,
    INT32_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    VOID,
    inlined,
    integers,
    kernel,
    memcpy,
)

# What decode_records found wrong; DECODE_PROBLEMS says it in words.
INTACT = 0
BAD_VARINT = 1
BAD_RECORD_LENGTH = 2
BAD_KEY_LENGTH = 3
BAD_VALUE_LENGTH = 4
BAD_HEADERS = 5
BAD_COUNT = 6
BAD_OFFSET = 7
DECODE_PROBLEMS = {
    BAD_VARINT: ("a variable-length integer", "more bytes than it may have, or the end of the batch"),
    BAD_RECORD_LENGTH: ("a record that fills the length it claims and lies inside its batch", "another length"),
    BAD_KEY_LENGTH: ("a key inside its record", "a length that leaves it"),
    BAD_VALUE_LENGTH: ("a value inside its record", "a length that leaves it"),
    BAD_HEADERS: ("headers inside their record", "a count or length that leaves it"),
    BAD_COUNT: ("as many bytes as the batch's record count fills", "bytes behind the last record"),
    BAD_OFFSET: ("offsets that increase inside the batch", "an offset that does not"),
}


@inlined
def varint_size(value: Any) -> Any:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag >= 128:
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varint(out: Any, position: Any, value: Any) -> Any:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag >= 128:
        out[position] = np.uint8((zigzag & np.uint64(0x7F)) | np.uint64(0x80))
        zigzag >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(zigzag)
    return position + 1


@inlined
def read_varint(data: Any, position: Any, end: Any, last_shift: Any) -> Any:
    """(value, next position); the position is -1 where there is no such integer."""
    zigzag = np.uint64(0)
    shift = 0
    while True:
        if position >= end or shift > last_shift:
            return np.int64(0), np.int64(-1)
        byte = data[position]
        position += 1
        zigzag |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 128:
            return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1)), np.int64(position)
        shift += 7


@inlined
def _is_valid(validity: Any, bit: Any) -> Any:
    return len(validity) == 0 or (validity[bit >> 3] >> (bit & 7)) & 1 == 1


@inlined
def copy_bytes(out: Any, position: Any, data: Any, start: Any, end: Any) -> Any:
    memcpy(out, position, data, start, end - start)
    return position + (end - start)


@inlined
def write_big_endian(out: Any, position: Any, value: Any, size: Any) -> None:
    for i in range(size):
        out[position + i] = np.uint8((value >> (8 * (size - 1 - i))) & 0xFF)


_ROWS = (
    INT64_IN,  # rows: which ones, in which order
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
    """Cut rows into batches as a producer does: a batch closes before the record that would pass batch_bytes.

    body_sizes (rows,) gets what each record's length field will say; batch_starts and batch_sizes (rows,) get the
    index of the first of its rows and the size in bytes, header included, of each batch. Returns the batches.
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
        batch_sizes[batches] = 61 + varint_size(body + 2) + body + 2
        batches += 1
    return batches


@kernel(VOID, *_ROWS, INT64_IN, INT64_IN, INT64_IN, INT64, INT64, BYTES_OUT, INT64_OUT)
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
    out: Any,
    max_timestamps: Any,
) -> None:
    """Write the planned batches one behind another: header, records; base offsets count from 0, CRCs are left 0.

    append_time is -1, or the time that LogAppendTime gives to every record: as in a broker it stands in the header
    only, and the records keep their deltas. max_timestamps (batches,) gets each header's.
    """
    batches = len(batch_starts)
    position = 0
    for batch in range(batches):
        first = batch_starts[batch]
        stop = batch_starts[batch + 1] if batch + 1 < batches else len(rows)
        header_position = position
        base_timestamp = timestamps[rows[first]]
        max_timestamp = base_timestamp
        position += 61
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
        write_big_endian(out, header_position, np.int64(first), 8)
        write_big_endian(out, header_position + 8, batch_sizes[batch] - 12, 4)
        write_big_endian(out, header_position + 12, np.int64(-1), 4)
        out[header_position + 16] = 2
        write_big_endian(out, header_position + 17, np.int64(0), 4)
        write_big_endian(out, header_position + 21, attributes, 2)
        write_big_endian(out, header_position + 23, np.int64(stop - first - 1), 4)
        write_big_endian(out, header_position + 27, base_timestamp, 8)
        write_big_endian(out, header_position + 35, max_timestamp, 8)
        write_big_endian(out, header_position + 43, np.int64(-1), 8)
        write_big_endian(out, header_position + 51, np.int64(-1), 2)
        write_big_endian(out, header_position + 53, np.int64(-1), 4)
        write_big_endian(out, header_position + 57, np.int64(stop - first), 4)


@kernel(
    integers(7),
    BYTES_IN,  # data
    INT64_IN,  # where each batch's records begin
    INT64_IN,  # and end
    INT64_IN,  # records counts
    INT64_IN,  # base offsets
    INT64_IN,  # base timestamps
    INT64_IN,  # append times, -1 where the records' own timestamps count
    INT64,  # first offset wanted
    INT64,  # first offset not wanted
    INT64_OUT,  # offsets
    INT64_OUT,  # timestamps
    INT32_OUT,  # batch of each row
    INT32_OUT,  # key offsets
    BYTES_OUT,  # keys
    BYTES_OUT,  # key validity, one byte a row
    INT32_OUT,  # value offsets
    BYTES_OUT,  # values
    BYTES_OUT,  # value validity, one byte a row
    INT32_OUT,  # header list offsets
    INT64_OUT,  # where each row's headers begin
)
def decode_records(
    data: Any,
    starts: Any,
    ends: Any,
    records_counts: Any,
    base_offsets: Any,
    base_timestamps: Any,
    append_times: Any,
    first_offset: Any,
    end_offset: Any,
    offsets: Any,
    timestamps: Any,
    batch_of_row: Any,
    key_offsets: Any,
    keys: Any,
    key_valid: Any,
    value_offsets: Any,
    values: Any,
    value_valid: Any,
    header_offsets: Any,
    header_positions: Any,
) -> Any:
    """Decode the records of many uncompressed sections whose offsets lie in [first_offset, end_offset).

    Returns (problem, batch, position, rows, key bytes, value bytes, headers); problem is INTACT, or says what is wrong
    with which batch and where. The out arrays must hold all records of the sections, and as many key and value bytes
    as the sections are long.
    """
    row = 0
    key_end = 0
    value_end = 0
    headers = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    header_offsets[0] = 0
    for batch in range(len(starts)):
        position = starts[batch]
        end = ends[batch]
        previous_delta = np.int64(-1)
        for _ in range(records_counts[batch]):
            record = position
            length, position = read_varint(data, position, end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            record_end = position + length
            if length < 1 or record_end > end:
                return (BAD_RECORD_LENGTH, batch, record, row, key_end, value_end, headers)
            position += 1
            timestamp_delta, position = read_varint(data, position, record_end, 63)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            offset_delta, position = read_varint(data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            if offset_delta <= previous_delta:
                return BAD_OFFSET, batch, record, row, key_end, value_end, headers
            previous_delta = offset_delta
            key_length, position = read_varint(data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            key_start = position
            if key_length > 0:
                position += key_length
            if position > record_end:
                return BAD_KEY_LENGTH, batch, record, row, key_end, value_end, headers
            value_length, position = read_varint(data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            value_start = position
            if value_length > 0:
                position += value_length
            if position > record_end:
                return BAD_VALUE_LENGTH, batch, record, row, key_end, value_end, headers
            header_count, position = read_varint(data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, key_end, value_end, headers
            header_start = position
            if header_count < 0 or header_count > record_end - position:
                return BAD_HEADERS, batch, record, row, key_end, value_end, headers
            for _header in range(header_count):
                size, position = read_varint(data, position, record_end, 28)
                if position < 0 or size < 0 or position + size > record_end:
                    return BAD_HEADERS, batch, record, row, key_end, value_end, headers
                position += size
                size, position = read_varint(data, position, record_end, 28)
                if position < 0 or position + size > record_end:
                    return BAD_HEADERS, batch, record, row, key_end, value_end, headers
                if size > 0:
                    position += size
            if position != record_end:
                return (BAD_RECORD_LENGTH, batch, record, row, key_end, value_end, headers)
            offset = base_offsets[batch] + offset_delta
            if offset < first_offset or offset >= end_offset:
                continue
            offsets[row] = offset
            timestamps[row] = (
                append_times[batch] if append_times[batch] >= 0 else base_timestamps[batch] + timestamp_delta
            )
            batch_of_row[row] = batch
            if key_length >= 0:
                key_end = copy_bytes(keys, key_end, data, key_start, key_start + key_length)
                key_valid[row] = 1
            else:
                key_valid[row] = 0
            if value_length >= 0:
                value_end = copy_bytes(values, value_end, data, value_start, value_start + value_length)
                value_valid[row] = 1
            else:
                value_valid[row] = 0
            headers += header_count
            header_positions[row] = header_start
            row += 1
            key_offsets[row] = key_end
            value_offsets[row] = value_end
            header_offsets[row] = headers
        if position != end:
            return BAD_COUNT, batch, position, row, key_end, value_end, headers
    return INTACT, 0, 0, row, key_end, value_end, headers


@kernel(integers(2), BYTES_IN, INT64, INT32_IN, INT64_IN, INT32_OUT, BYTES_OUT, INT32_OUT, BYTES_OUT, BYTES_OUT)
def decode_headers(
    data: Any,
    rows: Any,
    header_offsets: Any,
    header_positions: Any,
    key_offsets: Any,
    keys: Any,
    value_offsets: Any,
    values: Any,
    value_valid: Any,
) -> Any:
    """Decode the headers that decode_records found and checked. Returns (key bytes, value bytes)."""
    header = 0
    key_end = 0
    value_end = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(rows):
        position = header_positions[row]
        for _ in range(header_offsets[row + 1] - header_offsets[row]):
            size, position = read_varint(data, position, len(data), 28)
            key_end = copy_bytes(keys, key_end, data, position, position + size)
            position += size
            size, position = read_varint(data, position, len(data), 28)
            if size >= 0:
                value_end = copy_bytes(values, value_end, data, position, position + size)
                position += size
                value_valid[header] = 1
            else:
                value_valid[header] = 0
            header += 1
            key_offsets[header] = key_end
            value_offsets[header] = value_end
    return key_end, value_end
