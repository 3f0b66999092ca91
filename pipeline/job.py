"""Runs any job: reads its command line and settings, prints its report, and returns its exit status.

    ./spark-submit.sh NAME --conf FILE [--set KEY=VALUE]... [--root URI] [--json]

A job is a function from a JobContext to a JobReport; `run_job` does the rest. At its end a job updates log/ for the
topics that it changed. Then it prints its report as a short table on standard output, or as one JSON line with --json.
Errors and the progress of long work are printed on standard error.

Exit statuses are those of storage_engine.errors.ExitStatus, 130 after Ctrl-C, and 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from lakelog.terminal.progress_display import NoDisplay, ProgressDisplay, display_on_stderr
from lakelog.terminal.text import new_console, shown_line
from pipeline.settings import Settings, load_settings
from pipeline.spark.termination import TERMINATION, Terminated
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import ExitStatus, LogError
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.record.batch_limit import choose_most_batch_bytes
from storage_engine.storage import Storage
from storage_engine.storage.opening import open_storage
from storage_engine.topic.broker_settings import read_broker_settings
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from storage_engine.topic.clean.plans import Plan

_PLAIN_WIDTH = 250  # wide enough for every table where nobody's terminal sets the width

Value = str | int | float | bool | Mapping[str, int] | None
"""A mapping has counts by name, and tells the value before it apart: on a line for people it follows that in brackets."""


@dataclass(frozen=True)
class JobContext:
    """What a job works with.

    arguments: the parsed command line, a job's own options included. display: shows the progress of long work.
    """

    name: str
    settings: Settings
    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)
    clock: Clock = field(default_factory=SystemClock)
    display: ProgressDisplay = field(default_factory=NoDisplay)

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.settings.root)

    @cached_property
    def topics(self) -> Topics:
        return Topics(self.storage, self.settings.broker, self.clock, self.settings.broker_settings.to_keep)

    @cached_property
    def spark(self) -> SparkSession:
        """The process's Spark session; starting it takes seconds, so a job asks only when it has work for it."""
        from pipeline.spark.failures import SPARK_ERRORS, SparkFailedError, planning_reason
        from pipeline.spark.session import spark_session

        try:
            return spark_session(f"lakelog {self.name}")
        except SPARK_ERRORS as error:
            remedy = "Look at JAVA_HOME, at the options behind -- and at spark-defaults.conf; Spark's own log has more."
            raise SparkFailedError("Spark", f"did not start: {planning_reason(error)}", remedy) from error


@dataclass(frozen=True)
class JobReport:
    """What a job did.

    summary: by name, in the order to print. rows: the table, with the same columns in each row. failures: one line per
    part of the work that failed while the rest was done; warnings: one line each of what an operator should know.
    changed_topics: those whose view in log/ has to follow. closing: lines for a person to read last. plan: what would
    be done, where that was asked.
    """

    summary: Mapping[str, Value]
    rows: Sequence[Mapping[str, Value]] = ()
    failures: Sequence[str] = ()
    warnings: Sequence[str] = ()
    changed_topics: Sequence[str] = ()
    closing: Sequence[str] = ()
    plan: Plan | None = None

    @property
    def exit_status(self) -> ExitStatus:
        return ExitStatus.PARTIAL if self.failures else ExitStatus.DONE


