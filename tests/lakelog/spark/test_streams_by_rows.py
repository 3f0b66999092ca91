"""Streams whose executors may lack Lakelog's Java classes, so that Spark reads the Python source by rows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lakelog
from tests.java_options import JAVA_OPTIONS
from tests.stores import root_at

PROJECT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys

from pipeline.spark.session import spark_session

root, topic, folder = sys.argv[1:]
spark = spark_session("streams on a cluster")
options = {"root": root, "subscribe": topic, "startingOffsets": "earliest"}
streams = [
    spark.readStream.format("lakelog").options(**options).load().writeStream.trigger(availableNow=True)
    .options(checkpointLocation=f"{folder}/checkpoint-{number}", path=f"{folder}/{number}").start()
    for number in range(2)
]
for stream in streams:
    stream.awaitTermination()
read = spark.read.format("lakelog").options(root=root, subscribe=topic).load()
print("in columns:", "ColumnarToRow" in read._jdf.queryExecution().executedPlan().toString())
"""
COLUMNS = ["key", "value", "topic", "partition", "offset"]


@pytest.mark.spark
def test_two_streams_at_once_on_executors_without_the_classes_have_every_row(tmp_path: Path) -> None:
    root = root_at(tmp_path / "root")
    topic = lakelog.open(root, create=True).create_topic("t", 2)
    topic.append([{"key": f"k{number}", "value": None if number % 3 == 0 else "v" * number} for number in range(100)])

    program = tmp_path / "streams.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [PROJECT / "spark-submit.sh", program, root, "t", tmp_path, "--", "--master", "local-cluster[1,1,1024]"],
        capture_output=True, text=True, check=False, cwd=PROJECT, env=os.environ | JAVA_OPTIONS,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (0, "in columns: False\n"), ended.stderr
    written = topic.read().to_arrow().select(COLUMNS).to_pylist()
    assert len(written) == 100
    for number in range(2):
        rows = pq.read_table(tmp_path / str(number), columns=COLUMNS).sort_by(
            [("partition", "ascending"), ("offset", "ascending")]
        )
        assert rows.to_pylist() == written
