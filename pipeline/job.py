"""Runs any job: reads its command line and settings, prints its report, and returns its exit status.

    ./spark-submit.sh NAME --conf FILE [--set KEY=VALUE]... [--root URI] [--json]

A job is a function from a JobContext to a JobReport. `run_job` calls this function. At the end, `run_job` updates log/
(the view of the root as a Kafka log directory) for the topics that the job changed. Then `run_job` prints the report on
standard output, as a short table, or with --json as one line of JSON. Errors and the progress of long work are printed
on standard error. With --log-format json, they are lines of JSON.

The exit status is one of storage_engine.errors.ExitStatus, or 130 after Ctrl-C, or 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from lakelog.opening import topics_under
from lakelog.terminal.log_lines import LogFormat, LogLines
from lakelog.terminal.progress_display import NoDisplay, ProgressDisplay, display_on_stderr
from lakelog.terminal.progress_file import ProgressFile
from lakelog.terminal.text import new_console, shown_line
from pipeline.settings import Settings, load_settings
from pipeline.spark.jvm_process import error_of_ended_jvm
from pipeline.spark.termination import TERMINATION, Terminated
from storage_engine.clock import Clock
from storage_engine.errors import ExitStatus, LogError
from storage_engine.progress import Meter
from storage_engine.quantities import shown_duration, shown_number
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import set_storage_options, storage_options
from storage_engine.topic.broker_settings import read_broker_settings
from storage_engine.topic.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.job_metrics.job_metrics import JobMetrics, MetricsTargets
    from storage_engine.topic.clean.cleaning_plan import Plan

_PLAIN_WIDTH = 250  # the width if standard output is not a terminal: wide enough for every table

Value = str | int | float | bool | Mapping[str, int] | None
"""The value of a figure. A mapping contains counts by name, and belongs to the figure before the mapping: the counts
add up to that figure, and are printed in brackets after the figure."""


@dataclass(frozen=True)
class JobContext:
    """The arguments of a job, and the services that it uses.

    topics: the topics under the root of the settings.
    arguments: the parsed command line, with the job's own options.
    display: shows the progress of long work.
    part: the name of the export to which the job's lines belong; empty for lines of the whole job.
    """

    name: str
    settings: Settings
    topics: Topics
    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)
    display: ProgressDisplay = field(default_factory=NoDisplay)
    part: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        settings: Settings,
        arguments: argparse.Namespace | None = None,
        display: ProgressDisplay | None = None,
    ) -> JobContext:
        """Open the root of the settings. Standard error names each broker setting that differs from the root's."""

        given = arguments or argparse.Namespace()
        warn = _lines(name, given).warning
        topics = topics_under(open_storage(settings.root), settings.broker, settings.broker_settings, warn)
        return cls(name, settings, topics, given, display or NoDisplay())

    @property
    def lines(self) -> LogLines:
        """Prints the job's lines on standard error."""
        return replace(_lines(self.name, self.arguments), name=self.part)

    def work(self, kind: str, topic: str) -> AbstractContextManager[Meter]:
        """Show the progress of work on a topic, such as an export. The work has the name of the export, or of the topic."""
        return self.display.work(f"{kind} {self.part or topic}")

    @property
    def storage(self) -> Storage:
        return self.topics.storage

    @property
    def clock(self) -> Clock:
        return self.topics.clock

    @property
    def has_spark(self) -> bool:
        """Whether this job has started Spark."""
        return "spark" in vars(self)

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session of the process. The session takes seconds to start, so a job uses it only for work that
        needs Spark."""
        from pipeline.spark.failures import SPARK_ERRORS, SparkFailedError, planning_reason
        from pipeline.spark.session import spark_session

        try:
            return spark_session(f"lakelog {self.name}", self.storage.uri, complete=False)
        except SPARK_ERRORS as error:
            remedy = "Check JAVA_HOME, the options after -- and spark-defaults.conf. Spark's own log has more details."
            raise SparkFailedError("Spark", f"did not start: {planning_reason(error)}", remedy) from error


@dataclass(frozen=True)
class JobReport:
    """What a job did.

    summary: figures by name, in the order in which they are printed.
    rows: the table; each row has the same columns.
    failures: one line for each part of the work that failed, although other parts were done.
    warnings: lines for the operator.
    changed_topics: the topics that have to be updated in log/.
    closing: lines that are printed last.
    plan: the plan of the work, if the command line asked for a plan.
    is_wrong: whether the job has found wrong data.
    """

    summary: Mapping[str, Value]
    rows: Sequence[Mapping[str, Value]] = ()
    failures: Sequence[str] = ()
    warnings: Sequence[str] = ()
    changed_topics: Sequence[str] = ()
    closing: Sequence[str] = ()
    plan: Plan | None = None
    is_wrong: bool = False

    @property
    def exit_status(self) -> ExitStatus:
        if self.is_wrong:
            return ExitStatus.ERROR
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
    """Parse the command line, run a job and print its report. Returns the exit status.

    Args:
        description: for --help; the module docstring of the job.
        add_arguments: adds the job's own options.
        argv, environ: by default those of the process.
        makes_topics: the job may create topics. If the root has no broker settings, the broker settings of the file are
            then stored in the root.
    """
    parser = _parser(name, description)
    if add_arguments:
        add_arguments(parser)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:  # argparse has printed its message; 0 after --help
        return ended.code if isinstance(ended.code, int) else ExitStatus.USAGE
    started, lines = time.monotonic(), _lines(name, arguments)
    metrics: JobMetrics | None = None
    status: int = ExitStatus.ERROR
    try:
        with TERMINATION.listening():
            display, metrics = _displays(lines, arguments)
            settings = load_settings(
                arguments.conf,
                arguments.overrides,
                arguments.root,
                os.environ if environ is None else environ,
                _stored_broker_settings,
                makes_topics=makes_topics,
            )
            context = JobContext.of(name, settings, arguments, display)
            report = show_changes(context, main(context))
        print_report(lines, report, time.monotonic() - started, as_json=arguments.json)
        status = report.exit_status
    except Terminated as ended:
        lines.info(f"{ended}; nothing that was committed is lost")
        TERMINATION.await_endings()
        status = ended.exit_status
    except Exception as raised:
        error = error_of_ended_jvm(raised) or raised
        if not isinstance(error, LogError):
            raise
        lines.error(str(error))
        if arguments.json:
            print_json({"job": name, "exit_status": int(error.exit_status), "error": str(error)})
        status = error.exit_status
    finally:
        if metrics is not None:
            metrics.end(status)
    return status


def _displays(lines: LogLines, arguments: argparse.Namespace) -> tuple[ProgressDisplay, JobMetrics | None]:
    """The display for standard error and for the files that the command line names. If the command line asks for metrics,
    the second result publishes them.
    """
    display = display_on_stderr(lines)
    metrics = None
    if arguments.progress_json is not None:
        display = ProgressFile(display, arguments.progress_json, lines.job)
    if arguments.metrics_textfile is not None or arguments.metrics_listen is not None or arguments.metrics_spark:
        from pipeline.job_metrics.job_metrics import JobMetrics

        conf = arguments.conf.stem if arguments.conf else ""
        display = metrics = JobMetrics(display, _metrics_targets(arguments), lines.job, conf)
        if metrics.url is not None:
            lines.info(f"metrics at {metrics.url}")
    return display, metrics


def _metrics_targets(arguments: argparse.Namespace) -> MetricsTargets:
    """Where the command line wants the metrics.

    Raises:
        UsageError: an option has no valid value.
        StorageError: the directory of the file does not exist, or the file cannot be replaced.
    """
    from lakelog.cli.options import listen_address
    from lakelog.cli.output import replaceable
    from pipeline.job_metrics.job_metrics import MetricsTargets

    textfile, listen = arguments.metrics_textfile, arguments.metrics_listen
    return MetricsTargets(
        textfile=None if textfile is None else replaceable("--metrics-textfile", textfile),
        listen=None if listen is None else listen_address(listen, "127.0.0.1:9309", "--metrics-listen"),
        spark=arguments.metrics_spark,
    )


def _stored_broker_settings(settings: Settings) -> Mapping[str, str] | None:
    """The broker settings that the root stores. The storage options are set first, because they open the root."""
    given = {name.lower(): value for name, value in settings.storage.options.items()}
    set_storage_options(storage_options() | given)
    return read_broker_settings(open_storage(settings.root))


def _lines(name: str, arguments: argparse.Namespace) -> LogLines:
    return LogLines(name, LogFormat(vars(arguments).get("log_format", LogFormat.TEXT)))


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"spark-submit.sh {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--conf", type=Path, metavar="FILE", help="settings, a YAML file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one setting; KEY is the name of the setting with its sections, separated by dots",
    )
    parser.add_argument(
        "--root", metavar="URI", help="directory or URI of all topics; overrides LAKELOG_ROOT and the file"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    parser.add_argument(
        "--progress-json",
        type=Path,
        metavar="FILE",
        help="append the progress of the work to this file, as lines of JSON",
    )
    parser.add_argument(
        "--metrics-textfile",
        type=Path,
        metavar="FILE",
        help="write metrics of this run to this file, in Prometheus's text format, while the job runs and at its end",
    )
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="answer scrapes of Prometheus at this address, under /metrics, while the job runs",
    )
    parser.add_argument(
        "--metrics-spark",
        action="store_true",
        help="give the metrics of this run to Spark's metrics system, if the job starts Spark",
    )
    parser.add_argument(
        "--log-format",
        choices=[each.value for each in LogFormat],
        default=LogFormat.TEXT.value,
        help="how the job prints lines on standard error; json: each line is a JSON object",
    )
    return parser


def show_changes(context: JobContext, report: JobReport) -> JobReport:
    """Update log/ for the topics that the job changed. An error here is reported as a failure, because the job's work is done."""
    if not report.changed_topics:
        return report
    from storage_engine.topic.kafka.view import (
        settle,
    )  # a slow import, because of the kernels; many jobs do not need it

    try:
        with context.display.work("settle log/") as progress:
            settle(context.topics, report.changed_topics, progress)
    except LogError as error:
        return replace(report, failures=[*report.failures, f"log/ is not up to date: {error}"])
    return report


def print_report(lines: LogLines, report: JobReport, seconds: float, *, as_json: bool = False) -> None:
    """Print the result on standard output, and failures and warnings on standard error."""
    name = lines.job
    for warning in report.warnings:
        lines.warning(warning)
    for failure in report.failures:
        lines.failed(failure)
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


def print_json(document: Mapping[str, object]) -> None:
    """Print a document as one line on standard output."""
    print(json.dumps(document, separators=(",", ":")), flush=True)


def print_table(rows: Iterable[Mapping[str, Value]]) -> None:
    """Print rows that have the same columns, numbers right-aligned; plain text if standard output is not a terminal."""
    terminal = sys.stdout.isatty()
    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for column, value in rows[0].items():
        numeric = isinstance(value, int | float)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    # sys.stdout is read at each call, because pytest and notebooks replace it.
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
