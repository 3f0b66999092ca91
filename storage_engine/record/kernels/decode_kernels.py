"""Kernels that decode the records of batches to columns, for record.decoding.

kernels/encode_kernels.py describes the fields of a record. A section is the decompressed records of one batch. Bytes
from disk are never trusted: each length is checked against the end of its section before it is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from storage_engine.record.header import CODEC_MASK, CONTROL, CRC_START, HEADER_BYTES, LOG_APPEND_TIME, MAGIC
from storage_engine.record.kernels.columns import ROWS_OUT, SECTIONS_IN, Int64Array
from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT32_IN,
    INT32_OUT,
    INT64,
    INT64_IN,
    columns,
    integers,
    kernel,
    prefetch,
)
from storage_engine.record.kernels.crc32c import IN_KERNELS, crc_of
from storage_engine.record.kernels.varint import copy_bytes, read_varint, write_view

SUMMED_HEADER_BYTES = HEADER_BYTES - CRC_START
SMALLEST_RECORD = 7
"""In bytes: length, attributes, two deltas, null key, null value, number of headers."""
_LINE = 64  # bytes that the processor loads at once
_AHEAD = 16 * 1024
"""While records are decoded, bytes are loaded this far ahead: the CRC of the next batch needs them."""
# The problems that decode_records can find. DECODE_PROBLEMS has the texts of the errors.
INTACT = 0
BAD_VARINT = 1
BAD_RECORD_LENGTH = 2
BAD_KEY_LENGTH = 3
BAD_VALUE_LENGTH = 4
BAD_HEADERS = 5
BAD_COUNT = 6
BAD_OFFSET = 7
BAD_CRC = 8  # record.crc.check_crcs raises the error for this problem
DECODE_PROBLEMS = {
    BAD_VARINT: ("a variable-length integer", "too many bytes, or the end of the batch"),
    BAD_RECORD_LENGTH: ("a record that has the length in its length field and ends inside its batch", "another length"),
    BAD_KEY_LENGTH: ("a key inside its record", "a length beyond the record"),
    BAD_VALUE_LENGTH: ("a value inside its record", "a length beyond the record"),
    BAD_HEADERS: ("headers inside their record", "a count or length beyond the record"),
    BAD_COUNT: ("no bytes after the batch's last record", "more bytes"),
    BAD_OFFSET: ("offsets that increase inside the batch", "an offset that does not increase"),
}


class HeaderColumns(NamedTuple):
    """Fields of the batches' headers. crcs: empty if the CRCs are checked already."""

    crcs: Int64Array
    records_counts: Int64Array
    base_offsets: Int64Array
    base_timestamps: Int64Array
    attributes: Int64Array
    max_timestamps: Int64Array
    leader_epochs: Int64Array


_FIELDS = columns(HeaderColumns, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN)


@kernel(integers(6), INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64, INT64, INT64)
def survey_batches(
    base_offsets: Any,
    last_offsets: Any,
    attributes: Any,
    records_counts: Any,
    sizes: Any,
    magics: Any,
    first_offset: Any,
    end_offset: Any,
    control: Any,
) -> Any:
    """Find out what the wanted batches are like. A batch is wanted if it may have a record with an offset in
    [first_offset, end_offset), unless it is a control batch and `control` is 0.

    Returns (wanted batches, their bytes, an upper bound of their records, whether one is compressed, whether one is an
    entry of magic 0 or 1, whether the records count of one is impossible). The last answer is true only if no batch is
    compressed.
    """
    wanted, size, records, compressed, legacy, impossible = 0, 0, 0, 0, 0, 0
    for batch in range(len(sizes)):
        count = records_counts[batch]
        if count == 0 or last_offsets[batch] < first_offset or base_offsets[batch] >= end_offset:
            continue
        if control == 0 and attributes[batch] & CONTROL != 0:
            continue
        wanted += 1
        size += sizes[batch]
        records += max(count, 1)
        compressed |= attributes[batch] & CODEC_MASK != 0
        legacy |= magics[batch] < MAGIC
        impossible |= count * SMALLEST_RECORD > sizes[batch] - HEADER_BYTES
    return wanted, size, records, compressed, legacy, impossible


