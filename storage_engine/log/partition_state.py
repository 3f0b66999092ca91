"""What one partition consists of: segments, leader epochs, offsets and producers, as immutable values.

All that reads, cleans or deletes works on a PartitionState, whatever it was taken from: a topic's state under a root
(topic.chain.state), or a plain Kafka log directory as it lies (kafka_dir.log_directory).
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
"""An offset, a size in bytes or a wall clock time in milliseconds. Arithmetic in 64 bits relies on the bound."""
Timestamp = Annotated[int, Field(ge=-1, le=LONG_MAX)]
"""Milliseconds since the epoch, -1 for none."""
Int = Annotated[int, Field(ge=0, le=INT_MAX)]


class Frozen(BaseModel):
    """An immutable document whose fields are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(NamedTuple):
    """A segment's committed bytes.

    base_offset: as in Kafka. name: of its files, without a suffix. size: committed bytes of the .log.
    end_offset: behind its last batch. largest_timestamp, largest_timestamp_offset: -1 and the base offset where no
    batch has a timestamp; the offset is the last of the batch that brought it. modified_ms: wall clock of the last
    change, what Kafka takes from the file's mtime. aborted: the aborted transactions whose markers it holds, or held
    before it was compacted, in the order of these; what its .txnindex holds. first_timestamp: the largest of its first
    batch, -1 where that has none, None where nobody has looked. horizon_ms: the first delete horizon of what it still has
    to lose, -1 for none.
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


class LeaderEpoch(NamedTuple):
    """From start_offset on, batches were appended in this epoch."""

    epoch: Int
    start_offset: Long


class SegmentList(NamedTuple):
    """An immutable file with a partition's oldest segments and leader epochs.

    name: of the file, without its folder and suffix.
    segments, leader_epochs: how many of each the file holds.
    digest: what the file's bytes must have; empty in states of format 1.
    """

    name: str
    segments: Int
    leader_epochs: Int
    digest: str = ""


class PartitionState(Frozen):
    """One partition.

    first_dirty_offset: up to where it was compacted, null before the first clean.
    listed: the list file that holds the first of the segments and leader epochs, null while all stand in the document.
    producers: idempotent and transactional ones at the high watermark, as a .snapshot has them; open transactions with
    them. tombstones_end: below it compaction may have removed tombstones. Who has read less far, and keeps rows that they
    delete, cannot just read on.
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
        """The newest segment: it is never compacted."""
        return self.segments[-1] if self.segments else None

    @property
    def empty_end(self) -> Segment | None:
        """The newest segment where it waits for its first batch, as a broker leaves one; a new segment takes its place."""
        active = self.active_segment
        return active if active is not None and active.base_offset == self.high_watermark else None

    @property
    def last_stable_offset(self) -> int:
        """Up to where no transaction is open: readers of committed records are given nothing behind it."""
        begun = (each.txn_first_offset for each in self.producers if each.txn_first_offset >= 0)
        return min(self.high_watermark, max(self.log_start_offset, min(begun, default=self.high_watermark)))

    def end_offset(self, isolation: Isolation) -> int:
        """Behind the last record that a reader may be given."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark

    def aborted_transactions(self) -> Iterator[AbortedTransaction]:
        """Those of all segments, in the order of their markers."""
        for segment in self.segments:
            yield from segment.aborted

    @property
    def size(self) -> int:
        """Committed bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def largest_timestamp(self) -> int:
        """Of all segments, in milliseconds; -1 where no record has one."""
        return max((segment.largest_timestamp for segment in self.segments), default=-1)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch in which the record at an offset was appended, or would be; 0 before the first."""
        begun = bisect_right(self.leader_epochs, offset, key=lambda entry: entry.start_offset)
        return self.leader_epochs[begun - 1].epoch if begun else 0
