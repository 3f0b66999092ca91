"""Encodes Arrow columns as record batches.

An encoded run contains the batches of one append to one partition, as a producer sends them: offsets count from 0,
and the leader epoch is -1. When the log appends the run, it writes the final offsets and leader epoch into the
headers (record.stamping). The encoded bytes do not depend on the run's position in the log, so a run can be stored
first and appended later.

A run of a transaction names the transaction's producer. A run that consists of one control batch ends the transaction
on a partition. All functions are pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.record.batch import ByteArray, Int64Array
from storage_engine.record.compression import Codec, compress_as_kafka, compress_bound, compress_into
from storage_engine.record.control import TransactionMarker, encode_marker
from storage_engine.record.crc import batch_crcs, write_crcs
from storage_engine.record.header import (
    CONTROL,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
)
from storage_engine.record.kernels.columns import RecordBuffers
from storage_engine.record.kernels.crc32c import IN_KERNELS, crc32c_all
from storage_engine.record.kernels.encode_kernels import BatchPlan, HeaderValues, plan_batches, write_batches
from storage_engine.record.kernels.snappy_kernels import SLOTS, compress_batches
from storage_engine.record.record_columns import TO_APPEND, new_array, no_headers, record_buffers
from storage_engine.record.stamping import copy_headers

NO_SEQUENCE = -1

_CODECS = tuple(Codec)
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True)
class BatchProducer:
    """The producer of the batches of a transaction.

    producer_epoch: the epoch in the headers.
    base_sequence: the sequence number of the first record, counted over all records of the producer in the partition;
        NO_SEQUENCE for a marker, because a marker is no record of the producer.
    marker: the marker that ends the transaction, if this is the control batch.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    marker: TransactionMarker | None = None

    @property
    def attributes(self) -> int:
        return TRANSACTIONAL if self.marker is None else TRANSACTIONAL | CONTROL


_NONE = (NO_PRODUCER_ID, -1, NO_SEQUENCE)


@dataclass(frozen=True)
class EncodedRun:
    """Complete batches, with the facts that planning needs.

    data: uint8, the batches.
    sizes, records: int64, shape (batches,): bytes and record count of each batch.
    max_timestamps, min_timestamps: int64, shape (batches,): the largest and the smallest timestamp of each batch.
    producer: None outside of transactions.
    """

    data: ByteArray
    sizes: Int64Array
    records: Int64Array
    max_timestamps: Int64Array
    min_timestamps: Int64Array
    producer: BatchProducer | None = None


def encode_records(
    records: pa.RecordBatch,
    batch_bytes: int,
    codec: Codec = Codec.NONE,
    *,
    level: int | None = None,
    append_time: int | None = None,
    producer: BatchProducer | None = None,
) -> EncodedRun:
    """Encode all records as batches of magic 2.

    Args:
        records: columns as in record_columns.TO_APPEND.
        batch_bytes, codec, level, append_time, producer: as in encode_rows.

    Raises:
        InvalidRecordError: a column has another type.
    """
    rows = np.arange(records.num_rows, dtype=np.int64)
    return encode_rows(
        record_buffers(records), rows, batch_bytes, codec, level=level, append_time=append_time, producer=producer
    )


def encode_rows(
    records: RecordBuffers,
    rows: Int64Array,
    batch_bytes: int,
    codec: Codec = Codec.NONE,
    *,
    level: int | None = None,
    append_time: int | None = None,
    producer: BatchProducer | None = None,
) -> EncodedRun:
    """Encode chosen records as batches of magic 2.

    Args:
        records: the result of record_columns.record_buffers.
        rows: int64, the numbers of the records to encode, in this order.
        batch_bytes: the largest size of a batch before compression. Only a batch of a single record may be larger.
        codec: compresses the records of each batch. A batch is not compressed if compression does not change its size,
            or if the compressed batch is larger than batch_bytes and larger than the batch without compression.
        level: the level of compression, Kafka's default if it is None.
        append_time: if it is set, the batches get timestamp type LogAppendTime and this time, in milliseconds.
        producer: if it is set, the batches are a part of this producer's transaction.
    """
    buffers = records.plain()
    plan = BatchPlan(*(new_array(len(rows), np.int64) for _ in range(3)))
    batches = plan_batches(rows, buffers, batch_bytes, tuple(plan))
    starts, sizes = plan.starts[:batches], plan.sizes[:batches]
    data = new_array(int(sizes.sum()), np.uint8)
    max_timestamps, min_timestamps = (np.empty(batches, np.int64) for _ in range(2))
    attributes = int(codec) | (LOG_APPEND_TIME if append_time is not None else 0)
    time = -1 if append_time is None else append_time
    whose = _NONE
    if producer is not None:
        attributes |= producer.attributes
        whose = producer.producer_id, producer.producer_epoch, producer.base_sequence
    seals = IN_KERNELS and codec is Codec.NONE
    fields = HeaderValues(attributes, time, *whose)
    write_batches(
        rows, buffers, (plan.body_sizes, starts, sizes), tuple(fields), int(seals), data, max_timestamps,
        min_timestamps,
    )  # fmt: skip
    if codec is not Codec.NONE:
        data, sizes = _compress_batches(data, sizes, batch_bytes, codec, level)
    if not seals:
        seal_batches(data, sizes)
    records_counts = np.diff(starts, append=len(rows))
    return EncodedRun(data, sizes, records_counts, max_timestamps, min_timestamps, producer)


