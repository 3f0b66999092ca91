"""Tests that the column `_extra` has each field of an Avro value that only its writer's schema has."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas.avro.avro_decoder import AvroDecoder
from schemas.writers.writer_schemas import SchemaFolder
from tests.schemas.avro.avro_values import Schema, encoded, of_branch, record, with_id
from tests.schemas.unknown_fields.kept_fields import kept_fields

LONG_TIME: Schema = {"type": "long", "logicalType": "timestamp-micros"}
NANOS: Schema = {"type": "long", "logicalType": "timestamp-nanos"}
LOCAL: Schema = {"type": "long", "logicalType": "local-timestamp-millis"}
DECIMAL: Schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
SMALL: Schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 8}
WIDE: Schema = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}
UUID: Schema = {"type": "string", "logicalType": "uuid"}
DAY: Schema = {"type": "int", "logicalType": "date"}
TIME: Schema = {"type": "int", "logicalType": "time-millis"}
FIXED: Schema = {"type": "fixed", "name": "Four", "size": 4}
DURATION: Schema = {"type": "fixed", "name": "Duration", "size": 12, "logicalType": "duration"}
COLOUR: Schema = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
READER = record(("id", "long"))
LONG_NUMBER = 10**40 + 12


def extras(tmp_path: Path, reader: Schema, writer: Schema, *values: bytes) -> list[str | None]:
    (tmp_path / "1.avsc").write_text(json.dumps(writer))
    folder = SchemaFolder.read(str(tmp_path))
    kept, plain = (AvroDecoder(json.dumps(reader), folder, has_extra=has_extra) for has_extra in (True, False))
    return kept_fields(kept, plain, [with_id(1, each) for each in values])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("null", None, "null"),
        ("boolean", True, "true"),
        ("int", -3, "-3"),
        ("long", 2**63 - 1, "9223372036854775807"),
        ("float", 0.5, "0.5"),
        ("double", 0.1, "0.1"),
        ("double", float("nan"), '"NaN"'),
        ("double", float("-inf"), '"-Infinity"'),
        ("bytes", b"\0\xff", '"AP8="'),
        ("string", 'ä"\0', '"ä\\"\\u0000"'),
        (FIXED, b"abcd", '"YWJjZA=="'),
        (DURATION, bytes(12), '"AAAAAAAAAAAAAAAA"'),
        (COLOUR, "GREEN", '"GREEN"'),
        (UUID, "550E8400-E29B-41D4-A716-446655440000", '"550e8400-e29b-41d4-a716-446655440000"'),
        (["null", {"type": "array", "items": "int"}], [1, 2], "[1,2]"),
        ({"type": "map", "values": COLOUR}, {"b": "RED", "a": "GREEN"}, '{"a":"GREEN","b":"RED"}'),
        (record(("b", "int"), ("a", ["null", "string"]), name="In"), {"b": 1, "a": None}, '{"a":null,"b":1}'),
    ],
)  # fmt: skip
def test_a_field_of_the_writer_is_kept(tmp_path: Path, kind: Schema, value: Any, expected: str) -> None:
    writer = record(("x", kind), ("id", "int"), ("y", ["null", "long"]))
    data = encoded("int", 7) + encoded("long", 1)  # a union has the index of its branch before the value
    one = encoded(kind, value)
    assert extras(tmp_path, READER, writer, one + data + encoded("long", 5)) == [f'{{"x":{expected},"y":5}}']


@pytest.mark.parametrize(
    ("kind", "written", "value", "expected"),
    [
        (LONG_TIME, "long", 1_500_000, '"1970-01-01T00:00:01.500000Z"'),
        (LONG_TIME, "long", -(2**62), "-4611686018427387904"),
        (NANOS, "long", 1_999, '"1970-01-01T00:00:00.000001Z"'),
        (LOCAL, "long", 1_500, '"1970-01-01T00:00:01.500000"'),
        (LOCAL, "long", 2**62, "4611686018427387904"),
        (DAY, "int", -719_162, '"0001-01-01"'),
        (TIME, "int", 1_000, "1000000"),
        (DECIMAL, "bytes", b"\xff", '"-0.01"'),
        (SMALL, "bytes", b"\x00", '"0.00000000"'),
        (SMALL, "bytes", b"\x02", '"0.00000002"'),
        (DECIMAL, "bytes", LONG_NUMBER.to_bytes(20), f'"{LONG_NUMBER // 100}.{LONG_NUMBER % 100}"'),
        # More digits than Lakelog reads: the bytes.
        (DECIMAL, "bytes", bytes([1] * 500), json.dumps(base64.b64encode(bytes([1] * 500)).decode())),
        (WIDE, "bytes", b"\x01", '"AQ=="'),
    ],
)  # fmt: skip
def test_a_logical_type_has_the_form_of_its_column(
    tmp_path: Path, kind: Schema, written: Schema, value: Any, expected: str
) -> None:
    """What its column could not hold stays as it is in the value."""
    (found,) = extras(
        tmp_path, READER, record(("id", "long"), ("x", kind)), encoded("long", 1) + encoded(written, value)
    )
    assert found == f'{{"x":{expected}}}'


def test_a_branch_of_a_union_is_known_by_its_index(tmp_path: Path) -> None:
    """The two numbers and the two texts are the same objects of Python."""
    union: Schema = ["int", LONG_TIME, "null", "string", UUID, record(("n", "int"), name="In"), FIXED, COLOUR]
    writer = record(("x", union), ("id", "int"))
    branches: list[tuple[int, Schema, Any, str | None]] = [
        (0, "int", 5, "5"),
        (1, "long", 5, '"1970-01-01T00:00:00.000005Z"'),
        (2, "null", None, "null"),
        (3, "string", "550E8400-E29B-41D4-A716-446655440000", '"550E8400-E29B-41D4-A716-446655440000"'),
        (4, "string", "550E8400-E29B-41D4-A716-446655440000", '"550e8400-e29b-41d4-a716-446655440000"'),
        (5, "int", 9, '{"n":9}'),
        (6, FIXED, b"abcd", '"YWJjZA=="'),
        (7, "int", 1, '"GREEN"'),
    ]
    values = [of_branch(number, kind, value) + encoded("int", 1) for number, kind, value, _ in branches]
    assert extras(tmp_path, READER, writer, *values) == [f'{{"x":{text}}}' for *_, text in branches]


def test_fields_inside_known_fields_are_kept_at_their_place(tmp_path: Path) -> None:
    def order(leg: Schema) -> Schema:
        return record(
            ("id", "int"),
            ("legs", {"type": "array", "items": leg}),
            ("marks", {"type": "map", "values": ["null", "Leg"]}),
            ("same", "Leg"),
            ("union", ["string", "Leg", {"type": "array", "items": "Leg"}]),
        )

    writer = order(record(("n", "int"), ("gone", "string"), ("old", "int"), name="Leg"))
    reader = order(record(("n", "long"), name="Leg"))
    reader["fields"][1]["type"]["items"]["fields"].append(  # type: ignore[call-overload,index,union-attr]
        {"name": "new", "aliases": ["old"], "type": "int"}
    )
    leg = {"n": 1, "gone": "x", "old": 2}
    values = [
        {"id": 1, "legs": [leg], "marks": {"a": None, "b": leg}, "same": leg, "union": leg},
        {"id": 1, "legs": [], "marks": {}, "same": leg, "union": [leg, leg]},
        {"id": 1, "legs": [], "marks": {}, "same": leg, "union": "text"},
    ]
    gone = '{"gone":"x"}'
    assert extras(tmp_path, reader, writer, *(encoded(writer, each) for each in values)) == [
        f'{{"legs":[{gone}],"marks":{{"b":{gone}}},"same":{gone},"union":{gone}}}',
        f'{{"same":{gone},"union":[{gone},{gone}]}}',
        f'{{"same":{gone}}}',
    ]


def test_no_record_becomes_a_dead_letter_because_of_an_unknown_field(tmp_path: Path) -> None:
    """The text of an unknown field need not be UTF-8, as without the column."""
    writer = record(("id", "int"), ("x", "string"))
    value = encoded("int", 1) + encoded("bytes", b"a\xff")
    assert extras(tmp_path, READER, writer, value) == ['{"x":"a�"}']


def test_a_value_of_the_same_schema_has_no_unknown_fields(tmp_path: Path) -> None:
    assert extras(tmp_path, READER, READER, encoded("long", 1)) == [None]
    assert extras(tmp_path, READER, record(("id", "int")), encoded("int", 1)) == [None]
    plain = AvroDecoder(json.dumps(READER), None, has_extra=True)
    assert plain.decode(pa.array([encoded("long", 1), None])).columns.to_pylist() == [
        {"id": 1, "_extra": None},
        {"id": None, "_extra": None},
    ]


def test_the_outermost_type_of_the_writer_may_be_a_union(tmp_path: Path) -> None:
    """A named type may be used several times in it."""
    leg = record(("n", "int"), ("x", ["null", "string"]), name="Leg")
    writer: Schema = [
        "null",
        record(("x", "int"), ("id", "int"), ("legs", {"type": "array", "items": leg}), ("leg", "Leg")),
    ]
    fields = [
        of_branch(1, "int", 5), encoded("int", 1), encoded({"type": "array", "items": leg}, [{"n": 1, "x": "a"}]),
        encoded(leg, {"n": 2, "x": None}),
    ]  # fmt: skip
    assert extras(tmp_path, READER, writer, b"".join(fields)) == [
        '{"leg":{"n":2,"x":null},"legs":[{"n":1,"x":"a"}],"x":5}'
    ]
