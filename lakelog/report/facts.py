"""Collects the content of the report as values. This module makes no HTML, and the modules with HTML decide nothing.

Each topic is read from one version of its state. This module also shows what retention, compaction and merging would do
next. For this, it calls the same functions as the jobs. The files are compared with the state: a segment is damaged if
its file is missing, or is shorter than the committed bytes. If a job meanwhile deletes files that this version still
names, the topic is read again.

A topic, partition or table that cannot be read becomes a finding, and everything else is still reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakelog.dead_letter_tables import database_dead_letters
from lakelog.report.dead_letter_counts import (
    DeadLetterKind,
    DeadLetters,
    count_dead_letters,
    count_dead_letters_of_no_topic,
)
from lakelog.report.exported_tables import StaleRows, count_stale_rows
from lakelog.report.topic_changes import TopicChanges, read_history
from storage_engine.cleaner.segment_merging import plan_merges
from storage_engine.cleaner.selection import CompactionPlan
from storage_engine.config import TopicConfig
from storage_engine.errors import LogError, UnknownTopicError
from storage_engine.log.filenames import LOG, data_folder, data_key
from storage_engine.log.holds import NO_HOLDS, Holds
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_retention import Deletion, RetentionPlan, decide_retention, newest_time
from storage_engine.quantities import counted, shown_duration, shown_number, shown_size
from storage_engine.storage import Storage
from storage_engine.storage.small_requests import results_of
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_compaction import plan_compaction
from storage_engine.topic.ingest_reports import IngestReport, read_report
from storage_engine.topic.readers.consumer_files import Consumers, read_consumers
from storage_engine.topic.topics import Topics

MANY_SEGMENTS = 20
"""If a partition has at least this many closed segments, and more than half of them are small, this is a finding."""
SMALL_SHARE = 20
"""A segment is small if it has fewer bytes than segment.bytes divided by this number."""
MOST_DAMAGED = 3
"""At most this many damaged segments of a partition are named. If a disk is lost, thousands of segments are damaged."""
_MOST_ATTEMPTS = 3
"""If a job deletes some of a topic's files while the topic is read, the topic is read again, at most this many
times."""


class SegmentFate(StrEnum):
    """What the next maintenance will do to a segment."""

    KEPT = "kept"
    CLEAN = "clean"
    DIRTY = "dirty"
    CLEANED_NEXT = "dirty, compacted next"
    ACTIVE = "active"
    DELETED_NEXT = "deleted next"


class WarningKind(StrEnum):
    """What an operator should know, the most serious first."""

    UNREADABLE = "not readable"
    DAMAGED = "damaged"
    STALE_ROWS = "stale rows"
    NOT_EXPORTED = "not exported"
    FUTURE = "time in the future"
    SMALL_SEGMENTS = "small segments"


@dataclass(frozen=True)
class ReportWarning:
    """A finding with its place and a description."""

    finding: WarningKind
    place: str
    text: str


@dataclass(frozen=True)
class SegmentFacts:
    """A segment.

    age_ms: the age of its newest record; negative if its timestamp is in the future.
    deletion: set if retention deletes the segment next.
    """

    segment: Segment
    fate: SegmentFate
    active: bool
    age_ms: int
    deletion: Deletion | None


@dataclass(frozen=True)
class PartitionFacts:
    """A partition, and what maintenance would do to it now.

    compaction: None if the topic is not compacted, or if compaction could not be decided.
    merges: runs of small segments to merge.
    """

    number: int
    state: PartitionState
    segments: tuple[SegmentFacts, ...]
    retention: RetentionPlan
    compaction: CompactionPlan | None
    merges: tuple[tuple[Segment, ...], ...]


@dataclass(frozen=True)
class TopicFacts:
    """A topic according to one version of its state.

    dead_letters: from the tables that could be read.
    all_dead_letters: whether all tables could be read.
    stale_rows: the stale rows of the tables to which the topic is exported.
    ingest: what the ingest that feeds the topic last reported; None if there is no such report, or if it cannot be read.
    database_dead_letters: the tables in databases that also have dead letters of the topic, which are not counted.
    """

    state: TopicState
    config: TopicConfig
    partitions: tuple[PartitionFacts, ...]
    history: TopicChanges
    dead_letters: tuple[DeadLetters, ...]
    all_dead_letters: bool
    warnings: tuple[ReportWarning, ...]
    stale_rows: tuple[StaleRows, ...] = ()
    database_dead_letters: tuple[str, ...] = ()
    ingest: IngestReport | None = None

    @property
    def name(self) -> str:
        return self.state.topic

    @property
    def segments(self) -> int:
        return sum(len(part.segments) for part in self.state.partitions)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.state.partitions)

    @property
    def appended(self) -> int:
        """The number of records ever appended: the sum of the high watermarks, which never decrease."""
        return sum(part.high_watermark for part in self.state.partitions)

    @property
    def dead(self) -> int:
        return sum(letters.count for letters in self.dead_letters)


@dataclass(frozen=True)
class RootFacts:
    """A root of topics at one time.

    topics: the topics that could be read.
    unreadable: the names of the other topics; each has a warning.
    deleted: deleted topics whose files are not deleted yet, with the number of segments.
    warnings: the most serious first.
    of_no_topic: dead letters whose topic is unknown; empty if only some topics were requested.
    """

    uri: str
    now_ms: int
    topics: tuple[TopicFacts, ...]
    unreadable: tuple[str, ...] = ()
    deleted: tuple[tuple[str, int], ...] = ()
    warnings: tuple[ReportWarning, ...] = ()
    of_no_topic: tuple[DeadLetters, ...] = ()

    @property
    def dead(self) -> int:
        """The number of dead letters, including those whose topic is unknown."""
        return sum(topic.dead for topic in self.topics) + sum(letters.count for letters in self.of_no_topic)

    @property
    def unread(self) -> tuple[ReportWarning, ...]:
        """The warnings about parts that could not be read. These parts are missing from the report."""
        return tuple(warned for warned in self.warnings if warned.finding is WarningKind.UNREADABLE)


def collect_root(topics: Topics, names: Sequence[str], now_ms: int) -> RootFacts:
    """Collect the facts about topics.

    Args:
        names: the topics; if empty, all topics of the root.
        now_ms: the time for ages and for the decisions of maintenance.

    Raises:
        UnknownTopicError: a named topic does not exist or is deleted.
        StorageError: the root cannot be listed.
    """
    read: list[TopicFacts] = []
    warnings: list[ReportWarning] = []
    unreadable: list[str] = []
    deleted: list[tuple[str, int]] = []
    for name in sorted(set(names)) or sorted(topics.names(with_deleted=True)):
        try:
            state = topics.state(name) if names else topics.chain(name).newest()
            if not state.deleted:
                topic = collect_topic(topics, name, now_ms)
                read.append(topic)
                warnings += topic.warnings
            elif state.dropped:
                deleted.append((name, len(state.dropped)))
        except LogError as error:
            if names and isinstance(error, UnknownTopicError):
                raise
            unreadable.append(name)
            warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(error)))
    of_no_topic: tuple[DeadLetters, ...] = ()
    try:
        of_no_topic = () if names else count_dead_letters_of_no_topic(topics.storage)
    except LogError as error:
        warnings.append(ReportWarning(WarningKind.UNREADABLE, "dead letters of no topic", str(error)))
    warnings.sort(key=lambda warned: list(WarningKind).index(warned.finding))
    return RootFacts(
        topics.storage.uri, now_ms, tuple(read), tuple(unreadable), tuple(deleted), tuple(warnings), of_no_topic
    )


def collect_topic(topics: Topics, name: str, now_ms: int) -> TopicFacts:
    """Collect the facts about one topic, deleted or not.

    Raises:
        LogError: its state cannot be read, or its settings are wrong.
    """
    chain = topics.chain(name)
    state = chain.newest()
    warnings = _held_against_files(topics.storage, state, range(len(state.partitions)))
    for _ in range(_MOST_ATTEMPTS):
        again = chain.newest()
        if not warnings or again.id == state.id:
            break
        state = again
        warnings = _held_against_files(topics.storage, again, range(len(again.partitions)))
    config = topics.config(state)
    consumers = read_consumers(topics.storage, state)
    partitions, found = _described(topics, state, consumers, range(len(state.partitions)), now_ms)
    warnings += found
    history = read_history(chain, state)
    if history.damaged:
        warnings.append(ReportWarning(WarningKind.DAMAGED, name, history.older))
    dead_letters: list[DeadLetters] = []
    all_dead_letters = True
    for kind in DeadLetterKind:
        try:
            dead_letters += count_dead_letters(topics.storage, name, kind)
        except LogError as error:
            all_dead_letters = False
            warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(error)))
    stale_rows: tuple[StaleRows, ...] = ()
    try:
        stale_rows = count_stale_rows(topics.storage, consumers.known)
    except LogError as error:
        warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(error)))
    ingest = read_report(topics.storage, state.writer.query)
    if ingest.error is not None:
        warnings.append(ReportWarning(WarningKind.UNREADABLE, name, str(ingest.error)))
    warnings += _of_exports(name, dead_letters, stale_rows)
    return TopicFacts(
        state, config, partitions, history, tuple(dead_letters), all_dead_letters, tuple(warnings), stale_rows,
        database_dead_letters(consumers.known), ingest.report,
    )  # fmt: skip


def collect_partitions(
    topics: Topics, state: TopicState, consumers: Consumers, numbers: Sequence[int], now_ms: int
) -> tuple[tuple[PartitionFacts, ...], list[ReportWarning]]:
    """Collect the facts about some partitions of a topic, and the warnings about these partitions.

    Args:
        state: the newest state of the topic. If a job deletes files that this state names, the warnings contain these
            files.
        numbers: the partitions.
        now_ms: the time for ages and for the decisions of maintenance, in milliseconds since 1970.

    Raises:
        ConfigError: the settings of the topic are wrong.
    """
    partitions, warnings = _described(topics, state, consumers, numbers, now_ms)
    return partitions, _held_against_files(topics.storage, state, numbers) + warnings


def _described(
    topics: Topics, state: TopicState, consumers: Consumers, numbers: Sequence[int], now_ms: int
) -> tuple[tuple[PartitionFacts, ...], list[ReportWarning]]:
    config = topics.config(state)

    def decide(number: int) -> CompactionPlan | LogError | None:
        """Some decisions read a batch."""
        try:
            return plan_compaction(topics.storage, state, number, config, now_ms, consumers.holds(number))
        except LogError as error:
            return error

    decided = results_of(topics.storage, decide, numbers) if config.compact else [None] * len(numbers)
    partitions, warnings = [], []
    for number, decision in zip(numbers, decided, strict=True):
        compaction, holds = None, consumers.holds(number)
        if isinstance(decision, LogError):
            warnings.append(ReportWarning(WarningKind.UNREADABLE, _place(state, number), str(decision)))
        else:
            compaction = decision
        facts = describe_partition(number, state.partitions[number], config, now_ms, compaction, holds)
        warnings += _noteworthy(_place(state, number), facts, config)
        partitions.append(facts)
    return tuple(partitions), warnings


def _of_exports(name: str, dead_letters: Sequence[DeadLetters], stale_rows: Sequence[StaleRows]) -> list[ReportWarning]:
    """Warnings about rows that are missing in the exported tables, or are out of date there."""
    found = [
        ReportWarning(
            WarningKind.STALE_ROWS, name,
            f"{counted(each.count, 'row')} of {each.table} {'is' if each.count == 1 else 'are'} stale: a newer record of"
            " the key cannot be decoded; the column _stale_since has the partition and the offset of that record.",
        )
        for each in stale_rows
    ]  # fmt: skip
    if open_letters := sum(each.count for each in dead_letters if each.asks_for_attention):
        found.append(
            ReportWarning(
                WarningKind.NOT_EXPORTED,
                name,
                f"{counted(open_letters, 'record')} did not become rows, but dead letters of the export. If the model is"
                " wrong, correct it, and run `export --replay`. The replay also marks a dead letter as superseded if a newer"
                " record has replaced or deleted the row.",
            )
        )  # fmt: skip
    return found


def describe_partition(
    number: int,
    part: PartitionState,
    config: TopicConfig,
    now_ms: int,
    compaction: CompactionPlan | None,
    holds: Holds = NO_HOLDS,
) -> PartitionFacts:
    """Describe a partition and the fates of its segments. Pure."""
    retention = decide_retention(part, config, now_ms, holds)
    deletions = {deletion.segment.name: deletion for deletion in retention.deletions}

    def fate(segment: Segment) -> SegmentFate:
        if segment.name in deletions:
            return SegmentFate.DELETED_NEXT
        if segment is part.active_segment:
            return SegmentFate.ACTIVE
        if not config.compact:
            return SegmentFate.KEPT
        if segment.end_offset <= (compaction.first_dirty_offset if compaction else part.first_dirty_offset or 0):
            return SegmentFate.CLEAN
        due = compaction and compaction.reason and segment.base_offset < compaction.first_uncleanable_offset
        return SegmentFate.CLEANED_NEXT if due else SegmentFate.DIRTY

    segments = tuple(
        SegmentFacts(
            segment, fate(segment), segment is part.active_segment, now_ms - newest_time(segment),
            deletions.get(segment.name),
        )
        for segment in part.segments
    )  # fmt: skip
    return PartitionFacts(number, part, segments, retention, compaction, plan_merges(part, config))


def _place(state: TopicState, number: int) -> str:
    return f"{state.topic}-{number}"


def _held_against_files(storage: Storage, state: TopicState, numbers: Sequence[int]) -> list[ReportWarning]:
    """Find segments of these partitions whose committed bytes are not complete."""

    def sizes_of(number: int) -> dict[str, int] | LogError:
        try:
            return {file.key: file.size for file in storage.list(data_folder(state.topic_id, number))}
        except LogError as error:
            return error

    warnings = []
    for number, sizes in zip(numbers, results_of(storage, sizes_of, numbers), strict=True):
        part = state.partitions[number]
        place = _place(state, number)
        if isinstance(sizes, LogError):
            warnings.append(ReportWarning(WarningKind.UNREADABLE, place, str(sizes)))
            continue
        damage = []
        for segment in part.segments:
            key = data_key(state.topic_id, number, segment.name, LOG)
            if key not in sizes:
                damage.append(f"{key} is missing. Restore this file from a backup.")
            elif sizes[key] < segment.size:
                found = f"only {shown_number(sizes[key])} of {shown_number(segment.size)} committed bytes"
                damage.append(f"{key} has {found}. Restore this file from a backup.")
        if len(damage) > MOST_DAMAGED:
            more = shown_number(len(damage) - MOST_DAMAGED)
            damage[MOST_DAMAGED:] = [
                f"{more} more of {shown_number(len(part.segments))} segments are missing or too short."
            ]
        warnings += [ReportWarning(WarningKind.DAMAGED, place, text) for text in damage]
    return warnings


def _noteworthy(place: str, facts: PartitionFacts, config: TopicConfig) -> list[ReportWarning]:
    warnings = []
    ahead = [-each.age_ms for each in facts.segments if each.age_ms < 0]
    if ahead:
        of_all = f"{counted(len(ahead), 'segment')} of {shown_number(len(facts.segments))}"
        text = f"In {of_all}, timestamps are up to {shown_duration(max(ahead) / 1000)} in the future."
        blocked = facts.retention.blocked
        if blocked is not None:
            text += f" The first of these segments prevents the deletion of {counted(len(blocked.overdue), 'later segment')}."
        warnings.append(ReportWarning(WarningKind.FUTURE, place, f"{text} Correct the producer's timestamps."))
    closed = [each.segment.size for each in facts.segments if not each.active]
    small = [each for each in closed if each * SMALL_SHARE < config.segment_bytes]
    if len(closed) >= MANY_SEGMENTS and 2 * len(small) > len(closed):
        text = (
            f"{shown_number(len(small))} of {shown_number(len(closed))} closed segments are smaller than a twentieth of"
            f" segment.bytes ({shown_size(config.segment_bytes)}). Maintenance merges neighbouring segments, but a merged"
            f" segment stays below segment.ms and below a tenth of the retention limits."
        )
        warnings.append(ReportWarning(WarningKind.SMALL_SEGMENTS, place, text))
    return warnings
