"""Fixtures of all tests: Spark sessions with the settings of jobs, and one Kafka broker.

`make test` runs three workers, because a test that waits for a process or a server leaves a core free. The modules that
need the broker run in one worker, and the other modules that need Spark in another worker. So there is one broker and
there are two sessions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from scripts.install_chromium import chromium as chromium_of_npm
from storage_engine.storage.storage_options import VARIABLE
from tests.java_options import JAVA_OPTIONS
from tests.lakelog.report.chromium import Chromium, find_chromium
from tests.memory_folder import use_memory
from tests.stores import bucket_of_its_own, choose_tests, environment, new_bucket, serving_store

if TYPE_CHECKING:
    from tests.kafka_broker import KafkaBroker
    from tests.servers.faulty_proxy import FaultyProxy
    from tests.servers.minicluster import HdfsCluster
    from tests.servers.object_server import ObjectServer
    from tests.servers.sql.databases import Databases

# Each plan runs a few times, over a few rows: compiling it would take several times as long as running it. Delta's VACUUM
# lists the folders of a table in ten thousand tasks, unless a setting says less. The state of a table of a few files is
# computed in one task instead of two. Spark keeps the plans and figures of a thousand queries for its UI, also without a
# UI. The garbage collector of a session that lives for the whole run would look at them again and again. Everything else
# is as in a job.
_SPARK_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
}
_OPTIONS = [f"--conf {name}={value}" for name, value in _SPARK_SETTINGS.items()]
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", " ".join([*_OPTIONS, "pyspark-shell"]))

_HEAP = "-Xms1400m -Xmn700m -XX:MetaspaceSize=256m"
"""Java options of the shared session. Otherwise Java starts with a small heap and a small space for classes, and collects
garbage each time before one of them grows."""

# Deadlines measure the machine, which others use as well; the first example also loads kernels.
settings.register_profile(
    "lakelog", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("lakelog")

use_memory()

for name in ("COLUMNS", "LINES"):  # a worker is told of a terminal of 80 columns that is not there
    os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the modules and the items of all tests, half a million objects, from garbage collection. Otherwise each full
    collection looks at all of them, which takes a quarter of a second."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_unconfigure() -> None:
    gc.unfreeze()  # at the end of the process, Python collects everything, and some packages count what is left


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one worker run the tests of a module that share a fixture, and the tests that share a service.

    If the roots are in a store (tests.stores), only the tests that use the store are run.
    """
    others = choose_tests(items)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    groups = {
        item.path: "tables" if item.path.is_relative_to(_TABLES) else _SERVICES[each]
        for each in reversed(_SERVICES)
        for item in items
        if _uses(item, each)
    }
    for item in items:
        shares = isinstance(item, pytest.Function) and _shares_with_module(item)
        if shares or any(_uses(item, each) for each in _SERVICES):
            _join_group(item, groups.get(item.path, item.path.name))


def _join_group(item: pytest.Item, group: str) -> None:
    """Let pytest-xdist run a test on the worker that runs the others of its group.

    The text after an @ in the id is the group. For a mark, pytest-xdist 3.8 would write the group to a place that
    pytest 9.2 does not read.
    """
    item._id = NodeId.parse(f"{item.nodeid}@{group}")


_SERVICES = {"kafka_broker": "spark", "spark": "spark", "hdfs_cluster": "hdfs", "databases": "spark"}
"""By fixture, the group of the modules that use it; a module that uses both is in the first one's group."""

_TABLES = Path(__file__).parent / "pipeline" / "delta"
"""The tests below this folder use Spark about as long as all others together. So they are a group with a session of its
own."""

BUCKET = "bucket_of_module"
"""The fixture that each test uses, whichever worker runs it."""


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _shares_with_module(item: pytest.Function) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs
    return any(each.scope == "module" for name in definitions.keys() - {BUCKET} for each in definitions[name])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pipeline.spark.session import spark_session  # a run without Spark tests does not need it

    arguments = f"--driver-java-options '{_HEAP}' {os.environ['PYSPARK_SUBMIT_ARGS']}"
    with patch.dict(os.environ, {**JAVA_OPTIONS, "PYSPARK_SUBMIT_ARGS": arguments}):
        session = spark_session("lakelog-tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """Shared by all tests: each makes topics of its own. The broker deletes no records by itself: the timestamps of many
    tests are fixed, and older than the week that its topics keep records."""
    from tests.kafka_broker import KafkaBroker  # a run without Kafka tests does not need its clients

    with KafkaBroker(secure=True, more_properties="log.initial.task.delay.ms=86400000\n") as broker:
        yield broker


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """PostgreSQL and MariaDB, each started by the first test that needs it. All tests share the servers. Each test
    makes its own tables."""
    from tests.servers.sql.databases import Databases

    with Databases() as servers:
        yield servers


@pytest.fixture(scope="session")
def hdfs_cluster() -> Iterator[HdfsCluster]:
    """Shared by all tests: each makes a root of its own."""
    from tests.servers.minicluster import HdfsCluster

    with HdfsCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for each module: it starts in a second, and a browser that waits until the end of all tests takes more
    of the processor than the tests that use it."""
    program = find_chromium() or chromium_of_npm()
    if program is None:
        pytest.skip("found no Chromium, and no npm to install it: no page was looked at in a browser")
    with Chromium.started(str(program), tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    """Each worker has a server of its own."""
    from tests.servers.versitygw import s3_server  # a run without an S3 server does not build one

    with s3_server() as server:
        yield server


@pytest.fixture
def proxy(s3: ObjectServer) -> Iterator[FaultyProxy]:
    """In front of the S3 server; it damages requests when a test says so."""
    from tests.servers.faulty_proxy import FaultyProxy

    with FaultyProxy(s3) as running:
        yield running


@pytest.fixture(scope="session")
def azure() -> Iterator[ObjectServer]:
    """Only `make test-stores` installs Azurite."""
    from tests.servers.azurite import azure_server

    with azure_server() as server:
        yield server


@pytest.fixture
def s3_bucket(s3: ObjectServer) -> str:
    """The name of an empty bucket."""
    return new_bucket(s3)


@pytest.fixture
def s3_root(s3: ObjectServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a root without files, which this process and the processes that it starts can open."""
    for name, value in environment(s3, s3_bucket).items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_bucket}/some/root"


@pytest.fixture(scope="session", autouse=True)
def server_of_roots() -> Iterator[ObjectServer | None]:
    """The server with the roots that tests.stores returns; None if these roots are local."""
    with serving_store() as server:
        yield server


@pytest.fixture(scope="module", autouse=True, name=BUCKET)
def bucket_of_module(server_of_roots: ObjectServer | None) -> Iterator[None]:
    with bucket_of_its_own(server_of_roots):
        yield


@pytest.fixture(autouse=True)
def storage_options_stay(bucket_of_module: None) -> Iterator[None]:
    """Fail the test that leaves its storage options in the environment. Otherwise another test of this worker would open
    the wrong store."""
    before = os.environ.get(VARIABLE)
    yield
    if os.environ.get(VARIABLE) != before:
        pytest.fail(f"the test leaves {VARIABLE} changed", pytrace=False)
