"""Copies a topic with a streaming query, and stores the micro-batches of two topics with another streaming query.

The copy reads and writes with format("lakelog"), like a program that copies one Kafka topic into another. The other
query writes one Parquet file for each micro-batch. If a micro-batch is repeated, its new file replaces the old file
atomically. Each query reads only committed records. Each query also has a group, and cleaning keeps the records that a
group has not read yet.

    python -m tests.faults.processes.streams.copier GATE ROOT FOLDER

The program reports that Spark is ready, and starts the queries when the file GATE exists. If this file contains the text
of the constant ONCE, each query reads the records that exist at its start, and then ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline.spark.session import spark_session
from tests.faults.processes.driver import wait_at_gate

COMPACTED, PLAIN, COPY = "compacted", "plain", "copy"
COPIED, STORED = "copied", "stored"
"""The queries, which are also the groups."""
ONCE = "once"
BATCH_RECORDS = 2_000


def main(gate: Path, root: str, folder: Path) -> None:
    spark = spark_session("copier")
    wait_at_gate(spark, gate)
    copied = records(spark, root, COMPACTED, COPIED).selectExpr("key", "value", "headers", "partition", "timestamp")
    copying = copied.writeStream.format("lakelog").option("root", root).option("topic", COPY)

    def store(batch: DataFrame, batch_id: int) -> None:
        file = stored_file(folder, batch_id)
        file.parent.mkdir(exist_ok=True)
        written = file.with_suffix(".part")
        pq.write_table(batch.toArrow(), written)
        written.replace(file)

    storing = records(spark, root, f"{COMPACTED},{PLAIN}", STORED).writeStream.foreachBatch(store)
    run(spark, {COPIED: copying, STORED: storing}, folder, once=gate.read_text() == ONCE)


def stored_file(folder: Path, batch_id: int) -> Path:
    return folder / "stored" / f"{batch_id}.parquet"


def records(spark: SparkSession, root: str, topics: str, group: str) -> DataFrame:
    return (
        spark.readStream.format("lakelog")
        .option("root", root)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.group.id", group)
        .option("holdsBack", "true")
        .load()
    )


def checkpoint_of(folder: Path, query: str) -> Path:
    return folder / f"checkpoint-{query}"


def run(spark: SparkSession, writers: dict[str, DataStreamWriter], folder: Path, *, once: bool) -> None:
    """Run queries at the same time, each with a checkpoint of its name. If one of them fails, the program ends."""
    queries = []
    for name, writer in writers.items():
        located = writer.option("checkpointLocation", str(checkpoint_of(folder, name)))
        queries.append((located.trigger(availableNow=True) if once else located).start())
    if not once:
        spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