def run_job(
    name: str,
    description: str,
    main: Callable[[JobContext], JobReport],
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    makes_topics: bool = False,
) -> int:
    """Run a job from its command line to its exit status.

    Args:
        description: for --help; a job's module docstring.
        add_arguments: adds the job's own options.
        argv, environ: the process's own by default.
        makes_topics: the job may make topics: a root that keeps no settings of the broker yet takes the file's over.
    """
    parser = _parser(name, description)
    if add_arguments:
        add_arguments(parser)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:  # argparse has printed its message; 0 after --help
        return ended.code if isinstance(ended.code, int) else ExitStatus.USAGE
    started = time.monotonic()
    try:
        with TERMINATION.listening():
            settings = load_settings(
                arguments.conf,
                arguments.overrides,
                arguments.root,
                os.environ if environ is None else environ,
                lambda root: read_broker_settings(open_storage(root)),
                makes_topics=makes_topics,
            )
            for difference in settings.broker_settings.differences():
                say(f"{name}: warning: {difference}")
            choose_most_batch_bytes(settings.broker.batch_max_uncompressed_bytes)
            context = JobContext(name, settings, arguments, display=display_on_stderr())
            report = show_changes(context, main(context))
    except Terminated as ended:
        say(f"{name}: {ended}; what was committed stays")
        TERMINATION.await_endings()
        return ended.exit_status
    except LogError as error:
        say(f"{name}: {error}")
        if arguments.json:
            print_json({"job": name, "exit_status": int(error.exit_status), "error": str(error)})
        return error.exit_status
    print_report(name, report, time.monotonic() - started, as_json=arguments.json)
    return report.exit_status


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"spark-submit.sh {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--conf", type=Path, metavar="FILE", help="settings, a YAML file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="one setting, by dotted path"
    )
    parser.add_argument("--root", metavar="URI", help="where everything lies; beats LAKELOG_ROOT and the file")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    return parser


def show_changes(context: JobContext, report: JobReport) -> JobReport:
    """Let log/ show the topics that the job changed. That it cannot is a failure of its own: the work is done."""
    if not report.changed_topics:
        return report
    from storage_engine.topic.kafka.view import settle  # brings the kernels, which a job may not have needed yet

    try:
        with context.display.work("settle log/") as progress:
            settle(context.topics, report.changed_topics, progress)
    except LogError as error:
        return replace(report, failures=[*report.failures, f"log/ does not show everything: {error}"])
    return report


def print_report(name: str, report: JobReport, seconds: float, *, as_json: bool = False) -> None:
    """The result on standard output; failures and warnings on standard error, too."""
    for kind, lines in (("warning", report.warnings), ("failed", report.failures)):
        for line in lines:
            say(f"{name}: {kind}: {line}")
    if as_json:
        print_json(
            {"job": name, "exit_status": int(report.exit_status), "seconds": round(seconds, 3)}
            | dict(report.summary)
            | {
                "rows": [dict(row) for row in report.rows],
                "failures": list(report.failures),
                "warnings": list(report.warnings),
            }
            | ({"plan": report.plan.model_dump(mode="json")} if report.plan else {})
        )
        return
    if report.plan:
        from lakelog.cli.clean.plan_tables import show_plan

        show_plan(report.plan)
        return
    if report.rows:
        print_table(report.rows)
    print(shown_line(f"{name}: {_facts(report.summary) or 'nothing to do'} ({shown_duration(seconds)})"))
    for line in report.closing:
        print(shown_line(line))


def say(line: str) -> None:
    """One line on standard error."""
    print(shown_line(line), file=sys.stderr)


def print_json(document: Mapping[str, object]) -> None:
    """One line on standard output."""
    print(json.dumps(document, separators=(",", ":")), flush=True)


def print_table(rows: Iterable[Mapping[str, Value]]) -> None:
    """Rows of the same columns; numbers to the right. Plain text where standard output is no terminal."""
    terminal = sys.stdout.isatty()
    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column, value in rows[0].items():
        numeric = isinstance(value, int | float)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    # Standard output as it is now: pytest and notebooks put another in its place.
    console = new_console(file=sys.stdout, width=None if terminal else _PLAIN_WIDTH)
    console.print(table)


def _facts(summary: Mapping[str, Value]) -> str:
    facts: list[str] = []
    for key, value in summary.items():
        if not isinstance(value, Mapping):
            facts.append(f"{key} {_shown(value)}")
        elif value:
            facts[-1] += f" ({_shown(value)})"
    return ", ".join(facts)


def _shown(value: Value) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return shown_number(value)
        case Mapping():
            return ", ".join(f"{shown_number(count)} {name}" for name, count in value.items()) or "-"
        case _:
            return value
