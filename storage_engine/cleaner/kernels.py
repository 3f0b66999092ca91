"""Copies batches without the deleted records, in the cleaner's compiled loop.

As in record.kernels, each length read from disk is held against the end of its section before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage_engine.cleaner.map_kernels import read_record
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
from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    integers,
    kernel,
)
from storage_engine.record.kernels.decode import BAD_COUNT, INTACT
from storage_engine.record.kernels.varint import copy_bytes, read_varint, varint_size, write_big_endian, write_varint

# What filter_batches did with a batch.
DROPPED = 0
COPIED = 1
REBUILT = 2
EMPTIED = 3

# What filter_batches is to do with a batch; bits.
DISCARD = 1
"""None of its records stays, and none is looked at."""
KEEP_ALL = 2
"""All of its records stay, whatever the map says: those of control batches."""
STAYS_EMPTY = 4
"""Its header stays when none of its records does."""
WANTS_HORIZON = 8
"""It holds a marker that may go at a delete horizon, which is set where there is none."""
LEGACY = 16
"""It was made of an entry of magic 0 or 1 (legacy.py), with a delete horizon that only tells whether its tombstones may go:
what stays of it is always written anew, spans its own records only, and gets a horizon of its own."""
ALL_OUTDATED = 32
"""It is to be discarded because each of its records is outdated."""

# Why records go: rows of what filter_batches counts.
OUTDATED = 0
EXPIRED_TOMBSTONE = 1
ABORTED = 2
KEYLESS = 3
EXPIRED_MARKER = 4
CAUSES = 5

LONGEST_RECORD_GROWTH = 10
"""Bytes by which a record can grow: a longer timestamp delta, and the length that counts it."""


@kernel(
    integers(4),
    BYTES_IN,  # data
    INT64_IN,  # positions of the batches in it
    INT64_IN,  # sizes
    BYTES_IN,  # sections
    INT64_IN,  # where each batch's records begin
    INT64_IN,  # and end
    INT64_IN,  # records counts
    INT64_IN,  # base offsets
    INT64_IN,  # base timestamps
    INT64_IN,  # max timestamps
    INT64_IN,  # attributes, with the codecs that are wanted
    BYTES_IN,  # treatment, bits
    INT64,  # now
    INT64,  # new delete horizons
    INT64,  # first offset of which tombstones are held
    INT64,  # the time against which their horizons are
    INT64,  # first offset of which all stays
    BYTES_IN,  # per record of all these batches: 1: outdated
    INT64_OUT,  # scratch: record ends
    INT64_OUT,  # tails
    INT64_OUT,  # timestamps
    BYTES_OUT,  # out
    INT64_OUT,  # what was done with each batch
    INT64_OUT,  # its size in out
    INT64_OUT,  # its max timestamp
    INT64_OUT,  # its last offset
    INT64_OUT,  # the delete horizon of what stays of it, -1 none
    INT64_OUT,  # records that go, by cause
)
def filter_batches(
    data: Any,
    positions: Any,
    sizes: Any,
    sections: Any,
    starts: Any,
    ends: Any,
    records_counts: Any,
    base_offsets: Any,
    base_timestamps: Any,
    max_timestamps: Any,
    attributes: Any,
    treatment: Any,
    now_ms: Any,
    new_horizon_ms: Any,
    hold_offset: Any,
    held_now_ms: Any,
    end_offset: Any,
    outdated: Any,
    record_ends: Any,
    tails: Any,
    timestamps: Any,
    out: Any,
    done: Any,
    out_sizes: Any,
    out_max_timestamps: Any,
    out_last_offsets: Any,
    pending_horizons: Any,
    removed: Any,
) -> Any:
    """Write the batches that stay, one behind another (MemoryRecords.filterTo).

    A batch that keeps all its records and gets no delete horizon is copied. Any other is written anew: uncompressed,
    whatever its attributes say, and without a CRC. Of a batch to discard no section is needed. Returns (problem, batch,
    position or bytes in out, records kept).
    """
    written = 0
    kept = 0
    ordinal = np.int64(0)
    removed[:] = 0
    for batch in range(len(starts)):
        position = starts[batch]
        horizon = base_timestamps[batch] if attributes[batch] & DELETE_HORIZON else np.int64(-1)
        is_append_time = attributes[batch] & LOG_APPEND_TIME != 0
        keeps_all = treatment[batch] & KEEP_ALL != 0
        # From here on tombstones go: none of them, those that are not held, or all.
        tombstones_end = end_offset
        if horizon < 0 or now_ms < horizon:
            tombstones_end = np.int64(-1)
        elif held_now_ms < horizon:
            tombstones_end = min(hold_offset, end_offset)
        is_legacy = treatment[batch] & LEGACY != 0
        if is_legacy:
            horizon = np.int64(-1)
        judged = records_counts[batch]
        if treatment[batch] & DISCARD:
            if treatment[batch] & ALL_OUTDATED:
                cause = OUTDATED
            elif attributes[batch] & CONTROL:
                cause = EXPIRED_MARKER
            else:
                cause = ABORTED
            removed[cause] += judged
            position = ends[batch]
            ordinal += judged
            judged = np.int64(0)
        retained = 0
        has_tombstones = False
        max_timestamp = np.int64(-1)
        previous_delta = np.int64(-1)
        for _ in range(judged):
            problem, record_end, timestamp_delta, tail, offset_delta, _, key_length, value_length = read_record(
                sections, position, ends[batch], previous_delta
            )
            if problem != INTACT:
                return problem, batch, position, kept
            previous_delta = offset_delta
            position = record_end
            offset = base_offsets[batch] + offset_delta
            ordinal += 1
            if offset < end_offset and not keeps_all:
                if key_length < 0:
                    removed[KEYLESS] += 1
                    continue
                if value_length < 0 and offset < tombstones_end:
                    removed[EXPIRED_TOMBSTONE] += 1
                    continue
                if outdated[ordinal - 1]:
                    removed[OUTDATED] += 1
                    continue
            if value_length < 0:
                has_tombstones = True
            timestamp = max_timestamps[batch] if is_append_time else base_timestamps[batch] + timestamp_delta
            max_timestamp = max(max_timestamp, timestamp)
            record_ends[retained] = record_end
            tails[retained] = tail
            timestamps[retained] = timestamp
            retained += 1
        if position != ends[batch]:
            return BAD_COUNT, batch, position, kept
        kept += retained
        waits = has_tombstones or (retained > 0 and treatment[batch] & WANTS_HORIZON != 0)
        new_horizon = waits and horizon < 0
        if new_horizon:
            horizon = new_horizon_ms
        pending_horizons[batch] = horizon if waits else -1
        start = written
        if retained > 0 and retained == records_counts[batch] and not new_horizon and not is_legacy:
            written = copy_bytes(out, written, data, positions[batch], positions[batch] + sizes[batch])
            done[batch] = COPIED
            out_sizes[batch] = written - start
            out_max_timestamps[batch] = max_timestamps[batch]
            continue
        if retained == 0 and (is_legacy or treatment[batch] & STAYS_EMPTY == 0):
            done[batch] = DROPPED
            out_sizes[batch] = 0
            continue
        # Leader epoch, producer and sequence stay as they were, and so do the offsets but of what was of magic 0 or 1.
        copy_bytes(out, written, data, positions[batch], positions[batch] + HEADER_BYTES)
        written += HEADER_BYTES
        if retained == 0:
            kept_attributes = attributes[batch] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
            base_timestamp = np.int64(-1)
            max_timestamp = max_timestamps[batch]
            done[batch] = EMPTIED
        else:
            kept_attributes = attributes[batch] & ~DELETE_HORIZON
            if horizon >= 0:
                kept_attributes |= DELETE_HORIZON
            base_timestamp = horizon if horizon >= 0 else timestamps[0]
            base_delta = np.int64(0)
            if is_legacy:
                base_delta, _ = read_varint(sections, tails[0], record_ends[0], 28)
                last_delta, _ = read_varint(sections, tails[retained - 1], record_ends[retained - 1], 28)
                out_last_offsets[batch] = base_offsets[batch] + last_delta
                write_big_endian(out, start + BASE_OFFSET_POSITION, base_offsets[batch] + base_delta, 8)
                write_big_endian(out, start + LAST_OFFSET_DELTA_POSITION, last_delta - base_delta, 4)
            for row in range(retained):
                tail = tails[row]
                delta = timestamps[row] - base_timestamp
                if base_delta == 0:
                    body = 1 + varint_size(delta) + record_ends[row] - tail
                    written = write_varint(out, written, body)
                    out[written] = 0
                    written = write_varint(out, written + 1, delta)
                else:
                    offset_delta, tail = read_varint(sections, tail, record_ends[row], 28)
                    offset_delta -= base_delta
                    body = 1 + varint_size(delta) + varint_size(offset_delta) + record_ends[row] - tail
                    written = write_varint(out, written, body)
                    out[written] = 0
                    written = write_varint(out, written + 1, delta)
                    written = write_varint(out, written, offset_delta)
                written = copy_bytes(out, written, sections, tail, record_ends[row])
            done[batch] = REBUILT
        write_big_endian(out, start + LENGTH_POSITION, written - start - LOG_OVERHEAD, 4)
        write_big_endian(out, start + CRC_POSITION, np.int64(0), 4)
        write_big_endian(out, start + ATTRIBUTES_POSITION, kept_attributes, 2)
        write_big_endian(out, start + BASE_TIMESTAMP_POSITION, base_timestamp, 8)
        write_big_endian(out, start + MAX_TIMESTAMP_POSITION, max_timestamp, 8)
        write_big_endian(out, start + RECORDS_COUNT_POSITION, np.int64(retained), 4)
        out_sizes[batch] = written - start
        out_max_timestamps[batch] = max_timestamp
    return INTACT, 0, written, kept
