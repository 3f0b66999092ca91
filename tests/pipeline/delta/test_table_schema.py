"""The columns of exported tables: which are widened, which are refused, and that a rewrite loses nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lakelog.spark.types import quoted
from pipeline.delta import table_schema
from pipeline.delta.export_plan import Export, ExportMode, TableSchemaError
from pipeline.delta.replaying import replay
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.table_schema import column_changes
from schemas.event_model import EventModel
from storage_engine.errors import ConflictError
from tests.pipeline.delta.order_log import Killed, Log, killed_in, rows, run
from tests.pipeline.delta.order_models import Trip, WideOrder, WideTrip, schema_of
from tests.roots.delta_tables import table_at


def wide(export: Export) -> Export:
    return replace(export, schema=schema_of(WideOrder))


def contents(path: str) -> list[dict[str, Any]]:
    return sorted(rows(path), key=lambda row: (row["_partition"], row["_offset"]))


def column_types(path: str) -> dict[str, str]:
    return {each.name: str(each.type) for each in table_at(path).schema().fields}


def version(path: str) -> int:
    return table_at(path).version()


def made_at_once(log: Log, export: Export) -> Export:
    """A table of the whole log, made by one export."""
    other = replace(export, table=f"{export.table}-at-once", dead_letters=f"{export.table}-at-once-dead-letters")
    run(log, other)
    return other


# --- What is decided ----------------------------------------------------------------------------------------------


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("found", "wanted", "column"),
    [
        (LongType(), DoubleType(), "x"),
        (LongType(), DecimalType(19, 0), "x"),
        (LongType(), DecimalType(38, 19), "x"),
        (DecimalType(8, 2), DecimalType(9, 2), "x"),
        (DecimalType(8, 2), DecimalType(9, 3), "x"),
        (ArrayType(LongType()), ArrayType(DoubleType()), "x[]"),
        (struct(a=StringType(), B=LongType()), struct(B=DoubleType()), "x.B"),
        (ArrayType(struct(a=ArrayType(LongType()))), ArrayType(struct(a=ArrayType(DoubleType()))), "x[].a[]"),
    ],
    ids=str,
)
def test_a_column_becomes_wider_where_the_model_may(found: DataType, wanted: DataType, column: str) -> None:
    changes = column_changes("t", struct(x=found, y=StringType()), struct(x=wanted))
    assert [each.column for each in changes.widenings] == [column]
    assert changes.extended == struct(x=found, y=StringType())
    again = column_changes("t", changes.widened, struct(x=wanted))
    assert (again.extended, again.widened, again.widenings) == (changes.widened, changes.widened, ())


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (DoubleType(), LongType()),
        (LongType(), DecimalType(20, 2)),
        (LongType(), StringType()),
        (IntegerType(), LongType()),
        (DecimalType(8, 2), DecimalType(9, 4)),
        (DecimalType(8, 2), DecimalType(8, 1)),
        (DecimalType(8, 2), DoubleType()),
        (StringType(), BinaryType()),
        (ArrayType(DoubleType()), ArrayType(LongType())),
        (struct(a=LongType()), ArrayType(LongType())),
    ],
    ids=str,
)
def test_a_column_of_any_other_type_is_refused(found: DataType, wanted: DataType) -> None:
    with pytest.raises(TableSchemaError, match=r"column x(\[\])? is .*, but the schema now says"):
        column_changes("t", struct(x=found), struct(x=wanted))


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        (struct(Price=LongType()), struct(price=LongType()), "column Price is called price"),
        (struct(x=struct(B=LongType())), struct(x=struct(b=DoubleType())), "column x.B is called b"),
        (
            struct(x=ArrayType(struct(b=LongType()))),
            struct(x=ArrayType(struct(B=LongType()))),
            r"column x\[\].b is called B",
        ),
    ],
    ids=str,
)
def test_a_name_in_another_case_is_refused(found: StructType, wanted: StructType, message: str) -> None:
    with pytest.raises(TableSchemaError, match=f"{message} in the schema, but Delta does not distinguish") as raised:
        column_changes("t", found, wanted)
    assert "make the table again with --rebuild" in str(raised.value)


class Renamed(EventModel):
    Number: int
    colour: str | None = None


@pytest.mark.parametrize("mode", ExportMode)
def test_a_field_renamed_only_in_case_changes_no_table(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    log.add(b"a", b'{"number": 1, "colour": "red"}')
    run(log, export)
    before = contents(export.table)
    log.add(b"a", b'{"Number": 2, "colour": "blue"}')
    with pytest.raises(TableSchemaError, match="column number is called Number in the schema") as raised:
        run(log, replace(export, schema=schema_of(Renamed)))
    assert "Call the field number, make the table again with --rebuild" in str(raised.value)
    assert contents(export.table) == before


# --- Tables that become wider -------------------------------------------------------------------------------------


def trip(number: int, **more: Any) -> bytes:
    legs = [{"distance": number}, {"distance": 7}]
    return json.dumps(
        {"number": number, "count": number, "price": f"{number}.25", "marks": [number, None], "legs": legs,
         "home": {"distance": number}, **more}
    ).encode()  # fmt: skip


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_a_wider_model_makes_the_table_that_a_pass_with_it_makes(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode, schema=schema_of(Trip))
    for number, key in enumerate([b"a", b"b", b"c"], -1):
        log.add(key, trip(number))
    log.add(b"a", b"not json")
    run(log, export)
    table = f"delta.`{export.table}`"
    log.spark.sql(f"ALTER TABLE {table} ALTER COLUMN legs.element.distance COMMENT 'in miles'")
    log.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'analysts')")
    log.add(b"b", trip(2**14, note="new", legs=[{"distance": 0.5, "stop": "here"}]))
    told: list[str] = []
    result = run(log, replace(export, schema=schema_of(WideTrip)), notify=told.append)
    [line] = told
    assert line == (
        f"table {export.table}: column number is widened from bigint to double, column count is widened from bigint to"
        " decimal(21,2), column price is widened from decimal(8,2) to decimal(12,4), column marks[] is widened from"
        " bigint to double, column legs[].distance is widened from bigint to double, column home.distance is widened from"
        " bigint to double: 3 rows are rewritten, in one commit"
    )
    assert (result.records, result.written, result.positions_before) == (1, 1, {0: 4})
    at_once = made_at_once(log, replace(export, schema=schema_of(WideTrip)))
    assert contents(export.table) == contents(at_once.table)
    assert column_types(export.table).keys() == column_types(at_once.table).keys()
    read = log.spark.read.format("delta")
    columns = sorted(column_types(at_once.table).keys())
    by_spark = [sorted(map(str, read.load(path).select(*columns).collect())) for path in (export.table, at_once.table)]
    assert by_spark[0] == by_spark[1]
    assert '{"comment":"in miles"}' in read.load(export.table).schema.json()
    assert table_at(export.table).metadata().configuration["team"] == "analysts"


def test_a_partitioned_table_stays_partitioned_and_keeps_the_order_of_its_columns(log: Log, append: Export) -> None:
    log.spark.sql(
        f"CREATE TABLE delta.`{append.table}` (day STRING, colour STRING, number BIGINT, _key BINARY, _partition INT,"
        " _offset BIGINT, _timestamp TIMESTAMP) USING delta PARTITIONED BY (colour)"
    )
    log.add(b"a", 1)
    log.add(b"b", b'{"number": 2, "colour": null}')
    run(log, append)
    before = contents(append.table)
    log.add(b"c", 3)
    run(log, wide(append))
    assert contents(append.table)[:2] == before
    assert [row["number"] for row in contents(append.table)] == [1.0, 2.0, 3.0]
    assert list(column_types(append.table).items())[:3] == [
        ("day", 'PrimitiveType("string")'), ("colour", 'PrimitiveType("string")'), ("number", 'PrimitiveType("double")')
    ]  # fmt: skip
    assert table_at(append.table).metadata().partition_columns == ["colour"]


def test_a_partition_column_is_not_widened(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, replace(append, layout=TableLayout(partition_by=("number",))))
    before = contents(append.table), version(append.table)
    log.add(b"b", 2)
    with pytest.raises(
        TableSchemaError, match=r"number partitions the table, and the schema makes it double.*--rebuild"
    ):
        run(log, wide(append))
    assert (contents(append.table), version(append.table)) == before


def test_restore_brings_the_old_type_back_and_the_next_export_widens_again(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    narrow = version(append.table)
    log.add(b"b", 2)
    run(log, wide(append))
    expected = contents(append.table)
    DeltaTable.forPath(log.spark, append.table).restoreToVersion(narrow)
    assert column_types(append.table)["number"] == 'PrimitiveType("long")'
    assert run(log, wide(append)).positions_before == {0: 1}
    assert contents(append.table) == expected


def test_a_replay_widens_the_table_too(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", b'{"number": 2.5}')
    run(log, upsert)
    result = replay(log.spark, wide(upsert), log.ranges(), log.read, log.ranges)
    assert (result.replayed, result.still_open) == (1, 0)
    assert contents(upsert.table) == contents(made_at_once(log, wide(upsert)).table)


# --- What is refused ----------------------------------------------------------------------------------------------


def test_a_narrower_model_is_refused_and_the_table_stays(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, wide(upsert))
    before = contents(upsert.table), version(upsert.table)
    log.add(b"a", 2)
    with pytest.raises(TableSchemaError, match="column number is double, but the schema now says bigint"):
        run(log, upsert)
    assert (contents(upsert.table), version(upsert.table)) == before


def test_digits_are_not_lost_in_silence(log: Log, append: Export) -> None:
    narrow = replace(append, schema=schema_of(Trip))
    for number in (2**53 + 2, 2**62, -(2**63), 5):  # which a double holds exactly
        log.add(b"exact", trip(number % 10**5).replace(b'"distance": 7', b'"distance": %d' % number))
    run(log, narrow)
    log.add(b"next", trip(1))
    wanted = replace(append, schema=schema_of(WideTrip))
    run(log, wanted)
    assert contents(append.table) == contents(made_at_once(log, wanted).table)

    other = replace(narrow, table=f"{append.table}-2")
    for number in (2**53 + 1, 2**63 - 1):
        log.add(b"inexact", trip(3).replace(b'"distance": 7', b'"distance": %d' % number))
    run(log, other)
    before = contents(other.table), version(other.table)
    log.add(b"next", trip(1))
    told: list[str] = []
    with pytest.raises(
        TableSchemaError,
        match=r"column legs\[\].distance is bigint, .* now says double, but 2 rows of 7 would lose digits",
    ):
        run(log, replace(other, schema=schema_of(WideTrip)), notify=told.append)
    assert (contents(other.table), version(other.table), told) == (before[0], before[1], [])


@pytest.mark.parametrize(
    ("columns", "properties", "problem"),
    [
        ("number BIGINT", "'delta.appendOnly' = 'true'", "property delta.appendOnly forbids"),
        ("number BIGINT NOT NULL", "'team' = 'analysts'", "NOT NULL column"),
        ("number BIGINT, day DATE GENERATED ALWAYS AS (CAST(_timestamp AS DATE))", "'team' = 'a'", "generatedColumns"),
    ],
    ids=["append only", "not null", "generated"],
)
def test_a_table_to_which_a_rewrite_would_do_harm_stays(
    log: Log, append: Export, columns: str, properties: str, problem: str
) -> None:
    log.spark.sql(
        f"CREATE TABLE delta.`{append.table}` ({columns}, colour STRING, _key BINARY, _partition INT, _offset BIGINT,"
        f" _timestamp TIMESTAMP) USING delta TBLPROPERTIES ({properties})"
    )
    log.add(b"a", 1)
    run(log, append)
    before = contents(append.table), version(append.table)
    log.add(b"b", 2)
    with pytest.raises(TableSchemaError, match=f"rewritten because column number is widened .*{problem}"):
        run(log, wide(append))
    assert (contents(append.table), version(append.table)) == before


# --- Others at the same time, and kills ---------------------------------------------------------------------------


def test_a_run_that_is_killed_after_the_rewrite_is_gone_on_with(
    log: Log, upsert: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    before = contents(upsert.table)
    log.add(b"b", b'{"number": 2.5}')
    log.add(b"c", b"not json")
    told: list[str] = []
    with monkeypatch.context() as patch:
        killed_in("append_undecodable", after=False, patch=patch)
        with pytest.raises(Killed):
            run(log, wide(upsert), notify=told.append)
    assert contents(upsert.table) == before
    assert column_types(upsert.table)["number"] == 'PrimitiveType("double")'
    result = run(log, wide(upsert), notify=told.append)
    assert (result.positions_before, result.records, len(told)) == ({0: 2}, 2, 1)
    assert contents(upsert.table) == contents(made_at_once(log, wide(upsert)).table)


def test_of_two_exports_at_once_one_widens_the_table(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    log.add(b"b", b'{"number": 2.5}')

    def let_another_export_run(_line: str) -> None:
        run(log, wide(append))

    with pytest.raises(ConflictError, match="another export"):
        run(log, wide(append), notify=let_another_export_run)
    assert contents(append.table) == contents(made_at_once(log, wide(append)).table)
    operations = [each["operation"] for each in table_at(append.table).history()]
    assert operations == ["WRITE"] * 3 + ["CREATE TABLE"]  # from the newest: b, the rewrite, a, columns


def delete(table: deltalake.DeltaTable) -> None:
    table.delete("number = 1")


def update(table: deltalake.DeltaTable) -> None:
    table.update({"colour": "'blue'"}, predicate="number = 0")


def compact(table: deltalake.DeltaTable) -> None:
    table.optimize.compact()


def insert(table: deltalake.DeltaTable) -> None:
    row = table.to_pyarrow_table().filter(pc.field("number") == 0)
    deltalake.write_deltalake(table, row.set_column(0, "number", pa.array([9])), mode="append")


def add_column(table: deltalake.DeltaTable) -> None:
    table.alter.add_columns(deltalake.Field("checked", deltalake.schema.PrimitiveType("boolean")))


Change = Callable[[deltalake.DeltaTable], None]


class Slots:
    """All of Spark's task slots, held by tasks that wait."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._context = spark.sparkContext
        self._release = folder / "release"
        self._here = [folder / f"here {number}" for number in range(self._context.defaultParallelism)]
        self._pool = ThreadPoolExecutor(1)

    def hold(self) -> None:
        release, here = str(self._release), [str(each) for each in self._here]

        def wait(number: int) -> None:
            Path(here[number]).touch()
            while not Path(release).exists():
                time.sleep(0.02)

        self._pool.submit(self._context.parallelize(range(len(here)), len(here)).foreach, wait)
        while not all(each.exists() for each in self._here):
            time.sleep(0.02)

    def await_a_job(self) -> None:
        """Until somebody wants a slot."""
        while len(self._context.statusTracker().getActiveJobsIds()) < 2:
            time.sleep(0.02)

    def free(self) -> None:
        self._release.touch()
        self._pool.shutdown()


