"""Tests values in Confluent's wire format for Protobuf: which message a value is, by the writer's .proto file."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.protobuf.message_types import ProtobufSchemaError
from schemas.protobuf.proto_names import ProtoFile
from schemas.writers.registry import SchemaRegistry
from schemas.writers.writer_schemas import SchemaFolder
from tests.schemas.protobuf.messages import add_field, decode, descriptors, encoded, file, framed
from tests.schemas.writers.schema_registry import schema_registry

PROTO = """
syntax = "proto3"; // message Commented {}
package shop;
import "google/protobuf/timestamp.proto";
/* message AlsoCommented { */
option java_package = "message Quoted { \\" }";
enum Colour { option allow_alias = true; NONE = 0; }
message Order {
  message Item { string sku = 1 [(checked) = { min: 1 }]; enum Size { S = 0; } message Part { int32 n = 1; } }
  oneof payment { Item free = 1; string card = 2; }
  map<string, Item> items = 3;
  reserved 4, 5 to 7;
}
service Shop { rpc Buy (Order) returns (Order) { option deprecated = true; } }
message Customer { extensions 100 to max; }
"""
OLD = """
syntax = "proto2";
message A { optional group First = 1 { repeated group Deep = 1 {} } oneof x { group Second = 2 {} } message Third {} }
extend A { optional int32 n = 100; }
message B {}
"""


def test_the_name_of_a_message_is_found_by_its_place() -> None:
    shop, old = ProtoFile.parse(PROTO), ProtoFile.parse(OLD)
    places = [(0,), (0, 0), (0, 0, 0), (1,), (2,), (0, 1), (-1,), (0, 0, 0, 0)]
    assert [shop.name_at(each) for each in places] == [
        "shop.Order", "shop.Order.Item", "shop.Order.Item.Part", "shop.Customer", None, None, None, None,
    ]  # fmt: skip
    assert [old.name_at(each) for each in [(0,), (0, 0), (0, 0, 0), (0, 1), (0, 2), (1,)]] == [
        "A", "A.First", "A.First.Deep", "A.Second", "A.Third", "B",
    ]  # fmt: skip


MAPS = """
syntax = "proto3";
message Order { map<string, int32> counts = 1; message Item {} message Part {} message Box {} }
message One { map<int32, string> names = 1; message Inner {} }
"""


def test_a_place_that_clients_count_in_two_ways_is_a_dead_letter(tmp_path: Path) -> None:
    """protoc adds a message for each map, here before Item."""
    (tmp_path / "1.proto").write_text(MAPS)
    found = file(package="")
    order = found.message_type.add(name="Order")
    add_field(order.nested_type.add(name="Item"), "sku", 1, "string")
    content = descriptors(found)
    item = encoded(content, "Order.Item", sku="a")
    writers = SchemaFolder.read(str(tmp_path))
    values = [framed(1, [0, 0], item), framed(1, [0, 1], item), framed(1, [0, 2], item), framed(1, [0, 3], item)]
    rows = decode(content, "Order.Item", *values, writers=writers)
    ambiguous = "the place of the message is ambiguous, because clients count maps in two ways"
    assert [(error.row, error.reason) for error in rows.errors] == [
        (1, f"no_message_indexes: in the schema with the id 1, {ambiguous}"),
        (2, f"no_message_indexes: in the schema with the id 1, {ambiguous}"),
        (3, "other_message: the value is the message Order.Box, not Order.Item"),
    ]
    assert rows.columns.to_pylist() == [{"sku": "a"}, {"sku": None}, {"sku": None}, {"sku": None}]
    assert [ProtoFile.parse(MAPS).name_at(place) for place in [(1, 0), (1, 1)]] == ["One.Inner"] * 2


OPTIONS = """
syntax = "proto2";
package odd . pkg.deep;
import "google/protobuf/descriptor.proto";
message Rule { optional int32 most = 1; repeated Rule rules = 2; optional string text = 3; }
extend google.protobuf.FieldOptions { optional Rule rule = 50001; }
extend google.protobuf.MessageOptions { optional Rule whole = 50002; }
message Outer {
  option (whole) = { rules: [ { most: 1 }, { rules { text: "}]{" } } ] };
  map<string, string> labels = 1 [(rule) = { most: 10 rules: [{ most: 1 }] }, deprecated = true];
  message A { optional string id = 1 [default = "]{"]; }
  map < int32 , A > more = 2 [(rule) = { text: '[' }];
  optional group Grouped = 3 [(rule) = { most: 1 }] { message Inside {} map<string, int32> n = 1; }
  oneof one { A a = 4 [(rule) = { most: 1 }]; string b = 5; }
  enum Kind { NONE = 0 [deprecated = true]; }
  extensions 100 to 199;
  message B { optional string id = 1; }
}
"""


def test_braces_in_options_are_no_blocks() -> None:
    """The places are those of protoc, with a message for each map."""
    found = ProtoFile.parse(OPTIONS)
    names = {
        (0,): "Rule", (1,): "Outer", (1, 3): "Outer.Grouped", (1, 3, 0): "Outer.Grouped.Inside", (1, 4): "Outer.B",
    }  # fmt: skip
    assert {place: found.name_at(place) for place in names} == {
        place: f"odd.pkg.deep.{name}" for place, name in names.items()
    }
    assert [found.name_at(place) for place in [(1, 0), (1, 2)]] == ["odd.pkg.deep.Outer.A", "odd.pkg.deep.Outer.B"]
    with pytest.raises(ProtobufSchemaError, match="clients count maps in two ways"):
        found.name_at((1, 1))


@pytest.mark.parametrize("text", ["", "{", "}", "message A {", 'syntax = "proto3";', '{"type": "record"}'])
def test_what_is_no_proto_file_is_an_error(text: str) -> None:
    with pytest.raises(ProtobufSchemaError):
        ProtoFile.parse(text)


def shop() -> bytes:
    found = file()
    order = found.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    add_field(item, "sku", 1, "string")
    add_field(order, "card", 2, "string")
    return descriptors(found)


def test_a_value_of_another_message_or_an_unknown_schema_is_a_dead_letter(tmp_path: Path) -> None:
    (tmp_path / "1.proto").write_text(PROTO)
    (tmp_path / "2.proto").write_text("no messages")
    (tmp_path / "3.avsc").write_text('"string"')
    writers = SchemaFolder.read(str(tmp_path))
    content = shop()
    order, item = encoded(content, "shop.Order", card="visa"), encoded(content, "shop.Order.Item", sku="a")
    values = [
        framed(1, [0], order), b"\0\0\0\0\1\2\0" + order, framed(1, [0, 0], item), framed(1, [7], order),
        framed(2, [0], order), framed(3, [0], order), framed(4, [0], order), order, b"\0\0\0\0\1", b"\0\0\0\0\1\x01",
        b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff", framed(1, [0], order[:-1]),
    ]  # fmt: skip
    found = decode(content, "shop.Order", *values, writers=writers)
    indexes = "no_message_indexes: the id is not followed by the place of a message"
    assert [(error.row, error.reason) for error in found.errors] == [
        (2, "other_message: the value is the message shop.Order.Item, not shop.Order"),
        (3, "no_message_indexes: the schema with the id 1 has no message at the place in the value"),
        (4, "unusable_schema: the schema with the id 2 cannot be used: it is no .proto file with messages"),
        (5, "other_format: the schema with the id 3 is AVRO, not PROTOBUF"),
        (6, f"unknown_schema: the folder {tmp_path} has no schema with the id 4"),
        (7, "no_schema_id: neither a header nor the first bytes of the value are the id of a schema"),
        (8, indexes),
        (9, indexes),
        (10, indexes),
        (11, "malformed"),
    ]
    assert found.columns.to_pylist()[:2] == [{"card": "visa"}] * 2
    nested = decode(content, "shop.Order.Item", framed(1, [0, 0], item), writers=writers)
    assert nested.columns.to_pylist() == [{"sku": "a"}]


def test_the_writers_schema_is_read_from_a_registry_once() -> None:
    content = shop()
    with schema_registry() as server:
        number = server.add(PROTO, "orders-value", "PROTOBUF")
        values = [framed(number, [0], encoded(content, "shop.Order", card=card)) for card in ("visa", "amex")]
        found = decode(content, "shop.Order", *values, writers=SchemaRegistry.at(server.url, "", ""))
        assert found.errors == []
        assert found.columns.to_pylist() == [{"card": "visa"}, {"card": "amex"}]
        assert server.requests == [f"/schemas/ids/{number}"]
