"""Maintenance joins the files of a table while an export merges rows into the same files. The export must not fail, and
no row may be lost or doubled.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakelog
from jobs.export import export
from lakelog.delta.rows import open_rows
from pipeline.delta import exporting, table_writing
from pipeline.delta.files import upserting
from pipeline.delta.rows.upserted_rows import upsert_source
from pipeline.delta.upkeep import deleted_files
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import keep_table
from pipeline.delta.without_spark import small_export
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import table_at
from tests.roots.stored_roots import stored_root
from tests.stores import root_at

__all__ = ["stored_root"]

ALL = SmallFileRule(1, 32 << 20)
RunJob = Callable[..., dict[str, Any]]


class Joining:
    """Joins all files of the table at the moment when an export writes rows, once."""

    def __init__(self, table: str, folder: Path) -> None:
        self.table = table
        self.started, self.joined = folder / "started", folder / "joined"

    def join(self) -> None:
        if not self.joined.exists():
            done = keep_table(self.table, ALL)
            assert done is not None
            assert done.joined > 1
            self.joined.touch()

    def between_plan_and_commit(self, patch: pytest.MonkeyPatch, way: ModuleType, step: str) -> None:
        """Join files after an export has opened the table.

        way, step: the module of the export, and the function before which the files are joined.
        """
        write = getattr(way, step)

        def late(*arguments: Any) -> Any:
            self.join()
            return write(*arguments)

        patch.setattr(way, step, late)

    def during_merge(self, patch: pytest.MonkeyPatch) -> None:
        """Join files while Spark's MERGE runs: the MERGE has read the table, and waits for the rows of its source. The list
        of the keys is too large for the other way."""
        started, joined = str(self.started), str(self.joined)

        def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            Path(started).touch()
            while not Path(joined).exists():
                time.sleep(0.02)
            yield from batches

        def slow(*arguments: Any) -> DataFrame:
            found = upsert_source(*arguments)
            return found.mapInArrow(wait, found.schema)

        def join() -> None:
            while not self.started.exists():
                time.sleep(0.02)
            self.join()

        patch.setattr(upserting, "INDEX_BYTES", 0)
        patch.setattr(table_writing, "upsert_source", slow)
        threading.Thread(target=join, daemon=True).start()


def check_race(
    root: str,
    joining: Joining,
    race: Callable[[], None],
    run: RunJob,
    *settings: str,
    operation: str = "WRITE",
    layout: Sequence[str] = (),
) -> None:
    """Race an upsert and a join of all files. layout: the settings of all exports; settings: those of the last one."""
    topic = lakelog.open(root, create=True).create_topic("t", partitions=1, config={"cleanup.policy": "compact"})
    for number in range(4):  # a new key is a new file
        topic.append([{"key": b"%d" % number, "value": b'{"id": %d}' % number}])
        run("export", *layout)
    topic.append(
        [{"key": b"1", "value": b'{"id": 100}'}, {"key": b"2", "value": None}, {"key": b"9", "value": b'{"id": 9}'}]
    )
    race()
    report = run("export", *layout, *settings)
    assert (report["exit_status"], report["warnings"]) == (0, [])
    assert [each["operation"] for each in table_at(joining.table).history()][:2] == [operation, "OPTIMIZE"]
    rows = open_rows(table_at(joining.table), ["_key", "id"]).read_all().to_pylist()
    assert sorted((row["_key"], row["id"]) for row in rows) == [(b"0", 0), (b"1", 100), (b"3", 3), (b"9", 9)]
    assert run("prove")["answer"] == "equal"


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[str], RunJob]:
    def of(root: str) -> RunJob:
        def run(name: str, *settings: str) -> dict[str, Any]:
            capfd.readouterr()
            argv = ["--root", root, "--json", "--set", "topics.t.schema=id BIGINT", "--set", "export.topic=t"]
            argv += ["--set", "export.digest=false", *settings]
            jobs: dict[str, tuple[Any, Any]] = {
                "export": (export, add_export_options), "prove": (prove_exports, add_proof_options)
            }  # fmt: skip
            run_job(name, "", *jobs[name], argv, {})
            report: dict[str, Any] = json.loads(capfd.readouterr().out)
            return report

        return run

    return of


VECTORS = ("--set", "export.readers=spark")


@pytest.mark.parametrize("layout", [(), VECTORS], ids=["plain", "vectors"])
@pytest.mark.parametrize("step", ["_write", "commit_changes"])
def test_files_are_joined_during_an_export_without_spark(
    tmp_path: Path, run: Callable[[str], RunJob], monkeypatch: pytest.MonkeyPatch, layout: Sequence[str], step: str
) -> None:
    root = root_at(tmp_path / "root")
    joining = Joining(f"{root}/tables/t", tmp_path)
    race = lambda: joining.between_plan_and_commit(monkeypatch, small_export, step)  # noqa: E731
    check_race(root, joining, race, run(root), layout=layout)


@pytest.mark.posix("deletes a file of the table")
def test_an_export_whose_files_were_deleted_before_its_commit_says_so(
    tmp_path: Path, run: Callable[[str], RunJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if VACUUM had run during a pause of the export that was longer than the retention of files."""
    root = root_at(tmp_path / "root")
    topic = lakelog.open(root, create=True).create_topic("t", partitions=1, config={"cleanup.policy": "compact"})
    job = run(root)
    for number in range(2):
        topic.append([{"key": b"%d" % number, "value": b'{"id": %d}' % number}])
        if number == 0:
            job("export")
    table, positions = f"{root}/tables/t", consumer_positions(root)
    before, write = set(table_at(table).file_uris()), small_export._write

    def deleted(*arguments: Any) -> Any:
        written = write(*arguments)
        for file in set(table_at(table).file_uris()) - before:
            Path(file.removeprefix("file://")).unlink()
        return written

    with monkeypatch.context() as patch:
        patch.setattr(small_export, "_write", deleted)
        patch.setattr(deleted_files, "_CHECKED_AFTER_MS", 0)
        report = job("export")
    assert report["exit_status"] != 0
    assert "1 of the files that version 2 added were deleted before the commit" in report["error"]
    assert report["error"].endswith("Restore the table to version 1 and start the export again.")
    assert consumer_positions(root) == positions
    table_at(table).restore(1)
    assert job("export")["records"] == 1
    assert sorted(table_at(table).to_pyarrow_table()["id"].to_pylist()) == [0, 1]
    assert job("prove")["answer"] == "equal"


