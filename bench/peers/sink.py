"""The peer of the sink benchmark that writes one batch with the sink: `python -m bench.peers.sink`, a process with its
own Spark. The other peer, which runs an ingest, is bench.peers.ingest.

A case names the Parquet input and a folder to write to. The answer is the time in seconds to write all values of the
input to a topic of two partitions with df.write.format("lakelog"). This time begins with the definition of the input,
and ends with the commit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lakelog
from bench.peers.ingest import make_empty  # this import also sets the memory of Spark
from bench.turns import answer
from pipeline.spark.session import spark_session
from storage_engine.clock import SystemClock
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.chain.state_chain import StateChain

TOPIC = "values"


def measure(case: dict[str, Any]) -> float:
    make_empty(Path(case["folder"]))
    root = f"{case['folder']}/root"
    lakelog.open(root, create=True).create_topic(TOPIC, 2)
    started_ms = time.time() * 1000
    rows = spark.read.schema("value BINARY").parquet(case["input"])
    rows.write.format("lakelog").mode("append").options(root=root, topic=TOPIC).save()
    state = StateChain(open_storage(root), TOPIC, SystemClock()).newest()
    assert sum(partition.high_watermark for partition in state.partitions) == case["rows"]
    return (state.written_ms - started_ms) / 1000


if __name__ == "__main__":
    spark = spark_session("bench sink")
    answer(measure)
