"""Tests which descriptions of fields are found in each kind of schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto
from pydantic import Field

from schemas.descriptions import descriptions_of
from schemas.event_model import EventModel
from schemas.event_schema import EventSchema
from tests.schemas.protobuf.messages import add_field, add_map, descriptors, file


class Leg(EventModel):
    distance: int = Field(description="in miles")
    carrier: str


class Trip(EventModel):
    tail: Annotated[str, Field(description="names the\n    aircraft")]
    legs: list[Leg | None] = Field(description="in order")
    last: Leg | None = None


def test_a_model_has_the_descriptions_of_its_fields_and_of_nested_models() -> None:
    assert descriptions_of(EventSchema(f"{__name__}:Trip", (str(Path(__file__).resolve().parents[2]),))) == {
        ("tail",): "names the aircraft",
        ("legs",): "in order",
        ("legs", "distance"): "in miles",
        ("last", "distance"): "in miles",
    }


@pytest.mark.parametrize(("of_key", "prefix"), [(False, ""), (True, "_key_")])
def test_ddl_has_comments(of_key: bool, prefix: str) -> None:
    text = r"id STRING NOT NULL COMMENT 'the buyer\'s\nnumber', n BIGINT, p ARRAY<STRUCT<w: DOUBLE COMMENT 'in kg'>>"
    assert descriptions_of(EventSchema(text, of_key=of_key)) == {
        (f"{prefix}id",): "the buyer's number",
        (f"{prefix}p", "w"): "in kg",
    }


def test_avro_has_docs_also_in_types_that_are_used_by_name() -> None:
    part = {"type": "record", "name": "Part", "fields": [{"name": "weight", "type": "double", "doc": "in kg"}]}
    fields = [
        {"name": "number", "type": "long", "doc": "of the order"},
        {"name": "parts", "type": {"type": "array", "items": part}},
        {"name": "main", "type": ["null", "Part"], "doc": "the largest"},
        {"name": "named", "type": {"type": "map", "values": "Part"}},
        {"name": "either", "type": ["long", "Part"], "doc": "a union"},
    ]
    content = json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()
    assert descriptions_of(EventSchema("order.avsc", content=content)) == {
        ("number",): "of the order",
        ("parts", "weight"): "in kg",
        ("main",): "the largest",
        ("main", "weight"): "in kg",
        ("named", "weight"): "in kg",
        ("either",): "a union",
    }


def test_protobuf_has_the_comments_that_protoc_wrote() -> None:
    shop = file()
    order = shop.message_type.add(name="Order")
    part: DescriptorProto = order.nested_type.add(name="Part")
    add_field(part, "weight", 1, "double")
    add_field(order, "number", 1, "int64")
    add_field(order, "parts", 2, "repeated .shop.Order.Part")
    add_map(order, "named", 3, "string", ".shop.Order.Part", "shop")
    add_field(order, "at", 4, ".google.protobuf.Timestamp")
    for path, text in (([4, 0, 2, 0], " of the order\n"), ([4, 0, 3, 0, 2, 0], " in\n kg\n"), ([4, 0], " An order.\n")):
        shop.source_code_info.location.add(path=path, span=[0, 0, 0], leading_comments=text)
    schema = EventSchema("shop.desc:shop.Order", content=descriptors(shop))
    assert descriptions_of(schema) == {
        ("number",): "of the order",
        ("parts", "weight"): "in kg",
        ("named", "weight"): "in kg",
    }
