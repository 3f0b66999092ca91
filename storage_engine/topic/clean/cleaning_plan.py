"""Plans the cleaning of a topic. The plan is a document that people can read, save, and apply exactly as it is.

A plan lists the segments that would be deleted, cleaned or merged. For each of these segments, the plan gives the rule
and the numbers that led to the decision. The plan also gives the reasons why other segments remain. A plan is made by
the same functions as the cleaning itself, in the same order: first retention, then compaction, then merging of the
segments that remain. Planning normally reads only the state. Some decisions on compaction also read the first batch of
a segment.

topic.clean.applying_plans applies a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import ValidationError

from storage_engine.cleaner.segment_merging import plan_merges
from storage_engine.cleaner.selection import CompactionBound, CompactionPlan, CompactionReason
from storage_engine.config import TOPIC_KEYS, TopicConfig, as_text
from storage_engine.errors import ConfigError, LogError
from storage_engine.log.partition_state import Frozen, Int, Long, PartitionState, Segment
from storage_engine.log.segment_retention import RetentionPlan, decide_retention, newest_time
from storage_engine.quantities import counted, shown_number, shown_size
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_compaction import plan_compaction
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.topics import Topics

SMALL_NEIGHBOURS = "small neighbours"
"""The name of the rule that selects segments for merging."""

_DECIDING_KEYS = (
    "cleanup.policy", "retention.ms", "retention.bytes", "retention.respect.consumers", "consumer.max.hold.ms",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "cleaner.clean.expired.horizons",
    "delete.retention.ms", "segment.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes",
)  # fmt: skip
"""The settings on which the decisions of a plan depend."""


class Work(StrEnum):
    """The kinds of cleaning, in the order in which they are decided."""

    RETENTION = "retention"
    COMPACTION = "compaction"
    MERGING = "merging"


ALL_WORK = frozenset(Work)
"""The kinds of cleaning that the maintenance job does."""


class Action(StrEnum):
    """What a plan does to a segment."""

    DELETE = "delete"
    CLEAN = "clean"
    MERGE = "merge"


class SegmentStep(Frozen):
    """One segment that a plan changes, and the reason.

    rule: the rule that selects the segment: a rule of log.segment_retention or cleaner.selection, or "small
        neighbours".
    found, limit: the numbers that were compared.
    into: the base offset of the merged segment that will contain this segment; None for other actions.
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
    """A reason that prevents the deletion or the cleaning of segments.

    kind: "future timestamp", "consumer", "min.compaction.lag.ms", "open transaction", "active segment" or
        "min.cleanable.dirty.ratio".
    from_offset, segments, bytes: the first base offset, the number and the size of the segments that are kept.
    found, limit: the numbers that were compared.
    until_ms: the time after which the reason no longer applies; None if this time is not known.
    consumers: the registered consumers that have not read the segments.
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
    """The plan for one partition: the partition's state before and after.

    newest_segment, newest_bytes: the name and size of the active segment; empty if there is no active segment. The plan
        does not include records that are appended later.
    exact: whether bytes_after and segments_after are exact. If compaction is planned, both numbers are upper limits.
    steps: the segments that are changed.
    blocks: the reasons why other segments are not changed.
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
    """The plan for the segments of one topic.

    version: the version of the state that was read.
    now_ms: the time that was used for all decisions.
    work: the kinds of cleaning that the plan covers.
    force: whether partitions are compacted even if compaction is not due.
    settings: the settings that were used for the decisions: Kafka's keys and their values.
    """

    topic: str
    topic_id: str
    version: Long
    now_ms: Long
    work: tuple[Work, ...]
    force: bool
    settings: dict[str, str]
    partitions: tuple[PartitionPlan, ...]


class Plan(Frozen):
    """The document of a plan.

    root: the path or URI of the root. It is only information for people.
    """

    kind: Literal["lakelog plan"] = "lakelog plan"
    format: Literal[1] = 1
    root: str
    topics: tuple[TopicPlan, ...]


