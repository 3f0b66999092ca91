"""Topics as a source of Spark: batches, streams into another topic, and readers that are too slow, so that retention
deletes their unread records.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakelog
from lakelog.spark.options.source_options import common_options
from lakelog.spark.read_topics import ReadTopics
from lakelog.spark.registering import _register_source
from pipeline.ingest.ingesting import IngestError
from pipeline.ingest.micro_batch import IngestResult
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConfigError, CorruptionError
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.view import settle
from tests.pipeline.ingest.ingest_runs import append_values, records_of, run_ingest, topics_of
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import root_at

DAY_MS = 24 * 3_600_000
COPY = """
root: unused
topics: {copy: {partitions: 2}}
ingest:
  topic: copy
  source: {format: lakelog, options: {subscribe: "one, two"}}
  key: key
  value: value
  headers: headers
  timestamp: timestamp
"""


class Copying:
    """Topics `one` and `two` in a root, and an ingest that brings them into `copy`."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.conf = folder / "copy.yaml"
        self.conf.write_text(COPY)
        for topic in ("one", "two"):
            topics_of(self.root).create(topic, 2, {"retention.ms": str(DAY_MS)})

    def run(self, *overrides: str) -> IngestResult:
        return run_ingest(self.spark, self.conf, self.root, *overrides)

    def values(self) -> list[str]:
        return [record["value"].decode() for record in records_of(self.root, "copy")]

    def drop_old(self, topic: str) -> None:
        assert retain_topic(topics_of(self.root).chain(topic), BrokerConfig()).changed


@pytest.fixture
def copying(spark: SparkSession, tmp_path: Path) -> Copying:
    return Copying(spark, tmp_path)


def rows_of(spark: SparkSession, root: Path, **options: str) -> list[dict[str, Any]]:
    rows = spark.read.format("lakelog").options(root=root_at(root), **options).load()
    return [row.asDict(recursive=True) for row in rows.collect()]


def read(session: SparkSession) -> DataFrame:
    return session.read.format("lakelog").option("subscribe", "one").load()


def append(root: Path, topic: str, records: pa.RecordBatch) -> None:
    topics = topics_of(root)
    append_records(topics.storage, topics.chain(topic), topics.config(topics.state(topic)), topics.clock, records, 0)


def read_rows(rows: DataFrame) -> list[Row]:
    """The rows of a DataFrame of the source, which must be those of partition 0 of topic `one`, from offset 0."""
    found = [row.asDict(recursive=True) for row in rows.collect()]
    assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [
        ("one", 0, offset) for offset in range(len(found))
    ]
    return [
        Row(
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            tuple(
                (each["key"], None if each["value"] is None else bytes(each["value"])) for each in row["headers"] or ()
            ),
            round(row["timestamp"].timestamp() * 1000),
        )
        for row in found
    ]


def test_a_batch_has_the_rows_of_sparks_kafka_source(spark: SparkSession, copying: Copying) -> None:
    append_values(copying.root, "one", "a1", "b1", partition=1)
    append_values(copying.root, "one", "c1", partition=0)

    rows = rows_of(spark, copying.root, subscribe="one")

    assert [(row["topic"], row["partition"], row["offset"], bytes(row["value"])) for row in rows] == [
        ("one", 0, 0, b"c1"), ("one", 1, 0, b"a1"), ("one", 1, 1, b"b1"),
    ]  # fmt: skip
    (record,) = [record for record in records_of(copying.root, "one") if record["partition"] == 0]
    assert rows[0]["timestamp"].timestamp() * 1000 == pytest.approx(record["timestamp"])
    assert (bytes(rows[0]["key"]), rows[0]["timestampType"], "headers" in rows[0]) == (b"c", 0, False)


