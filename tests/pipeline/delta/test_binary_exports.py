"""Exports of values in Avro and Protobuf with Spark: the same tables as without Spark, and columns that change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.table_schema import as_exported
from schemas.event_schema import EventSchema
from schemas.writers.registry import SchemaRegistry
from schemas.writers.writer_schemas import SchemaFolder, WriterSchemas
from tests.pipeline.delta.order_log import Log, rows, run, run_small
from tests.roots.delta_tables import table_at
from tests.schemas.avro.avro_values import Schema, encoded, record, with_id
from tests.schemas.protobuf import messages
from tests.schemas.writers.schema_registry import Registry, schema_registry
from tests.stores import root_at

LEG = record(("distance", "int"), name="Leg")
EVERYTHING = record(
    ("flag", "boolean"),
    ("whole", "long"),
    ("real", "double"),
    ("raw", "bytes"),
    ("text", "string"),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED"]}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    ("legs", {"type": "array", "items": LEG}),
    ("stops", {"type": "map", "values": ["null", "Leg"]}),
    ("either", ["null", "string", "Leg"]),
    ("perhaps", ["null", "Leg"]),
)
FULL = {
    "flag": True,
    "whole": -(2**63),
    "real": -0.0,
    "raw": b"\xff\0",
    "text": "ä\0",
    "colour": "RED",
    "day": date(1, 1, 1),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "price": Decimal("-1234567890123456.7890"),
    "legs": [{"distance": 1}, {"distance": 2}],
    "stops": {"b": {"distance": 3}, "a": None},
    "either": ("shop.Leg", {"distance": 4}),
    "perhaps": {"distance": 5},
}
GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
EMPTY = {**FULL, "legs": [], "stops": {}, "either": None, "perhaps": None}


@pytest.fixture
def server() -> Iterator[Registry]:
    with schema_registry(("reader", "sesame")) as found:
        yield found


def avro(folder: Path, schema: Schema, writers: WriterSchemas | None = None) -> EventSchema:
    (folder / "order.avsc").write_text(json.dumps(schema))
    return EventSchema(f"{folder}/order.avsc", writers=writers).loaded()


def one_byte(folder: Path) -> EventSchema:
    """The schema of keys of one byte."""
    (folder / "key.avsc").write_text(json.dumps({"type": "fixed", "name": "Key", "size": 1}))
    return EventSchema(f"{folder}/key.avsc", of_key=True).loaded()


def by_offset(path: str) -> list[dict[str, Any]]:
    return sorted(rows(path), key=lambda row: (row["_partition"], row["_offset"]))


def compare_both_ways(
    log: Log,
    export: Export,
    folder: Path,
    good: list[bytes],
    bad: bytes,
    headers: Mapping[int, list[tuple[str, bytes]]] = {},
) -> list[dict[str, Any]]:
    """Export the values without Spark and with Spark. headers: by offset."""
    for number, value in enumerate([*good, bad, *good, None]):
        log.add(b"%d" % (number % 3), value, headers=headers.get(number, ()))
    log.add(None, good[0])
    log.add(b"no key of one byte", good[0])
    export = replace(export, key_schema=one_byte(folder))
    done = run_small(log, export)
    other = replace(export, table=root_at(folder / "by Spark"), dead_letters=root_at(folder / "their dead letters"))
    log.with_spark = True
    by_spark = run(log, other)
    assert done is not None
    assert replace(done, plan=by_spark.plan, table_version=by_spark.table_version) == by_spark
    assert by_offset(export.table) == by_offset(other.table)
    assert table_at(export.table).schema().to_json() == table_at(other.table).schema().to_json()
    letters = [
        sorted(({**row, "table_id": None} for row in rows(each.dead_letters)), key=lambda row: row["offset"])
        for each in (export, other)
    ]
    assert letters[0] == letters[1]
    assert letters[0][-1]["detail"] == "key: too_long: the value has more bytes than its schema describes"
    found = by_offset(export.table)
    assert [row["_key_value"] for row in found] == [row["_key"] for row in found]
    return found


@pytest.mark.spark
def test_both_ways_make_the_same_table_of_avro(log: Log, upsert: Export, server: Registry, tmp_path: Path) -> None:
    number = server.add(json.dumps(EVERYTHING), "orders-value")
    schema = avro(tmp_path, EVERYTHING, SchemaRegistry.at(server.url, "reader", "sesame"))
    server.guids[str(GUID)] = number
    good = [with_id(number, encoded(EVERYTHING, FULL)), encoded(EVERYTHING, EMPTY)]
    headers = {each: [("__value_schema_id", b"\1" + GUID.bytes)] for each in (1, 4)}
    found = compare_both_ways(log, replace(upsert, schema=schema), tmp_path, good, good[0][:-1], headers)
    fields = [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]
    stops = [("b", {"distance": 3}), ("a", None)]
    full = {**FULL, "stops": stops, "either": {"member0": None, "member1": {"distance": 4}}}
    assert fields == [full, {**EMPTY, "stops": []}]
    assert [(row["_key"], row["_offset"], (row["_stale_since"] or {}).get("offset")) for row in found] == [
        (b"0", 3, None),
        (b"1", 4, None),
    ]


@pytest.mark.spark
def test_both_ways_make_the_same_table_of_protobuf(log: Log, upsert: Export, tmp_path: Path) -> None:
    shop = messages.file()
    leg, order = shop.message_type.add(name="Leg"), shop.message_type.add(name="Order")
    messages.add_field(leg, "distance", 1, "int32")
    messages.add_field(order, "amount", 1, "uint64")
    messages.add_field(order, "legs", 2, "repeated .shop.Leg")
    messages.add_map(order, "stops", 3, "bool", ".shop.Leg", "shop")
    messages.add_field(order, "at", 4, ".google.protobuf.Timestamp")
    content = messages.descriptors(shop)
    (tmp_path / "shop.desc").write_bytes(content)
    schema = EventSchema(f"{tmp_path}/shop.desc:shop.Order").loaded()
    export = replace(upsert, mode=ExportMode.APPEND, schema=schema)
    (tmp_path / "shop.desc").unlink()  # executors get the content
    full = {"amount": 2**64 - 1, "legs": [{"distance": 1}], "stops": {True: {}, False: {}}, "at": {"seconds": 1}}
    good = [messages.encoded(content, "shop.Order", **each) for each in (full, {})]
    found = compare_both_ways(log, export, tmp_path, good, b"\xff")
    assert {name: value for name, value in found[0].items() if not name.startswith("_")} == {
        "amount": Decimal(2**64 - 1),
        "legs": [{"distance": 1}],
        "stops": [("false", {"distance": 0}), ("true", {"distance": 0})],
        "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    }


@pytest.mark.spark
def test_a_table_grows_with_the_schema_also_inside_maps(log: Log, upsert: Export, tmp_path: Path) -> None:
    before = record(("stops", {"type": "map", "values": LEG}), ("counts", {"type": "map", "values": "int"}))
    wide = record(("distance", "double"), ("stop", ["null", "string"], None), name="Leg")
    after = record(("stops", {"type": "map", "values": wide}), ("counts", {"type": "map", "values": "double"}))
    for number, schema in enumerate((before, after), 1):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    writers = SchemaFolder.read(str(tmp_path))
    one = with_id(1, encoded(before, {"stops": {"x": {"distance": 1}}, "counts": {"n": 2}}))
    log.add(b"a", one)
    log.add(b"b", one)
    export = replace(upsert, schema=avro(tmp_path, before, writers))
    assert run_small(log, export) is not None
    log.add(b"b", with_id(2, encoded(after, {"stops": {"x": {"distance": 0.5, "stop": "y"}}, "counts": {"n": 0.5}})))
    told: list[str] = []
    export = replace(export, schema=avro(tmp_path, after, writers))
    viewed = as_exported(log.spark.read.format("delta").load(export.table), export).select("stops", "counts")
    assert [row.asDict(recursive=True) for row in viewed.collect()] == [
        {"stops": {"x": {"distance": 1.0, "stop": None}}, "counts": {"n": 2.0}}
    ] * 2
    run(log, export, notify=told.append)
    assert [(row["stops"], row["counts"]) for row in by_offset(export.table)] == [
        ([("x", {"distance": 1.0, "stop": None})], [("n", 2.0)]),
        ([("x", {"distance": 0.5, "stop": "y"})], [("n", 0.5)]),
    ]
    widened = (
        "column stops{}.distance is widened from bigint to double, column counts{} is widened from bigint to double"
    )
    assert told == [f"table {export.table}: {widened}: 2 rows are rewritten, in one commit"]
    log.add(b"a", one)
    assert run_small(log, export) is not None, "the table is as an export without Spark would make it"
    log.add(b"b", one)
    run(log, replace(export, key_schema=one_byte(tmp_path)))
    assert [(row["_key"], row["_key_value"]) for row in by_offset(export.table)] == [(b"a", None), (b"b", b"b")]


@pytest.mark.spark
def test_a_bigint_inside_a_map_that_loses_digits_stops_the_export(log: Log, upsert: Export, tmp_path: Path) -> None:
    before, after = (record(("counts", {"type": "map", "values": each})) for each in ("long", "double"))
    log.add(b"a", encoded(before, {"counts": {"n": 1, "m": 2**53 + 1}}))
    export = replace(upsert, schema=avro(tmp_path, before))
    assert run_small(log, export) is not None
    log.add(b"b", encoded(after, {"counts": {}}))
    with pytest.raises(Exception, match=r"column counts\{\} is bigint.*1 row of 1 would lose digits"):
        run(log, replace(export, schema=avro(tmp_path, after)))
