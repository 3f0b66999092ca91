"""Fresh views (a table with the records that are not exported yet), without Spark. Each view equals the table after the
next export, even if exports or maintenance run at the same time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import TableFeatures, write_deltalake

import lakelog
from lakelog import FreshTable
from lakelog.delta_options import delta_options
from lakelog.errors import MissingPackageError
from pipeline.delta.comments.column_comments import write_comments
from pipeline.delta.export_plan import (
    ExportMode,
    ExportRefusedError,
    PositionAheadError,
    TableSchemaError,
    TopicRecreatedError,
)
from pipeline.delta.fresh import fresh_rows, snapshot
from pipeline.delta.fresh.snapshot import LostRecordsError
from pipeline.model_changes import TopicSchemas
from pipeline.settings import load_settings
from pipeline.topic_model import changed_model, record_model
from schemas.event_schema import EventSchema
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConfigError, ConflictError, UnknownTopicError, UnsupportedError
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from tests.pipeline.delta.comments.test_column_comments import Described
from tests.pipeline.delta.order_models import MendedOrderWithPrice, Order, OrderWithText, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic, some_orders
from tests.roots.delta_tables import table_at

MODES = pytest.mark.parametrize("mode", list(ExportMode))
Row = dict[str, Any]


def view(topic: ExportedTopic, schema: str = schema_of(Order).text) -> FreshTable:
    return topic.topic.table(schema=schema)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def rows_of(found: FreshTable) -> list[Row]:
    return in_order(found.to_arrow().to_pylist())


def exported_rows(topic: ExportedTopic) -> list[Row]:
    return in_order(table_at(topic.export.table).to_pyarrow_table().to_pylist())


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["_partition"], row["_offset"]) for row in rows]


@MODES
def test_a_view_has_the_rows_of_the_table_and_of_the_log(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1, digest=True)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4))
    topic.run_export()
    topic.append((b"a", 5), (b"b", None), (b"c", b"{"), (b"e", 6), (b"f", b"{"))
    found = view(topic)
    shown = [(row["_key"], row["number"], row["_offset"]) for row in rows_of(found)]
    changed = [(b"a", 5, 4), (b"e", 6, 7)]
    assert shown == {
        ExportMode.UPSERT: [(b"c", 3, 2), (b"d", 4, 3), *changed],
        ExportMode.APPEND: [(b"a", 1, 0), (b"b", 2, 1), (b"c", 3, 2), (b"d", 4, 3), *changed],
        ExportMode.CHANGELOG: [
            (b"a", 1, 0), (b"b", 2, 1), (b"c", 3, 2), (b"d", 4, 3), changed[0], (b"b", None, 5), changed[1],
        ],
    }[mode]  # fmt: skip
    if mode is ExportMode.UPSERT:
        stale = {row["_key"]: (row["_stale_since"] or {}).get("offset") for row in rows_of(found)}
        assert stale == {b"a": None, b"c": 6, b"d": None, b"e": None}
    assert (found.version, dict(found.positions)) == (1, {0: 9})
    before = found.to_arrow()
    topic.run_export()
    assert rows_of(found) == exported_rows(topic)
    assert found.schema.names == before.schema.names == table_at(topic.export.table).to_pyarrow_table().schema.names


@MODES
@pytest.mark.parametrize("seed", range(2))
def test_a_view_is_the_table_after_an_export(tmp_path: Path, mode: ExportMode, seed: int) -> None:
    """With tombstones, dead letters, compaction, retention and new partitions."""
    chance = random.Random(seed)
    topic = ExportedTopic(tmp_path, mode, partitions=chance.choice([1, 2]), digest=seed == 1)
    topic.append((b"first", 1))
    topic.run_export()
    compared = 0
    for _ in range(14):
        some_orders(topic, chance)
        if chance.random() < 0.1:
            topic.topics.alter("orders", partitions=len(topic.state().partitions) + 1)
        if chance.random() < 0.5:
            topic.clock.advance(chance.choice([1000, 61_000]))
            topic.compact()
        found = rows_of(view(topic))
        if chance.random() < 0.6:
            topic.run_export()
            assert found == exported_rows(topic)
            compared += 1
            if chance.random() < 0.3:
                number = chance.randrange(len(topic.state().partitions))
                part = topic.state().partitions[number]
                topic.delete_records(number, chance.randint(part.log_start_offset, part.high_watermark))
    assert compared > 3


def test_a_topic_without_a_schema(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.export = replace(topic.export, schema=None)
    topic.append((b"a", b"1"), (b"b", b"2"))
    topic.run_export()
    topic.append((b"a", b"3"))
    assert [(row["_key"], row["value"]) for row in rows_of(topic.topic.table())] == [(b"b", b"2"), (b"a", b"3")]


def test_headers_are_in_the_view_if_they_are_in_the_table(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, partitions=1)
    topic.export = replace(topic.export, headers=True)
    for _ in range(2):
        topic.topic.append([{"key": b"a", "value": b'{"number": 1}', "headers": {"h": b"x"}}])
        topic.run_export()
    topic.topic.append([{"key": b"a", "value": b'{"number": 2}', "headers": {"h": b"y"}}])
    headers = [row["_headers"] for row in rows_of(view(topic))]
    assert headers == [[{"key": "h", "value": value}] for value in (b"x", b"x", b"y")]


def test_new_columns_of_the_model_and_columns_that_it_no_longer_has(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.append((b"b", b'{"number": 3, "price": 1.5}'))
    found = view(topic, schema_of(MendedOrderWithPrice).text)
    assert found.schema.names == [
        "number", "colour", "_key", "_partition", "_offset", "_timestamp", "_stale_since", "price",
    ]  # fmt: skip
    assert [(row["_key"], row["number"], row["price"]) for row in rows_of(found)] == [(b"a", 1, None), (b"b", 3, 1.5)]


def test_duckdb_and_polars_read_a_view(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.append((b"a", 5))
    orders = view(topic)
    assert str(duckdb.execute("SELECT sum(number), count(*) FROM orders").fetchall()) == "[(7, 2)]"
    assert orders.to_polars().select(pl.col("number").sum()).item() == 7
    assert sorted(orders.to_pandas()["number"]) == [2, 5]


# --- Races ----------------------------------------------------------------------------------------------------------


def fill(topic: ExportedTopic) -> None:
    """Append records that fill segments, so that the segments before can be cleaned."""
    for _ in range(2):
        topic.append(*((b"fill-%d" % number, number) for number in range(30)))


def append_more(topic: ExportedTopic) -> None:
    topic.append((b"a", 100), (b"b", None), (b"g", 7))


def expire(topic: ExportedTopic) -> None:
    """Export everything, and then let retention delete everything."""
    topic.run_export()
    topic.delete_records(0, topic.state().partitions[0].high_watermark)
    assert retain_topic(topic.topics.chain("orders"), BrokerConfig()).changed
    forget_files(topic)


def append_and_export(topic: ExportedTopic) -> None:
    append_more(topic)
    topic.run_export()


def export_and_compact(topic: ExportedTopic) -> None:
    topic.run_export()
    compact(topic)


def supersede(topic: ExportedTopic) -> None:
    """Append newer records of each key, and let compaction remove the older ones."""
    topic.append(*((key, 200) for key in (b"a", b"b", b"c", b"d", b"e", b"x")))
    fill(topic)
    topic.compact()
    forget_files(topic)


def compact(topic: ExportedTopic) -> None:
    topic.compact()
    forget_files(topic)


def forget_files(topic: ExportedTopic) -> None:
    """Delete the files that the topic no longer needs, as maintenance does after a minute."""
    topic.clock.advance(3_600_000)
    config = topic.topics.config(topic.state())
    delete_dropped(topic.storage, topic.topics.chain("orders"), config, topic.clock.now_ms())


def export_and_append(topic: ExportedTopic) -> None:
    topic.run_export()
    append_more(topic)


RACES: dict[str, Callable[[ExportedTopic], None]] = {
    "an export": ExportedTopic.run_export,
    "an append": append_more,
    "an export and an append": export_and_append,
    "an append and an export": append_and_export,
    "an export and retention": expire,
    "compaction": compact,
    "an export and compaction": export_and_compact,
    "newer records and compaction": supersede,
}
MOMENTS = {
    "before the end of the log is read": (snapshot, "_newest"),
    "before the records are read": (fresh_rows, "_read"),
}


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
@pytest.mark.parametrize("race", RACES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_happens_while_a_view_is_made_neither_doubles_nor_hides_a_row(
    tmp_path: Path, mode: ExportMode, race: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append((b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4))
    topic.run_export()
    topic.append((b"a", 5), (b"b", None), (b"c", b"{"), (b"e", 6))
    fill(topic)
    every: dict[int, tuple[bytes, bytes | None]] = {}
    module, name = MOMENTS[moment]
    original = getattr(module, name)
    done: list[bool] = []

    def remember() -> None:
        for row in topic.topic.read().to_arrow().to_pylist():
            every[row["offset"]] = (row["key"], row["value"])

    def raced(*arguments: object) -> object:
        if not done:
            done.append(True)
            remember()
            RACES[race](topic)
        return original(*arguments)

    monkeypatch.setattr(module, name, raced)
    before = topic.topic.append  # records that compaction removes are remembered as they are appended

    def noted(rows: list[dict[str, Any]], **options: Any) -> dict[int, range]:
        offsets = before(rows, **options)
        for offset, row in zip(offsets[0], rows, strict=True):
            every[offset] = (row["key"], row["value"])
        return offsets

    monkeypatch.setattr(topic.topic, "append", noted)
    found = view(topic)
    assert done
    check_view(mode, rows_of(found), every, found.positions[0])


def check_view(mode: ExportMode, rows: list[Row], every: dict[int, tuple[bytes, bytes | None]], end: int) -> None:
    """Compare a view with all records before its end that were ever appended."""
    before = {offset: record for offset, record in every.items() if offset < end}
    assert len(before) == end
    newest: dict[bytes, int] = {}
    for offset, (key, value) in sorted(before.items()):
        if value != b"{":
            newest[key] = offset
    if mode is ExportMode.UPSERT:
        expected = sorted(offset for offset in newest.values() if before[offset][1] is not None)
        assert [offset for _, offset in places(rows)] == expected
        return
    kept = {
        offset for offset, (_, value) in before.items()
        if value != b"{" and (value is not None or mode is ExportMode.CHANGELOG)
    }  # fmt: skip
    shown = [offset for _, offset in places(rows)]
    assert len(shown) == len(set(shown)), "a row is there twice"
    assert set(shown) <= kept
    # Compaction may remove older records of a key before they are exported; it never hides the newest.
    hidden = kept - set(shown)
    assert all(newest[before[offset][0]] > offset for offset in hidden)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tombstone_that_compaction_removes_while_a_view_is_made_still_deletes_its_row(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export commits the tombstone, so that compaction may remove it, but the view began with the table before."""
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    topic.append((b"b", None))
    fill(topic)
    compact(topic)  # the tombstone gets its delete horizon
    fill(topic)
    module, name = MOMENTS[moment]
    original = getattr(module, name)
    ends = [topic.state().partitions[0].tombstones_end]

    def raced(*arguments: object) -> object:
        if len(ends) == 1:
            topic.run_export()
            compact(topic)
            ends.append(topic.state().partitions[0].tombstones_end)
        return original(*arguments)

    monkeypatch.setattr(module, name, raced)
    found = rows_of(view(topic))
    assert ends[0] <= 2 < ends[1], "the tombstone of `b` has the offset 2"
    assert found == exported_rows(topic)
    assert {row["_key"] for row in found} == {b"a", *(b"fill-%d" % number for number in range(30))}


