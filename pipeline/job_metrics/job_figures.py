"""Makes Prometheus's metrics from the amounts and figures that a Meter has.

If several pieces of work have the same name, their totals are added. A figure that is no total has the value of the
newest piece of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lakelog.optional import optional
from storage_engine.progress import Meter

with optional("prometheus_client", "lakelog[metrics]", "The metrics of a job"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

JOB_LABELS = ("name", "conf")
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


_FIGURES = {
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
    "batches": _Figure("lakelog_job_batches", "Committed micro-batches."),
    "batch_seconds": _Figure("lakelog_job_batch_seconds", "Duration of the last micro-batch.", is_total=False),
    "phase_seconds": _Figure("lakelog_job_phase_seconds", "Duration of all micro-batches together, by phase.", "phase"),
    "spark_seconds": _Figure(
        "lakelog_job_spark_seconds", "Duration of the last micro-batch, by Spark's phases.", "phase", is_total=False
    ),
    "input_rows": _Figure("lakelog_job_input_rows", "Rows that Spark has read from the source."),
    "input_rows_per_second": _Figure(
        "lakelog_job_input_rows_per_second", "Rows per second that arrived before the last micro-batch.", is_total=False
    ),
    "processed_rows_per_second": _Figure(
        "lakelog_job_processed_rows_per_second",
        "Rows per second that Spark processed in the last micro-batch.",
        is_total=False,
    ),
    "source_lag_records": _Figure(
        "lakelog_job_source_lag_records", "Records of the source that the ingest has not read yet.", is_total=False
    ),
    "dead_letters": _Figure("lakelog_job_dead_letters", "Rows that became dead letters.", "reason"),
}
_Values = Mapping[str, float]
Facts = Mapping[str, float | _Values]
"""The amounts and figures of some work, by name."""


def facts_of(meter: Meter) -> Facts:
    """What a meter knows: its amounts, and its figures."""
    known = meter.facts()
    return {name: value for name in _FIGURES if (value := known.get(name)) is not None and not isinstance(value, str)}


def added(before: Facts, now: Facts) -> Facts:
    """The facts of all work with one name: those of the earlier work and of the newest work together."""
    found = dict(now)
    for name, earlier in before.items():
        if not _FIGURES[name].is_total:
            continue
        value = now.get(name)
        if isinstance(earlier, Mapping):
            later = value if isinstance(value, Mapping) else {}
            found[name] = {each: earlier.get(each, 0) + later.get(each, 0) for each in [*earlier, *later]}
        else:
            found[name] = earlier + (value if isinstance(value, int | float) else 0)
    return found


def families_of_work(job: tuple[str, str], works: Mapping[str, Facts]) -> Iterator[Metric]:
    """The metrics of all pieces of work.

    Args:
        job: the values of JOB_LABELS.
        works: the facts, by the name of the work.
    """
    for name, figure in _FIGURES.items():
        labels = (*JOB_LABELS, "work", *([figure.label] if figure.label else []))
        family = (CounterMetricFamily if figure.is_total else GaugeMetricFamily)(
            figure.metric, figure.text, labels=labels
        )
        for work, facts in works.items():
            value = facts.get(name)
            for label, number in value.items() if isinstance(value, Mapping) else [(None, value)]:
                if number is not None:
                    family.add_metric([*job, work, *([label] if label is not None else [])], number)
        if family.samples:
            yield family
