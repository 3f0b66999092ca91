"""Exports into real Delta tables: each record once, whatever is interrupted, restored or done twice."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from delta.tables import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession

from pipeline import exporting
from pipeline.delta_table import Stamp, find_head
from pipeline.exporting import (
    Export,
    ExportMode,
    ExportModeError,
    ExportResult,
    Gap,
    OffsetRange,
    PositionAheadError,
    TableSchemaError,
    TopicRecreatedError,
    export_increment,
)
from schemas.event_model import EventModel
from storage_engine.errors import ConflictError

# Spark's Python workers cannot import a test module: its models go there whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

KAFKA_ROWS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Order(EventModel):
    number: int
    colour: str | None = None


class OrderWithPrice(EventModel):
    number: int
    price: float | None = None


class OrderWithText(EventModel):
    number: str


class Log:
    """A topic in memory. A value that is an int is the number of an order; timestamps count from 1970 in seconds."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.records: dict[int, list[tuple[Any, ...]]] = {}
        self.clock = 0

    def add(
        self, key: bytes | None, value: int | bytes | None, partition: int = 0, timestamp: int | None = None
    ) -> None:
        self.clock += 1
        records = self.records.setdefault(partition, [])
        encoded = b'{"number": %d, "colour": "red"}' % value if isinstance(value, int) else value
        moment = datetime.fromtimestamp(self.clock if timestamp is None else timestamp, UTC)
        records.append((key, encoded, "orders", partition, len(records), moment, 0, [("trace", b"1")]))

    def ranges(self) -> dict[int, OffsetRange]:
        return {partition: OffsetRange(0, len(records)) for partition, records in self.records.items()}

    def read(self, start: Mapping[int, int], end: Mapping[int, int], _known: Mapping[int, int]) -> DataFrame:
        rows = [record for partition in start for record in self.records[partition][start[partition] : end[partition]]]
        return self.spark.createDataFrame(rows, KAFKA_ROWS).coalesce(1)  # few records: no shuffle


@pytest.fixture
def log(spark: SparkSession) -> Log:
    return Log(spark)


@pytest.fixture
def upsert(tmp_path: Path) -> Export:
    tables = str(tmp_path / "orders"), str(tmp_path / "dead_letters")
    return Export("orders", "AAAAAAAAAAAAAAAAAAAAAA", ExportMode.UPSERT, Order, *tables)


@pytest.fixture
def append(upsert: Export) -> Export:
    return replace(upsert, mode=ExportMode.APPEND)


def run(log: Log, export: Export) -> ExportResult:
    return export_increment(log.spark, export, log.ranges(), log.read)


def rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return found


def numbers(export: Export) -> dict[bytes, int]:
    found = [(row["_key"], row["number"]) for row in rows(export.table)]
    assert len(dict(found)) == len(found), "a key has two rows"
    return dict(found)


def by_key(export: Export) -> dict[bytes, dict[str, Any]]:
    return {row["_key"]: row for row in rows(export.table)}


def dead_offsets(export: Export) -> list[int]:
    return sorted(row["offset"] for row in rows(export.dead_letters))


# --- What the table holds -----------------------------------------------------------------------------------------


def test_upsert_keeps_the_latest_record_of_each_key_and_a_tombstone_deletes(log: Log, upsert: Export) -> None:
    for key, order in [(b"a", 1), (b"b", 2), (b"a", 3), (b"c", 4)]:
        log.add(key, order)
    first = run(log, upsert)
    assert numbers(upsert) == {b"a": 3, b"b": 2, b"c": 4}
    assert (first.records, first.upserted, first.deleted, first.dead_letters) == (4, 3, 0, 0)
    assert (first.positions_before, first.positions_after) == ({}, {0: 4})

    for key, value in [(b"b", 5), (b"a", None), (b"d", 6), (b"never there", None)]:
        log.add(key, value)
    second = run(log, upsert)
    assert numbers(upsert) == {b"b": 5, b"c": 4, b"d": 6}
    assert (second.records, second.upserted, second.deleted) == (4, 2, 1)
    assert (second.positions_before, second.positions_after) == ({0: 4}, {0: 8})
    [row] = [row for row in rows(upsert.table) if row["_key"] == b"d"]
    assert row == {
        "number": 6,
        "colour": "red",
        "_key": b"d",
        "_partition": 0,
        "_offset": 6,
        "_timestamp": datetime.fromtimestamp(7, UTC),
    }


