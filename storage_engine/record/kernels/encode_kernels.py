"""Kernels that encode columns of records as batches; record.encoding uses them.

A record (Kafka's DefaultRecord) has these fields. All integers are zig-zag varints.

    length            number of bytes after this field
    attributes        one byte, 0
    timestamp delta   the timestamp minus the batch's base timestamp, 64 bits
    offset delta      the offset minus the batch's base offset
    key length, key   -1: null
    value length, value
    header count, then per header: key length, key, value length (-1: null), value

Columns have Arrow's layout (kernels/columns.py). The kernels do not check their input columns, because Arrow guarantees
that they are valid.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from storage_engine.record.kernels.columns import RECORDS_IN, Int64Array
from storage_engine.record.kernels.compiled import (
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    VOID,
    columns,
    inlined,
    kernel,
)
from storage_engine.record.kernels.crc32c import IN_KERNELS, crc_of
from storage_engine.record.kernels.varint import copy_bytes, varint_size, write_big_endian, write_varint


class BatchPlan(NamedTuple):
    """How rows are divided into batches.

    body_sizes: int64, shape (rows,), the value of each record's length field.
    starts: int64, shape (batches,), the index of each batch's first row.
    sizes: int64, shape (batches,), the bytes of each batch with its header.
    """

    body_sizes: Int64Array
    starts: Int64Array
    sizes: Int64Array


class HeaderValues(NamedTuple):
    """Fields that the headers of all batches get.

    append_time: -1, or the time for LogAppendTime. As in a broker, only the header gets this time; records keep their
        deltas.
    base_sequence: that of the first record, or -1 if records have no sequence. After 2^31 - 1 the sequence continues with 0.
    """

    attributes: int
    append_time: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


_PLAN_IN = columns(BatchPlan, INT64_IN, INT64_IN, INT64_IN)
_PLAN_OUT = columns(BatchPlan, INT64_OUT, INT64_OUT, INT64_OUT)
_FIELDS = columns(HeaderValues, INT64, INT64, INT64, INT64, INT64)


@inlined
def _is_null(column: Any, row: Any) -> Any:
    bit = row + column.shift
    return len(column.validity) > 0 and (column.validity[bit >> 3] >> (bit & 7)) & 1 == 0


@inlined
def _field_size(column: Any, row: Any) -> Any:
    """Bytes of a key or value with its length before it."""
    if _is_null(column, row):
        return np.int64(1)
    size = np.int64(column.offsets[row + 1]) - np.int64(column.offsets[row])
    return varint_size(size) + size


@inlined
def _write_field(out: Any, position: Any, column: Any, row: Any) -> Any:
    """Write a key or value after its length; returns the position after it."""
    if _is_null(column, row):
        out[position] = 1
        return position + 1
    start = np.int64(column.offsets[row])
    end = np.int64(column.offsets[row + 1])
    return copy_bytes(out, write_varint(out, position, end - start), column.data, start, end)


@kernel(INT64, INT64_IN, RECORDS_IN, INT64, _PLAN_OUT)
def plan_batches(rows: Any, records: Any, batch_bytes: Any, plan: Any) -> Any:
    """Divide rows into batches as a producer does. Only a batch of a single record may be larger than batch_bytes.

    rows: the rows to encode, in this order. The plan's arrays must have space for one batch per row. Returns the number
    of batches.
    """
    batches = 0
    first = 0
    for i in range(len(rows)):
        row = rows[i]
        body = 1 + _field_size(records.key, row) + _field_size(records.value, row)
        if len(records.header_offsets) == 0:
            body += 1
        else:
            first_header = np.int64(records.header_offsets[row])
            last_header = np.int64(records.header_offsets[row + 1])
            body += varint_size(last_header - first_header)
            for header in range(first_header, last_header):
                body += _field_size(records.header_key, header) + _field_size(records.header_value, header)
        if batches > 0:
            elapsed = records.timestamps[row] - records.timestamps[rows[first]]
            deltas = varint_size(elapsed) + varint_size(np.int64(i - first))
            total = varint_size(body + deltas) + body + deltas
            if plan.sizes[batches - 1] + total <= batch_bytes:
                plan.body_sizes[i] = body + deltas
                plan.sizes[batches - 1] += total
                continue
        first = i
        plan.body_sizes[i] = body + 2
        plan.starts[batches] = i
        plan.sizes[batches] = HEADER_BYTES + varint_size(body + 2) + body + 2
        batches += 1
    return batches


@kernel(VOID, INT64_IN, RECORDS_IN, _PLAN_IN, _FIELDS, INT64, BYTES_OUT, INT64_OUT, INT64_OUT)
def write_batches(
    rows: Any, records: Any, plan: Any, fields: Any, seal: Any, out: Any, max_timestamps: Any, min_timestamps: Any
) -> None:
    """Write the planned batches one after another: header, records. Base offsets count from 0.

    seal: whether to write CRCs. It may be true only if crc32c.IN_KERNELS is true. If it is false, the CRCs are 0.
    max_timestamps: (batches,), gets the largest timestamp in each header.
    min_timestamps: (batches,), gets the smallest timestamp of each batch, which no header has.
    """
    batches = len(plan.starts)
    position = 0
    for batch in range(batches):
        first = plan.starts[batch]
        stop = plan.starts[batch + 1] if batch + 1 < batches else len(rows)
        header_position = position
        base_timestamp = records.timestamps[rows[first]]
        max_timestamp = min_timestamp = base_timestamp
        position += HEADER_BYTES
        for i in range(first, stop):
            row = rows[i]
            timestamp = records.timestamps[row]
            max_timestamp = max(max_timestamp, timestamp)
            min_timestamp = min(min_timestamp, timestamp)
            position = write_varint(out, position, plan.body_sizes[i])
            out[position] = 0
            position += 1
            position = write_varint(out, position, timestamp - base_timestamp)
            position = write_varint(out, position, np.int64(i - first))
            position = _write_field(out, position, records.key, row)
            position = _write_field(out, position, records.value, row)
            if len(records.header_offsets) == 0:
                out[position] = 0
                position += 1
                continue
            first_header = np.int64(records.header_offsets[row])
            last_header = np.int64(records.header_offsets[row + 1])
            position = write_varint(out, position, last_header - first_header)
            for header in range(first_header, last_header):
                position = _write_field(out, position, records.header_key, header)
                position = _write_field(out, position, records.header_value, header)
        if fields.append_time >= 0:
            max_timestamp = min_timestamp = fields.append_time
        max_timestamps[batch] = max_timestamp
        min_timestamps[batch] = min_timestamp
        write_big_endian(out, header_position + BASE_OFFSET_POSITION, np.int64(first), 8)
        write_big_endian(out, header_position + LENGTH_POSITION, plan.sizes[batch] - LOG_OVERHEAD, 4)
        write_big_endian(out, header_position + EPOCH_POSITION, np.int64(NO_LEADER_EPOCH), 4)
        out[header_position + MAGIC_POSITION] = MAGIC
        write_big_endian(out, header_position + CRC_POSITION, np.int64(0), 4)
        write_big_endian(out, header_position + ATTRIBUTES_POSITION, fields.attributes, 2)
        write_big_endian(out, header_position + LAST_OFFSET_DELTA_POSITION, np.int64(stop - first - 1), 4)
        write_big_endian(out, header_position + BASE_TIMESTAMP_POSITION, base_timestamp, 8)
        write_big_endian(out, header_position + MAX_TIMESTAMP_POSITION, max_timestamp, 8)
        sequence = (
            np.int64(NO_SEQUENCE) if fields.base_sequence < 0 else (fields.base_sequence + np.int64(first)) & 0x7FFFFFFF
        )
        write_big_endian(out, header_position + PRODUCER_ID_POSITION, fields.producer_id, 8)
        write_big_endian(out, header_position + PRODUCER_EPOCH_POSITION, fields.producer_epoch, 2)
        write_big_endian(out, header_position + BASE_SEQUENCE_POSITION, sequence, 4)
        write_big_endian(out, header_position + RECORDS_COUNT_POSITION, np.int64(stop - first), 4)
        if IN_KERNELS:  # a condition by itself, so that numba can leave the branch out
            if seal != 0:
                crc = crc_of(out, header_position + CRC_START, position)
                write_big_endian(out, header_position + CRC_POSITION, crc, 4)
