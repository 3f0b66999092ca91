"""Tests that Delta's commits and the files of checkpoints on S3 are conditional puts, with a real S3 server.

A proxy between Spark and the server stops or damages single requests. So each critical moment occurs in every run of
the tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.spark.store_settings import open_stores
from tests.servers.faults import Answer, DropReply, Fault, Rule, Upstream
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.http_messages import Reply, Request
from tests.servers.object_server import ObjectServer
from tests.stores import environment

pytestmark = pytest.mark.spark
COMMIT = "_delta_log/00000000000000000001.json"


@dataclass(frozen=True)
class Store:
    """A bucket that Spark uses through a proxy. options: for deltalake, without the proxy."""

    bucket: str
    proxy: FaultyProxy
    options: dict[str, str]

    @property
    def table(self) -> str:
        return f"s3://{self.bucket}/table"

    def append(self, *numbers: int) -> None:
        rows = pa.table({"number": pa.array(numbers, pa.int64())})
        while True:
            try:
                write_deltalake(self.table, rows, mode="append", storage_options=self.options)
                return
            except CommitFailedError:
                time.sleep(0.02)

    def rows(self) -> list[int]:
        found = DeltaTable(self.table, storage_options=self.options).to_pyarrow_table()
        return sorted(found["number"].to_pylist())

    def commits(self) -> list[str]:
        """The writer of each commit, the first commit first."""
        history = DeltaTable(self.table, storage_options=self.options).history()
        return ["spark" if "Spark" in each.get("engineInfo", "") else "deltalake" for each in reversed(history)]


@pytest.fixture
def store(spark: SparkSession, s3: ObjectServer, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with FaultyProxy(s3) as proxy, patch.dict(spark.sparkContext.environment):
        for name, value in environment(proxy.server, s3_bucket).items():
            monkeypatch.setenv(name, value)
        open_stores(spark.sparkContext)
        yield Store(s3_bucket, proxy, {**s3.config, "allow_http": "true"})


def append_with_spark(spark: SparkSession, table: str, *numbers: int) -> None:
    rows = spark.createDataFrame([(number,) for number in numbers], "number BIGINT")
    rows.coalesce(1).write.format("delta").mode("append").save(table)


@dataclass(frozen=True)
class Before:
    """First do something else, and then let the server execute the request."""

    work: Callable[[], None]

    def __call__(self, request: Request, upstream: Upstream) -> Reply | None:
        self.work()
        return upstream.execute(request)


def test_a_commit_that_comes_late_does_not_overwrite_the_commit_of_another_writer(
    spark: SparkSession, store: Store
) -> None:
    store.append(1)
    store.proxy.add(Rule(Before(lambda: store.append(2)), "PUT", COMMIT, times=1))
    append_with_spark(spark, store.table, 3)
    assert store.rows() == [1, 2, 3]
    assert store.commits() == ["deltalake", "deltalake", "spark"]


@pytest.mark.parametrize("fault", [DropReply(), Answer(409), Answer(503)], ids=["lost reply", "conflict", "busy"])
def test_a_commit_with_an_unclear_answer_is_committed_once(spark: SparkSession, store: Store, fault: Fault) -> None:
    store.append(1)
    store.proxy.add(Rule(fault, "PUT", COMMIT, times=2))
    append_with_spark(spark, store.table, 2)
    assert store.rows() == [1, 2]
    assert store.commits() == ["deltalake", "spark"]


def test_forty_commits_of_four_writers_are_all_in_the_table(spark: SparkSession, store: Store) -> None:
    store.append(0)
    by_spark, by_deltalake = 4, 16
    failures: list[BaseException] = []

    def write(append: Callable[..., None], first: int, count: int) -> None:
        try:
            for number in range(first, first + count):
                append(number)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    def spark_as(scheme: str) -> Callable[..., None]:  # two file systems, as in two drivers
        return lambda number: append_with_spark(spark, store.table.replace("s3:", f"{scheme}:"), number)

    writers = [
        threading.Thread(target=write, args=(spark_as("s3"), 1000, by_spark)),
        threading.Thread(target=write, args=(spark_as("s3a"), 2000, by_spark)),
        threading.Thread(target=write, args=(store.append, 3000, by_deltalake)),
        threading.Thread(target=write, args=(store.append, 4000, by_deltalake)),
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    counts = {1000: by_spark, 2000: by_spark, 3000: by_deltalake, 4000: by_deltalake}
    assert store.rows() == [0, *(first + number for first, count in counts.items() for number in range(count))]
    assert len(store.commits()) == 41


class Checkpoint:
    """The files of a checkpoint, by the class of conf/spark-defaults.conf."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        assert spark.sparkContext._jvm is not None
        self._jvm: Any = spark.sparkContext._jvm
        self._folder = folder
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        self.files = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
            self.path(""), hadoop
        )

    def path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")

    def begin(self, name: str, content: bytes, *, replaces: bool = False) -> Any:
        stream = self.files.createAtomic(self.path(name), replaces)
        stream.write(content)
        return stream

    def read(self, name: str) -> bytes:
        stream = self.files.open(self.path(name))
        content = bytes(stream.readAllBytes())
        stream.close()
        return content

    def names(self) -> list[str]:
        return sorted(each.getPath().getName() for each in self.files.list(self.path("")))


def test_of_two_queries_that_write_one_file_of_a_checkpoint_the_later_one_fails(
    spark: SparkSession, store: Store
) -> None:
    first = Checkpoint(spark, f"s3://{store.bucket}/checkpoint/offsets")
    second = Checkpoint(spark, f"s3a://{store.bucket}/checkpoint/offsets")
    paused = second.begin("7", b"of the second query")
    first.begin("7", b"of the first query").close()
    with pytest.raises(Py4JJavaError) as error:
        paused.close()
    assert error.value.java_exception.getClass().getName() == "org.apache.hadoop.fs.FileAlreadyExistsException"
    assert (second.names(), second.read("7")) == (["7"], b"of the first query")


def test_a_cancelled_file_of_a_checkpoint_does_not_exist_and_a_replacing_one_does(
    spark: SparkSession, store: Store
) -> None:
    checkpoint = Checkpoint(spark, f"s3://{store.bucket}/checkpoint/state")
    checkpoint.begin("kept", b"old").close()
    cancelled = checkpoint.begin("cancelled", b"half")
    cancelled.cancel()
    cancelled.close()
    checkpoint.begin("kept", b"new", replaces=True).close()
    assert (checkpoint.names(), checkpoint.read("kept")) == (["kept"], b"new")


def test_a_lost_reply_to_a_file_of_a_checkpoint_is_no_failure(spark: SparkSession, store: Store) -> None:
    store.proxy.add(Rule(DropReply(), "PUT", "/checkpoint/commits/3", times=1))
    checkpoint = Checkpoint(spark, f"s3://{store.bucket}/checkpoint/commits")
    checkpoint.begin("3", b"v1").close()
    assert (checkpoint.names(), checkpoint.read("3")) == (["3"], b"v1")


def test_local_checkpoints_are_still_written_by_a_rename_and_can_be_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(spark, f"file://{tmp_path}")
    begun = checkpoint.begin("0", b"v1")
    assert [name for name in checkpoint.names() if name.endswith(".tmp")] != []
    begun.close()
    assert (checkpoint.names(), checkpoint.read("0")) == (["0"], b"v1")
    checkpoint.begin("0", b"v2", replaces=True).close()
    assert (checkpoint.names(), checkpoint.read("0")) == (["0"], b"v2")
