"""What cleaning would do to a topic, decided beforehand: a document that people read, save, and have applied as it is.

A plan tells per partition and segment what would be deleted, cleaned or merged, by which rule and number, and what keeps the
rest: it is decided by the functions that the work itself asks, in the order of the work. Retention moves the start of
the log, compaction is decided on what retention leaves, merging on what both leave. Deciding reads the state alone.

**A plan is applied by deciding again**, on the log as the plan saw it, at the time of the plan. What was appended since is
looked past. Where the answer is another one, a segment rolled into the range, was swapped or dropped, a setting was
altered, a consumer read on, the topic is another one, the plan is refused: what was printed goes, or nothing.
Segments are compared by name, which no two ever share.

    check_current        before anything is changed: refuses the whole plan
    retain_topic         with planned=: the check once more, in the commit that drops the segments
    cleaning_tasks_of    the tasks of the compactions, after retention, of a state in which they still are as planned
    merge_tasks_of       the tasks of the merges, likewise

What is swapped between these checks and the commit of new segments is found out there (topic.swapping).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from storage_engine.cleaner.cleaner import CleaningTask
from storage_engine.cleaner.merging import MergeTask
from storage_engine.log.partition_state import Frozen, Int, Long, PartitionState
from storage_engine.topic.state import TopicState
from storage_engine.topic.topics import Topics


class Work(StrEnum):
    """What is decided on, in this order."""

    RETENTION = "retention"
    COMPACTION = "compaction"
    MERGING = "merging"


ALL_WORK = frozenset(Work)
"""What the maintenance job does to segments."""


class Action(StrEnum):
    """What becomes of a segment."""

    DELETE = "delete"
    CLEAN = "clean"
    MERGE = "merge"


class SegmentStep(Frozen):
    """What becomes of a segment, and why.

    rule: of log.retention or cleaner.selection, or "small neighbours". found, limit: the numbers that were compared. into: the
    base offset of the merged segment that it becomes part of.
    """

    base_offset: Long
    name: str
    bytes: Long
    action: Action
    rule: str
    found: int | float
    limit: int | float
    into: Long | None = None


class Block(Frozen):
    """What keeps segments from going or from being cleaned.

    kind: "future timestamp", "consumer", "min.compaction.lag.ms", "open transaction", "active segment" or
    "min.cleanable.dirty.ratio". from_offset, segments, bytes: what it keeps. found, limit: the numbers that were compared.
    until_ms: when it ends by itself, None where that is not known. consumers: who has not read it.
    """

    kind: str
    from_offset: Long
    segments: Int
    bytes: Long
    found: int | float
    limit: int | float
    until_ms: int | None = None
    consumers: tuple[str, ...] = ()


class PartitionPlan(Frozen):
    """A partition before and after.

    newest_segment, newest_bytes: the active segment, empty where there is none; whatever came later is looked past when the
    plan is applied. exact: whether bytes and segments after are known; where something is cleaned they are at most so many.
    """

    partition: Int
    high_watermark: Long
    newest_segment: str
    newest_bytes: Long
    log_start_offset: Long
    log_start_offset_after: Long
    first_dirty_offset: Long | None = None
    first_uncleanable_offset: Long | None = None
    bytes_before: Long
    bytes_after: Long
    segments_before: Int
    segments_after: Int
    exact: bool
    steps: tuple[SegmentStep, ...] = ()
    blocks: tuple[Block, ...] = ()


class TopicPlan(Frozen):
    """What would become of a topic's segments.

    version: of the state that was looked at. now_ms: the time by which it was decided. force: whether compaction was asked
    for, due or not. settings: the values by which it was decided, with Kafka's keys.
    """

    topic: str
    topic_id: str
    version: Long
    now_ms: Long
    work: frozenset[Work]
    force: bool
    settings: dict[str, str]
    partitions: tuple[PartitionPlan, ...]


class Plan(Frozen):
    """The document. root: where the topics lay, for people."""

    kind: Literal["lakelog plan"] = "lakelog plan"
    format: Literal[1] = 1
    root: str
    topics: tuple[TopicPlan, ...]


def plan_topics(
    topics: Topics, names: Iterable[str], now_ms: int, work: Collection[Work] = ALL_WORK, *, force: bool = False
) -> Plan:
    """What would become of several topics; raises as plan_topic."""
    raise NotImplementedError


def plan_topic(
    topics: Topics, state: TopicState, now_ms: int, work: Collection[Work] = ALL_WORK, *, force: bool = False
) -> TopicPlan:
    """What would become of a topic's segments at a time.

    Raises:
        ConfigError: the topic's settings are wrong.
        StorageError: a segment had to be opened to decide, and could not be.
    """
    raise NotImplementedError


def decisions(plan: PartitionPlan) -> tuple[object, ...]:
    """What of a partition's plan would be done: two plans with equal ones do the same."""
    raise NotImplementedError


def check_current(plan: Plan, topics: Topics) -> None:
    """Check that a plan can be applied as it is; nothing is changed.

    Raises:
        StalePlanError: the log has moved on; names the topic, the partition and the difference.
    """
    raise NotImplementedError


def cleaning_tasks_of(plan: TopicPlan, topics: Topics, state: TopicState) -> list[CleaningTask]:
    """The compactions of a plan, to be run as those of topic.compaction.cleaning_tasks.

    Args:
        state: after retention, where the plan has any.

    Raises:
        StalePlanError: the log has moved on.
    """
    raise NotImplementedError


def merge_tasks_of(plan: TopicPlan, topics: Topics, state: TopicState) -> list[MergeTask]:
    """The merges of a plan, to be run as those of topic.merging.merge_tasks; otherwise as cleaning_tasks_of."""
    raise NotImplementedError


def encode_plan(plan: Plan) -> bytes:
    """The document as JSON, one line."""
    raise NotImplementedError


def decode_plan(data: bytes, file: str) -> Plan:
    """
    Args:
        file: where it came from, for the error.

    Raises:
        ConfigError: it holds no plan.
    """
    raise NotImplementedError
