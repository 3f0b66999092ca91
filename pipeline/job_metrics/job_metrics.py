"""Collects the metrics of one run of a job, and gives them to a file, to scrapes and to Spark.

The file and Spark's gauges are brought up to date every five seconds, at the end of each piece of work, and at the end
of the job. A scrape always gets the metrics of its moment. If the file can no longer be written, for example because
the disk is full, the job continues. A killed job cannot write that it has ended. So in the file, lakelog_job_running
stays 1, and lakelog_job_updated_timestamp_seconds does not change any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lakelog.optional import optional
from lakelog.terminal.progress_display import ProgressDisplay
from pipeline.job_metrics.job_figures import JOB_LABELS, Facts, added, facts_of, families_of_work
from pipeline.job_metrics.outputs import Endpoint, MetricsOutput, SparkMetrics, Textfile
from storage_engine.clock import Clock, SystemClock
from storage_engine.errors import ExitStatus, StorageError
from storage_engine.progress import Meter

with optional("prometheus_client", "lakelog[metrics]", "The metrics of a job"):
    from prometheus_client.core import GaugeMetricFamily, Metric

_WRITE_SECONDS = 5.0
_EXIT_STATUS, _SUCCESS = "lakelog_job_exit_status", "lakelog_job_success_timestamp_seconds"


@dataclass(frozen=True)
class MetricsTargets:
    """Where the metrics of a run go.

    textfile: a file; its directory must exist. The file may have the metrics of an earlier run.
    listen: the host and the port that answer scrapes; port 0 chooses a free port.
    spark: whether Spark's metrics system gets the metrics, if the job starts Spark.
    """

    textfile: Path | None = None
    listen: tuple[str, int] | None = None
    spark: bool = False


class JobMetrics:
    """A display that also collects the metrics of a run. It shows one piece of work after another."""

    def __init__(
        self, display: ProgressDisplay, targets: MetricsTargets, job: str, conf: str, clock: Clock | None = None
    ) -> None:
        """
        Args:
            display: also shows the work.
            conf: the name of the settings file without its suffix; empty without a settings file.

        Raises:
            StorageError: the file cannot be written, or the port cannot be opened.
        """
        self._display = display
        self._labels = (job, conf.encode(errors="replace").decode())  # a file's name may have bytes that are not UTF-8
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._writing = threading.Lock()  # the outputs are slow, and must not hold up the work
        self._running: dict[str, Meter] = {}
        self._done: dict[str, Facts] = {}
        self._has_ended = False
        self._status: ExitStatus | int | None = None
        self._success_ms: int | None = None
        self._started_ms = self._clock.now_ms()
        self._outputs: list[MetricsOutput] = []
        self.url: str | None = None
        """The address for scrapes; None if there is none."""
        self._open(targets)
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._write_repeatedly, name="job-metrics", daemon=True)
        self._watch.start()

    def _open(self, targets: MetricsTargets) -> None:
        if targets.listen is not None:  # first: a job that ends here must not replace the file
            endpoint = Endpoint(*targets.listen, self._families)
            self.url = endpoint.url
            self._outputs.append(endpoint)
        if targets.spark:
            self._outputs.append(SparkMetrics(self._families))
        if targets.textfile is None:
            return
        try:
            textfile = Textfile(targets.textfile, self._families)
            status, success = (textfile.value(each, self._labels) for each in (_EXIT_STATUS, _SUCCESS))
            self._status = None if status is None else int(status)
            self._success_ms = None if success is None else round(success * 1000)
            textfile.write()
        except StorageError:
            for output in self._outputs:
                output.close()
            raise
        self._outputs.append(textfile)

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
                    self._done[name] = added(self._done.get(name, {}), facts_of(meter))
                self._write_if_possible()

    def end(self, status: ExitStatus | int) -> None:
        """Write the end of the job, and close the address for scrapes. Call this once."""
        self._ended.set()
        self._watch.join()
        with self._lock:
            self._has_ended, self._status = True, status
            if status == ExitStatus.DONE:
                self._success_ms = self._clock.now_ms()
        self._write_if_possible()
        for output in self._outputs:
            output.close()

    def _write_repeatedly(self) -> None:
        while not self._ended.wait(_WRITE_SECONDS):
            self._write_if_possible()

    def _write_if_possible(self) -> None:
        with self._writing:
            for output in self._outputs:
                with suppress(StorageError):
                    output.write()

    def _families(self) -> Sequence[Metric]:
        with self._lock:
            running = {name: added(self._done.get(name, {}), facts_of(meter)) for name, meter in self._running.items()}
            return [*self._of_the_run(), *families_of_work(self._labels, self._done | running)]

    def _of_the_run(self) -> Iterator[Metric]:
        yield self._gauge("running", "1 while the job runs, 0 after its end.", int(not self._has_ended))
        yield self._gauge("start_timestamp_seconds", "When the run started.", self._started_ms / 1000)
        updated_ms = self._clock.now_ms()
        yield self._gauge("updated_timestamp_seconds", "When the job wrote these metrics.", updated_ms / 1000)
        if self._status is not None:
            yield self._gauge("exit_status", "The exit status of the last run that has ended.", int(self._status))
        if self._success_ms is not None:
            text = "When a run last ended with exit status 0."
            yield self._gauge("success_timestamp_seconds", text, self._success_ms / 1000)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"lakelog_job_{name}", text, labels=JOB_LABELS)
        family.add_metric(self._labels, value)
        return family
