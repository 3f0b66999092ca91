"""Runs the exports of the settings, one after another: each once, or again after each interval of its trigger.

An export that fails does not stop the others. It is tried again after its interval. If all exports fail in the first
round, the job ends: then the settings are wrong, or the storage is away.

The exports share one process, and one Spark session if any of them needs Spark. SIGTERM or Ctrl-C ends the job after the
export that is running. A second signal ends this export as well. What it has committed is complete, and the next run
continues after it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakelog.terminal.log_lines import LogLines
from pipeline.export.export_request import OPTIONS_OF_ONE_EXPORT
from pipeline.export.one_export import export_topic
from pipeline.job import JobContext, JobReport, Value
from pipeline.settings.values import AVAILABLE_NOW, interval_ms
from pipeline.stop_request import StopRequest
from storage_engine.config import nearest
from storage_engine.errors import LogError, UsageError
from storage_engine.quantities import counted, shown_duration

_SHORTEST_SECONDS = 1.0
_WRITTEN = ("rows appended", "rows upserted", "rows written")


@dataclass
class ExportRuns:
    """All runs of one export in this job.

    interval_seconds: the interval of its trigger; None: the export runs once.
    due: when the next run begins, in seconds of time.monotonic(); None: there is no next run.
    counts: the sums of its figures.
    last: the report of the last run that did not fail.
    failure: the error of the last run; None if it did not fail.
    """

    name: str
    context: JobContext
    interval_seconds: float | None
    due: float | None
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    last: JobReport | None = None
    failure: LogError | None = None

    @classmethod
    def of(cls, name: str, context: JobContext) -> ExportRuns:
        trigger = context.settings.required_export().trigger
        interval = None if trigger == AVAILABLE_NOW else max(_SHORTEST_SECONDS, (interval_ms(trigger) or 0) / 1000)
        return cls(name, context, interval, time.monotonic())

    def run(self) -> None:
        """Run the export, and set the time of the next run."""
        started = time.monotonic()
        self.runs += 1
        try:
            report = export_topic(self.context)
        except LogError as error:
            self.failure = error
        else:
            self.failure = None
            self._add(report, time.monotonic() - started)
        self.due = None
        if self.interval_seconds is not None:
            self.due = max(time.monotonic(), started + self.interval_seconds)

    def _add(self, report: JobReport, seconds: float) -> None:
        self.last = report
        numbers = {name: value for name, value in report.summary.items() if isinstance(value, int)}
        written = sum(numbers.get(name, 0) for name in _WRITTEN)
        self.counts.update(
            {
                "records": numbers.get("records", 0),
                "rows written": written,
                "rows deleted": numbers.get("rows deleted", 0),
                "dead letters": numbers.get("dead letters", 0),
            }
        )
        if self.interval_seconds is None:
            self.warnings += report.warnings
            return
        for warning in report.warnings:
            self.lines.warning(warning)
        if numbers.get("records"):
            self.lines.info(
                f"{counted(numbers['records'], 'record')}, {counted(written, 'row')} written, table version"
                f" {report.summary['table version']} ({shown_duration(seconds)})"
            )

    @property
    def lines(self) -> LogLines:
        """Prints the lines of this export."""
        return replace(self.context.lines, name=self.name)

    def row(self) -> dict[str, Value]:
        """The row of the export in the job's report."""
        wanted = self.context.settings.required_export()
        return {
            "export": self.name,
            "topic": wanted.topic,
            "table": wanted.table,
            "table version": self.last.summary["table version"] if self.last else None,
            "runs": self.runs,
            **{name: self.counts[name] for name in ("records", "rows written", "rows deleted", "dead letters")},
        }


def run_exports(context: JobContext) -> JobReport:
    """Run the export of the section `export`, or the exports of the section `exports`, and report the results.

    Raises:
        LogError: the only export failed, or the request is wrong.
    """
    exports = chosen_exports(context)
    (first, *others) = exports
    if not others and first.interval_seconds is None:
        return export_topic(first.context)
    _run_in_turn(exports)
    if not others and first.failure is not None:
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
        failures=[f"{each.name}: {each.failure}" for each in exports if each.failure is not None],
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
        return [ExportRuns.of(wanted.topic, _once_if_asked(context))]
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
    return [
        ExportRuns.of(name, _once_if_asked(replace(context, settings=settings.with_export(name)))) for name in names
    ]


def _once_if_asked(context: JobContext) -> JobContext:
    """The context of an export, which runs once if an option of the command line is for a single run."""
    arguments: Mapping[str, object] = vars(context.arguments)
    if not any(arguments.get(name) for name in OPTIONS_OF_ONE_EXPORT.values()):
        return context
    once = context.settings.required_export().model_copy(update={"trigger": AVAILABLE_NOW})
    return replace(context, settings=context.settings.model_copy(update={"export": once}))


def _run_in_turn(exports: Sequence[ExportRuns]) -> None:
    """Run each export when it is due, until no export is due any more, or the process is asked to stop."""
    stop = StopRequest()
    is_first_round = True
    with stop.listening():
        while not stop.asked:
            for each in exports:
                if each.due is not None and each.due <= time.monotonic() and not stop.asked:
                    each.run()
                    if each.failure is not None and each.due is not None:
                        pause = shown_duration(max(0.0, each.due - time.monotonic()))
                        each.lines.failed(f"{each.failure}; next attempt in {pause}")
            due = [each.due for each in exports if each.due is not None]
            if not due or (is_first_round and all(each.failure for each in exports)):
                return
            is_first_round = False
            stop.wait(max(0.0, min(due) - time.monotonic()))