def test_table_does_not_depend_on_where_the_log_is_cut(log: Log, upsert: Export, tmp_path: Path) -> None:
    random.seed(20130101)
    values: list[int | bytes | None] = [None, b"not json", *range(8)]
    expected: dict[bytes, int] = {}
    for step in range(4):
        for _ in range(12):
            key, value = random.choice([b"a", b"b", b"c", b"d", b"e", b"f"]), random.choice(values)
            log.add(key, value, partition=key[0] % 2)
            expected.pop(key, None)
            if isinstance(value, int):
                expected[key] = value
        if step != 1:
            run(log, upsert)
            assert numbers(upsert) == expected
    at_once = replace(upsert, table=str(tmp_path / "at once"))
    run(log, at_once)
    assert by_key(at_once) == by_key(upsert)


def test_key_in_two_partitions_goes_by_timestamp(log: Log, upsert: Export) -> None:
    log.add(b"moved", 1, partition=0, timestamp=10)
    log.add(b"stayed", 2, partition=0, timestamp=10)
    run(log, upsert)
    log.add(b"moved", 3, partition=1, timestamp=20)
    log.add(b"stayed", 4, partition=1, timestamp=5)
    log.add(b"both", 5, partition=0, timestamp=30)
    log.add(b"both", 6, partition=1, timestamp=29)
    run(log, upsert)
    assert numbers(upsert) == {b"moved": 3, b"stayed": 2, b"both": 5}


def test_append_makes_a_row_of_every_record(log: Log, append: Export) -> None:
    records: list[tuple[bytes | None, int | bytes | None]]
    records = [(b"a", 1), (b"a", 2), (None, 3), (b"b", b"{}"), (b"c", None)]
    for key, value in records:
        log.add(key, value)
    result = run(log, append)
    assert [(row["_key"], row["number"], row["_offset"]) for row in rows(append.table)] == [
        (b"a", 1, 0),
        (b"a", 2, 1),
        (None, 3, 2),
    ]
    assert (result.records, result.upserted, result.deleted, result.dead_letters) == (5, 3, 0, 2)
    assert [(row["offset"], row["reason"], row["detail"]) for row in rows(append.dead_letters)] == [
        (3, "undecodable", "missing at number"),
        (4, "no value", None),
    ]
    log.add(b"a", 7)
    assert run(log, append).upserted == 1
    assert len(rows(append.table)) == 4


def test_without_a_model_the_value_goes_as_it_is(log: Log, upsert: Export) -> None:
    bare = replace(upsert, model=None)
    for key, value in [(b"a", b"\xff"), (b"b", b""), (b"c", b"x"), (b"c", None), (None, b"lost")]:
        log.add(key, value)
    assert run(log, bare).dead_letters == 1
    assert {row["_key"]: row["value"] for row in rows(bare.table)} == {b"a": b"\xff", b"b": b""}
    assert rows(bare.dead_letters)[0]["value"] == b"lost"


def test_plain_readers_see_the_same_table(log: Log, upsert: Export) -> None:
    for key in (b"a", b"b", b"a"):
        log.add(key, log.clock)
    run(log, upsert)
    table = deltalake.DeltaTable(upsert.table)
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    orders = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select number, colour from orders order by number")
    assert found is not None
    assert found.fetchall() == [(1, "red"), (2, "red")]
    spark_rows = log.spark.read.format("delta").load(upsert.table).orderBy("number").collect()
    assert [row["_offset"] for row in spark_rows] == [1, 2]


# --- Dead letters -------------------------------------------------------------------------------------------------


