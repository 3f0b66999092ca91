"""Kernels that decode messages of magic 0 and 1 to columns, or rewrite them as batches of magic 2, for
record.legacy_records.

record/legacy_records.py describes the layout of a message. A section is one message, or the messages of a wrapper.
Bytes from disk are never trusted: check_messages checks each length against the end of its section. The other kernels
get only sections that check_messages has checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage_engine.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    CODEC_MASK,
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
from storage_engine.record.kernels.columns import ROWS_OUT, SECTIONS_IN, Int64Array, Sections
from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    columns,
    inlined,
    integers,
    kernel,
)
from storage_engine.record.kernels.crc32 import crc32
from storage_engine.record.kernels.varint import (
    copy_bytes,
    read_big_endian,
    varint_size,
    write_big_endian,
    write_varint,
    write_view,
)

# The problems of a message. MESSAGE_PROBLEMS has the texts of the errors.
INTACT = 0
BAD_LENGTH = 1
BAD_MAGIC = 2
BAD_CRC = 3
NESTED = 4
BAD_FIELDS = 5
BAD_OFFSET = 6
EMPTY = 7
NO_VALUE = 8
MESSAGE_PROBLEMS = {
    BAD_LENGTH: ("a message inside its set", "a length that is too small or beyond the set"),
    BAD_MAGIC: (f"a message with a magic below {MAGIC}", "another magic"),
    BAD_CRC: ("a message that matches its CRC-32", "another CRC-32"),
    NESTED: ("an uncompressed message inside a compressed message", "a compressed message"),
    BAD_FIELDS: ("a key and a value that are as long as their message", "other lengths"),
    BAD_OFFSET: ("offsets that increase from the previous entry to the compressed message's offset", "other offsets"),
    EMPTY: ("messages inside a compressed message", "none"),
    NO_VALUE: ("a compressed message with a value", "none"),
}

RECORD_GROWTH = 6
"""The largest number of bytes by which a record of magic 2 is longer than its message."""
_KEY_LENGTH_0 = LEGACY_TIMESTAMP_POSITION
_KEY_LENGTH_1 = LEGACY_TIMESTAMP_POSITION + 8


@inlined
def _key_length_position(data: Any, position: Any) -> Any:
    return position + (_KEY_LENGTH_0 if data[position + MAGIC_POSITION] == 0 else _KEY_LENGTH_1)


@inlined
def _value_length_position(data: Any, position: Any, end: Any) -> Any:
    """Return the position of the value's length in a message; -1 if key and value do not end where the message ends."""
    position = _key_length_position(data, position)
    position += 4 + max(read_big_endian(data, position, 4), 0)
    if position + 4 > end or position + 4 + max(read_big_endian(data, position, 4), 0) != end:
        return np.int64(-1)
    return np.int64(position)


@inlined
def _message_timestamp(sections: Any, message: Any, batch_type: Any, batch_timestamp: Any) -> Any:
    if sections[message + MAGIC_POSITION] == 0:
        return np.int64(NO_TIMESTAMP)
    if batch_type == 1:
        return batch_timestamp
    return read_big_endian(sections, message + LEGACY_TIMESTAMP_POSITION, 8)


@kernel(integers(2), BYTES_IN, INT64_IN, INT64_IN, INT64_OUT)
def find_values(data: Any, positions: Any, ends: Any, starts: Any) -> Any:
    """Write the start of each message's value to `starts`. Returns (problem, message)."""
    for i in range(len(positions)):
        position = _value_length_position(data, positions[i], ends[i])
        if position < 0:
            return BAD_FIELDS, i
        if read_big_endian(data, position, 4) < 0:
            return NO_VALUE, i
        starts[i] = position + 4
    return INTACT, 0


