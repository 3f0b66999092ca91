"""Exports into real Delta tables: each record is exported once, even if runs are interrupted or repeated, or if a table
is restored.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import make_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame

from lakelog.spark.splits import RECORDS, RecordTask
from pipeline.delta import dead_letters, exporting, replaying, table_schema, table_writing
from pipeline.delta.dead_letter_share import TooManyDeadLettersError, followed_by, is_too_much
from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportMode,
    ExportModeError,
    ExportResult,
    OffsetRefusedError,
    PartitionOffsets,
    PositionAheadError,
    TableSchemaError,
    TopicRecreatedError,
)
from pipeline.delta.exporting import export_increment
from pipeline.delta.replaying import ReplayResult, replay
from pipeline.delta.table_history import Commit, find_head, plan_from_history, read_head
from pipeline.delta.table_stamp import NewerTableError, Recent, Stamp, TableHead
from pipeline.delta.without_spark import small_export
from schemas.event_model import EventModel
from storage_engine.errors import ConflictError
from tests.pipeline.delta.order_log import KAFKA_ROWS, STEPS, Killed, Log, killed_in, rows, run, run_small
from tests.pipeline.delta.order_models import (
    LargeOrder,
    MendedOrder,
    MendedOrderWithPrice,
    Order,
    OrderWithPrice,
    OrderWithText,
    schema_of,
)
from tests.roots.delta_tables import commit_file, table_at
from tests.stores import STORE, root_at, storage_at

BAD = b"not json"
both_ways = pytest.mark.parametrize("log", [False, True], ids=["without Spark", "with Spark"], indirect=True)


def numbers(export: Export) -> dict[bytes, int]:
    found = [(row["_key"], row["number"]) for row in rows(export.table)]
    assert len(dict(found)) == len(found), "a key has two rows"
    return dict(found)


def by_key(export: Export) -> dict[bytes, dict[str, Any]]:
    return {row["_key"]: row for row in rows(export.table)}


def table_id(export: Export) -> str:
    return str(table_at(export.table).metadata().id)


def dead_offsets(export: Export) -> list[int]:
    return sorted(row["offset"] for row in rows(export.dead_letters))


# --- What the table holds -----------------------------------------------------------------------------------------


@both_ways
def test_upsert_keeps_the_latest_record_of_each_key_and_a_tombstone_deletes(log: Log, upsert: Export) -> None:
    for key, order in [(b"a", 1), (b"b", 2), (b"a", 3), (b"c", 4)]:
        log.add(key, order)
    first = run(log, upsert)
    assert numbers(upsert) == {b"a": 3, b"b": 2, b"c": 4}
    assert (first.records, first.written, first.deleted, first.dead_letters) == (4, 3, 0, 0)
    assert (first.positions_before, first.positions_after) == ({}, {0: 4})

    for key, value in [(b"b", 5), (b"a", None), (b"d", 6), (b"never there", None)]:
        log.add(key, value)
    second = run(log, upsert)
    assert numbers(upsert) == {b"b": 5, b"c": 4, b"d": 6}
    assert (second.records, second.written, second.deleted) == (4, 2, 1)
    assert (second.positions_before, second.positions_after) == ({0: 4}, {0: 8})
    [row] = [row for row in rows(upsert.table) if row["_key"] == b"d"]
    assert row == {
        "number": 6,
        "colour": "red",
        "_key": b"d",
        "_partition": 0,
        "_offset": 6,
        "_timestamp": datetime.fromtimestamp(7, UTC),
        "_stale_since": None,
    }


def expected_rows(log: Log) -> dict[bytes, dict[str, Any]]:
    """What the table has to hold, record by record in the order of the log's clock: the rule in its plainest form."""
    found: dict[bytes, dict[str, Any]] = {}
    for key, value, _, partition, offset, timestamp, *_ in log.in_order:
        if value is None:
            found.pop(key, None)
        elif value == BAD:
            if key in found and found[key]["_stale_since"] is None:
                found[key]["_stale_since"] = {"partition": partition, "offset": offset, "timestamp": timestamp}
        else:
            found[key] = {
                **json.loads(value), "_key": key, "_partition": partition, "_offset": offset, "_timestamp": timestamp,
                "_stale_since": None,
            }  # fmt: skip
    return found


@pytest.mark.parametrize(("seed", "spark_share"), [(1, 0.4), *((seed, 0) for seed in range(2, 22))])
def test_table_does_not_depend_on_where_the_log_is_cut_or_a_run_is_killed(
    log: Log, upsert: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, spark_share: float
) -> None:
    """Exports with and without Spark continue each other's table, and end with the table of one export by Spark."""
    chance = random.Random(seed)
    values: list[int | bytes | None] = [None, BAD, BAD, *range(3)]
    offsets: list[tuple[int, int]] = []
    for _ in range(6):
        for _ in range(chance.randrange(1, 14)):
            key = chance.choice([b"a", b"b", b"c", b"d", b"moves"])
            partition = chance.randrange(2) if key == b"moves" else key[0] % 2
            log.add(key, chance.choice(values), partition)
            if log.in_order[-1][1] == BAD:
                offsets.append((partition, log.in_order[-1][4]))
        if chance.random() < 0.7:
            with monkeypatch.context() as patch:
                log.with_spark = chance.random() < spark_share
                way = exporting if log.with_spark else small_export
                killed_in(chance.choice(STEPS[way]), after=chance.random() < 0.5, patch=patch, way=way)
                with suppress(Killed):
                    run(log, upsert)
        if chance.random() < 0.7:
            log.with_spark = chance.random() < spark_share
            run(log, upsert)
            assert by_key(upsert) == expected_rows(log)
    log.with_spark = spark_share > 0
    run(log, upsert)
    at_once = replace(
        upsert, table=root_at(tmp_path / "at once"), dead_letters=root_at(tmp_path / "their dead letters")
    )
    run(log, at_once)
    assert by_key(upsert) == by_key(at_once) == expected_rows(log)
    for export in (upsert, at_once):
        assert sorted((row["partition"], row["offset"]) for row in rows(export.dead_letters)) == sorted(offsets)