def encode_end(
    producer_id: int, producer_epoch: int, marker: TransactionMarker, now_ms: int, append_time: int | None = None
) -> EncodedRun:
    """Encode the control batch that ends a producer's transaction on a partition.

    Args:
        producer_epoch: the epoch of the transaction's batches. The marker gets the next epoch, so that an old process
            of this producer can no longer write (KIP-890).
        append_time: as in encode_rows.
    """
    key, value = encode_marker(marker)
    columns = [pa.array([key], pa.binary()), pa.array([value], pa.binary()), no_headers(1), pa.array([now_ms])]
    record = pa.RecordBatch.from_arrays(columns, schema=TO_APPEND)
    producer = BatchProducer(producer_id, producer_epoch + 1, NO_SEQUENCE, marker)
    return encode_records(record, HEADER_BYTES, append_time=append_time, producer=producer)


def seal_batches(data: ByteArray, sizes: Int64Array) -> None:
    """Compute the CRC of each of these consecutive batches, and write it into the batch's header."""
    write_crcs(data, sizes, batch_crcs(data, sizes))


def seal_chosen_batches(data: ByteArray, sizes: Int64Array, chosen: npt.NDArray[np.bool_]) -> None:
    """Like seal_batches, but only for the batches that `chosen` selects."""
    ends = np.cumsum(sizes)
    starts, ends = (ends - sizes)[chosen], ends[chosen]
    crcs = crc32c_all(data, starts + CRC_START, ends)
    for i in range(4):
        data[starts + CRC_POSITION + i] = crcs >> (24 - 8 * i) & 0xFF


def compress_again(data: ByteArray, sizes: Int64Array, codecs: Int64Array) -> tuple[ByteArray, Int64Array]:
    """Compress the records of consecutive batches as Kafka does; returns the batches and their new sizes.

    The compressed batches have their new length, but not their new CRC.

    Args:
        codecs: the codec of each batch, as in its header. A batch with Codec.NONE does not change.
    """
    chosen = np.flatnonzero(codecs != Codec.NONE)
    ends = np.cumsum(sizes)[chosen]
    starts = ends - sizes[chosen]
    out = new_array(len(data) + sum(compress_bound(size) for size in sizes[chosen].tolist()), np.uint8)
    view, free = data.data, out.data
    lengths = []
    copied = position = 0
    for start, end, codec in zip(starts.tolist(), ends.tolist(), codecs[chosen].tolist(), strict=True):
        records = start + HEADER_BYTES
        body = position + records - copied
        free[position:body] = view[copied:records]  # the batches in between, and the header
        length = compress_as_kafka(_CODECS[codec], view[records:end], free[body:])
        _LENGTH.pack_into(free, body - HEADER_BYTES + LENGTH_POSITION, HEADER_BYTES - LOG_OVERHEAD + length)
        lengths.append(HEADER_BYTES + length)
        copied, position = end, body + length
    behind = position + len(data) - copied
    free[position:behind] = view[copied:]
    new_sizes = sizes.copy()
    new_sizes[chosen] = lengths
    return out[:behind], new_sizes


def _compress_batches(
    data: ByteArray, sizes: Int64Array, batch_bytes: int, codec: Codec, level: int | None
) -> tuple[ByteArray, Int64Array]:
    """Compress the records of consecutive batches; returns the batches and their new sizes."""
    out = new_array(sum(map(compress_bound, sizes.tolist())), np.uint8)
    compressed_sizes = np.empty(len(sizes), np.int64)
    if codec is Codec.SNAPPY:
        table = np.empty(SLOTS, np.uint16)
        position = compress_batches(data, sizes, batch_bytes, table, out, compressed_sizes)
    else:
        position = _compress_each(data, sizes, batch_bytes, codec, level, out, compressed_sizes)
    copy_headers(data, sizes, out, compressed_sizes)
    return out[:position], compressed_sizes


def _compress_each(
    data: ByteArray,
    sizes: Int64Array,
    batch_bytes: int,
    codec: Codec,
    level: int | None,
    out: ByteArray,
    compressed_sizes: Int64Array,
) -> int:
    """Like the kernel compress_batches, with a library."""
    view, free = data.data, out.data
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
    return position