def consumer_positions(root: str) -> list[dict[int, int]]:
    storage = open_storage(root)
    return [
        dict(each.positions)
        for each in read_consumers(storage, Topics(storage, BrokerConfig(), SystemClock()).state("t")).known
    ]


@pytest.mark.spark
def test_files_are_joined_during_a_merge_of_spark(
    spark: SparkSession, tmp_path: Path, run: Callable[[str], RunJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_at(tmp_path / "root")
    joining = Joining(f"{root}/tables/t", tmp_path)
    race = lambda: joining.during_merge(monkeypatch)  # noqa: E731
    check_race(root, joining, race, run(root), "--set", "export.spark.records=0", operation="MERGE")


@pytest.mark.spark
@pytest.mark.parametrize("operation", ["MERGE", "WRITE"])
def test_files_are_joined_during_an_upsert_into_a_table_with_deletion_vectors(
    spark: SparkSession, tmp_path: Path, run: Callable[[str], RunJob], monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    root = root_at(tmp_path / "root")
    joining = Joining(f"{root}/tables/t", tmp_path)

    def race() -> None:
        if operation == "MERGE":
            joining.during_merge(monkeypatch)
        else:
            joining.between_plan_and_commit(monkeypatch, exporting, "commit_changes")

    settings = ("--set", "export.spark.records=0")
    check_race(root, joining, race, run(root), *settings, operation=operation, layout=VECTORS)


@pytest.mark.spark
def test_files_are_joined_during_an_upsert_of_spark_in_a_store(
    spark: SparkSession, stored_root: str, tmp_path: Path, run: Callable[[str], RunJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    joining = Joining(f"{stored_root}/tables/t", tmp_path)
    race = lambda: joining.between_plan_and_commit(monkeypatch, exporting, "commit_changes")  # noqa: E731
    check_race(stored_root, joining, race, run(stored_root), "--set", "export.spark.records=0")
