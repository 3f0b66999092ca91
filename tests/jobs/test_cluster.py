"""Runs jobs and a user's own program on a standalone cluster whose Python has none of Lakelog's packages.

A Master and two Workers run from the jars of PySpark, without the jars that set-up adds, in a separate environment. The
executors get Lakelog only from the archive of `--ship`. The driver and each executor need some seconds to unpack the
archive. So one application runs all jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

import lakelog
from pipeline.spark.spark_python import NAME
from scripts.add_jars import ADDED
from scripts.ship_options import SEARCH_PATH, with_archive
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import VARIABLE
from tests.java_options import JAVA_OPTIONS
from tests.servers.minicluster import HdfsCluster
from tests.servers.object_server import ObjectServer

HOME = Path(__file__).resolve().parents[2]
WORKERS = 2
PATIENCE_SECONDS = 120
ORDERS: list[dict[str, Any]] = [
    {"id": f"o{n % 40}", "amount": n / 4, "at": f"2026-01-02T03:{n // 60:02}:{n % 60:02}Z"} for n in range(100)
]
IN_FIRST_BATCH = 60
"""The second micro-batch begins a new segment. So compaction may clean the segment of the first one."""
CONF = """
root: {root}
storage: {{options: {options}}}
topics: {{orders: {{partitions: 2, cleanup.policy: compact, min.cleanable.dirty.ratio: 0.0, segment.ms: 1, schema: order}}}}
ingest:
  topic: orders
  source:
    format: json
    path: {folder}/landing
    schema: "id STRING, amount DOUBLE, at TIMESTAMP"
    options: {{maxFilesPerTrigger: 1}}
  key: id
  value: _line
  timestamp: at
  trigger: available-now
export: {{topic: orders, table: tables/orders, spark.records: 0}}
"""
PROGRAM = """
import json, runpy, sys
from pyspark.sql import SparkSession
import lakelog
import pipeline.clean.runners, pipeline.clean.work_queue

conf, root = sys.argv[1:]
for module in (pipeline.clean.runners, pipeline.clean.work_queue):
    module.SMALL_BYTES = -1  # the driver would compact so little without the executors

