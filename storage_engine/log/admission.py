"""Checks records and encoded batches, and prepares both for an append (Kafka's LogValidator).

The bytes of a batch change only if the topic's configuration requires it:

    compression.type        if it names a codec, and the batch has another codec, the records are compressed again
    message.timestamp.type  with LogAppendTime, the timestamp of the batch becomes the current time

Offsets and leader epoch are stamped later, because they are outside the CRC. All functions are pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from storage_engine.log.validator import Verdict, judge_records, record_limit, refusal
from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.compression import MOST_BYTES, Codec
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_batches, decode_parts
from storage_engine.record.encoding import encode_records, seal_batches
from storage_engine.record.header import BATCH_HEADER, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL
from storage_engine.record.record_columns import TO_APPEND

_PART_BYTES = 32 * 1024**2


def compression_level(config: TopicConfig, codec: Codec) -> int | None:
    """Return the topic's compression level for a codec; None for a codec without levels."""
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return levels.get(codec)


def admit_batches(data: ByteArray, config: TopicConfig, now_ms: int, place: str, *, control: bool = False) -> ByteArray:
    """Return a copy of the batches as the topic stores them.

    Args:
        data: uint8, complete batches. Their offsets are ignored.
        place: the place to name in an error.
        control: whether control batches are allowed. Only a process that ends transactions writes them.

    Raises:
        CorruptionError: the bytes are not batches, or are damaged.
        RecordError: the topic does not allow a batch or a record.
    """
    table = scan_batches(data, place)
    if table.end != len(data):
        raise InvalidRecordError(place, f"the last batch, at byte {table.end}, is incomplete")
    check_crcs(data, table, place)
    _check_headers(table, config, place, control=control)
    _check_records(data, table, config, now_ms, place)
    append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
    codec = None if config.compression_type == "producer" else Codec.of(config.compression_type)
    if codec is not None and bool(((table.codecs != codec) & ~table.is_control).any()):
        parts = [_recompressed(data, table, row, codec, config, append_time, place) for row in range(len(table))]
        return np.concatenate(parts)
    admitted = data.copy()
    if append_time is not None:
        for position in table.positions.tolist():
            header = admitted[position : position + HEADER_BYTES].view(BATCH_HEADER)
            header["attributes"] |= LOG_APPEND_TIME
            header["max_timestamp"] = append_time
        seal_batches(admitted, table.sizes)
    return admitted


def admit_records(
    records: pa.RecordBatch, config: TopicConfig, now_ms: int, place: str, codec: Codec, batch_bytes: int
) -> ByteArray:
    """Encode records as the topic's configuration requires.

    Args:
        records: columns as in record.record_columns.TO_APPEND.
        codec: the codec to use if compression.type is `producer`.

    Raises:
        RecordError: the topic does not allow a record. The error names the first such record.
    """
    refused = np.flatnonzero(verdicts := judge_records(records, config, now_ms))
    if len(refused):
        row = int(refused[0])
        raise refusal(Verdict(int(verdicts[row])), f"{place}, record {row}", config)
    chosen = codec if config.compression_type == "producer" else Codec.of(config.compression_type)
    append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
    run = encode_records(
        records, min(batch_bytes, record_limit(config)), chosen, level=compression_level(config, chosen),
        append_time=append_time,
    )  # fmt: skip
    return run.data


def _check_headers(table: BatchTable, config: TopicConfig, place: str, *, control: bool) -> None:
    def first(wrong: npt.NDArray[np.bool_]) -> int | None:
        found = np.flatnonzero(wrong)
        return int(found[0]) if len(found) else None

    if (row := first(table.is_legacy)) is not None:
        raise InvalidRecordError(
            f"{place}, batch {row}", f"found magic {table.magics[row]}, which may be read but not appended"
        )
    if not control and (row := first(table.is_control)) is not None:
        raise InvalidRecordError(f"{place}, batch {row}", "found a control batch, which a producer may not write")
    if (row := first(table.last_offsets - table.base_offsets + 1 != table.records_counts)) is not None:
        raise InvalidRecordError(
            f"{place}, batch {row}",
            f"found {table.records_counts[row]} records for"
            f" {table.last_offsets[row] - table.base_offsets[row] + 1} offsets",
        )
    if (row := first(table.sizes > record_limit(config))) is not None:
        raise RecordTooLargeError(
            f"{place}, batch {row}", f"found {table.sizes[row]} bytes, above the limit of {record_limit(config)}",
            "Raise max.message.bytes or segment.bytes.",
        )  # fmt: skip
    if config.message_timestamp_type == "CreateTime" and (row := first(table.is_log_append_time)) is not None:
        raise InvalidTimestampError(
            f"{place}, batch {row}", "found timestamp type LogAppendTime, but the topic has CreateTime"
        )


def _check_records(data: ByteArray, table: BatchTable, config: TopicConfig, now_ms: int, place: str) -> None:
    number = 0
    for records in decode_parts(data, table, place, part_bytes=_PART_BYTES):
        verdicts = judge_records(records, config, now_ms)
        refused = np.flatnonzero((verdicts == Verdict.NO_KEY) | (verdicts == Verdict.BAD_TIMESTAMP))
        if len(refused):
            row = int(refused[0])
            raise refusal(Verdict(int(verdicts[row])), f"{place}, record {number + row}", config)
        number += records.num_rows


def _recompressed(
    data: ByteArray, table: BatchTable, row: int, codec: Codec, config: TopicConfig, append_time: int | None, place: str
) -> ByteArray:
    one = table.select(slice(row, row + 1))
    start, size = int(one.positions[0]), int(one.sizes[0])
    if one.codecs[0] == codec or one.is_control[0]:
        return data[start : start + size].copy()
    records = decode_batches(data, one, place)
    run = encode_records(
        records.select(TO_APPEND.names),
        MOST_BYTES,
        codec,
        level=compression_level(config, codec),
        append_time=append_time,
    )
    was, header = data[start : start + HEADER_BYTES].view(BATCH_HEADER), run.data[:HEADER_BYTES].view(BATCH_HEADER)
    header["attributes"] |= int(was["attributes"][0]) & TRANSACTIONAL
    for name in ("producer_id", "producer_epoch", "base_sequence"):
        header[name] = was[name]
    seal_batches(run.data, run.sizes)
    if run.sizes[0] > record_limit(config):
        raise RecordTooLargeError(
            f"{place}, batch {row}", f"found {run.sizes[0]} bytes after compression with the topic's codec, above the limit of"
            f" {record_limit(config)}", "Raise max.message.bytes or segment.bytes.",
        )  # fmt: skip
    return run.data
