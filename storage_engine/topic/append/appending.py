"""Turns records into staged runs, and commits one append without Spark.

A staged run is a sequence of encoded batches for one partition. The run is not committed yet (topic.append.staged_run).
A Spark task and `lakelog append` stage in the same way: they check the records, distribute them over partitions, and
encode them in one pass. After staging, `lakelog append` immediately plans, publishes and commits the staged runs.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arguments import whole_number
from storage_engine.clock import Clock
from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError, StorageError
from storage_engine.log.admission import compression_level
from storage_engine.log.producers.producer_state import SEQUENCES
from storage_engine.log.validator import Verdict, judge_records, record_limit, refusal
from storage_engine.record.batch import Int64Array
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import BatchProducer, encode_rows
from storage_engine.record.partitioner import partition_keys
from storage_engine.record.record_columns import record_buffers
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import Committed, TopicWriter
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState

DEFAULT_BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Encoding:
    """How records are encoded into batches.

    batch_bytes: the largest size of a batch before compression, at most the topic's limit for a record.
    codec, level: the compression, and its level or None for Kafka's default.
    append_time: the timestamp of the batches if the topic has LogAppendTime, in milliseconds; else None.
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
        """The encoding that a topic's settings require. `producer_type` is used if compression.type is `producer`."""
        chosen = producer_type if config.compression_type == "producer" else config.compression_type
        codec = Codec.of(chosen)
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        return cls(min(batch_bytes, record_limit(config)), codec, compression_level(config, codec), append_time)


@dataclass
class TopicProducer:
    """The producer of a transaction in one topic.

    writer: the writer for all appends of the transaction to this topic.
    next_sequences: the sequence number of the next record, by partition.
    """

    producer_id: int
    producer_epoch: int
    writer: TopicWriter
    next_sequences: dict[int, int] = field(default_factory=dict)

    def take(self, partition: int, records: int) -> BatchProducer:
        """Assign the next sequence numbers of a partition to this many records."""
        sequence = self.next_sequences.get(partition, 0)
        self.next_sequences[partition] = (sequence + records) % SEQUENCES
        return BatchProducer(self.producer_id, self.producer_epoch, sequence)


def stage_records(
    writer: StagingWriter,
    records: pa.RecordBatch,
    partitions: npt.NDArray[np.int32],
    encoding: Encoding,
    producer: TopicProducer | None = None,
) -> None:
    """Encode records and stage one run per partition, in the order of the rows.

    Args:
        records: columns as in record.record_columns.TO_APPEND.
        partitions: int32, shape (rows,). A row with -1 is skipped.
        producer: the producer of the transaction that the records belong to, if any.
    """
    buffers = record_buffers(records)
    for partition, rows in _by_partition(partitions):
        run = encode_rows(
            buffers, rows, encoding.batch_bytes, encoding.codec, level=encoding.level,
            append_time=encoding.append_time,
            producer=producer.take(partition, len(rows)) if producer else None,
        )  # fmt: skip
        writer.stage(partition, run)


def _by_partition(partitions: npt.NDArray[np.int32]) -> Iterator[tuple[int, Int64Array]]:
    """The row numbers of each partition, in order."""
    if len(partitions) and partitions[0] >= 0 and (partitions == partitions[0]).all():  # for example without keys
        yield int(partitions[0]), np.arange(len(partitions))
        return
    # For 16-bit numbers, NumPy uses radix sort, which is several times as fast as its sort of larger numbers.
    fits = int(partitions.max(initial=0)) <= np.iinfo(np.int16).max
    order = np.argsort(partitions.astype(np.int16) if fits else partitions, kind="stable")
    ordered = partitions[order]
    bounds = [*np.flatnonzero(np.diff(ordered, prepend=np.int32(-1))).tolist(), len(order)]
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), order[start:stop]


