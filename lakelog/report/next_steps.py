"""Describes in words what maintenance would do to a partition now, and why. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterator

from lakelog.report.facts import PartitionFacts
from storage_engine.cleaner.selection import CompactionBound, CompactionPlan, CompactionReason
from storage_engine.config import TopicConfig
from storage_engine.log.segment_retention import RetentionPlan, RetentionRule
from storage_engine.quantities import counted, shown_duration, shown_number, shown_size


def next_steps(config: TopicConfig, facts: PartitionFacts) -> Iterator[str]:
    """What maintenance would do to a partition now, and why."""
    yield f"Retention {_retention(facts.retention, config)}"
    if config.compact and facts.compaction is None:
        yield "Compaction could not be decided; see the warnings."
    elif facts.compaction is not None:
        yield f"Compaction {_compaction(facts.compaction, config)}"
    if facts.merges:
        merged = [segment for run in facts.merges for segment in run]
        size = shown_size(sum(segment.size for segment in merged))
        yield f"Merging combines {shown_number(len(merged))} segments, {size}, into {shown_number(len(facts.merges))}."


def _retention(plan: RetentionPlan, config: TopicConfig) -> str:
    if not plan.deletions:
        limits = []
        if config.delete and config.retention_ms >= 0:
            limits.append(f"retention.ms is {shown_duration(config.retention_ms / 1000)}")
        if config.delete and config.retention_bytes >= 0:
            limits.append(f"retention.bytes is {shown_size(config.retention_bytes)}")
        text = f"has nothing to delete: {', '.join(limits) or 'it has no limit here'}."
    else:
        rules = [(rule, sum(each.rule is rule for each in plan.deletions)) for rule in RetentionRule]
        taken = ", ".join(f"{shown_number(number)} by {rule}" for rule, number in rules if number)
        text = (
            f"deletes {counted(len(plan.deletions), 'segment')} next, {shown_size(plan.bytes)}: {taken}. The log then starts"
            f" at offset {shown_number(plan.log_start_offset)}."
        )
    if plan.blocked is not None:
        ahead = shown_duration(plan.blocked.ahead_ms / 1000)
        text += f" A timestamp {ahead} in the future prevents the deletion of further segments: {len(plan.blocked.overdue)}."
    if plan.held is not None:
        text += f" {plan.held}."
    return text


def _compaction(plan: CompactionPlan, config: TopicConfig) -> str:
    ratio = f"{plan.dirty_ratio:.3f} of its bytes are dirty, min.cleanable.dirty.ratio is {config.min_cleanable_dirty_ratio:g}"
    waits = {
        CompactionBound.ACTIVE_SEGMENT: "the active segment is never compacted",
        CompactionBound.OPEN_TRANSACTION: "a transaction is open there",
        CompactionBound.MIN_COMPACTION_LAG: f"min.compaction.lag.ms is {shown_duration(config.min_compaction_lag_ms / 1000)}",
    }[plan.bound]
    rest = f"Records from offset {shown_number(plan.first_uncleanable_offset)} on must wait: {waits}."
    if plan.reason is CompactionReason.MAX_COMPACTION_LAG:
        why = (
            f"a dirty record is older than max.compaction.lag.ms, {shown_duration(config.max_compaction_lag_ms / 1000)}"
        )
    elif plan.reason is CompactionReason.EXPIRED_HORIZONS:
        why = "it has tombstones or markers past their delete horizon"
    else:
        why = ratio
    if plan.reason is not None:
        return f"cleans {counted(len(plan.segments), 'segment')} next, because {why}. {rest}"
    if not plan.dirty_bytes:
        return f"has nothing to clean. {rest}"
    return f"is not due: {why}. {rest}"
