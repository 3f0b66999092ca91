"""One peer of the latency benchmark: `python -m bench.peers.micro_batches_on_s3 lakelog|empty`, a process with its own
Spark.

A case names local Parquet files, how many of them are one micro-batch, a folder of the store (a URI) with the root and the
checkpoint, and a local folder. One peer is an ingest, the other peer is an empty foreachBatch over the same files. The
answer is None: the benchmark takes the times from the requests to the store.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.peers.commits import SETTINGS
from bench.turns import answer
from pipeline.ingest.ingesting import Ingest
from pipeline.settings import load_settings
from pipeline.spark.session import spark_session
from storage_engine.clock import SystemClock
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.topics import Topics


def lakelog(case: dict[str, Any]) -> None:
    file = Path(case["folder"], "settings.yaml")
    settings = SETTINGS.format(root=case["place"], input=case["input"])
    file.write_text(settings.replace("maxFilesPerTrigger: 1", f"maxFilesPerTrigger: {case['files']}"))
    loaded = load_settings(file)
    topics = Topics(open_storage(loaded.root), loaded.broker, SystemClock())
    result = Ingest(spark, loaded, topics, report=lambda _: None).run()
    assert (result.batches, result.records) == (case["batches"], case["records"])


def empty(case: dict[str, Any]) -> None:
    source = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", case["files"])
    stream = source.parquet(case["input"]).writeStream.foreachBatch(lambda _rows, _batch: None)
    stream = stream.option("checkpointLocation", f"{case['place']}/checkpoints/ingest/values")
    stream.trigger(availableNow=True).start().awaitTermination()


PEERS = {"lakelog": lakelog, "empty": empty}


if __name__ == "__main__":
    spark = spark_session(f"bench latency {sys.argv[1]}")
    answer(PEERS[sys.argv[1]])
