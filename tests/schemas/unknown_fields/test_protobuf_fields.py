"""Tests that the column `_extra` has each field of a Protobuf message that the descriptors do not have."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from schemas.protobuf.message_decoder import MessageDecoder
from tests.schemas.protobuf.messages import add_field, add_map, descriptors, encoded, file
from tests.schemas.unknown_fields.kept_fields import kept_fields


def shop(*, is_new: bool, syntax: str = "proto3") -> FileDescriptorProto:
    """The file of a shop. The new one has more fields."""
    found = file(syntax=syntax)
    item, order = found.message_type.add(name="Item"), found.message_type.add(name="Order")
    add_field(item, "sku", 1, "string")
    add_field(order, "id", 1, "int64")
    add_field(order, "first", 2, ".shop.Item")
    add_field(order, "items", 3, "repeated .shop.Item")
    add_map(order, "by_name", 4, "bool", ".shop.Item", "shop")
    add_map(order, "counts", 5, "string", "int32", "shop")
    if is_new:
        add_field(item, "colour", 2, "string")
        add_field(order, "real", 11, "double")
        add_field(order, "whole", 12, "int32")
        add_field(order, "bits", 13, "fixed32")
        add_field(order, "text", 14, "string")
        add_field(order, "many", 15, "repeated string")
        add_field(order, "packed", 16, "repeated int32")
        add_field(order, "inner", 17, ".shop.Item")
    return found


NEW, OLD = (descriptors(shop(is_new=is_new)) for is_new in (True, False))


def extras(content: bytes, *values: bytes | None, name: str = "shop.Order") -> list[str | None]:
    kept, plain = (MessageDecoder(content, name, None, has_extra=has_extra) for has_extra in (True, False))
    return kept_fields(kept, plain, values)


def test_unknown_fields_are_kept_by_their_numbers() -> None:
    new = {
        "real": 1.0, "whole": -1, "bits": 7, "text": "ä", "many": ["", "b"], "packed": [1, 300], "inner": {"sku": "s"},
    }  # fmt: skip
    red: dict[str, Any] = {"sku": "s", "colour": "red"}
    values = [
        encoded(NEW, "shop.Order", id=1, **new),
        encoded(
            NEW, "shop.Order", first=red, items=[{"sku": "a"}, red], by_name={True: red, False: {}}, counts={"a": 1}
        ),
        encoded(NEW, "shop.Order", id=1, first={}),
        None,
    ]
    kept = (
        '{"11":[4607182418800017408],"12":[18446744073709551615],"13":[7],"14":["w6Q="],"15":["","Yg=="],'
        '"16":["AawC"],"17":["CgFz"]}'
    )
    assert extras(OLD, *values) == [
        kept,
        '{"by_name":{"true":{"2":["cmVk"]}},"first":{"2":["cmVk"]},"items":[null,{"2":["cmVk"]}]}',
        None,
        None,
    ]
    assert extras(NEW, *values) == [None, None, None, None]


def test_what_the_parser_leaves_is_unknown() -> None:
    """Groups, values with the wire type of another type, and in proto2, enums without a name."""
    old = file("old", "proto2")
    colour = old.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=1)
    message = old.message_type.add(name="A")
    add_field(message, "id", 1, "int64")
    add_field(message, "colour", 2, ".old.Colour")
    group = bytes([0x5B, 0x08, 5, 0x13, 0x08, 6, 0x14, 0x08, 7, 0x5C])  # 11 { 1: 5, 2 { 1: 6 }, 1: 7 }
    values = b"\x10\x07", group, b"\x0a\x01a\x08\x05"
    assert extras(descriptors(old), *values, name="old.A") == [
        '{"2":[7]}',
        '{"11":[{"1":[5,7],"2":[{"1":[6]}]}]}',
        '{"1":["YQ=="]}',
    ]


@pytest.mark.parametrize("is_declared", [True, False])
def test_extensions_are_unknown(is_declared: bool) -> None:
    """They have no columns, also if the descriptors have them. All their values are kept as they are in the message."""
    old = file("old", "proto2")
    message = old.message_type.add(name="A")
    add_field(message, "id", 1, "int64")
    message.extension_range.add(start=100, end=200)
    if is_declared:
        add_map(message, "many", 2, "string", "int32", "old")
        for scope, name, number, kind in ((old, "note", 100, "string"), (message, "numbers", 101, "repeated int32")):
            add_extension(scope, name, number, kind)
        add_extension(old, "inner", 102, ".old.A")
    twice = b"\xa2\x06\x01n\xa2\x06\x01m"  # 100: "n", "m"
    numbers = b"\xaa\x06\x02\x01\x02\xa8\x06\x03"  # 101: packed 1 and 2, then 3
    maps = b"\xb2\x06\x12" + b"".join(b"\x12\x04\x0a\x02%s" % each for each in (b"zz", b"aa", b"mm"))
    value = b"\x08\x01" + twice + numbers + maps + b"\xc8\x01\x05"  # 25: 5
    assert extras(descriptors(old), value, name="old.A") == [
        '{"100":["bg==","bQ=="],"101":["AQI=",3],"102":["EgQKAnp6EgQKAmFhEgQKAm1t"],"25":[5]}'
    ]


def add_extension(scope: Any, name: str, number: int, kind: str) -> None:
    """Declare an extension of the message A, in a file or in a message."""
    found = DescriptorProto()
    add_field(found, name, number, kind)
    scope.extension.add().CopyFrom(found.field[0])
    scope.extension[-1].extendee = ".old.A"


def test_a_message_may_have_fields_with_the_names_of_methods() -> None:
    found = file("odd")
    message = found.message_type.add(name="A")
    for number, name in enumerate(("ListFields", "ClearField", "FromString", "DESCRIPTOR"), 1):
        add_field(message, name, number, "int64")
    assert extras(descriptors(found), b"\x08\x01\x48\x05", name="odd.A") == ['{"9":[5]}']
