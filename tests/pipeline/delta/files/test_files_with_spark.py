"""Exports whose files Spark's tasks write with Arrow: the same table as with Spark's own writer."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from pipeline.delta.dead_letter_share import TooManyDeadLettersError
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.files import upserting
from pipeline.delta.files.skipping_columns import named_columns
from pipeline.delta.fresh.snapshot import exported_head
from pipeline.delta.table_properties import SKIPPING_PROPERTY
from storage_engine.storage.storage_opening import open_storage
from tests.pipeline.delta.files import edge_rows
from tests.pipeline.delta.files.test_skipping import Readers
from tests.pipeline.delta.order_log import Log, rows, run
from tests.pipeline.delta.order_models import Trip, schema_of
from tests.roots.delta_tables import table_at
from tests.stores import root_at

pytestmark = pytest.mark.spark

TRIP = b'{"number": %d, "count": 7, "price": "1.50", "marks": [1, null], "legs": [{"distance": 3}]}'


def by_offset(path: str) -> list[dict[str, Any]]:
    return sorted(rows(path), key=lambda row: (row["_partition"], row["_offset"]))


@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.CHANGELOG])
def test_both_writers_of_spark_make_the_same_table(
    spark: SparkSession, log: Log, append: Export, tmp_path: Path, mode: ExportMode
) -> None:
    by_tasks = replace(append, mode=mode, schema=schema_of(Trip), digest=True, headers=True)
    by_spark = replace(by_tasks, table=root_at(tmp_path / "spark"), dead_letters=root_at(tmp_path / "their letters"))
    log.add(b"k", TRIP % 0)
    for each in (by_tasks, by_spark):
        run(log, each)
    spark.sql(f"ALTER TABLE delta.`{by_spark.table}` SET TBLPROPERTIES (note = 'x')")
    for number in range(1, 9):
        log.add(b"k%d" % number, None if number == 3 else b"bad" if number == 5 else TRIP % number, number % 2)
    log.add(None, TRIP % 10)
    log.with_spark = True
    results = [run(log, each) for each in (by_tasks, by_spark)]
    counts = [(each.records, each.tombstones, each.written, each.deleted, each.reasons) for each in results]
    assert counts[0] == counts[1]
    assert by_offset(by_tasks.table) == by_offset(by_spark.table)
    letters = [
        sorted(rows(each.dead_letters), key=lambda row: (row["partition"], row["offset"]))
        for each in (by_tasks, by_spark)
    ]
    without_id = [[{**row, "table_id": ""} for row in found] for found in letters]
    assert without_id[0] == without_id[1]
    one, other = (exported_head(each.table).stamp.chain for each in (by_tasks, by_spark))
    assert one is not None
    assert other is not None
    assert one.partitions == other.partitions
    history = [DeltaTable.forPath(spark, each.table).history(1).first() for each in (by_tasks, by_spark)]
    assert len({row["operationMetrics"]["numOutputRows"] for row in history if row}) == 1


@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.UPSERT])
def test_readers_that_skip_files_find_each_row(spark: SparkSession, log: Log, append: Export, mode: ExportMode) -> None:
    export = replace(append, mode=mode, digest=True)
    for number in range(6):
        log.add(b"k%d" % number, b'{"number": %d, "colour": "%s"}' % (number, b"r" * (30 + number)), number % 2)
    log.with_spark = True
    assert run(log, export).written == 6
    table = spark.read.format("delta").load(export.table)
    for number in range(6):
        text, moment = "r" * (30 + number), datetime.fromtimestamp(number + 1, UTC)
        found: dict[str, object] = {"number": number, "colour": text, "_timestamp": moment}
        same = " AND ".join(f"{name} = '{value}'" for name, value in found.items())
        assert [row["number"] for row in table.where(same).collect()] == [number]
        for name, value in found.items():
            rows_there = table_at(export.table).to_pyarrow_table(columns=["number"], filters=[(name, "=", value)])
            assert rows_there.to_pylist() == [{"number": number}]


@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.UPSERT])
def test_readers_that_skip_files_find_each_row_of_each_type(
    spark: SparkSession, log: Log, append: Export, mode: ExportMode
) -> None:
    """The tasks of Spark write the files. In mode upsert, Spark's own writer then merges."""
    export = replace(append, mode=mode, digest=True, schema=edge_rows.schema())
    log.with_spark = True
    for file in edge_rows.values():
        for number, value in file:
            log.add(b"%d" % number, value)
        assert run(log, export).written == len(file)
    readers = Readers(export.table)
    table = spark.read.format("delta").load(export.table)
    lost = []
    for each in edge_rows.filters():
        of_spark = table.where(edge_rows.sql(each, quote="`", moment="TIMESTAMP '%s'")).select("id").collect()
        by_reader = {"spark": [row["id"] for row in of_spark]}
        by_reader |= {read.__name__: read(each) for read in readers.all}
        found = {name: edge_rows.without_nan(each, ids) for name, ids in by_reader.items()}
        lost += [(name, each, ids) for name, ids in found.items() if ids != each.found]
    assert lost == []