def test_a_read_in_columns_has_every_value(spark: SparkSession, copying: Copying) -> None:
    """Nulls at every position of a byte of Arrow's validity bitmap, empty values, headers; by columns and by rows."""
    written = [
        Row(
            None if number % 3 == 0 else b"k%d" % (number % 7),
            None if number % 11 == 0 else b"v" * (number % 5),
            () if number % 4 else (("a", None), ("\u00e9", b"%d" % number)),
            1_700_000_000_000 + number,
        )
        for number in range(100)
    ]
    append(copying.root, "one", to_table(written))
    rows = (
        spark.read.format("lakelog").options(root=root_at(copying.root), subscribe="one", includeHeaders="true").load()
    )

    assert "ColumnarToRow" in rows._jdf.queryExecution().executedPlan().toString()
    compiling = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    interpreting = {name: str(spark.conf.get(name)) for name in compiling}
    try:
        for settings in (compiling, interpreting):
            for name, value in settings.items():
                spark.conf.set(name, value)
            assert read_rows(rows.orderBy("offset")) == written
            by_key = rows.groupBy("key").agg(F.count("value"), F.max("topic")).collect()
            assert {(None if key is None else bytes(key), values, topic) for key, values, topic in by_key} == {
                (key, sum(row.value is not None for row in written if row.key == key), "one")
                for key in {row.key for row in written}
            }
    finally:
        for name, value in interpreting.items():
            spark.conf.set(name, value)


def test_sessions_of_one_process_do_not_share_their_root(spark: SparkSession, copying: Copying) -> None:
    append_values(copying.root, "one", "a1", partition=0)
    with_root, without = spark.newSession(), spark.newSession()
    with_root.conf.set("spark.lakelog.root", root_at(copying.root))
    for session in (with_root, without, with_root):
        lakelog.register(session)
    try:
        assert [bytes(row.value) for row in read(with_root).collect()] == [b"a1"]
        with pytest.raises(AnalysisException, match="root: is missing"):
            read(without)
    finally:
        lakelog.register(without)
        lakelog.register(spark)


def test_a_stream_that_starts_does_not_change_what_spark_sends_to_the_tasks_of_another(
    spark: SparkSession, copying: Copying, tmp_path: Path
) -> None:
    append_values(copying.root, "one", "a", "b", partition=0)
    _register_source(spark)  # no earlier stream has changed its variables
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    before = dict(manager.lookupDataSource("lakelog").dataSourceCls().envVars())
    stream = spark.readStream.format("lakelog").options(root=root_at(copying.root), subscribe="one")

    for number in range(2):
        options = {"checkpointLocation": str(tmp_path / f"checkpoint-{number}"), "path": str(tmp_path / f"{number}")}
        rows = stream.option("startingOffsets", "earliest").load().select("value")
        rows.writeStream.options(**options).trigger(availableNow=True).start().awaitTermination()

    assert dict(manager.lookupDataSource("lakelog").dataSourceCls().envVars()) == before
    for number in range(2):
        assert sorted(row[0] for row in spark.read.parquet(str(tmp_path / f"{number}")).collect()) == [b"a", b"b"]


def test_an_empty_topic_gives_an_empty_batch(spark: SparkSession, copying: Copying) -> None:
    assert rows_of(spark, copying.root, subscribe="two") == []


def test_each_record_of_every_topic_is_copied_once_across_restarts(copying: Copying) -> None:
    append_values(copying.root, "one", *(f"a{n}" for n in range(50)))
    append_values(copying.root, "two", *(f"b{n}" for n in range(20)))

    limited = copying.run("ingest.source.options.maxOffsetsPerTrigger=30")
    assert (limited.batches, limited.records) == (3, 70)

    append_values(copying.root, "one", "c1")
    topics_of(copying.root).alter("two", partitions=3)
    append_values(copying.root, "two", "d1", partition=2)
    assert copying.run().records == 2
    assert copying.run().records == 0
    values = copying.values()
    assert [value for value in values if value.startswith("a")] == [f"a{n}" for n in range(50)]
    assert sorted(values) == sorted([f"a{n}" for n in range(50)] + [f"b{n}" for n in range(20)] + ["c1", "d1"])


def test_gaps_that_compaction_left_are_passed_over(copying: Copying) -> None:
    topics = topics_of(copying.root)
    topics.alter("one", configs={"cleanup.policy": "compact"})
    append_values(copying.root, "one", "a1", "b1", "a2", "c1", "a3", partition=0)
    append_values(copying.root, "one", "a4", partition=0)  # a segment of its own, which stays as it is
    config = topics.config(topics.state("one"))
    assert compact_topic(topics.storage, topics.chain("one"), config, topics.broker, topics.clock, force=True).cleaned

    assert copying.run("ingest.source.options.maxOffsetsPerTrigger=2").batches == 3
    assert copying.values() == ["b1", "c1", "a3", "a4"]