def commit_while_rewriting(log: Log, export: Export, folder: Path, change: Change) -> None:
    """Run an export that widens the table. Another writer commits a change after the rewrite has begun."""
    slots = Slots(log.spark, folder)
    failed: list[BaseException] = []

    def commit_in_the_middle() -> None:
        try:
            slots.await_a_job()
            change(table_at(export.table))
        except BaseException as error:  # noqa: BLE001 - the slots are freed whatever happens
            failed.append(error)
        finally:
            slots.free()

    other = threading.Thread(target=commit_in_the_middle)

    def hold_the_slots(_line: str) -> None:
        slots.hold()
        other.start()

    try:
        run(log, wide(export), notify=hold_the_slots)
    finally:
        other.join()
        assert failed == []


def test_what_another_writer_commits_during_the_rewrite_is_not_lost(log: Log, upsert: Export, tmp_path: Path) -> None:
    for number, key in enumerate([b"a", b"b", b"c"]):
        log.add(key, number)
        if number:
            run(log, upsert)
    log.add(b"d", b'{"number": 3.5}')
    theirs = contents(upsert.table)
    for change in (delete, update, compact, insert, add_column):
        before = version(upsert.table), theirs
        folder = tmp_path / change.__name__
        folder.mkdir()
        with pytest.raises(ConflictError, match="another writer changed the table"):
            commit_while_rewriting(log, upsert, folder, change)
        theirs = contents(upsert.table)
        assert version(upsert.table) == before[0] + 1
        assert (theirs == before[1]) is (change is compact)
    assert sorted((row["_key"], row["number"], row["colour"]) for row in theirs) == [
        (b"a", 0, "blue"), (b"a", 9, "blue"), (b"c", 2, "red")
    ]  # fmt: skip
    assert column_types(upsert.table)["number"] == 'PrimitiveType("long")'
    run(log, wide(upsert))
    [row] = [row for row in contents(upsert.table) if row not in theirs]
    assert (row["_key"], row["number"]) == (b"d", 3.5)
    kept = [row for row in contents(upsert.table) if row["_key"] != b"d"]
    assert sorted(kept, key=lambda row: row["number"]) == sorted(theirs, key=lambda row: row["number"])


