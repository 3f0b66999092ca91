"""One peer of the benchmark of whole exports: `python -m bench.peers.whole_exports lakelog|kafka`, a process with its own
Spark.

A case names a topic, a mode (append or upsert), and the folder of the table. The answer is the time in seconds until the
table is committed. Lakelog runs its job export, as spark-submit.sh runs it. The other peer does what the documentation of
Spark and Delta shows: it reads the topic from a Kafka broker, and appends the records to a Delta table. For an upsert, it
keeps the newest record of each key, and merges these records into the table. For the case "digest", the answer is the
number of rows of the table and a hash of all rows.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from bench.turns import answer
from pipeline.export.export_request import add_export_options
from pipeline.export.several_exports import run_exports
from pipeline.job import run_job
from pipeline.spark.session import spark_session

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_OF_LAKELOG = ("_key", "value", "_partition", "_offset", "_timestamp")


def lakelog(case: dict[str, Any]) -> None:
    arguments = []
    for setting in case["settings"]:
        arguments += ["--set", setting]
    status = run_job("export", "", run_exports, add_export_options, arguments)
    assert status == 0, status


def kafka(case: dict[str, Any]) -> None:
    servers = case["bootstrap_servers"]
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", case["topic"])
    records = source.load().select(*COLUMNS)
    if case["mode"] == "append":
        records.write.format("delta").mode("append").save(case["table"])
        return
    newest = records.groupBy("key").agg(F.max_by(F.struct(*COLUMNS[1:]), "offset").alias("newest"))
    newest = newest.select("key", "newest.*")
    table = DeltaTable.createIfNotExists(spark).location(case["table"]).addColumns(newest.schema).execute()
    merge = table.alias("t").merge(newest.alias("s"), "t.key = s.key")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


PEERS = {"lakelog": lakelog, "kafka": kafka}


def measure(case: dict[str, Any]) -> float | list[int]:
    if case["what"] == "digest":
        names = _OF_LAKELOG if sys.argv[1] == "lakelog" else COLUMNS
        rows = spark.read.format("delta").load(case["table"]).select(*names)
        return list(rows.agg(F.count("*"), F.bit_xor(F.xxhash64(*names))).collect()[0])
    started = time.monotonic()
    PEERS[sys.argv[1]](case)
    return time.monotonic() - started


if __name__ == "__main__":
    spark = spark_session(f"bench {sys.argv[1]}")
    answer(measure)
