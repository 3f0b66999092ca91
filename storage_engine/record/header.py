"""Defines the 61-byte header of a record batch of magic 2 (Kafka's DefaultRecordBatch): positions, sizes and bits.

    offset size field
         0    8 base_offset             stamped when the batch is appended to the log; outside the CRC
         8    4 batch_length            number of bytes after this field
        12    4 partition_leader_epoch  stamped together with base_offset; outside the CRC
        16    1 magic                   2
        17    4 crc                     CRC-32C (Castagnoli) from byte 21 to the end
        21    2 attributes              bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
        23    4 last_offset_delta
        27    8 base_timestamp          of the first record; the delete horizon if bit 6 is set
        35    8 max_timestamp
        43    8 producer_id             -1: none
        51    2 producer_epoch          -1: none
        53    4 base_sequence           -1: none
        57    4 records_count
        61      records                 compressed as one block if a codec is set

All numbers are big-endian. base_offset and partition_leader_epoch are outside the CRC, so a batch can be encoded
first and stamped later without a new CRC. The positions and sizes of the header's fields never change.

Brokers before 0.11 wrote entries of magic 0 or 1 (record.legacy_records has their layout). An entry of magic 0 or 1
has the same first two fields as a batch, and the magic at the same position. Lakelog reads entries of magic 0 and 1,
but never writes them. A log may contain batches of magic 2 and entries of magic 0 and 1.

All other modules, including the kernels, import the positions of a header's fields from this module. Numba compiles the
integers of a module as constants. So this module must not import a compiled module.
"""

from __future__ import annotations

import numpy as np

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
"""The two fields that a log stamps into a header, and the length between them: all fields before the magic."""
HEADER_BYTES = BATCH_HEADER.itemsize
assert HEADER_BYTES == 61


def _position(field: str) -> int:
    offset = BATCH_HEADER.fields[field][1] if BATCH_HEADER.fields else 0
    return int(offset)


BASE_OFFSET_POSITION = _position("base_offset")
LENGTH_POSITION = _position("batch_length")
EPOCH_POSITION = _position("partition_leader_epoch")
MAGIC_POSITION = _position("magic")
CRC_POSITION = _position("crc")
ATTRIBUTES_POSITION = _position("attributes")
LAST_OFFSET_DELTA_POSITION = _position("last_offset_delta")
BASE_TIMESTAMP_POSITION = _position("base_timestamp")
MAX_TIMESTAMP_POSITION = _position("max_timestamp")
PRODUCER_ID_POSITION = _position("producer_id")
PRODUCER_EPOCH_POSITION = _position("producer_epoch")
BASE_SEQUENCE_POSITION = _position("base_sequence")
RECORDS_COUNT_POSITION = _position("records_count")
CRC_START = ATTRIBUTES_POSITION
"""The first byte that the CRC covers. The CRC covers all bytes from this byte to the end of the batch."""
LOG_OVERHEAD = EPOCH_POSITION
"""The bytes of base_offset and batch_length, which show where a batch ends."""
HEADER_BYTES_UP_TO_MAGIC = MAGIC_POSITION + 1

LEGACY_CRC_POSITION = LOG_OVERHEAD
LEGACY_CRC_START = MAGIC_POSITION
LEGACY_ATTRIBUTES_POSITION = HEADER_BYTES_UP_TO_MAGIC
LEGACY_TIMESTAMP_POSITION = LEGACY_ATTRIBUTES_POSITION + 1

MAGIC = 2
SHORTEST = (14, 22, HEADER_BYTES - LOG_OVERHEAD)
"""The smallest possible batch_length by magic. With magic 0 and 1, the smallest length is that of a message without key
and value.
"""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5
DELETE_HORIZON = 1 << 6

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
