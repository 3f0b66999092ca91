"""Maps a Protobuf message to Arrow columns, and the values of its fields to objects for these columns.

    Protobuf                                     Arrow                  Spark SQL
    bool                                         bool                   BOOLEAN
    int32, int64, sint32, sint64, sfixed32,      int64                  BIGINT
      sfixed64, uint32, fixed32
    uint64, fixed64                              decimal128(20, 0)      DECIMAL(20, 0)
    float, double                                double                 DOUBLE
    string                                       string                 STRING
    bytes                                        binary                 BINARY
    enum                                         string                 STRING, the name, or the number if it has no name
    message                                      struct of its fields   STRUCT
    message without fields                       bool                   BOOLEAN, true if the message is there
    repeated, map                                list, map              ARRAY, MAP with the keys as STRING, sorted
    google.protobuf.Timestamp                    timestamp[us, UTC]     TIMESTAMP; the rest of the nanoseconds is cut off
    google.protobuf.Duration                     int64                  BIGINT, microseconds; the rest is cut off
    google.protobuf.StringValue and the other    as the type inside,    as the type inside
      wrappers                                     nullable
    google.protobuf.Struct, Value, ListValue     string                 STRING, JSON

A column is nullable if the format says whether the field is there: a message, a member of a oneof, and a field with
`optional`. Such a field is null if it is not there, unless the .proto file gives it a default. Any other field has
Protobuf's default (0, false, the empty text) if it is not there. Each member of a oneof is a column of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from schemas.comparing import ModelField, columns_fields
from schemas.decoder import UndecodableError
from schemas.model_columns import UnsupportedFieldError, check_names
from schemas.schema_errors import required_package

Convert = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WELL_KNOWN = "google.protobuf."
_WRAPPERS = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_JSON = ("Struct", "Value", "ListValue")


@dataclass(frozen=True)
class MessageColumn:
    """The column of a field. read: makes an object for Arrow of the message that contains the field."""

    type: pa.DataType
    nullable: bool
    read: Convert


def columns_of(message: Any) -> tuple[pa.Schema, Mapping[str, Convert]]:
    """The columns of a message, and how each of them is read from the message.

    Args:
        message: the descriptor of the message.

    Raises:
        UnsupportedFieldError: the message has no fields, or a field has no column type.
    """
    found = _fields(message, message.name, ())
    check_names(message.name, list(found), outermost=True)
    columns = pa.schema([pa.field(name, each.type, each.nullable) for name, each in found.items()])
    return columns, {name: each.read for name, each in found.items()}


def fields_of(message: Any, columns: pa.Schema) -> dict[str, ModelField]:
    """The fields by path, and for each field its number and its kind of bytes, because a change of these breaks older
    values."""
    required = set[str]()
    numbers: dict[str, ModelField] = {}
    _describe(message, "", required, numbers)
    return columns_fields(columns, required) | numbers


def _describe(message: Any, outer: str, required: set[str], numbers: dict[str, ModelField]) -> None:
    for field in message.fields:
        path = f"{outer}{field.name}"
        if field.is_required:
            required.add(path)
        numbers[f"(number of {path})"] = ModelField(f"{field.number} {_kind(field)}", required=False, nullable=False)
        if field.type == _ENUM:
            values = ", ".join(f"{number} {name}" for number, name in sorted(_names(field).items()))
            numbers[f"(values of {path})"] = ModelField(values, required=False, nullable=False)
        inner, ending = field.message_type, "."
        if inner is not None and field.is_repeated:
            is_map = inner.GetOptions().map_entry
            for part in ("key", "value") if is_map else ():
                kind = _kind(inner.fields_by_name[part])
                numbers[f"({part} of {path})"] = ModelField(kind, required=False, nullable=False)
            inner, ending = (inner.fields_by_name["value"].message_type, "{}.") if is_map else (inner, "[].")
        if inner is not None and not inner.full_name.startswith(_WELL_KNOWN):
            _describe(inner, f"{path}{ending}", required, numbers)


def _names(field: Any) -> dict[int, str]:
    """By number, the name of an enum's value. If a number has several names, the first one counts."""
    return {value.number: value.name for value in reversed(field.enum_type.values)}


def _kind(field: Any) -> str:
    """How the values of a field are written: of a number, also its sign and its bits."""
    inner = field.message_type
    if inner is not None and inner.full_name.startswith(_WELL_KNOWN):
        return str(inner.full_name)
    return _BYTES.get(field.type, "bytes")


# --- Types --------------------------------------------------------------------------------------------------------