def test_a_row_says_since_when_it_is_stale_however_the_log_was_cut(log: Log, upsert: Export, tmp_path: Path) -> None:
    def since(export: Export) -> list[tuple[bytes, int, int | None]]:
        return sorted(
            (row["_key"], row["_offset"], row["_stale_since"] and row["_stale_since"]["offset"])
            for row in rows(export.table)
        )

    log.add(b"k", 0)
    log.add(b"gone", 1)
    log.add(b"never", BAD)
    log.add(b"k", 3)
    first = run(log, upsert)
    assert (first.dead_letters, first.became_stale, first.without_row) == (1, 0, 1)
    log.add(b"k", BAD)  # 4
    log.add(b"gone", BAD)
    second = run(log, upsert)
    assert since(upsert) == [(b"gone", 1, 5), (b"k", 3, 4)]
    assert (second.written, second.deleted, second.dead_letters, second.became_stale) == (0, 0, 2, 2)
    log.add(b"k", BAD)  # 6
    log.add(b"gone", None)
    third = run(log, upsert)
    assert since(upsert) == [(b"k", 3, 4)]
    assert (third.written, third.deleted, third.tombstones, third.dead_letters, third.became_stale) == (0, 1, 1, 1, 0)
    at_once = replace(upsert, table=root_at(tmp_path / "at once"))
    run(log, at_once)
    assert by_key(at_once) == by_key(upsert)
    log.add(b"k", 8)
    fourth = run(log, upsert)
    assert since(upsert) == [(b"k", 8, None)]
    assert (fourth.written, fourth.became_stale) == (1, 0)


@both_ways
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


@both_ways
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
    assert (result.records, result.written, result.deleted, result.dead_letters) == (5, 3, 0, 2)
    assert [(row["offset"], row["reason"], row["detail"]) for row in rows(append.dead_letters)] == [
        (3, "undecodable", "missing at number"),
        (4, "no value", None),
    ]
    log.add(b"a", 7)
    assert run(log, append).written == 1
    assert len(rows(append.table)) == 4


@both_ways
def test_a_changelog_has_each_change_of_a_key_and_its_deletions(log: Log, upsert: Export) -> None:
    changelog = replace(upsert, mode=ExportMode.CHANGELOG, headers=True)
    records: list[tuple[bytes | None, int | bytes | None]]
    records = [(b"a", 1), (b"a", 2), (None, 3), (b"b", b"{}"), (b"a", None), (None, None)]
    for key, value in records:
        log.add(key, value)
    result = run(log, changelog)
    assert (result.records, result.written, result.deleted, result.tombstones) == (6, 3, 0, 2)
    assert [(row["offset"], row["reason"]) for row in rows(changelog.dead_letters)] == [
        (2, "no key"), (3, "undecodable"), (5, "no key"),
    ]  # fmt: skip
    log.add(b"a", 7)
    assert run(log, changelog).written == 1
    expected = [(b"a", 1, 0, "upsert"), (b"a", 2, 1, "upsert"), (b"a", None, 4, "delete"), (b"a", 7, 6, "upsert")]
    names = ("_key", "number", "_offset", "_change_type")
    found = sorted(rows(changelog.table), key=lambda row: int(row["_offset"]))
    assert [tuple(row[name] for name in names) for row in found] == expected
    assert all(row["_headers"] == [{"key": "trace", "value": b"1"}] for row in found)
    run(log, changelog, ExportBounds(from_offsets={0: 1}))
    again = sorted(rows(changelog.table), key=lambda row: int(row["_offset"]))
    assert again == found
    with pytest.raises(ExportModeError, match="was exported in changelog mode"):
        run(log, replace(upsert, mode=ExportMode.APPEND))


@both_ways
def test_a_changelog_of_raw_values_tells_a_deletion_from_an_empty_value(log: Log, upsert: Export) -> None:
    changelog = replace(upsert, mode=ExportMode.CHANGELOG, schema=None)
    for key, value in [(b"a", b""), (b"a", None), (None, b"x")]:
        log.add(key, value)
    assert run(log, changelog).written == 2
    assert [(row["value"], row["_change_type"]) for row in rows(changelog.table)] == [(b"", "upsert"), (None, "delete")]
    assert [row["reason"] for row in rows(changelog.dead_letters)] == ["no key"]


def test_append_carries_headers_where_they_are_asked_for(log: Log, append: Export, tmp_path: Path) -> None:
    log.add(b"a", 1)
    log.add(b"a", BAD)
    run(log, append)
    log.add(b"a", 2)
    run(log, replace(append, headers=True))
    headers = [{"key": "trace", "value": b"1"}]
    assert {row["_offset"]: row["_headers"] for row in rows(append.table)} == {0: None, 2: headers}
    assert rows(append.dead_letters)[0]["headers"] == headers
    bare = replace(append, schema=None, headers=True, table=root_at(tmp_path / "bare"))
    run(log, bare)
    assert {row["_offset"]: (row["value"], row["_headers"]) for row in rows(bare.table)}[1] == (BAD, headers)


