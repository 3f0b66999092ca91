"""Tests that schema ids in the headers of records are found. The bytes of HEADERS, VALUES and KEY are what the
serializers of confluent-kafka 2.16.1 wrote with `header_schema_id_serializer`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from schemas.event_schema import EventSchema
from schemas.schema_errors import RegistryError
from schemas.writers.registry import SchemaRegistry
from schemas.writers.writer_schemas import SchemaFolder, WriterSchemas, WrittenSchema
from tests.schemas.avro.avro_values import record, with_id
from tests.schemas.protobuf import messages
from tests.schemas.writers.schema_registry import schema_registry

ORDER = record(("id", "string"), ("amount", "int"))
VALUE_GUID = UUID("7a2c1556-653d-4520-a854-e3c113e3921a")
KEY_GUID = UUID("25fb2e23-1f29-4ebc-9503-25f7b29c5fda")
AVRO = b"\x02a\x0e"
AVRO_HEADER = ("__value_schema_id", b"\x01z,\x15Ve=E \xa8T\xe3\xc1\x13\xe3\x92\x1a")
KEY_HEADER = ("__key_schema_id", b"\x01%\xfb.#\x1f)N\xbc\x95\x03%\xf7\xb2\x9c_\xda")
PROTO_GUID = UUID("cb252347-ad35-4f24-b724-7aa89e2b7197")
PROTO_START = b"\x01\xcb%#G\xad5O$\xb7$z\xa8\x9e+q\x97"
PROTO = """
syntax = "proto3";
package shop;
message Other { string id = 1; }
message Order { string id = 1; message Item { string sku = 1; } }
"""
NO_ID = "no_schema_id: neither a header nor the first bytes of the value are the id of a schema"
NO_INDEXES = "no_message_indexes: the id is not followed by the place of a message"

Headers = Sequence[tuple[str, bytes | None]] | None


@dataclass(frozen=True)
class Found:
    rows: list[dict[str, Any]]
    errors: dict[int, str]


def decoded(schema: EventSchema, *records: tuple[bytes | None, Headers]) -> Found:
    """What records become, as part of a larger batch."""
    some = [("before", b"1"), ("__value_schema_id", b"2")]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    values = pa.array([b"before", *(value for value, _ in records), b"after"], pa.binary())
    lists = [None if each is None else [{"key": key, "value": value} for key, value in each] for _, each in records]
    headers = pa.array([[dict(zip(("key", "value"), each, strict=True)) for each in some], *lists, None], kind)
    found = schema.decode(values.slice(1, len(records)), headers.slice(1, len(records)))
    return Found(found.columns.to_pylist(), {each.row: each.reason for each in found.errors})


def avro(folder: Path, writers: WriterSchemas | None, *, of_key: bool = False) -> EventSchema:
    (folder / "order.avsc").write_text(json.dumps(ORDER))
    return EventSchema(f"{folder}/order.avsc", writers=writers, of_key=of_key).loaded()


def schemas_of(folder: Path, **files: str) -> SchemaFolder:
    (folder / "schemas").mkdir()
    for name, text in files.items():
        (folder / "schemas" / name.replace("__", ".")).write_text(text)
    return SchemaFolder.read(f"{folder}/schemas")


def test_an_avro_value_is_decoded_with_the_schema_that_a_header_names(tmp_path: Path) -> None:
    writers = schemas_of(tmp_path, **{"7.avsc": json.dumps(ORDER), f"{VALUE_GUID}.avsc": json.dumps(ORDER)})
    guid = AVRO_HEADER[1]
    name = "__value_schema_id"
    found = decoded(
        avro(tmp_path, writers),
        (AVRO, [AVRO_HEADER]),
        (AVRO, [("a", b"\0"), ("__key_schema_id", b"x"), AVRO_HEADER, ("b", None)]),
        (AVRO, [(name, b"not an id"), AVRO_HEADER]),
        (AVRO, [(name, guid + b"more")]),
        (AVRO, [(name, b"\0\0\0\0\7")]),
        (with_id(7, AVRO), [(name, None)]),
        (with_id(7, AVRO), []),
        (with_id(7, AVRO), None),
        (guid + AVRO, []),
        (None, [AVRO_HEADER]),
        (with_id(7, AVRO), [AVRO_HEADER]),
        (with_id(7, AVRO), [(name, guid[:-1])]),
        (with_id(7, AVRO), [(name, b"")]),
        (AVRO, [AVRO_HEADER, (name, b"\2" + guid[1:])]),
        (AVRO, [(name, guid[:-1] + b"x")]),
        (AVRO[:-1], [AVRO_HEADER]),
        (AVRO, [KEY_HEADER]),
        (b"", [AVRO_HEADER]),
    )
    row = {"id": "a", "amount": 7}
    missing = f"unknown_schema: the folder {tmp_path}/schemas has no schema with the id {str(VALUE_GUID)[:-2]}78"
    short = "too_short: the value ends before all of its fields"
    # With the header, the five bytes of the other id are part of the value: an empty text, the number 0, and three more.
    too_long = "too_long: the value has more bytes than its schema describes"
    assert found.errors == {
        10: too_long, 11: NO_ID, 12: NO_ID, 13: NO_ID, 14: missing, 15: short, 16: NO_ID, 17: short,
    }  # fmt: skip
    nothing = {"id": None, "amount": None}
    assert found.rows == [nothing if number >= 9 else row for number in range(18)]


def test_a_key_has_a_header_of_its_own(tmp_path: Path) -> None:
    writers = schemas_of(tmp_path, **{f"{KEY_GUID}.avsc": json.dumps(ORDER)})
    schema = avro(tmp_path, writers, of_key=True)
    found = decoded(schema, (AVRO, [KEY_HEADER]), (AVRO, [AVRO_HEADER]))
    assert found == Found(
        [{"_key_id": "a", "_key_amount": 7}, {"_key_id": None, "_key_amount": None}], {1: f"key: {NO_ID}"}
    )


def test_without_a_registry_the_headers_do_not_matter(tmp_path: Path) -> None:
    found = decoded(avro(tmp_path, None), (AVRO, [("__value_schema_id", b"x")]), (AVRO, None))
    assert found == Found([{"id": "a", "amount": 7}] * 2, {})


def test_a_protobuf_header_also_has_the_place_of_the_message(tmp_path: Path) -> None:
    writers = schemas_of(tmp_path, **{f"{PROTO_GUID}.proto": PROTO})
    shop = messages.file()
    order = shop.message_type.add(name="Order")
    messages.add_field(order, "id", 1, "string")
    messages.add_field(order.nested_type.add(name="Item"), "sku", 1, "string")
    (tmp_path / "shop.desc").write_bytes(messages.descriptors(shop))
    of_order, of_item = (
        EventSchema(f"{tmp_path}/shop.desc:shop.{name}", writers=writers).loaded() for name in ("Order", "Order.Item")
    )
    name = "__value_schema_id"
    value = b"\n\x01o"
    found = decoded(
        of_order,
        (value, [(name, PROTO_START + b"\x02\x02")]),
        (b"", [(name, PROTO_START + b"\x02\x02more")]),
        (PROTO_START + b"\x02\x02" + value, None),
        (value, [(name, PROTO_START + b"\0")]),
        (value, [(name, PROTO_START)]),
        (b"\x02\x02" + value, [(name, PROTO_START)]),
        (b"\x02" + value, [(name, PROTO_START + b"\x02")]),
    )
    other = "other_message: the value is the message shop.Other, not shop.Order"
    assert found.errors == {3: other, **dict.fromkeys((4, 5, 6), NO_ID)}
    assert [each["id"] for each in found.rows] == ["o", "", "o", *[None] * 4]
    found = decoded(of_item, (b"\n\x01s", [(name, PROTO_START + b"\x04\x02\0")]))
    assert found == Found([{"sku": "s"}], {})


@pytest.mark.parametrize("of_key", [False, True], ids=["value", "key"])
def test_an_id_before_a_text_in_json_is_skipped(*, of_key: bool) -> None:
    schema = EventSchema("id STRING", of_key=of_key).loaded()
    text = b'{"id":"a"}'
    found = decoded(
        schema,
        (b"\0\0\0\0\x03" + text, None),
        (PROTO_START + text, None),
        (text, [AVRO_HEADER]),
        (b"\0\0\0" + text, None),
    )
    prefix, place = ("_key_", "key: ") if of_key else ("", "")
    assert found.rows == [{f"{prefix}id": "a"}] * 3 + [{f"{prefix}id": None}]
    assert {row: reason.split(" ")[: 2 if of_key else 1] for row, reason in found.errors.items()} == {
        3: [*place.split(), "json_invalid"]
    }


def test_a_registry_is_asked_for_a_guid_once(tmp_path: Path) -> None:
    with schema_registry() as server:
        server.add(json.dumps(ORDER), "orders-value")
        server.guids[str(VALUE_GUID)] = 1
        registry = SchemaRegistry.at(server.url, "", "")
        assert registry.find(VALUE_GUID) == WrittenSchema("AVRO", json.dumps(ORDER))
        assert registry.find(KEY_GUID) is None
        server.requests.clear()
        schema = avro(tmp_path, registry)
        assert decoded(schema, *[(AVRO, [AVRO_HEADER])] * 3) == Found([{"id": "a", "amount": 7}] * 3, {})
        assert server.requests == [f"/schemas/guids/{VALUE_GUID}"]
        unknown = f"unknown_schema: the registry {server.url} has no schema with the id {KEY_GUID}"
        other = (AVRO, [("__value_schema_id", KEY_HEADER[1])])
        assert decoded(schema, (AVRO, [AVRO_HEADER]), other).errors == {1: unknown}
        # A registry that does not know GUIDs answers as for any other path that it does not have.
        server.answers[f"/schemas/guids/{KEY_GUID}"] = (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}')
        with pytest.raises(RegistryError) as caught:
            decoded(schema, other)
        assert str(caught.value) == (
            f"the registry {server.url}: does not know the path /schemas/guids, so it cannot find a schema by the GUID in a"
            " header. Use a newer version of the registry, or a folder of schemas."
        )