@kernel(integers(3), SECTIONS_IN, types.Array(types.bool_, 1, "C", readonly=True), INT64_OUT, INT64_OUT, INT64_OUT)
def check_messages(sections: Any, wrapped: Any, counts: Any, first_offsets: Any, last_offsets: Any) -> Any:
    """Check and count the messages of each section.

    This call checks the CRCs of messages from a wrapper. The CRCs of other messages were checked before the call.
    first_offsets and last_offsets get the offsets in the messages, which may be relative. Returns (problem, section,
    position).
    """
    for section in range(len(sections.starts)):
        position = sections.starts[section]
        end = sections.ends[section]
        count = 0
        previous = np.int64(-1)
        while position < end:
            if position + LOG_OVERHEAD + SHORTEST[0] > end:
                return BAD_LENGTH, section, position
            length = read_big_endian(sections.data, position + LENGTH_POSITION, 4)
            message_end = position + LOG_OVERHEAD + length
            magic = sections.data[position + MAGIC_POSITION]
            if magic >= MAGIC:
                return BAD_MAGIC, section, position
            if length < SHORTEST[magic] or message_end > end:
                return BAD_LENGTH, section, position
            if wrapped[section]:
                crc = read_big_endian(sections.data, position + LEGACY_CRC_POSITION, 4) & 0xFFFFFFFF
                if crc32(sections.data, position + MAGIC_POSITION, message_end) != crc:
                    return BAD_CRC, section, position
            if sections.data[position + LEGACY_ATTRIBUTES_POSITION] & CODEC_MASK:
                return NESTED, section, position
            if _value_length_position(sections.data, position, message_end) < 0:
                return BAD_FIELDS, section, position
            offset = read_big_endian(sections.data, position, 8)
            if offset <= previous:
                return BAD_OFFSET, section, position
            if count == 0:
                first_offsets[section] = offset
            previous = offset
            count += 1
            position = message_end
        if count == 0:
            return EMPTY, section, position
        counts[section] = count
        last_offsets[section] = previous
    return INTACT, 0, 0


class Messages(NamedTuple):
    """The messages of consecutive entries, checked and ready for decode_messages.

    sections: for each entry the entry itself, or the messages of a wrapper.
    counts: int64, the number of messages in each section.
    shifts: int64, the number to add to the offsets of the messages in each section.
    timestamp_types, timestamps: int64, those of each entry.
    """

    sections: Sections
    counts: Int64Array
    shifts: Int64Array
    timestamp_types: Int64Array
    timestamps: Int64Array


_MESSAGES = columns(Messages, SECTIONS_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN)


@kernel(INT64, _MESSAGES, INT64, INT64, INT64, INT64, ROWS_OUT)
def decode_messages(messages: Any, first_offset: Any, end_offset: Any, buffer: Any, row: Any, rows: Any) -> Any:
    """Decode the messages with offsets in [first_offset, end_offset) from checked sections.

    The rows are written after those of earlier calls, as in decode_kernels.decode_records. Returns the number of rows
    so far.
    """
    sections, data = messages.sections, messages.sections.data
    for section in range(len(sections.starts)):
        position = sections.starts[section]
        while position < sections.ends[section]:
            message = position
            position += LOG_OVERHEAD + read_big_endian(data, position + LENGTH_POSITION, 4)
            offset = read_big_endian(data, message, 8) + messages.shifts[section]
            if offset < first_offset or offset >= end_offset:
                continue
            timestamp = _message_timestamp(
                data, message, messages.timestamp_types[section], messages.timestamps[section]
            )
            rows.offsets[row] = offset
            rows.timestamps[row] = timestamp
            rows.timestamp_types[row] = messages.timestamp_types[section]
            rows.leader_epochs[row] = -1
            rows.header_counts[row] = 0
            rows.header_positions[row] = 0
            start = _key_length_position(data, message)
            length = read_big_endian(data, start, 4)
            start += 4
            rows.key_valid[row] = length >= 0
            write_view(rows.key_views, row, data, start, max(length, 0), buffer)
            start += max(length, 0)
            length = read_big_endian(data, start, 4)
            start += 4
            rows.value_valid[row] = length >= 0
            write_view(rows.value_views, row, data, start, max(length, 0), buffer)
            row += 1
    return row


