"""Prints what `lakelog recover`, `retain` and `compact` would do to a plain Kafka log directory, as lines or as JSON.
storage_engine.kafka_dir.upkeep.directory_plan computes the plan, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakelog.cli.output import write, write_error, write_line
from storage_engine.cleaner.selection import CompactionReason
from storage_engine.kafka_dir.upkeep.task_opening import COMPACTION, RETENTION
from storage_engine.quantities import counted, shown_size

if TYPE_CHECKING:
    from storage_engine.cleaner.selection import CompactionPlan
    from storage_engine.kafka_dir.log_directory import TopicPartition
    from storage_engine.kafka_dir.upkeep.directory_plan import DirectoryPlan, LogToRecover
    from storage_engine.log.segment_retention import RetentionPlan


def show_directory_plan(planned: DirectoryPlan) -> None:
    """Print a plan for people."""
    for error in planned.failures:
        write_error(error)
    for line in _lines(planned):
        write_line(line)


def _lines(planned: DirectoryPlan) -> Iterator[str]:
    path = planned.path
    if planned.is_locked:
        yield (
            f"{path}: locked: a broker or another program works in this directory, so the plan can be out of date, and the"
            " commands refuse the directory"
        )
    yield from _recovery_lines(planned)
    for partition, retention in planned.retention.items():
        place = f"{path / partition.folder}: retain"
        yield from (f"{place}: would delete {each}" for each in retention.deletions)
        if retention.blocked is not None:
            yield f"{place}: would keep old segments: {retention.blocked}"
    for partition, compaction in planned.compaction.items():
        yield f"{path / partition.folder}: compact: {_compaction_text(compaction)}"
    for choice, done in ((planned.retaining, RETENTION.done), (planned.compacting, COMPACTION.done)):
        yield from (f"{path}: {name}: not {done}: {reason}" for name, reason in choice.left.items())
    yield from (f"{path}: {name}: {RETENTION.no_limit}" for name in planned.retaining.unlimited)
    deletions = [each for plan in planned.retention.values() for each in plan.deletions]
    due = [each for each in planned.compaction.values() if each.reason is not None]
    yield (
        f"in all: recover {counted(len(planned.to_recover), 'log')}, delete {counted(len(deletions), 'segment')},"
        f" {shown_size(sum(each.segment.size for each in deletions))}, compact {counted(len(due), 'log')}. Nothing was"
        " changed."
    )


def _recovery_lines(planned: DirectoryPlan) -> Iterator[str]:
    if planned.is_clean:
        yield f"{planned.path}: closed cleanly: there is nothing to recover"
    else:
        yield f"{planned.path}: not closed cleanly: {counted(len(planned.to_recover), 'log')} would be recovered"
    for log in planned.to_recover:
        yield f"{planned.path / log.partition.folder}: recover: {_recovery_text(log)}"
    yield from (f"{planned.path}: {name}: not recovered: {reason}" for name, reason in planned.not_recovered.items())


def _recovery_text(log: LogToRecover) -> str:
    text = (
        f"would read {log.unflushed} of {counted(log.segments, 'segment')}, because the log is durable only below offset"
        f" {log.recovery_point}"
    )
    if log.torn_bytes:
        text += f"; would cut off a torn tail of {counted(log.torn_bytes, 'byte')}"
    return text if log.damage is None else f"{text}; is damaged: {log.damage}"


def _compaction_text(plan: CompactionPlan) -> str:
    size, count = shown_size(sum(each.size for each in plan.segments)), counted(len(plan.segments), "segment")
    dirty = f"{plan.dirty_ratio:.3f} of the cleanable bytes are dirty"
    match plan.reason:
        case None:
            return f"not due: {dirty}"
        case CompactionReason.DIRTY_RATIO:
            reason = f"by dirty ratio: {dirty}"
        case _:
            reason = f"by {plan.reason}"
    return f"would compact {count}, {size}, up to offset {plan.first_uncleanable_offset}, {reason}"


def print_directory_plan(planned: DirectoryPlan) -> None:
    """Print a plan as a JSON document."""
    for error in planned.failures:
        write_error(error)
    document = {
        "directory": str(planned.path),
        "now_ms": planned.now_ms,
        "locked": planned.is_locked,
        "closed_cleanly": planned.is_clean,
        "recover": [_recovery_object(each) for each in planned.to_recover],
        "retain": [_retention_object(*each) for each in planned.retention.items()],
        "compact": [_compaction_object(*each) for each in planned.compaction.items()],
        "left_alone": {
            "recover": planned.not_recovered,
            "retain": planned.retaining.left,
            "compact": planned.compacting.left,
        },
        "without_limit": planned.retaining.unlimited,
        "errors": [str(each) for each in planned.failures],
    }
    write(f"{json.dumps(document, indent=2)}\n".encode())


def _recovery_object(log: LogToRecover) -> dict[str, object]:
    return {
        **_place(log.partition),
        "segments": log.segments,
        "segments_to_read": log.unflushed,
        "recovery_point": log.recovery_point,
        "torn_bytes": log.torn_bytes,
        "damage": None if log.damage is None else str(log.damage),
    }


def _retention_object(partition: TopicPartition, plan: RetentionPlan) -> dict[str, object]:
    return {
        **_place(partition),
        "log_start_offset_after": plan.log_start_offset,
        "deletions": [
            {
                "base_offset": each.segment.base_offset,
                "bytes": each.segment.size,
                "rule": each.rule.value,
                "found": each.found,
                "limit": each.limit,
            }
            for each in plan.deletions
        ],
        "blocked": None if plan.blocked is None else str(plan.blocked),
    }


def _compaction_object(partition: TopicPartition, plan: CompactionPlan) -> dict[str, object]:
    return {
        **_place(partition),
        "due": plan.reason is not None,
        "reason": None if plan.reason is None else plan.reason.value,
        "first_dirty_offset": plan.first_dirty_offset,
        "first_uncleanable_offset": plan.first_uncleanable_offset,
        "dirty_ratio": plan.dirty_ratio,
        "segments": [{"base_offset": each.base_offset, "bytes": each.size} for each in plan.segments],
    }


def _place(partition: TopicPartition) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.number}
