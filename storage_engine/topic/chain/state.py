"""A topic's state: the document that says what exists, and the only authority on it.

A file that the state does not name does not exist; of a file that the state names, only the committed bytes exist. A
state is an immutable value: a change makes a new state, which the state chain puts as the next version.

On storage a state is JSON, one document per version, `id` and `parent` first so that a check reads few bytes. The
document contains a partition's newest segments and leader epochs. Older ones are in an immutable list file that the
document names, so that a version stays small however long a topic lives. In memory a partition always has all of them.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from storage_engine.config import LONG_MAX
from storage_engine.log.partition_state import Frozen, Int, LeaderEpoch, Long, PartitionState, Segment
from storage_engine.topic.chain.documents import FORMAT

RESTORED = "restored from version"
"""How `change` begins in a version that `verify --repair` has made."""
Position = Annotated[int, Field(ge=-LONG_MAX - 1, le=LONG_MAX)]
"""Where a row stands in a partition of its source."""


class ListedSegments(Frozen):
    """What a list file holds."""

    format: int = FORMAT
    segments: tuple[Segment, ...]
    leader_epochs: tuple[LeaderEpoch, ...]


class Writer(Frozen):
    """The writer that feeds the topic: commits of an older epoch are refused.

    epoch: Kafka's leader epoch. query: the streaming query's id. host, pid: where it runs. since_ms: since when.
    source: whose positions it brings along, null where it brings none. reads: what of the source.
    """

    epoch: Int = 0
    query: str | None = None
    host: str = ""
    pid: int = 0
    since_ms: int = 0
    source: str | None = None
    reads: str = ""


class CommittedBatch(Frozen):
    """The last micro-batch of a streaming query.

    batch_id: -1 where nothing of its checkpoint counts yet. offsets_hash: of Spark's offsets file, which it writes once.
    lineage: changes when the checkpoint goes back, so that batches of one number before and after it can be told apart.
    """

    batch_id: int
    offsets_hash: str
    lineage: str = ""


class DroppedFile(NamedTuple):
    """A segment that a version dropped, whose files wait for their deletion."""

    topic_id: str
    partition: Int
    name: str
    dropped_ms: Long


class Removal(Frozen):
    """Records that a version removed permanently from a partition.

    by: the cause, in words. from_offset, to_offset: the offsets concerned, to_offset excluded. segments, bytes: how
    many fewer there are. records: how many were deleted, by cause, if they were counted. unread_by: the registered
    consumers that had not read all of them.
    """

    partition: Int
    by: str
    from_offset: Long
    to_offset: Long
    segments: int
    bytes: int
    records: dict[str, int] = Field(default_factory=dict)
    unread_by: tuple[str, ...] = ()


class ChangeNote(NamedTuple):
    """What a version's history says of it: what it did, in a line for people, and what it removed for good."""

    change: str
    removed: tuple[Removal, ...] = ()


class FormerTopic(NamedTuple):
    """A deleted topic whose name was taken up again. until: the version that said it was deleted, or a later one."""

    topic_id: str
    until: Long


class RecordedField(Frozen):
    """A field of a model. required: it may not be missing. nullable: it may be null."""

    type: str
    required: bool
    nullable: bool


class RecordedModel(Frozen):
    """The fields of the values, as the jobs last knew them; nothing here reads values.

    fingerprint: the same for the same fields. fields: by path, such as `legs[].distance`.
    """

    name: str
    fingerprint: str
    fields: dict[str, RecordedField]


class TopicState(Frozen):
    """One version of a topic's state.

    id: unique, also among versions of this number. parent: the id of the version before, empty in version 0.
    change: what this version did, for people. configs: overrides with Kafka's keys, as strings.
    positions: by name of a source and by its partition, the highest position that is committed. sweep_floor: no version
    names a new file of a plan that was made on an earlier version than this (topic.clean.sweeping). former: topics of this
    name that were deleted, and may still have files that no version named. removed: what this version took for good,
    and none before it. model: what the values were last taken for, null where no job knew a model.
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
    queries: dict[str, CommittedBatch] = Field(default_factory=dict)
    positions: dict[str, dict[str, Position]] = Field(default_factory=dict)
    partitions: tuple[PartitionState, ...]
    dropped: tuple[DroppedFile, ...] = ()
    sweep_floor: Long = 0
    former: tuple[FormerTopic, ...] = ()
    removed: tuple[Removal, ...] = ()
    model: RecordedModel | None = None

    def is_below_sweep_floor(self, planned_at: int) -> bool:
        """Whether new files of a plan made on this version may not be named any more: they may have been swept."""
        return planned_at < self.sweep_floor

    def with_partitions(self, changed: dict[int, PartitionState]) -> TopicState:
        """This state with some partitions replaced."""
        partitions = tuple(changed.get(number, partition) for number, partition in enumerate(self.partitions))
        return self.model_copy(update={"partitions": partitions})
