"""One peer of the commits benchmark: `python -m bench.peers.commits lakelog|empty`, a process with its own Spark.

A case names two folders. The first folder contains Parquet files; each file is one micro-batch. The peer writes to the
second folder. The answer is the median time in milliseconds from the end of one micro-batch to the end of the next
micro-batch, after a warm-up. When a micro-batch is done, Spark adds a file to its checkpoint. The modification time of
this file is the end of the micro-batch. One peer is an ingest, the other peer is an empty foreachBatch over the same
files.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.turns import answer
from pipeline.ingest.ingesting import Ingest
from pipeline.settings import load_settings
from pipeline.spark.session import spark_session
from storage_engine.clock import SystemClock
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.topics import Topics

LAST = 80
"""The number of measured micro-batches, out of the 100 that Spark's checkpoint keeps. The earlier micro-batches warm
the stream up."""
SETTINGS = """
root: {root}
topics: {{values: {{partitions: 8}}}}
ingest:
  topic: values
  source: {{format: parquet, path: {input}, schema: "key BINARY, value BINARY", options: {{maxFilesPerTrigger: 1}}}}
  key: key
  value: value
"""


def lakelog(case: dict[str, Any]) -> Path:
    file = Path(case["folder"], "settings.yaml")
    file.write_text(SETTINGS.format(root=f"{case['folder']}/root", input=case["input"]))
    settings = load_settings(file)
    topics = Topics(open_storage(settings.root), settings.broker, SystemClock())
    result = Ingest(spark, settings, topics, report=lambda _: None).run()
    assert (result.batches, result.records) == (case["batches"], case["records"])
    return Path(case["folder"], "root", "checkpoints", "ingest", "values")


def empty(case: dict[str, Any]) -> Path:
    checkpoint = Path(case["folder"], "checkpoint")
    rows = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1).parquet(case["input"])
    stream = rows.writeStream.foreachBatch(lambda _rows, _batch: None).option("checkpointLocation", str(checkpoint))
    stream.trigger(availableNow=True).start().awaitTermination()
    return checkpoint


PEERS = {"lakelog": lakelog, "empty": empty}


def measure(case: dict[str, Any]) -> float:
    make_empty(Path(case["folder"]))
    return micro_batch_ms(PEERS[sys.argv[1]](case))


def make_empty(folder: Path) -> None:
    """Make an empty folder, and wait until the disk has nothing left to write."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()


def micro_batch_ms(checkpoint: Path) -> float:
    """The median time in milliseconds between the ends of two micro-batches of a query, after its warm-up."""
    commits = checkpoint / "commits"
    ended = sorted(path.stat().st_mtime_ns for path in commits.iterdir() if path.name.isdecimal())
    last = [later - sooner for sooner, later in itertools.pairwise(ended)][-LAST:]
    assert len(last) == LAST
    return median(last) / 1e6


if __name__ == "__main__":
    spark = spark_session(f"bench {sys.argv[1]}")
    answer(measure)
