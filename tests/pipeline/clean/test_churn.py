"""Runs ingests, maintenance, exports and readers at the same time on one topic with compaction and retention.

A source repeatedly writes a few keys, and deletes some of them. Meanwhile maintenance compacts small segments, drops
old segments, and deletes their files soon afterwards. Several exports write the topic to a Delta table. Three readers
read the topic in different ways. Cleaning keeps the records that a registered consumer has not read yet. So at the end
the table and the reader `following` must have the last value of each key that the source wrote.

`CHURN_MINUTES=15 pytest -m "soak or spark" tests/pipeline/clean/test_churn.py` runs for 15 minutes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.export import export
from jobs.maintenance import add_maintenance_options, maintenance
from pipeline.job import run_job
from storage_engine.topic.chain.history_reader import HistoryReader
from tests.faults.processes.programs import Program
from tests.pipeline.ingest.ingest_runs import run_ingest, topics_of
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at

SECONDS = 60 * float(os.environ.get("CHURN_MINUTES", "0.15"))
TOPIC = "churn"
KEYS = 120
ROWS = 400
SETTINGS = """
root: {root}
broker: {{lakelog.sweep.delay.ms: 60000}}
topics:
  churn:
    partitions: 3
    cleanup.policy: compact,delete
    segment.bytes: 8192
    min.cleanable.dirty.ratio: 0.2
    delete.retention.ms: 300
    file.delete.delay.ms: 300
    retention.bytes: 10000
    retention.respect.consumers: true
    consumer.max.hold.ms: 86400000
ingest:
  topic: churn
  source: {{format: json, path: {source}, schema: "k STRING, n BIGINT, gone BOOLEAN", options: {{maxFilesPerTrigger: 1}}}}
  key: k
  value: if(gone, null, concat(lpad(string(n), 12, '0'), repeat('.', 60)))
export: {{topic: churn, table: tables/churn}}
"""


class Source:
    """Files of rows with increasing numbers. `latest` has the last number of each key; None if the key was deleted."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._number = 0
        self._files = 0
        self.latest: dict[str, int | None] = {}

    def write(self) -> None:
        rows = []
        for _ in range(ROWS):
            self._number += 1
            key, gone = f"k{self._chance.randrange(KEYS)}", self._chance.random() < 0.05
            rows.append({"k": key, "n": self._number, "gone": gone})
            self.latest[key] = None if gone else self._number
        file = self._folder / f"{self._files:06d}.json"
        written = file.with_suffix(".part")
        written.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(written, (1_700_000_000 + self._files,) * 2)
        written.rename(file)
        self._files += 1


class Churn:
    """A root, and the jobs on it, in this process and its Spark session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.root = folder / "root"
        self.conf = folder / "churn.yaml"
        source = folder / "source"
        source.mkdir()
        self.conf.write_text(SETTINGS.format(root=root_at(self.root), source=source))
        self.source = Source(source, seed=7)
        self.runs = {"ingest": 0, "maintenance": 0, "export": 0}

    def ingest(self) -> None:
        run_ingest(self._spark, self.conf, self.root)
        self.runs["ingest"] += 1

    def maintain(self) -> None:
        self._run("maintenance", maintenance, add_maintenance_options)

    def export(self) -> None:
        """By turns without Spark and with Spark."""
        spark_records = 0 if self.runs["export"] % 2 else 1_000_000
        self._run("export", export, None, "--set", f"export.spark.records={spark_records}")

    def _run(
        self, name: str, main: Callable[..., object], options: Callable[..., None] | None, *arguments: str
    ) -> None:
        given = ["--conf", str(self.conf), *arguments]
        status = run_job(name, "", main, options, given, environ={})  # type: ignore[arg-type]
        assert status == 0, f"{name} ended with status {status}"
        self.runs[name] += 1


@contextmanager
def again_and_again(step: Callable[[], None], pause_s: float) -> Iterator[None]:
    """While the block runs, repeat a step in a thread. An error of the step is raised at the end of the block."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(pause_s):
            step()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(loop)
        try:
            yield
        finally:
            stop.set()
        done.result()


@pytest.mark.spark
def test_nothing_is_missed_or_doubled_while_everything_is_at_work(spark: SparkSession, tmp_path: Path) -> None:
    churn = Churn(spark, tmp_path)
    churn.source.write()
    churn.ingest()
    churn.export()  # which registers it before anything is dropped
    with ExitStack() as at_work:
        readers = {
            way: at_work.enter_context(reading(tmp_path, churn.root, way)) for way in ("following", "again", "by-time")
        }
        at_work.enter_context(again_and_again(churn.maintain, 0.3))
        at_work.enter_context(again_and_again(churn.export, 1))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            churn.source.write()
            churn.ingest()
    churn.export()
    seen = {way: reader.end() for way, reader in readers.items()}

    wanted = {key: number for key, number in churn.source.latest.items() if number is not None}
    table = rows_of_table(storage_at(churn.root), f"tables/{TOPIC}")
    assert sorted((row["_key"].decode(), int(row["value"][:12])) for row in table) == sorted(wanted.items())
    assert seen["following"]["latest"] == churn.source.latest
    assert all(each["passes"] > 1 and each["records"] for each in seen.values())
    topics = topics_of(churn.root)
    chain = topics.chain(TOPIC)
    newest = chain.newest().version
    did = " ".join(change.change for change in HistoryReader(topics.storage, chain).changes(0, newest))
    assert "compaction" in did, "nothing was compacted: the test is too short"
    assert "retention" in did, "nothing was dropped: the test is too short"
    print(f"\n{churn.runs}, {seen['following']['records']} records", file=sys.stderr)


@contextmanager
def reading(folder: Path, root: Path, way: str) -> Iterator[Program]:
    program = Program(folder, "tests.pipeline.clean.churn_reader", root_at(root), TOPIC, way)
    try:
        program.wait_for("reading")
        yield program
    except BaseException:
        program.kill()
        raise
