"""Several queries with different filters can use the result of one load(). Tests that each query gets its own rows.
With Spark 4.2, a source that accepts filters from Spark fails these tests: see
docs/decisions/0047-no-filters-from-spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakelog
from tests.stores import root_at

SETTING = "spark.sql.python.filterPushdown.enabled"
START_MS = 1_700_000_000_000


@pytest.fixture
def offering(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that offers filters to sources."""
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_each_query_gets_its_own_rows(offering: SparkSession, tmp_path: Path) -> None:
    topic = lakelog.open(root_at(tmp_path), create=True).create_topic("orders")
    for first in (0, 10):
        topic.append([{"value": "v", "timestamp": START_MS + number} for number in range(first, first + 10)])
    orders = offering.read.format("lakelog").load(root=root_at(tmp_path), subscribe="orders")
    assert offsets(orders.where("offset = 3")) == [3]
    assert offsets(orders) == list(range(20))
    early = orders.where(f"timestamp < timestamp_millis({START_MS + 2})")
    assert offsets(early.union(orders.where("offset = 15")).union(orders)) == [
        0,
        0,
        1,
        1,
        *range(2, 15),
        15,
        *range(15, 20),
    ]
