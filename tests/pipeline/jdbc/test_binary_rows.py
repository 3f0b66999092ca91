"""What an export of Avro values writes into a database: whole tables, read by plain SQL."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

from schemas.event_schema import EventSchema
from schemas.writers.writer_schemas import SchemaFolder
from tests.pipeline.jdbc.shop import Shop
from tests.schemas.avro.avro_values import encoded, record, with_id

ITEM = record(
    ("day", {"type": "int", "logicalType": "date"}), ("raw", "bytes"), ("price", ["null", "double"]), name="Item"
)
ORDER = record(
    ("id", "string"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("at", {"type": "map", "values": {"type": "long", "logicalType": "timestamp-micros"}}),
    ("items", {"type": "map", "values": {"type": "array", "items": ITEM}}),
    ("note", ["null", "string", "Item"]),
)
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 1, UTC)


def test_records_maps_and_unions_are_json_in_a_database(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(ORDER))
    schema = EventSchema(f"{tmp_path}/7.avsc", writers=SchemaFolder.read(str(tmp_path))).loaded()
    (tmp_path / "key.avsc").write_text('{"type": "fixed", "name": "Key", "size": 1}')
    keys = EventSchema(f"{tmp_path}/key.avsc", of_key=True).loaded()
    shop.export = replace(shop.export, schema=schema, key_schema=keys)
    item = {"day": date(2026, 1, 31), "raw": b"\0\xff", "price": None}
    full = {
        "id": "a",
        "price": Decimal("-7.90"),
        "at": {"first": MOMENT},
        "items": {"": [item, {**item, "price": float("inf")}], "q\"'\\": []},
        "note": ("shop.Item", item),
    }
    plain = {**full, "at": {}, "items": {}, "note": "ä"}
    values = [with_id(7, encoded(ORDER, each)) for each in (full, plain)]
    shop.log.add(b"a", values[0][5:], headers=[("__value_schema_id", values[0][:5])])
    for key, value in [(b"b", values[1]), (b"b", values[1][:-1]), (b"c", with_id(8, values[0])), (b"dd", values[0])]:
        shop.log.add(key, value)
    done = shop.run()
    assert (done.records, done.written, done.dead_letters) == (5, 2, 3)
    shown = {"day": "2026-01-31", "raw": "AP8=", "price": None}
    rows = shop.rows("_key", "id", "price", "at", "items", "note", "_stale_offset")
    assert [tuple(json.loads(each) if each and each[0] in "{[" else each for each in row[3:6]) for row in rows] == [
        (
            {"first": "2026-01-31T12:00:00.000001+00:00"},
            {"": [shown, {**shown, "price": "inf"}], "q\"'\\": []},
            {"member0": None, "member1": shown},
        ),
        ({}, {}, {"member0": "ä", "member1": None}),
    ]
    assert [row[:3] + row[6:] for row in rows] == [
        (b"a", "a", Decimal("-7.90"), None),
        (b"b", "a", Decimal("-7.90"), 2),
    ]
    assert shop.rows("_key_value") == [(b"a",), (b"b",)]
    assert shop.letters("offset", "reason", "detail") == [
        (2, "undecodable", "too_short: the value ends before all of its fields"),
        (3, "undecodable", f"unknown_schema: the folder {tmp_path} has no schema with the id 8"),
        (4, "undecodable", "key: too_long: the value has more bytes than its schema describes"),
    ]
