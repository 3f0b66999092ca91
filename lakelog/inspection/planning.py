"""Plans the cleaning of the topics that a caller names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lakelog.inspection.states import readable_states
from storage_engine.errors import LogError
from storage_engine.topic.clean.cleaning_plan import ALL_WORK, Plan, Work, plan_topics
from storage_engine.topic.topics import Topics


def make_plan(
    topics: Topics,
    named: Iterable[str] | None,
    now_ms: int | None,
    work: Collection[Work] = ALL_WORK,
    *,
    force: bool = False,
) -> tuple[Plan, list[LogError]]:
    """Plan what retention, compaction and merging would do.

    Args:
        named: the names of the topics; None for all.
        now_ms: all decisions use this time as the current time, in milliseconds since 1970; None for now.
        work: the kinds of cleaning.
        force: compact every partition that can be compacted, even if its compaction is not due.

    Returns:
        The plan, and the errors of the topics that are missing from the plan.

    Raises:
        TopicError: a named topic does not exist, or the name is not a valid topic name.
    """
    states, failures = readable_states(topics, named)
    now = topics.clock.now_ms() if now_ms is None else now_ms
    planned = plan_topics(topics, states, now, work, force=force, failures=failures)
    return planned, failures
