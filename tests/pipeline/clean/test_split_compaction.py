"""The compaction of a large partition by several Spark tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.spark.numbered_tasks import run_numbered
from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.errors import CorruptionError
from storage_engine.topic.clean.split_compaction import compact_split
from storage_engine.topic.clean.state_swap import Failure
from storage_engine.topic.clean.topic_compaction import swap_cleaned
from tests.storage_engine.cleaner.test_cleaner import Log, put
from tests.storage_engine.cleaner.test_passes import task_of
from tests.stores import file_in


def test_a_partition_is_compacted_in_parts_or_stays_whole(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes="4000")
    run = partial(run_numbered, spark, log.storage.uri)
    for turn in range(4):
        log.append(*(put(f"key {number}", f"{turn}") for number in range(turn, 200)))
    log.append(put("end"))
    before = log.records()
    made = compact_split(log.storage, task_of(log), 3, run)
    assert isinstance(made, CleanedPartition)
    assert not list(log.storage.list("staging/"))
    newest = {row.key: offset for offset, row in before.items()}
    swap_cleaned(log.storage, log.chain, [made])
    assert log.records() == {offset: row for offset, row in before.items() if newest[row.key] == offset}

    log.append(*(put(f"key {number}", "new") for number in range(200)))
    log.append(put("end"))
    path = file_in(log.storage, log.first_file())
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    there = {file.key for file in log.storage.list("data/")}
    failed = compact_split(log.storage, task_of(log), 2, run)
    assert isinstance(failed, Failure)
    assert isinstance(failed.error, CorruptionError)
    assert {file.key for file in log.storage.list("data/")} == there
    assert not list(log.storage.list("staging/"))
