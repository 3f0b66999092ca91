"""Writes the metrics of one run of a job to a file, in Prometheus's text format. node_exporter's textfile collector
reads such files.

The file is replaced every five seconds, at the end of each piece of work, and at the end of the job. So a reader never
sees a part of the file. If the file can no longer be written, for example because the disk is full, the job continues.
A killed job cannot write that it has ended. So lakelog_job_running stays 1, and lakelog_job_updated_timestamp_seconds
does not change any more. docs/MONITORING.md lists the metrics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lakelog.optional import optional
from lakelog.terminal.progress_display import ProgressDisplay
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import ExitStatus, StorageError
from storage_engine.progress import Meter
from storage_engine.storage.storage_opening import open_directory

with optional("prometheus_client", "lakelog[metrics]", "The option --metrics-textfile"):
    from prometheus_client import generate_latest
    from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.parser import text_string_to_metric_families

_WRITE_SECONDS = 5.0
_SUCCESS = "lakelog_job_success_timestamp_seconds"
_JOB = ("name", "conf")
"""The labels of each metric. The label `job` would collide with Prometheus's own label of this name."""


@dataclass(frozen=True)
class _Figure:
    """The metric of a figure that a Meter has (Meter.figure).

    label: the label for the names, if the figure has several numbers by name.
    is_total: the figure only grows while the work lasts.
    """

    metric: str
    text: str
    label: str | None = None
    is_total: bool = True


_AMOUNTS = {
    "records": _Figure("lakelog_job_records", "The number of records that the work has processed."),
    "bytes": _Figure("lakelog_job_bytes", "The number of bytes that the work has processed."),
    "expected_records": _Figure(
        "lakelog_job_expected_records",
        "The number of all records of the work: processed records and remaining records.",
        is_total=False,
    ),
    "expected_bytes": _Figure(
        "lakelog_job_expected_bytes",
        "The number of all bytes of the work: processed bytes and remaining bytes.",
        is_total=False,
    ),
}
_FIGURES = {
    "batches": _Figure("lakelog_job_batches", "Committed micro-batches."),
    "batch_seconds": _Figure("lakelog_job_batch_seconds", "Duration of the last micro-batch.", is_total=False),
    "phase_seconds": _Figure("lakelog_job_phase_seconds", "Duration of all micro-batches together, by phase.", "phase"),
    "spark_seconds": _Figure(
        "lakelog_job_spark_seconds", "Duration of the last micro-batch, by Spark's phases.", "phase", is_total=False
    ),
    "dead_letters": _Figure("lakelog_job_dead_letters", "Rows that became dead letters.", "reason"),
}
_ALL = _AMOUNTS | _FIGURES
_Values = Mapping[str, float]
_Facts = Mapping[str, float | _Values]
"""The amounts and figures of some work, by name."""


class JobMetrics:
    """A display that also writes the metrics of a run to a file. It shows one piece of work after another."""

    def __init__(self, display: ProgressDisplay, path: Path, job: str, conf: str, clock: Clock | None = None) -> None:
        """
        Args:
            display: also shows the work.
            path: the file; its directory must exist. The file may have the metrics of an earlier run.
            conf: the name of the settings file without its suffix; empty without a settings file.

        Raises:
            StorageError: the file cannot be written.
        """
        self._display = display
        self._directory = open_directory(path.parent)
        self._name = path.name
        self._labels = (job, conf)
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._running: dict[str, Meter] = {}
        self._done: dict[str, _Facts] = {}
        self._status: ExitStatus | int | None = None
        self._success_ms = self._earlier_success()
        self._started_ms = self._clock.now_ms()
        self._ended = threading.Event()
        self._write()
        self._watch = threading.Thread(target=self._write_repeatedly, name="job-metrics", daemon=True)
        self._watch.start()

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:
        with self._display.work(name, plain_lines=plain_lines) as meter:
            with self._lock:
                self._running[name] = meter
            try:
                yield meter
            finally:
                with self._lock:
                    del self._running[name]
                    self._done[name] = _added(self._done.get(name, {}), _facts(meter))
                self._write_if_possible()

    def end(self, status: ExitStatus | int) -> None:
        """Write the end of the job. Call this once."""
        self._ended.set()
        self._watch.join()
        with self._lock:
            self._status = status
            if status == ExitStatus.DONE:
                self._success_ms = self._clock.now_ms()
        self._write_if_possible()

    def _earlier_success(self) -> int | None:
        """When an earlier run of the same job succeeded, in milliseconds; None if the file does not say this."""
        try:
            text = self._directory.read(self._name).decode()
            samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        except (StorageError, ValueError):  # there is no file, or it is not a file of metrics
            return None
        labels = dict(zip(_JOB, self._labels, strict=True))
        found = [each.value for each in samples if each.name == _SUCCESS and each.labels == labels]
        return round(found[0] * 1000) if found else None

    def _write_repeatedly(self) -> None:
        while not self._ended.wait(_WRITE_SECONDS):
            self._write_if_possible()

    def _write_if_possible(self) -> None:
        with suppress(StorageError):
            self._write()

    def _write(self) -> None:
        with self._lock:
            families = [*self._of_the_run(), *self._of_the_work()]
            self._directory.replace(self._name, generate_latest(_Families(families)))

    def _of_the_run(self) -> Iterator[Metric]:
        yield self._gauge("running", "1 while the job runs, 0 after its end.", int(self._status is None))
        yield self._gauge("start_timestamp_seconds", "When the run started.", self._started_ms / 1000)
        updated_ms = self._clock.now_ms()
        yield self._gauge("updated_timestamp_seconds", "When the job wrote these metrics.", updated_ms / 1000)
        if self._status is not None:
            yield self._gauge("exit_status", "The exit status of the run.", int(self._status))
        if self._success_ms is not None:
            text = "When a run last ended with exit status 0."
            yield self._gauge("success_timestamp_seconds", text, self._success_ms / 1000)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"lakelog_job_{name}", text, labels=_JOB)
        family.add_metric(self._labels, value)
        return family

    def _of_the_work(self) -> Iterator[Metric]:
        running = {name: _added(self._done.get(name, {}), _facts(meter)) for name, meter in self._running.items()}
        works = self._done | running
        for name, figure in _ALL.items():
            labels = (*_JOB, "work", *([figure.label] if figure.label else []))
            family = (CounterMetricFamily if figure.is_total else GaugeMetricFamily)(
                figure.metric, figure.text, labels=labels
            )
            for work, facts in works.items():
                value = facts.get(name)
                for label, number in value.items() if isinstance(value, Mapping) else [(None, value)]:
                    if number is not None:
                        family.add_metric([*self._labels, work, *([label] if label is not None else [])], number)
            if family.samples:
                yield family


def _facts(meter: Meter) -> _Facts:
    """What a meter knows: its amounts, and its figures."""
    known = meter.facts()
    return {name: value for name in _ALL if (value := known.get(name)) is not None and not isinstance(value, str)}


def _added(before: _Facts, now: _Facts) -> _Facts:
    """The facts of all work with one name: those of the earlier work and of the newest work together."""
    added = dict(now)
    for name, earlier in before.items():
        if not _ALL[name].is_total:
            continue
        value = now.get(name)
        if isinstance(earlier, Mapping):
            later = value if isinstance(value, Mapping) else {}
            added[name] = {each: earlier.get(each, 0) + later.get(each, 0) for each in [*earlier, *later]}
        else:
            added[name] = earlier + (value if isinstance(value, int | float) else 0)
    return added


class _Families(CollectorRegistry):
    """A registry with these metrics."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
