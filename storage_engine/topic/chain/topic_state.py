"""Defines a topic's state: the document that says which partitions, segments and positions the topic has.

Only the state decides which files are part of the topic. A file that the state does not name is not part of the
topic. If the state names a file, only the committed bytes of this file are part of the topic. A state is an immutable
value: a change makes a new state, which the state chain (topic.chain.state_chain) stores as the next version.

On storage each version is one JSON document. The document begins with `id` and `parent`, so a check of these two
fields reads few bytes. The document contains the newest segments and leader epochs of each partition. Older segments
and epochs are in an immutable list file that the document names (topic.chain.segment_lists). So a version stays small
even if a topic has many segments. In memory a partition always has all its segments and leader epochs.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from storage_engine.config import LONG_MAX
from storage_engine.log.partition_state import Frozen, Int, LeaderEpoch, Long, PartitionState, Segment
from storage_engine.topic.chain.committing_process import CommittingProcess
from storage_engine.topic.chain.documents import FORMAT

RESTORED = "restored from version"
"""The beginning of `change` in a version that `verify --repair` has made."""
Position = Annotated[int, Field(ge=-LONG_MAX - 1, le=LONG_MAX)]
"""The position of a row in a partition of its source."""


class ListedSegments(Frozen):
    """The content of a list file."""

    format: int = FORMAT
    segments: tuple[Segment, ...]
    leader_epochs: tuple[LeaderEpoch, ...]


class Writer(Frozen):
    """The writer that feeds the topic. Commits of a writer with an older epoch are refused.

    epoch: Kafka's leader epoch.
    query: the id of the streaming query.
    host, pid: the machine and the process in which the writer runs.
    since_ms: the time at which this writer took over the topic.
    source: the name of the source whose positions the writer commits; null if the writer commits no positions.
    reads: the part of the source that the writer reads.
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

    batch_id: -1 if no batch of the query's checkpoint is committed yet.
    offsets_hash: the hash of the batch's offsets file, which Spark writes once.
    lineage: a text that changes when the checkpoint is rolled back, because the same batch numbers are then used a
        second time.
    sink_ms: the time at which a sink committed the batch (topic.append.sink_queries); -1 if an ingest committed it.
    """

    batch_id: int
    offsets_hash: str
    lineage: str = ""
    sink_ms: int = -1


class DroppedFile(NamedTuple):
    """A segment that the state no longer contains, but whose files are not deleted yet."""

    topic_id: str
    partition: Int
    name: str
    dropped_ms: Long


class Removal(Frozen):
    """Records that a version removed permanently from a partition.

    by: the cause, in words.
    from_offset, to_offset: the offsets concerned, to_offset excluded.
    segments, bytes: the number of segments and bytes that were removed.
    records: the number of deleted records by cause, if they were counted.
    unread_by: the registered consumers that had not read all of these records.
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
    """The entry of a version in the topic's history.

    change: what the version did, in one line for people.
    removed: the records that the version removed permanently.
    """

    change: str
    removed: tuple[Removal, ...] = ()


class FormerTopic(NamedTuple):
    """A deleted topic whose name is used again.

    until: the version that deleted the topic, or a later version.
    """

    topic_id: str
    until: Long


class RecordedField(Frozen):
    """A field of a model.

    required: the field must be present.
    nullable: the field may be null.
    """

    type: str
    required: bool
    nullable: bool


class RecordedModel(Frozen):
    """The fields of a topic's values in the model that a job last used. The storage engine itself reads no values.

    fingerprint: equal for equal fields.
    fields: by path, for example `legs[].distance`.
    """

    name: str
    fingerprint: str
    fields: dict[str, RecordedField]


class TopicState(Frozen):
    """One version of a topic's state.

    id: unique, even among versions with the same number.
    parent: the id of the predecessor; empty in version 0.
    change: what this version did, in one line for people.
    committed_by: the process that committed this version; null if an older Lakelog committed it.
    configs: the topic's overrides, by Kafka's key, as strings.
    queries: the last micro-batch of each streaming query that feeds the topic.
    sinks_expired_ms: the sink_ms of the newest entry that was deleted from `queries`; -1 if no entry was deleted.
    positions: the highest committed positions, by the name of the source and by source partition.
    dropped: segments whose files are not deleted yet.
    sweep_floor: no later version names a new file whose plan is older than this version (topic.clean.sweeping).
    former: deleted topics of the same name, which may still have files that no version named.
    removed: the records that this version removed permanently. Earlier versions record their own removals.
    model: the model of the values that a job last used; null if no job had a model.
    """

    id: str
    parent: str
    version: Long
    format: int = FORMAT
    written_ms: int
    change: str
    committed_by: CommittingProcess | None = None
    topic: str
    topic_id: str
    deleted: bool = False
    configs: dict[str, str]
    writer: Writer = Writer()
    queries: dict[str, CommittedBatch] = Field(default_factory=dict)
    sinks_expired_ms: int = -1
    positions: dict[str, dict[str, Position]] = Field(default_factory=dict)
    partitions: tuple[PartitionState, ...]
    dropped: tuple[DroppedFile, ...] = ()
    sweep_floor: Long = 0
    former: tuple[FormerTopic, ...] = ()
    removed: tuple[Removal, ...] = ()
    model: RecordedModel | None = None

    def is_below_sweep_floor(self, planned_at: int) -> bool:
        """Whether a plan was made on a version before the sweep floor. Its new files are perhaps deleted already, so no
        state must name them."""
        return planned_at < self.sweep_floor

    def with_partitions(self, changed: dict[int, PartitionState]) -> TopicState:
        """This state with some partitions replaced."""
        partitions = tuple(changed.get(number, partition) for number, partition in enumerate(self.partitions))
        return self.model_copy(update={"partitions": partitions})
