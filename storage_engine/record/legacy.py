"""Messages of magic 0 and 1, which brokers before 0.10 and 0.11 wrote (Kafka's LegacyRecord). Read, never written.

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

All big-endian. A message with a codec is a wrapper. Its value, uncompressed, is a set of messages of this format, none
of which may be a wrapper itself (AbstractLegacyRecordBatch.DeepRecordsIterator). What the offsets in there mean depends
on the wrapper's magic:

- 0: they are the offsets in the log.
- 1: they count from any number; the wrapper's own offset is that of the last one. Where it is 0, as old versions of
  librdkafka left it, they are the offsets in the log, wherever these lie.

A wrapper of magic 1 with LogAppendTime gives its timestamp to its messages of magic 1. Messages of magic 0 have none; the
type of all is the wrapper's. There are no headers and no leader epochs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage_engine.errors import CorruptionError
from storage_engine.record.batch import BatchTable, ByteArray, Int64Array
from storage_engine.record.batch_limit import most_batch_bytes
from storage_engine.record.columns import CREATE_TIME, LOG_APPEND_TIME_TYPE, NO_TIMESTAMP_TYPE
from storage_engine.record.compression import LZ4_OF_MAGIC_0, Codec
from storage_engine.record.kernels.legacy import BAD_OFFSET, INTACT, MESSAGE_PROBLEMS, check_messages, find_values
from storage_engine.record.sections import ROW_BYTES, Room, Sections, too_large, uncompressed


class Messages(NamedTuple):
    """What the entries of some neighbours in a log hold, checked and ready for kernels.legacy.decode_messages.

    sections: the entry itself, or the set of messages that a wrapper holds. The rest int64, one for each section.
    counts: messages. shifts: what to add to the offsets that stand in them. timestamp_types, timestamps: the entry's.
    """

    sections: Sections
    counts: Int64Array
    shifts: Int64Array
    timestamp_types: Int64Array
    timestamps: Int64Array


def read_messages(
    data: ByteArray, table: BatchTable, file: str, file_position: int, room: Room, most_bytes: int | None = None
) -> Messages:
    """The messages of the first entries: of all, or up to where they take most_bytes, but always of one.

    Args:
        data: uint8, the bytes that table was scanned from; its entries are all of magic 0 or 1 and have the CRCs that
            they must have.
        file: what to name in an error. file_position: where in it data begins.

    Raises:
        CorruptionError: an entry, or a message in a wrapper, is damaged; names the entry.
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
            file, int(places[entry]), "no codec, gzip, snappy or lz4", f"codec {table.codecs[entry]}"
        )  # fmt: skip
    sections = uncompressed(stored, codecs, places, file, room, most_bytes)
    table = table.select(slice(0, len(sections.starts)))
    wrappers = wrappers[: len(table)]
    counts, first_offsets, last_offsets = (np.empty(len(table), np.int64) for _ in range(3))
    problem, entry, position = check_messages(*sections, wrappers, counts, first_offsets, last_offsets)
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
    """Where the compressed sets of these wrappers begin; they end where the wrappers do."""
    starts = np.empty(len(wrappers), np.int64)
    problem, entry = find_values(data, wrappers.positions, wrappers.positions + wrappers.sizes, starts)
    if problem != INTACT:
        raise _damaged(problem, 0, file, file_position + int(wrappers.positions[entry]))
    return starts


def _damaged(problem: int, byte: int, file: str, position: int) -> CorruptionError:
    expected, found = MESSAGE_PROBLEMS[problem]
    return CorruptionError(file, position, expected, f"{found}, at byte {byte} of its messages")
