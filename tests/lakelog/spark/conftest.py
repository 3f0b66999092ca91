"""Topics that tests of the source share: in a broker and in a root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.kafka_broker import KafkaBroker
from tests.lakelog.spark.twins import BIG, CUT, EMPTY, SMALL, TRANSACTED, Twins, record


@pytest.fixture(scope="session")
def twins(spark: SparkSession, kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Nobody changes the topics that are made here; a test that changes one makes its own."""
    twins = Twins(spark, kafka_broker, tmp_path_factory.mktemp("twins"))
    twins.create(BIG, 101, 11, 1)
    twins.create(SMALL, 5)
    twins.create(EMPTY, 0, 0)
    twins.create(CUT, 6)
    twins.delete_before(CUT, 0, 3)
    twins.append(CUT, 0, record(0, 7))
    twins.create(TRANSACTED, 0)
    twins.transact(TRANSACTED, True, False, True)
    yield twins
    twins.close()
