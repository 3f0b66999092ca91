"""Plans an append: decides the segment, position and base offset of every staged batch. The functions are pure: they
read and write no files.

The staged runs get their base offsets in the given order. The first base offset is the partition's high watermark.
The plan divides the runs into segments: a segment ends at the place at which Kafka would roll the segment. The plan
contains every position, every index entry and the segments that the commit will name. So publishing only has to copy
bytes, and the commit only has to check that the partitions are unchanged.

Like a broker, this module checks the runs of a transaction: it compares the runs with the entry of the transaction's
producer in the topic's state. If another process has ended the transaction, the runs of the transaction are refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import OffsetOutOfRangeError, RecordTooLargeError, TransactionError
from storage_engine.log.filenames import new_segment_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.log.producers.producer_state import SEQUENCES, Producers, aborted_among
from storage_engine.record.batch import Int64Array
from storage_engine.record.encoding import BatchProducer
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.topic.append.staged_run import StagedRun
from storage_engine.topic.chain.topic_state import TopicState


@dataclass(frozen=True)
class BatchSlice:
    """Consecutive batches of one staged file that are copied to one segment.

    key, source: the staged file, and the position of the first batch in it.
    sizes, base_offsets: int64, shape (batches,).
    position: the position of the first batch in the .log.
    data: the bytes of the batches, if the staged file was not written.
    """

    key: str
    source: int
    sizes: Int64Array
    base_offsets: Int64Array
    position: int
    data: bytes | None = None

    @property
    def size(self) -> int:
        return int(self.sizes.sum())


@dataclass
class SegmentAppend:
    """The part of an append that is written to one segment.

    name: the name of the segment's files, without a suffix.
    is_new: whether the segment is new. If not, this process continues the active segment.
    before: the segment before the append.
    after: the segment after the append.
    slices: the batches to copy.
    seals: whether this is the last append to the segment.
    aborted: the transactions whose abort markers this part contains.
    replaces: the name of the old files, if the segment is written again under a new name with its old bytes. The commit
        drops the old files.
    """

    name: str
    is_new: bool
    before: GrowingSegment
    after: GrowingSegment
    slices: list[BatchSlice] = field(default_factory=list)
    seals: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    replaces: str | None = None


@dataclass(frozen=True)
class PartitionAppend:
    """The part of an append that is written to one partition.

    base: the partition before the append.
    appends: the parts, in the order of offsets. The first part may continue the open segment.
    high_watermark: the high watermark after the append.
    producers: the partition's producers after the append; None if the append changes none of them.
    """

    partition: int
    base: PartitionState
    appends: tuple[SegmentAppend, ...]
    high_watermark: int
    producers: tuple[ProducerEntry, ...] | None = None

    @property
    def records(self) -> int:
        return self.high_watermark - self.base.high_watermark


@dataclass(frozen=True)
class AppendPlan:
    """The plan of a whole append, made on one version of the state."""

    version: int
    topic_id: str
    leader_epoch: int
    partitions: tuple[PartitionAppend, ...]


@dataclass(frozen=True)
class OpenSegment:
    """An active segment that this process can continue: it has the .log open for writing, or has the bytes of the .log
    to write them again under a new name.

    name: the name of the segment's files, without a suffix.
    growing: the segment's size, offsets and index entries so far.
    """

    name: str
    growing: GrowingSegment


def plan_append(
    state: TopicState,
    config: TopicConfig,
    runs: Mapping[int, Sequence[StagedRun]],
    open_segments: Mapping[int, OpenSegment],
    now_ms: int,
    jitter: random.Random,
) -> AppendPlan:
    """Plan the append of staged runs after the high watermarks of a state.

    Args:
        runs: by partition, in the order in which they will be in the log.
        open_segments: by partition. A segment is used only if it is still the partition's active segment and all its
            bytes are committed.
        jitter: draws the segment.jitter.ms of each new segment.

    Raises:
        RecordTooLargeError: a batch is larger than max.message.bytes or segment.bytes.
        TransactionError: the transaction of a run is no longer open.
        OffsetOutOfRangeError: the offsets would exceed the largest possible offset.
    """
    return AppendPlan(
        state.version,
        state.topic_id,
        state.writer.epoch,
        tuple(
            _plan_partition(state, config, partition, runs[partition], open_segments.get(partition), now_ms, jitter)
            for partition in sorted(runs)
            if runs[partition]
        ),
    )


def _plan_partition(
    state: TopicState,
    config: TopicConfig,
    partition: int,
    runs: Sequence[StagedRun],
    open_segment: OpenSegment | None,
    now_ms: int,
    jitter: random.Random,
) -> PartitionAppend:
    base = state.partitions[partition]
    offset = base.high_watermark
    if (added := sum(run.record_count for run in runs)) > LONG_MAX - offset:
        raise OffsetOutOfRangeError(
            f"topic {state.topic}, partition {partition}",
            f"{added} records do not fit between offset {offset} and {LONG_MAX}, the largest offset that a log can have",
            "Append to another topic.",
        )
    appends: list[SegmentAppend] = []
    transactional = any(run.producer is not None for run in runs)
    producers = Producers(base.producers if transactional else ())
    if open_segment is not None and continues(open_segment, base.active_segment):
        growing = open_segment.growing
        appends.append(SegmentAppend(open_segment.name, False, growing, growing.copy()))
    for run in runs:
        first = 0  # the first batch that is not assigned to a segment yet
        source = run.position
        run_offset = piece_offset = offset
        producer = run.producer
        if producer is not None:
            _check_producer(producers, producer, f"topic {state.topic}, partition {partition}")
        columns = run.sizes, run.records, run.max_timestamps, run.min_timestamps
        batches = zip(*(column.tolist() for column in columns), strict=True)
        for batch, (size, records, max_timestamp, min_timestamp) in enumerate(batches):
            if size > min(config.max_message_bytes, config.segment_bytes):
                raise RecordTooLargeError(
                    f"topic {state.topic}, partition {partition}",
                    f"a batch has {size} bytes, but max.message.bytes is {config.max_message_bytes} and"
                    f" segment.bytes is {config.segment_bytes}",
                    "Raise the limit, or lower batch.size.",
                )
            last_offset = offset + records - 1
            current = appends[-1] if appends else None
            if current is None or current.after.must_roll(config, size, last_offset, max_timestamp, now_ms):
                if current is not None:
                    source += _add_slice(current, run, first, batch, source, piece_offset)
                    _seal(current)
                first, piece_offset = batch, offset
                appends.append(_new_segment(state, config, offset, now_ms, jitter))
            appends[-1].after.append(size, last_offset, max_timestamp, min_timestamp)
            if producer is not None:
                sequence = producer.base_sequence + offset - run_offset
                appends[-1].aborted += _take_in(producers, producer, sequence, offset, last_offset, max_timestamp)
            offset += records
        _add_slice(appends[-1], run, first, len(run.sizes), source, piece_offset)
    return PartitionAppend(partition, base, tuple(appends), offset, producers.entries() if transactional else None)


def _check_producer(producers: Producers, producer: BatchProducer, place: str) -> None:
    """Check that a run continues its producer's sequence. Unless the run is the first run of its transaction, the
    transaction must be open.

    A marker has the epoch after its transaction's epoch. So if another process has ended a transaction, later batches
    of the transaction have an old epoch and are refused (ProducerAppendInfo.checkProducerEpoch, checkSequence).
    """
    known = producers.get(producer.producer_id)
    is_open = known.txn_first_offset >= 0
    if producer.marker is not None:
        fits = is_open and producer.producer_epoch == known.producer_epoch + 1
    elif known.producer_id == producer.producer_id:
        next_sequence = (known.last_sequence + 1) % SEQUENCES
        fits = is_open and (known.producer_epoch, next_sequence) == (producer.producer_epoch, producer.base_sequence)
    else:
        fits = producer.base_sequence == 0
    if not fits:
        raise TransactionError(
            place,
            f"the transaction of producer {producer.producer_id} is not open, or its epoch or sequence number has changed",
            "Another process has ended this transaction. Begin a new transaction.",
        )  # fmt: skip


def _take_in(
    producers: Producers, producer: BatchProducer, sequence: int, first: int, last: int, timestamp: int
) -> tuple[AbortedTransaction, ...]:
    """Add one batch of a run to the producers; return the transaction that the batch aborts, if any."""
    producer_id, epoch = producer.producer_id, producer.producer_epoch
    if producer.marker is not None:
        return aborted_among(list(producers.end(producer_id, epoch, last, producer.marker, timestamp)))
    producers.append(producer_id, epoch, sequence % SEQUENCES, first, last, timestamp, transactional=True)
    return ()


def continues(open_segment: OpenSegment, active: Segment | None) -> bool:
    """Whether this process may append to its open segment: it is the active segment, and all its bytes are
    committed."""
    return active is not None and (active.name, active.size) == (open_segment.name, open_segment.growing.size)


def jitter_of(config: TopicConfig, chance: random.Random) -> int:
    """Draw the segment.jitter.ms of one segment."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return chance.randrange(most) if most else 0