@inlined
def _write_field(out: Any, position: Any, sections: Any, start: Any) -> Any:
    """Copy a key or value and its length, which is at `start`; returns the next positions in `out` and `sections`."""
    length = read_big_endian(sections, start, 4)
    start += 4
    written = write_varint(out, position, length)
    length = max(length, 0)
    return copy_bytes(out, written, sections, start, start + length), start + length


@kernel(INT64, _MESSAGES, INT64, BYTES_OUT, INT64_OUT)
def write_as_batches(messages: Any, horizon_ms: Any, out: Any, sizes: Any) -> Any:
    """Write the messages of each checked section as a batch of magic 2; returns the number of bytes written.

    The batches are not compressed. They have the given delete horizon, no CRC and no producer.
    """
    sections, data = messages.sections, messages.sections.data
    written = 0
    for section in range(len(sections.starts)):
        batch = written
        written += HEADER_BYTES
        position = sections.starts[section]
        base_offset = read_big_endian(data, position, 8) + messages.shifts[section]
        offset = base_offset
        largest = np.int64(NO_TIMESTAMP)
        while position < sections.ends[section]:
            message = position
            position += LOG_OVERHEAD + read_big_endian(data, position + LENGTH_POSITION, 4)
            offset = read_big_endian(data, message, 8) + messages.shifts[section]
            timestamp = _message_timestamp(
                data, message, messages.timestamp_types[section], messages.timestamps[section]
            )
            largest = max(largest, timestamp)
            timestamp_delta = timestamp - horizon_ms
            key = _key_length_position(data, message)
            key_length = read_big_endian(data, key, 4)
            value_length = read_big_endian(data, key + 4 + max(key_length, 0), 4)
            size = (
                2  # one byte of attributes, one for the number of headers
                + varint_size(timestamp_delta)
                + varint_size(offset - base_offset)
                + varint_size(key_length)
                + max(key_length, 0)
                + varint_size(value_length)
                + max(value_length, 0)
            )
            written = write_varint(out, written, np.int64(size))
            out[written] = 0
            written = write_varint(out, written + 1, timestamp_delta)
            written = write_varint(out, written, offset - base_offset)
            written, value = _write_field(out, written, data, key)
            written, _ = _write_field(out, written, data, value)
            out[written] = 0
            written += 1
        attributes = DELETE_HORIZON | (LOG_APPEND_TIME if messages.timestamp_types[section] == 1 else 0)
        write_big_endian(out, batch + BASE_OFFSET_POSITION, base_offset, 8)
        write_big_endian(out, batch + LENGTH_POSITION, np.int64(written - batch - LOG_OVERHEAD), 4)
        write_big_endian(out, batch + EPOCH_POSITION, np.int64(NO_LEADER_EPOCH), 4)
        out[batch + MAGIC_POSITION] = MAGIC
        write_big_endian(out, batch + ATTRIBUTES_POSITION, np.int64(attributes), 2)
        write_big_endian(out, batch + LAST_OFFSET_DELTA_POSITION, offset - base_offset, 4)
        write_big_endian(out, batch + BASE_TIMESTAMP_POSITION, horizon_ms, 8)
        write_big_endian(out, batch + MAX_TIMESTAMP_POSITION, largest, 8)
        write_big_endian(out, batch + PRODUCER_ID_POSITION, np.int64(NO_PRODUCER_ID), 8)
        write_big_endian(out, batch + PRODUCER_EPOCH_POSITION, np.int64(NO_PRODUCER_EPOCH), 2)
        write_big_endian(out, batch + BASE_SEQUENCE_POSITION, np.int64(NO_SEQUENCE), 4)
        write_big_endian(out, batch + RECORDS_COUNT_POSITION, messages.counts[section], 4)
        sizes[section] = written - batch
    return written
