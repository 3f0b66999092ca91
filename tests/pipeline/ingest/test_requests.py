"""Counts the requests of a micro-batch on an S3 server, from the call of foreachBatch to the commit.

A request to an object store takes tens of milliseconds. So the latency of a micro-batch depends on how many requests
wait for one another, and the price of a micro-batch depends on the number of all its requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.ingest.claim import Claim
from pipeline.ingest.ingest_topic import take_over_all
from pipeline.ingest.micro_batch import IngestResult, MicroBatches, TopicResult
from pipeline.ingest.storage_retry import StorageRetry
from pipeline.settings import load_settings
from pipeline.spark.store_settings import open_stores
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.progress import Meter
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.append import new_files_publisher
from storage_engine.topic.topics import Topics
from tests.servers.faulty_proxy import Exchange, FaultyProxy, longest_chain
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

PARTITIONS, RECORDS = 8, 10_000
SETTINGS = """
topics: {clicks: {}}
ingest:
  topic: clicks
  checkpoint: checkpoints/ingest/clicks
  source: {format: json, path: landing, schema: "v STRING"}
  value: v
"""
LATENCY_SECONDS = 0.3
"""Longer than a busy machine needs to start the threads of requests at the same time."""


class Stream:
    """The micro-batches of a query that feeds one topic on an S3 server, through a proxy that counts requests."""

    def __init__(self, root: str, conf: Path, proxy: FaultyProxy, *overrides: str) -> None:
        self.proxy = proxy
        self.topics = Topics(open_storage(root), BrokerConfig(), SystemClock())
        self.topics.create("clicks", PARTITIONS, {})
        conf.write_text(SETTINGS)
        self.settings = load_settings(conf, overrides, root).required_ingest()
        taken = take_over_all(self.topics, ("clicks",), Claim("query"))
        self.result = IngestResult("query", {"clicks": TopicResult(taken["clicks"].epoch)})
        retry = StorageRetry(60_000, lambda _: False, lambda _: None)
        meter = Meter("ingest", self.topics.clock)
        self.batches = MicroBatches(
            self.topics, self.settings, None, taken, self.result, lambda _: None, meter, retry, {}, ""
        )
        self.number = 0

    def ingest(self, rows: DataFrame) -> Sequence[Exchange]:
        """Ingest one micro-batch. Returns the requests up to the looks at the predecessor and the history, after which it is
        committed."""
        offsets = f"v1\n{{}}\n{json.dumps({'logOffset': self.number})}".encode()
        self.topics.storage.put_new(f"{self.settings.checkpoint}/offsets/{self.number}", offsets)
        self.proxy.forget()
        self.batches.ingest(rows, self.number)
        self.number += 1
        exchanges = sorted(self.proxy.forget(), key=lambda each: each.start)
        put = next(n for n, each in enumerate(exchanges) if re.search(r"PUT .*/meta/clicks/\d{20}\.json", _shown(each)))
        history, predecessor = sorted(
            each.path.rpartition("/meta/clicks/")[2] for each in exchanges[put + 1 : put + 3]
        )[::-1]
        assert history.startswith("history/"), "the look at the history follows the put"
        assert re.fullmatch(r"\d{20}\.json", predecessor), "the look at the predecessor follows the put"
        return exchanges[: put + 3]


def _shown(exchange: Exchange) -> str:
    return f"{exchange.method} {exchange.path}"


@pytest.fixture
def stream(s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    with FaultyProxy(s3, latency_seconds=LATENCY_SECONDS) as proxy:
        bucket = new_bucket(s3)
        for name, value in environment(proxy.server, bucket).items():
            monkeypatch.setenv(name, value)
        yield Stream(f"s3://{bucket}/root", tmp_path / "conf.yaml", proxy)


def test_a_micro_batch_needs_few_requests_and_few_one_after_another(spark: SparkSession, stream: Stream) -> None:
    rows = spark.range(RECORDS).selectExpr("binary(string(id)) AS key", "binary(repeat(id, 20)) AS value")
    nothing = rows.limit(0)
    stream.ingest(rows)  # the first micro-batch of a run also looks for what an earlier run has left
    full, full_again, empty = stream.ingest(rows), stream.ingest(rows), stream.ingest(nothing)
    assert stream.result.records == 3 * RECORDS
    for requests in (full, full_again):
        assert longest_chain(requests) <= 6, [_shown(each) for each in requests]
        assert len(requests) <= 40, [_shown(each) for each in requests]
    assert longest_chain(empty) <= 3, [_shown(each) for each in empty]
    assert len(empty) <= 6, [_shown(each) for each in empty]
    assert len(stream.topics.state("clicks").partitions[0].segments) == 1, "a small segment is written again"


def test_a_micro_batch_that_a_spark_job_publishes_reads_no_segments(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    root = f"{stream.topics.storage.uri}-by-spark"
    by_spark = Stream(root, tmp_path / "by-spark.yaml", stream.proxy, f"ingest.publish.spark.bytes={RECORDS}")
    rows = spark.range(RECORDS).selectExpr("binary(string(id)) AS key", "binary(repeat(id, 20)) AS value")
    continued = patch.object(new_files_publisher, "_MOST_READ", new_files_publisher._MOST_CONTINUED)
    with continued, patch.dict(spark.sparkContext.environment):
        open_stores(spark.sparkContext)
        by_spark.ingest(rows)
        large, small = by_spark.ingest(rows), by_spark.ingest(rows.limit(1))
    assert [_shown(each) for each in large if _reads_segment(each)] == []
    assert len([each for each in small if _reads_segment(each)]) == PARTITIONS, "the driver continues these segments"
    assert [len(part.segments) for part in by_spark.topics.state("clicks").partitions] == [2] * PARTITIONS


def _reads_segment(exchange: Exchange) -> bool:
    return re.search(r"GET .*/data/.*\.log", _shown(exchange)) is not None
