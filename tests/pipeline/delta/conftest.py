"""Provides a topic in memory, and an export of it in each mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.delta.export_plan import Export, ExportMode
from tests.pipeline.delta.order_log import Log
from tests.pipeline.delta.order_models import Order, schema_of
from tests.stores import root_at


@pytest.fixture
def log(spark: SparkSession, request: pytest.FixtureRequest) -> Log:
    return Log(spark, with_spark=getattr(request, "param", False))


@pytest.fixture
def upsert(tmp_path: Path) -> Export:
    tables = root_at(tmp_path / "orders"), root_at(tmp_path / "dead_letters")
    return Export("orders", "AAAAAAAAAAAAAAAAAAAAAA", ExportMode.UPSERT, schema_of(Order), *tables)


@pytest.fixture
def append(upsert: Export) -> Export:
    return replace(upsert, mode=ExportMode.APPEND)
