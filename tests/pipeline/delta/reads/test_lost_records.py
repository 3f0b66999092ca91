"""Retention deletes records before they were exported: the export stops until the loss is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("way", ["with Spark", "without Spark"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_export_stops_at_lost_records_until_the_loss_is_accepted(
    tmp_path: Path, mode: str, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = storage_at(tmp_path / "root")
    topic = lakelog.open(root_at(tmp_path / "root"), create=True).create_topic("t")
    options = ["--set", "export.topic=t", "--set", f"export.mode={mode}"]
    if way == "with Spark":
        options += ["--set", "export.spark.records=0"]

    def add(*keys: str) -> None:
        topic.append([{"key": key, "value": key.upper()} for key in keys])

    def run(*more: str) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        argv = ["--root", storage.uri, "--json", *options, *more]
        status = run_job("export", "", export, add_export_options, argv, {})
        said, told = capfd.readouterr()
        return status, json.loads(said), told

    def exported() -> list[tuple[int, bytes]]:
        return sorted((row["_offset"], row["value"]) for row in rows_of_table(storage, "tables/t"))

    add("a", "b")
    assert run()[0] == 0
    add("c", "d", "e")
    delete_records(Topics(storage, BrokerConfig(), SystemClock()).chain("t"), 0, 4)
    for _ in range(2):
        status, result, told = run()
        assert (status, exported()) == (1, [(0, b"A"), (1, b"B")])
        assert told == f"export: {result['error']}\n"
        assert result["error"] == (
            f"{storage.uri}/tables/t: retention deleted records of t before they were exported (partition and offsets 0: 2 to"
            " 3). Rows and deletions of these records are missing. To continue without these rows and deletions, run the"
            " export once with --from-offset 0:4."
        )
    lost = "partition 0: retention deleted offsets 2 to 3 before they were exported"
    status, result, told = run("--from-offset", "0:4")
    assert (status, result["warnings"], told) == (0, [lost], f"export: warning: {lost}\n")
    assert exported() == [(0, b"A"), (1, b"B"), (4, b"E")]
    status, result, told = run()
    assert (status, result["warnings"], told) == (0, [], "")

    add("f")  # all new records are lost, and nothing is to be exported: the position stays
    delete_records(Topics(storage, BrokerConfig(), SystemClock()).chain("t"), 0, 6)
    status, result, told = run()
    assert (status, result["warnings"]) == (
        0,
        ["partition 0: retention deleted offsets 5 to 5 before they were exported"],
    )
    add("g")
    assert run()[0] == 1
    assert run("--from-offset", "0:6")[0] == 0
    assert exported() == [(0, b"A"), (1, b"B"), (4, b"E"), (6, b"G")]
