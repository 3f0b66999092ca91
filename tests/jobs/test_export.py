"""The export job on its command line: its output, its exit status, and what it does without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from jobs.export import export
from pipeline.delta.without_spark import small_export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from storage_engine.errors import StorageError
from storage_engine.storage import Storage
from storage_engine.topic.clean.topic_compaction import compact_topic
from tests.lakelog.cli.conftest import Lakelog, lakelog, line
from tests.pipeline.ingest.ingest_runs import topics_of
from tests.roots.delta_tables import open_table
from tests.roots.duckdb_delta import rows_in_duckdb
from tests.stores import files_below, root_at, storage_at

__all__ = ["lakelog"]

PROJECT = Path(__file__).resolve().parents[2]
FLIGHT = {
    "year": 2013, "month": 1, "day": 1, "sched_dep_time": 515, "sched_arr_time": 819, "carrier": "UA", "flight": 1545,
    "origin": "EWR", "dest": "SFO", "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip
"""What decodes as a flight."""
RENAMED = {("carrier_code" if name == "carrier" else name): value for name, value in FLIGHT.items()}
Ended = tuple[int, dict[str, Any], str]


@pytest.fixture
def run_export(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the job on the root of `lakelog`: exit status, what --json printed, and what the operator was told."""

    def run(*arguments: str) -> Ended:
        argv = ["--root", root_at(tmp_path / "root"), "--json", "--set", "topics.t.schema=flight", *arguments]
        capfd.readouterr()
        status = run_job("export", "", export, add_export_options, ["--set", "export.topic=t", *argv], {})
        said = capfd.readouterr()
        told = "".join(f"{line}\n" for line in said.err.splitlines() if line.startswith("export: "))
        return status, json.loads(said.out), told

    return run


def append(lakelog: Lakelog, *values: dict[str, Any] | None, topic: str = "t") -> None:
    lines = [
        line(b"k%d" % number, None if value is None else json.dumps(value).encode())
        for number, value in enumerate(values)
    ]
    assert lakelog("append", "--topic", topic, stdin=lines).status == 0


def all_files(storage: Storage) -> dict[str, bytes]:
    folders = ("data/", "meta/", "staging/", "tables/", "log/")
    return {key: storage.read(key) for folder in folders for key in files_below(storage, folder)}


