"""Reads messages of magic 0, from brokers before 0.10, and of magic 1, from brokers before 0.11 (Kafka's LegacyRecord).

Lakelog never writes them.

    offset size field
         0    8 offset
         8    4 size           bytes after this field
        12    4 crc            CRC-32 (IEEE) of byte 16 to the end
        16    1 magic          0 or 1
        17    1 attributes     bits 0-2 codec: 0 none, 1 gzip, 2 snappy, 3 lz4; bit 3, in magic 1 only, LogAppendTime
        18    8 timestamp      in magic 1 only
              4 key_length     -1: no key
                key
              4 value_length   -1: no value
                value

All numbers are big-endian. A message with a codec is a wrapper. The value of a wrapper decompresses to a set of
messages of this format. No message in the set is allowed to be a wrapper
(AbstractLegacyRecordBatch.DeepRecordsIterator). The wrapper's magic decides what the offsets of these inner messages
mean:

- 0: the inner offsets are the offsets in the log.
- 1: the inner offsets are relative, and the wrapper's offset is the log offset of its last message. If the wrapper's
  offset is 0, as in old versions of librdkafka, the inner offsets are the offsets in the log.

If a wrapper of magic 1 has LogAppendTime, its messages of magic 1 get the timestamp of the wrapper. Messages of magic 0
have no timestamp. All messages get the timestamp type of their wrapper. Messages have no headers and no leader epochs.
"""

from __future__ import annotations

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.batch_limit import most_batch_bytes
from storage_engine.record.compression import LZ4_OF_MAGIC_0, Codec
from storage_engine.record.kernels.columns import Sections
from storage_engine.record.kernels.legacy_kernels import (
    BAD_OFFSET,
    INTACT,
    MESSAGE_PROBLEMS,
    Messages,
    check_messages,
    find_values,
)
from storage_engine.record.record_columns import CREATE_TIME, LOG_APPEND_TIME_TYPE, NO_TIMESTAMP_TYPE
from storage_engine.record.sections import ROW_BYTES, Room, too_large, uncompressed


def read_messages(
    data: ByteArray, table: BatchTable, file: str, file_position: int, room: Room, most_bytes: int | None = None
) -> Messages:
    """Decompress and check the messages of the table's entries.

    Args:
        data: uint8, the bytes from which the table was scanned. All entries have magic 0 or 1 and a checked CRC.
        file: the file to name in an error.
        file_position: the position of `data` in that file.
        most_bytes: if the decompressed messages take more bytes, only the first entries are read, but at least one
            entry.

    Raises:
        CorruptionError: an entry, or a message in a wrapper, is damaged. The error names the entry.
    """
    places = file_position + table.positions
    wrappers = table.codecs != Codec.NONE
    stored = Sections(data, table.positions.copy(), table.positions + table.sizes)
    if wrappers.any():
        stored.starts[wrappers] = _values(data, table.select(wrappers), file, file_position)
    codecs = np.where((table.magics == 0) & (table.codecs == Codec.LZ4), LZ4_OF_MAGIC_0, table.codecs)
    unknown = np.flatnonzero(table.codecs > Codec.LZ4)
    if len(unknown):
        entry = int(unknown[0])
        raise CorruptionError(
            file, int(places[entry]), "codec none, gzip, snappy or lz4", f"codec {table.codecs[entry]}"
        )  # fmt: skip
    sections = uncompressed(stored, codecs, places, file, room, most_bytes)
    table = table.select(slice(0, len(sections.starts)))
    wrappers = wrappers[: len(table)]
    counts, first_offsets, last_offsets = (np.empty(len(table), np.int64) for _ in range(3))
    problem, entry, position = check_messages(sections, wrappers, counts, first_offsets, last_offsets)
    if problem != INTACT:
        raise _damaged(problem, position - int(sections.starts[entry]), file, int(places[entry]))
    large = wrappers & (counts * ROW_BYTES + sections.ends - sections.starts > most_batch_bytes())
    if large.any():
        raise too_large(file, int(places[large.argmax()]))
    free = (table.magics == 1) & (table.last_offsets == 0)
    shifts = np.where(wrappers & (table.magics == 1) & ~free, table.last_offsets - last_offsets, 0)
    outside = (first_offsets + shifts < table.base_offsets) | (last_offsets + shifts > table.last_offsets)
    misplaced = np.flatnonzero(outside & ~free)
    if len(misplaced):
        raise _damaged(BAD_OFFSET, 0, file, int(places[misplaced[0]]))
    types = np.where(
        table.magics == 0, NO_TIMESTAMP_TYPE, np.where(table.is_log_append_time, LOG_APPEND_TIME_TYPE, CREATE_TIME)
    )
    return Messages(sections, counts, shifts, types, table.max_timestamps)


def _values(data: ByteArray, wrappers: BatchTable, file: str, file_position: int) -> Int64Array:
    """Return the start of the compressed messages in each wrapper. They end where the wrapper ends."""
    starts = np.empty(len(wrappers), np.int64)
    problem, entry = find_values(data, wrappers.positions, wrappers.positions + wrappers.sizes, starts)
    if problem != INTACT:
        raise _damaged(problem, 0, file, file_position + int(wrappers.positions[entry]))
    return starts


def _damaged(problem: int, byte: int, file: str, position: int) -> CorruptionError:
    expected, found = MESSAGE_PROBLEMS[problem]
    return CorruptionError(file, position, expected, f"{found}, at byte {byte} of its messages")