for job in ("ingest", "maintenance", "export"):
    sys.argv = [job, "--conf", conf, "--json"]
    try:
        runpy.run_module(f"jobs.{job}", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, (job, ended.code)

def where(batches):
    import numba, lakelog, pyarrow, sys
    for batch in batches:
        told = f"{sys.executable} {lakelog.__file__} {numba.__file__}"
        yield pyarrow.RecordBatch.from_pydict({"told": [told]})

spark = SparkSession.builder.getOrCreate()
lakelog.register(spark)
topic = spark.read.format("lakelog").option("root", root).option("subscribe", "orders").load()
rows = topic.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value").collect()
print(json.dumps({
    "rows": sorted([row.key, row.value] for row in rows),
    "pythons": [row.told for row in spark.range(2, numPartitions=2).mapInArrow(where, "told string").collect()],
}))
"""


@dataclass(frozen=True)
class Cluster:
    """The address of the Master, the folder with the settings and the sources, and the archive for executors."""

    master: str
    folder: Path
    archive: str

    @property
    def events(self) -> Path:
        """The folder in which Spark stores all events of an application, as its UI shows them."""
        return self.folder / "events"

    def run_program(self, root: str, options: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the program with a root, and with storage options that only the settings file of the jobs contains."""
        conf = self.folder / "conf.yaml"
        conf.write_text(CONF.format(folder=self.folder, root=root, options=json.dumps(options)))
        return self.submit(f"--ship={self.archive}", "program.py", str(conf), root)

    def submit(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ./spark-submit.sh with these arguments and the options of the cluster."""
        options = ["--master", self.master, "--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2"]
        options += ["--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file://{self.events}"]
        options += ["--conf", "spark.eventLog.compress=false"]  # a search finds no text in compressed events
        return subprocess.run(
            [HOME / "spark-submit.sh", *arguments, "--", *options],
            cwd=self.folder, env=os.environ | JAVA_OPTIONS | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "landing").mkdir()
    (folder / "events").mkdir()
    for number, orders in enumerate((ORDERS[:IN_FIRST_BATCH], ORDERS[IN_FIRST_BATCH:])):
        file = folder / "landing" / f"{number}.json"
        file.write_text("".join(f"{json.dumps(order)}\n" for order in orders))
        os.utime(file, (number, number))  # Spark reads the oldest file first
    (folder / "program.py").write_text(PROGRAM)
    built = subprocess.run(
        [sys.executable, "-P", "-m", "scripts.executor_archive", "--to", folder / "dist", "--level", "0"],
        cwd=folder, env=os.environ | {"NUMBA_CACHE_DIR": str(HOME / ".venv/numba-cache")}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    with ExitStack() as processes:
        port = free_port()
        spark = spark_without_our_jars(folder / "spark")
        started(
            processes,
            spark,
            folder / "master",
            "master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
        workers = [
            started(
                processes, spark, folder / f"worker{number}", "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"worker{number}"), f"spark://127.0.0.1:{port}",
            )
            for number in range(WORKERS)
        ]  # fmt: skip
        for log in workers:
            await_line(log, "Successfully registered with master")
        yield Cluster(f"spark://127.0.0.1:{port}", folder, built.stdout.strip())
    shutil.rmtree(folder, ignore_errors=True)  # gigabytes of memory: the archive, and what each process has unpacked


def started(processes: ExitStack, spark: Path, folder: Path, name: str, *arguments: str) -> Path:
    """Start a Master or a Worker in an empty environment; its executors end with it. Returns the file of its messages."""
    folder.mkdir()
    log = folder / "messages"
    environment = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ} | JAVA_OPTIONS
    environment |= {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment |= {"SPARK_LOCAL_DIRS": str(folder), "SPARK_CONF_DIR": str(folder)}
    with log.open("w") as messages:
        process = subprocess.Popen(
            [spark / "bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            cwd=folder, env=environment, stdout=messages, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    processes.callback(process.wait)
    processes.callback(os.killpg, process.pid, signal.SIGKILL)
    return log


def spark_without_our_jars(home: Path) -> Path:
    """A Spark installation as on a host that has never heard of Lakelog: without Delta, and without the Kafka source."""
    installed = Path(pyspark.__file__).parent
    (home / "jars").mkdir(parents=True)
    for name in ("bin", "python"):
        (home / name).symlink_to(installed / name)
    for jar in installed.glob("jars/*.jar"):
        if not any(jar.match(form) for form in ADDED):
            (home / "jars" / jar.name).symlink_to(jar)
    return home


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def await_line(log: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while text not in (messages := log.read_text()):
        assert time.monotonic() < deadline, messages
        time.sleep(0.1)


def latest(orders: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {str(order["id"]): order for order in orders}


def test_jobs_and_a_program_run_where_only_the_archive_has_lakelog(cluster: Cluster) -> None:
    root = str(cluster.folder / "root")
    check_run(cluster, root, cluster.run_program(root, {}), {})


@pytest.mark.stores
@pytest.mark.parametrize(
    ("store_of", "secret_name"), [("s3", "aws_secret_access_key"), ("azure", "azure_storage_account_key")]
)
def test_executors_reach_a_store_with_options_that_no_log_contains(
    cluster: Cluster, store_of: str, secret_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: ObjectServer = request.getfixturevalue(store_of)
    server.create_bucket("of-executors")
    root = f"{server.uri_of('of-executors')}/root"
    ran = cluster.run_program(root, server.config)
    monkeypatch.setenv(VARIABLE, json.dumps(server.config))
    check_run(cluster, root, ran, {**server.config, "allow_http": "true"})

    secret = server.options[secret_name].encode()
    conf = cluster.folder / "conf.yaml"
    files = [path for path in cluster.folder.rglob("*") if path.is_file() and not path.is_symlink() and path != conf]
    assert next(cluster.events.rglob("*"), None) is not None
    assert secret in conf.read_bytes()
    assert [path for path in files if secret in path.read_bytes()] == []
    assert secret.decode() not in ran.stdout + ran.stderr
    storage = open_storage(root)
    stored = [
        file.key
        for folder in ("meta/", "checkpoints/", "tables/", "data/")
        for file in storage.list(folder)
        if file.size
    ]
    assert any(key.startswith("tables/orders/") for key in stored)
    assert [key for key in stored if secret in storage.read(key)] == []


@pytest.mark.stores
def test_executors_reach_a_root_in_hdfs(cluster: Cluster, hdfs_cluster: HdfsCluster) -> None:
    root = f"{hdfs_cluster.uri}of-executors/root"
    check_run(cluster, root, cluster.run_program(root, {}), {})


def check_run(
    cluster: Cluster, root: str, ran: subprocess.CompletedProcess[str], delta_options: dict[str, str]
) -> None:
    """Check what the program printed and wrote."""
    assert ran.returncode == 0, ran.stderr
    ingested, maintained, exported, read = map(json.loads, ran.stdout.splitlines())
    assert [each["exit_status"] for each in (ingested, maintained, exported)] == [0, 0, 0]
    assert (ingested["batches"], ingested["records"], maintained["partitions compacted"]) == (2, len(ORDERS), 2)

    compacted = [*latest(ORDERS[:IN_FIRST_BATCH]).values(), *ORDERS[IN_FIRST_BATCH:]]
    assert read["rows"] == sorted([order["id"], json.dumps(order)] for order in compacted)
    records = lakelog.open(root).topic("orders").read().to_arrow().to_pylist()
    assert sorted((row["key"], row["value"], row["timestamp"]) for row in records) == sorted(
        (order["id"].encode(), json.dumps(order).encode(), datetime.fromisoformat(order["at"])) for order in compacted
    )
    columns = ["id", "amount", "at"]
    table = (
        DeltaTable(f"{root}/tables/orders", storage_options=delta_options)
        .to_pyarrow_table()
        .select(columns)
        .to_pylist()
    )
    assert sorted(table, key=lambda row: str(row["id"])) == [
        order | {"at": datetime.fromisoformat(order["at"])} for _, order in sorted(latest(ORDERS).items())
    ]

    assert len(read["pythons"]) == 2
    for told in read["pythons"]:
        python, *modules = map(Path, told.split())
        place = python.parents[1]
        assert (place.name, place.is_relative_to(cluster.folder)) == ("lakelog", True)
        assert all(module.is_relative_to(place / "packages") for module in modules)


def test_a_driver_inside_a_standalone_cluster_is_refused_with_the_reason() -> None:
    for options in (
        ["--master", "spark://h:7077"],
        ["--master=spark://h:7077"],
        ["--conf", "spark.master=spark://h:7077"],
    ):
        ended = subprocess.run(
            [HOME / "spark-submit.sh", "ingest", "--", *options, "--deploy-mode", "cluster"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            "spark-submit.sh: --deploy-mode cluster does not work with spark://h:7077: Spark's standalone master runs only Java"
            " programs as drivers, and the jobs are Python. Run the job in client mode, on a host that reaches the workers.\n"
        )


def test_the_user_s_own_jars_archives_and_settings_stay() -> None:
    given = [
        "--jars",
        "a.jar",
        "--conf",
        "spark.archives=b.zip#b",
        "--master",
        "yarn",
        "--conf",
        "spark.executorEnv.PATH=/bin",
    ]
    assert with_archive("hdfs:///l.tar.gz", ["delta.jar"], given) == [
        "--conf", f"spark.pyspark.python={NAME}",
        "--conf", f"spark.yarn.appMasterEnv.PATH={SEARCH_PATH}",
        "--archives", "hdfs:///l.tar.gz#lakelog,b.zip#b", "--jars", "delta.jar,a.jar", "--master", "yarn",
        "--conf", "spark.executorEnv.PATH=/bin",
    ]  # fmt: skip