def without_spark(root: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The job in a process that cannot import Spark: exit status and result."""
    program = (
        "import runpy, sys; sys.modules['pyspark'] = None; sys.argv[0] = 'export';"
        f" sys.path.insert(0, {str(PROJECT)!r}); runpy.run_path({str(PROJECT / 'jobs' / 'export.py')!r}, run_name='__main__')"
    )
    settings = ["--set", "export.topic=t", "--set", "topics.t.schema=flight", "--root", root_at(root), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *settings, *arguments],
        capture_output=True, text=True, check=False, cwd=root.parent, env=os.environ,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.spark
def test_an_append_from_its_first_run_to_one_with_nothing_new(
    spark: SparkSession, tmp_path: Path, lakelog: Lakelog, run_export: Callable[..., Ended]
) -> None:
    root, storage = tmp_path / "root", storage_at(tmp_path / "root")
    lakelog("topics", "create", "t", "--partitions", "1")
    append(lakelog, FLIGHT, FLIGHT)
    status, result = without_spark(root)
    del result["seconds"]
    assert status == 0
    assert result == {
        "job": "export", "exit_status": 0, "topic": "t", "table": "tables/t", "table version": 1, "records": 2,
        "rows appended": 2, "dead letters": 0, "dead letters by reason": {},
        "rows": [{"partition": 0, "from offset": 0, "to offset": 2}], "failures": [],
        "warnings": [],
    }  # fmt: skip
    status, nothing = without_spark(root)
    del nothing["seconds"]
    assert status == 0
    assert nothing == {
        **result, "records": 0, "rows appended": 0, "rows": [{"partition": 0, "from offset": 2, "to offset": 2}]
    }  # fmt: skip

    append(lakelog, FLIGHT)
    status, result, told = run_export("--set", "export.spark.records=0")  # Spark continues the table
    assert (status, told, result["rows appended"]) == (0, "", 1)
    append(lakelog, RENAMED, None)
    files = all_files(storage)
    status, _, told = run_export()
    assert status == 1
    assert told == (
        f"export: {storage.uri}/tables/t: 1 of 1 records to export and 0 of the 3 records before them cannot be decoded:"
        " 25.0%, and export.max.dead.letter.share allows 5.0% (1 undecodable, missing at carrier; in partition 0 offsets 3"
        " to 3 (1)). Nothing was exported. Choose one: (1) fix the model in schemas/ or the producer, and start again; (2)"
        ' accept these dead letters once with --accept-dead-letters "0:5"; (3) raise export.max.dead.letter.share.\n'
    )
    assert all_files(storage) == files
    status, result, told = run_export("--accept-dead-letters", "0:5")
    assert (status, result["rows appended"], result["dead letters"]) == (0, 0, 2)
    assert result["dead letters by reason"] == {"no value": 1, "undecodable": 1}
    assert told == (
        f"export: warning: 2 records did not become rows, but dead letters in {storage.uri}/tables/dead_letters/export/t;"
        " `lakelog report` counts them by reason\n"
    )

    # Whatever is not right is found without Spark, too, in the same words.
    status, result = without_spark(root, "--set", "export.mode=upsert")
    problem = (
        f"{storage.uri}/tables/t: was exported in append mode; the mode in --set export.mode is now upsert."
        " To make the table again in the new mode, run the export once with --rebuild. Or export to another table."
    )
    assert (status, result["error"]) == (1, problem)
    for arguments, problem in [
        (["--from-offset", "0"],
         "--from-offset: found '0'. Give a partition and an offset, such as 0:1200. Give each partition only once."),
        (["--from-timestamp", "today"], "--from-timestamp: found 'today'. Use 2026-01-31T12:00:00Z, or milliseconds since 1970."),
    ]:  # fmt: skip
        status, result = without_spark(root, *arguments)
        assert (status, result["error"]) == (2, problem)

    status, result, _ = run_export("--from-timestamp", "1969-12-31T23:59:59.999", "--accept-dead-letters", "0:5")
    assert (status, result["rows appended"], result["dead letters"]) == (0, 3, 2)
    assert sorted(open_table(storage, "tables/t").to_pyarrow_table()["_offset"].to_pylist()) == [0, 1, 2]
    assert len(open_table(storage, "tables/dead_letters/export/t").to_pyarrow_table()) == 2
    status, result, _ = run_export("--replay")
    del result["seconds"]
    assert result == {
        "job": "export", "exit_status": 0, "topic": "t", "table": "tables/t", "table version": 5, "dead letters replayed": 0,
        "superseded": 0, "gone from the log": 0, "still open": 2, "rows written": 0, "rows": [], "failures": [],
        "warnings": [],
    }  # fmt: skip
    lakelog("topics", "delete", "t")
    lakelog("topics", "create", "t", "--partitions", "1")
    status, result = without_spark(root)
    assert status == 1
    assert "the topic was deleted and created again. Export to another table" in result["error"]


def test_offsets_whose_records_compaction_has_removed_do_not_make_spark_export(
    tmp_path: Path, lakelog: Lakelog
) -> None:
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "cleanup.policy=compact")
    for distance in range(5):
        append(lakelog, FLIGHT | {"distance": distance})
    topics = topics_of(tmp_path / "root")
    config = topics.config(topics.state("t"))
    assert compact_topic(topics.storage, topics.chain("t"), config, topics.broker, topics.clock, force=True).cleaned

    status, result = without_spark(tmp_path / "root", "--set", "export.spark.records=3")

    assert (status, result["records"], result["rows"]) == (0, 2, [{"partition": 0, "from offset": 0, "to offset": 5}])
    rows = open_table(storage_at(tmp_path / "root"), "tables/t").to_pyarrow_table().to_pylist()
    assert [(row["_key"], row["_offset"], row["distance"]) for row in rows] == [(b"k0", 4, 4)]


@pytest.mark.parametrize(
    "option", ["--from-offset=0:0", "--from-offset=x", "--from-timestamp=0", "--accept-dead-letters=0:1"]
)
def test_a_replay_refuses_options_that_would_have_no_effect(
    tmp_path: Path, lakelog: Lakelog, run_export: Callable[..., Ended], option: str
) -> None:
    lakelog("topics", "create", "t", "--partitions", "1")
    files = all_files(storage_at(tmp_path / "root"))
    name = option.partition("=")[0]
    status, result, _ = run_export("--replay", option)
    assert (status, result["error"]) == (
        2, f"{name}: cannot be used with --replay, which reads the dead letters of earlier exports. Leave out {name}."
    )  # fmt: skip
    assert all_files(storage_at(tmp_path / "root")) == files


@pytest.mark.spark
def test_a_rebuild_changes_the_mode_of_the_table(
    spark: SparkSession,
    tmp_path: Path,
    lakelog: Lakelog,
    run_export: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*_: object) -> None:
        raise StorageError("tables/other", "the process was killed")

    storage = storage_at(tmp_path / "root")
    lakelog("topics", "create", "t", "--partitions", "1")
    append(lakelog, FLIGHT, FLIGHT)
    append(lakelog, FLIGHT | {"distance": 99})
    assert run_export()[0] == 0
    append(lakelog, None)
    upsert = ("--set", "export.mode=upsert")
    for arguments, problem in [
        (["--rebuild", "--replay"], "--replay: cannot be used with --rebuild, which reads the whole log. Leave out --replay."),
        (["--accept-lost-rows", "3"], "--accept-lost-rows: is only for --rebuild. Add --rebuild, or leave out this option."),
        (["--rebuild", "--accept-lost-rows", "-1"], "--accept-lost-rows: found -1. Give a number of rows."),
    ]:  # fmt: skip
        status, result, _ = run_export(*upsert, *arguments)
        assert (status, result["error"]) == (2, problem)
    status, result, told = run_export(*upsert, "--rebuild")
    del result["seconds"]
    assert (status, told) == (0, "")
    assert result == {
        "job": "export", "exit_status": 0, "topic": "t", "table": "tables/t", "table version": 2, "mode": "upsert",
        "records": 4, "rows before": 3, "rows now": 1, "rows lost": 0, "dead letters": 0, "dead letters by reason": {},
        "digests": "a new chain begins", "rows": [{"partition": 0, "from offset": 0, "to offset": 4}], "failures": [],
        "warnings": [],
    }  # fmt: skip
    assert open_table(storage, "tables/t").to_pyarrow_table()["_key"].to_pylist() == [b"k1"]
    append(lakelog, FLIGHT)
    status, result, _ = run_export(*upsert)
    assert (status, result["rows upserted"], result["warnings"]) == (0, 1, [])
    append(lakelog, FLIGHT)
    status, result, _ = run_export(*upsert, "--set", "export.digest=false")
    ends = (
        f"the chain of digests of {storage.uri}/tables/t ends with version 4, because export.digest is false: rows that are"
        " exported from now on have no digest, and prove compares the table only with the log; an export with --rebuild"
        " and export.digest: true begins a new chain"
    )
    assert (status, result["rows upserted"], result["warnings"]) == (0, 1, [ends])
    append(lakelog, FLIGHT)
    assert run_export(*upsert)[1]["warnings"] == []
    # A killed first export can leave an empty table, which is made again, too.
    other = ("--set", "export.table=tables/other")
    with monkeypatch.context() as patch:
        patch.setattr(small_export, "_write", killed)
        assert run_export(*other)[0] != 0
    partitioned = (*other, "--set", "export.partition.by=origin")
    status, result, _ = run_export(*partitioned)
    assert status == 1
    assert "run the export once with --rebuild" in result["error"]
    status, result, _ = run_export(*partitioned, "--rebuild")
    assert (status, result["rows before"], result["rows now"]) == (0, 0, 6)
    table = open_table(storage, "tables/other")
    assert table.metadata().partition_columns == ["origin"]
    assert sorted(table.to_pyarrow_table()["_offset"].to_pylist()) == [0, 1, 2, 4, 5, 6]


def test_the_settings_choose_the_layout_of_a_new_table(
    tmp_path: Path, lakelog: Lakelog, run_export: Callable[..., Ended]
) -> None:
    lakelog("topics", "create", "t", "--partitions", "1")
    append(lakelog, FLIGHT, {**FLIGHT, "origin": "JFK"})
    storage = storage_at(tmp_path / "root")
    for setting, column, words in (
        ("partition.by", "place", "the column place is no column of the table; the model has the columns year, month,"),
        ("partition.by", "time_hour", "the column time_hour is timestamp[us, tz=UTC]; only texts,"),
        ("cluster.by", "_key", "the column _key is binary; only texts,"),
    ):
        status, _, told = run_export("--set", f"export.{setting}={column}")
        assert status == 1
        assert words in told
        assert f"export.{setting}" in told
    assert not list(files_below(storage, "tables/"))
    status, result, told = run_export("--set", "export.partition.by=origin,month")
    assert (status, told, result["rows appended"]) == (0, "", 2)
    table = open_table(storage, "tables/t")
    assert table.metadata().partition_columns == ["origin", "month"]
    found = table.to_pyarrow_table().sort_by("_offset")
    assert [found[name].to_pylist() for name in ("origin", "month")] == [["EWR", "JFK"], [1, 1]]


@pytest.mark.posix("Polars and DuckDB of this test read local tables")
@pytest.mark.parametrize(
    ("partition_by", "has_vectors"),
    [("origin", False), ("month", True), ("_partition", True), ("month, origin", False)],
)
def test_polars_reads_each_row_once_from_every_partition(
    tmp_path: Path, lakelog: Lakelog, run_export: Callable[..., Ended], partition_by: str, *, has_vectors: bool
) -> None:
    """Polars does not find deletion vectors in folders such as `origin=J%2FK`."""
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "cleanup.policy=compact")
    settings = ("--set", "export.readers=[spark, polars]", "--set", f"export.partition.by=[{partition_by}]")
    for distances in ([1, 2, 3, 4], [3, 5]):
        flights = [FLIGHT | {"origin": "J/K L"[:each], "distance": each} for each in distances]
        append(lakelog, *flights)
        assert run_export(*settings)[0] == 0
    table = root_at(tmp_path / "root") + "/tables/t"
    files = list(Path(table).rglob("*.bin"))
    assert bool(files) == has_vectors
    found = pl.scan_delta(table).select("_key", "origin", "distance").collect().rows()
    assert sorted(found) == [(b"k0", "J/K", 3), (b"k1", "J/K L", 5), (b"k2", "J/K", 3), (b"k3", "J/K ", 4)]
    assert sorted((row["_key"], row["origin"], row["distance"]) for row in rows_in_duckdb(table)) == sorted(found)