def test_a_stream_from_latest_begins_with_what_comes_after(copying: Copying) -> None:
    latest = "ingest.source.options.startingOffsets=latest"
    append_values(copying.root, "one", "a1")
    assert copying.run(latest).records == 0
    append_values(copying.root, "one", "a2")
    assert copying.run(latest).records == 1
    assert copying.values() == ["a2"]


def test_offsets_lost_to_retention_end_the_stream_unless_that_is_wanted(copying: Copying) -> None:
    append_values(copying.root, "one", "a1", partition=0, age_ms=3 * DAY_MS)
    copying.run()
    append_values(copying.root, "one", "a2", "a3", partition=0, age_ms=2 * DAY_MS)
    append_values(copying.root, "one", "a4", partition=0)
    copying.drop_old("one")

    with pytest.raises(IngestError, match="partition 0: the next offset to read is 1, but the log now starts at 3"):
        copying.run()
    assert copying.values() == ["a1"]

    assert copying.run("ingest.source.options.failOnDataLoss=false").records == 1
    assert copying.values() == ["a1", "a4"]


def test_a_topic_that_was_created_again_is_lost_data(copying: Copying) -> None:
    append_values(copying.root, "one", "a1", "a2", partition=0)
    copying.run()
    topics_of(copying.root).delete("one")
    topics_of(copying.root).create("one", 1, {})
    append_values(copying.root, "one", "b1", "b2", "b3", partition=0)

    with pytest.raises(IngestError, match=r"topic one: .* deleted and created again"):
        copying.run()
    assert copying.run("ingest.source.options.failOnDataLoss=false").records == 3
    assert copying.values() == ["a1", "a2", "b1", "b2", "b3"]


def test_a_topic_is_not_read_into_itself(copying: Copying) -> None:
    with pytest.raises(ConfigError, match="the ingest would read topic one and append to the same topic"):
        copying.run("ingest.topic=one")


@pytest.mark.posix("names the root by a path")
@pytest.mark.parametrize("root", ["{}", "{}/", "file://{}", "{}/../link"])
def test_a_topic_is_not_read_into_itself_however_its_root_is_named(copying: Copying, root: str) -> None:
    link = copying.root.parent / "link"
    link.symlink_to(copying.root)
    with pytest.raises(ConfigError, match="the ingest would read topic one and append to the same topic"):
        copying.run("ingest.topic=one", f"ingest.source.options.root={root.format(copying.root)}")
    append_values(copying.root, "one", "a1")
    assert copying.run(f"ingest.source.options.root={link}").records == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nothing"}, "topic nothing: not found"),
        ({"subscribe": "no/name"}, "option subscribe: found 'no/name'"),
        ({}, "option subscribe or subscribePattern or assign: none is given"),
        ({"subscribe": "one", "minPartitions": "-1"}, "option minPartitions: found -1. Give a whole number above 0"),
    ],
)
def test_a_wrong_option_is_named(spark: SparkSession, copying: Copying, options: dict[str, str], message: str) -> None:
    with pytest.raises(AnalysisException, match=message):
        rows_of(spark, copying.root, **options)


def test_an_ingest_reads_the_headers_of_a_topic_unless_told_otherwise(copying: Copying) -> None:
    append_values(copying.root, "one", "a1")
    with pytest.raises(ConfigError, match="headers"):
        copying.run("ingest.source.options.includeHeaders=false")
    assert copying.run().records == 1


@pytest.mark.parametrize("choice", ["subscribePattern: ^on", "assign: '{\"one\": [0]}'"])
def test_a_topic_that_is_chosen_otherwise_is_not_read_into_itself(copying: Copying, choice: str) -> None:
    copying.conf.write_text(copying.conf.read_text().replace('subscribe: "one, two"', choice))
    with pytest.raises(ConfigError, match="the ingest would read topic one and append to the same topic"):
        copying.run("ingest.topic=one")


@pytest.mark.posix("needs the folder log/")
def test_a_pattern_does_not_pass_over_a_topic_whose_state_is_lost(tmp_path: Path) -> None:
    topics = topics_of(tmp_path)
    for name in ("kept", "lost"):
        topics.create(name, 1, {})
        append_values(tmp_path, name, name)
    settle(topics)
    shutil.rmtree(tmp_path / "meta/lost")
    options = common_options({"root": str(tmp_path), "subscribePattern": ".*"})

    with pytest.raises(CorruptionError, match="the state chain of the topic that log/lost-0 shows, found no version"):
        ReadTopics(options).states()