def test_a_log_that_never_rests_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"a", 1))
    topic.run_export()
    topic.append((b"a", 2))
    fill(topic)
    read = fresh_rows._read

    def raced(*arguments: Any) -> object:
        supersede(topic)
        return read(*arguments)

    monkeypatch.setattr(fresh_rows, "_read", raced)
    with pytest.raises(ConflictError, match=r"during each of 5 attempts .* Run the export"):
        view(topic)


# --- Errors ---------------------------------------------------------------------------------------------------------


def exported(tmp_path: Path, mode: ExportMode = ExportMode.UPSERT) -> ExportedTopic:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    topic.append((b"a", 1), (b"b", 2))
    topic.run_export()
    return topic


def test_records_that_retention_deleted_before_they_were_exported(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    topic.append((b"c", 3), (b"d", 4), (b"e", 5))
    topic.delete_records(0, 4)
    with pytest.raises(LostRecordsError) as refused:
        view(topic)
    assert str(refused.value) == (
        f"{topic.export.table}: retention deleted the offsets 2 to 3 of orders-0 before they were exported, so a view of"
        " the table and the log would lack these records. Run the export. Its error names the options"
        " with which it continues after these records."
    )
    topic.run_export()
    assert [row["number"] for row in rows_of(view(topic))] == [1, 2, 5]


def test_no_table_and_a_table_without_a_position(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    with pytest.raises(ExportRefusedError, match=r"there is no table\. Check the path, or run the export first"):
        view(topic)
    write_deltalake(topic.export.table, pa.table({"a": [1]}), storage_options=delta_options(topic.export.table))
    with pytest.raises(ExportRefusedError, match="does not say up to which offsets the topic was exported"):
        view(topic)


def test_a_table_of_another_topic(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    other = lakelog.open(topic.root).create_topic("others")
    with pytest.raises(TopicRecreatedError) as refused:
        other.table("tables/orders", schema=schema_of(Order).text)
    assert str(refused.value) == (
        f"{topic.export.table}: has rows of topic orders with id {topic.topic.id}, but topic others now has id {other.id}."
        " Export to another table, or move this table away."
    )


def test_a_topic_that_was_deleted(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    topic.topics.delete("orders")
    with pytest.raises(UnknownTopicError, match="was deleted"):
        view(topic)


def test_a_table_that_is_ahead_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = exported(tmp_path)
    older: TopicState = topic.state()
    topic.append((b"c", 3))
    topic.run_export()
    monkeypatch.setattr(snapshot, "newest_decided", lambda *_: older)
    with pytest.raises(PositionAheadError, match="the log ends at offset 2"):
        view(topic)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            None,
            "with a schema, but the argument schema names none. Give the text of the setting topics.orders.schema",
        ),
        ("no_such_model", "there is no model 'no_such_model'"),
    ],
)
def test_a_missing_or_unknown_schema(tmp_path: Path, schema: str | None, problem: str) -> None:
    topic = exported(tmp_path)
    with pytest.raises(ConfigError) as refused:
        topic.topic.table(schema=schema)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (None, "the argument schema names none"),
        ("number BIGINT", "is recorded in topic orders: value is removed"),
        ("number BIGINT, value BINARY, price DOUBLE NOT NULL", "price is new and required"),
        ("number BIGINT NOT NULL, value BINARY", "number is now required"),
    ],
)
def test_a_schema_that_an_export_would_refuse(tmp_path: Path, schema: str | None, problem: str) -> None:
    topic = ExportedTopic(tmp_path)
    fields = "number BIGINT, value BINARY"
    topic.export = replace(topic.export, schema=EventSchema(fields))
    topic.append((b"a", b'{"number": 1, "value": "AAE="}'))
    topic.run_export()
    settings = load_settings(None, [], topic.root)
    recorded = changed_model(settings, "orders", None, TopicSchemas(EventSchema(fields)), accepted=False)
    assert recorded is not None
    record_model(topic.topics, topic.state(), recorded)
    topic.append((b"b", b'{"number": 2, "value": "AAI="}'))
    assert [(row["number"], row["value"]) for row in rows_of(view(topic, fields))] == [(1, b"\0\1"), (2, b"\0\2")]
    with pytest.raises(ConfigError) as refused:
        topic.topic.table(schema=schema)
    assert problem in str(refused.value)


