"""Runs every job of a topic's life with the root, the checkpoint and the tables in a store, and compares all records and
all rows of the tables with the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

import lakelog
from jobs.compaction import compaction
from jobs.export import export
from jobs.ingest import add_ingest_options, ingest
from jobs.maintenance import add_maintenance_options, maintenance
from jobs.retention import retention
from pipeline.clean.cleaning_job import add_cleaning_options
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import open_table, rows_of_table
from tests.roots.stored_roots import stored_root

__all__ = ["stored_root"]

CONF = """
root: {root}
topics:
  orders:
    partitions: 2
    cleanup.policy: compact
    min.cleanable.dirty.ratio: 0.0
    segment.ms: 1
    schema: "id STRING, amount DOUBLE, at TIMESTAMP"
ingest:
  topic: orders
  source:
    format: json
    path: {folder}
    schema: "id STRING, amount DOUBLE, at TIMESTAMP"
    options: {{maxFilesPerTrigger: 1}}
  key: id
  value: to_json(struct(id, amount, at))
  timestamp: at
  trigger: available-now
exports:
  all: {{topic: orders, table: tables/all, mode: append}}
  latest: {{topic: orders, table: tables/latest, mode: upsert}}
"""
JOBS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "ingest": (ingest, add_ingest_options),
    "export": (export, add_export_options),
    "compaction": (compaction, add_cleaning_options),
    "retention": (retention, add_cleaning_options),
    "maintenance": (maintenance, add_maintenance_options),
    "prove": (prove_exports, add_proof_options),
}
NOW = datetime.now(UTC).replace(microsecond=0)
Row = dict[str, Any]
Run = Callable[..., dict[str, Any]]


def order(number: int) -> Row:
    """Each key occurs several times. The first 30 orders are older than the default retention, which is a week."""
    day = timedelta(days=8 if number < 30 else 1)
    return {"id": f"o{number % 7}", "amount": number / 4, "at": NOW - day + timedelta(seconds=number)}


def line(row: Row) -> str:
    return json.dumps({**row, "at": row["at"].isoformat()}) + "\n"


@pytest.fixture
def run(spark: SparkSession, stored_root: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a job with the settings, and returns its result."""
    (tmp_path / "source").mkdir()
    conf = tmp_path / "orders.yaml"
    conf.write_text(CONF.format(root=stored_root, folder=tmp_path / "source"))

    def run_named(name: str, *arguments: str) -> dict[str, Any]:
        capfd.readouterr()
        main, add_options = JOBS[name]
        argv = ["--conf", str(conf), "--json", *arguments]
        status = run_job(name, "", main, add_options, argv, {}, makes_topics=True)
        printed = capfd.readouterr()
        assert status == 0, printed
        result: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return result

    with patch.dict(spark.sparkContext.environment):
        yield run_named


def test_every_job_does_its_work_on_a_root_in_a_store(run: Run, stored_root: str, tmp_path: Path) -> None:
    storage = open_storage(stored_root)
    orders = [order(number) for number in range(50)]
    landing = tmp_path / "source"
    (landing / "0.json").write_text("".join(map(line, orders[:30])) + '{"id": 7, "amount": "no number"}\n')
    ingested = run("ingest")
    assert (ingested["batches"], ingested["records"], ingested["dead letters"]) == (1, 30, 1)
    exported = run("export", "--set", "exports.all.spark.records=0", "--set", "exports.latest.spark.records=0")
    assert exported["records"] == 60
    check(stored_root, orders[:30], orders[:30])

    (landing / "1.json").write_text("".join(map(line, orders[30:])))
    assert run("ingest")["records"] == 20
    assert run("export")["records"] == 40
    check(stored_root, orders, orders)
    assert run("compaction")["partitions compacted"] == 2
    compacted = [*latest(orders[:30]), *orders[30:]]
    check(stored_root, compacted, orders)
    proved = run("prove")
    assert (proved["different"], proved["answer"].split()[0]) == (0, "equal")

    topics = Topics(storage, BrokerConfig(), SystemClock())
    topics.alter("orders", configs={"cleanup.policy": "delete"})
    assert run("maintenance")["segments dropped"] == 2
    check(stored_root, orders[30:], orders)
    topics.alter("orders", configs={"retention.ms": "1"})
    assert run("retention")["segments dropped"] == 2
    check(stored_root, [], orders)

    (letter,) = rows_of_table(storage, "tables/dead_letters/ingest/orders")
    assert (letter["reason"], letter["topic"]) == ("malformed", "orders")
    verification = lakelog.open(stored_root).verify(deep=True)
    assert (verification.problems, verification.unreadable) == ([], ())
    assert open_table(storage, "tables/latest").version() > 1


def latest(orders: list[Row]) -> list[Row]:
    return list({each["id"]: each for each in orders}.values())


def check(root: str, in_log: list[Row], in_table: list[Row]) -> None:
    """Check the records of the topic, and the rows of both tables."""
    storage = open_storage(root)
    records = lakelog.open(root).topic("orders").read().to_arrow().to_pylist()
    assert sorted((each["key"], json.loads(each["value"])["amount"], each["timestamp"]) for each in records) == sorted(
        (each["id"].encode(), each["amount"], each["at"]) for each in in_log
    )
    for table, expected in (("tables/all", in_table), ("tables/latest", latest(in_table))):
        rows = [{name: row[name] for name in ("id", "amount", "at")} for row in rows_of_table(storage, table)]
        assert sorted(rows, key=lambda row: row["at"]) == sorted(expected, key=lambda row: row["at"])
