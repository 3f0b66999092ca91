"""A topic's state: the document that says what exists, and the only authority on it.

What the state does not name does not exist; of a file that it names, only the committed bytes exist. A state is an
immutable value: a change makes another one, which the state chain puts as the next version.

On storage it is JSON, one document per version, `id` and `parent` first so that a check reads few bytes. A partition's
newest segments and leader epochs stand in it; older ones stand in an immutable list file that it names, so that a
version stays small however long a topic lives. In memory a partition always has all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from storage_engine.config import INT_MAX, LONG_MAX

FORMAT = 1
"""Raised when a reader of today could misunderstand a document."""


Long = Annotated[int, Field(ge=0, le=LONG_MAX)]
"""An offset, a size in bytes or a wall clock time in milliseconds. Arithmetic in 64 bits relies on the bound."""
Timestamp = Annotated[int, Field(ge=-1, le=LONG_MAX)]
"""Milliseconds since the epoch, -1 for none."""
Int = Annotated[int, Field(ge=0, le=INT_MAX)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(NamedTuple):
    """A segment's committed bytes.

    base_offset: as in Kafka. name: of its files, without a suffix. size: committed bytes of the .log.
    end_offset: behind its last batch. largest_timestamp, largest_timestamp_offset: -1 and the base offset where no
    batch has a timestamp; the offset is the last of the batch that brought it. modified_ms: wall clock of the last
    change, what Kafka takes from the file's mtime.
    """

    base_offset: Long
    name: str
    size: Long
    end_offset: Long
    largest_timestamp: Timestamp
    largest_timestamp_offset: Long
    modified_ms: Long


class LeaderEpoch(NamedTuple):
    """From start_offset on, batches were appended in this epoch."""

    epoch: Int
    start_offset: Long


class SegmentList(NamedTuple):
    """An immutable file with a partition's oldest segments and leader epochs, so many of each."""

    name: str
    segments: Int
    leader_epochs: Int


class ListedSegments(_Frozen):
    """What a list file holds."""

    segments: tuple[Segment, ...]
    leader_epochs: tuple[LeaderEpoch, ...]


class PartitionState(_Frozen):
    """One partition.

    first_dirty_offset: up to where it was compacted, null before the first clean.
    listed: the list file that holds the first of the segments and leader epochs, null while all stand in the document.
    """

    log_start_offset: Long = 0
    high_watermark: Long = 0
    first_dirty_offset: Long | None = None
    segments: tuple[Segment, ...] = ()
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    listed: SegmentList | None = None

    @property
    def active_segment(self) -> Segment | None:
        """The newest segment: it is never compacted."""
        return self.segments[-1] if self.segments else None

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


class Writer(_Frozen):
    """Who feeds the topic: commits of an older epoch are refused.

    epoch: Kafka's leader epoch. query: the streaming query's id. host, pid: where it runs. since_ms: since when.
    """

    epoch: Int = 0
    query: str | None = None
    host: str = ""
    pid: int = 0
    since_ms: int = 0


class CommittedBatch(_Frozen):
    """The last micro-batch of a streaming query. offsets_hash: of Spark's offsets file, which it writes once."""

    batch_id: int
    offsets_hash: str


class DroppedFile(NamedTuple):
    """A segment that a version dropped, whose files wait for their deletion."""

    topic_id: str
    partition: Int
    name: str
    dropped_ms: Long


class TopicState(_Frozen):
    """One version of a topic's state.

    id: unique, also among versions of this number. parent: the id of the version before, empty in version 0.
    change: what this version did, for people. configs: overrides with Kafka's keys, as strings.
    """

    id: str
    parent: str
    version: Long
    format: int = FORMAT
    written_ms: int
    change: str
    topic: str
    topic_id: str
    deleted: bool = False
    configs: dict[str, str]
    writer: Writer = Writer()
    queries: dict[str, CommittedBatch] = {}
    partitions: tuple[PartitionState, ...]
    dropped: tuple[DroppedFile, ...] = ()

    def with_partitions(self, changed: dict[int, PartitionState]) -> TopicState:
        """This state with some partitions replaced."""
        partitions = tuple(changed.get(number, partition) for number, partition in enumerate(self.partitions))
        return self.model_copy(update={"partitions": partitions})