@both_ways
def test_without_a_model_the_value_goes_as_it_is(log: Log, upsert: Export) -> None:
    bare = replace(upsert, schema=None)
    for key, value in [(b"a", b"\xff"), (b"b", b""), (b"c", b"x"), (b"c", None), (None, b"lost")]:
        log.add(key, value)
    assert run(log, bare).dead_letters == 1
    assert {row["_key"]: row["value"] for row in rows(bare.table)} == {b"a": b"\xff", b"b": b""}
    assert rows(bare.dead_letters)[0]["value"] == b"lost"


def test_plain_readers_see_the_same_table(log: Log, upsert: Export) -> None:
    for key in (b"a", b"b", b"a"):
        log.add(key, log.clock)
    run(log, upsert)
    table = table_at(upsert.table)
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
    orders = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("select number, colour from orders order by number")
    assert found is not None
    assert found.fetchall() == [(1, "red"), (2, "red")]
    spark_rows = log.spark.read.format("delta").load(upsert.table).orderBy("number").collect()
    assert [row["_offset"] for row in spark_rows] == [1, 2]


# --- Dead letters -------------------------------------------------------------------------------------------------


@both_ways
def test_value_that_cannot_be_decoded_is_a_dead_letter_and_its_row_stays(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    log.add(b"a", b'{"number": "secret"}')
    result = run(log, upsert)
    assert by_key(upsert)[b"a"] == {
        "number": 1, "colour": "red", "_key": b"a", "_partition": 0, "_offset": 0,
        "_timestamp": datetime.fromtimestamp(1, UTC),
        "_stale_since": {"partition": 0, "offset": 2, "timestamp": datetime.fromtimestamp(3, UTC)},
    }  # fmt: skip
    assert by_key(upsert)[b"b"]["_stale_since"] is None
    assert (result.dead_letters, result.deleted, result.written, result.became_stale) == (1, 0, 0, 1)
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
            "table_id": table_id(upsert),
            "outcome": None,
        }
    ]


def tree(folder: Path) -> dict[str, int]:
    """The sizes of the files of both tables, by name."""
    storage = storage_at(folder)
    return {file.key: file.size for table in ("orders/", "dead_letters/") for file in storage.list(table)}


@both_ways
def test_too_many_dead_letters_stop_the_export_before_anything_is_committed(
    log: Log, upsert: Export, tmp_path: Path
) -> None:
    for number in range(20):
        log.add(b"%d" % number, number)
    assert run(log, upsert, max_share=0.05).dead_letters == 0
    before = tree(tmp_path), by_key(upsert)
    for number in range(20):
        log.add(b"%d" % number, b'{"nummer": 1}', partition=number % 2)
    log.add(b"0", None)
    with pytest.raises(TooManyDeadLettersError) as stopped:
        run(log, upsert, max_share=0.05)
    assert (tree(tmp_path), by_key(upsert)) == before
    assert str(stopped.value) == (
        f"{upsert.table}: 20 of 20 records to export and 0 of the 20 records before them cannot be decoded: 50.0%, and"
        " export.max.dead.letter.share allows 5.0% (20 undecodable, missing at number; in partition 0 offsets 20 to 29"
        " (10); partition 1 offsets 0 to 9 (10)). Nothing was exported. Choose one: (1) fix the model in schemas/ or the"
        ' producer, and start again; (2) accept these dead letters once with --accept-dead-letters "0:31,1:10"; (3) raise'
        " export.max.dead.letter.share."
    )
    log.add(b"later", BAD)  # what came since was not shown, and is not accepted
    accepted = run(log, upsert, ExportBounds(up_to={0: 31, 1: 10}), max_share=0.05)
    assert (accepted.dead_letters, accepted.became_stale, accepted.deleted) == (20, 19, 1)
    assert accepted.positions_after == {0: 31, 1: 10}
    assert len(by_key(upsert)) == 19
    with pytest.raises(TooManyDeadLettersError, match=r"1 of 1 records to export cannot be decoded: 100\.0%"):
        run(log, upsert, max_share=0.05)
    with pytest.raises(OffsetRefusedError, match="gives the end offset 33 for partition 0"):
        run(log, upsert, ExportBounds(up_to={0: 33}), max_share=0.05)


def test_small_runs_count_together_and_tombstones_do_not(log: Log, append: Export) -> None:
    for number in range(39):
        log.add(b"k", number)
    log.add(b"k", None)  # no row of an append, but no mistake of the producer's either
    run(log, append, max_share=0.05)
    log.add(b"k", 1)
    log.add(b"k", BAD)
    assert run(log, append, max_share=0.05).dead_letters == 1
    log.add(b"k", BAD)
    assert run(log, append, max_share=0.05).dead_letters == 1
    log.add(b"k", BAD)
    with pytest.raises(TooManyDeadLettersError, match="and 2 of the 42 records before them cannot be decoded: 7"):
        run(log, append, max_share=0.05)


def test_what_is_accepted_or_long_ago_is_not_held_against_what_follows() -> None:
    assert followed_by(Recent(), 10, 1) == Recent(10, 1)
    assert followed_by(Recent(1000, 40), 500, 10) == Recent(1000, 30)
    assert followed_by(Recent(1000, 40), 5000, 10) == Recent(1000, 2)
    assert is_too_much(Recent(99, 5), 1, 1, 0.05)
    assert not is_too_much(Recent(99, 4), 1, 1, 0.05)
    assert not is_too_much(Recent(10, 9), 5, 0, 0.05)  # nothing of this increment is bad


