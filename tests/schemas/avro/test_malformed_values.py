"""Tests that bytes that break Avro's rules never become a row. A reader that is written from Avro's specification, and
fastavro's own encoder, say which bytes break the rules."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from schemas.avro.avro_decoder import AvroDecoder
from tests.schemas.avro.avro_values import Schema, decode, encoded, record, with_id
from tests.schemas.avro.test_avro_resolution import folder

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
COLOUR: Schema = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
TOO_SHORT = "too_short: the value ends before all of its fields"
NUMBER = "malformed: a number has more bits than its type allows, or more bytes than it needs"
TRUTH = "malformed: a boolean is neither 0 nor 1"
INDEX = "malformed: a union or an enum has no type or symbol with the index in the value"
SIZE = "malformed: a length is negative, or a block of items has another length than the value says"
TIME = "out_of_range: a date is outside of the years 1 to 9999, or a time of day is outside of a day"
FORM = "malformed: a decimal has no bytes, or a uuid has another form than 8-4-4-4-12 hexadecimal digits"
ID = "123e4567-e89b-12d3-A456-426614174000"


def logical(underlying: str, kind: str, value: Any, **more: Any) -> tuple[Schema, bytes]:
    """A logical type, and a value of its underlying type."""
    return {"type": underlying, "logicalType": kind, **more}, encoded(underlying, value)


# Type, bytes of one value, and the reason; None if the bytes are correct.
VALUES: list[tuple[Schema, bytes, str | None]] = [
    ("boolean", b"\0", None), ("boolean", b"\2", TRUTH), ("boolean", b"\xff", TRUTH), ("boolean", b"", TOO_SHORT),
    ("int", b"\xff\xff\xff\xff\x0f", None), ("int", b"\xff\xff\xff\xff\x1f", NUMBER), ("int", b"\x80\0", NUMBER),
    ("int", b"\xff\xff\xff\xff\x8f\0", NUMBER), ("int", b"\x80", TOO_SHORT),
    ("long", b"\xff" * 9 + b"\x01", None), ("long", b"\xff" * 9 + b"\x02", NUMBER), ("long", b"\xff" * 10 + b"\0", NUMBER),
    ("long", b"\x80\x80\0", NUMBER), ("float", b"\0\0\0", TOO_SHORT), ("double", b"\0" * 7, TOO_SHORT),
    ("string", b"\1", SIZE), ("string", b"\4a", TOO_SHORT), ("string", b"\xfe" + b"\xff" * 8 + b"\x01", TOO_SHORT),
    ("bytes", b"\x81\0", NUMBER), ("bytes", b"\xff" * 9 + b"\x01", SIZE),
    ({"type": "fixed", "name": "F", "size": 3}, b"ab", TOO_SHORT),
    (COLOUR, b"\2", None), (COLOUR, b"\1", INDEX), (COLOUR, b"\4", INDEX), (COLOUR, b"\x80\x80\x80\x80\x20", NUMBER),
    (["null", "int"], b"\0", None), (["null", "int"], b"\1\2", INDEX), (["null", "int"], b"\3\2", INDEX),
    (["null", "int"], b"\4", INDEX), (["null", "int"], b"", TOO_SHORT),
    ({"type": "array", "items": "int"}, b"\1\2\2\0", None), ({"type": "array", "items": "int"}, b"\1\4\2\0", SIZE),
    ({"type": "array", "items": "int"}, b"\1\3\2\0", SIZE), ({"type": "array", "items": "int"}, b"\3\2\2\2\0", SIZE),
    ({"type": "array", "items": "int"}, b"\1\x40\2\0", TOO_SHORT), ({"type": "array", "items": "int"}, b"\4\2", TOO_SHORT),
    ({"type": "array", "items": "int"}, b"\2\2", TOO_SHORT),
    ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01" + b"\2\2\0", SIZE),
    ({"type": "map", "values": "int"}, b"\1\6\2a\2\0", None), ({"type": "map", "values": "int"}, b"\2\1\2\0", SIZE),
    ({"type": "map", "values": "int"}, b"\1\4\2a\2\0", SIZE),
    *((*logical("int", "date", day), None) for day in (-719_162, 0, 2_932_896)),
    *((*logical("int", "date", day), TIME) for day in (-719_163, 2_932_897, 2**31 - 1, -(2**31))),
    *((*logical("int", "time-millis", time), None) for time in (0, 86_399_999)),
    *((*logical("int", "time-millis", time), TIME) for time in (-1, 86_400_000)),
    *((*logical("long", "time-micros", time), None) for time in (0, 86_399_999_999)),
    *((*logical("long", "time-micros", time), TIME) for time in (-1, 86_400_000_000)),
    (*logical("bytes", "decimal", b"\0", precision=3), None), (*logical("bytes", "decimal", b"", precision=3), FORM),
    (["null", logical("bytes", "decimal", b"", precision=3)[0]], b"\2\0", FORM), (*logical("string", "uuid", ID), None),
    *((*logical("string", "uuid", text), FORM) for text in ("", "{" + ID + "}", ID.replace("-", ""), "urn:uuid:" + ID)),
    *((*logical("string", "uuid", ID.replace(*pair)), FORM) for pair in (("3e", "-3"), ("e4", "_4"), ("42", "g2"))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "reason"), VALUES, ids=range(len(VALUES)))
def test_bytes_that_break_a_rule_of_avro_have_a_reason_and_no_row(
    tmp_path: Path, kind: Schema, value: bytes, reason: str | None
) -> None:
    schema = record(("first", "int"), ("a", kind))
    writers = folder(tmp_path, schema)
    for found in (decode(schema, b"\2" + value), decode(schema, with_id(1, b"\2" + value), writers=writers)):
        assert [error.reason for error in found.errors] == ([reason] if reason else [])
        (row,) = found.columns.to_pylist()
        assert row["first"] == (None if reason else 1)


def test_a_field_that_the_reader_ignores_is_checked_too(tmp_path: Path) -> None:
    written = record(("a", "int"), ("b", "boolean"), ("c", ["null", {"type": "array", "items": "long"}]))
    values = [encoded(written, {"a": 1, "b": True, "c": [5]}), b"\2\2\0", b"\2\1\3\0", b"\2\1\2\2\x80\0\0"]
    found = decode(record(("a", "int")), *(with_id(1, each) for each in values), writers=folder(tmp_path, written))
    assert found.columns.to_pylist() == [{"a": 1}, {"a": None}, {"a": None}, {"a": None}]
    assert [(each.row, each.reason) for each in found.errors] == [(1, TRUTH), (2, INDEX), (3, NUMBER)]


def test_each_value_of_a_batch_is_checked_with_the_schema_of_its_own_id(tmp_path: Path) -> None:
    writers = folder(tmp_path, record(("a", "int")), record(("a", "boolean"), name="shop.Other"), record(("a", "long")))
    reader = record(("a", "long"), name="shop.Order")
    values = [
        with_id(3, b"\2"),
        None,
        with_id(1, b"\4"),
        b"x",
        with_id(3, b"\x80\0"),
        with_id(1, b"\6\0"),
        with_id(9, b""),
    ]
    batch = pa.array([with_id(1, b"\2"), *values, with_id(1, b"\2")], pa.binary())
    decoder = AvroDecoder(json.dumps(reader), writers)
    for each in (batch.slice(1, len(values)), pa.array(values, pa.binary())):
        found = decoder.decode(each)
        assert found.columns.to_pylist() == [{"a": number} for number in (1, None, 2, None, None, None, None)]
        assert [(error.row, error.reason.partition(":")[0]) for error in found.errors] == [
            (3, "no_schema_id"), (4, "malformed"), (5, "too_long"), (6, "unknown_schema"),
        ]  # fmt: skip
    for empty in (pa.array([], pa.binary()), pa.array([None, None], pa.binary())):
        assert decoder.decode(empty).columns.to_pylist() == [{"a": None}] * len(empty)


NUMBERS = [
    ("int", "time-millis", [-1, 86_400_000], "out_of_range: a time of day is outside of a day"),
    ("long", "time-micros", [-1, 86_400_000_000], "out_of_range: a time of day is outside of a day"),
    ("int", "date", [-719_163, 2_932_897], "out_of_range: a date or time is outside of the years 1 to 9999"),
    ("bytes", "decimal", [b""], "malformed: a decimal has no bytes"),
]


@pytest.mark.parametrize(("plain", "kind", "values", "reason"), NUMBERS, ids=[each[1] for each in NUMBERS])
def test_a_logical_type_that_only_the_reader_has_limits_the_value_too(
    tmp_path: Path, plain: str, kind: str, values: list[Any], reason: str
) -> None:
    written, wanted = (record(("a", each)) for each in (plain, logical(plain, kind, values[0], precision=3)[0]))
    given = [with_id(1, encoded(written, {"a": value})) for value in values]
    found = decode(wanted, *given, writers=folder(tmp_path, written))
    assert [error.reason for error in found.errors] == [reason] * len(values)
    assert found.columns.to_pylist() == [{"a": None}] * len(values)


# --- Random bytes -------------------------------------------------------------------------------------------------


class Wrong(Exception):  # noqa: N818 - a verdict
    pass


def number_at(data: bytes, at: int, bits: int) -> tuple[int, int]:
    end = at
    while data[end : end + 1] >= b"\x80":
        end += 1
    given = data[at : end + 1]
    value = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(given))
    least = max(1, -(-value.bit_length() // 7))
    if end >= len(data) or value.bit_length() > bits or len(given) != least:
        raise Wrong
    return (value // 2 if value % 2 == 0 else -(value + 1) // 2), end + 1


def end_of(schema: Any, data: bytes, at: int) -> int:
    """The position after the value at a position, as the specification of Avro 1.12 describes the bytes."""
    kind = "union" if isinstance(schema, list) else schema["type"] if isinstance(schema, dict) else schema
    if kind in ("int", "long"):
        return number_at(data, at, 32 if kind == "int" else 64)[1]
    if kind in ("string", "bytes"):
        length, at = number_at(data, at, 64)
        return past(data, at, length)
    if kind == "record":
        for field in schema["fields"]:
            at = end_of(field["type"], data, at)
        return at
    if kind in ("union", "enum"):
        index, at = number_at(data, at, 32 if kind == "enum" else 64)
        if not 0 <= index < len(schema if kind == "union" else schema["symbols"]):
            raise Wrong
        return end_of(schema[index], data, at) if kind == "union" else at
    if kind in ("array", "map"):
        while True:
            count, at = number_at(data, at, 64)
            if count == 0:
                return at
            size = None
            if count < 0:
                size, at = number_at(data, at, 64)
                past(data, at, size)
            start = at
            for _ in range(abs(count)):
                at = end_of("string", data, at) if kind == "map" else at
                at = end_of(schema["items" if kind == "array" else "values"], data, at)
            if size is not None and at - start != size:
                raise Wrong
    if kind == "boolean" and data[at : at + 1] not in (b"\0", b"\1"):
        raise Wrong
    return past(data, at, {"null": 0, "boolean": 1, "float": 4, "double": 8}.get(kind) or schema_size(schema))


def schema_size(schema: Any) -> int:
    return int(schema["size"]) if isinstance(schema, dict) else 0


def past(data: bytes, at: int, length: int) -> int:
    if not 0 <= length <= len(data) - at:
        raise Wrong
    return at + length


def is_correct(schema: Any, data: bytes) -> bool:
    try:
        return end_of(schema, data, 0) == len(data)
    except Wrong:
        return False


ITEM = record(("n", "int"), ("ok", "boolean"), ("c", ["null", COLOUR, "string"]), name="Item")
PLAIN = record(
    ("b", "boolean"), ("i", "int"), ("l", "long"), ("d", "double"), ("s", "bytes"), ("u", ["null", "long"]),
    ("f", {"type": "fixed", "name": "F", "size": 3}), ("e", COLOUR), ("v", ["null", "bytes", "double"]),
)  # fmt: skip
NESTED = record(
    ("i", "int"), ("a", {"type": "array", "items": ITEM}),
    ("m", {"type": "map", "values": {"type": "array", "items": ["null", "int"]}}), ("l", "long"),
)  # fmt: skip


def value_of(kind: Any, chance: random.Random) -> Any:
    if kind is PLAIN:
        return {
            "b": chance.random() < 0.5, "i": chance.randrange(-(2**31), 2**31) >> chance.randrange(32),
            "l": chance.randrange(-(2**63), 2**63) >> chance.randrange(64), "d": chance.random(),
            "s": chance.randbytes(chance.randrange(4)), "u": chance.choice([None, 5, -1]), "f": b"abc",
            "e": chance.choice(["RED", "BLUE"]), "v": chance.choice([None, b"x", 0.5]),
        }  # fmt: skip
    items = [
        {"n": number, "ok": number % 2 == 0, "c": chance.choice([None, "RED", "x"])}
        for number in range(chance.randrange(4))
    ]
    return {"i": 7, "a": items, "m": {"k" * count: [None, count] for count in range(chance.randrange(3))}, "l": 1}


def changed(value: bytes, chance: random.Random) -> bytes:
    """A value with one to three wrong places."""
    data = bytearray(value)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + 1]
        elif kind == 2:
            data[at:at] = chance.choice([b"\0", b"\1", b"\2", b"\x80", b"\xff", b"\x80\0", b"\xff" * 9 + b"\1"])
        elif kind == 3 and at < len(data):
            data[at : at + 1] = bytes([data[at] | 0x80, 0])
        elif kind == 4 and at < len(data):
            data[at] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
        else:
            data[at:] = b""
    return bytes(data)


@pytest.mark.parametrize("schema", [PLAIN, NESTED], ids=["plain", "nested"])
def test_changed_bytes_become_a_row_only_if_they_are_correct_avro(schema: Any) -> None:
    print(f"SEED={SEED}")
    chance = random.Random(SEED)
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    values = [changed(encoded(schema, value_of(schema, chance)), chance) for _ in range(20_000)]
    found = decode(schema, *values)
    reasons = {error.row: error.reason for error in found.errors}
    wrong = {row for row, reason in reasons.items() if not reason.startswith("not_utf8")}
    assert wrong == {row for row, value in enumerate(values) if not is_correct(schema, value)}
    assert 1_000 < len(wrong) < 19_000
    if schema is not PLAIN:
        return  # the items of an array may be written as blocks in many ways
    for row, value in enumerate(values):
        if row not in reasons:
            again = io.BytesIO()
            fastavro.schemaless_writer(again, parsed, fastavro.schemaless_reader(io.BytesIO(value), parsed, None))
            assert again.getvalue() == value
