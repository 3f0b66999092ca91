"""Provides a topic of orders in memory, and exports of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta import exporting
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportBounds, ExportResult, PartitionOffsets
from pipeline.delta.exporting import export_increment
from pipeline.delta.table_schema import Notify

KAFKA_ROWS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Log:
    """A topic in memory. A value that is an int is the number of an order; timestamps count from 1970 in seconds."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.records: dict[int, list[tuple[Any, ...]]] = {}
        self.in_order: list[tuple[Any, ...]] = []
        self.clock = 0

    def add(
        self, key: bytes | None, value: int | bytes | None, partition: int = 0, timestamp: int | None = None
    ) -> None:
        self.clock += 1
        records = self.records.setdefault(partition, [])
        encoded = b'{"number": %d, "colour": "red"}' % value if isinstance(value, int) else value
        moment = datetime.fromtimestamp(self.clock if timestamp is None else timestamp, UTC)
        records.append((key, encoded, "orders", partition, len(records), moment, 0, [("trace", b"1")]))
        self.in_order.append(records[-1])

    def ranges(self) -> dict[int, PartitionOffsets]:
        return {partition: PartitionOffsets(0, len(records)) for partition, records in self.records.items()}

    def read(self, start: Mapping[int, int], end: Mapping[int, int], _known: Mapping[int, int]) -> DataFrame:
        rows = [record for partition in start for record in self.records[partition][start[partition] : end[partition]]]
        return self.spark.createDataFrame(rows, KAFKA_ROWS).coalesce(1)  # few records: no shuffle


def run(
    log: Log, export: Export, bounds: ExportBounds = NO_BOUNDS, max_share: float = 1, notify: Notify = lambda _: None
) -> ExportResult:
    return export_increment(
        log.spark, export, log.ranges(), log.read, bounds=bounds, max_share=max_share, notify=notify
    )


def rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return found


class Killed(BaseException):
    """What ends a process at once."""


def killed_in(step: str, *, after: bool, patch: pytest.MonkeyPatch) -> None:
    whole = getattr(exporting, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if after:
            whole(*arguments, **named)
        raise Killed

    patch.setattr(exporting, step, killed)
