"""`lakelog log-manager`: does a broker's background work on its log directories, without the broker.

The command reads the broker's server.properties, locks the directories, and loads the logs. The command then works
until SIGTERM, SIGINT or SIGHUP. With --once, the command does each task once. For each action, the command prints one
line to standard output: the time, the directory or partition, and what was done. Errors go to standard error. With
--log-format json, each line of output is JSON. If a line cannot be printed, the work continues without it. At the end,
the command closes the logs as a broker does.
docs/LOG_MANAGER.md describes what is done to each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakelog.cli.clean.directory_lines import DirectoryLines, TruncateOption, say_closed, say_loaded
from lakelog.cli.clean.topic_config_file import read_topic_configs
from lakelog.cli.stopping import stopped_by_signals
from lakelog.terminal.log_lines import LogFormat
from storage_engine.errors import ExitStatus, LogError, UsageError

if TYPE_CHECKING:
    from storage_engine.kafka_dir.upkeep.opening import BrokerLogs


def log_manager(
    config: Annotated[
        Path,
        typer.Option(
            "--config", metavar="FILE", help="The broker's own server.properties, usually without any changes."
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Do each task once, and then end. Default: run until SIGTERM.")
    ] = False,
    topic_config: Annotated[
        Path | None,
        typer.Option(
            "--topic-config",
            metavar="FILE",
            help="A YAML file with a section of settings for each topic. These settings replace the topic settings in"
            " __cluster_metadata.",
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="TOPIC",
            help="Retain and compact this internal topic, too; may be given several times.",
        ),
    ] = None,
    truncate_at_damage: TruncateOption = False,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="text: for people. json: each line is one JSON object.")
    ] = LogFormat.TEXT,
) -> None:
    """Do the work of a broker's log manager and log cleaner on the broker's log directories: recovery, flushes,
    retention, compaction."""
    lines = DirectoryLines("log-manager", log_format)
    try:
        is_done = _manage(config, topic_config, include or (), lines, once=once, truncates=truncate_at_damage)
    except LogError as error:
        lines.error(error)
        raise typer.Exit(error.exit_status) from None
    if not is_done:
        raise typer.Exit(ExitStatus.PARTIAL)


def _manage(
    config: Path,
    topic_config: Path | None,
    include: Sequence[str],
    lines: DirectoryLines,
    *,
    once: bool,
    truncates: bool,
) -> bool:
    """Do the work. Returns whether all of it was done."""
    from storage_engine.clock import SystemClock
    from storage_engine.config.server_properties import read_server_properties
    from storage_engine.kafka_dir.upkeep.opening import BrokerLogs, Options
    from storage_engine.kafka_dir.upkeep.treatment import INTERNAL_TOPICS

    for topic in include:
        if topic not in INTERNAL_TOPICS:
            known = ", ".join(sorted(INTERNAL_TOPICS))
            raise UsageError("--include", f"expected an internal topic; found {topic!r}", f"Internal topics: {known}.")
    properties = read_server_properties(config)
    options = Options(
        given={} if topic_config is None else read_topic_configs(topic_config),
        included=include, truncates=truncates, deletes_at_once=once,
    )  # fmt: skip
    if properties.ignored:
        ignored = ", ".join(properties.ignored)
        lines.did(properties.file, f"ignored, because these keys have no effect on logs, or are misspelt: {ignored}")
    with stopped_by_signals() as stop:
        with BrokerLogs(properties, options, SystemClock(), lines) as opened:
            for topic in sorted(options.given.keys() - opened.treatments.keys()):
                lines.did(f"topic {topic}", "has settings in --topic-config, but no partition in these directories")
            say_loaded(opened.logs.open_directories, lines)
            statuses = {_run(opened, lines, stop, once=once)}
            if statuses == {False}:
                lines.did(properties.file, "stopped by a signal before all tasks were done")
            closing = opened.logs.open_directories
            statuses |= {lines.failures == 0, opened.logs.exit_status is ExitStatus.DONE}
        say_closed(closing, lines)
    return statuses == {True}


def _run(opened: BrokerLogs, lines: DirectoryLines, stop: Callable[[float], bool], *, once: bool) -> bool:
    """Run the tasks. Returns whether the run came to its end."""
    from storage_engine.clock import SystemClock
    from storage_engine.kafka_dir.upkeep.cleaning import Cleaning
    from storage_engine.kafka_dir.upkeep.running import run_once, run_until
    from storage_engine.kafka_dir.upkeep.tasks import Tasks

    clock, config = SystemClock(), opened.logs.config
    tasks = Tasks(opened.logs, clock, opened.managed, lines)
    tasks.report_offline()
    cleaning = Cleaning(opened.logs, tasks, clock, opened.managed, lines)
    threads = config.cleaner_threads if config.cleaner_enable else 0
    if once:
        return run_once(stop, tasks, cleaning, cleans=threads > 0)
    run_until(stop, tasks, cleaning, clock, threads=threads, backoff_ms=config.cleaner_backoff_ms)
    return True