def plan_topics(
    topics: Topics,
    states: Iterable[TopicState],
    now_ms: int,
    work: Collection[Work] = ALL_WORK,
    *,
    force: bool = False,
    failures: list[LogError] | None = None,
    begin_partition: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Plan the cleaning of several topics.

    Args:
        failures: receives the errors of topics that cannot be planned. The plan does not contain these topics. If
            `failures` is None, the errors are raised.
        begin_partition: as in plan_topic.
    """
    planned = []
    for state in states:
        try:
            planned.append(plan_topic(topics, state, now_ms, work, force=force, begin_partition=begin_partition))
        except LogError as error:
            if failures is None:
                raise
            failures.append(error)
    return Plan(root=topics.storage.uri, topics=tuple(planned))


def plan_topic(
    topics: Topics,
    state: TopicState,
    now_ms: int,
    work: Collection[Work] = ALL_WORK,
    *,
    force: bool = False,
    begin_partition: Callable[[int], None] = lambda _: None,
) -> TopicPlan:
    """Plan the cleaning of one topic.

    Args:
        now_ms: the time for all decisions.
        work: the kinds of cleaning.
        force: compact partitions even if compaction is not due.
        begin_partition: called with the number of each partition before its plan is made. An exception ends the work.

    Raises:
        ConfigError: the topic's settings are wrong.
        StorageError: a decision required to read a segment, and the read failed.
    """
    config = topics.config(state)
    consumers = read_consumers(topics.storage, state)
    retentions = [
        decide_retention(part, config, now_ms, consumers.holds(number)) if Work.RETENTION in work else None
        for number, part in enumerate(state.partitions)
    ]
    left = state.with_partitions(
        {
            number: _after_retention(part, retention)
            for number, (part, retention) in enumerate(zip(state.partitions, retentions, strict=True))
            if retention and retention.deletions
        }
    )
    partitions = []
    for number, (part, retention) in enumerate(zip(state.partitions, retentions, strict=True)):
        begin_partition(number)
        cleaning = None
        if Work.COMPACTION in work and config.compact:
            cleaning = plan_compaction(
                topics.storage, left, number, config, now_ms, consumers.holds(number), force=force
            )
        runs = plan_merges(left.partitions[number], config) if Work.MERGING in work else ()
        partitions.append(partition_plan(number, part, config, now_ms, retention, cleaning, runs))
    return TopicPlan(
        topic=state.topic,
        topic_id=state.topic_id,
        version=state.version,
        now_ms=now_ms,
        work=tuple(each for each in Work if each in work),
        force=force,
        settings=deciding_settings(config),
        partitions=tuple(partitions),
    )


def _after_retention(part: PartitionState, retention: RetentionPlan | None) -> PartitionState:
    """The partition after retention."""
    if retention is None or not retention.deletions:
        return part
    left = {"segments": part.segments[len(retention.deletions) :], "log_start_offset": retention.log_start_offset}
    return part.model_copy(update=left)


def partition_plan(
    number: int,
    part: PartitionState,
    config: TopicConfig,
    now_ms: int,
    retention: RetentionPlan | None,
    cleaning: CompactionPlan | None = None,
    runs: Sequence[Sequence[Segment]] = (),
) -> PartitionPlan:
    """The plan of one partition.

    Args:
        retention: the decision on retention; None if it was not decided.
        cleaning, runs: the decisions on compaction and merging, for the partition after retention.
    """
    return _Decided(part, _after_retention(part, retention), retention, cleaning, runs, config, now_ms).plan(number)


@dataclass(frozen=True)
class _Decided:
    """The decisions on one partition, from which its plan is made.

    left: the partition after retention.
    """

    part: PartitionState
    left: PartitionState
    retention: RetentionPlan | None
    cleaning: CompactionPlan | None
    runs: Sequence[Sequence[Segment]]
    config: TopicConfig
    now_ms: int

    def plan(self, number: int) -> PartitionPlan:
        part, left, cleaning = self.part, self.left, self.cleaning
        newest = part.active_segment
        return PartitionPlan(
            partition=number,
            high_watermark=part.high_watermark,
            newest_segment=newest.name if newest else "",
            newest_bytes=newest.size if newest else 0,
            log_start_offset=part.log_start_offset,
            log_start_offset_after=left.log_start_offset,
            first_dirty_offset=cleaning.first_dirty_offset if cleaning else None,
            first_uncleanable_offset=cleaning.first_uncleanable_offset if cleaning else None,
            bytes_before=part.size,
            bytes_after=left.size,
            segments_before=len(part.segments),
            segments_after=len(left.segments) - sum(len(run) - 1 for run in self.runs),
            exact=cleaning is None or cleaning.reason is None,
            steps=(*self._deletions(), *self._cleaned(), *self._merged()),
            blocks=(*self._deletion_blocks(), *self._cleaning_blocks()),
        )

    def _deletions(self) -> Iterator[SegmentStep]:
        for each in self.retention.deletions if self.retention else ():
            yield _step(each.segment, Action.DELETE, each.rule, each.found, each.limit)

    def _cleaned(self) -> Iterator[SegmentStep]:
        cleaning, config = self.cleaning, self.config
        if cleaning is None or cleaning.reason is None:
            return
        found, limit = cleaning.dirty_ratio, config.min_cleanable_dirty_ratio
        if cleaning.oldest_ms is not None:
            found, limit = self.now_ms - cleaning.oldest_ms, config.max_compaction_lag_ms
        elif cleaning.reason is CompactionReason.EXPIRED_HORIZONS:
            first_ms = min(segment.horizon_ms for segment in cleaning.segments if segment.horizon_ms >= 0)
            found, limit = self.now_ms - first_ms, 0
        for segment in cleaning.segments:
            yield _step(segment, Action.CLEAN, cleaning.reason, found, limit)

    def _merged(self) -> Iterator[SegmentStep]:
        for run in self.runs:
            size = sum(segment.size for segment in run)
            for segment in run:
                step = _step(segment, Action.MERGE, SMALL_NEIGHBOURS, size, self.config.segment_bytes)
                yield step.model_copy(update={"into": run[0].base_offset})

    def _deletion_blocks(self) -> Iterator[Block]:
        blocked = self.retention.blocked if self.retention else None
        if blocked:
            until_ms = newest_time(blocked.segment) + self.config.retention_ms
            yield _block("future timestamp", blocked.overdue, -blocked.ahead_ms, self.config.retention_ms, until_ms)
        held = self.retention.held if self.retention else None
        if held:
            segments = [deletion.segment for deletion in held.deletions]
            block = _block("consumer", segments, held.consumers.offset, segments[0].end_offset, held.until_ms)
            yield block.model_copy(update={"consumers": tuple(sorted(held.consumers.positions))})

    def _cleaning_blocks(self) -> Iterator[Block]:
        cleaning, config, active = self.cleaning, self.config, self.left.active_segment
        if cleaning is None or active is None:
            return
        if cleaning.reason is None and cleaning.dirty_bytes:
            dirty = [each for each in cleaning.segments if each.end_offset > cleaning.first_dirty_offset]
            yield _block("min.cleanable.dirty.ratio", dirty, cleaning.dirty_ratio, config.min_cleanable_dirty_ratio)
        waiting = [each for each in self.left.segments[:-1] if each.base_offset >= cleaning.first_uncleanable_offset]
        if waiting and cleaning.bound is CompactionBound.MIN_COMPACTION_LAG:
            newest_ms = newest_time(waiting[0])
            lag_ms = config.min_compaction_lag_ms
            yield _block(cleaning.bound, waiting, self.now_ms - newest_ms, lag_ms, newest_ms + lag_ms)
        elif waiting:
            yield _block(cleaning.bound, waiting, self.left.last_stable_offset, self.left.high_watermark)
        if active.size:
            yield _block(CompactionBound.ACTIVE_SEGMENT, [active], active.size, config.segment_bytes)


def _step(segment: Segment, action: Action, rule: str, found: float, limit: float) -> SegmentStep:
    return SegmentStep(
        base_offset=segment.base_offset,
        name=segment.name,
        bytes=segment.size,
        action=action,
        rule=str(rule),
        found=found,
        limit=limit,
    )


def _block(kind: str, segments: Sequence[Segment], found: float, limit: float, until_ms: int | None = None) -> Block:
    return Block(
        kind=str(kind),
        from_offset=segments[0].base_offset,
        segments=len(segments),
        bytes=sum(segment.size for segment in segments),
        found=found,
        limit=limit,
        until_ms=until_ms,
    )


def deciding_settings(config: TopicConfig) -> dict[str, str]:
    """The settings on which the decisions of a plan depend, by Kafka's key."""
    return {key: as_text(getattr(config, TOPIC_KEYS[key].name)) for key in _DECIDING_KEYS}


def step_summary(steps: Iterable[SegmentStep]) -> str:
    """A text with the number of segments and bytes for each action."""
    parts = []
    by_action = list(steps)
    for action in Action:
        own = [step for step in by_action if step.action is action]
        into = f" into {shown_number(len({step.into for step in own}))}" if action is Action.MERGE else ""
        if own:
            parts.append(
                f"{action} {counted(len(own), 'segment')}{into}, {shown_size(sum(step.bytes for step in own))}"
            )
    return "; ".join(parts) or "nothing"


def encode_plan(plan: Plan) -> bytes:
    """The document as JSON, one line."""
    return plan.model_dump_json().encode() + b"\n"


def decode_plan(data: bytes, file: str) -> Plan:
    """The plan in a document.

    Args:
        file: the name of the file, for errors.

    Raises:
        ConfigError: the document is not a plan.
    """
    try:
        return Plan.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"])) or "the document"
        problem = f"expected a plan that `lakelog plan --save` wrote; found at {at}: {first['msg']}"
        raise ConfigError(file, problem, "Save the plan again.") from error
