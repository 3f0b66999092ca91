"""Writes Avro values with fastavro's own encoder, for tests."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from schemas.avro.avro_decoder import AvroDecoder
from schemas.decoder import DecodedValues
from schemas.writers.writer_schemas import WriterSchemas

Schema = dict[str, Any] | list[Any] | str


def record(*fields: tuple[str, Schema] | tuple[str, Schema, Any], name: str = "shop.Order", **more: Any) -> Schema:
    """A record. A third item of a field is its default."""
    given = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return {"type": "record", "name": name, "fields": given, **more}


def encoded(schema: Schema, value: Any) -> bytes:
    """The value in plain Avro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def of_branch(number: int, branch: Schema, value: Any) -> bytes:
    """A value of a branch of a union. fastavro's encoder chooses the branch itself, and takes bytes for an array."""
    return encoded("long", number) + encoded(branch, value)


def by_name(schema: Schema) -> Schema:
    """The schema as it is written after its named types were defined."""
    if not isinstance(schema, dict):
        return schema
    if "name" in schema:
        return str(schema["name"])
    return {key: by_name(value) if key in ("items", "values") else value for key, value in schema.items()}


def with_id(number: int, value: bytes) -> bytes:
    """The value in Confluent's wire format."""
    return b"\0" + number.to_bytes(4, "big") + value


def decode(reader: Schema, *values: bytes | None, writers: WriterSchemas | None = None) -> DecodedValues:
    return AvroDecoder(json.dumps(reader), writers).decode(pa.array(values, pa.binary()))