def _new_segment(
    state: TopicState, config: TopicConfig, base_offset: int, now_ms: int, jitter: random.Random
) -> SegmentAppend:
    growing = GrowingSegment(base_offset, now_ms, config.index_interval_bytes, jitter_of(config, jitter))
    return SegmentAppend(new_segment_name(base_offset, state.version), True, growing.copy(), growing)


def _add_slice(append: SegmentAppend, run: StagedRun, first: int, stop: int, source: int, base_offset: int) -> int:
    """Add batches [first, stop) of a run to a segment's slices; return their size in bytes. append.after includes these
    batches already."""
    if first == stop:
        return 0
    sizes = run.sizes[first:stop]
    size = int(sizes.sum())
    base_offsets = base_offset + np.cumsum(run.records[first:stop]) - run.records[first:stop]
    start = source - run.position
    data = None if run.data is None else run.data[start : start + size]
    append.slices.append(BatchSlice(run.key, source, sizes, base_offsets, append.after.size - size, data))
    return size


def _seal(append: SegmentAppend) -> None:
    append.after.seal()
    append.seals = True


def appended(plan: PartitionAppend, current: PartitionState, leader_epoch: int, now_ms: int) -> PartitionState:
    """The partition after the commit of this plan.

    Args:
        current: the partition now. Its high watermark and active segment must be those of the plan. Older segments may
            have been cleaned or dropped since the plan. If the partition's newest segment is empty (empty_end), that
            segment is removed.
    """
    segments = list(current.segments if current.empty_end is None else current.segments[:-1])
    for append in plan.appends:
        after = append.after
        before, horizon_ms = ((), NO_TIMESTAMP) if append.is_new else (segments[-1].aborted, segments[-1].horizon_ms)
        segment = after.segment(append.name, now_ms, before + append.aborted, horizon_ms)
        if append.is_new:
            segments.append(segment)
        elif append.slices:
            segments[-1] = segment
    epochs = begin_epoch(current.leader_epochs, leader_epoch, current.high_watermark)
    return current.model_copy(
        update={
            "segments": tuple(segments),
            "high_watermark": plan.high_watermark,
            "leader_epochs": epochs,
            "producers": current.producers if plan.producers is None else plan.producers,
        }
    )


def total_records(plan: AppendPlan) -> int:
    return int(np.sum([part.records for part in plan.partitions], dtype=np.int64))
