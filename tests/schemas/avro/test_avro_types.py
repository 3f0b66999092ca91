"""Tests that a value of each Avro type becomes the right column, compared with fastavro's own encoder."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from schemas.avro.avro_decoder import AvroDecoder
from schemas.event_schema import EventSchema
from schemas.schema_errors import UnknownSchemaError
from tests.schemas.avro.avro_values import Schema, by_name, decode, encoded, of_branch, record

ITEM = record(("sku", "string"), ("count", "int"), name="Item")
COLOUR: Schema = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
MILLIS = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
ITEM_TYPE = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)])
UTC_MOMENT = pa.timestamp("us", tz="UTC")


def logical(underlying: str, kind: str, **more: Any) -> Schema:
    return {"type": underlying, "logicalType": kind, **more}


# Name, Avro type, Arrow type, and pairs of the value for fastavro and the value of the column.
TYPES: list[tuple[str, Schema, pa.DataType, list[tuple[Any, Any]]]] = [
    ("boolean", "boolean", pa.bool_(), [(True, True), (False, False)]),
    ("int", "int", pa.int64(), [(-(2**31), -(2**31)), (2**31 - 1, 2**31 - 1)]),
    ("long", "long", pa.int64(), [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)]),
    ("float", "float", pa.float64(), [(0.5, 0.5), (-0.0, -0.0), (float("inf"), float("inf"))]),
    ("double", "double", pa.float64(), [(0.1, 0.1), (1e308, 1e308)]),
    ("bytes", "bytes", pa.binary(), [(b"", b""), (b"\xff\0", b"\xff\0")]),
    ("string", "string", pa.string(), [("", ""), ("ä\0", "ä\0")]),
    ("fixed", {"type": "fixed", "name": "F", "size": 2}, pa.binary(), [(b"\xff\0", b"\xff\0")]),
    ("enum", COLOUR, pa.string(), [("RED", "RED"), ("BLUE", "BLUE")]),
    ("record", ITEM, ITEM_TYPE, [({"sku": "a", "count": 1},) * 2]),
    (
        "array",
        {"type": "array", "items": ["null", "long"]},
        pa.list_(pa.field("element", pa.int64())),
        [([], []), ([1, None], [1, None])],
    ),
    (
        "array of records",
        {"type": "array", "items": ITEM},
        pa.list_(pa.field("element", ITEM_TYPE, nullable=False)),
        [([{"sku": "a", "count": 1}],) * 2],
    ),
    (
        "map",
        {"type": "map", "values": "double"},
        pa.map_(pa.string(), pa.float64()),
        [({}, []), ({"b": 1.5, "a": 2.5}, [("b", 1.5), ("a", 2.5)])],
    ),
    (
        "map of arrays of dates",
        {"type": "map", "values": {"type": "array", "items": logical("int", "date")}},
        pa.map_(pa.string(), pa.list_(pa.field("element", pa.date32(), nullable=False))),
        [({"x": [date(1, 1, 1), date(9999, 12, 31)]}, [("x", [date(1, 1, 1), date(9999, 12, 31)])])],
    ),
    ("date", logical("int", "date"), pa.date32(), [(date(1969, 12, 31), date(1969, 12, 31))]),
    ("time-millis", logical("int", "time-millis"), pa.int64(), [(time(23, 59, 59, 999000), 86_399_999_000)]),
    ("time-micros", logical("long", "time-micros"), pa.int64(), [(time(0, 0, 1, 1), 1_000_001)]),
    ("timestamp-millis", logical("long", "timestamp-millis"), UTC_MOMENT, [(MILLIS, MILLIS)]),
    ("timestamp-micros", logical("long", "timestamp-micros"), UTC_MOMENT, [(MOMENT, MOMENT)]),
    # fastavro has no type with nanoseconds, so the values are written as numbers.
    (
        "timestamp-nanos",
        logical("long", "timestamp-nanos"),
        UTC_MOMENT,
        [(1_999, datetime(1970, 1, 1, 0, 0, 0, 1, UTC))],
    ),
    (
        "local-timestamp-micros",
        logical("long", "local-timestamp-micros"),
        pa.string(),
        [(MOMENT.replace(tzinfo=None), "2026-01-31T12:00:00.123456")],
    ),
    (
        "local-timestamp-nanos",
        logical("long", "local-timestamp-nanos"),
        pa.string(),
        [(-1, "1969-12-31T23:59:59.999999")],
    ),
    ("uuid", logical("string", "uuid"), pa.string(), [(UUID(int=7), str(UUID(int=7)))]),
    (
        "uuid in 16 bytes",
        logical("fixed", "uuid", name="U", size=16),
        pa.string(),
        [(UUID(int=7).bytes, str(UUID(int=7)))],
    ),
    (
        "decimal in bytes",
        logical("bytes", "decimal", precision=38, scale=2),
        pa.decimal128(38, 2),
        [(Decimal("-1.50"), Decimal("-1.50")), (Decimal("9" * 36 + ".99"), Decimal("9" * 36 + ".99"))],
    ),
    (
        "decimal in fixed",
        logical("fixed", "decimal", name="D", size=8, precision=9),
        pa.decimal128(9, 0),
        [(Decimal(-7), Decimal(-7))],
    ),
    ("unknown logical type", logical("string", "colour"), pa.string(), [("red", "red")]),
    ("duration", logical("fixed", "duration", name="L", size=12), pa.binary(), [(b"123456789012",) * 2]),
]


@pytest.mark.parametrize(("kind", "pairs"), [(each[1:3], each[3]) for each in TYPES], ids=[each[0] for each in TYPES])
def test_each_type_has_a_column(kind: tuple[Schema, pa.DataType], pairs: list[tuple[Any, Any]]) -> None:
    avro, arrow = kind
    schema = record(("a", avro), ("b", ["null", by_name(avro)]))
    found = decode(
        schema,
        *(encoded(avro, value) + of_branch(1, avro, value) for value, _ in pairs),
        encoded(avro, pairs[0][0]) + of_branch(0, "null", None),
        None,
    )
    wanted = [value for _, value in pairs]
    columns = {"a": [*wanted, wanted[0], None], "b": [*wanted, None, None]}
    assert found.errors == []
    assert found.columns == pa.record_batch(
        [pa.array(values, arrow) for values in columns.values()], schema=pa.schema([("a", arrow), ("b", arrow)])
    )
    assert AvroDecoder(json.dumps(schema), None).columns == pa.schema(
        [pa.field("a", arrow, nullable=False), pa.field("b", arrow)]
    )


BRANCHES: list[tuple[Schema, Any, Any]] = [
    ("null", None, None),
    ("int", 7, ("member0", 7)),
    ("string", "red", ("member1", "red")),
    (ITEM, {"sku": "a", "count": 1}, ("member2", {"sku": "a", "count": 1})),
    (COLOUR, "RED", ("member3", "RED")),
    ("long", 2**40, ("member0", 2**40)),
    ("double", 0.5, ("member5", 0.5)),
    ("boolean", True, ("member6", True)),
    ({"type": "map", "values": "int"}, {"x": 1}, ("member7", [("x", 1)])),
    ({"type": "array", "items": "int"}, [1], ("member8", [1])),
    ("bytes", b"red", ("member9", b"red")),
    ({"type": "fixed", "name": "F", "size": 3}, b"red", ("member10", b"red")),
]


def test_a_union_of_several_types_is_a_struct_with_a_member_for_each_branch() -> None:
    schema = record(("u", [branch for branch, _, _ in BRANCHES]))
    found = decode(schema, *(of_branch(number, each, value) for number, (each, value, _) in enumerate(BRANCHES)))
    members = [f"member{number}" for number in range(len(BRANCHES) - 1) if number != 4]  # int and long are one member
    assert found.errors == []
    assert [each.name for each in found.columns.schema.field("u").type] == members
    assert found.columns["u"].to_pylist() == [
        None if wanted is None else dict.fromkeys(members) | dict([wanted]) for _, _, wanted in BRANCHES
    ]


def test_a_union_of_int_and_long_is_a_number() -> None:
    schema = record(("i", ["int", "long", "null"]), ("f", ["float", "double"]))
    found = decode(schema, encoded(schema, {"i": 1, "f": 0.5}), encoded(schema, {"i": None, "f": 0.1}))
    assert found.columns == pa.record_batch({"i": pa.array([1, None], pa.int64()), "f": pa.array([0.5, 0.1])})


def test_a_union_of_dates_and_times_keeps_them_apart() -> None:
    branches = [logical("int", "date"), logical("long", "timestamp-micros"), "string", "double"]
    values = [date(2026, 1, 2), MOMENT]
    found = decode(record(("u", branches)), *(of_branch(at, branches[at], each) for at, each in enumerate(values)))
    nothing = {"member2": None, "member3": None}
    assert found.columns["u"].to_pylist() == [
        {"member0": date(2026, 1, 2), "member1": None, **nothing},
        {"member0": None, "member1": MOMENT, **nothing},
    ]


SECRET = "the secret"
ORDER = record(
    ("id", "string"), ("at", logical("long", "timestamp-micros")), ("items", {"type": "array", "items": "int"})
)
GOOD = encoded(ORDER, {"id": SECRET, "at": MOMENT, "items": [1]})
BEYOND = encoded("string", SECRET) + encoded("long", 2**62) + encoded({"type": "array", "items": "int"}, [])


def test_a_damaged_value_has_a_reason_and_no_row() -> None:
    damaged = {
        b"": "too_short: the value ends before all of its fields",
        GOOD[:-1]: "too_short: the value ends before all of its fields",
        GOOD + b"x": "too_long: the value has more bytes than its schema describes",
        b"\x14" + b"\xff" * 10 + GOOD[11:]: "not_utf8: a string is not text in UTF-8",
        b"\x01" + GOOD: "malformed: a length is negative, or a block of items has another length than the value says",
        b"\xff" * 12: "malformed: a number has more bits than its type allows, or more bytes than it needs",
        BEYOND: "out_of_range: a date or time is outside of the years 1 to 9999",
        b'{"id": "the secret"}': "malformed: a length is negative, or a block of items has another length than the value says",
    }
    found = decode(ORDER, GOOD, *damaged, None, GOOD)
    assert {error.row: error.reason for error in found.errors} == dict(enumerate(damaged.values(), 1))
    row = {"id": SECRET, "at": MOMENT, "items": [1]}
    assert found.columns.to_pylist() == [row, *[dict.fromkeys(row)] * 9, row]


def test_every_cut_and_every_flipped_bit_is_decoded_or_has_a_reason() -> None:
    """Some changed values are correct, because Avro has no checksum; the batches of a log have one."""
    cuts = [GOOD[:length] for length in range(len(GOOD))]
    flips = [bytes([*GOOD[:at], GOOD[at] ^ (1 << bit), *GOOD[at + 1 :]]) for at in range(len(GOOD)) for bit in range(8)]
    found = decode(ORDER, *cuts, *flips)
    assert {error.row for error in found.errors} >= set(range(len(cuts)))
    assert found.columns.num_rows == len(cuts) + len(flips)
    assert not [error for error in found.errors if "secret" in error.reason]


def test_a_decimal_with_more_digits_than_its_column_is_a_dead_letter() -> None:
    written = record(("d", logical("bytes", "decimal", precision=20, scale=2)))
    wanted = record(("d", logical("bytes", "decimal", precision=5, scale=2)))
    found = decode(wanted, *(encoded(written, {"d": Decimal(text)}) for text in ("123.45", "1234.56")))
    assert found.columns.to_pylist() == [{"d": Decimal("123.45")}, {"d": None}]
    assert [error.reason for error in found.errors] == ["out_of_range at d"]


WRONG: list[tuple[Any, str]] = [
    ("string", "the schema: it is the type string, but only a record has columns"),
    (["null", record(("a", "int"))], "the schema: it is the type union, but only a record has columns"),
    (record(), "shop.Order: shop.Order has no fields"),
    (record(("a", "null")), "shop.Order.a: the type null has no column type"),
    (record(("a", ["null"])), "shop.Order.a: the union has no type but null"),
    (record(("_key", "int")), "shop.Order._key: begins with an underscore"),
    (record(("a", "int"), ("A", "int")), "shop.Order.A: differs from a only in upper and lower case"),
    (record(("a", "int"), ("a", "int")), "shop.Order.a: is there twice"),
    (record(("next", ["null", "Order"])), "shop.Order.next: shop.Order contains itself"),
    (record(("a", {"type": "array", "items": record(name="Empty")})), "shop.Order.a[]: shop.Empty has no fields"),
    (record(("a", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})), "items that need no bytes"),
    (record(("a", logical("bytes", "decimal", precision=39))), "a precision from 1 to 38; found 39"),
    (record(("a", logical("bytes", "decimal"))), "a precision from 1 to 38; found None"),
    (record(("a", "Missing")), "it is not an Avro schema: UnknownType: shop.Missing"),
    (record(("a", "int", "x")), "Default value <x> must match schema type: int"),
    ({"type": "record"}, "it is not an Avro schema"),
    (5, "it is not an Avro schema"),
]


@pytest.mark.parametrize(("schema", "problem"), WRONG, ids=range(len(WRONG)))
def test_a_schema_that_cannot_become_columns_is_refused(tmp_path: Any, schema: Any, problem: str) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    with pytest.raises(UnknownSchemaError) as refused:
        EventSchema(f"{tmp_path}/order.avsc").loaded()
    assert problem in refused.value.problem
    assert refused.value.problem.startswith(f"schema '{tmp_path}/order.avsc' ")


def test_a_file_that_is_no_schema_is_refused(tmp_path: Any) -> None:
    problems = []
    for content in (b"{", b"\xff"):
        (tmp_path / "order.avsc").write_bytes(content)
        with pytest.raises(UnknownSchemaError) as refused:
            EventSchema(f"{tmp_path}/order.avsc").loaded()
        problems.append(refused.value.problem.removeprefix(f"schema '{tmp_path}/order.avsc' cannot be used: "))
    assert problems[0].startswith("it is not JSON: Expecting property name")
    assert problems[1] == "not text in UTF-8"
    with pytest.raises(UnknownSchemaError) as refused:
        EventSchema(f"{tmp_path}/none.avsc").loaded()
    assert refused.value.problem == f"the schema's file {tmp_path}/none.avsc cannot be read: No such file or directory"
