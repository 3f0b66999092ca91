"""The peer of the sink benchmark that writes a stream with the sink: `python -m bench.peers.sink_stream`, a process
with its own Spark. The other peer, which runs an ingest, is bench.peers.commits.

A case names two folders. The first folder contains Parquet files; each file is one micro-batch. The peer writes to the
second folder. The stream writes to a topic of eight partitions with writeStream.format("lakelog"). The answer is the
median time in milliseconds from the end of one micro-batch to the end of the next micro-batch, after a warm-up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lakelog
from bench.peers.commits import make_empty, micro_batch_ms
from bench.turns import answer
from pipeline.spark.session import spark_session

TOPIC = "values"


def measure(case: dict[str, Any]) -> float:
    make_empty(Path(case["folder"]))
    root, checkpoint = f"{case['folder']}/root", f"{case['folder']}/checkpoint"
    topic = lakelog.open(root, create=True).create_topic(TOPIC, 8)
    rows = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1).parquet(case["input"])
    stream = rows.writeStream.format("lakelog").options(root=root, topic=TOPIC, checkpointLocation=checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()
    assert sum(map(len, topic.read().ranges.values())) == case["records"]
    return micro_batch_ms(Path(checkpoint))


if __name__ == "__main__":
    spark = spark_session("bench sink stream")
    answer(measure)
