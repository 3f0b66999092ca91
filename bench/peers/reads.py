"""One peer of the reads benchmark: `python -m bench.peers.reads lakelog|kafka|parquet`, a process with its own Spark.

A case names the root, the address of a Kafka broker, and a folder with Parquet files. The root, the broker and the
folder have the same rows. For the case "read", the answer is the time in seconds to read all rows. This time begins
with the definition of the read, and ends with the job that writes the rows with Spark's format noop. This format builds
every row with all columns, and discards the row. For the case "digest", the answer is the number of rows and a hash of
all columns of all rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.reading.filled_topic import TOPIC
from bench.turns import answer
from pipeline.spark.session import spark_session

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source, in its order."""


def lakelog(case: dict[str, Any]) -> DataFrame:
    return spark.read.format("lakelog").options(root=case["root"], subscribe=TOPIC).load()


def kafka(case: dict[str, Any]) -> DataFrame:
    servers = case["bootstrap_servers"]
    return spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", TOPIC).load()


def parquet(case: dict[str, Any]) -> DataFrame:
    return spark.read.parquet(case["parquet"])


PEERS = {"lakelog": lakelog, "kafka": kafka, "parquet": parquet}


def measure(case: dict[str, Any]) -> float | list[int]:
    return read(lambda: PEERS[sys.argv[1]](case), case["what"])


def read(define: Callable[[], DataFrame], what: str) -> float | list[int]:
    """The answer to the case "read" or "digest", for the rows that `define` defines."""
    started = time.monotonic()
    rows = define()
    assert tuple(rows.columns) == COLUMNS
    if what == "digest":
        return list(rows.agg(F.count("*"), F.bit_xor(F.xxhash64(*COLUMNS))).collect()[0])
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


if __name__ == "__main__":
    spark = spark_session(f"bench {sys.argv[1]}")
    answer(measure)
