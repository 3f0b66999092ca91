"""Where the metrics of a job go: a file, an address for scrapes, and Spark's metrics system.

    Textfile       replaces a file in Prometheus's text format, which node_exporter's textfile collector reads
    Endpoint       answers scrapes at http://HOST:PORT/metrics while the job runs
    SparkMetrics   sets gauges of Spark's driver, which Spark's own sinks report (metrics.properties)

Spark registers a user's values with its metrics system only as accumulators, through its class
DoubleAccumulatorSource. So SparkMetrics keeps an accumulator for each value. A gauge is called

    <application id>.driver.AccumulatorSource.lakelog_job_records_total.ingest_orders

The words after the metric's name are the labels `work`, and `phase` or `reason`. In these words, each character that is
not a letter, a digit, `_` or `-` is replaced by `_`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lakelog.metrics.scrape_server import CurrentMetrics, ScrapeServer
from lakelog.optional import optional
from pipeline.job_metrics.job_figures import JOB_LABELS
from storage_engine.errors import StorageError
from storage_engine.storage.storage_opening import open_directory

with optional("prometheus_client", "lakelog[metrics]", "The metrics of a job"):
    from prometheus_client import generate_latest
    from prometheus_client.core import Metric
    from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from pyspark import SparkContext

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
Families = Callable[[], Sequence[Metric]]
"""Makes the metrics of this moment. Several threads may call it."""


class MetricsOutput(Protocol):
    """A place for metrics. Only one thread at a time uses it."""

    def write(self) -> None:
        """Bring the place up to date.

        Raises:
            StorageError: a file cannot be written.
        """

    def close(self) -> None:
        """End the output. The last metrics stay where the place can keep them."""


class Textfile:
    """A file that is replaced as a whole, so a reader never sees a part of it."""

    def __init__(self, path: Path, families: Families) -> None:
        """path: its directory must exist. The file may have the metrics of an earlier run."""
        self._directory = open_directory(path.parent)
        self._name = path.name
        self._families = families

    def value(self, metric: str, labels: Sequence[str]) -> float | None:
        """A number that an earlier run wrote; None if the file does not have it.

        Args:
            labels: the values of JOB_LABELS.
        """
        try:
            text = self._directory.read(self._name).decode()
            samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        except (StorageError, ValueError):  # there is no file, or it is not a file of metrics
            return None
        wanted = dict(zip(JOB_LABELS, labels, strict=True))
        found = (each.value for each in samples if each.name == metric and each.labels == wanted)
        return next(filter(math.isfinite, found), None)

    def write(self) -> None:
        self._directory.replace(self._name, generate_latest(CurrentMetrics(self._families)))

    def close(self) -> None:
        """The file keeps the last metrics."""


class Endpoint:
    """Answers scrapes in threads of its own. Each scrape gets the metrics of its moment."""

    def __init__(self, host: str, port: int, families: Families) -> None:
        """
        Args:
            port: 0 chooses a free port.

        Raises:
            StorageAccessError: the port cannot be opened.
        """
        self._server = ScrapeServer("--metrics-listen", host, port, families)
        self.url = self._server.url

    def write(self) -> None:
        """A scrape gets the metrics from `families`."""

    def close(self) -> None:
        self._server.close()


class SparkMetrics:
    """Gauges in the metrics system of this process's Spark application. Without such an application, nothing happens."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._application = ""
        self._gauges: dict[str, Any] = {}

    def write(self) -> None:
        context = _spark_context()
        if context is None or (of_java := _of_java(context)) is None:
            return
        from pipeline.spark.failures import SPARK_ERRORS

        with suppress(*SPARK_ERRORS, OSError):  # Spark is ending
            of_scala = of_java.sc()
            if self._application != (application := of_scala.applicationId()):
                self._application, self._gauges = application, {}
            values = {
                spark_name(sample.name, sample.labels): sample.value
                for family in self._families()
                for sample in family.samples
            }
            self._register(context, of_scala, values.keys() - self._gauges.keys())
            for name, value in values.items():
                self._gauges[name].setValue(float(value))

    def _register(self, context: SparkContext, of_scala: Any, names: set[str]) -> None:
        if not names:
            return
        jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no other access to the metrics system
        new = jvm.java.util.HashMap()
        for name in sorted(names):
            self._gauges[name] = of_scala.doubleAccumulator(name)
            new.put(name, self._gauges[name])
        source = getattr(jvm.org.apache.spark.metrics.source, "DoubleAccumulatorSource$")
        getattr(source, "MODULE$").register(of_scala, jvm.PythonUtils.toScalaMap(new))

    def close(self) -> None:
        """Spark keeps the last values until the application ends."""


def spark_name(metric: str, labels: dict[str, str]) -> str:
    """The name of a value in Spark's metrics system, without Spark's own words before it."""
    words = [value for label, value in labels.items() if label not in JOB_LABELS]
    return ".".join([metric, *(_NOT_IN_NAMES.sub("_", word) for word in words)])


def _spark_context() -> SparkContext | None:
    """The Spark context of this process, which may have been stopped; None if there is none."""
    if "pyspark" not in sys.modules:  # the import takes long, and a process without it has no context
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context  # noqa: SLF001 - any public call would create one


def _of_java(context: SparkContext) -> Any | None:
    """The context's object in the JVM; None if the context was stopped. Read it once: another thread may stop the context,
    and then the attribute is None."""
    return context._jsc  # noqa: SLF001
