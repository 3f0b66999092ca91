"""Tests that a field of each Protobuf type becomes the right column, compared with protobuf's own encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from schemas.comparing import ModelChanges, ModelField, compare
from schemas.event_schema import EventSchema
from schemas.protobuf.message_decoder import MessageDecoder
from schemas.schema_errors import UnknownSchemaError
from tests.schemas.protobuf.messages import add_field, add_map, decode, descriptors, encoded, file

UINT64 = pa.decimal128(20, 0)
UTC_MOMENT = pa.timestamp("us", tz="UTC")
SCALARS: dict[str, tuple[pa.DataType, Any, list[tuple[Any, Any]]]] = {
    "bool": (pa.bool_(), False, [(True, True)]),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (pa.int64(), 0, [(-(2**31), -(2**31)), (2**31 - 1, 2**31 - 1)])),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (pa.int64(), 0, [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)])),
    **dict.fromkeys(("uint32", "fixed32"), (pa.int64(), 0, [(2**32 - 1, 2**32 - 1)])),
    **dict.fromkeys(("uint64", "fixed64"), (UINT64, Decimal(0), [(2**64 - 1, Decimal(2**64 - 1))])),
    "float": (pa.float64(), 0.0, [(0.5, 0.5), (float("inf"), float("inf"))]),
    "double": (pa.float64(), 0.0, [(0.1, 0.1), (-1e308, -1e308)]),
    "string": (pa.string(), "", [("ä\0", "ä\0")]),
    "bytes": (pa.binary(), b"", [(b"\xff\0", b"\xff\0")]),
    ".shop.Colour": (pa.string(), "NONE", [(1, "RED"), (7, "7")]),
}


def shop() -> FileDescriptorProto:
    """A file with the enum Colour and the message Item."""
    found = file()
    colour = found.enum_type.add(name="Colour")
    colour.options.allow_alias = True
    for name, number in (("NONE", 0), ("RED", 1), ("SCARLET", 1)):  # the first name of a number counts
        colour.value.add(name=name, number=number)
    item = found.message_type.add(name="Item")
    add_field(item, "sku", 1, "string")
    add_field(item, "count", 2, "optional int32")
    return found


@pytest.mark.parametrize("kind", SCALARS)
def test_each_scalar_type_has_a_column(kind: str) -> None:
    arrow, zero, pairs = SCALARS[kind]
    shops = shop()
    message = shops.message_type.add(name="A")
    add_field(message, "one", 1, kind)
    add_field(message, "perhaps", 2, f"optional {kind}")
    add_field(message, "many", 3, f"repeated {kind}")
    add_map(message, "by_key", 4, "string", kind, "shop")
    content = descriptors(shops)
    values = [encoded(content, "shop.A", one=v, perhaps=v, many=[v, v], by_key={"b": v, "a": v}) for v, _ in pairs]
    found = decode(content, "shop.A", *values, b"", None)
    wanted = [value for _, value in pairs]
    schema = pa.schema(
        [
            pa.field("one", arrow, nullable=False),
            pa.field("perhaps", arrow),
            pa.field("many", pa.list_(pa.field("element", arrow, nullable=False)), nullable=False),
            pa.field("by_key", pa.map_(pa.string(), arrow), nullable=False),
        ]
    )
    columns = [
        [*wanted, zero, None],
        [*wanted, None, None],
        [*([each, each] for each in wanted), [], None],
        [*([("a", each), ("b", each)] for each in wanted), [], None],
    ]
    assert MessageDecoder(content, "shop.A", None).columns == schema
    nullable = pa.schema([each.with_nullable(True) for each in schema])
    assert found.errors == []
    assert found.columns == pa.record_batch(
        [pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=nullable
    )


def test_messages_oneofs_and_well_known_types_become_columns() -> None:
    shops = shop()
    order = shops.message_type.add(name="Order")
    order.oneof_decl.add(name="payment")
    add_field(order, "item", 1, ".shop.Item")
    add_field(order, "items", 2, "repeated .shop.Item")
    add_map(order, "stock", 3, "int32", ".shop.Item", "shop")
    add_field(order, "cash", 4, "int64", oneof_index=0)
    add_field(order, "card", 5, "string", oneof_index=0)
    add_field(order, "free", 6, ".google.protobuf.Empty", oneof_index=0)
    for number, name in enumerate(("Timestamp", "Duration", "StringValue", "Int64Value", "UInt64Value", "Struct"), 7):
        add_field(order, name.lower(), number, f".google.protobuf.{name}")
    content = descriptors(shops)
    full = encoded(
        content, "shop.Order", item={"sku": "a", "count": 1}, items=[{"sku": "b"}], stock={10: {"sku": "c"}, 9: {}},
        card="visa", timestamp={"seconds": -1, "nanos": 999_999_999}, duration={"seconds": -1, "nanos": -1_999},
        stringvalue={"value": ""}, int64value={"value": 7}, uint64value={"value": 2**64 - 1},
        struct={"b": [1.5, None], "a": "ä"},
    )  # fmt: skip
    found = decode(content, "shop.Order", full, encoded(content, "shop.Order", free={}), b"")
    item = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("count", pa.int64())])
    nothing: dict[str, Any] = {
        "item": None, "items": [], "stock": [], "cash": None, "card": None, "free": None, "timestamp": None,
        "duration": None, "stringvalue": None, "int64value": None, "uint64value": None, "struct": None,
    }  # fmt: skip
    rows = [
        {
            "item": {"sku": "a", "count": 1},
            "items": [{"sku": "b", "count": None}],
            "stock": [("9", {"sku": "", "count": None}), ("10", {"sku": "c", "count": None})],
            "cash": None,
            "card": "visa",
            "free": None,
            "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            "duration": -1_000_001,
            "stringvalue": "",
            "int64value": 7,
            "uint64value": Decimal(2**64 - 1),
            "struct": '{"a": "ä", "b": [1.5, null]}',
        },
        {**nothing, "free": True},
        nothing,
    ]
    types = [
        item, pa.list_(pa.field("element", item, nullable=False)), pa.map_(pa.string(), item), pa.int64(), pa.string(),
        pa.bool_(), UTC_MOMENT, pa.int64(), pa.string(), pa.int64(), UINT64, pa.string(),
    ]  # fmt: skip
    assert found.errors == []
    wanted = pa.schema(list(zip(nothing, types, strict=True)))
    assert found.columns == pa.RecordBatch.from_pylist(rows, schema=wanted)


def test_a_number_that_json_does_not_have_has_no_row() -> None:
    found = file()
    order = found.message_type.add(name="Order")
    for number, name in enumerate(("Struct", "Value", "ListValue"), 1):
        add_field(order, name.lower(), number, f".google.protobuf.{name}")
    add_field(order, "structs", 4, "repeated .google.protobuf.Struct")
    content = descriptors(found)
    values = [
        encoded(content, "shop.Order", **fields)
        for fields in (
            {"value": {"number_value": math.nan}},
            {"value": {"list_value": {"values": [{"number_value": math.inf}]}}},
            {"listvalue": [1.5, -math.inf]},
            {"structs": [{}, {"a": {"b": [math.nan]}}]},
            {"struct": {"a": 1e300}, "value": {}, "listvalue": [-0.0]},
        )
    ]
    rows = decode(content, "shop.Order", *values)
    assert [(error.row, error.reason) for error in rows.errors] == [
        (0, "out_of_range: a Value has NaN or an infinite number"),
        (1, "out_of_range: a Value has NaN or an infinite number"),
        (2, "out_of_range: a ListValue has NaN or an infinite number"),
        (3, "out_of_range: a Struct has NaN or an infinite number"),
    ]
    assert rows.columns.to_pylist()[4] == {
        "struct": '{"a": 1e+300}', "value": "null", "listvalue": "[-0.0]", "structs": [],
    }  # fmt: skip


def test_a_field_of_proto2_has_its_default_or_is_required() -> None:
    old = file("old", "proto2")
    message = old.message_type.add(name="A")
    add_field(message, "must", 1, "required string")
    message.field.add(name="may", number=2, label=1, type=5)
    message.field.add(name="seven", number=3, label=1, type=5, default_value="7")
    content = descriptors(old)
    found = decode(
        content, "old.A", encoded(content, "old.A", must="x"), encoded(content, "old.A", must="", may=0), b""
    )
    assert found.columns.to_pylist() == [
        {"must": "x", "may": None, "seven": 7},
        {"must": "", "may": 0, "seven": 7},
        {"must": None, "may": None, "seven": None},
    ]
    assert [(error.row, error.reason) for error in found.errors] == [
        (2, "missing_field: a required field is not there")
    ]
    assert [each.nullable for each in MessageDecoder(content, "old.A", None).columns] == [False, True, False]


def test_a_field_may_have_the_name_of_a_method() -> None:
    shops = file()
    names = [
        "ByteSize",
        "DESCRIPTOR",
        "HasField",
        "IsInitialized",
        "ListFields",
        "MergeFromString",
        "ParseFromString",
        "class",
    ]
    odd = shops.message_type.add(name="Odd")
    for number, name in enumerate(names, 1):
        add_field(odd, name, number, "optional int32")
    value = bytes(byte for number in range(1, len(names)) for byte in (number * 8, number + 40))
    found = decode(descriptors(shops), "shop.Odd", value, b"", value[:1])
    row = {name: number + 40 for number, name in enumerate(names, 1)} | {"class": None}
    assert found.columns.to_pylist() == [row, dict.fromkeys(names), dict.fromkeys(names)]
    assert [(error.row, error.reason) for error in found.errors] == [(2, "malformed")]


def test_a_damaged_message_has_a_reason_and_an_unknown_field_is_ignored() -> None:
    shops = shop()
    add_field(shops.message_type[0], "at", 3, ".google.protobuf.Timestamp")
    content = descriptors(shops)
    good = encoded(content, "shop.Item", sku="the secret", count=1)
    newer = shop()
    add_field(newer.message_type[0], "new", 9, "string")
    more = encoded(descriptors(newer), "shop.Item", sku="the secret", new="the secret")
    late = encoded(content, "shop.Item", at={"seconds": 2**60})
    found = decode(content, "shop.Item", good, good[:-1], b"\x0a\x01\xff", more, late, b"\xff" * 20)
    row = {"sku": "the secret", "count": 1, "at": None}
    assert found.columns.to_pylist() == [
        row, dict.fromkeys(row), dict.fromkeys(row), {**row, "count": None}, dict.fromkeys(row), dict.fromkeys(row),
    ]  # fmt: skip
    assert [(error.row, error.reason) for error in found.errors] == [
        (1, "malformed"), (2, "malformed"), (4, "out_of_range: a time is outside of the years 1 to 9999"), (5, "malformed"),
    ]  # fmt: skip


def changes(before: DescriptorProto, after: DescriptorProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fields = []
    for each in (before, after):
        shops = shop()
        shops.message_type.append(each)
        fields.append(MessageDecoder(descriptors(shops), "shop.A", None).fields)
    found = compare(*fields)
    return found.compatible, found.breaking


def message(*fields: tuple[str, int, str]) -> DescriptorProto:
    found = DescriptorProto(name="A")
    for each in fields:
        add_field(found, *each)
    return found


def test_a_change_is_compatible_if_older_values_and_readers_of_the_table_still_work() -> None:
    before = message(("a", 1, "int32"), ("b", 2, ".shop.Item"))
    assert changes(before, message(("b", 2, ".shop.Item"), ("a", 1, "int64"), ("c", 3, "string"))) == (
        ("(number of a) was 1 int32 and is now 1 int64", "(number of c) is new", "c is new"),
        (),
    )
    assert changes(before, message(("a", 3, "sint32"), ("b", 2, ".shop.Item")))[1] == (
        "(number of a) was 1 int32 and is now 3 sint32",
    )
    assert changes(before, message(("a", 1, "string")))[1] == (
        "(number of a) was 1 int32 and is now 1 bytes",
        "(number of b) is removed",
        "(number of b.count) is removed",
        "(number of b.sku) is removed",
        "a was int and is now str",
        "b is removed",
    )


def test_the_values_of_an_enum_keep_their_names() -> None:
    def with_colour(*values: tuple[str, int]) -> Mapping[str, ModelField]:
        colours = file()
        colour = colours.enum_type.add(name="Colour")
        for name, number in values:
            colour.value.add(name=name, number=number)
        colours.message_type.append(message(("a", 1, ".shop.Colour")))
        return MessageDecoder(descriptors(colours), "shop.A", None).fields

    before = with_colour(("NONE", 0), ("RED", 1))
    assert compare(before, with_colour(("NONE", 0), ("RED", 1), ("BLUE", 2))) == ModelChanges(
        ("(values of a) was 0 NONE, 1 RED and is now 0 NONE, 1 RED, 2 BLUE",)
    )
    for after in ((("NONE", 0), ("SCARLET", 1)), (("NONE", 0), ("RED", 2)), (("NONE", 0),)):
        shown = ", ".join(f"{number} {name}" for name, number in after)
        assert compare(before, with_colour(*after)).breaking == (f"(values of a) was 0 NONE, 1 RED and is now {shown}",)


NUMBERS = ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64"]


def test_a_number_may_only_become_a_number_of_more_bits_and_of_the_same_sign() -> None:
    accepted = {
        (one, two)
        for one in NUMBERS
        for two in NUMBERS
        if one != two and changes(message(("a", 1, one)), message(("a", 1, two)))[1] == ()
    }
    assert accepted == {("int32", "int64"), ("uint32", "uint64"), ("sint32", "sint64")}


def test_the_numbers_of_a_map_and_of_wrappers_are_compared_too() -> None:
    def of_map(key: str, value: str) -> DescriptorProto:
        found = DescriptorProto(name="A")
        add_map(found, "m", 1, key, value, "shop")
        return found

    assert changes(of_map("int64", "int64"), of_map("int32", "int32")) == (
        (),
        ("(key of m) was int64 and is now int32", "(value of m) was int64 and is now int32"),
    )
    wrapped = [message(("a", 1, f".google.protobuf.{name}Value")) for name in ("Int64", "Int32")]
    assert changes(*wrapped) == (
        (),
        ("(number of a) was 1 google.protobuf.Int64Value and is now 1 google.protobuf.Int32Value",),
    )


def test_a_message_that_cannot_become_columns_is_refused(tmp_path: Path) -> None:
    shops = shop()
    for name in ("Empty", "Deep", "Odd"):
        shops.message_type.add(name=name)
    add_field(shops.message_type[2], "next", 1, ".shop.Deep")
    add_field(shops.message_type[3], "_key", 1, "string")
    content = descriptors(shops)
    (tmp_path / "shop.desc").write_bytes(content)
    (tmp_path / "text.desc").write_text('syntax = "proto3";')
    (tmp_path / "empty.desc").write_bytes(b"")
    (tmp_path / "alone.desc").write_bytes(descriptors(shops, imports=False))
    how = "`protoc --descriptor_set_out=FILE --include_imports` writes such a file"
    problems = {
        "shop.desc:shop.None": "cannot be used: it has no message shop.None; its messages are google.protobuf.BoolValue,",
        "shop.desc:shop.Empty": "cannot become columns: Empty: shop.Empty has no fields",
        "shop.desc:shop.Deep": "cannot become columns: Deep.next: shop.Deep contains itself, but a column cannot",
        "shop.desc:shop.Odd": "cannot become columns: Odd._key: begins with an underscore",
        "text.desc:shop.A": f"cannot be used: it is no set of descriptors; {how}",
        "empty.desc:shop.A": f"cannot be used: it has no descriptors; {how}",
        "alone.desc:shop.Item": "cannot be used: it has a file that cannot be used: Couldn't build proto file",
    }
    for text, problem in problems.items():
        with pytest.raises(UnknownSchemaError) as refused:
            EventSchema(f"{tmp_path}/{text}").loaded()
        assert refused.value.problem.startswith(f"schema '{tmp_path}/{text}' {problem}")
    with pytest.raises(UnknownSchemaError) as refused:
        EventSchema(f"{tmp_path}/none.desc:shop.A").loaded()
    assert refused.value.problem == f"the schema's file {tmp_path}/none.desc cannot be read: No such file or directory"
