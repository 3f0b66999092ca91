"""`lakelog retain`: applies retention now, as the retention job does, but without Spark.

In a root, one version of each topic drops the segments that retention no longer keeps. As after the job, the files of a
dropped segment are deleted by the first run that begins more than file.delete.delay.ms after the drop. With
--kafka-dir, the command locks a plain Kafka directory, and opens only the logs that it retains. After a crash, the
command first recovers these logs. The files of deleted segments are deleted at once.
storage_engine.kafka_dir.upkeep.task_opening decides which topics are retained.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lakelog.cli.clean.cleaning_commands import print_retention
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
    readable_states,
    refuse_config_of_roots,
    refuse_options_of_roots,
    settle_view,
)
from lakelog.cli.output import write_error, write_line
from lakelog.terminal.progress_display import display_on_stderr
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import counted

if TYPE_CHECKING:
    from storage_engine.kafka_dir.open_directory import OpenDirectory
    from storage_engine.topic.topics import Topics


def retain(
    topic: TopicsOption = None,
    now: NowOption = None,
    kafka_dir: KafkaDirOption = None,
    config: ConfigOption = None,
    root: RootOption = None,
    conf: ConfOption = None,
) -> None:
    """Apply retention to topics now, as the retention job does, but without Spark.

    Retention deletes the oldest segments of a partition by retention.ms, retention.bytes and the log start offset. The
    first run that begins more than file.delete.delay.ms later deletes the files of these segments.

    With --kafka-dir, the files are deleted at once. A topic is retained if its settings are in the folder
    __cluster_metadata-0 of the directory. The settings of --config have priority over those in __cluster_metadata.
    Otherwise, name the topic with --topic, and give its retention.ms, retention.bytes or cleanup.policy with
    --config. The command does not know server.properties. So if neither __cluster_metadata nor --config has a topic's
    retention.ms or retention.bytes, there is no such limit.

    Internal topics must be named, and __cluster_metadata is never retained. The command prints which topics it leaves
    alone, and why. If one of them was named, the exit status is 4. In a broker's directory, records at and above the high
    watermark are not deleted, and the high watermarks stay. `lakelog plan --kafka-dir` prints what would be deleted.
    """
    if kafka_dir is not None:
        refuse_options_of_roots(root, conf=conf)
        failed = _retain_directory(kafka_dir, topic, given_overrides(config or ()), now)
    else:
        refuse_config_of_roots(config)
        failed = _retain_root(open_topics(root, conf), topic, now)
    if failed:
        raise typer.Exit(ExitStatus.PARTIAL)


def _retain_root(topics: Topics, named: list[str] | None, now: int | None) -> bool:
    """Returns whether a topic could not be retained."""
    from storage_engine.topic.clean.topic_retention import retain_topic
    from storage_engine.topic.dropped_files import delete_dropped

    states, failed = readable_states(topics, named)
    idle = 0
    with display_on_stderr().work("retain"):
        for state in states:
            chain = topics.chain(state.topic)
            try:
                done = retain_topic(chain, topics.broker, now_ms=now)
                gone = delete_dropped(topics.storage, chain, topics.config(done.state), topics.clock.now_ms())
            except LogError as error:
                write_error(error)
                failed = True
                continue
            print_retention(done)
            if gone:
                write_line(f"topic {state.topic}: deleted the files of {counted(len(gone), 'dropped segment')}")
            if done.state.version > state.version:  # also if only expired producers were removed
                settle_view(topics, state.topic)
            idle += not (done.changed or gone)
    if idle == len(states):
        write_line(f"retain: there is nothing to delete in {counted(len(states), 'topic')}")
    return failed


class _Lines:
    """Prints what retention does as lines.

    actions: how many actions were printed.
    failures: how many errors were printed.
    """

    def __init__(self) -> None:
        self.actions = 0
        self.failures = 0

    def did(self, place: str, what: str) -> None:
        """Print one action."""
        self.actions += 1
        write_line(f"{place}: {what}")

    def failed(self, error: LogError) -> None:
        """Print something that could not be done."""
        self.failures += 1
        write_error(error)


def _retain_directory(path: Path, named: list[str] | None, overrides: dict[str, str], now: int | None) -> bool:
    """Returns whether a log could not be retained or was damaged, or a named topic was left alone."""
    from storage_engine.clock import ManualClock, SystemClock
    from storage_engine.kafka_dir.upkeep.task_opening import RETENTION, LogsOfTask
    from storage_engine.kafka_dir.upkeep.tasks import Tasks

    clock = SystemClock() if now is None else ManualClock(now)
    lines = _Lines()
    with LogsOfTask(RETENTION, path, named or [], overrides, clock) as opened:
        failed = print_left(path, named, opened.choice, RETENTION.done) | print_damage(path, opened.logs)
        for name in opened.choice.unlimited:
            write_line(f"{path}: {name}: {RETENTION.no_limit}")
        tasks = Tasks(opened.logs, clock, reporter=lines)

        def retain_logs(directory: OpenDirectory) -> None:
            for partition, log in sorted(directory.logs.items()):
                tasks.retain(directory, partition, log)

        tasks.each_directory(retain_logs)
    if not lines.actions:
        write_line(f"retain: there is nothing to delete in {path}")
    return failed or lines.failures > 0
