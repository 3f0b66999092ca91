"""From records to staged runs, and one append without Spark.

Staging is the same for a Spark task and for `lakelog append`: records are judged, spread over partitions, and encoded
in one pass. An append then plans, publishes and commits at once what it staged.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.clock import Clock
from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError
from storage_engine.log.validator import Verdict, judge_records, record_limit, refusal
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import encode_records
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage import Storage
from storage_engine.topic.publishing import Committed, TopicWriter
from storage_engine.topic.staging import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.state_chain import StateChain

DEFAULT_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Encoding:
    """How records become batches.

    batch_bytes: before compression; never above what the topic may hold. append_time: for LogAppendTime, else None.
    """

    batch_bytes: int
    codec: Codec
    level: int | None
    append_time: int | None

    @classmethod
    def of(
        cls,
        config: TopicConfig,
        now_ms: int,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        producer_type: str = "uncompressed",
    ) -> Encoding:
        """What a topic's settings make of it; producer_type decides where compression.type is `producer`."""
        chosen = producer_type if config.compression_type == "producer" else config.compression_type
        codec = Codec.of(chosen)
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        return cls(min(batch_bytes, record_limit(config)), codec, levels.get(codec), append_time)


def stage_records(
    writer: StagingWriter, records: pa.RecordBatch, partitions: npt.NDArray[np.int32], encoding: Encoding
) -> None:
    """Encode records and stage one run per partition, in the order of the rows.

    Args:
        records: columns as in record.columns.TO_APPEND.
        partitions: int32, shape (rows,); -1: the row is left out.
    """
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=np.int32(-1)))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        run = encode_records(
            records, encoding.batch_bytes, encoding.codec, level=encoding.level,
            rows=order[start:stop], append_time=encoding.append_time,
        )  # fmt: skip
        writer.stage(int(ordered[start]), run)


def append_records(
    storage: Storage,
    chain: StateChain,
    config: TopicConfig,
    clock: Clock,
    records: pa.RecordBatch,
    partition: int | None = None,
) -> Committed:
    """Append records as one commit, or none of them. Takes no topic over: it fits in between a writer's batches.

    Args:
        records: columns as in record.columns.TO_APPEND.
        partition: for all of them; by default keys decide, and keyless records share one partition.

    Raises:
        RecordError: names the first record that the topic may not hold, by its number from 0.
        StorageError: nothing was committed.
    """
    state = chain.newest()
    now_ms = clock.now_ms()
    refused = np.flatnonzero(verdicts := judge_records(records, config, now_ms))
    if len(refused):
        place = f"topic {state.topic}, record {int(refused[0])} of {records.num_rows} ({len(refused)} refused)"
        raise refusal(Verdict(int(verdicts[refused[0]])), place, config)
    count = len(state.partitions)
    if partition is not None and not 0 <= partition < count:
        raise InvalidRecordError(f"topic {state.topic}", f"has partitions 0 to {count - 1}, found {partition}")
    if partition is None:
        chosen = partition_keys(records["key"], count, secrets.randbelow(count))
    else:
        chosen = np.full(records.num_rows, partition, np.int32)
    writer = TopicWriter(storage, chain, config, clock, epoch=None)
    with StagingWriter(storage, staging_folder(state.topic_id, "append")) as staging:
        stage_records(staging, records, chosen, Encoding.of(config, now_ms))
    try:
        return writer.append(by_partition(staging.runs))
    finally:
        writer.close()
        delete_staged(storage, staging.runs)
