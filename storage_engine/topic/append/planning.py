"""Plans an append: the segment and position of every staged batch. Pure: nothing is read or written.

Runs get base offsets from the high watermark on, in the order given, and are split over segments by Kafka's conditions
for rolling. The plan fixes each position, each index entry and the segments that the commit will name, so publishing
only copies and commits only compare.

Runs of transactions are checked against the state's entry of their producer, as a broker does: nothing more is appended
to a transaction that another process has ended meanwhile.
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
from storage_engine.topic.append.staging import StagedRun
from storage_engine.topic.chain.state import TopicState


@dataclass(frozen=True)
class Piece:
    """Neighbouring batches of one staged file, as they go into one segment.

    key, source: where they are staged. sizes, base_offsets: int64, of each batch. position: in the .log.
    """

    key: str
    source: int
    sizes: Int64Array
    base_offsets: Int64Array
    position: int

    @property
    def size(self) -> int:
        return int(self.sizes.sum())


@dataclass
class SegmentAppend:
    """What one segment gets.

    name: of its files. is_new: the files are to be created; else they are open, with `before` as their state.
    after: the segment's state behind the append. seals: nothing more will be appended to it. aborted: the transactions
    whose abort markers are among what it gets.
    """

    name: str
    is_new: bool
    before: GrowingSegment
    after: GrowingSegment
    pieces: list[Piece] = field(default_factory=list)
    seals: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True)
class PartitionAppend:
    """One partition's part of an append.

    base: the partition as the plan found it. appends: in the order of their offsets; the first may continue the open
    segment. producers: those of the partition behind the append; None where it changes none of them.
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
    """A whole append, planned against one version of the state."""

    version: int
    topic_id: str
    leader_epoch: int
    partitions: tuple[PartitionAppend, ...]


@dataclass(frozen=True)
class OpenSegment:
    """The active segment that the planning process itself has open: name of its files, state of its bytes."""

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
    """Place staged runs behind the high watermarks of a state.

    Args:
        runs: by partition, in the order in which they are to stand in the log.
        open_segments: by partition; used only where it is still the partition's active segment, with all its bytes
            committed.
        jitter: draws segment.jitter.ms once a segment.

    Raises:
        RecordTooLargeError: a batch that no segment may hold.
        TransactionError: a run of a transaction that is not open any more.
        OffsetOutOfRangeError: the partition has not so many offsets left.
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
            f"{added} records do not fit between offset {offset} and the last one that a log can have",
            "Append to another topic.",
        )
    appends: list[SegmentAppend] = []
    transactional = any(run.producer is not None for run in runs)
    producers = Producers(base.producers if transactional else ())
    if open_segment is not None and continues(open_segment, base.active_segment):
        growing = open_segment.growing
        appends.append(SegmentAppend(open_segment.name, False, growing, growing.copy()))
    for run in runs:
        first = 0  # of the batches that are not placed yet
        source = run.position
        run_offset = piece_offset = offset
        producer = run.producer
        if producer is not None:
            _check_producer(producers, producer, f"topic {state.topic}, partition {partition}")
        batches = zip(run.sizes.tolist(), run.records.tolist(), run.max_timestamps.tolist(), strict=True)
        for batch, (size, records, max_timestamp) in enumerate(batches):
            if size > min(config.max_message_bytes, config.segment_bytes):
                raise RecordTooLargeError(
                    f"topic {state.topic}, partition {partition}",
                    f"a batch of {size} bytes, where max.message.bytes is {config.max_message_bytes} and"
                    f" segment.bytes is {config.segment_bytes}",
                    "Raise the limit, or lower batch.size.",
                )
            last_offset = offset + records - 1
            current = appends[-1] if appends else None
            if current is None or current.after.must_roll(config, size, last_offset, max_timestamp, now_ms):
                if current is not None:
                    source += _add_piece(current, run, first, batch, source, piece_offset)
                    _seal(current)
                first, piece_offset = batch, offset
                appends.append(_new_segment(state, config, offset, now_ms, jitter))
            appends[-1].after.append(size, last_offset, max_timestamp)
            if producer is not None:
                sequence = producer.base_sequence + offset - run_offset
                appends[-1].aborted += _take_in(producers, producer, sequence, offset, last_offset, max_timestamp)
            offset += records
        _add_piece(appends[-1], run, first, len(run.sizes), source, piece_offset)
    return PartitionAppend(partition, base, tuple(appends), offset, producers.entries() if transactional else None)


def _check_producer(producers: Producers, producer: BatchProducer, place: str) -> None:
    """Check that a run goes on where its producer stopped, in a transaction that is open if it is not the first run.

    A marker has the epoch behind its transaction's, so that what comes late of a transaction that others have ended is
    of an epoch that is over (ProducerAppendInfo.checkProducerEpoch, checkSequence).
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
            place, f"the transaction of producer {producer.producer_id} is not open any more, or not where it was",
            "Another process has ended it. Begin a new one.",
        )  # fmt: skip


def _take_in(
    producers: Producers, producer: BatchProducer, sequence: int, first: int, last: int, timestamp: int
) -> tuple[AbortedTransaction, ...]:
    """Count one batch of a run; returns the transaction that it aborts, if it does."""
    producer_id, epoch = producer.producer_id, producer.producer_epoch
    if producer.marker is not None:
        return aborted_among(list(producers.end(producer_id, epoch, last, producer.marker, timestamp)))
    producers.append(producer_id, epoch, sequence % SEQUENCES, first, last, timestamp, transactional=True)
    return ()


def continues(open_segment: OpenSegment, active: Segment | None) -> bool:
    """Whether this process may append to its open segment: it is the active one and every byte of it is committed."""
    return active is not None and (active.name, active.size) == (open_segment.name, open_segment.growing.size)


def _new_segment(
    state: TopicState, config: TopicConfig, base_offset: int, now_ms: int, jitter: random.Random
) -> SegmentAppend:
    most = min(config.segment_jitter_ms, config.segment_ms)
    growing = GrowingSegment(
        base_offset, now_ms, config.index_interval_bytes, jitter_ms=jitter.randrange(most) if most else 0
    )
    return SegmentAppend(new_segment_name(base_offset, state.version), True, growing.copy(), growing)


def _add_piece(append: SegmentAppend, run: StagedRun, first: int, stop: int, source: int, base_offset: int) -> int:
    """Give batches [first, stop) of a run, already counted in append.after, to the segment; returns their bytes."""
    if first == stop:
        return 0
    sizes = run.sizes[first:stop]
    size = int(sizes.sum())
    base_offsets = base_offset + np.cumsum(run.records[first:stop]) - run.records[first:stop]
    append.pieces.append(Piece(run.key, source, sizes, base_offsets, append.after.size - size))
    return size


def _seal(append: SegmentAppend) -> None:
    append.after.seal()
    append.seals = True


def appended(plan: PartitionAppend, current: PartitionState, leader_epoch: int, now_ms: int) -> PartitionState:
    """The partition as the commit of this plan leaves it.

    Args:
        current: the partition now: its high watermark and active segment are the plan's, older segments may have been
            cleaned or dropped since. Its empty_end, if it has one, is named no more.
    """
    segments = list(current.segments if current.empty_end is None else current.segments[:-1])
    for append in plan.appends:
        after = append.after
        before, horizon_ms = ((), NO_TIMESTAMP) if append.is_new else (segments[-1].aborted, segments[-1].horizon_ms)
        segment = after.segment(append.name, now_ms, before + append.aborted, horizon_ms)
        if append.is_new:
            segments.append(segment)
        elif append.pieces:
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
