"""Defines PartitionState: the segments, leader epochs, offsets and producers of one partition, as immutable values.

Reading, compaction and retention work on a PartitionState. A PartitionState is made from a topic's state under a root
(topic.chain.topic_state) or from a plain Kafka log directory (kafka_dir.log_directory).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from storage_engine.config import INT_MAX, LONG_MAX
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.isolation import Isolation
from storage_engine.log.producers.producer_snapshot import ProducerEntry

Long = Annotated[int, Field(ge=0, le=LONG_MAX)]
"""An offset, a size in bytes or a wall clock time in milliseconds. The bound prevents overflows of 64-bit numbers."""
Timestamp = Annotated[int, Field(ge=-1, le=LONG_MAX)]
"""Milliseconds since the epoch; -1 if there is no timestamp."""
Int = Annotated[int, Field(ge=0, le=INT_MAX)]


class Frozen(BaseModel):
    """An immutable document. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(NamedTuple):
    """A segment's committed bytes.

    base_offset: as in Kafka.
    name: the name of the segment's files, without a suffix.
    size: committed bytes of the .log.
    end_offset: the offset after the segment's last batch.
    largest_timestamp: -1 if no batch has a timestamp.
    largest_timestamp_offset: the last offset of the batch with the largest timestamp; the segment's base offset if no
        batch has a timestamp.
    modified_ms: wall clock time of the last change. Kafka uses the mtime of the file instead.
    aborted: the aborted transactions whose abort markers are in the segment, or were in the segment before its
        compaction. The transactions are in the order of their markers. The segment's .txnindex has the same entries.
    first_timestamp: the largest timestamp of the segment's first batch; -1 if the first batch has no timestamp, None if
        the timestamp is not known.
    horizon_ms: the earliest delete horizon of a tombstone or marker in the segment; -1 if there is no delete horizon.
    smallest_timestamp: a lower bound: no record and no marker in the segment has a smaller timestamp. -1 if a record
        has no timestamp. None if the bound is not known: only batches of Lakelog have the bound in their headers, and
        older versions of Lakelog did not store the bound.
    largest_lateness_ms: the largest number of milliseconds by which a record's timestamp can be lower than an earlier
        record's timestamp. Let T be the largest timestamp in the headers of a batch and of all batches before it. Then
        no record of this batch or of a later batch has a timestamp below T - largest_lateness_ms. None if this number
        is not known, or if a record has no timestamp.
    """

    base_offset: Long
    name: str
    size: Long
    end_offset: Long
    largest_timestamp: Timestamp
    largest_timestamp_offset: Long
    modified_ms: Long
    aborted: tuple[AbortedTransaction, ...] = ()
    first_timestamp: Timestamp | None = None
    horizon_ms: Timestamp = -1
    smallest_timestamp: Timestamp | None = None
    largest_lateness_ms: Long | None = None


class LeaderEpoch(NamedTuple):
    """A leader epoch and its start offset. Batches at and after this offset have this epoch, up to the next entry."""

    epoch: Int
    start_offset: Long


class SegmentList(NamedTuple):
    """An immutable file with a partition's oldest segments and leader epochs.

    name: the name of the file, without its folder and suffix.
    segments, leader_epochs: the number of each in the file.
    digest: the expected digest of the file's bytes; empty in states of format 1.
    """

    name: str
    segments: Int
    leader_epochs: Int
    digest: str = ""


class PartitionState(Frozen):
    """One partition.

    first_dirty_offset: the offset up to which the partition was compacted, null before the first compaction.
    listed: the list file with the first segments and leader epochs, null if the document itself has all of them.
    producers: the idempotent and transactional producers at the high watermark, and their open transactions. A
        .snapshot has the same content.
    tombstones_end: the offset below which compaction may have removed tombstones. Example: a reader stores the latest
        row of each key. If this reader continues at a position below this offset, the reader can miss deletions.
    """

    log_start_offset: Long = 0
    high_watermark: Long = 0
    first_dirty_offset: Long | None = None
    segments: tuple[Segment, ...] = ()
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    listed: SegmentList | None = None
    producers: tuple[ProducerEntry, ...] = ()
    tombstones_end: Long = 0

    @property
    def active_segment(self) -> Segment | None:
        """The newest segment, which is never compacted."""
        return self.segments[-1] if self.segments else None

    @property
    def empty_end(self) -> Segment | None:
        """The newest segment, if it is empty. A broker may leave an empty segment. The next new segment replaces the
        empty segment."""
        active = self.active_segment
        return active if active is not None and active.base_offset == self.high_watermark else None

    @property
    def last_stable_offset(self) -> int:
        """Kafka's last stable offset: no transaction is open below this offset. Readers of committed records get only
        records below this offset."""
        begun = (each.txn_first_offset for each in self.producers if each.txn_first_offset >= 0)
        return min(self.high_watermark, max(self.log_start_offset, min(begun, default=self.high_watermark)))

    def end_offset(self, isolation: Isolation) -> int:
        """Return the offset after the last record that a reader may get."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark

    def aborted_transactions(self) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions of all segments, in the order of their markers."""
        for segment in self.segments:
            yield from segment.aborted

    @property
    def size(self) -> int:
        """Committed bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp of all segments in milliseconds; -1 if no record has a timestamp."""
        return max((segment.largest_timestamp for segment in self.segments), default=-1)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch at an offset, which may be the offset of the next record; 0 before the first epoch."""
        begun = bisect_right(self.leader_epochs, offset, key=lambda entry: entry.start_offset)
        return self.leader_epochs[begun - 1].epoch if begun else 0
