"""Applies a cleaning plan (topic.clean.cleaning_plan) exactly as it is, or refuses it.

To apply a plan, Lakelog decides again which segments to delete, clean or merge. Lakelog uses the time of the plan as
the current time, and ignores records that were appended after the plan was made. If the second decision differs, the
plan is refused. The reason can be a segment that was added, replaced or dropped, a changed setting, the progress of a
consumer, or a new topic of the same name. So either exactly the segments of the plan are deleted, or no segment is
deleted. Segments are compared by name, and no two segments ever have the same name.

    check_current        refuses the whole plan, before anything is changed
    retain_as_planned    repeats the check in the commit that drops the segments
    cleaning_tasks_of    after retention: repeats the check, and returns the tasks of the compactions
    merge_tasks_of       after retention: repeats the check, and returns the tasks of the merges

If segments are replaced after these checks and before the commit of the new segments, this commit detects the
replacement (topic.clean.state_swap).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from storage_engine.cleaner.cleaner import CleaningTask
from storage_engine.cleaner.segment_merging import MergeTask
from storage_engine.config import BrokerConfig, topic_config
from storage_engine.errors import StalePlanError
from storage_engine.log.holds import Holds
from storage_engine.log.segment_retention import RetentionPlan, decide_retention
from storage_engine.quantities import shown_number
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.cleaning_plan import (
    Action,
    PartitionPlan,
    Plan,
    SegmentStep,
    TopicPlan,
    Work,
    deciding_settings,
    partition_plan,
    plan_topic,
)
from storage_engine.topic.clean.topic_compaction import cleaning_tasks
from storage_engine.topic.clean.topic_merging import merge_tasks
from storage_engine.topic.clean.topic_retention import RetentionResult, retain_topic
from storage_engine.topic.topics import Topics

_MOST_NAMED = 5
_PLAN_AGAIN = "This part of the plan was not applied. Make a new plan."


def check_current(plan: Plan, topics: Topics) -> None:
    """Check that a plan can be applied as it is. Nothing is changed.

    Raises:
        StalePlanError: the log has changed. The error names the topic, the partition and the difference.
        UnknownTopicError: a topic no longer exists.
    """
    for planned in plan.topics:
        try:
            _check(planned, topics, topics.state(planned.topic), planned.work, frozenset(Action))
        except StalePlanError as error:
            raise StalePlanError(error.place, error.problem, "Nothing was changed. Make a new plan.") from None


def retain_as_planned(chain: StateChain, broker: BrokerConfig, plan: TopicPlan) -> RetentionResult:
    """Apply the retention of a plan, with the time of the plan. Only segments that the plan names are dropped. In all
    other respects, this call does the same as topic.clean.topic_retention.retain_topic.

    Raises:
        StalePlanError: the log has changed.
    """

    def decide(state: TopicState, holds: Sequence[Holds]) -> tuple[RetentionPlan, ...]:
        return _planned_retention(plan, state, broker, holds)

    return retain_topic(chain, broker, now_ms=plan.now_ms, decide=decide)


def _planned_retention(
    plan: TopicPlan, state: TopicState, broker: BrokerConfig, holds: Sequence[Holds]
) -> tuple[RetentionPlan, ...]:
    now = _as_planned(plan, broker, state, {Action.DELETE})
    config = topic_config(broker, state.configs, f"topic {state.topic}")
    plans = [RetentionPlan((), part.log_start_offset) for part in state.partitions]
    for each in _of(plan, {Action.DELETE}):
        part = now.partitions[each.partition]
        retention = decide_retention(part, config, plan.now_ms, holds[each.partition])
        again = partition_plan(each.partition, part, config, plan.now_ms, retention)
        _compare(plan, each, again, {Action.DELETE})
        plans[each.partition] = retention
    return tuple(plans)


def cleaning_tasks_of(plan: TopicPlan, topics: Topics, state: TopicState, at_once: int = 1) -> list[CleaningTask]:
    """The tasks for the compactions of a plan. They are run like those of topic.clean.topic_compaction.cleaning_tasks.

    Args:
        state: the state after the plan's retention.
        at_once: as in cleaning_tasks.

    Raises:
        StalePlanError: the log has changed.
    """
    now = _check(plan, topics, state, {Work.COMPACTION}, {Action.CLEAN})
    named = {each.partition for each in _of(plan, {Action.CLEAN})}
    config, broker = topics.config(now), topics.broker
    tasks = cleaning_tasks(topics.storage, now, config, broker, plan.now_ms, force=plan.force, at_once=at_once)
    return [task for task in tasks if task.partition in named]


def merge_tasks_of(plan: TopicPlan, topics: Topics, state: TopicState, at_once: int = 1) -> list[MergeTask]:
    """The tasks for the merges of a plan. They are run like those of topic.clean.topic_merging.merge_tasks. Arguments
    and errors are those of cleaning_tasks_of."""
    now = _check(plan, topics, state, {Work.MERGING}, {Action.MERGE})
    named = {each.partition for each in _of(plan, {Action.MERGE})}
    bytes_per_second = topics.broker.log_cleaner_io_max_bytes_per_second / at_once
    return [task for task in merge_tasks(now, topics.config(now), bytes_per_second) if task.partition in named]


def _check(
    plan: TopicPlan, topics: Topics, state: TopicState, work: Collection[Work], actions: Collection[Action]
) -> TopicState:
    """The state without later appends. Raises StalePlanError if the decisions on these actions in that state differ
    from the plan.
    """
    now = _as_planned(plan, topics.broker, state, actions)
    again = plan_topic(topics, now, plan.now_ms, work, force=plan.force)
    for each in _of(plan, actions):
        _compare(plan, each, again.partitions[each.partition], actions)
    return now


def _of(plan: TopicPlan, actions: Collection[Action]) -> Iterator[PartitionPlan]:
    """The partitions that these actions change."""
    return (each for each in plan.partitions if any(step.action in actions for step in each.steps))


def _compare(plan: TopicPlan, planned: PartitionPlan, again: PartitionPlan, actions: Collection[Action]) -> None:
    if _decisions(planned, actions) != _decisions(again, actions):
        then, now = (_named(step for step in each.steps if step.action in actions) for each in (planned, again))
        problem = f"planned: {then}; now decided: {now}" if then != now else f"now decided differently: {then}"
        raise _stale(plan, planned, problem)


def _decisions(plan: PartitionPlan, actions: Collection[Action]) -> tuple[object, ...]:
    """The parts of a partition's plan that determine these actions. Two plans with equal parts do the same."""
    steps = [step for step in plan.steps if step.action in actions]
    cleans = any(step.action is Action.CLEAN for step in steps)
    return (
        tuple((step.action, step.name, step.bytes, step.into) for step in steps),
        plan.log_start_offset_after if Action.DELETE in actions else None,
        (plan.first_dirty_offset, plan.first_uncleanable_offset) if cleans else None,
    )


