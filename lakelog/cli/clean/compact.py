"""`lakelog compact`: does the compaction job's work without Spark, one partition after another.

Each partition whose compaction is due (min.cleanable.dirty.ratio, max.compaction.lag.ms) is compacted once. With
--force, each partition that contains something to clean is compacted. If a partition cannot be compacted, the error is
printed, and the other partitions are still compacted.

With --kafka-dir, the command locks a plain Kafka directory, and opens only the logs that it compacts. After a crash,
the command first recovers these logs. storage_engine.kafka_dir.upkeep.task_opening decides which topics are compacted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.clean.cleaning_commands import clean_each, compaction_line, only_plan, print_compaction
from lakelog.cli.directory_results import print_damage, print_left
from lakelog.cli.options import (
    ConfigOption,
    ConfOption,
    KafkaDirOption,
    NowOption,
    RootOption,
    TopicsOption,
    given_overrides,
    open_topics,
    refuse_config_of_roots,
)
from lakelog.cli.output import write_error, write_line
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from storage_engine.progress import Meter
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.clean.topic_compaction import CompactionResult
    from storage_engine.topic.topics import Topics


def compact(
    topic: TopicsOption = None,
    now: NowOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Compact every partition that can be compacted, even if its compaction is not due."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be compacted, as `lakelog plan` does.")
    ] = False,
    kafka_dir: KafkaDirOption = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Compact topics now, as the compaction job does, but without Spark.

    With --kafka-dir, a topic is compacted if its settings are in the folder __cluster_metadata-0 of the directory, or if
    --topic names it. The settings of --config have priority over those in __cluster_metadata. A named topic has the
    setting cleanup.policy=compact if the directory has no __cluster_metadata-0. If __cluster_metadata-0 does not have the
    settings of a named topic, give its cleanup.policy with --config. A cleanup.policy without --topic is allowed only if
    no broker has used the directory: then it is the policy of all topics.

    Internal topics must be named, and __cluster_metadata is never compacted. The command prints which topics it leaves
    alone, and why. If one of them was named, the exit status is 4. In a broker's directory, records at and above the high
    watermark are not compacted, and the high watermarks stay. The command does not know server.properties, so `lakelog
    log-manager` is the better choice for a whole broker.
    """
    if kafka_dir is not None and dry_run:
        raise UsageError("--dry-run", "is given with --kafka-dir", "Plans exist only for the topics of a root.")
    if kafka_dir is not None:
        failed = _compact_directory(kafka_dir, topic, given_overrides(config or ()), now, force=force)
    elif dry_run:
        refuse_config_of_roots(config)
        failed = _plan_root(open_topics(root, conf), topic, now, force=force)
    else:
        refuse_config_of_roots(config)
        failed = _compact_root(open_topics(root, conf), topic, now, force=force)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _compact_root(topics: Topics, named: list[str] | None, now: int | None, *, force: bool) -> bool:
    """Returns whether a partition could not be compacted."""
    from storage_engine.clock import ManualClock
    from storage_engine.topic.clean.topic_compaction import compact_topic

    clock = topics.clock if now is None else ManualClock(now)

    def clean(state: TopicState, progress: Meter) -> CompactionResult:
        chain, config = topics.chain(state.topic), topics.config(state)
        return compact_topic(topics.storage, chain, config, topics.broker, clock, force=force, progress=progress)

    return clean_each(topics, named, "compact", clean, print_compaction)


def _plan_root(topics: Topics, named: list[str] | None, now: int | None, *, force: bool) -> bool:
    """Returns whether the plan of a topic could not be made."""
    from storage_engine.topic.clean.cleaning_plan import Work

    return only_plan(topics, named, now, {Work.COMPACTION}, force=force)


def _compact_directory(
    path: Path, named: list[str] | None, overrides: dict[str, str], now: int | None, *, force: bool
) -> bool:
    """Returns whether a partition could not be compacted or was damaged, or a named topic was left alone."""
    from storage_engine.clock import ManualClock, SystemClock
    from storage_engine.kafka_dir.upkeep.task_opening import COMPACTION, LogsOfTask

    clock = SystemClock() if now is None else ManualClock(now)
    with LogsOfTask(COMPACTION, path, named or [], overrides, clock) as opened:
        logs = opened.logs
        failed = print_left(path, named, opened.choice, COMPACTION.done) | print_damage(path, logs)
        outcomes = logs.compact(force=force)
        for partition, outcome in outcomes.items():
            if isinstance(outcome, LogError):
                write_error(f"{path / partition.folder}: {outcome}")
            else:
                write_line(compaction_line(str(path / partition.folder), outcome))
            logs.log(*partition).delete_due_files()
        if not outcomes:
            write_line(f"compact: there is nothing to compact in {path}")
    return failed or any(isinstance(each, LogError) for each in outcomes.values())
