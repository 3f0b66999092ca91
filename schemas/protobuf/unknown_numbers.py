"""Finds the fields of Protobuf messages that the descriptors do not have.

A message has the numbers of its fields, but not their names and types. So an unknown field has its number as its name, and
the list of its values in the message, as the bytes have them:

    a number      the bits as a number without a sign: int32, sint32, bool, enum, fixed32, float, and those of 64 bits
    bytes         base64: string, bytes, a message, and the numbers of a packed list
    a group       its own fields, by number

A value of a known field whose bytes have another form than the field counts as unknown, and in proto2, also a value of an
enum that has no name. Extensions are unknown, because they have no columns (`message_types`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from schemas.protobuf.message_columns import key_text
from schemas.schema_errors import required_package
from schemas.unknown_fields.extra_column import Unknown, of_fields, of_items

_GROUP = 3
"""The wire type of a group."""


def unknown_in_message(message: Any) -> Unknown:
    """The unknown fields of a message, and of the messages in its fields."""
    given = type(message).ListFields(message)  # a field of the message can have the name of a method
    inner = ((field.name, _inside(field, value)) for field, value in given)
    return _by_number(_unknown_field_set()(message)) | (of_fields(inner) or {}) or None


def _inside(field: Any, value: Any) -> Unknown:
    if field.message_type is None:
        return None
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            return None
        return of_fields((key_text(key), unknown_in_message(value[key])) for key in value)
    return of_items(map(unknown_in_message, value)) if field.is_repeated else unknown_in_message(value)


def _by_number(fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields:
        value = _by_number(each.data) if each.wire_type == _GROUP else each.data
        found.setdefault(str(each.field_number), []).append(value)
    return found


@cache
def _unknown_field_set() -> Any:
    return required_package("google.protobuf.unknown_fields", "protobuf", "protobuf").UnknownFieldSet
