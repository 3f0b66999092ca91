"""One peer of the S3 benchmark: `python -m bench.peers.s3 lakelog|parquet`, a process with its own Spark.

A case names a folder of the store (a URI), and what to do. The environment contains the endpoint and the keys of the
store. For the case "write", the peer first deletes what it has written before. The answer is the time in seconds in
which the peer writes the rows of a local Parquet input to the store. Lakelog's time begins with the start of the
ingest, and ends with the commit. For the cases "read" and "digest", the case also names what to read: a root or a
folder of Parquet files. The answers are those of the benchmark reads (bench.peers.reads).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.ingest import SETTINGS  # this import also sets the memory of the driver

from pyspark.sql import DataFrame  # isort: skip

from bench.peers.reads import read
from bench.reading.filled_topic import TOPIC
from bench.turns import answer
from pipeline.ingest.ingesting import Ingest
from pipeline.settings import load_settings
from pipeline.spark.session import spark_session
from storage_engine.clock import SystemClock
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.topics import Topics
from tests.stores import clear_root


def write_lakelog(case: dict[str, Any]) -> float:
    root = f"{case['place']}/{time.time_ns()}"  # the checkpoint of an earlier round is not used
    file = Path(case["folder"], "settings.yaml")
    file.write_text(SETTINGS.format(root=root, input=case["input"]))
    settings = load_settings(file)
    storage = open_storage(settings.root)
    topics = Topics(storage, settings.broker, SystemClock())
    started_ms = time.time() * 1000
    result = Ingest(spark, settings, topics, report=lambda _: None).run()
    assert result.records == case["rows"]
    seconds = (topics.state("values").written_ms - started_ms) / 1000
    clear_root(storage)
    return seconds


def write_parquet(case: dict[str, Any]) -> float:
    started = time.monotonic()
    spark.read.parquet(case["input"]).select("value").write.parquet(f"{case['place']}/data/out")
    seconds = time.monotonic() - started
    clear_root(open_storage(case["place"]))
    return seconds


def lakelog_rows(source: str) -> DataFrame:
    return spark.read.format("lakelog").options(root=source, subscribe=TOPIC).load()


def parquet_rows(source: str) -> DataFrame:
    return spark.read.parquet(source)


WRITES = {"lakelog": write_lakelog, "parquet": write_parquet}
READS = {"lakelog": lakelog_rows, "parquet": parquet_rows}


def measure(case: dict[str, Any]) -> float | list[int] | None:
    peer = sys.argv[1]
    if case["what"] == "write":
        return WRITES[peer](case)
    if case["what"] == "copy":
        lakelog_rows(case["lakelog"]).write.parquet(case["parquet"])
        return None
    return read(lambda: READS[peer](case[peer]), case["what"])


if __name__ == "__main__":
    spark = spark_session(f"bench s3 {sys.argv[1]}")
    answer(measure)
