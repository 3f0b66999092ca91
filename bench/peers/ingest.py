"""One peer of the ingest benchmark: `python -m bench.peers.ingest lakelog|parquet|kafka`, in a separate Spark.

A case names the Parquet input, a folder to write to, and the address of a Kafka broker. The answer is the time of one
run in seconds. Each run reads the input from the page cache and writes each row's value. Lakelog writes through
foreachBatch to a topic of two partitions, and the time ends with the commit. The time of Spark's own Parquet writer
includes the fsync of its files. Spark's Kafka sink writes to a topic with two partitions. The broker does not sync its
files. Before each run, the peer waits until the files of earlier runs are on the disk, and makes sure that the system
has free memory for the new files. After each run, Lakelog's peer adds one line of JSON with the seconds of each phase
to a file that the case names.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TOUCHED_BYTES = 2 * 1024**3
DRIVER_MEMORY = "4g"  # Parquet's writer needs more than the 2 GiB of conf/spark-defaults.conf
os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {DRIVER_MEMORY} pyspark-shell"

from kafka import KafkaConsumer, TopicPartition  # noqa: E402
from kafka.admin import KafkaAdminClient, NewTopic  # noqa: E402

from bench.turns import answer  # noqa: E402
from pipeline.ingest.ingesting import Ingest  # noqa: E402
from pipeline.ingest.micro_batch import CLEAN_UP  # noqa: E402
from pipeline.settings import load_settings  # noqa: E402
from pipeline.spark.session import spark_session  # noqa: E402
from storage_engine.clock import SystemClock  # noqa: E402
from storage_engine.storage.storage_opening import open_storage  # noqa: E402
from storage_engine.topic.topics import Topics  # noqa: E402

SETTINGS = """
root: {root}
topics: {{values: {{partitions: 2}}}}
ingest:
  topic: values
  source: {{format: parquet, path: {input}, schema: "value BINARY"}}
  value: value
"""


def lakelog(case: dict[str, Any]) -> float:
    file = Path(case["folder"], "settings.yaml")
    file.write_text(SETTINGS.format(root=f"{case['folder']}/root", input=case["input"]))
    settings = load_settings(file)
    topics = Topics(open_storage(settings.root), settings.broker, SystemClock())
    started_ms = time.time() * 1000
    result = Ingest(spark, settings, topics, report=lambda _: None).run()
    assert result.records == case["rows"]
    seconds = (topics.state("values").written_ms - started_ms) / 1000
    phases = {name: taken for name, taken in result.phases.seconds.items() if name != CLEAN_UP}  # after the commit
    phases = {"start of the stream": seconds - sum(phases.values())} | phases
    with Path(case["phases"]).open("a") as lines:
        lines.write(json.dumps(phases) + "\n")
    return seconds


def parquet(case: dict[str, Any]) -> float:
    out = Path(case["folder"], "out")
    started = time.monotonic()
    spark.read.parquet(case["input"]).select("value").write.parquet(str(out))
    for path in [*out.iterdir(), out]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.monotonic() - started


def kafka(case: dict[str, Any]) -> float:
    servers, topic = case["bootstrap_servers"], f"values-{time.time_ns()}"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 2, 1)])
    time.sleep(1)  # after this second, the broker has the topic's log directories
    started = time.monotonic()
    rows = spark.read.parquet(case["input"]).select("value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()
    seconds = time.monotonic() - started
    consumer = KafkaConsumer(bootstrap_servers=servers)
    ends = consumer.end_offsets([TopicPartition(topic, partition) for partition in range(2)])
    assert sum(ends.values()) == case["rows"]
    consumer.close()
    admin.delete_topics([topic])
    admin.close()
    return seconds


def touch_memory(folder: Path) -> None:
    """Use memory once, so that the system has this memory for the files of a run. The host of a virtual machine takes
    back memory that is free for some seconds. The first write to such memory then takes five times as long, for every
    peer."""
    scratch = folder / "scratch"
    piece = bytes(1024**2)
    with scratch.open("wb", buffering=0) as file:
        for _ in range(TOUCHED_BYTES // len(piece)):
            file.write(piece)
    scratch.unlink()


PEERS = {"lakelog": lakelog, "parquet": parquet, "kafka": kafka}


def make_empty(folder: Path) -> None:
    """Make an empty folder. Wait until the disk has nothing left to write, and free memory for the files of the run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    touch_memory(folder)


def measure(case: dict[str, Any]) -> float:
    make_empty(Path(case["folder"]))
    return PEERS[sys.argv[1]](case)


if __name__ == "__main__":
    spark = spark_session(f"bench {sys.argv[1]}")
    answer(measure)
