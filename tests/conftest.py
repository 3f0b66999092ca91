"""Fixtures of all tests: one Spark session for the whole run, with the settings of jobs, and one Kafka broker.

`make test` runs two workers. All tests that use one of these fixtures run in the same worker, so each fixture exists
only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tests.java_options import JAVA_OPTIONS
from tests.lakelog.report.chromium import Chromium, find_chromium

if TYPE_CHECKING:
    from tests.kafka_broker import KafkaBroker

# Each plan runs a few times, over a few rows: compiling it would take several times as long as running it. Everything else
# is as in a job.
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS",
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell",
)

# Deadlines measure the machine, which others use as well; the first example also loads kernels.
settings.register_profile(
    "lakelog", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("lakelog")

for name in ("COLUMNS", "LINES"):  # a worker is told of a terminal of 80 columns that is not there
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what shares a session or a broker, and what shares a fixture of its module: each is made once."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    sharing = {item for item in items if isinstance(item, pytest.Function) and _shares_with_module(item)}
    served = {item.path for item in sharing if _needs_services(item)}
    for item in items:
        if _needs_services(item) or (item in sharing and item.path in served):
            _join_group(item, "services")
        elif item in sharing:
            _join_group(item, item.path.name)


def _join_group(item: pytest.Item, group: str) -> None:
    """Let pytest-xdist run a test on the worker that runs the others of its group.

    What follows an @ is the group. pytest-xdist 3.8 would put it there for a mark, but where pytest 9.2 does not look.
    """
    item._id = NodeId.parse(f"{item.nodeid}@{group}")


def _needs_services(item: pytest.Item) -> bool:
    return bool({"spark", "kafka_broker"} & set(getattr(item, "fixturenames", ())))


def _shares_with_module(item: pytest.Function) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs
    return any(each.scope == "module" for name in definitions for each in definitions[name])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pipeline.spark.session import spark_session  # a run without Spark tests does not need it

    with patch.dict(os.environ, JAVA_OPTIONS):
        session = spark_session("lakelog-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """Shared by all tests: each makes topics of its own."""
    from tests.kafka_broker import KafkaBroker  # a run without Kafka tests does not need its clients

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on PATH: the report was not looked at in a browser")
    with Chromium.started(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