def test_an_argument_of_a_wrong_type(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    fields = topic.export.schema.text if topic.export.schema is not None else None
    wrong: list[tuple[str, Any, str]] = [
        ("table", 5, "table: expected a path or a URI, found int 5. Give the path or the URI of the table."),
        ("table", b"tables/orders", "table: expected a path or a URI, found bytes"),
    ]
    for name in ("schema", "registry", "key_schema", "key_registry"):
        for value, shown in ((5, "int"), (b"n BIGINT", "bytes"), ("", "an empty text")):
            wrong.append((name, value, f"{name}: found {shown}. Write the text of the setting"))
    for name, value, problem in wrong:
        with pytest.raises(ConfigError) as refused:
            topic.topic.table(**{"schema": fields, name: value})
        assert problem in str(refused.value)
    assert topic.topic.table(Path("tables/orders"), schema=fields).version == 1


def test_a_column_of_another_type(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    with pytest.raises(TableSchemaError, match="column number has another type than the same field in the schema"):
        view(topic, schema_of(OrderWithText).text)


def test_a_program_without_the_packages_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ExportedTopic(tmp_path)
    monkeypatch.setitem(sys.modules, "pipeline.delta.fresh.fresh_rows", None)
    with pytest.raises(MissingPackageError) as refused:
        topic.topic.table()
    assert str(refused.value) == (
        "pipeline: reading a table together with the log requires the package pipeline, which is not installed. Add a checkout"
        " of Lakelog to PYTHONPATH."
    )


def test_a_table_that_only_spark_can_read(tmp_path: Path) -> None:
    topic = exported(tmp_path)
    table_at(topic.export.table).alter.add_feature([TableFeatures.V2Checkpoint], allow_protocol_versions_increase=True)
    with pytest.raises(UnsupportedError, match=r"needs the feature v2Checkpoint .* lakelog.table\(spark"):
        view(topic)


@MODES
def test_a_table_with_comments_has_a_view(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1)
    schema = schema_of(Described)
    topic.export = replace(topic.export, schema=schema)
    topic.append((b"a", 1))
    topic.run_export()
    assert write_comments(topic.export) is not None
    topic.append((b"b", 2))
    assert [(row["_key"], row["number"]) for row in rows_of(view(topic, schema.text))] == [(b"a", 1), (b"b", 2)]
