"""Turns records into staged runs, and carries out one append without Spark.

Staging is the same for a Spark task and for `lakelog append`: records are checked, spread over partitions, and encoded
in one pass. An append then immediately plans, publishes and commits its staged runs.
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

from storage_engine.clock import Clock
from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError, StorageError
from storage_engine.log.admission import compression_level
from storage_engine.log.producers.producer_state import SEQUENCES
from storage_engine.log.validator import Verdict, judge_records, record_limit, refusal
from storage_engine.record.batch import Int64Array
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import BatchProducer, encode_records
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage import Storage
from storage_engine.topic.append.publishing import Committed, TopicWriter
from storage_engine.topic.append.staging import StagedRun, StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain

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
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        return cls(min(batch_bytes, record_limit(config)), codec, compression_level(config, codec), append_time)


@dataclass
class TopicProducer:
    """The producer of a transaction, in one topic.

    writer: appends for the whole transaction. next_sequences: by partition, how the next record is numbered.
    """

    producer_id: int
    producer_epoch: int
    writer: TopicWriter
    next_sequences: dict[int, int] = field(default_factory=dict)

    def take(self, partition: int, records: int) -> BatchProducer:
        """Number so many records."""
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
        records: columns as in record.columns.TO_APPEND.
        partitions: int32, shape (rows,); -1: the row is left out.
        producer: of the transaction that the records belong to.
    """
    for partition, rows in _by_partition(partitions):
        run = encode_records(
            records, encoding.batch_bytes, encoding.codec, level=encoding.level,
            rows=rows, append_time=encoding.append_time,
            producer=producer.take(partition, len(rows)) if producer else None,
        )  # fmt: skip
        writer.stage(partition, run)


def _by_partition(partitions: npt.NDArray[np.int32]) -> Iterator[tuple[int, Int64Array]]:
    """The numbers of each partition's rows, in their order."""
    if len(partitions) and partitions[0] >= 0 and (partitions == partitions[0]).all():  # as of records without keys
        yield int(partitions[0]), np.arange(len(partitions))
        return
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    bounds = [*np.flatnonzero(np.diff(ordered, prepend=np.int32(-1))).tolist(), len(order)]
    for start, stop in itertools.pairwise(bounds):
        yield int(ordered[start]), order[start:stop]


class Append:
    """One append, fed chunk by chunk: stage() as often as there are records, then commit() once. For one thread.

    Nothing is visible before the commit, and all of it afterwards; staged bytes wait on storage, not in memory. As a
    context it removes what it staged at its end. It takes no topic over: it fits in between a writer's batches.
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
            partition: for all records; by default keys decide, and keyless records share one partition.
            producer: makes the append a part of its transaction.
            state: that the config is of; the newest by default. To a topic that was created anew since, nothing is
                appended.

        Raises:
            UnknownTopicError: no such topic.
            InvalidRecordError: the topic has no such partition.
        """
        state = state or chain.newest()
        count = len(state.partitions)
        if partition is not None and not 0 <= partition < count:
            raise InvalidRecordError(f"topic {state.topic}", f"has partitions 0 to {count - 1}, found {partition}")
        self._storage = storage
        self._chain = chain
        self._config = config
        self._clock = clock
        self._topic = state.topic
        self._partition = partition
        self._partitions = count
        self._sticky = secrets.randbelow(count)
        self._producer = producer
        self._writer = producer.writer if producer else TopicWriter(storage, chain, config, clock, None, state.topic_id)
        self._staging = StagingWriter(storage, staging_folder(state.topic_id, state.version))
        self._staged = 0

    def stage(self, records: pa.RecordBatch, name_row: Callable[[int], str] | None = None) -> None:
        """Encode records and lay them behind those staged before.

        Args:
            records: columns as in record.columns.TO_APPEND.
            name_row: what a message calls the record in this row; by default it counts all records from 0.

        Raises:
            RecordError: names the first record that the topic may not hold.
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
        """Make all that was staged visible as one version of the state. Without records there is no new version."""
        self._staging.close()
        if not self._staging.runs:
            return Committed(self._chain.newest(), 0)
        return self._writer.append(self.runs)

    def offsets(self, committed: Committed) -> dict[int, range]:
        """The offsets that the records got by this commit, by partition in order."""
        counts = {number: sum(run.record_count for run in runs) for number, runs in sorted(self.runs.items())}
        ends = {number: committed.state.partitions[number].high_watermark for number in counts}
        return {number: range(ends[number] - count, ends[number]) for number, count in counts.items()}

    @property
    def runs(self) -> Mapping[int, list[StagedRun]]:
        """What is staged, by partition."""
        return by_partition(self._staging.runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._producer is None:
            self._writer.close()
        # What this fails at, sweeping takes; what became of the append is known by now.
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
    """Append records as one commit, or none of them; see Append.

    Raises:
        RecordError: names the first record that the topic may not hold, by its number from 0.
        AmbiguousPutError: nobody knows whether it was committed.
        StorageError: any other; nothing was committed.
    """
    with Append(storage, chain, config, clock, partition) as append:
        append.stage(records)
        return append.commit()
