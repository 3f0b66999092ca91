"""Arrow columns to record batches.

An encoded run is what one append carries for one partition: whole batches, one behind another, with offsets counted
from 0 and leader epoch -1, as a producer sends them. The log stamps both when it gives the run its place. A run's bytes
can be stored and read again before that: nothing in it depends on where it will lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_engine.record.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    ByteArray,
    Int64Array,
    batch_crcs,
    copy_headers,
    write_crcs,
)
from storage_engine.record.columns import record_buffers
from storage_engine.record.compression import Codec, compress_bound, compress_into
from storage_engine.record.encode_kernels import plan_batches, write_batches


@dataclass(frozen=True)
class EncodedRun:
    """Whole batches and what planning needs to know of each.

    data: uint8, the batches. sizes, records, max_timestamps: int64, shape (batches,).
    """

    data: ByteArray
    sizes: Int64Array
    records: Int64Array
    max_timestamps: Int64Array


def encode_records(
    records: pa.RecordBatch,
    batch_bytes: int,
    codec: Codec = Codec.NONE,
    *,
    level: int | None = None,
    rows: Int64Array | None = None,
    append_time: int | None = None,
) -> EncodedRun:
    """Encode records as batches of magic 2.

    Args:
        records: columns as in columns.TO_APPEND.
        batch_bytes: a batch closes before the record that would make it larger than this, before compression; a
            record that is larger by itself gets a batch of its own.
        codec: compresses the records of each batch, at this level or Kafka's default. A batch that would pass
            batch_bytes only because compression makes it larger, or that it leaves as large as it is, stays as it is.
        rows: int64, which rows in which order; all by default.
        append_time: gives the batches timestamp type LogAppendTime and this time, in milliseconds.

    Raises:
        InvalidRecordError: a column has another type.
    """
    buffers = record_buffers(records)
    chosen = np.arange(records.num_rows, dtype=np.int64) if rows is None else rows
    arguments = buffers.kernel_arguments(chosen)
    body_sizes, starts, sizes = (np.empty(len(chosen), np.int64) for _ in range(3))
    batches = plan_batches(*arguments, batch_bytes, body_sizes, starts, sizes)
    starts, sizes = starts[:batches], sizes[:batches]
    data = np.empty(int(sizes.sum()), np.uint8)
    max_timestamps = np.empty(batches, np.int64)
    attributes = int(codec) | (LOG_APPEND_TIME if append_time is not None else 0)
    time = -1 if append_time is None else append_time
    write_batches(*arguments, body_sizes, starts, sizes, attributes, time, data, max_timestamps)
    if codec is not Codec.NONE:
        data, sizes = _compress_batches(data, sizes, batch_bytes, codec, level)
    seal_batches(data, sizes)
    return EncodedRun(data, sizes, np.diff(starts, append=len(chosen)), max_timestamps)


def seal_batches(data: ByteArray, sizes: Int64Array) -> None:
    """Write the CRC of each of these neighbouring batches into its header."""
    write_crcs(data, sizes, batch_crcs(data, sizes))


def _compress_batches(
    data: ByteArray, sizes: Int64Array, batch_bytes: int, codec: Codec, level: int | None
) -> tuple[ByteArray, Int64Array]:
    """The batches with compressed records, one behind another as before, and their sizes."""
    out = np.empty(sum(map(compress_bound, sizes.tolist())), np.uint8)
    view, free = data.data, out.data
    compressed_sizes = np.empty(len(sizes), np.int64)
    source = position = 0
    for batch, size in enumerate(sizes.tolist()):
        records = view[source + HEADER_BYTES : source + size]
        body = free[position + HEADER_BYTES :]
        length = compress_into(codec, records, body, level)
        if length == len(records) or HEADER_BYTES + length > max(size, batch_bytes):
            length = compress_into(Codec.NONE, records, body)
        compressed_sizes[batch] = HEADER_BYTES + length
        source += size
        position += HEADER_BYTES + length
    copy_headers(data, sizes, out, compressed_sizes)
    return out[:position], compressed_sizes