@kernel(integers(5), SECTIONS_IN, _FIELDS, INT64, INT64, INT64, INT64, ROWS_OUT)
def decode_records(
    sections: Any, batches: Any, first_offset: Any, end_offset: Any, buffer: Any, row: Any, rows: Any
) -> Any:
    """Decode the records with offsets in [first_offset, end_offset) from many sections.

    The rows are written after those of earlier calls. The arrays of rows must have space for all records of the
    sections. Returns (problem, batch, position, rows, headers of these sections). If problem is not INTACT, batch and
    position are the place of the damage.

    buffer is the number by which views refer to the bytes of the sections. This call can check CRCs only if
    crc32c.IN_KERNELS is true and each section is directly after its batch's header.
    """
    headers = 0
    for batch in range(len(sections.starts)):
        position = sections.starts[batch]
        end = sections.ends[batch]
        if IN_KERNELS:  # a condition by itself, so that numba can leave the branch out
            if (
                len(batches.crcs) > 0
                and crc_of(sections.data, position - SUMMED_HEADER_BYTES, end) != batches.crcs[batch]
            ):
                return BAD_CRC, batch, position, row, headers
        has_append_time = batches.attributes[batch] & LOG_APPEND_TIME != 0
        append_time = batches.max_timestamps[batch]
        base_offset = batches.base_offsets[batch]
        base_timestamp = batches.base_timestamps[batch]
        leader_epoch = batches.leader_epochs[batch]
        previous_delta = np.int64(-1)
        for _ in range(batches.records_counts[batch]):
            record = position
            length, position = read_varint(sections.data, position, end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            record_end = position + length
            if length < 1 or record_end > end:
                return BAD_RECORD_LENGTH, batch, record, row, headers
            for line in range(record, record_end, _LINE):
                prefetch(sections.data, line + _AHEAD)
            position += 1
            timestamp_delta, position = read_varint(sections.data, position, record_end, 63)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            offset_delta, position = read_varint(sections.data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            if offset_delta <= previous_delta:
                return BAD_OFFSET, batch, record, row, headers
            previous_delta = offset_delta
            key_length, position = read_varint(sections.data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            key_start = position
            if key_length > 0:
                position += key_length
            if position > record_end:
                return BAD_KEY_LENGTH, batch, record, row, headers
            value_length, position = read_varint(sections.data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            value_start = position
            if value_length > 0:
                position += value_length
            if position > record_end:
                return BAD_VALUE_LENGTH, batch, record, row, headers
            header_count, position = read_varint(sections.data, position, record_end, 28)
            if position < 0:
                return BAD_VARINT, batch, record, row, headers
            header_start = position
            if header_count < 0 or header_count > record_end - position:
                return BAD_HEADERS, batch, record, row, headers
            for _header in range(header_count):
                size, position = read_varint(sections.data, position, record_end, 28)
                if position < 0 or size < 0 or position + size > record_end:
                    return BAD_HEADERS, batch, record, row, headers
                position += size
                size, position = read_varint(sections.data, position, record_end, 28)
                if position < 0 or position + size > record_end:
                    return BAD_HEADERS, batch, record, row, headers
                if size > 0:
                    position += size
            if position != record_end:
                return BAD_RECORD_LENGTH, batch, record, row, headers
            offset = base_offset + offset_delta
            if offset < first_offset or offset >= end_offset:
                continue
            rows.offsets[row] = offset
            rows.timestamps[row] = append_time if has_append_time else base_timestamp + timestamp_delta
            rows.timestamp_types[row] = has_append_time
            rows.leader_epochs[row] = leader_epoch
            write_view(rows.key_views, row, sections.data, key_start, max(key_length, 0), buffer)
            rows.key_valid[row] = key_length >= 0
            write_view(rows.value_views, row, sections.data, value_start, max(value_length, 0), buffer)
            rows.value_valid[row] = value_length >= 0
            headers += header_count
            rows.header_counts[row] = header_count
            rows.header_positions[row] = header_start
            row += 1
        if position != end:
            return BAD_COUNT, batch, position, row, headers
    return INTACT, 0, 0, row, headers


@kernel(integers(2), BYTES_IN, INT32_IN, INT64_IN, INT32_OUT, BYTES_OUT, INT32_OUT, BYTES_OUT, BYTES_OUT)
def decode_headers(
    sections: Any,
    header_counts: Any,
    header_positions: Any,
    key_offsets: Any,
    keys: Any,
    value_offsets: Any,
    values: Any,
    value_valid: Any,
) -> Any:
    """Decode the headers of some rows, which decode_records has checked. Returns (key bytes, value bytes)."""
    header = 0
    key_end = 0
    value_end = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(len(header_counts)):
        position = header_positions[row]
        for _ in range(header_counts[row]):
            size, position = read_varint(sections, position, len(sections), 28)
            key_end = copy_bytes(keys, key_end, sections, position, position + size)
            position += size
            size, position = read_varint(sections, position, len(sections), 28)
            if size >= 0:
                value_end = copy_bytes(values, value_end, sections, position, position + size)
                position += size
                value_valid[header] = 1
            else:
                value_valid[header] = 0
            header += 1
            key_offsets[header] = key_end
            value_offsets[header] = value_end
    return key_end, value_end
