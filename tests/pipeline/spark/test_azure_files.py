"""Tests that Delta's commits and the files of checkpoints on Azure never replace a file of another writer, and that a
query can replace a file of its checkpoint on Azure, HDFS and a local disk.

ABFS renames a file by a copy with the condition `If-None-Match: *`, so the store decides which writer was first. The
store here is Azurite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakelog.delta_options import delta_options
from pipeline.spark.store_settings import open_stores
from tests.pipeline.spark.test_conditional_puts import Checkpoint, append_with_spark
from tests.roots.delta_tables import table_at
from tests.servers.minicluster import HdfsCluster
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

pytestmark = [pytest.mark.spark, pytest.mark.stores]
BY_SPARK, BY_DELTALAKE = 6, 14
NAMES, WRITERS = 10, 6


@pytest.fixture
def place(spark: SparkSession, azure: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of an empty container."""
    bucket = new_bucket(azure)
    for name, value in environment(azure, bucket).items():
        monkeypatch.setenv(name, value)
    with patch.dict(spark.sparkContext.environment):
        open_stores(spark.sparkContext, azure.uri_of(bucket))
        yield azure.uri_of(bucket)


def test_the_commits_of_spark_and_deltalake_are_all_in_the_table(spark: SparkSession, place: str) -> None:
    table = f"{place}/table"
    append_with_spark(spark, table, 0)
    failures: list[BaseException] = []

    def append(number: int) -> None:
        rows = pa.table({"number": pa.array([number], pa.int64())})
        while True:
            try:
                write_deltalake(table, rows, mode="append", storage_options=delta_options(table))
                return
            except CommitFailedError:
                continue

    def write(append: Callable[[int], None], first: int, count: int) -> None:
        try:
            for number in range(first, first + count):
                append(number)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    writers = [
        threading.Thread(target=write, args=(lambda number: append_with_spark(spark, table, number), 1000, BY_SPARK)),
        threading.Thread(target=write, args=(append, 3000, BY_DELTALAKE)),
        threading.Thread(target=write, args=(append, 4000, BY_DELTALAKE)),
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    counts = {1000: BY_SPARK, 3000: BY_DELTALAKE, 4000: BY_DELTALAKE}
    rows = table_at(table).to_pyarrow_table()["number"].to_pylist()
    assert sorted(rows) == [0, *(first + number for first, count in counts.items() for number in range(count))]
    assert table_at(table).version() == BY_SPARK + 2 * BY_DELTALAKE


def test_of_two_queries_that_write_one_file_of_a_checkpoint_the_later_one_fails(
    spark: SparkSession, place: str
) -> None:
    checkpoint = Checkpoint(spark, f"{place}/checkpoint/offsets")
    paused = checkpoint.begin("7", b"of the second query")
    checkpoint.begin("7", b"of the first query").close()
    with pytest.raises(Py4JJavaError) as error:
        paused.close()
    assert error.value.java_exception.getClass().getName() == "org.apache.spark.SparkFileAlreadyExistsException"
    assert checkpoint.read("7") == b"of the first query"


def test_a_file_of_a_checkpoint_is_replaced_only_if_the_query_wants_this(
    spark: SparkSession, place: str, hdfs_cluster: HdfsCluster, tmp_path: Path
) -> None:
    for folder in (f"{place}/states", f"{hdfs_cluster.uri}states", (tmp_path / "states").as_uri()):
        checkpoint = Checkpoint(spark, folder)
        checkpoint.files.mkdirs(checkpoint.path(""))
        for content in (b"of a batch that failed", b"of the same batch, later"):
            checkpoint.begin("3.delta", content, replaces=True).close()
        with pytest.raises(Py4JJavaError) as error:
            checkpoint.begin("3.delta", b"of another query").close()
        assert error.value.java_exception.getClass().getName() == "org.apache.spark.SparkFileAlreadyExistsException"
        assert (checkpoint.names(), checkpoint.read("3.delta")) == (["3.delta"], b"of the same batch, later"), folder


def test_one_of_many_renames_to_a_name_wins(spark: SparkSession, place: str) -> None:
    """The class of the checkpoints, and Delta, first look for the name. Here all renames begin after this look."""
    checkpoint = Checkpoint(spark, f"{place}/renamed")
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    files = checkpoint.path("").getFileSystem(hadoop)
    with ThreadPoolExecutor(WRITERS) as threads:
        for name in range(NAMES):
            for writer in range(WRITERS):
                checkpoint.begin(f"{name}-{writer}", b"by %d" % writer).close()

            def rename(writer: int, name: int = name) -> bool:
                return bool(files.rename(checkpoint.path(f"{name}-{writer}"), checkpoint.path(str(name))))

            won = [writer for writer, has_won in enumerate(threads.map(rename, range(WRITERS))) if has_won]
            assert [b"by %d" % writer for writer in won] == [checkpoint.read(str(name))]