def test_latest_value_that_cannot_be_decoded_is_a_dead_letter_and_its_row_goes(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    log.add(b"a", b'{"number": "secret"}')
    result = run(log, upsert)
    assert numbers(upsert) == {b"b": 2}
    assert (result.dead_letters, result.deleted) == (1, 1)
    assert rows(upsert.dead_letters) == [
        {
            "reason": "undecodable",
            "detail": "int_type at number",
            "topic": "orders",
            "partition": 0,
            "offset": 2,
            "timestamp": datetime.fromtimestamp(3, UTC),
            "key": b"a",
            "value": b'{"number": "secret"}',
            "headers": [{"key": "trace", "value": b"1"}],
        }
    ]


def test_dead_letters_of_an_interrupted_run_are_not_written_again_and_new_ones_are_not_lost(
    log: Log, upsert: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.add(b"a", b"bad")
    log.add(b"b", 1)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_merge", crash)
        with pytest.raises(KeyboardInterrupt):
            run(log, upsert)
    assert dead_offsets(upsert) == [0]
    assert rows(upsert.table) == []

    log.add(b"c", b"bad")  # before the export is started again the log has grown
    result = run(log, upsert)
    assert dead_offsets(upsert) == [0, 2]
    assert numbers(upsert) == {b"b": 1}
    assert result.positions_after == {0: 3}


# --- Exactly once -------------------------------------------------------------------------------------------------


def test_repetition_after_a_commit_changes_nothing(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.add(b"a", b"bad")
    first = run(log, append)
    again = run(log, append)
    assert again == ExportResult(0, 0, 0, 0, {0: 2}, {0: 2}, first.table_version, ())
    assert len(rows(append.table)) == 1
    assert dead_offsets(append) == [1]


def test_nothing_to_export_makes_no_table(log: Log, upsert: Export) -> None:
    log.records[0] = []
    assert run(log, upsert) == ExportResult(0, 0, 0, 0, {}, {}, None, ())
    assert not Path(upsert.table).exists()


@pytest.mark.parametrize("mode", list(ExportMode))
def test_write_that_delta_skips_in_silence_is_noticed(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    log.add(b"a", 1)
    run(log, export)
    log.add(b"b", 2)

    def read_while_another_export_commits(
        start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int]
    ) -> DataFrame:
        run(log, export)
        return log.read(start, end, known)

    with pytest.raises(ConflictError, match="another export committed"):
        export_increment(log.spark, export, log.ranges(), read_while_another_export_commits)
    assert numbers(export) == {b"a": 1, b"b": 2}


@pytest.mark.parametrize("model", [Order, OrderWithPrice])
def test_who_is_overtaken_before_reading_doubles_nothing(log: Log, append: Export, model: type[EventModel]) -> None:
    log.add(b"a", 1)
    run(log, append)
    log.add(b"b", 2)
    overtaken = replace(append, model=model)  # a new column makes it look at the table once more

    def let_another_export_commit(_positions: Mapping[int, int]) -> None:
        run(log, append)

    with pytest.raises(ConflictError, match="another export"):
        export_increment(log.spark, overtaken, log.ranges(), log.read, let_another_export_commit)
    assert numbers(append) == {b"a": 1, b"b": 2}


def test_restore_takes_the_position_back_and_the_next_export_is_not_skipped(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    first = run(log, append)
    log.add(b"b", 2)
    log.add(b"c", b"bad")
    run(log, append)
    assert first.table_version is not None
    DeltaTable.forPath(log.spark, append.table).restoreToVersion(first.table_version)
    assert numbers(append) == {b"a": 1}
    log.add(b"d", 4)
    again = run(log, append)
    assert again.positions_before == {0: 1}
    assert numbers(append) == {b"a": 1, b"b": 2, b"d": 4}
    assert dead_offsets(append) == [2]  # reported once, before the restore


def test_restore_to_a_timestamp_lets_the_rows_tell_the_position(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    time.sleep(0.01)
    moment = datetime.now(UTC)
    time.sleep(0.01)
    log.add(b"b", 2)
    run(log, append)
    DeltaTable.forPath(log.spark, append.table).restoreToTimestamp(moment.strftime("%Y-%m-%d %H:%M:%S.%f"))
    assert numbers(append) == {b"a": 1}
    assert run(log, append).positions_before == {0: 1}
    assert numbers(append) == {b"a": 1, b"b": 2}


def test_positions_are_registered_before_reading_and_go_back_with_the_table(log: Log, upsert: Export) -> None:
    registered: list[Mapping[int, int]] = []

    def exported() -> ExportResult:
        def read(start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int]) -> DataFrame:
            assert len(registered) == count + 1
            assert known == registered[-1]
            return log.read(start, end, known)

        count = len(registered)
        return export_increment(log.spark, upsert, log.ranges(), read, registered.append)

    log.add(b"a", 1)
    first = exported()
    log.add(b"b", 2)
    exported()
    assert first.table_version is not None
    DeltaTable.forPath(log.spark, upsert.table).restoreToVersion(first.table_version)
    exported()
    assert registered == [{}, {0: 1}, {0: 1}]


def test_keys_whose_tombstones_are_gone_after_a_restore_are_deleted_all_the_same(log: Log, upsert: Export) -> None:
    for key, value in [(b"a", 1), (b"b", 2), (b"c", 3)]:
        log.add(key, value, partition=0)
    log.add(b"other", 4, partition=1)
    first = run(log, upsert)
    log.add(b"a", None)
    run(log, upsert)
    assert first.table_version is not None
    DeltaTable.forPath(log.spark, upsert.table).restoreToVersion(first.table_version)
    # Meanwhile the tombstone is cleaned away, and offset 0 with it; partition 1 begins at 1, where nothing is left.
    log.add(b"d", 5)
    cleaned = [record for record in log.records[0] if record[0] != b"a"]

    def read(start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int]) -> DataFrame:
        assert (start, end, known) == ({0: 0}, {0: 5}, {0: 3, 1: 1})
        return log.spark.createDataFrame(cleaned, KAFKA_ROWS).coalesce(1)

    ranges = {0: OffsetRange(0, 5, tombstones_end=4), 1: OffsetRange(1, 1, tombstones_end=1)}
    again = export_increment(log.spark, upsert, ranges, read)
    assert numbers(upsert) == {b"b": 2, b"c": 3, b"d": 5, b"other": 4}
    assert (again.reread, again.deleted) == ((0,), 1)
    done = export_increment(log.spark, upsert, ranges, read)
    assert (done.reread, done.records) == ((), 0)


def entry(version: int, operation: str, restored: str | None = None, positions: int | None = None) -> Row:
    parameters = {"version": restored} if operation == "RESTORE" else {}
    stamp = None if positions is None else Stamp("t", "id", "table", "append", {0: positions}, version).to_json()
    return Row(version=version, operation=operation, operationParameters=parameters, userMetadata=stamp)


@pytest.mark.parametrize(
    ("history", "position"),
    [
        ([entry(3, "OPTIMIZE"), entry(2, "WRITE", positions=20), entry(1, "WRITE", positions=10)], 20),
        ([entry(3, "RESTORE", "1"), entry(2, "WRITE", positions=20), entry(1, "WRITE", positions=10)], 10),
        ([entry(4, "WRITE", positions=30), entry(3, "RESTORE", "1"), entry(1, "WRITE", positions=10)], 30),
        (
            [
                entry(5, "RESTORE", "3"),
                entry(4, "WRITE", positions=30),
                entry(3, "RESTORE", "1"),
                entry(2, "WRITE", positions=20),
                entry(1, "WRITE", positions=10),
            ],
            10,
        ),
        ([entry(3, "RESTORE", "0"), entry(2, "WRITE", positions=20), entry(0, "WRITE")], None),
        ([entry(3, "RESTORE", None), entry(2, "WRITE", positions=20)], None),
        ([entry(9, "OPTIMIZE")], None),
    ],
)
def test_position_is_that_of_the_rows_that_are_there(history: list[Row], position: int | None) -> None:
    head = find_head(history, lambda _: True)
    assert (head.current.positions[0] if head.current else None) == position
    assert head.next_guard == history[0].version + 1


def test_foreign_metadata_are_no_stamp() -> None:
    for metadata in (None, "", "by hand", "[]", "17", '{"theirs": {}}'):
        assert Stamp.from_json(metadata) is None


# --- What is refused, and what is reported ------------------------------------------------------------------------


def test_topic_that_was_created_again_is_refused(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, upsert)
    with pytest.raises(TopicRecreatedError, match="deleted and created again"):
        run(log, replace(upsert, topic_id="BBBBBBBBBBBBBBBBBBBBBB"))
    with pytest.raises(ExportModeError, match="upsert mode"):
        run(log, replace(upsert, mode=ExportMode.APPEND))


def test_log_that_ends_before_the_position_is_refused(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 1)
    run(log, append)
    log.records[0].pop()
    with pytest.raises(PositionAheadError, match="up to offset 2; the log ends at 1"):
        run(log, append)


def test_table_that_is_no_export_is_refused(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.spark.range(1).write.format("delta").save(append.table)
    with pytest.raises(TableSchemaError, match="is no export"):
        run(log, append)


def test_records_lost_to_retention_are_reported_as_a_gap(log: Log, append: Export) -> None:
    for value in range(6):
        log.add(b"k", value)
    export_increment(log.spark, append, {0: OffsetRange(1, 2)}, log.read)
    result = export_increment(log.spark, append, {0: OffsetRange(4, 6)}, log.read)
    assert result.gaps == (Gap(partition=0, from_offset=2, to_offset=4),)
    assert sorted(row["_offset"] for row in rows(append.table)) == [1, 4, 5]


def test_new_field_becomes_a_column_and_a_field_that_went_becomes_null(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    log.add(b"b", b'{"number": 3, "colour": "red", "price": 9.5}')
    run(log, replace(upsert, model=OrderWithPrice))
    found = {row["_key"]: (row["number"], row["colour"], row["price"]) for row in rows(upsert.table)}
    assert found == {b"a": (1, "red", None), b"b": (3, None, 9.5)}


def test_field_of_another_type_is_refused(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, upsert)
    log.add(b"a", b'{"number": "1"}')
    with pytest.raises(TableSchemaError, match="column number is bigint, and the schema now says string"):
        run(log, replace(upsert, model=OrderWithText))
    assert numbers(upsert) == {b"a": 1}
