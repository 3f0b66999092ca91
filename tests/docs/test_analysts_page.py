"""Runs the examples of docs/ANALYSTS.md on a smaller version of the demo's export."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakelog
from jobs.export import export
from jobs.ingest import ingest
from pipeline.job import JobContext
from pipeline.settings import load_settings
from tests.docs.pages import PROJECT, blocks

PAGE = "docs/ANALYSTS.md"
FLIGHT = {
    "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
    "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "SFO",
    "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip


@pytest.fixture
def page_folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder with `lakelog-demo`: three records of two aircraft, and a flight without a tail number."""
    source = tmp_path / "source"
    source.mkdir()
    tailnums = ["N1", "N2", "N1", None]
    flights = [FLIGHT | {"tailnum": tailnum, "arr_delay": delay} for delay, tailnum in enumerate(tailnums)]
    (source / "flights.json").write_text("".join(f"{json.dumps(flight)}\n" for flight in flights))
    overrides = [f"ingest.source.path={source}"]
    settings = load_settings(PROJECT / "conf" / "flights.yaml", overrides, str(tmp_path / "lakelog-demo"))
    context = JobContext.of("test", settings)
    context.arguments.take_over = context.arguments.accept_new_checkpoint = False
    ingest(context)
    export(context)
    changes = ["export.mode=changelog", "export.table=tables/flight_changes"]
    export(JobContext.of("test", load_settings(PROJECT / "conf" / "flights.yaml", changes, settings.root)))
    return tmp_path


@pytest.mark.spark
def test_the_examples_run_and_show_what_the_page_says(
    spark: SparkSession, page_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(page_folder)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    names: dict[str, Any] = {"spark": spark}
    for block in blocks(PAGE, "python", "sh"):
        if "lakelog.table(" in block.text:
            record = {"key": "N3", "value": json.dumps(FLIGHT | {"tailnum": "N3", "dest": "LAX"})}
            appended = lakelog.open(page_folder / "lakelog-demo").topic("flights").append([record])
        text = block.text.replace("lakelog-demo", f"{page_folder}/lakelog-demo")  # Spark is where it was started
        text = text.replace("./spark-submit.sh", f"{PROJECT}/spark-submit.sh").replace("conf/", f"{PROJECT}/conf/")
        if block.language == "sh":
            subprocess.run(text, shell=True, check=True, env=environment)
        else:
            exec(compile(text, str(block), "exec"), names)
    shown = capfd.readouterr().out
    assert re.search(r"UA\W+2\b", shown), "Spark SQL counts two aircraft"
    assert re.search(r"N1\W+2\W", shown), "the log holds two records of N1"
    assert "prove: table tables/flights, table version 1, answer equal, records 3, table rows 2, equal 2" in shown
    assert re.search(r"no_key.*1\W", shown), "one dead letter"
    assert sorted(names["as_of_noon"]) == [("N1", "SFO"), ("N2", "SFO")]
    ((partition, (offset,)),) = appended.items()
    assert ("N3", "LAX", offset) in names["aircraft"]
    assert len(names["aircraft"]) == len(names["frame"]) == 3
    assert [tuple(row) for row in names["fresh_carriers"]] == [("UA", 3)]
    assert names["fresh_flights"].positions[partition] == offset + 1
    assert sorted(names["as_of"]["tailnum"]) == ["N1", "N2"]
    ends = dict(line.split(":")[1:] for line in shown.splitlines() if line.startswith("flights:"))
    assert {int(number): int(end) for number, end in ends.items()} == names["exported"][0][1]


def test_the_history_of_a_key_has_the_newest_record_of_all_partitions() -> None:
    (text,) = (block.text for block in blocks(PAGE, "python") if "as_of_noon" in block.text)
    found = re.search(r'"""(.*?)"""', text, re.DOTALL)
    assert found is not None
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    changes = pa.Table.from_pylist(
        [
            {"_key": key, "_partition": partition, "_offset": offset, "_timestamp": noon - timedelta(minutes=minutes),
             "_change_type": change, "tailnum": key, "dest": dest}
            for key, partition, offset, minutes, change, dest in [
                ("moved", 0, 7, 30, "upsert", "OLD"), ("moved", 1, 2, 20, "upsert", "NEW"), ("moved", 1, 3, 0, "upsert", "-"),
                ("gone", 0, 8, 10, "upsert", "OLD"), ("gone", 1, 0, 5, "delete", None),
                ("late", 0, 1, 5, "upsert", "OLD"), ("late", 0, 2, 9, "upsert", "NEW"),
            ]
        ]
    )  # fmt: skip
    rows = duckdb.from_arrow(changes).query("changes", found[1])
    assert rows is not None
    assert sorted(rows.fetchall()) == [("late", "NEW"), ("moved", "NEW")]