_TYPES: Mapping[int, pa.DataType] = {
    1: pa.float64(), 2: pa.float64(), 3: pa.int64(), 4: pa.decimal128(20, 0), 5: pa.int64(), 6: pa.decimal128(20, 0),
    7: pa.int64(), 8: pa.bool_(), 9: pa.string(), 12: pa.binary(), 13: pa.int64(), 15: pa.int64(), 16: pa.int64(),
    17: pa.int64(), 18: pa.int64(),
}  # fmt: skip
"""By the number of a type in descriptor.proto: double, float, int64, uint64, int32, fixed64, fixed32, bool, string,
bytes, uint32, sfixed32, sfixed64, sint32, sint64."""
_ENUM = 14
_BYTES: Mapping[int, str] = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 10: "group",
    13: "uint32", 14: "enum", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
"""How the values of a type are written. `schemas.comparing` says which of them can replace each other."""


def _fields(message: Any, place: str, outer: tuple[str, ...]) -> dict[str, MessageColumn]:
    if message.full_name in outer:
        raise UnsupportedFieldError(place, f"{message.full_name} contains itself, but a column cannot contain itself")
    if not message.fields:
        raise UnsupportedFieldError(place, f"{message.full_name} has no fields")
    check_names(place, [field.name for field in message.fields])
    within = (*outer, message.full_name)
    return {field.name: _column(field, f"{place}.{field.name}", within) for field in message.fields}


def _column(field: Any, place: str, outer: tuple[str, ...]) -> MessageColumn:
    name = field.name
    if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind, convert = _type(field.message_type.fields_by_name["value"], f"{place}{{}}", outer)
        return MessageColumn(pa.map_(pa.string(), kind), False, _reader_of_map(name, convert))
    kind, convert = _type(field, f"{place}[]" if field.is_repeated else place, outer)
    if field.is_repeated:
        listed = pa.list_(pa.field("element", kind, nullable=False))
        if convert is None:
            return MessageColumn(listed, False, lambda message: list(getattr(message, name)))
        return MessageColumn(listed, False, lambda message: [convert(each) for each in getattr(message, name)])
    is_nullable = field.has_presence and not field.is_required and not _has_default(field)
    return MessageColumn(kind, is_nullable, _reader_of_one(name, convert, is_nullable=is_nullable))


def _has_default(field: Any) -> bool:
    return field.message_type is None and bool(field.has_default_value)


def _reader_of_one(name: str, convert: Convert | None, *, is_nullable: bool) -> Convert:
    def read(message: Any) -> Any:
        if is_nullable and not type(message).HasField(message, name):
            return None
        value = getattr(message, name)
        return value if convert is None else convert(value)

    return read


def _reader_of_map(name: str, convert: Convert | None) -> Convert:
    """The entries, sorted by their keys, because Protobuf does not keep their order."""

    def read(message: Any) -> list[tuple[str, Any]]:
        entries = getattr(message, name)
        return [(key_text(key), entries[key] if convert is None else convert(entries[key])) for key in sorted(entries)]

    return read


def key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _type(field: Any, place: str, outer: tuple[str, ...]) -> tuple[pa.DataType, Convert | None]:
    if field.type == _ENUM:
        names = _names(field)
        return pa.string(), lambda number: names.get(number, str(number))
    message = field.message_type
    if message is None:
        return _TYPES[field.type], None
    if message.full_name.startswith(_WELL_KNOWN) and (known := _well_known(message)) is not None:
        return known
    if not message.fields:
        return pa.bool_(), lambda _: True
    inner = _fields(message, place, outer)
    kind = pa.struct([pa.field(name, each.type, each.nullable) for name, each in inner.items()])
    return kind, lambda value: {name: each.read(value) for name, each in inner.items()}


def _well_known(message: Any) -> tuple[pa.DataType, Convert | None] | None:
    """The column of a message that Protobuf defines and that is more than its fields."""
    name = message.full_name.removeprefix(_WELL_KNOWN)
    if name == "Timestamp":
        return pa.timestamp("us", tz="UTC"), _moment
    if name == "Duration":
        return pa.int64(), _duration
    if name in _JSON:
        as_dict = required_package("google.protobuf.json_format", "protobuf", "protobuf").MessageToDict
        return pa.string(), lambda value: _json(value, as_dict)
    if name.removesuffix("Value") in _WRAPPERS and name.endswith("Value"):
        return _TYPES[message.fields_by_name["value"].type], lambda value: value.value
    return None


def _json(value: Any, as_dict: Convert) -> str:
    try:
        return json.dumps(as_dict(value), ensure_ascii=False, sort_keys=True)
    except ValueError:  # Protobuf's JSON form of Value has no such numbers
        raise UndecodableError(f"out_of_range: a {value.DESCRIPTOR.name} has NaN or an infinite number") from None


def _moment(value: Any) -> datetime:
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _duration(value: Any) -> int:
    nanos: int = value.seconds * 1_000_000_000 + value.nanos
    return nanos // 1000 if nanos >= 0 else -(-nanos // 1000)
