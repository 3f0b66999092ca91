"""Runs the exports of the settings, one after another. An export without a trigger runs once. An export with a trigger
runs again after each interval.

If an export fails, the other exports still run. A failed export that has a trigger is tried again after its interval,
or later if it fails several times in a row. If all exports fail in the first round, the job ends, because then the
settings are wrong or the storage is unavailable.

The exports share one process, and one Spark session if any of them needs Spark. If an export has a trigger, the first
SIGTERM or Ctrl-C ends the job after the export that is running. A second signal ends the running export, too. Without a
trigger, the first signal already ends the job, as in other jobs. Each commit of an export is complete. The next run
continues after the last commit.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.export.export_request import OPTIONS_OF_ONE_EXPORT
from pipeline.export.one_export import export_topic
from pipeline.job import JobContext, JobReport, Value
from pipeline.settings.values import AVAILABLE_NOW, interval_ms
from pipeline.spark.jvm_process import error_of_ended_jvm
from pipeline.stop_request import StopRequest
from storage_engine.config import nearest
from storage_engine.errors import ConflictError, LogError, UsageError
from storage_engine.quantities import counted, shown_duration

_SHORTEST_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause after failures of an export whose interval is shorter."""
_LONGEST_WAIT_SECONDS = 3600.0
_MOST_WARNINGS = 100
_WRITTEN = ("rows appended", "rows upserted")


@dataclass
class ExportRuns:
    """All runs of one export in this job.

    context: its settings have this export as their only export.
    interval_seconds: the interval of its trigger; None: the export runs once.
    due: when the next run begins, in seconds of time.monotonic(); None: there is no next run.
    counts: the sums of its figures.
    warnings: the different warnings of its runs, the last hundred.
    last: the report of the last run that did not fail.
    failure: the error of the last run; None if it did not fail.
    failures: the number of failed runs since the last run that did not fail.
    """

    name: str
    context: JobContext
    interval_seconds: float | None
    due: float | None
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    warnings: dict[str, None] = field(default_factory=dict)
    last: JobReport | None = None
    failure: Exception | None = None
    failures: int = 0

    def run(self) -> None:
        """Run the export, and set the time of the next run."""
        started = time.monotonic()
        self.runs += 1
        try:
            report = export_topic(self.context)
        except Exception as error:  # whatever it is, the other exports go on
            if (ended := error_of_ended_jvm(error)) is not None:
                raise ended from error
            self.failure = error
            self.failures += 1
        else:
            self.failure = None
            self.failures = 0
            self._add(report, time.monotonic() - started)
        self.due = None
        if self.interval_seconds is not None:
            pause = max(self.interval_seconds, min(_LONGEST_PAUSE_SECONDS, 2.0 ** min(self.failures, 10) - 1))
            self.due = max(time.monotonic(), started + pause)

    def _add(self, report: JobReport, seconds: float) -> None:
        before, self.last = self.last, report
        numbers = {name: value for name, value in report.summary.items() if isinstance(value, int)}
        written = sum(numbers.get(name, 0) for name in _WRITTEN)
        self.counts.update({name: numbers.get(name, 0) for name in ("records", "rows deleted", "dead letters")})
        self.counts["rows written"] += written
        for warning in report.warnings:
            self.warnings.pop(warning, None)
            self.warnings[warning] = None
            # Runs without records do not repeat what the run before them printed, such as a gap before the next record.
            is_known = before is not None and warning in before.warnings and not numbers.get("records")
            if self.interval_seconds is not None and not is_known:
                self.context.lines.warning(warning)
        for oldest in list(self.warnings)[:-_MOST_WARNINGS]:
            del self.warnings[oldest]
        if numbers.get("records") and self.interval_seconds is not None:
            self.context.lines.info(
                f"{counted(numbers['records'], 'record')}, {counted(written, 'row')} written, table version"
                f" {report.summary['table version']} ({shown_duration(seconds)})"
            )

    def say_failure(self) -> None:
        """Print the problem of the last run, if there is a next run."""
        if self.problem is not None and self.due is not None:
            pause = shown_duration(max(0.0, self.due - time.monotonic()))
            self.context.lines.failed(f"{self.problem}; next attempt in {pause}")

    @property
    def problem(self) -> str | None:
        """Why the table is not up to date; None if the last run did not fail."""
        if not self.runs:
            return "was not run, because the job was asked to stop"
        if self.failure is None or isinstance(self.failure, LogError):
            return str(self.failure) if self.failure else None
        # The text of an unexpected error may contain values of a record.
        *_, place = traceback.extract_tb(self.failure.__traceback__)
        return f"unexpected error {type(self.failure).__name__} in {place.filename}, line {place.lineno}"

    def row(self) -> dict[str, Value]:
        """The row of the export in the job's report."""
        wanted = self.context.settings.required_export()
        return {
            "export": self.name,
            "topic": wanted.topic,
            "table": wanted.shown_table,
            "table version": self.last.summary["table version"] if self.last else None,
            "runs": self.runs,
            **{name: self.counts[name] for name in ("records", "rows written", "rows deleted", "dead letters")},
        }


