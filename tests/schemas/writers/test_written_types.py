"""Tests that a change of a schema in Avro is refused exactly if older values can no longer be read, or would mean something
else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.avro.avro_decoder import AvroDecoder
from schemas.comparing import compare
from schemas.key_decoder import KeyDecoder
from tests.schemas.avro.avro_values import Schema, decode, encoded, record, with_id
from tests.schemas.avro.test_avro_resolution import folder


def logical(kind: str, name: str, **more: Any) -> Schema:
    return {"type": kind, "logicalType": name, **more}


def enum(*symbols: str, **more: Any) -> Schema:
    return {"type": "enum", "name": "shop.Colour", "symbols": list(symbols), **more}


def fixed(size: int) -> Schema:
    return {"type": "fixed", "name": "shop.Size", "size": size}


def leg(name: str, **more: Any) -> Schema:
    return record(("a", "int"), name=name, **more)


REFUSED: list[tuple[Any, Any, Any]] = [
    ("long", "int", 5),
    ("double", "float", 5.0),
    (enum("RED", "BLUE"), enum("RED"), "BLUE"),
    ("string", enum("RED"), "RED"),
    (enum("RED"), "string", "RED"),
    (fixed(2), fixed(4), b"ab"),
    ("bytes", fixed(2), b"ab"),
    (leg("shop.One"), leg("shop.Two"), {"a": 1}),
    (logical("long", "time-micros"), "long", 5),
    ("int", logical("int", "time-millis"), 5),
    (logical("long", "local-timestamp-millis"), "string", 5),
    (logical("long", "timestamp-nanos"), logical("long", "timestamp-micros"), 5),
    (logical("string", "uuid"), "string", "12345678-1234-1234-1234-123456789012"),
    ({"type": "map", "values": ["null", "long"]}, {"type": "map", "values": ["null", "int"]}, {"k": 5}),
    ({"type": "map", "values": ["null", "long"]}, {"type": "map", "values": "long"}, {"k": None}),
    (["int", "long", "boolean"], ["int", "string", "boolean"], 2**40),
    (["int", "null", "long", "boolean"], ["float", "null", "long", "boolean"], 5),
    (["float", "string"], ["int", "string"], 0.5),
]
ACCEPTED: list[tuple[Any, Any, Any]] = [
    ("int", "long", 5),
    ("float", "double", 0.5),
    ("long", "double", 5),
    (enum("RED"), enum("BLUE", "RED"), "RED"),
    (enum("RED", "BLUE"), enum("RED", default="RED"), "RED"),
    (leg("shop.One"), leg("shop.Two", aliases=["shop.One"]), {"a": 1}),
    (leg("shop.One"), leg("trips.One"), {"a": 1}),
    (logical("int", "time-millis"), logical("long", "time-micros"), 5),
    (logical("long", "timestamp-micros"), logical("long", "timestamp-nanos"), 5),
    ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "long"]}, [5]),
    ({"type": "map", "values": "long"}, {"type": "map", "values": ["null", "long"]}, {"k": 5}),
    (["int", "long", "string"], ["long", "int", "string"], 2**40),
    (["int", "string"], ["double", "string"], 5),
]


@pytest.mark.parametrize(("before", "after", "value"), REFUSED + ACCEPTED)
def test_a_change_is_refused_if_an_older_value_is_lost_or_means_something_else(
    tmp_path: Path, before: Any, after: Any, value: Any
) -> None:
    old, new = record(("x", before)), record(("x", after))
    writers = folder(tmp_path, old)
    breaking = compare(*(AvroDecoder(json.dumps(schema), writers).fields for schema in (old, new))).breaking
    plain = before["type"] if isinstance(before, dict) and "logicalType" in before else before
    written = with_id(1, encoded(record(("x", plain)), {"x": value}))
    first, later = (decode(schema, written, writers=writers) for schema in (old, new))
    survives = not later.errors and first.columns.to_pylist() == later.columns.to_pylist()
    assert bool(breaking) != survives
    assert survives is ((before, after, value) in ACCEPTED)


def test_the_record_and_the_aliases_of_a_field_are_compared_too(tmp_path: Path) -> None:
    def fields(name: str, *aliases: str) -> Any:
        field = {"name": "x", "type": "int", "aliases": list(aliases)}
        return AvroDecoder(
            json.dumps({"type": "record", "name": name, "fields": [field]}), folder(tmp_path, "int")
        ).fields

    assert compare(fields("shop.One", "y"), fields("shop.One", "z", "y")).breaking == ()
    assert compare(fields("shop.One", "y"), fields("shop.Two")).breaking == (
        "(aliases of x) is removed",
        "(type of the record) was record shop.One and is now record shop.Two",
    )


def test_the_type_of_a_key_is_listed_only_if_its_column_is_not(tmp_path: Path) -> None:
    def fields(kind: str) -> Any:
        return KeyDecoder(AvroDecoder(json.dumps(record(("x", kind))), folder(tmp_path, "int"))).fields

    assert compare(fields("long"), fields("int")).breaking == ("(_key_ type of x) was long and is now int",)
    assert compare(fields("long"), fields("string")).breaking == ("_key_x was int and is now str",)
