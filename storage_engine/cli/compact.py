"""`lakelog compact`: the compaction job's work without Spark, one partition after another.

A partition is compacted once if it is due, by min.cleanable.dirty.ratio and max.compaction.lag.ms; --force asks only
whether there is something to clean. One that cannot be is named, and the others are compacted all the same.

A plain Kafka directory (--kafka-dir) is opened as a broker would open it, under its lock: what a crash left is recovered
first. It holds no settings of topics: --config gives them, and without one a topic counts as compacted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storage_engine.cli.options import (
    ConfigOption,
    ConfOption,
    KafkaDirOption,
    NowOption,
    RootOption,
    TopicsOption,
    given_overrides,
    open_topics,
    readable_states,
    settle_view,
)
from storage_engine.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, LogError, UsageError
from storage_engine.progress_display import display_on_stderr
from storage_engine.quantities import counted, shown_number, shown_size

if TYPE_CHECKING:
    from storage_engine.cleaner.cleaner import CleanedPartition
    from storage_engine.topic.compaction import CompactionResult
    from storage_engine.topic.topics import Topics


def compact(
    topic: TopicsOption = None,
    now: NowOption = None,
    force: Annotated[bool, typer.Option("--force", help="Compact whatever can be, due or not.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be compacted, as `lakelog plan` does.")
    ] = False,
    kafka_dir: KafkaDirOption = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Compact topics now, as the compaction job does, without Spark."""
    if kafka_dir is not None and dry_run:
        raise UsageError("--dry-run", "is given with --kafka-dir", "A plan is made of topics under a root.")
    if kafka_dir is not None:
        failed = _compact_directory(kafka_dir, topic, given_overrides(config or ()), now, force=force)
    elif config:
        raise UsageError("--config", "is given without --kafka-dir", "`lakelog topics alter` sets what a topic has.")
    elif dry_run:
        failed = _plan_root(open_topics(root, conf), topic, now, force=force)
    else:
        failed = _compact_root(open_topics(root, conf), topic, now, force=force)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _compact_root(topics: Topics, named: list[str] | None, now: int | None, *, force: bool) -> bool:
    """Whether a partition could not be compacted."""
    states, failed = readable_states(topics, named)
    from storage_engine.clock import ManualClock
    from storage_engine.topic.compaction import compact_topic

    clock = topics.clock if now is None else ManualClock(now)
    changed = []
    with display_on_stderr().work("compact") as progress:
        for state in states:
            chain = topics.chain(state.topic)
            try:
                done = compact_topic(
                    topics.storage, chain, topics.config(state), topics.broker, clock, force=force, progress=progress
                )
            except LogError as error:
                write_error(error)
                failed = True
                continue
            failed |= tell_compaction(state.topic, done)
            changed += [state.topic] if done.cleaned else []
    for name in changed:
        settle_view(topics, name)
    return failed


def _plan_root(topics: Topics, named: list[str] | None, now: int | None, *, force: bool) -> bool:
    """Whether a topic could not be planned for."""
    from storage_engine.cli.making_plans import make_plan
    from storage_engine.cli.plan_tables import show_plan
    from storage_engine.topic.plans import Work

    planned, failed = make_plan(topics, named, now, {Work.COMPACTION}, force=force)
    show_plan(planned)
    return failed


def tell_compaction(topic: str, done: CompactionResult) -> bool:
    """Print what was done to a topic's partitions; whether one could not be compacted."""
    for each in done.cleaned:
        write_line(_told(f"topic {topic}, partition {each.partition}", each))
    for outrun in done.outrun:
        write_line(f"topic {topic}, partition {outrun.partition}: changed meanwhile, nothing was done")
    for warning in done.warnings:
        write_error(warning)
    for failure in done.failed:
        write_error(f"topic {topic}, {failure}")
    return bool(done.failed)


def _compact_directory(
    path: Path, named: list[str] | None, overrides: dict[str, str], now: int | None, *, force: bool
) -> bool:
    """Whether a partition could not be compacted, or was damaged."""
    from storage_engine.clock import ManualClock, SystemClock
    from storage_engine.log.log_directory import LogDirectory
    from storage_engine.log_manager import LogManager

    directory = LogDirectory(path)
    names = [each for topic in dict.fromkeys(named) for each in directory.partitions_of(topic)] if named else None
    # Nobody reads what is replaced: the lock says so.
    settings = {"cleanup.policy": "compact", **overrides, "file.delete.delay.ms": "0"}
    configs = {each.topic: settings for each in names or directory.partitions}
    clock = SystemClock() if now is None else ManualClock(now)
    with LogManager([path], topics=configs, clock=clock) as logs:
        for error in [cut.error for report in logs.reports for cut in report.cuts]:
            write_error(error)
        outcomes = logs.compact(names, force=force)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, LogError):
                write_error(f"{path / partition.folder}: {outcome}")
            else:
                write_line(_told(str(path / partition.folder), outcome))
            logs.log(*partition).delete_due_files()
        recovered = logs.exit_status
    return recovered is not ExitStatus.DONE or any(isinstance(each, LogError) for each in outcomes.values())


def _told(place: str, cleaned: CleanedPartition) -> str:
    before, after = (counted(len(each), "segment") for each in (cleaned.replaced, cleaned.segments))
    return (
        f"{place}: compacted up to offset {cleaned.first_dirty_offset},"
        f" {shown_number(cleaned.records_before)} records to {shown_number(cleaned.records_after)},"
        f" {shown_size(cleaned.bytes_before)} in {before} to {shown_size(cleaned.bytes_after)} in {after}"
    )
