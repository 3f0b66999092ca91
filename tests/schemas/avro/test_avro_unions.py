"""Tests that a value gets to the right member of a union, and has the right digits, whatever else differs in the schema of
its writer."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.avro.avro_values import Schema, decode, encoded, of_branch, record, with_id
from tests.schemas.avro.test_avro_resolution import DECIMAL, MILLIS, folder

ADDRESS = record(("street", "string"), name="shop.Address")
COLOUR: Schema = {"type": "enum", "name": "shop.Colour", "symbols": ["RED", "BLUE"]}
PRICE: Schema = {"type": "fixed", "name": "shop.Price", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}
DATE: Schema = {"type": "int", "logicalType": "date"}
UUID: Schema = {"type": "string", "logicalType": "uuid"}
SOME_UUID = "12345678-1234-1234-1234-123456789012"
LARGE = 2**53 + 1
"""A number that a double cannot represent."""


def values_of_x(reader: Schema, *values: bytes, writers: Any) -> list[Any]:
    """The field x of each row, or the reason why there is no row."""
    found = decode(reader, *values, writers=writers)
    reasons = {error.row: error.reason for error in found.errors}
    return [reasons.get(number, row["x"]) for number, row in enumerate(found.columns.to_pylist())]


@pytest.mark.parametrize(
    ("defined", "value", "decoded"),
    [
        (ADDRESS, encoded("string", "Main"), {"street": "Main"}),
        (COLOUR, encoded("int", 1), "BLUE"),
        (PRICE, b"\0\7", Decimal("0.7")),
    ],
    ids=["record", "enum", "fixed"],
)
@pytest.mark.parametrize("more", [[], ["string"]], ids=["optional", "several types"])
def test_a_type_may_be_defined_in_one_schema_and_only_named_in_the_other(
    tmp_path: Path, defined: Any, value: bytes, decoded: Any, more: list[Any]
) -> None:
    older = record(("x", ["null", defined, *more]))
    newer = record(("home", ["null", defined], None), ("x", ["null", defined["name"], *more]))
    given = with_id(1, b"\2" + value), with_id(2, b"\0\2" + value), with_id(2, b"\2" + value + b"\2" + value)
    expected = {"member0": decoded, "member1": None} if more else decoded
    for reader in (older, newer):
        assert values_of_x(reader, *given, writers=folder(tmp_path, older, newer)) == [expected] * 3


@pytest.mark.parametrize(
    ("union", "branch", "value", "decoded"),
    [
        (["double", "long"], 1, LARGE, {"member0": None, "member1": LARGE}),
        (["null", "double", "int"], 2, 7, {"member0": None, "member1": 7}),
        (["float", "string", "long"], 2, LARGE, {"member0": None, "member1": None, "member2": LARGE}),
        (["long", "double"], 1, 0.5, {"member0": None, "member1": 0.5}),
        (["string", "bytes"], 0, "a", {"member0": "a", "member1": None}),
        (["bytes", "string"], 0, b"\xff", {"member0": b"\xff", "member1": None}),
    ],
)
def test_a_value_has_the_member_of_its_type_also_if_the_writer_has_another_field(
    tmp_path: Path, union: list[str], branch: int, value: object, decoded: object
) -> None:
    names = [each for each in union if each not in ("bytes", "string")] if {"bytes", "string"} <= {*union} else union
    same, more = record(("x", union)), record(("x", union if names == union else union[:1]), ("more", "int"))
    written = of_branch(branch, union[branch], value)
    given = with_id(1, written), with_id(2, written + b"\0")
    assert values_of_x(same, *given, writers=folder(tmp_path, same, more)) == [decoded] * 2


@pytest.mark.parametrize("union", [["string", "bytes"], ["bytes", "string"]])
def test_no_order_of_a_union_is_right_for_string_and_bytes(tmp_path: Path, union: list[str]) -> None:
    same, more = record(("x", union)), record(("x", union), ("more", "int"))
    given = [with_id(number, of_branch(1, union[1], "a" if union[1] == "string" else b"a")) for number in (1, 2)]
    first, second = values_of_x(same, *given, writers=folder(tmp_path, same, more))
    assert first == {"member0": None, "member1": "a" if union[1] == "string" else b"a"}
    assert second.startswith("unusable_schema: the schema with the id 2 cannot be used")
    assert second.endswith(f"it has {union[1]} where a union of the settings has {union[0]} before {union[1]}")


@pytest.mark.parametrize(
    ("kind", "default", "decoded"),
    [
        (MILLIS, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (DATE, 5, date(1970, 1, 6)),
        (DECIMAL, "\u0001", Decimal("0.01")),
        (UUID, SOME_UUID, SOME_UUID),
        ({"type": "int", "logicalType": "time-millis"}, 1, 1000),
    ],
    ids=["timestamp", "date", "decimal", "uuid", "time"],
)
@pytest.mark.parametrize("other", ["long", "string", "bytes"])
def test_the_default_of_a_logical_type_has_its_member(
    tmp_path: Path, kind: Schema, default: object, decoded: object, other: str
) -> None:
    reader, writer = record(("x", [kind, other], default)), record(("y", "int"))
    found = values_of_x(reader, with_id(1, b"\0"), writers=folder(tmp_path, writer))
    assert found == [{"member0": decoded, "member1": None}]


@pytest.mark.parametrize(
    ("kind", "default", "reason"),
    [
        (DECIMAL, "", "malformed: a decimal has no bytes"),
        ({"type": "int", "logicalType": "time-millis"}, -5, "out_of_range: a time of day is outside of a day"),
        (MILLIS, 2**62, "out_of_range: a date or time is outside of the years 1 to 9999"),
    ],
    ids=["decimal", "time", "timestamp"],
)
def test_a_wrong_default_matters_only_to_a_value_that_needs_it(
    tmp_path: Path, kind: Schema, default: object, reason: str
) -> None:
    schema, without = record(("x", kind, default), ("y", "int")), record(("y", "int"))
    value = encoded("bytes", b"\1") if kind == DECIMAL else b"\2"
    given = with_id(1, value + b"\2"), with_id(2, b"\2")
    first, second = values_of_x(schema, *given, writers=folder(tmp_path, schema, without))
    assert (isinstance(first, str), second) == (False, reason)
    assert decode(without, given[0], writers=folder(tmp_path, schema)).columns.to_pylist() == [{"y": 1}]


def test_a_decimal_is_never_rounded_to_the_precision_of_its_writer(tmp_path: Path) -> None:
    def decimal(precision: int) -> Schema:
        return record(("x", {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}))

    given = [with_id(1, encoded("bytes", number.to_bytes(4, "big", signed=True))) for number in (123456, -99995, 9999)]
    found = values_of_x(decimal(6), *given, writers=folder(tmp_path, decimal(4)))
    assert found == [Decimal("1234.56"), Decimal("-999.95"), Decimal("99.99")]
    assert values_of_x(decimal(4), *given, writers=folder(tmp_path, decimal(4))) == [
        "out_of_range at x", "out_of_range at x", Decimal("99.99"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ([("x", "int"), ("old", "int")], "it has x and old, which are one field in the schema of the settings"),
        ([("old", "int"), ("x", "int")], "it has x and old, which are one field in the schema of the settings"),
        ([("old", "int")], None),
    ],
)
def test_a_field_and_its_alias_are_not_taken_for_each_other(
    tmp_path: Path, written: list[tuple[str, Schema]], problem: str | None
) -> None:
    reader = {"type": "record", "name": "shop.Order", "fields": [{"name": "x", "aliases": ["old"], "type": "int"}]}
    (found,) = values_of_x(reader, with_id(1, b"\2\4"[: len(written)]), writers=folder(tmp_path, record(*written)))
    assert found == 1 if problem is None else found.endswith(problem)


def test_a_text_is_no_decimal(tmp_path: Path) -> None:
    (found,) = values_of_x(
        record(("x", DECIMAL)), with_id(1, encoded("string", "1.5")), writers=folder(tmp_path, record(("x", "string")))
    )
    assert found.endswith("it has string where the schema of the settings has decimal")
