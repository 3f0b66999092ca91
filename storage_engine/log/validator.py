"""Decides for each record whether a topic accepts the record (Kafka's LogValidator).

    NO_KEY          the record has no key, but the topic is compacted by key
    TOO_LARGE       a batch with only this record would exceed max.message.bytes or segment.bytes
    BAD_TIMESTAMP   the timestamp is below -1 (no timestamp), or further from the current time than
                    message.timestamp.before.max.ms or message.timestamp.after.max.ms allows

If one record is refused, an append refuses all records of the append. Ingest writes the refused records to the dead
letters, and the accepted records to the topic. All functions are pure.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError, InvalidTimestampError, RecordError, RecordTooLargeError
from storage_engine.record.header import HEADER_BYTES, NO_TIMESTAMP
from storage_engine.record.kernels.columns import ByteColumn, RecordBuffers
from storage_engine.record.kernels.encode_kernels import BatchPlan, plan_batches
from storage_engine.record.record_columns import record_buffers

_MOST_OVERHEAD = HEADER_BYTES + 64  # the integers of a record take less than 64 bytes


class Verdict(IntEnum):
    """The result for one record. A dead letter has the name as its reason."""

    ADMITTED = 0
    NO_KEY = 1
    TOO_LARGE = 2
    BAD_TIMESTAMP = 3


def record_limit(config: TopicConfig) -> int:
    """Return the largest size in bytes of a batch in the topic."""
    return min(config.max_message_bytes, config.segment_bytes)


def judge_records(records: pa.RecordBatch, config: TopicConfig, now_ms: int) -> npt.NDArray[np.uint8]:
    """Return a Verdict for each row, uint8 of shape (rows,).

    Args:
        records: columns as in record.record_columns.TO_APPEND.
        now_ms: the current time, with which timestamps are compared.
    """
    verdicts = np.zeros(records.num_rows, np.uint8)
    if not records.num_rows:
        return verdicts
    buffers = record_buffers(records)
    if config.message_timestamp_type == "CreateTime":
        verdicts[_bad_timestamps(buffers, config, now_ms)] = Verdict.BAD_TIMESTAMP
    limit = record_limit(config)
    if _MOST_OVERHEAD + _longest(buffers) > limit:
        verdicts[_sizes_alone(buffers) > limit] = Verdict.TOO_LARGE
    if config.compact and records["key"].null_count:
        verdicts[records["key"].is_null().to_numpy(zero_copy_only=False)] = Verdict.NO_KEY
    return verdicts


def _bad_timestamps(buffers: RecordBuffers, config: TopicConfig, now_ms: int) -> npt.NDArray[np.bool_]:
    timestamps = buffers.timestamps
    stamped = timestamps != NO_TIMESTAMP
    earliest = max(0, now_ms - config.message_timestamp_before_max_ms)
    latest = now_ms + min(config.message_timestamp_after_max_ms, np.iinfo(np.int64).max - now_ms)
    outside: npt.NDArray[np.bool_] = stamped & ((timestamps < earliest) | (timestamps > latest))
    return outside


def _longest(buffers: RecordBuffers) -> int:
    """Return an upper bound of the sizes of all records. The bound is cheap to compute, and nearly always shows that
    all records fit.
    """
    headers = 0
    if len(buffers.header_offsets):
        count = int(np.diff(buffers.header_offsets).max())
        headers = count * (10 + _longest_value(buffers.header_key) + _longest_value(buffers.header_value))
    return _longest_value(buffers.key) + _longest_value(buffers.value) + headers


def _longest_value(column: ByteColumn) -> int:
    return int(np.diff(column.offsets).max()) if len(column.offsets) > 1 else 0


def _sizes_alone(buffers: RecordBuffers) -> npt.NDArray[np.int64]:
    rows = np.arange(len(buffers.timestamps), dtype=np.int64)
    plan = BatchPlan(*(np.empty(len(rows), np.int64) for _ in range(3)))
    batches = plan_batches(rows, buffers, 0, plan)
    assert batches == len(rows), "no two records share a batch of 0 bytes"
    return plan.sizes


def refusal(verdict: Verdict, place: str, config: TopicConfig) -> RecordError:
    """Return the error for a record that was refused."""
    match verdict:
        case Verdict.NO_KEY:
            return InvalidRecordError(place, "has no key, but the topic is compacted", "Give every record a key.")
        case Verdict.TOO_LARGE:
            return RecordTooLargeError(
                place,
                f"needs a batch of more than {record_limit(config)} bytes",
                "Raise max.message.bytes or segment.bytes.",
            )
        case Verdict.BAD_TIMESTAMP:
            return InvalidTimestampError(
                place, "has a timestamp that is negative or too far from the current time",
                "Correct the timestamp, or raise message.timestamp.before.max.ms or message.timestamp.after.max.ms.",
            )  # fmt: skip
        case Verdict.ADMITTED:
            raise AssertionError("an admitted record is not refused")
