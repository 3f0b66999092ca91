"""Copies batches in a compiled loop, and leaves out the records that compaction removes.

The loop checks each length that it reads from disk: the section must have enough bytes left. record.kernels has the
same checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from storage_engine.cleaner.map_kernels import read_record
from storage_engine.record.batch import NO_SMALLEST
from storage_engine.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    BASE_TIMESTAMP_POSITION,
    CONTROL,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    RECORDS_COUNT_POSITION,
    TRANSACTIONAL,
)
from storage_engine.record.kernels.columns import SECTIONS_IN, ByteArray, Int64Array
from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    columns,
    integers,
    kernel,
)
from storage_engine.record.kernels.decode_kernels import BAD_COUNT, INTACT
from storage_engine.record.kernels.varint import copy_bytes, read_varint, varint_size, write_big_endian, write_varint

# What filter_batches did with a batch
DROPPED = 0
COPIED = 1
REBUILT = 2
EMPTIED = 3

# How filter_batches must treat a batch: bits that can be combined
DISCARD = 1
"""Delete all records of the batch without reading them."""
KEEP_ALL = 2
"""Keep all records of the batch, whatever the key map says. Set for control batches."""
STAYS_EMPTY = 4
"""Keep the header of the batch even if none of its records is kept."""
WANTS_HORIZON = 8
"""The batch has a marker that may be deleted after a delete horizon. If the batch has no horizon, set one."""
LEGACY = 16
"""The batch was made from a message of magic 0 or 1 (legacy_conversion.py). The delete horizon that it has before the
call only decides whether its tombstones may be deleted. The batch is always written again, spans only the records that
are kept, and gets a new delete horizon if it keeps a tombstone.
"""
ALL_OUTDATED = 32
"""Delete the batch, because every record of it is outdated."""

# Why a record is deleted: the rows in which filter_batches counts the deleted records
OUTDATED = 0
EXPIRED_TOMBSTONE = 1
ABORTED = 2
KEYLESS = 3
EXPIRED_MARKER = 4
CAUSES = 5

LONGEST_RECORD_GROWTH = 10
"""The largest number of bytes by which a record can grow: its timestamp delta and its length field can become longer.
"""


class FilteredBatches(NamedTuple):
    """The batches that filter_batches reads, one row per batch.

    attributes: the attributes of the batch as it will be written, with the wanted codec.
    treatment: bits that say how to treat the batch.
    """

    positions: Int64Array
    sizes: Int64Array
    records_counts: Int64Array
    base_offsets: Int64Array
    base_timestamps: Int64Array
    max_timestamps: Int64Array
    attributes: Int64Array
    treatment: ByteArray


class FilterLimits(NamedTuple):
    """The times and offsets that decide which tombstones are removed.

    now_ms: a tombstone is removed if its delete horizon is at or before this time.
    new_horizon_ms: the delete horizon for a batch that has none.
    hold_offset: tombstones at and after this offset are kept longer, for registered consumers.
    held_now_ms: replaces now_ms for these tombstones.
    end_offset: all records at and after this offset stay.
    """

    now_ms: int
    new_horizon_ms: int
    hold_offset: int
    held_now_ms: int
    end_offset: int


class RecordsKept(NamedTuple):
    """Buffers for positions in the kept records of one batch: the end of each record, and the position after its
    timestamp delta.
    """

    ends: Int64Array
    tails: Int64Array
    timestamps: Int64Array


class FilterResult(NamedTuple):
    """What filter_batches returns for each batch, and the counts for all batches.

    done: what was done with the batch.
    sizes: the size of the written batch in bytes.
    min_timestamps: the smallest timestamp of its records, NO_SMALLEST if it has none.
    last_offsets: at the call, the last offsets of the batches; after the call, the last offsets of the written batches.
    pending_horizons: the delete horizon of the written batch, -1 if it has none.
    removed: int64 of shape (CAUSES,), the number of removed records by cause.
    """

    done: Int64Array
    sizes: Int64Array
    max_timestamps: Int64Array
    min_timestamps: Int64Array
    last_offsets: Int64Array
    pending_horizons: Int64Array
    removed: Int64Array


@kernel(
    integers(4),
    BYTES_IN,
    columns(FilteredBatches, *[INT64_IN] * 7, BYTES_IN),
    SECTIONS_IN,
    columns(FilterLimits, *[INT64] * 5),
    BYTES_IN,
    columns(RecordsKept, *[INT64_OUT] * 3),
    BYTES_OUT,
    columns(FilterResult, *[INT64_OUT] * 7),
)
def filter_batches(
    data: Any, batches: Any, sections: Any, limits: Any, outdated: Any, records: Any, out: Any, found: Any
) -> Any:
    """Write all batches that are kept, one after another (MemoryRecords.filterTo).

    A batch that keeps all its records and gets no delete horizon is copied. Any other batch that is kept is encoded
    again, without a CRC. The new batch is uncompressed, whatever its attributes say. Batches to discard need no
    section. Returns (problem, batch, position of the problem or number of bytes in out, records kept).

    outdated has one byte for each record of these batches; 1 means outdated.
    """
    written = 0
    kept = 0
    ordinal = np.int64(0)
    found.removed[:] = 0
    for batch in range(len(sections.starts)):
        position = sections.starts[batch]
        horizon = batches.base_timestamps[batch] if batches.attributes[batch] & DELETE_HORIZON else np.int64(-1)
        is_append_time = batches.attributes[batch] & LOG_APPEND_TIME != 0
        keeps_all = batches.treatment[batch] & KEEP_ALL != 0
        # Tombstones below this offset are removed. With -1, no tombstone is removed; with hold_offset, all tombstones
        # that are not held; with end_offset, all tombstones.
        tombstones_end = limits.end_offset
        if horizon < 0 or limits.now_ms < horizon:
            tombstones_end = np.int64(-1)
        elif limits.held_now_ms < horizon:
            tombstones_end = min(limits.hold_offset, limits.end_offset)
        is_legacy = batches.treatment[batch] & LEGACY != 0
        if is_legacy:
            horizon = np.int64(-1)
        judged = batches.records_counts[batch]
        if batches.treatment[batch] & DISCARD:
            if batches.treatment[batch] & ALL_OUTDATED:
                cause = OUTDATED
            elif batches.attributes[batch] & CONTROL:
                cause = EXPIRED_MARKER
            else:
                cause = ABORTED
            found.removed[cause] += judged
            position = sections.ends[batch]
            ordinal += judged
            judged = np.int64(0)
        retained = 0
        has_tombstones = False
        max_timestamp = np.int64(-1)
        min_timestamp = np.int64(NO_SMALLEST)
        previous_delta = np.int64(-1)
        for _ in range(judged):
            problem, record_end, timestamp_delta, tail, offset_delta, _, key_length, value_length = read_record(
                sections.data, position, sections.ends[batch], previous_delta
            )
            if problem != INTACT:
                return problem, batch, position, kept
            previous_delta = offset_delta
            position = record_end
            offset = batches.base_offsets[batch] + offset_delta
            ordinal += 1
            if offset < limits.end_offset and not keeps_all:
                if key_length < 0:
                    found.removed[KEYLESS] += 1
                    continue
                if value_length < 0 and offset < tombstones_end:
                    found.removed[EXPIRED_TOMBSTONE] += 1
                    continue
                if outdated[ordinal - 1]:
                    found.removed[OUTDATED] += 1
                    continue
            if value_length < 0:
                has_tombstones = True
            timestamp = (
                batches.max_timestamps[batch] if is_append_time else batches.base_timestamps[batch] + timestamp_delta
            )
            max_timestamp = max(max_timestamp, timestamp)
            min_timestamp = min(min_timestamp, timestamp)
            records.ends[retained] = record_end
            records.tails[retained] = tail
            records.timestamps[retained] = timestamp
            retained += 1
        if position != sections.ends[batch]:
            return BAD_COUNT, batch, position, kept
        kept += retained
        found.min_timestamps[batch] = min_timestamp
        waits = has_tombstones or (retained > 0 and batches.treatment[batch] & WANTS_HORIZON != 0)
        new_horizon = waits and horizon < 0
        if new_horizon:
            horizon = limits.new_horizon_ms
        found.pending_horizons[batch] = horizon if waits else -1
        start = written
        if retained > 0 and retained == batches.records_counts[batch] and not new_horizon and not is_legacy:
            written = copy_bytes(
                out, written, data, batches.positions[batch], batches.positions[batch] + batches.sizes[batch]
            )
            found.done[batch] = COPIED
            found.sizes[batch] = written - start
            found.max_timestamps[batch] = batches.max_timestamps[batch]
            continue
        if retained == 0 and (is_legacy or batches.treatment[batch] & STAYS_EMPTY == 0):
            found.done[batch] = DROPPED
            found.sizes[batch] = 0
            continue
        # Leader epoch, producer and sequence do not change. The offsets change only if the batch was of magic 0 or 1.
        copy_bytes(out, written, data, batches.positions[batch], batches.positions[batch] + HEADER_BYTES)
        written += HEADER_BYTES
        if retained == 0:
            kept_attributes = batches.attributes[batch] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
            base_timestamp = np.int64(-1)
            max_timestamp = batches.max_timestamps[batch]
            found.done[batch] = EMPTIED
        else:
            kept_attributes = batches.attributes[batch] & ~DELETE_HORIZON
            if horizon >= 0:
                kept_attributes |= DELETE_HORIZON
            base_timestamp = horizon if horizon >= 0 else records.timestamps[0]
            base_delta = np.int64(0)
            if is_legacy:
                base_delta, _ = read_varint(sections.data, records.tails[0], records.ends[0], 28)
                last_delta, _ = read_varint(sections.data, records.tails[retained - 1], records.ends[retained - 1], 28)
                found.last_offsets[batch] = batches.base_offsets[batch] + last_delta
                write_big_endian(out, start + BASE_OFFSET_POSITION, batches.base_offsets[batch] + base_delta, 8)
                write_big_endian(out, start + LAST_OFFSET_DELTA_POSITION, last_delta - base_delta, 4)
            for row in range(retained):
                tail = records.tails[row]
                delta = records.timestamps[row] - base_timestamp
                if base_delta == 0:
                    body = 1 + varint_size(delta) + records.ends[row] - tail
                    written = write_varint(out, written, body)
                    out[written] = 0
                    written = write_varint(out, written + 1, delta)
                else:
                    offset_delta, tail = read_varint(sections.data, tail, records.ends[row], 28)
                    offset_delta -= base_delta
                    body = 1 + varint_size(delta) + varint_size(offset_delta) + records.ends[row] - tail
                    written = write_varint(out, written, body)
                    out[written] = 0
                    written = write_varint(out, written + 1, delta)
                    written = write_varint(out, written, offset_delta)
                written = copy_bytes(out, written, sections.data, tail, records.ends[row])
            found.done[batch] = REBUILT
        write_big_endian(out, start + LENGTH_POSITION, written - start - LOG_OVERHEAD, 4)
        write_big_endian(out, start + CRC_POSITION, np.int64(0), 4)
        write_big_endian(out, start + ATTRIBUTES_POSITION, kept_attributes, 2)
        write_big_endian(out, start + BASE_TIMESTAMP_POSITION, base_timestamp, 8)
        write_big_endian(out, start + MAX_TIMESTAMP_POSITION, max_timestamp, 8)
        write_big_endian(out, start + RECORDS_COUNT_POSITION, np.int64(retained), 4)
        found.sizes[batch] = written - start
        found.max_timestamps[batch] = max_timestamp
    return INTACT, 0, written, kept