def run_exports(context: JobContext) -> JobReport:
    """Run the export of the section `export`, or the exports of the section `exports`, and report the results.

    Raises:
        LogError: the only export failed in its first run, or the request is wrong.
    """
    exports = chosen_exports(context)
    (first, *others) = exports
    if not others and first.interval_seconds is None:
        return export_topic(first.context)
    if any(each.interval_seconds is not None for each in exports):
        stop = StopRequest()
        with stop.listening():
            _run_when_due(exports, stop)
    else:
        for each in exports:
            each.run()
    if not others and first.failure is not None and first.runs == 1:
        raise first.failure
    totals = sum((each.counts for each in exports), Counter[str]())
    return JobReport(
        summary={
            "exports": len(exports),
            "records": totals["records"],
            "rows written": totals["rows written"],
            "dead letters": totals["dead letters"],
        },
        rows=[each.row() for each in exports],
        failures=[f"{each.name}: {each.problem}" for each in exports if each.problem is not None],
        warnings=[f"{each.name}: {warning}" for each in exports for warning in each.warnings],
    )


def chosen_exports(context: JobContext) -> list[ExportRuns]:
    """The exports of the settings that the command line chooses; by default all of them.

    Raises:
        ConfigError: the settings contain no export.
        UsageError: the command line names an unknown export, or has an option that needs a single export.
    """
    settings, arguments = context.settings, vars(context.arguments)
    only: Sequence[str] | None = arguments.get("only")
    if not settings.exports:
        wanted = settings.required_export()
        if only is not None:
            raise UsageError("--only", "the settings have no section exports", "Leave out --only.")
        return [_runs_of(wanted.topic, context)]
    names = list(settings.exports) if only is None else list(dict.fromkeys(only))
    for name in names:
        if name not in settings.exports:
            raise UsageError(
                "--only", f"there is no export {name!r}", f"The nearest name is {nearest(name, settings.exports)}."
            )
    given = [option for option, name in OPTIONS_OF_ONE_EXPORT.items() if arguments.get(name)]
    if given and len(names) > 1:
        raise UsageError(
            given[0],
            f"the settings have {len(names)} exports",
            f"Choose one of them: --only {' or --only '.join(names)}.",
        )
    return [_runs_of(name, replace(context, settings=settings.with_export(name))) for name in names]


def _runs_of(name: str, context: JobContext) -> ExportRuns:
    """An export before its first run. It runs once if an option of the command line is for a single run."""
    trigger = context.settings.required_export().trigger
    arguments: Mapping[str, object] = vars(context.arguments)
    interval = None
    if trigger != AVAILABLE_NOW and not any(arguments.get(each) for each in OPTIONS_OF_ONE_EXPORT.values()):
        interval = max(_SHORTEST_SECONDS, (interval_ms(trigger) or 0) / 1000)
    if interval is not None or context.settings.export_section != "export":
        context = replace(context, part=name)
    return ExportRuns(name, context, interval, time.monotonic())


def _run_when_due(exports: Sequence[ExportRuns], stop: StopRequest) -> None:
    """Run each export when it is due, until the process is asked to stop, or all exports fail in the first round."""
    is_first_round = True
    while not stop.asked:
        for each in exports:
            if each.due is not None and each.due <= time.monotonic() and not stop.asked:
                each.run()
                each.say_failure()
        # A conflict with another export of the same table passes.
        if is_first_round and all(each.failure and not isinstance(each.failure, ConflictError) for each in exports):
            return
        is_first_round = False
        next_due = min(each.due for each in exports if each.due is not None)
        stop.wait(min(_LONGEST_WAIT_SECONDS, max(0.0, next_due - time.monotonic())))
