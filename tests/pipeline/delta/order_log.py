"""Provides a topic of orders in memory, and exports of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakelog.delta.rows import open_rows
from lakelog.rows import ROWS
from lakelog.spark.splits import RECORDS, RecordTask
from pipeline.delta import exporting
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportBounds, ExportResult, PartitionOffsets
from pipeline.delta.exporting import export_increment
from pipeline.delta.table_history import plan_from_history
from pipeline.delta.table_schema import Notify
from pipeline.delta.without_spark import small_export
from pipeline.delta.without_spark.small_export import export_without_spark
from pipeline.delta.without_spark.topic_records import ReadBatches
from pipeline.settings.job_keys import DEFAULT_SPARK_RECORDS
from tests.roots.delta_tables import table_at

KAFKA_ROWS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Log:
    """A topic in memory. A value that is an int is the number of an order; timestamps count from 1970 in seconds.

    with_spark: whether Spark makes each export. Otherwise Spark makes only the exports that need it.
    """

    def __init__(self, spark: SparkSession, *, with_spark: bool = False) -> None:
        self.spark = spark
        self.with_spark = with_spark
        self.records: dict[int, list[tuple[Any, ...]]] = {}
        self.in_order: list[tuple[Any, ...]] = []
        self.clock = 0

    def add(
        self,
        key: bytes | None,
        value: int | bytes | None,
        partition: int = 0,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.clock += 1
        records = self.records.setdefault(partition, [])
        encoded = b'{"number": %d, "colour": "red"}' % value if isinstance(value, int) else value
        moment = datetime.fromtimestamp(self.clock if timestamp is None else timestamp, UTC)
        records.append((key, encoded, "orders", partition, len(records), moment, 0, [("trace", b"1"), *headers]))
        self.in_order.append(records[-1])

    def ranges(self) -> dict[int, PartitionOffsets]:
        return {partition: PartitionOffsets(0, len(records)) for partition, records in self.records.items()}

    def read(
        self,
        start: Mapping[int, int],
        end: Mapping[int, int],
        _known: Mapping[int, int],
        then: RecordTask = RECORDS,
    ) -> DataFrame:
        records = self.spark.createDataFrame(self._between(start, end), KAFKA_ROWS).coalesce(1)  # few: no shuffle
        return records if then is RECORDS else then.of(records)

    def read_batches(
        self, start: Mapping[int, int], end: Mapping[int, int], _known: Mapping[int, int]
    ) -> Iterator[pa.RecordBatch]:
        """The same records for an export without Spark."""
        columns = zip(*self._between(start, end), strict=True)
        yield pa.record_batch([pa.array(list(each), kind.type) for each, kind in zip(columns, ROWS, strict=True)], ROWS)

    def _between(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[tuple[Any, ...]]:
        return [record for each in start for record in self.records[each][start[each] : end[each]]]


def run(
    log: Log, export: Export, bounds: ExportBounds = NO_BOUNDS, max_share: float = 1, notify: Notify = lambda _: None
) -> ExportResult:
    if not log.with_spark and (found := run_small(log, export, bounds, max_share)) is not None:
        return found
    return export_increment(
        log.spark, export, log.ranges(), log.read, bounds=bounds, max_share=max_share, notify=notify
    )


def run_small(
    log: Log,
    export: Export,
    bounds: ExportBounds = NO_BOUNDS,
    max_share: float = 1,
    read: ReadBatches | None = None,
    spark_records: int = DEFAULT_SPARK_RECORDS,
) -> ExportResult | None:
    """An export without Spark; None if it needs Spark."""
    plan = plan_from_history(export, log.ranges(), bounds)
    if plan is None:
        return None
    if not plan.waiting:
        return ExportResult(plan=plan, table_version=plan.table_version)
    accepted = bounds.up_to is not None
    return export_without_spark(
        export, plan, read or log.read_batches, max_share=max_share, spark_records=spark_records, accepted=accepted
    )


def rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_rows(table_at(path)).read_all().to_pylist()
    return found


class Killed(BaseException):
    """What ends a process at once."""


STEPS = {
    exporting: ["append_undecodable", "change_files", "commit_changes", "fit_table", "check_committed"],
    small_export: [
        "_append_letters",
        "_write",
        "change_files",
        "commit_changes",
        "head_as_before",
        "check_committed",
    ],
}
"""The steps of an upsert with Spark, and of one without Spark."""


def killed_in(step: str, *, after: bool, patch: pytest.MonkeyPatch, way: ModuleType = exporting) -> None:
    """Kills the next export before or after a step. way: the module that makes the step."""
    whole = getattr(way, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if after:
            whole(*arguments, **named)
        raise Killed

    patch.setattr(way, step, killed)