class Append:
    """Appends records in one commit: call stage() for each chunk of records, then commit() once. Only one thread may
    use it.

    No record is visible before the commit, and all records are visible after it. Staged bytes are on storage, not in
    memory; but on a storage whose files cannot grow, up to 1 MiB is in memory, and then nothing is staged on storage. At
    the end of its `with` block an Append deletes its staged files. An Append does not take the topic over, so the writer
    of the topic can continue.
    """

    def __init__(
        self,
        storage: Storage,
        chain: StateChain,
        config: TopicConfig,
        clock: Clock,
        partition: int | None = None,
        producer: TopicProducer | None = None,
        state: TopicState | None = None,
    ) -> None:
        """
        Args:
            partition: the partition of all records. By default a record's key determines its partition, and records
                without a key are all appended to one random partition.
            producer: the producer of the transaction that the append belongs to, if any.
            state: the state from which `config` was read; by default the newest. If the topic was deleted and created
                again after this state, nothing is appended.

        Raises:
            ConfigError: `partition` is no whole number.
            UnknownTopicError: no such topic.
            InvalidRecordError: the topic has no such partition.
        """
        if partition is not None:
            partition = whole_number("partition", partition, "Give the number of a partition. Nothing was appended.")
        state = state or chain.newest()
        count = len(state.partitions)
        if partition is not None and not 0 <= partition < count:
            raise InvalidRecordError(
                f"topic {state.topic}", f"has partitions 0 to {count - 1}, but no partition {partition}"
            )
        self._storage = storage
        self._chain = chain
        self._config = config
        self._clock = clock
        self._state = state
        self._topic = state.topic
        self._partition = partition
        self._partitions = count
        self._sticky = secrets.randbelow(count)
        self._producer = producer
        self._writer = producer.writer if producer else TopicWriter(storage, chain, config, clock, None, state.topic_id)
        is_inline = storage.growing is None  # requests would take longer than a copy in memory
        self._staging = StagingWriter(storage, staging_folder(state.topic_id, state.version), inline=is_inline)
        self._staged = 0

    def stage(self, records: pa.RecordBatch, name_row: Callable[[int], str] | None = None) -> None:
        """Encode records and stage them after the records of earlier calls.

        Args:
            records: columns as in record.record_columns.TO_APPEND.
            name_row: returns the name of a row's record for error messages. By default records are numbered from 0 over
                all calls.

        Raises:
            RecordError: the topic's settings refuse a record. The error names the first such record.
        """
        now_ms = self._clock.now_ms()
        refused = np.flatnonzero(verdicts := judge_records(records, self._config, now_ms))
        if len(refused):
            row = int(refused[0])
            place = name_row(row) if name_row else f"topic {self._topic}, record {self._staged + row}"
            raise refusal(Verdict(int(verdicts[row])), place, self._config)
        if self._partition is None:
            chosen = partition_keys(records["key"], self._partitions, self._sticky)
        else:
            chosen = np.full(records.num_rows, self._partition, np.int32)
        stage_records(self._staging, records, chosen, Encoding.of(self._config, now_ms), self._producer)
        self._staged += records.num_rows

    def commit(self) -> Committed:
        """Commit all staged records as one version of the state. Without records, no version is written."""
        self._staging.close()
        if not self._staging.runs:
            return Committed(self._chain.newest(), 0)
        self._writer.prepare(self.runs, self._state)
        return self._writer.append(self.runs)

    def offsets(self, committed: Committed) -> dict[int, range]:
        """The offsets of the records that this commit added, by partition in order."""
        counts = {number: sum(run.record_count for run in runs) for number, runs in sorted(self.runs.items())}
        ends = {number: committed.state.partitions[number].high_watermark for number in counts}
        return {number: range(ends[number] - count, ends[number]) for number, count in counts.items()}

    @property
    def runs(self) -> Mapping[int, list[StagedRun]]:
        """The staged runs by partition."""
        return by_partition(self._staging.runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._producer is None:
            self._writer.close()
        # The result of the append is known by now. If the deletion fails, a sweep deletes the staged files later.
        with suppress(StorageError):
            self._staging.abort()
            delete_staged(self._storage, self._staging.runs)


def append_records(
    storage: Storage,
    chain: StateChain,
    config: TopicConfig,
    clock: Clock,
    records: pa.RecordBatch,
    partition: int | None = None,
) -> Committed:
    """Append all records in one commit, or none of them; see Append.

    Raises:
        RecordError: the topic's settings refuse a record. The error names the first such record, counted from 0.
        AmbiguousPutError: it is unknown whether the records were committed.
        StorageError: any other error of the storage. Nothing was committed.
    """
    with Append(storage, chain, config, clock, partition) as append:
        append.stage(records)
        return append.commit()