def test_spark_writes_a_table_that_names_its_columns_with_statistics(
    spark: SparkSession, log: Log, append: Export
) -> None:
    """Spark checks the names whenever it changes the columns."""
    log.add(b"a", 1)
    run(log, append)
    names = ["number", "colour", "_partition", "_offset", "_timestamp"]
    assert named_columns(str(table_at(append.table).metadata().configuration[SKIPPING_PROPERTY])) == names
    spark.sql(f"ALTER TABLE delta.`{append.table}` ADD COLUMNS (note STRING)")
    spark.sql(f"INSERT INTO delta.`{append.table}` (number, note, _offset) VALUES (2, 'new', 7)")
    found = table_at(append.table).to_pyarrow_table(columns=["number"], filters=ds.field("note").is_null())
    assert found["number"].to_pylist() == [1]
    dataset = table_at(append.table).to_pyarrow_table(columns=["number"], filters=[("note", "=", "new")])
    assert dataset["number"].to_pylist() == [2]


def test_a_refused_append_leaves_no_files(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", b"bad")
    log.with_spark = True
    with pytest.raises(TooManyDeadLettersError, match="1 of 2 records to export cannot be decoded"):
        run(log, append, max_share=0.1)
    root, _, name = append.table.rpartition("/")
    assert list(open_storage(root).list(f"{name}/")) == []


def test_a_first_upsert_writes_and_does_not_merge(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    log.add(b"b", b"bad")
    log.add(b"c", None)
    log.add(b"d", b"bad")
    log.with_spark = True
    result = run(log, upsert)
    assert (result.records, result.tombstones, result.written, result.deleted) == (5, 1, 2, 0)
    assert (result.became_stale, result.without_row, result.dead_letters) == (0, 1, 2)
    found = {
        row["_key"]: (row["number"], row["_stale_since"] and row["_stale_since"]["offset"])
        for row in rows(upsert.table)
    }
    assert found == {b"a": (1, None), b"b": (2, 2)}
    assert [each["operation"] for each in table_at(upsert.table).history()] == ["WRITE", "CREATE TABLE"]


def test_the_driver_loads_no_lists_that_are_too_large_together(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upserting, "INDEX_BYTES", 1200)
    results = [("1", b"a" * 600), (None, None), ("2", b"b" * 600)]
    columns = "_written STRING, _index BINARY"
    of_two = upserting.results_of(spark.createDataFrame(results, columns))
    assert [(each["_written"], bytes(each["_index"])) for each in of_two] == [results[0], results[2]]
    of_three = upserting.results_of(spark.createDataFrame([*results, ("3", b"c")], columns))
    assert of_three == [{"_written": name, "_index": None} for name in "123"]


def test_an_upsert_is_the_same_with_and_without_a_merge(
    spark: SparkSession, log: Log, upsert: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_files = replace(upsert, digest=True)
    by_merge = replace(by_files, table=root_at(tmp_path / "merged"), dead_letters=root_at(tmp_path / "their letters"))
    log.with_spark = True
    chance = random.Random(5)
    chains = []
    for turn in range(2):
        for _ in range(40):
            value = chance.choice([1, 2, 3, b"bad", None])
            log.add(b"k%d" % chance.randrange(9), value, chance.randrange(3), timestamp=chance.randrange(9))
        results = []
        for export in (by_files, by_merge):
            with monkeypatch.context() as patch:
                if export is by_merge:
                    patch.setattr(upserting, "INDEX_BYTES", 0)
                found = run(log, export)
            results.append((found.records, found.tombstones, found.written, found.deleted, found.became_stale,
                            found.without_row, found.reasons))  # fmt: skip
        assert results[0] == results[1]
        assert by_offset(by_files.table) == by_offset(by_merge.table)
        chains = [exported_head(each.table).stamp.chain for each in (by_files, by_merge)]
        assert chains[0] is not None
        assert chains[1] is not None
        assert chains[0].partitions == chains[1].partitions
        operations = [table_at(each.table).history(1)[0]["operation"] for each in (by_files, by_merge)]
        assert operations == (["WRITE", "MERGE"] if turn else ["WRITE", "WRITE"])