def test_table_of_the_kind_before_is_gone_on_with(log: Log, upsert: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    # What the Lakelog before this one left: no column, and a stamp without a format.
    table = log.spark.read.format("delta").load(upsert.table)
    [stamp] = [json.loads(each["userMetadata"]) for each in table_at(upsert.table).history(1)]
    del stamp["lakelog"]["format"], stamp["lakelog"]["recent"]
    writer = table.drop("_stale_since").write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", json.dumps(stamp)).save(upsert.table)
    assert Stamp.from_json(json.dumps(stamp)) is not None
    assert "_stale_since" not in rows(upsert.table)[0]
    log.add(b"a", BAD)
    log.add(b"b", 4)
    result = run(log, upsert)
    assert result.positions_before == {0: 2}
    assert by_key(upsert) == expected_rows(log)


def test_exporters_of_another_time_refuse_what_they_do_not_know() -> None:
    stamp = Stamp("orders", "id", "table", "upsert", {0: 1}, 7)
    with pytest.raises(NewerTableError, match="a newer Lakelog exported to this table"):
        Stamp.from_json(stamp.to_json().replace('"format": 2', '"format": 4'))
    # The Lakelog before stamps had a format makes its own, with these fields, of what it finds, or ends with an error.
    known = {"topic", "topic_id", "table_id", "mode", "positions", "version", "id"}
    found = json.loads(stamp.to_json())["lakelog"]
    of_before = make_dataclass("StampOfBefore", sorted(known), frozen=True)
    assert known < found.keys()
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        of_before(**found)


@pytest.mark.parametrize(("way", "step"), [(exporting, "commit_changes"), (small_export, "_write")])
def test_dead_letters_of_an_interrupted_run_are_not_written_again_and_new_ones_are_not_lost(
    log: Log, upsert: Export, monkeypatch: pytest.MonkeyPatch, way: ModuleType, step: str
) -> None:
    log.with_spark = way is exporting
    log.add(b"a", b"bad")
    log.add(b"b", 1)
    with monkeypatch.context() as patch:
        killed_in(step, after=False, patch=patch, way=way)
        with pytest.raises(Killed):
            run(log, upsert)
    assert dead_offsets(upsert) == [0]
    assert rows(upsert.table) == []

    log.add(b"c", b"bad")  # before the export is started again the log has grown
    result = run(log, upsert)
    assert dead_offsets(upsert) == [0, 2]
    assert numbers(upsert) == {b"b": 1}
    assert result.positions_after == {0: 3}


# --- Once more: replay and earlier offsets ------------------------------------------------------------------------


RENAMED = b'{"nummer": 7, "colour": "blue"}'


def renamed(log: Log) -> None:
    """A producer that renamed a field, keys that others wrote afterwards, and a value that nobody mends."""
    for key in (b"stays", b"back", b"gone", b"never", b"good"):
        log.add(key, 1)
    for key in (b"stays", b"back", b"gone", b"first", b"good"):
        log.add(key, RENAMED, partition=0)
    log.add(b"stays", BAD)
    log.add(b"back", b'{"nummer": 8}')
    log.add(b"gone", None)
    log.add(b"good", 2)


def replayed(log: Log, export: Export) -> ReplayResult:
    return replay(log.spark, export, log.ranges(), log.read, log.ranges)


def outcomes(export: Export) -> dict[int, str | None]:
    return {row["offset"]: row["outcome"] for row in rows(export.dead_letters)}


def test_replay_makes_the_table_what_a_pass_with_the_mended_model_makes(
    log: Log, upsert: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed(log)
    run(log, upsert)
    mended = replace(upsert, schema=schema_of(MendedOrder))
    at_once = replace(
        mended, table=root_at(tmp_path / "at once"), dead_letters=root_at(tmp_path / "their dead letters")
    )
    run(log, at_once)
    before, positions = table_at(upsert.table).version(), run(log, upsert).positions_after
    with monkeypatch.context() as patch:
        patch.setattr(replaying, "mark_letters", lambda *_: killed())
        with pytest.raises(Killed):
            replayed(log, mended)
    assert by_key(upsert) == by_key(at_once)
    assert set(outcomes(upsert).values()) == {None}
    letters = {row["offset"]: row for row in rows(upsert.dead_letters)}
    result = replayed(log, mended)
    assert by_key(upsert) == by_key(at_once)
    assert [by_key(upsert)[key]["number"] for key in (b"stays", b"back", b"first", b"good")] == [7, 8, 7, 2]
    assert outcomes(upsert) == {
        5: "replayed", 6: "superseded", 7: "superseded", 8: "replayed", 9: "superseded", 10: None, 11: "replayed"
    }  # fmt: skip
    assert {row["offset"]: row | {"outcome": None} for row in rows(upsert.dead_letters)} == letters
    assert (result.replayed, result.superseded, result.gone, result.still_open) == (3, 3, 0, 1)
    again = replayed(log, mended)
    assert (again.replayed, again.superseded, again.still_open) == (0, 0, 1)
    assert by_key(upsert) == by_key(at_once)
    assert table_at(upsert.table).version() > before
    after = run(log, mended)
    assert (after.records, after.positions_before) == (0, positions)


def test_replay_appends_each_record_once_and_leaves_what_the_log_has_lost(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (RENAMED, 1, RENAMED, BAD, None):
        log.add(b"k", value)
    run(log, append)
    mended = replace(append, schema=schema_of(MendedOrder))
    log.add(b"k", 9)  # not exported yet: a replay reads nothing new

    def read(
        start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int], then: RecordTask = RECORDS
    ) -> DataFrame:
        assert max(end.values()) == 5
        return log.read({0: max(start[0], 1)}, end, known, then)

    def replay_where_the_log_began_at(first: int) -> None:
        """By the time of reading, retention has taken it to 1."""
        replay(log.spark, mended, {0: PartitionOffsets(first, 6)}, read, lambda: {0: PartitionOffsets(1, 6)})

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "mark_letters", lambda *_: killed())
        with pytest.raises(Killed):
            replay_where_the_log_began_at(1)
    for first in (0, 1):
        replay_where_the_log_began_at(first)
        assert sorted((row["_offset"], row["number"]) for row in rows(append.table)) == [(1, 1), (2, 7)]
        assert outcomes(append) == {0: "gone", 2: "replayed", 3: None, 4: None}
    assert run(log, mended).written == 1


def killed() -> None:
    raise Killed


def test_a_dead_letter_is_open_again_if_its_record_is_again_no_row(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended = replace(append, schema=schema_of(MendedOrder))
    log.add(b"a", 1)
    first = run(log, append).table_version
    assert first is not None
    log.add(b"b", RENAMED)
    log.add(b"c", 3)
    run(log, append)
    whole = {b"a": 1, b"b": 7, b"c": 3}

    def replay_it(expected: int) -> None:
        assert replayed(log, mended).replayed == expected
        assert numbers(append) == whole
        assert [(row["offset"], row["outcome"]) for row in rows(append.dead_letters)] == [(1, "replayed")]

    def is_open() -> bool:
        return [(row["offset"], row["outcome"]) for row in rows(append.dead_letters)] == [(1, None)]

    replay_it(1)
    with monkeypatch.context() as patch:
        killed_in("append_undecodable", after=True, patch=patch)
        with pytest.raises(Killed):
            run(log, append, ExportBounds(from_offsets={0: 1}))
    assert numbers(append) == whole
    assert is_open()
    replay_it(1)
    log.add(b"d", RENAMED)
    assert run(log, append, ExportBounds(from_offsets={0: 1})).dead_letters == 2
    assert numbers(append) == {b"a": 1, b"c": 3}
    assert outcomes(append) == {1: None, 3: None}
    assert sorted(row["offset"] for row in rows(append.dead_letters)) == [1, 3]
    assert replayed(log, mended).replayed == 2
    # After a RESTORE, too. An export without Spark leaves this to Spark.
    table_at(append.table).restore(first)
    assert run_small(log, append) is None
    assert run(log, append).dead_letters == 2
    assert outcomes(append) == {1: None, 3: None}
    assert replayed(log, mended).replayed == 2
    assert numbers(append) == {**whole, b"d": 7}
    assert sorted(row["offset"] for row in rows(append.dead_letters)) == [1, 3]


@pytest.mark.parametrize("log", [False, True], indirect=True)
def test_dead_letters_are_not_written_again_if_the_log_of_their_table_has_only_stamps_of_another_table(
    log: Log, append: Export
) -> None:
    other = replace(append, table=f"{append.table}-other")
    log.add(b"a", 1)
    first = run(log, append).table_version
    assert first is not None
    log.add(b"b", BAD)
    run(log, append)
    run(log, other)
    letters = table_at(append.dead_letters)
    letters.create_checkpoint()
    for version in range(letters.version()):
        commit_file(append.dead_letters, version).unlink()
    head = read_head(append.dead_letters, table_id(append))
    assert head is not None
    assert head.newest is None
    table_at(append.table).restore(first)
    log.add(b"c", BAD)
    assert run(log, append).dead_letters == 2
    found = [(row["table_id"], row["offset"]) for row in rows(append.dead_letters)]
    assert sorted(found) == sorted([(table_id(append), 1), (table_id(append), 2), (table_id(other), 1)])


def test_dead_letters_above_the_end_of_an_export_are_not_written_again(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (1, 2, BAD):
        log.add(b"k", value)
    with monkeypatch.context() as patch:
        killed_in("_write", after=False, patch=patch, way=small_export)
        with pytest.raises(Killed):
            run(log, append)
    assert dead_offsets(append) == [2]
    strict = replace(append, schema=schema_of(LargeOrder))
    run(log, strict, ExportBounds(up_to={0: 2}))
    assert dead_offsets(append) == [0, 1, 2]
    run(log, strict)
    assert dead_offsets(append) == [0, 1, 2]


def test_append_from_an_earlier_offset_replaces_the_rows_in_one_commit(log: Log, append: Export) -> None:
    for value in (1, RENAMED, 3):
        log.add(b"k", value)
    log.add(b"other", 4, partition=1)
    run(log, append)
    log.add(b"k", 5)
    log.add(b"other", 6, partition=1)
    mended = replace(append, schema=schema_of(MendedOrder))
    before = table_at(append.table).version()
    result = run(log, mended, ExportBounds(from_offsets={0: 1}))
    assert sorted((row["_partition"], row["_offset"], row["number"]) for row in rows(append.table)) == [
        (0, 0, 1), (0, 1, 7), (0, 2, 3), (0, 3, 5), (1, 0, 4), (1, 1, 6)
    ]  # fmt: skip
    assert table_at(append.table).version() == before + 1
    assert (result.records, result.written, result.deleted) == (4, 4, 1)
    assert result.positions_after == {0: 4, 1: 2}
    assert run(log, mended, ExportBounds(from_time={0: 4, 1: 2})).records == 0  # nothing is that new
    for bounds, problem in [
        ({2: 0}, "has the partitions 0 to 1"),
        ({0: 5}, "has the offsets 0 to 4"),
    ]:
        with pytest.raises(OffsetRefusedError, match=problem):
            run(log, mended, ExportBounds(from_offsets=bounds))
    log.add(b"k", 7)
    log.add(b"k", 8)
    with pytest.raises(
        OffsetRefusedError, match="up to offset 4, and the records from there to the given offset would"
    ):
        run(log, mended, ExportBounds(from_offsets={0: 5}))
    compacted = {0: PartitionOffsets(0, 6, compacted_end=3), 1: PartitionOffsets(0, 2)}
    with pytest.raises(OffsetRefusedError, match="compaction has removed records of orders-0 below offset 3"):
        export_increment(log.spark, append, compacted, log.read, bounds=ExportBounds(from_offsets={0: 2}))


@pytest.mark.parametrize("goes_back", ["from offset", "tombstones removed", "replay"])
def test_an_upsert_that_goes_back_in_one_partition_leaves_out_keys_deleted_in_another(
    log: Log, upsert: Export, goes_back: str
) -> None:
    log.add(b"deleted", RENAMED if goes_back == "replay" else 1, partition=0)
    log.add(b"deleted", None, partition=1)
    log.add(b"other", RENAMED, partition=1)
    log.add(b"there", 3, partition=0)
    run(log, upsert)
    before, mended = by_key(upsert), replace(upsert, schema=schema_of(MendedOrder))
    assert {key: row["number"] for key, row in before.items()} == {b"there": 3}
    if goes_back == "replay":
        found = replayed(log, mended)
        assert (found.replayed, found.superseded) == (1, 1)
        del (after := by_key(upsert))[b"other"]
        assert after == before
        return
    bounds = ExportBounds(from_offsets={0: 0}) if goes_back == "from offset" else NO_BOUNDS
    removed = {0: PartitionOffsets(0, 3, tombstones_end=3), 1: PartitionOffsets(0, 2)}
    log.add(b"new", 4, partition=0)
    ranges = log.ranges() if goes_back == "from offset" else removed
    export_increment(log.spark, upsert, ranges, log.read, bounds=bounds, max_share=1)
    assert by_key(upsert) == before | {b"new": by_key(upsert)[b"new"]}
    assert numbers(upsert) == {b"there": 3, b"new": 4}


def test_upsert_from_an_earlier_offset_ends_as_a_whole_pass_does(log: Log, upsert: Export, tmp_path: Path) -> None:
    renamed(log)
    log.add(b"elsewhere", 1, partition=1)
    run(log, upsert)
    mended = replace(upsert, schema=schema_of(MendedOrder))
    # A row of a record whose tombstone compaction has removed since, and one that somebody changed.
    log.add(b"removed", 1)
    run(log, upsert)
    log.records[0] = log.records[0][:-1]
    table = DeltaTable.forPath(log.spark, upsert.table)
    table.update("_key = CAST('never' AS BINARY)", {"number": "99"})
    log.add(b"elsewhere", BAD, partition=1)
    ranges = {0: PartitionOffsets(0, 15), 1: PartitionOffsets(0, 2)}
    result = export_increment(
        log.spark, mended, ranges, log.read, bounds=ExportBounds(from_offsets={0: 0}), max_share=1
    )
    at_once = replace(
        mended, table=root_at(tmp_path / "at once"), dead_letters=root_at(tmp_path / "their dead letters")
    )
    export_increment(log.spark, at_once, ranges, log.read, max_share=1)
    assert by_key(upsert) == by_key(at_once)
    assert result.deleted == 1
    assert sorted((row["partition"], row["offset"]) for row in rows(upsert.dead_letters)) == [
        *((0, offset) for offset in range(5, 12)), (1, 1)
    ]  # fmt: skip
    begun = replace(
        upsert, table=root_at(tmp_path / "begun later"), dead_letters=root_at(tmp_path / "later dead letters")
    )
    later = run(log, begun, ExportBounds(from_offsets={0: 12}, from_time={0: 14, 1: 2}))
    assert (later.positions_before, later.positions_after) == ({}, {0: 14, 1: 2})
    assert numbers(begun) == {b"good": 2}


def test_a_row_stays_where_its_own_record_no_longer_decodes(log: Log, upsert: Export) -> None:
    for key, number in [(b"small", 1), (b"large", 5), (b"both", 6), (b"both", 2)]:
        log.add(key, number)
    run(log, upsert)
    before = by_key(upsert)
    log.add(b"large", 7)
    result = run(log, replace(upsert, schema=schema_of(LargeOrder)), ExportBounds(from_offsets={0: 0}))
    after = by_key(upsert)
    assert {key: after[key] for key in (b"small", b"both")} == {key: before[key] for key in (b"small", b"both")}
    assert (after[b"large"]["number"], after[b"large"]["_offset"], after[b"large"]["_stale_since"]) == (7, 4, None)
    assert (result.dead_letters, result.deleted, result.became_stale, result.without_row) == (2, 0, 0, 0)


# --- Exactly once -------------------------------------------------------------------------------------------------


def test_repetition_after_a_commit_changes_nothing(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.add(b"a", b"bad")
    first = run(log, append)
    again = run(log, append)
    assert (again.records, again.written, again.dead_letters, again.table_version) == (0, 0, 0, first.table_version)
    assert again.positions_before == again.positions_after == {0: 2}
    assert len(rows(append.table)) == 1
    assert dead_offsets(append) == [1]


def test_nothing_to_export_makes_no_table(log: Log, upsert: Export, tmp_path: Path) -> None:
    log.records[0] = []
    result = run(log, upsert)
    assert (result.records, result.positions_before, result.positions_after, result.table_version) == (0, {}, {}, None)
    assert tree(tmp_path) == {}
    assert not (tmp_path / "orders").exists()


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_write_that_delta_skips_in_silence_is_noticed(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode)
    log.add(b"a", 1)
    run(log, export)
    log.add(b"b", 2)

    def read_while_another_export_commits(
        start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int], then: RecordTask = RECORDS
    ) -> DataFrame:
        run(log, export)
        return log.read(start, end, known, then)

    with pytest.raises(ConflictError, match=r"another (export committed|writer changed the table)"):
        export_increment(log.spark, export, log.ranges(), read_while_another_export_commits)
    assert numbers(export) == {b"a": 1, b"b": 2}


@pytest.mark.parametrize("model", [Order, OrderWithPrice])
def test_who_is_overtaken_before_reading_doubles_nothing(log: Log, append: Export, model: type[EventModel]) -> None:
    log.add(b"a", 1)
    run(log, append)
    log.add(b"b", 2)
    overtaken = replace(append, schema=schema_of(model))  # a new column makes it look at the table once more

    def let_another_export_commit(_positions: Mapping[int, int]) -> None:
        run(log, append)

    with pytest.raises(ConflictError, match=r"another (export|writer)"):
        export_increment(log.spark, overtaken, log.ranges(), log.read, let_another_export_commit)
    assert numbers(append) == {b"a": 1, b"b": 2}


@pytest.mark.parametrize("is_first", [True, False])
def test_dead_letters_are_not_lost_if_a_shorter_export_is_killed_meanwhile(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """The killed export has appended its dead letters, but no rows. Both appends of dead letters have the same guard.
    is_first: the killed export makes the table of the dead letters."""
    log.add(b"a", 1 if is_first else BAD)
    run(log, append)
    log.add(b"b", BAD)
    shorter = plan_from_history(append, log.ranges(), NO_BOUNDS)
    assert shorter is not None
    log.add(b"c", BAD)
    write = dead_letters.append_dead_letters

    def let_the_shorter_one_append(*arguments: Any) -> None:
        with monkeypatch.context() as patch, suppress(Killed):
            killed_in("_write", after=False, patch=patch, way=small_export)
            small_export.export_without_spark(append, shorter, log.read_batches, max_share=1)
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(table_writing, "append_dead_letters", let_the_shorter_one_append)
        with pytest.raises(ConflictError, match=r"another export committed after version .*start this export again"):
            export_increment(log.spark, append, log.ranges(), log.read, max_share=1)
    before = [] if is_first else [0]
    assert dead_offsets(append) == [*before, 1]
    log.with_spark = True
    assert run(log, append).dead_letters == 2
    assert dead_offsets(append) == [*before, 1, 2]


def test_a_replay_that_is_overtaken_doubles_nothing(log: Log, append: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add(b"a", 1)
    log.add(b"bad", b'{"nummer": 9}')
    run(log, append)
    log.add(b"b", 2)
    look = table_schema.fit_table  # a new column makes it look at the table once more

    def let_another_export_commit(*arguments: Any) -> TableHead:
        run(log, append)
        return look(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "fit_table", let_another_export_commit)
        with pytest.raises(ConflictError, match="another export"):
            replayed(log, replace(append, schema=schema_of(MendedOrderWithPrice)))
    run(log, append)
    assert sorted((row["_key"], row["number"]) for row in rows(append.table)) == [(b"a", 1), (b"b", 2)]
    assert outcomes(append) == {1: None}


def test_exports_that_another_writer_came_between_double_nothing(log: Log, append: Export) -> None:
    """Two exports look at the table, one before another writer's commit and one after it; the earlier one commits first."""
    log.add(b"a", 1)
    run(log, append)
    log.add(b"b", 2)
    looked, changed = threading.Event(), threading.Event()

    def wait(_positions: Mapping[int, int]) -> None:
        looked.set()
        assert changed.wait(300)

    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(export_increment, log.spark, append, log.ranges(), log.read, wait)
        assert looked.wait(300)
        table_at(append.table).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})

        def let_the_earlier_one_commit(_positions: Mapping[int, int]) -> None:
            changed.set()
            earlier.result()

        with pytest.raises(ConflictError, match=r"another (export committed|writer changed the table)"):
            export_increment(log.spark, append, log.ranges(), log.read, let_the_earlier_one_commit)
    assert sorted((row["_key"], row["number"]) for row in rows(append.table)) == [(b"a", 1), (b"b", 2)]


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
    letters = table_at(append.dead_letters).version()
    again = run(log, append)
    assert again.positions_before == {0: 1}
    assert numbers(append) == {b"a": 1, b"b": 2, b"d": 4}
    assert dead_offsets(append) == [2]  # reported once, before the restore
    assert table_at(append.dead_letters).version() == letters


def test_restore_to_a_timestamp_lets_the_rows_tell_the_position(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    run(log, append)
    pause = 1.1 if STORE in ("s3", "azure") else 0.01  # there, the times of objects are whole seconds
    time.sleep(pause)
    moment = datetime.now(UTC)
    time.sleep(pause)
    log.add(b"b", 2)
    run(log, append)
    DeltaTable.forPath(log.spark, append.table).restoreToTimestamp(moment.strftime("%Y-%m-%d %H:%M:%S.%f"))
    assert numbers(append) == {b"a": 1}
    assert run(log, append).positions_before == {0: 1}
    assert numbers(append) == {b"a": 1, b"b": 2}


def test_positions_are_registered_before_reading_and_go_back_with_the_table(log: Log, upsert: Export) -> None:
    registered: list[Mapping[int, int]] = []

    def exported() -> ExportResult:
        def read(
            start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int], then: RecordTask = RECORDS
        ) -> DataFrame:
            assert len(registered) == count + 1
            assert known == registered[-1]
            return log.read(start, end, known, then)

        count = len(registered)
        return export_increment(log.spark, upsert, log.ranges(), read, registered.append)

    log.add(b"a", 1)
    first = exported()
    log.add(b"b", 2)
    exported()
    assert first.table_version is not None
    table_at(upsert.table).restore(first.table_version)
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
    table_at(upsert.table).restore(first.table_version)
    # Meanwhile the tombstone is cleaned away, and offset 0 with it; partition 1 begins at 1, where nothing is left.
    log.add(b"d", 5)
    cleaned = [record for record in log.records[0] if record[0] != b"a"]

    def read(
        start: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int], then: RecordTask = RECORDS
    ) -> DataFrame:
        assert (start, end, known) == ({0: 0}, {0: 5}, {0: 3, 1: 1})
        return then.of(log.spark.createDataFrame(cleaned, KAFKA_ROWS).coalesce(1))

    ranges = {0: PartitionOffsets(0, 5, tombstones_end=4), 1: PartitionOffsets(1, 1, tombstones_end=1)}
    again = export_increment(log.spark, upsert, ranges, read)
    assert numbers(upsert) == {b"b": 2, b"c": 3, b"d": 5, b"other": 4}
    assert (again.plan.reread, again.deleted) == ((0,), 1)
    done = export_increment(log.spark, upsert, ranges, read)
    assert (done.plan.reread, done.records) == ((), 0)


def entry(version: int, operation: str, restored: str | None = None, positions: int | None = None) -> Commit:
    parameters = {"version": restored} if operation == "RESTORE" else {}
    stamp = None if positions is None else Stamp("t", "id", "table", "append", {0: positions}, version).to_json()
    return Commit(version, operation, parameters, user_metadata=stamp)


@pytest.mark.parametrize(
    ("history", "position", "guard"),
    [
        ([entry(3, "OPTIMIZE"), entry(2, "WRITE", positions=20), entry(1, "WRITE", positions=10)], 20, 3),
        ([entry(3, "RESTORE", "1"), entry(2, "WRITE", positions=20), entry(1, "WRITE", positions=10)], 10, 3),
        ([entry(4, "WRITE", positions=30), entry(3, "RESTORE", "1"), entry(1, "WRITE", positions=10)], 30, 5),
        (
            [
                entry(5, "RESTORE", "3"),
                entry(4, "WRITE", positions=30),
                entry(3, "RESTORE", "1"),
                entry(2, "WRITE", positions=20),
                entry(1, "WRITE", positions=10),
            ],
            10,
            5,
        ),
        ([entry(3, "RESTORE", "0"), entry(2, "WRITE", positions=20), entry(0, "WRITE")], None, 3),
        ([entry(3, "RESTORE", None), entry(2, "WRITE", positions=20)], None, 3),
        ([entry(1, "OPTIMIZE"), entry(0, "WRITE")], None, 0),
        ([entry(9, "OPTIMIZE")], None, 10),
    ],
)
def test_position_is_that_of_the_rows_and_the_guard_is_above_that_of_every_stamp(
    history: list[Commit], position: int | None, guard: int
) -> None:
    head = find_head(history, lambda: history[-1].version, lambda _: True)
    assert (head.current.positions[0] if head.current else None) == position
    assert head.next_guard == guard


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
    with pytest.raises(PositionAheadError, match="up to offset 2, but the log ends at offset 1"):
        run(log, append)


def test_table_that_is_no_export_is_refused(log: Log, append: Export) -> None:
    log.add(b"a", 1)
    log.spark.range(1).write.format("delta").save(append.table)
    with pytest.raises(TableSchemaError, match="is not an exported table"):
        run(log, append)


def test_new_field_becomes_a_column_and_a_field_that_went_becomes_null(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, upsert)
    log.add(b"b", b'{"number": 3, "colour": "red", "price": 9.5}')
    run(log, replace(upsert, schema=schema_of(OrderWithPrice)))
    found = {row["_key"]: (row["number"], row["colour"], row["price"]) for row in rows(upsert.table)}
    assert found == {b"a": (1, "red", None), b"b": (3, None, 9.5)}


def test_field_of_another_type_is_refused_and_the_table_stays(log: Log, upsert: Export) -> None:
    log.add(b"a", 1)
    run(log, upsert)
    before = rows(upsert.table)
    log.add(b"a", b'{"number": "1"}')
    with pytest.raises(TableSchemaError, match="column number is bigint, but the schema now says string"):
        run(log, replace(upsert, schema=schema_of(OrderWithText)))
    assert rows(upsert.table) == before
