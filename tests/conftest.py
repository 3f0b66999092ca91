"""What tests share: one Spark session for the whole run, with the settings that jobs have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pipeline.session import spark_session  # a run without Spark tests does not need it

    session = spark_session("lakelog-tests")
    yield session
    session.stop()
