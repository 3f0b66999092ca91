"""Tests that values are decoded with their writer's schema, and resolved to the schema of the settings as Avro prescribes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from schemas.avro.avro_decoder import AvroDecoder
from schemas.avro.avro_schema import AvroSchemaError
from schemas.comparing import compare
from schemas.model_columns import UnsupportedFieldError
from schemas.writers.writer_schemas import SchemaFolder
from tests.schemas.avro.avro_values import Schema, decode, encoded, of_branch, record, with_id

LEG = record(("distance", "int"), name="Leg")
WRITTEN = record(
    ("id", "int"),
    ("name", "string"),
    ("gone", {"type": "array", "items": "string"}),
    ("legs", {"type": "array", "items": LEG}),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}),
)
VALUE = {"id": 7, "name": "ä", "gone": ["x"], "legs": [{"distance": 3}], "colour": "GREEN"}
DECIMAL: Schema = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
MILLIS: Schema = {"type": "long", "logicalType": "timestamp-millis"}
READER = record(
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"], "default": "BLUE"}),
    ("id", "double"),
    ("legs", {"type": "array", "items": record(("distance", "long"), ("stop", ["null", "string"], None), name="Leg")}),
    # Defaults of each kind: the value has none of these fields.
    ("bytes", "bytes", "\u00ff"),
    ("real", "double", 0),
    ("at", MILLIS, 1000),
    ("price", DECIMAL, "\u0001\u0000"),
    ("marks", {"type": "array", "items": ["string", "null"]}, ["x"]),
    ("counts", {"type": "map", "values": "long"}, {"a": 1}),
    ("home", record(("zip", "bytes"), ("city", "string", "Rome"), name="Home"), {"zip": "\u0001"}),
    ("union", ["string", "Leg", "null"], "text"),
    ("optional", ["null", "Home"], None),
)
READER["fields"].append({"name": "title", "aliases": ["name"], "type": "bytes"})  # type: ignore[call-overload,index,union-attr]


def folder(tmp_path: Path, *schemas: Schema) -> SchemaFolder:
    """A folder in which the schemas have the ids 1, 2 and so on."""
    for number, schema in enumerate(schemas, 1):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    return SchemaFolder.read(str(tmp_path))


def test_a_value_is_resolved_to_the_schema_of_the_settings(tmp_path: Path) -> None:
    found = decode(READER, with_id(1, encoded(WRITTEN, VALUE)), writers=folder(tmp_path, WRITTEN))
    assert found.errors == []
    assert found.columns.to_pylist() == [
        {
            "colour": "BLUE",
            "id": 7.0,
            "legs": [{"distance": 3, "stop": None}],
            "bytes": b"\xff",
            "real": 0.0,
            "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "price": Decimal("2.56"),
            "marks": ["x"],
            "counts": [("a", 1)],
            "home": {"zip": b"\x01", "city": "Rome"},
            "union": {"member0": "text", "member1": None},
            "optional": None,
            "title": "ä".encode(),
        }
    ]


PROMOTIONS = [
    ("int", "long", 7, 7), ("int", "float", 7, 7.0), ("int", "double", 7, 7.0), ("long", "float", 7, 7.0),
    ("long", "double", 7, 7.0), ("float", "double", 0.5, 0.5), ("string", "bytes", "ä", "ä".encode()),
    ("bytes", "string", "ä".encode(), "ä"), ("int", ["null", "long"], 7, 7), (["null", "int"], "double", 7, 7.0),
    (["null", "int"], ["null", "string", "long"], 7, {"member0": None, "member1": 7}),
    (LEG, ["null", "string", LEG], {"distance": 1}, {"member0": None, "member1": {"distance": 1}}),
    ("long", MILLIS, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ({"type": "long", "logicalType": "timestamp-micros"}, MILLIS, 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ({**DECIMAL, "scale": 1}, DECIMAL, Decimal("1.5"), Decimal("1.50")),  # type: ignore[dict-item]
    ("bytes", DECIMAL, b"\x01\x00", Decimal("2.56")),
]  # fmt: skip


@pytest.mark.parametrize(("written", "wanted", "value", "decoded"), PROMOTIONS, ids=range(len(PROMOTIONS)))
def test_a_type_is_promoted(tmp_path: Path, written: Any, wanted: Any, value: Any, decoded: Any) -> None:
    schema = record(("a", written))
    found = decode(record(("a", wanted)), with_id(1, encoded(schema, {"a": value})), writers=folder(tmp_path, schema))
    assert found.errors == []
    assert found.columns.to_pylist() == [{"a": decoded}]


def test_a_value_that_cannot_be_resolved_has_a_reason(tmp_path: Path) -> None:
    plain = record(("a", "int"))
    deep: Any = record(("a", "int"), ("next", ["null", "Order"]))
    endless = record(("a", "int"), ("b", {"type": "array", "items": record(name="Empty")}))
    ambiguous = record(("a", "int"), ("u", LEG))
    folder(tmp_path, plain, record(("b", "int")), record(("a", "long")), deep, endless, ambiguous)
    (tmp_path / "7.avsc").write_text("{")
    (tmp_path / "8.proto").write_text('syntax = "proto3"; message A {}')
    writers = SchemaFolder.read(str(tmp_path))
    value = encoded(plain, {"a": 1})
    values = [b"", b"{}", b"\x01\0\0\0\1\2", with_id(1, value), *(with_id(number, value) for number in range(2, 10))]
    reader = record(("a", "int"), ("u", ["null", {"type": "map", "values": "int"}, LEG], None))
    found = decode(reader, *values, writers=writers)
    no_id = "no_schema_id: neither a header nor the first bytes of the value are the id of a schema"
    no_match = "no_match: the writer's schema does not fit the schema of the settings"
    unusable = "unusable_schema: the schema with the id {} cannot be used: {}"
    assert [error.reason for error in found.errors] == [
        no_id,
        no_id,
        no_id,
        no_match,
        no_match,
        unusable.format(4, "the record shop.Order contains itself"),
        unusable.format(5, "an array has items that need no bytes"),
        unusable.format(6, "it has shop.Leg where the schema of the settings has a union"),
        unusable.format(
            7, "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
        ),
        "other_format: the schema with the id 8 is PROTOBUF, not AVRO",
        f"unknown_schema: the folder {tmp_path} has no schema with the id 9",
    ]
    assert found.columns.to_pylist()[3] == {"a": 1, "u": None}


def test_records_of_several_writers_become_rows_of_one_table(tmp_path: Path) -> None:
    one, two = record(("a", "int")), record(("b", ["null", "string"], None), ("a", "long"))
    found = decode(
        two,
        with_id(1, encoded(one, {"a": 1})),
        with_id(2, encoded(two, {"a": 2, "b": "x"})),
        with_id(1, encoded(one, {"a": 3})),
        writers=folder(tmp_path, one, two),
    )
    assert found.errors == []
    assert found.columns.to_pylist() == [{"b": None, "a": 1}, {"b": "x", "a": 2}, {"b": None, "a": 3}]


def changes(before: Schema, after: Schema, writers: SchemaFolder | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    one, two = (AvroDecoder(json.dumps(schema), writers).fields for schema in (before, after))
    found = compare(one, two)
    return found.compatible, found.breaking


def test_a_change_is_compatible_if_older_values_and_readers_of_the_table_still_work(tmp_path: Path) -> None:
    writers = folder(tmp_path, LEG)
    before = record(("a", "int"), ("legs", {"type": "map", "values": LEG}))
    more = {"type": "map", "values": record(("distance", "int"), ("stop", ["null", "string"], None), name="Leg")}
    assert changes(before, record(("a", "double"), ("legs", more), ("b", "string", "x")), writers) == (
        (
            "(type of a) was int and is now double", "(type of b) is new", "(type of legs{}.stop) is new",
            "a was int and is now float", "b is new", "legs{}.stop is new",
        ),
        (),
    )  # fmt: skip
    assert changes(before, record(("a", "long"), ("legs", {"type": "map", "values": LEG})), writers) == (
        ("(type of a) was int and is now long",), (),
    )  # fmt: skip
    assert changes(before, record(("a", ["int", "string"]), ("b", "string")), writers) == (
        (
            "(branch of a.member0) is new",
            "(branch of a.member1) is new",
            "(type of a.member0) is new",
            "(type of a.member1) is new",
            "(type of b) is new",
            "a.member0 is new",
            "a.member1 is new",
        ),
        ("a was int and is now object", "b is new and required", "legs is removed"),
    )


def test_a_plain_value_does_not_name_its_schema_so_every_other_schema_breaks_older_values(tmp_path: Path) -> None:
    before, after = record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int"))
    (compatible, breaking) = changes(before, after, None)
    assert compatible == ()
    assert len(breaking) == 1
    assert breaking[0].startswith("(format) was Avro ")
    assert changes(before, record(("a", "int"), ("b", "int"), doc="an order"), None) == ((), ())
    assert changes(before, after, folder(tmp_path, before)) == ((), ())


MICROS: Schema = {"type": "long", "logicalType": "timestamp-micros"}
MEANINGS: list[tuple[Any, Any]] = [
    (DECIMAL, {**DECIMAL, "precision": 9, "scale": 4}),  # type: ignore[dict-item]
    (DECIMAL, "bytes"),
    (MILLIS, MICROS),
    (["null", MILLIS], ["null", MICROS]),
    ({"type": "map", "values": MILLIS}, {"type": "map", "values": MICROS}),
]


@pytest.mark.parametrize(("before", "after"), MEANINGS, ids=range(len(MEANINGS)))
def test_the_meaning_of_the_same_bytes_does_not_change_in_plain_avro(before: Any, after: Any) -> None:
    """19.99 with a scale of 2 has the bytes of 0.1999 with a scale of 4."""
    breaking = changes(record(("a", before)), record(("a", after)), None)[1]
    assert breaking[0].startswith("(format) was Avro ")


BROKEN: list[tuple[Schema, str]] = [
    (record(("a", {"type": "map", "values": record(("x", "int"), name="X")}, {"k": 5})), "it is not an Avro schema"),
    (record(("a", "bytes", "\u20ac")), "it is not an Avro schema: UnicodeEncodeError"),
    (record(("a", "int"), ("b", "string", "\ud800")), "it is not an Avro schema: UnicodeEncodeError"),
    (record(("a", "int"), ("next", "shop.Order", {"a": 1})), "it is nested too deeply"),
    (record(("a", {"type": "fixed", "name": "F", "size": "two"})), ""),
    *(
        (
            record(("f", {"type": "fixed", "name": "F", "size": size}), ("a", "int")),
            f"the size of the fixed shop.F is {size!r}, ",
        )
        for size in (-70_368_744_177_664, -1, 2**31, 2**63, "3", 2.5, True, None)
    ),
    (
        record(("f", {"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}})),
        "the size of the fixed shop.F is -1, ",
    ),
]


@pytest.mark.parametrize(("schema", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_schema_of_a_writer_stops_only_its_own_values(tmp_path: Path, schema: Schema, problem: str) -> None:
    plain = record(("a", "int"))
    writers = folder(tmp_path, schema, plain)
    value = encoded(plain, {"a": 1})
    found = decode(plain, with_id(1, value), with_id(2, value), writers=writers)
    ((row, reason),) = [(error.row, error.reason) for error in found.errors]
    assert row == 0
    assert reason.startswith(f"unusable_schema: the schema with the id 1 cannot be used: {problem}")
    assert found.columns.to_pylist() == [{"a": None}, {"a": 1}]
    with pytest.raises((AvroSchemaError, UnsupportedFieldError)):
        AvroDecoder(json.dumps(schema), None)


def nested(levels: int) -> Schema:
    """Records of which each has two fields of the record inside it."""
    inner: Schema = record(("x", "int"), name="R0")
    for level in range(1, levels):
        inner = record(("a", inner), ("b", f"R{level - 1}"), name=f"R{level}")
    return record(("a", inner))


def test_a_schema_that_is_large_when_it_is_written_out_is_refused_quickly(tmp_path: Path) -> None:
    parts = "it has 402653184 parts, but at most 10000 are allowed"
    plain = record(("a", "int"))
    found = decode(plain, with_id(1, b"x"), writers=folder(tmp_path, nested(28)))
    assert [error.reason for error in found.errors] == [
        f"unusable_schema: the schema with the id 1 cannot be used: {parts}"
    ]
    with pytest.raises(AvroSchemaError, match=parts):
        AvroDecoder(json.dumps(nested(28)), None)
    assert AvroDecoder(json.dumps(nested(8)), None).columns.names == ["a"]


def test_the_type_error_is_a_record(tmp_path: Path) -> None:
    def error(name: str, **field: Schema) -> Schema:
        return {**dict(record(*field.items(), name=name)), "type": "error"}  # type: ignore[arg-type]

    schema = error("shop.Order", a="int", b=["null", error("shop.X", x="int"), error("shop.Y", y="string")])
    values = [{"a": 1, "b": ("shop.Y", {"y": "z"})}, {"a": 2, "b": None}]
    rows = [{"a": 1, "b": {"member0": None, "member1": {"y": "z"}}}, {"a": 2, "b": None}]
    given = [encoded(schema, value) for value in values]
    found = decode(schema, *given)
    assert (found.columns.to_pylist(), found.errors) == (rows, [])
    narrow = error("shop.Order", a="long")
    found = decode(narrow, *(with_id(1, each) for each in given), writers=folder(tmp_path, schema))
    assert (found.columns.to_pylist(), found.errors) == ([{"a": 1}, {"a": 2}], [])


def test_a_value_of_a_writer_with_several_records_has_the_row_of_its_record(tmp_path: Path) -> None:
    order, other = record(("a", "int")), record(("b", "string"), name="shop.Other")
    both: Schema = [other, order]
    values = [of_branch(1, order, {"a": 7}), of_branch(0, other, {"b": "x"})]
    found = decode(order, *(with_id(1, value) for value in values), writers=folder(tmp_path, both))
    assert found.columns.to_pylist() == [{"a": 7}, {"a": None}]
    assert [(error.row, error.reason) for error in found.errors] == [
        (1, "no_match: the writer's schema does not fit the schema of the settings")
    ]


def logical(underlying: str, kind: str, **more: Any) -> Schema:
    return {"type": underlying, "logicalType": kind, **more}


NANOS, LOCAL, DAY, TEXT_UUID = (
    logical("long", "timestamp-nanos"),
    logical("long", "local-timestamp-micros"),
    logical("int", "date"),
    logical("string", "uuid"),
)
DISAGREEING: list[tuple[Any, Any, Any, str]] = [
    (NANOS, MICROS, 1, "timestamp-nanos where the schema of the settings has timestamp-micros"),
    (MICROS, LOCAL, 1, "timestamp-micros where the schema of the settings has local-timestamp-micros"),
    (LOCAL, ["null", MICROS], 1, "local-timestamp-micros where the schema of the settings has timestamp-micros"),
    (["null", MICROS], ["string", LOCAL], 1, "timestamp-micros where the schema of the settings has local-timestamp-"),
    (NANOS, ["string", "long"], 1, "timestamp-nanos where the schema of the settings has long"),
    (MICROS, "long", 1, "timestamp-micros where the schema of the settings has long"),
    (DAY, "double", 1, "date where the schema of the settings has double"),
    (TEXT_UUID, "string", "7", "uuid where the schema of the settings has string"),
    (DECIMAL, "bytes", b"1", "decimal where the schema of the settings has bytes"),
    ({"type": "array", "items": MICROS}, {"type": "array", "items": "long"}, [], "timestamp-micros where the schema"),
]


@pytest.mark.parametrize(("written", "wanted", "value", "problem"), DISAGREEING, ids=[each[3] for each in DISAGREEING])
def test_a_logical_type_that_the_reader_does_not_have_is_a_dead_letter(
    tmp_path: Path, written: Any, wanted: Any, value: Any, problem: str
) -> None:
    found = decode(record(("a", wanted)), with_id(1, b"\2\2"), writers=folder(tmp_path, record(("a", written))))
    assert found.columns.to_pylist() == [{"a": None}]
    assert [error.reason.partition(problem)[0] for error in found.errors] == [
        "unusable_schema: the schema with the id 1 cannot be used: it has "
    ]


AGREEING: list[tuple[Any, Any, Any, Any]] = [
    (MICROS, NANOS, 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    (NANOS, NANOS, 1_000_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ("long", NANOS, 1_000_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    (logical("int", "time-millis"), logical("long", "time-micros"), 1000, 1_000_000),
    (DAY, ["long", DAY], 1, {"member0": None, "member1": date(1970, 1, 2)}),
    (["null", DAY], ["long", DAY], 1, {"member0": None, "member1": date(1970, 1, 2)}),
    (["null", "int"], ["null", DAY], 1, date(1970, 1, 2)),
    (logical("string", "date"), "string", "x", "x"),
]


@pytest.mark.parametrize(("written", "wanted", "number", "decoded"), AGREEING, ids=range(len(AGREEING)))
def test_a_logical_type_that_means_the_same_is_resolved(
    tmp_path: Path, written: Any, wanted: Any, number: Any, decoded: Any
) -> None:
    of_union = b"\2" if isinstance(written, list) else b""
    value = of_union + encoded("string" if isinstance(number, str) else "long", number)
    found = decode(record(("a", wanted)), with_id(1, value), writers=folder(tmp_path, record(("a", written))))
    assert found.errors == []
    assert found.columns.to_pylist() == [{"a": decoded}]


def test_the_fields_of_records_with_other_names_are_not_compared(tmp_path: Path) -> None:
    one, two = record(("t", MICROS), name="shop.One"), record(("t", LOCAL), name="shop.Two")
    schema = record(("a", [one, two]))
    values = [of_branch(0, "long", 1), of_branch(1, "long", 1)]
    found = decode(schema, *(with_id(1, value) for value in values), writers=folder(tmp_path, schema))
    assert found.errors == []
    assert found.columns.to_pylist() == [
        {"a": {"member0": {"t": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}, "member1": None}},
        {"a": {"member0": None, "member1": {"t": "1970-01-01T00:00:00.000001"}}},
    ]


WRONG_INDEX = "malformed: a union or an enum has no type or symbol with the index in the value"


def test_an_index_that_an_enum_does_not_have_is_malformed(tmp_path: Path) -> None:
    colour: Schema = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    schema = record(("a", colour), ("b", ["null", "Colour"]))
    good = [b"\0\0", b"\2\2\2"]
    bad = [b"\1\0", b"\0\2\1", b"\0\2\4"]
    wanted = [{"a": "RED", "b": None}, {"a": "BLUE", "b": "BLUE"}, *[{"a": None, "b": None}] * len(bad)]
    plain = decode(schema, *good, *bad)
    framed = decode(schema, *(with_id(1, value) for value in (*good, *bad)), writers=folder(tmp_path, schema))
    for found in (plain, framed):
        assert found.columns.to_pylist() == wanted
        assert [(error.row, error.reason) for error in found.errors] == [
            (2, WRONG_INDEX),
            (3, WRONG_INDEX),
            (4, WRONG_INDEX),
        ]


MIXED: list[tuple[list[Any], str]] = [
    ([MICROS, LOCAL], "the union has timestamp and local-timestamp, which a value does not tell apart"),
    (["int", NANOS], "the union has int and timestamp-nanos, which a value does not tell apart"),
]


@pytest.mark.parametrize(("branches", "problem"), MIXED, ids=range(len(MIXED)))
def test_a_union_whose_values_do_not_tell_their_branch_is_refused(branches: list[Any], problem: str) -> None:
    with pytest.raises(UnsupportedFieldError) as refused:
        AvroDecoder(json.dumps(record(("a", branches))), None)
    assert str(refused.value) == f"shop.Order.a: {problem}"


def test_a_logical_type_at_a_wrong_type_is_ignored_in_a_union(tmp_path: Path) -> None:
    schema = record(("a", [logical("string", "date"), "long"]))
    found = decode(schema, of_branch(0, "string", "x"), of_branch(1, "long", 1))
    assert found.errors == []
    assert found.columns.to_pylist() == [
        {"a": {"member0": "x", "member1": None}},
        {"a": {"member0": None, "member1": 1}},
    ]


def test_the_branches_of_a_union_keep_their_order(tmp_path: Path) -> None:
    one, two = (record(("x", "int"), name=f"shop.{name}") for name in ("One", "Two"))
    writers = folder(tmp_path, one)
    assert changes(record(("a", [one, two])), record(("a", [two, one])), writers) == (
        (),
        (
            "(branch of a.member0) was shop.One and is now shop.Two",
            "(branch of a.member1) was shop.Two and is now shop.One",
            "(type of a.member0) was record shop.One and is now record shop.Two",
            "(type of a.member1) was record shop.Two and is now record shop.One",
        ),
    )
    assert changes(record(("a", ["int", "string"])), record(("a", ["long", "string"])), writers) == (
        ("(type of a.member0) was int and is now long",), (),
    )  # fmt: skip


def test_types_of_one_name_in_two_namespaces_are_never_taken_for_each_other(tmp_path: Path) -> None:
    """fastavro alone would take the first type of the name, here a.X."""
    one, other = (record(("p", "int"), name=f"{namespace}.X") for namespace in "ab")
    schema = record(("u", [one, other]))
    newer = record(("u", [one, other]), ("new", "int", 7))
    third = record(("p", "int"), name="c.X")
    writers = folder(tmp_path, schema, newer, record(("u", [one])), record(("u", [other, one])), record(("u", [third])))
    values = [
        with_id(1, b"\0\x0a"), with_id(1, b"\2\x0a"), with_id(2, b"\0\x0a\0"), with_id(2, b"\2\x0a\0"),
        with_id(3, b"\0\x0a"), with_id(4, b"\0\x0a"), with_id(4, b"\2\x0a"), with_id(5, b"\0\x0a"),
    ]  # fmt: skip
    found = decode(schema, *values, writers=writers)
    assert found.errors == []
    first, second = {"member0": {"p": 5}, "member1": None}, {"member0": None, "member1": {"p": 5}}
    assert [row["u"] for row in found.columns.to_pylist()] == [
        first, second, first, second, first, second, first, first,
    ]  # fmt: skip


def test_types_of_one_name_are_told_apart_in_each_place_of_a_schema(tmp_path: Path) -> None:
    leg, other_leg = (record(("p", "int"), ("q", "int", 1), name=f"{namespace}.Leg") for namespace in "ab")
    sizes: list[Schema] = [{"type": "fixed", "name": f"{each}.Size", "size": 1} for each in "ab"]
    colours: list[Schema] = [{"type": "enum", "name": f"{each}.Colour", "symbols": ["RED"]} for each in "ab"]
    union: list[Schema] = ["null", leg, other_leg, *sizes, *colours]
    again: list[Schema] = ["null", "a.Leg", "b.Leg", "a.Size", "b.Size", "a.Colour", "b.Colour"]
    fields = [("list", {"type": "array", "items": union}), ("map", {"type": "map", "values": again}), ("one", "b.Leg")]
    reader = record(*fields, ("added", list(reversed(again[1:])), "RED"))  # type: ignore[arg-type]
    writer = record(*fields, ("gone", "int"))  # type: ignore[arg-type]
    legs, size, colour = b"\x02\x0a\x02\x04\x0c\x04", b"\x08z", b"\x0c\0"
    value = b"\x08" + legs + size + colour + b"\0" + b"\x02\x02k" + b"\x04\x0e\x06" + b"\0" + b"\x10\x08" + b"\0"
    found = decode(reader, with_id(1, value), writers=folder(tmp_path, writer))
    assert found.errors == []

    def member(number: int, inner: object) -> dict[str, object]:
        return {f"member{each}": inner if each == number else None for each in range(6)}

    assert found.columns.to_pylist() == [
        {
            "list": [member(0, {"p": 5, "q": 1}), member(1, {"p": 6, "q": 2}), member(3, b"z"), member(5, "RED")],
            "map": [("k", member(1, {"p": 7, "q": 3}))],
            "one": {"p": 8, "q": 4},
            "added": member(0, "RED"),
        }
    ]


def test_a_type_that_is_also_an_alias_of_an_earlier_type_is_refused(tmp_path: Path) -> None:
    one, other = record(("p", "int"), name="a.Y", aliases=["b.X"]), record(("p", "int"), name="b.X")
    writers = folder(tmp_path, record(("u", [other])))
    found = decode(record(("u", [one, other])), with_id(1, b"\0\x0a"), writers=writers)
    assert [error.reason for error in found.errors] == [
        "unusable_schema: the schema with the id 1 cannot be used: the union of the settings has a.Y before b.X"
    ]
