"""For which tables maintenance joins small files and deletes old files, and what maintenance reports about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from jobs.maintenance import add_maintenance_options, maintenance
from lakelog.delta_options import delta_options
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, export_consumer, put_positions
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import commit_file, table_at
from tests.stores import STORE, root_at, storage_at

EXPORTED = "exports/of orders".replace(" ", "-" if STORE == "hdfs" else " ")  # deltalake knows no spaces in HDFS
KEYS = [
    EXPORTED,
    "tables/dead_letters/ingest/orders",
    "tables/dead_letters/export/orders",
    "tables/dead_letters/unknown_topic",
]
OTHER = "tables/of_somebody_else"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with a topic and its four tables, each with twenty files, and a table that is not the topic's."""
    topics = Topics(storage_at(tmp_path), BrokerConfig(), SystemClock())
    topics.create("orders", 1, {})
    put_positions(topics.storage, topics.state("orders"), export_consumer(EXPORTED), EXPORT_KIND, {0: 0}, 0)
    put_positions(topics.storage, topics.state("orders"), export_consumer("tables/new"), EXPORT_KIND, {0: 0}, 0)
    for key in [*KEYS, OTHER]:
        for number in range(20):
            numbers = pa.table({"number": [number]})
            table = f"{root_at(tmp_path)}/{key}"
            deltalake.write_deltalake(table, numbers, mode="append", storage_options=delta_options(table))
    return root_at(tmp_path)


def files(root: str) -> list[int]:
    return [len(table_at(f"{root}/{key}").file_uris()) for key in [*KEYS, OTHER]]


def run(root: str, capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> dict[str, Any]:
    argv = ["--root", root, "--json", *options]
    assert run_job("maintenance", "", maintenance, add_maintenance_options, argv, environ={}) == status
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_maintenance_keeps_the_tables_of_its_topics_small(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert files(root) == [20] * 5
    report = run(root, capsys)
    assert (report["table files joined"], report["table files deleted"], report["tables left"]) == (80, 0, 0)
    assert report["warnings"] == report["failures"] == []
    assert files(root) == [1, 1, 1, 1, 20]
    for key in KEYS:
        numbers = table_at(f"{root}/{key}").to_pyarrow_table()["number"].to_pylist()
        assert sorted(numbers) == list(range(20))
    assert run(root, capsys)["table files joined"] == 0


@pytest.mark.parametrize(
    "options",
    [["--set", "maintenance.tables.upkeep=false"], ["--set", "maintenance.tables.small.files=20"],
     ["--set", "maintenance.tables.small.bytes=10"], ["--dry-run"], ["--max-bytes", "10"]],
    ids=lambda options: options[-1],
)  # fmt: skip
def test_the_settings_and_the_budget_decide(root: str, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    report = run(root, capsys, *options)
    assert files(root) == [20] * 5
    assert report.get("tables left", 0) == (4 if "--max-bytes" in options else 0)


def test_a_table_that_is_left_alone_or_damaged_does_not_stop_the_others(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table_at(f"{root}/{EXPORTED}").alter.set_table_properties({"delta.appendOnly": "true"})
    letters = KEYS[2]
    commit_file(f"{root}/{letters}", 19).write_bytes(b"not a commit")
    report = run(root, capsys, status=4)
    (warning,) = report["warnings"]
    assert warning == (
        f"{EXPORTED} has the property delta.appendOnly = true, so maintenance does not join its files; in Spark, run"
        f" OPTIMIZE delta.`{root}/{EXPORTED}` and then VACUUM delta.`{root}/{EXPORTED}`"
    )
    assert [letters in line for line in report["failures"]] == [True]
    assert report["table files joined"] == 40