def _named(steps: Iterable[SegmentStep]) -> str:
    """A text with the actions and the base offsets of their segments."""
    parts = []
    for action, group in groupby(steps, key=lambda step: step.action):
        bases = [shown_number(step.base_offset) for step in group]
        more = f" and {shown_number(len(bases) - _MOST_NAMED)} more" if len(bases) > _MOST_NAMED else ""
        parts.append(f"{action} the segments at {', '.join(bases[:_MOST_NAMED])}{more}")
    return "; ".join(parts) or "nothing"


def _as_planned(plan: TopicPlan, broker: BrokerConfig, state: TopicState, actions: Collection[Action]) -> TopicState:
    """A state without the records that were appended after the plan, in the partitions that these actions change.

    Raises:
        StalePlanError: something other than appends has changed such a partition, the settings or the topic.
    """
    place = f"topic {plan.topic}"
    if state.deleted or state.topic_id != plan.topic_id:
        raise StalePlanError(place, "the topic of the plan was deleted", _PLAN_AGAIN)
    settings = deciding_settings(topic_config(broker, state.configs, place))
    for key, value in settings.items():
        if plan.settings.get(key) != value:
            raise StalePlanError(
                place, f"{key} was {plan.settings.get(key)} in the plan, and is now {value}", _PLAN_AGAIN
            )
    changed = {}
    for each in _of(plan, actions):
        if each.partition >= len(state.partitions):
            raise _stale(plan, each, "does not exist")
        part = state.partitions[each.partition]
        names = [segment.name for segment in part.segments]
        if each.newest_segment not in names:
            raise _stale(plan, each, f"segment {each.newest_segment}, the newest segment of the plan, no longer exists")
        end = names.index(each.newest_segment)
        newest = part.segments[end]
        if newest.size != each.newest_bytes:
            if any(step.name == newest.name for step in each.steps):
                raise _stale(plan, each, f"segment {newest.name}, which the plan would delete, has grown")
            newest = newest._replace(size=each.newest_bytes, end_offset=each.high_watermark)
        update = {"segments": (*part.segments[:end], newest), "high_watermark": each.high_watermark}
        changed[each.partition] = part.model_copy(update=update)
    return state.with_partitions(changed)


def _stale(plan: TopicPlan, partition: PartitionPlan, problem: str) -> StalePlanError:
    return StalePlanError(f"topic {plan.topic}, partition {partition.partition}", problem, _PLAN_AGAIN)
