"""Defines the figures of a root: everything that monitoring shows, as immutable values.

Times are milliseconds since 1970. A figure is None if it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakelog.metrics.change_kinds import RecentChanges
from lakelog.metrics.consumer_status import ConsumerStatus
from lakelog.report.dead_letter_counts import DeadLetters
from lakelog.report.exported_tables import StaleRows
from storage_engine.topic.ingest_reports import NO_REPORT, FoundReport


@dataclass(frozen=True)
class PartitionFigures:
    """A partition.

    oldest_offset, current_offset: the log start offset, and the high watermark.
    segments, bytes: the number of segments, and their size.
    dirty_bytes: the size of the segments that were not compacted yet; None if the topic is not compacted.
    """

    number: int
    oldest_offset: int
    current_offset: int
    segments: int
    bytes: int
    dirty_bytes: int | None


@dataclass(frozen=True)
class PartitionLag:
    """How far a consumer has read one partition.

    position: the offset after the last record that was read; None if the consumer has no position in the partition.
    lag: the high watermark minus the position, as in Kafka. Without a position, the high watermark minus the log start
    offset. 0 if the consumer has read records of a newer state.
    unread: the number of offsets that the consumer can still read: without records that were deleted, and without
        records at and after an open transaction. 0 if none of these offsets has a record.
    oldest_unread_ms: the timestamp of the first unread record; None if there is no such record, or if its timestamp does
        not tell its age.
    """

    partition: int
    position: int | None
    lag: int
    unread: int
    oldest_unread_ms: int | None


@dataclass(frozen=True)
class ConsumerFigures:
    """A consumer of a topic: a group, an export or a stream.

    kind: as in storage_engine.topic.readers.consumer_files.
    updated_ms: when the positions last changed.
    member, host: the program that reads for a group; empty if no program reads for it.
    """

    name: str
    kind: str
    partitions: tuple[PartitionLag, ...]
    status: ConsumerStatus
    updated_ms: int
    member: str = ""
    host: str = ""

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.partitions)

    @property
    def unread(self) -> int:
        return sum(each.unread for each in self.partitions)

    @property
    def oldest_unread_ms(self) -> int | None:
        known = (each.oldest_unread_ms for each in self.partitions if each.oldest_unread_ms is not None)
        return min(known, default=None)


@dataclass(frozen=True)
class TopicFigures:
    """A topic whose state can be read.

    version: the newest version of the state. Versions are counted from 0, and each commit is a version.
    written_ms: when this version was written.
    versions_kept: the number of versions in storage.
    has_ingest: whether an ingest has taken over the topic.
    epoch: the writer's epoch, which each take-over increases.
    ingest: what the ingest last reported about its stream, or the reason why its report cannot be read.
    damaged_consumers: the files of consumers that cannot be read, with their errors.
    waiting_segments: dropped segments whose files are not deleted yet.
    due_segments: segments that the next maintenance would drop, and dropped segments whose files it would delete.
    due_since_ms: when the first of them became due; None if there are none.
    view_behind: the number of offsets that log/ does not show yet; None if the root has no view.
    clock_skew_ms: how far the writer's clock was ahead of the storage's clock at the newest version.
    lag_error: why the lag in seconds of some consumer is unknown; empty if nothing failed.
    dead_letters, stale_rows: None if they were not counted.
    """

    name: str
    version: int
    written_ms: int
    versions_kept: int
    has_ingest: bool
    epoch: int
    partitions: tuple[PartitionFigures, ...]
    consumers: tuple[ConsumerFigures, ...]
    damaged_consumers: tuple[str, ...]
    changes: RecentChanges
    waiting_segments: int
    due_segments: int
    due_since_ms: int | None
    view_behind: int | None
    clock_skew_ms: int | None
    lag_error: str = ""
    dead_letters: tuple[DeadLetters, ...] | None = None
    stale_rows: tuple[StaleRows, ...] | None = None
    ingest: FoundReport = NO_REPORT


@dataclass(frozen=True)
class RootFigures:
    """A root at one moment.

    cluster: the name of the root on boards.
    topics: the topics that can be read, in order.
    unreadable: the other topics, with the reason.
    table_errors: why some tables could not be counted.
    problem: why the root itself cannot be read; empty if it can be read.
    reports_error: why the reports of ingests cannot be listed; empty if they can be listed.
    free_bytes, capacity_bytes: of the file system; None if the storage does not report them.
    view_settled_ms: when the offsets that log/ shows last changed.
    """

    cluster: str
    now_ms: int
    topics: tuple[TopicFigures, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    table_errors: tuple[str, ...] = ()
    problem: str = ""
    reports_error: str = ""
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    view_settled_ms: int | None = None


def lag_seconds(root: RootFigures, unread: int, oldest_unread_ms: int | None) -> float | None:
    """The age of the oldest unread record; 0 if all is read, None if it is not known."""
    if not unread:
        return 0.0
    return None if oldest_unread_ms is None else max(0.0, (root.now_ms - oldest_unread_ms) / 1000)
