"""Defines the columns of an exported table, and the additional columns that exist only during an export.

This module needs no Spark.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from pipeline.delta.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta.export_plan import Export, ExportMode
from schemas.key_decoder import is_of_key
from storage_engine.topic.chain.topic_state import RecordedModel

NO_KEY = "no key"
UNDECODABLE = "undecodable"
NO_VALUE = "no value"
REASONS = (NO_KEY, NO_VALUE, UNDECODABLE)
"""All reasons of a dead letter."""

COORDINATES = pa.schema(
    [
        ("_key", pa.binary()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_PLACE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
STALE_SINCE = pa.field("_stale_since", _PLACE)
"""In upsert mode: the place of the first newer record of the key that could not be decoded. Null: the row is
current."""
DIGEST = pa.field("_digest", pa.binary())
"""The hash of the row (pipeline.delta.chain.row_digest)."""
CHANGE_TYPE = pa.field("_change_type", pa.string())
"""In changelog mode: the kind of the change."""
UPSERTED, DELETED = "upsert", "delete"
HEADERS_COLUMN = "_headers"
_HEADERS = EXPORT_DEAD_LETTERS.field("headers").type
RAW_VALUE = "value"
"""The column of a table without a model: the bytes of each record's value."""
_VALUE = pa.schema([(RAW_VALUE, pa.binary())])
# Internal columns of decoded records. No field of a pydantic model begins with an underscore.
HANDLING = pa.schema(
    [
        ("_reason", pa.string()),  # null: the record becomes a row, or is a tombstone
        ("_detail", pa.string()),
        ("_value", pa.binary()),
        ("_bad_headers", _HEADERS),
        ("_tombstone", pa.bool_()),  # the value is null
    ]
)
COUNTS = pa.schema([("_records", pa.int64()), ("_nulls", pa.int64())])
"""In reduced rows: how many records a row represents, and how many of these records are tombstones."""


def decoded_fields(export: Export) -> list[pa.Field]:
    """The columns of the value and of the key. Without a schema, the value is one column with its bytes, and the key has
    no column of its own."""
    fields = [*(export.schema.columns if export.schema is not None else _VALUE)]
    keys = export.key_schema.columns if export.key_schema is not None else ()
    return [each.with_nullable(True) for each in (*fields, *keys)]


def row_columns(export: Export) -> pa.Schema:
    """The columns that are computed from one record."""
    headers = [pa.field(HEADERS_COLUMN, _HEADERS)] if export.headers else []
    change = [CHANGE_TYPE] if export.mode is ExportMode.CHANGELOG else []
    digest = [DIGEST] if export.digest else []
    return pa.schema([*decoded_fields(export), *COORDINATES, *headers, *change, *digest])


def nullable_fields(export: Export) -> frozenset[str]:
    """The fields of the models that may be null in a row. Without a model, the value of a row is never null, because a
    record without a value is a tombstone or a dead letter."""
    schemas = (each for each in (export.schema, export.key_schema) if each is not None)
    return frozenset(each.name for schema in schemas for each in schema.columns if each.nullable)


def table_columns(export: Export) -> pa.Schema:
    """The columns of the table."""
    columns = row_columns(export)
    return columns.append(STALE_SINCE) if export.mode is ExportMode.UPSERT else columns


def columns_without_schema(model: RecordedModel | None, columns: Collection[str]) -> list[str]:
    """The columns of a table in which an export without a schema would write null: they are fields of the values, according
    to the model that is recorded in the topic."""
    fields = model.fields if model is not None else ()
    return [path for path in fields if path in columns and path != RAW_VALUE and not is_of_key(path)]


def carried_columns(columns: pa.Schema) -> list[str]:
    """The columns of a record that are copied to the table unchanged."""
    return [name for name in ("key", "partition", "offset", "timestamp", "headers") if f"_{name}" in columns.names]


def nullable_columns(columns: pa.Schema) -> pa.Schema:
    """The same columns, each nullable down to the elements of lists and the values of maps, as Spark creates them
    (lakelog.spark.types.nullable)."""
    return pa.schema([pa.field(each.name, _nullable(each.type)) for each in columns])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _nullable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind
