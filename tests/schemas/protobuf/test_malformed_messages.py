"""Tests that bytes become the row that Protobuf prescribes, or have a reason. Protobuf's specification says which bytes a
parser must accept although encoders do not write them: these are not malformed."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.schemas.protobuf.messages import add_field, add_map, decode, descriptors, file

MALFORMED = "malformed"
INVALID = b"\xff"
SURROGATE = b"\xed\xa0\x80"


def shop(syntax: str) -> FileDescriptorProto:
    found = file("shop", syntax)
    colour = found.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    item = found.message_type.add(name="Item")
    add_field(item, "n", 1, "int32")
    add_field(item, "sku", 2, "string")
    order = found.message_type.add(name="Order")
    fields = [
        "int32",
        "uint64",
        "string",
        "bool",
        ".shop.Colour",
        ".shop.Item",
        "repeated int32",
        "repeated .shop.Colour",
    ]
    for number, kind in enumerate(fields, 1):
        add_field(order, f"f{number}", number, kind)
    add_map(order, "f9", 9, "string", "int32", "shop")
    return found


# What it is, the bytes, and the fields that are not null, 0, false or empty; or the reason why there is no row.
BOTH: list[tuple[str, bytes, dict[str, Any] | str]] = [
    ("a number with more bytes than it needs", b"\x08\x81\x80\0", {"f1": 1}),
    ("a number of 11 bytes", b"\x08\x81" + b"\x80" * 9 + b"\0", MALFORMED),
    ("an int32 with 33 bits", b"\x08\x81\x80\x80\x80\x10", {"f1": 1}),
    ("a bool of 2", b"\x20\x02", {"f4": True}),
    ("a field with the wire type of another type", b"\x0a\x01x", {}),
    ("a cut number", b"\x08\x81", MALFORMED),
    ("a cut string", b"\x1a\x05ab", MALFORMED),
    ("a cut tag", b"\x88", MALFORMED),
    ("a cut list of packed numbers", b"\x3a\x02\x01\x80", MALFORMED),
    ("a string of 2^31 bytes", b"\x1a\x80\x80\x80\x80\x08", MALFORMED),
    ("the field number 0", b"\0\x01", MALFORMED),
    ("the wire type 6", b"\x0e", MALFORMED),
    ("the wire type 7", b"\x0f", MALFORMED),
    ("a group of an unknown field", b"\xa3\x06\x08\x01\xa4\x06", {}),
    ("a group without an end", b"\xa3\x06\x08\x01", MALFORMED),
    ("an end without a group", b"\xa4\x06", MALFORMED),
    ("a group with the end of another", b"\xa3\x06\xac\x06", MALFORMED),
    ("groups in groups, more than 100", b"\xa3\x06" * 150 + b"\xa4\x06" * 150, MALFORMED),
    ("the same field twice", b"\x08\x01\x08\x02", {"f1": 2}),
    ("the same message twice", b"\x32\x02\x08\x01\x32\x03\x12\x01a", {"f6": {"n": 1, "sku": "a"}}),
    ("the same key twice", b"\x4a\x05\x0a\x01a\x10\x01\x4a\x05\x0a\x01a\x10\x02", {"f9": [("a", 2)]}),
    ("a key that is not there", b"\x4a\x02\x10\x01", {"f9": [("", 1)]}),
    ("numbers that are packed and numbers that are not", b"\x3a\x02\x01\x02\x38\x03", {"f7": [1, 2, 3]}),
    ("a key that is not UTF-8", b"\x4a\x03\x0a\x01" + INVALID, MALFORMED),
]  # fmt: skip
PROTO3: list[tuple[str, bytes, dict[str, Any] | str]] = [
    ("an enum without a name", b"\x28\x07", {"f5": "7"}),
    ("a list with an enum without a name", b"\x42\x02\x01\x07", {"f8": ["BLUE", "7"]}),
    ("a string that is not UTF-8", b"\x1a\x01" + INVALID, MALFORMED),
    ("a string with a surrogate", b"\x1a\x03" + SURROGATE, MALFORMED),
    ("an inner string that is not UTF-8", b"\x32\x03\x12\x01" + INVALID, MALFORMED),
]
PROTO2: list[tuple[str, bytes, dict[str, Any] | str]] = [
    ("an enum without a name", b"\x28\x07", {}),
    ("a list with an enum without a name", b"\x42\x02\x01\x07", {"f8": ["BLUE"]}),
    ("a string that is not UTF-8", b"\x1a\x01" + INVALID, "not_utf8 at f3"),
    ("a string with a surrogate", b"\x1a\x03" + SURROGATE, "not_utf8 at f3"),
    ("an inner string that is not UTF-8", b"\x32\x03\x12\x01" + INVALID, "not_utf8 at f6"),
]


@pytest.mark.parametrize(("syntax", "cases"), [("proto3", BOTH + PROTO3), ("proto2", BOTH + PROTO2)])
def test_unusual_bytes_become_the_row_that_protobuf_prescribes(
    syntax: str, cases: list[tuple[str, bytes, Any]]
) -> None:
    found = decode(descriptors(shop(syntax)), "shop.Order", *(value for _, value, _ in cases))
    reasons = {error.row: error.reason for error in found.errors}
    empty: tuple[Any, ...] = (None, 0, "", False, [], "RED")
    rows = [{name: each for name, each in row.items() if each not in empty} for row in found.columns.to_pylist()]
    assert {what: reasons.get(number, rows[number]) for number, (what, _, _) in enumerate(cases)} == {
        what: wanted for what, _, wanted in cases
    }
