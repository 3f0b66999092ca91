"""Finds the fields of Protobuf messages that the descriptors do not have.

A message has the numbers of its fields, but not their names and types. So an unknown field has its number as its name, and
the list of its values in the message, as the bytes have them:

    a number      the bits as a number without a sign: int32, sint32, bool, enum, fixed32, float, and those of 64 bits
    bytes         base64: string, bytes, a message, and the numbers of a packed list
    a group       its own fields, by number

A value of a known field whose bytes have another form than the field counts as unknown, and in proto2, also a value of an
enum that has no name. Extensions count as unknown, because they have no columns.
"""

from __future__ import annotations

from typing import Any

from schemas.protobuf.message_columns import key_text
from schemas.schema_errors import required_package
from schemas.unknown_fields.extra_column import Unknown, of_fields, of_items

_GROUP = 3
"""The wire type of a group."""


def unknown_in_message(message: Any) -> Unknown:
    """The unknown fields of a message, and of the messages in its fields."""
    kind = type(message)
    given = kind.ListFields(message)  # a field of the message can have the name of a method
    fields = _as_unknown(message) if any(field.is_extension for field, _ in given) else message
    new = _by_number(required_package("google.protobuf.unknown_fields", "protobuf", "protobuf").UnknownFieldSet(fields))
    inner = ((field.name, _inside(field, value)) for field, value in given if not field.is_extension)
    return new | (of_fields(inner) or {}) or None


def _inside(field: Any, value: Any) -> Unknown:
    if field.message_type is None:
        return None
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            return None
        return of_fields((key_text(key), unknown_in_message(value[key])) for key in value)
    return of_items(map(unknown_in_message, value)) if field.is_repeated else unknown_in_message(value)


def _as_unknown(message: Any) -> Any:
    """A message whose unknown fields are the unknown fields and the extensions of a message."""
    kind = type(message)
    rest = kind.FromString(kind.SerializePartialToString(message))
    for field in kind.DESCRIPTOR.fields:
        kind.ClearField(rest, field.name)
    empty = required_package("google.protobuf.empty_pb2", "protobuf", "protobuf").Empty
    return empty.FromString(kind.SerializePartialToString(rest))


def _by_number(fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields:
        value = _by_number(each.data) if each.wire_type == _GROUP else each.data
        found.setdefault(str(each.field_number), []).append(value)
    return found
