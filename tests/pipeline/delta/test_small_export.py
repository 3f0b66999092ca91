"""Tests which exports run without Spark, that Spark makes the same tables, and that two exports at the same time write
no row twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pydantic import Field
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.rows.row_columns import DIGEST
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.without_spark import small_export
from pipeline.delta.without_spark.row_changes import IncrementRecords, RecordPlace, TableRow
from schemas.event_model import EventModel
from storage_engine.errors import ConflictError, StorageError
from tests.pipeline.delta.order_log import Log, rows, run
from tests.pipeline.delta.order_log import run_small as small
from tests.pipeline.delta.order_models import MendedOrderWithPrice, WideOrder, schema_of
from tests.roots.delta_tables import commit_file, is_table, table_at
from tests.stores import root_at


class Part(EventModel):
    weight: float | None = None
    labels: list[str | None]


class Everything(EventModel):
    """A field of each type that a column can have."""

    text: str
    whole: int
    real: float
    flag: bool
    raw: bytes
    moment: datetime
    day: date
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)]
    parts: list[Part]
    part: Part | None = None


EVERYTHING = (
    b'{"text": "\xc3\xa4\\u0000", "whole": -9223372036854775808, "real": -0.0, "flag": true, "raw": "abc",'
    b' "moment": "2026-01-31T12:00:00.123456+02:00", "day": "0001-01-01", "price": "-123456.78",'
    b' "parts": [{"weight": 1e308, "labels": [null, ""]}, {"labels": []}]}'
)


def schema_text(path: str) -> str:
    return table_at(path).schema().to_json()


def by_offset(path: str) -> list[dict[str, Any]]:
    return sorted(rows(path), key=lambda row: (row["_partition"], row["_offset"]))


@pytest.mark.parametrize("mode", list(ExportMode))
def test_both_ways_make_the_same_table_of_each_type(log: Log, upsert: Export, tmp_path: Path, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode, schema=schema_of(Everything), headers=mode is ExportMode.APPEND)
    for key, value in [(b"a", EVERYTHING), (b"\xff\x00", EVERYTHING), (b"b", b"{}"), (b"a", b"{}"), (None, EVERYTHING)]:
        log.add(key, value)
    log.add(b"late", EVERYTHING, timestamp=253402300799)
    log.add(b"latest", EVERYTHING, timestamp=253402300798)
    log.add(b"early", EVERYTHING, timestamp=-1)
    done = small(log, export)
    other = replace(export, table=root_at(tmp_path / "by Spark"), dead_letters=root_at(tmp_path / "their dead letters"))
    log.with_spark = True
    by_spark = run(log, other)
    assert done is not None
    assert replace(done, plan=by_spark.plan, table_version=by_spark.table_version) == by_spark
    assert by_offset(export.table) == by_offset(other.table)
    [first, *_] = by_offset(export.table)
    assert first["whole"] == -(2**63)
    assert first["moment"] == datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)
    assert (first["price"], first["day"], first["text"]) == (Decimal("-123456.78"), date(1, 1, 1), "ä\0")
    assert first["parts"] == [{"weight": 1e308, "labels": [None, ""]}, {"weight": None, "labels": []}]
    assert schema_text(export.table) == schema_text(other.table)
    assert schema_text(export.dead_letters) == schema_text(other.dead_letters)
    ids = {"table_id": None}
    letters = [
        sorted(({**row, **ids} for row in rows(each.dead_letters)), key=lambda row: row["offset"])
        for each in (export, other)
    ]
    assert letters[0] == letters[1]
    # Spark continues the table that was made without Spark, and the other way round.
    log.add(b"a", EVERYTHING)
    log.add(b"late", None)
    log.with_spark = True
    run(log, export)
    log.with_spark = False
    assert small(log, other) is not None
    assert by_offset(export.table) == by_offset(other.table)
    by_both = [log.spark.read.format("delta").load(each.table).toArrow().sort_by("_offset") for each in (export, other)]
    assert by_both[0].to_pylist() == by_both[1].to_pylist() == by_offset(export.table)


def alter(statement: str) -> Callable[[SparkSession, str], DataFrame]:
    return lambda spark, path: spark.sql(f"ALTER TABLE delta.`{path}` {statement}")


NOT_PLAIN = {
    "change data feed": alter("SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"),
    "deletion vectors": alter("SET TBLPROPERTIES (delta.enableDeletionVectors = true)"),
    "constraint": alter("ADD CONSTRAINT positive CHECK (number > -5)"),
    "append only": alter("SET TBLPROPERTIES (delta.appendOnly = false)"),
    "other column": alter("ADD COLUMNS (more STRING)"),
}


def test_what_a_plain_table_is(spark: SparkSession, log: Log, append: Export, tmp_path: Path) -> None:
    """Spark exports to each other table, with the same result."""
    log.add(b"a", 1)
    exports = {}
    for name, change in NOT_PLAIN.items():
        exports[name] = replace(append, table=root_at(tmp_path / name))
        assert small(log, exports[name]) is not None
        change(spark, exports[name].table)
    log.add(b"b", 2)
    for name, export in exports.items():
        assert small(log, export) is None, name
        run(log, export)
        found = spark.read.format("delta").load(export.table).orderBy("_offset").select("number").collect()
        assert [row["number"] for row in found] == [1, 2], name


def test_a_table_with_timestamps_of_the_older_kind_is_not_merged_without_spark(
    spark: SparkSession, log: Log, upsert: Export
) -> None:
    """deltalake would turn these timestamps into nanoseconds, which end in the year 2262."""
    for key, time in [(b"first", -62135596800), (b"last", 253402300799), (b"a", 3)]:
        log.add(key, 1, timestamp=time)
    assert small(log, upsert) is not None
    there = spark.read.format("delta").load(upsert.table)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        there.write.format("delta").mode("overwrite").save(upsert.table)
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    log.add(b"a", 2)
    assert small(log, upsert) is None
    log.with_spark = True
    run(log, upsert)  # writes the rows again
    log.add(b"a", 3)
    assert small(log, upsert) is not None
    assert [(row["_timestamp"].year, row["number"]) for row in by_offset(upsert.table)] == [
        (1, 1),
        (9999, 1),
        (1970, 3),
    ]


def test_what_is_not_small(log: Log, append: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        log.add(b"k", number)
    assert small(log, append, spark_records=4) is None
    assert small(log, append, spark_records=0) is None
    with monkeypatch.context() as patch:
        patch.setattr(small_export, "_MOST_BYTES", 100)
        assert small(log, append) is None
    assert not is_table(append.table)
    assert small(log, append, spark_records=5) is not None
    wide = replace(append, schema=schema_of(WideOrder))
    log.add(b"k", 9)
    assert small(log, wide) is None  # the column `number` must be widened
    assert [row["number"] for row in by_offset(append.table)] == [0, 1, 2, 3]
    DeltaTable.forPath(log.spark, append.table).restoreToVersion(0)
    assert small(log, append) is None  # the position is no longer known: the table has no stamp at this version
    run(log, append)
    assert [row["number"] for row in by_offset(append.table)] == [0, 1, 2, 3, 9]


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        (ExportMode.APPEND, TableLayout()),
        (ExportMode.UPSERT, TableLayout()),
        (ExportMode.UPSERT, TableLayout(deletion_vectors=True)),
    ],
)
def test_a_new_field_needs_spark_only_once(
    log: Log, upsert: Export, tmp_path: Path, mode: ExportMode, layout: TableLayout
) -> None:
    """Spark adds its column after all other columns."""
    export = replace(upsert, mode=mode, layout=layout, digest=True)
    for key, number in [(b"a", 1), (b"b", 2), (b"c", 3)]:
        log.add(key, number)
    small(log, export)
    export = replace(export, schema=schema_of(MendedOrderWithPrice))
    log.add(b"a", b'{"number": 4, "price": 2.5}')
    assert small(log, export) is None
    run(log, export)
    log.add(b"b", b'{"number": 5, "price": 3.5}')
    log.add(b"d", b"bad")
    assert small(log, export) is not None
    log.add(b"c", b'{"number": 6, "price": 4.5}')
    log.with_spark = True
    assert run(log, export).written == 1
    columns = table_at(export.table).schema().to_arrow().names
    assert columns[-1] == "price"
    at_once = replace(
        export, table=root_at(tmp_path / "at once"), dead_letters=root_at(tmp_path / "their dead letters"), digest=False
    )
    log.with_spark = False
    assert small(log, at_once) is not None
    without_digests = [{name: row[name] for name in row if name != DIGEST.name} for row in by_offset(export.table)]
    assert without_digests == by_offset(at_once.table)
    by_spark = log.spark.read.format("delta").load(export.table).toArrow().sort_by("_offset")
    assert by_spark.to_pylist() == by_offset(export.table)


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(ExportMode.APPEND, TableLayout(), id="append"),
        pytest.param(ExportMode.UPSERT, TableLayout(), id="upsert"),
        pytest.param(ExportMode.UPSERT, TableLayout(deletion_vectors=True), id="vectors"),
        pytest.param(ExportMode.UPSERT, TableLayout(partition_by=("colour",)), id="partitions"),
    ],
)
def test_exports_at_once_write_each_record_once_and_each_loser_is_told(
    log: Log, upsert: Export, mode: ExportMode, layout: TableLayout
) -> None:
    export = replace(upsert, mode=mode, layout=layout)
    chance = random.Random(5)
    told = 0
    with ThreadPoolExecutor(4) as pool:
        for turn in range(25):
            for _ in range(3):
                log.add(b"%d" % chance.randrange(9), chance.choice([None, b"bad", *range(5)]))

            def race() -> int:
                try:
                    return int(small(log, export) is None)  # another export is just creating the table
                except ConflictError:
                    return 1

            racing = [pool.submit(race) for _ in range(4)]
            if turn in (7, 8):
                racing.append(pool.submit(lambda: int(with_spark(log, export))))
            lost = [each.result() for each in racing]
            assert 0 in lost
            told += sum(lost)
    assert told > 0
    whole = replace(export, table=f"{export.table}-at-once", dead_letters=f"{export.table}-at-once-dead-letters")
    small(log, whole)
    assert by_offset(export.table) == by_offset(whole.table)
    written, expected = (sorted(row["offset"] for row in rows(each.dead_letters)) for each in (export, whole))
    assert written == expected


def with_spark(log: Log, export: Export) -> bool:
    """Whether an export by Spark was told of a conflict."""
    other = Log(log.spark, with_spark=True)
    other.records = log.records
    try:
        run(other, export)
    except ConflictError:
        return True
    return False


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_who_is_overtaken_writes_nothing(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    log.add(b"a", 1)
    small(log, export)
    log.add(b"a", 2)
    log.add(b"b", 3)

    def read_while_another_export_commits(*arguments: Mapping[int, int]) -> Any:
        small(log, export)
        return log.read_batches(*arguments)

    with pytest.raises(ConflictError) as told:
        small(log, export, read=read_while_another_export_commits)
    assert str(told.value) == (
        f"{export.table}: another writer changed the table during the export. Nothing is lost: start the job again."
    )
    numbers = [row["number"] for row in by_offset(export.table)]
    assert numbers == ([2, 3] if mode is ExportMode.UPSERT else [1, 2, 3])


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_a_restore_in_between_is_told(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    log.add(b"a", 1)
    small(log, export)
    log.add(b"a", 2)
    small(log, export)
    log.add(b"b", 3)

    def read_while_the_table_is_restored(*arguments: Mapping[int, int]) -> Any:
        table_at(export.table).restore(1)
        return log.read_batches(*arguments)

    with pytest.raises(ConflictError):
        small(log, export, read=read_while_the_table_is_restored)
    table = table_at(export.table)
    if table.history(1)[0]["operation"] != "RESTORE":
        table.restore(table.version() - 1)
    small(log, export)
    numbers = [row["number"] for row in by_offset(export.table)]
    assert numbers == ([2, 3] if mode is ExportMode.UPSERT else [1, 2, 3])


def test_many_small_exports_leave_few_files(log: Log, upsert: Export) -> None:
    chance = random.Random(3)
    for turn in range(25):
        for _ in range(20):
            log.add(b"%d" % chance.randrange(100), turn)
        assert small(log, upsert) is not None
        assert len(table_at(upsert.table).file_uris()) < 5


def test_tombstones_of_unknown_keys_move_the_position(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    small(log, upsert)
    before = by_offset(upsert.table)
    log.add(b"never", None)
    log.add(None, 5)
    done = small(log, upsert)
    assert done is not None
    assert (done.records, done.written, done.deleted, done.dead_letters) == (2, 0, 0, 1)
    again = small(log, upsert)
    assert again is not None
    assert (again.records, again.positions_before) == (0, {0: 3})
    assert by_offset(upsert.table) == before


def test_a_table_that_cannot_be_read_is_named(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    small(log, append)
    log.add(b"a", 2)
    commit = commit_file(append.table, 1)
    whole = commit.read_bytes()
    commit.write_bytes(whole.replace(b'"add"', b'"odd"').replace(b'"txn"', b'"txn":3,"x"'))
    with pytest.raises(StorageError, match="Nothing was exported"):
        small(log, append)
    commit.write_bytes(whole)
    small(log, append)
    assert [row["number"] for row in by_offset(append.table)] == [1, 2]


# --- The decision, without a table --------------------------------------------------------------------------------


def place(partition: int, offset: int, time: int | None = None) -> RecordPlace:
    return RecordPlace(partition, offset, (offset if time is None else time) * 1_000_000)


def decoded(*records: tuple[bytes | None, RecordPlace, str]) -> IncrementRecords:
    """kind: "row", "tombstone" or "bad"."""
    time = pa.timestamp("us", tz="UTC")
    return IncrementRecords(
        pa.table(
            {
                "_key": pa.array([key for key, _, _ in records], pa.binary()),
                "_partition": pa.array([each.partition for _, each, _ in records], pa.int32()),
                "_offset": pa.array([each.offset for _, each, _ in records], pa.int64()),
                "_timestamp": pa.array([each.timestamp for _, each, _ in records], pa.int64()).cast(time),
                "_reason": pa.array(["undecodable" if kind == "bad" else None for _, _, kind in records], pa.string()),
                "_tombstone": pa.array([kind == "tombstone" for _, _, kind in records], pa.bool_()),
            }
        )
    )


def test_a_row_that_is_newer_than_the_increment_becomes_stale_at_most() -> None:
    increment = decoded((b"k", place(0, 5), "row"), (b"k", place(0, 9), "bad"), (b"k", place(0, 7), "bad"))
    changes = increment.decide({b"k": TableRow(place(1, 3, 6), None)})
    assert (changes.written, changes.deleted, changes.stale) == ({}, [], {b"k": place(0, 7)})
    assert (changes.newly_stale, changes.without_row) == (1, 0)
    earlier = TableRow(place(1, 3, 6), place(0, 6))
    assert increment.decide({b"k": earlier}).is_empty
    assert increment.decide({b"k": TableRow(place(1, 3, 10), None)}).is_empty
    assert increment.decide({}).written == {0: place(0, 7)}


def test_the_same_record_again_keeps_what_is_known_of_later_records() -> None:
    increment = decoded((b"k", place(0, 5), "row"))
    again = increment.decide({b"k": TableRow(place(0, 5), place(0, 8))})
    assert (again.written, again.stale) == ({0: place(0, 8)}, {})
    assert increment.decide({b"k": TableRow(place(0, 2), place(0, 3))}).written == {0: None}
    gone = decoded((b"k", place(0, 5), "tombstone"))
    assert gone.decide({b"k": TableRow(place(0, 5), None)}).deleted == [b"k"]
    assert gone.decide({}).is_empty
    assert decoded((None, place(0, 1), "bad"), (b"k", place(0, 2), "bad")).decide({}).without_row == 1
