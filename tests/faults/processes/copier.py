"""Copies a topic with a streaming query, and stores its micro-batches as Parquet with another streaming query.

The copy reads and writes with format("lakelog"), like a program that copies one Kafka topic into another. Each query
has a group that holds back cleaning. The second query overwrites a folder per micro-batch, so a repeated micro-batch
replaces what was written before.

    python -m tests.faults.processes.copier GATE ROOT FOLDER [--once]

The program reports that Spark is ready, and starts the queries when the file GATE exists. With --once, they end when they
have read all records that exist then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipeline.spark.session import spark_session
from tests.faults.processes.driver import wait_at_gate

ORIGINAL, COPY = "original", "copy"
GROUPS = ("copied", "stored")
BATCH_RECORDS = 300


def main(gate: Path, root: str, folder: Path, *, once: bool) -> None:
    spark = spark_session("copier")
    wait_at_gate(spark, gate)
    trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    copied, stored = (_records(spark, root, group) for group in GROUPS)
    copying = copied.selectExpr("key", "value", "headers", "partition", "timestamp").writeStream.format("lakelog")
    copying = copying.option("root", root).option("topic", COPY)

    def store(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / "stored" / str(batch_id)))

    storing = stored.writeStream.foreachBatch(store)
    queries = [
        writer.option("checkpointLocation", str(folder / f"checkpoint-{group}")).trigger(**trigger).start()
        for group, writer in zip(GROUPS, (copying, storing), strict=True)
    ]
    for query in queries:
        query.awaitTermination()


def _records(spark: SparkSession, root: str, group: str) -> DataFrame:
    return (
        spark.readStream.format("lakelog")
        .option("root", root)
        .option("subscribe", ORIGINAL)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
        .option("kafka.group.id", group)
        .option("holdsBack", "true")
        .load()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), once=sys.argv[4:] == ["--once"])