def test_what_another_writer_commits_just_before_the_rewrite_is_read_by_it(log: Log, upsert: Export) -> None:
    for number, key in enumerate([b"a", b"b", b"c"]):
        log.add(key, number)
    run(log, upsert)
    log.add(b"d", 3)
    run(log, wide(upsert), notify=lambda _: delete(table_at(upsert.table)))
    assert [(row["_key"], row["number"]) for row in contents(upsert.table)] == [(b"a", 0.0), (b"c", 2.0), (b"d", 3.0)]


def insert_too_large(table: deltalake.DeltaTable) -> None:
    row = table.to_pyarrow_table().slice(0, 1)
    deltalake.write_deltalake(table, row.set_column(0, "number", pa.array([2**53 + 1])), mode="append")


def test_a_rewrite_that_meets_numbers_added_since_they_were_looked_at_commits_nothing(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, upsert)
    log.add(b"b", 2)
    before = version(upsert.table)
    told: list[str] = []

    def let_another_writer_commit(line: str) -> None:
        told.append(line)
        insert_too_large(table_at(upsert.table))

    refused = "column number is bigint, and the schema now says double, but {} would lose digits"
    with pytest.raises(TableSchemaError, match=refused.format("rows of another writer")):
        run(log, wide(upsert), notify=let_another_writer_commit)
    assert len(told) == 1
    assert version(upsert.table) == before + 1
    assert sorted(row["number"] for row in contents(upsert.table)) == [1, 2**53 + 1]
    with pytest.raises(TableSchemaError, match=refused.format("1 row of 2")):
        run(log, wide(upsert))
    assert version(upsert.table) == before + 1


def test_a_rewrite_that_looked_at_other_columns_says_so(
    log: Log, upsert: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.add(b"a", 1)
    run(log, upsert)
    log.add(b"b", 2)
    before = version(upsert.table)
    told: list[str] = []
    # `quoted` is called after the table was looked at, and before the rewrite begins.

    def let_another_writer_commit(name: str) -> str:
        if told and version(upsert.table) == before:
            add_column(table_at(upsert.table))
        return quoted(name)

    monkeypatch.setattr(table_schema, "quoted", let_another_writer_commit)
    with pytest.raises(
        ConflictError, match=rf"another writer changed the table's columns.*Restore the table to version {before + 1}"
    ):
        run(log, wide(upsert), notify=told.append)
