"""Decodes the fields of Kafka's generated messages, for the topics in which Kafka itself stores records.

A schema lists the fields of a message. The fields are encoded as follows:

    int8 to int64, uint16     big-endian
    float64                   an IEEE double, big-endian
    bool                      a byte: 0 is false, every other value is true
    uuid                      16 bytes
    string, bytes, array      the length, then the contents; a null has the length -1
    struct                    its fields in order. If it may be null, a byte comes first: -1 for null, else 1. If such a
                              struct is a tagged field, an unsigned varint comes first instead: 0 for null, else 1

Lengths are int16 for a string, and int32 for bytes and arrays. In a flexible version, a length is stored as an unsigned
varint: the length plus 1, or 0 for null. Each struct in a flexible version ends with tagged fields: their number, then
for each field the tag, the size and the contents. All these numbers are unsigned varints. All functions are pure.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NUMBERS = {
    name: struct.Struct(f">{code}")
    for name, code in (("int8", "b"), ("int16", "h"), ("uint16", "H"), ("int32", "i"), ("int64", "q"))
}
_DOUBLE = struct.Struct(">d")
_UUID_BYTES = 16
_LONGEST_VARINT = 5
_LONGEST_STRING = 2**15 - 1

LAST_VERSION = 2**15 - 1
"""The largest possible version of a message."""


@dataclass(frozen=True)
class FieldSchema:
    """A field of a message.

    name: the name of the field in Kafka's JSON.
    kind: int8, int16, uint16, int32, int64, float64, bool, uuid, string, bytes, or {} for a struct. A [] before the kind means an
        array of this kind; a ? after the kind means that the field may be null.
    fields: the fields of the struct.
    since, until: the first and the last version that has the field.
    tag: the number of a tagged field; None if the field is not tagged.
    default: the value of a tagged field that is missing.
    """

    name: str
    kind: str
    fields: tuple[FieldSchema, ...] = ()
    since: int = 0
    until: int = LAST_VERSION
    tag: int | None = None
    default: object = None


@dataclass(frozen=True)
class MessageSchema:
    """The fields of a key or of a value, in order.

    last_version: the last known version.
    flexible_since: the first flexible version.
    """

    fields: tuple[FieldSchema, ...]
    last_version: int = 0
    flexible_since: int = 0


class MalformedError(Exception):
    """A field is truncated or malformed. The arguments are those of UndecodableError."""

    def __init__(self, reason: str, words_of_kafka: str) -> None:
        self.words_of_kafka = words_of_kafka
        super().__init__(reason)


def read_fields(
    buffer: MessageBuffer, fields: Sequence[FieldSchema], version: int, *, flexible: bool
) -> dict[str, Any]:
    """Read the fields that this version of a message has, by their names. A tagged field that has its default value is
    missing in the result.

    Raises:
        MalformedError: a field is truncated or malformed.
    """
    found = {
        field.name: _read(buffer, field.kind, field, version, flexible=flexible)
        for field in fields
        if field.tag is None and field.since <= version <= field.until
    }
    if not flexible:
        return found
    by_tag = {field.tag: field for field in fields if field.tag is not None}
    for _ in range(buffer.varint()):
        tag, size = buffer.varint(), buffer.varint()
        field = by_tag.get(tag)
        if field is None:
            buffer.take(size)
            continue
        contained = _read(buffer, field.kind, field, version, flexible=True)
        if contained != field.default:
            found[field.name] = contained
    return {field.name: found[field.name] for field in fields if field.name in found}


def _read(buffer: MessageBuffer, kind: str, field: FieldSchema, version: int, *, flexible: bool) -> Any:
    """A value of a kind (see FieldSchema)."""
    nullable, plain = kind.endswith("?"), kind.removesuffix("?")
    if plain in _NUMBERS:
        return buffer.number(plain)
    if plain == "bool":
        return buffer.number("int8") != 0
    if plain == "float64":
        return _DOUBLE.unpack(buffer.number_bytes(_DOUBLE.size))[0]
    if plain == "uuid":
        return base64.urlsafe_b64encode(buffer.number_bytes(_UUID_BYTES)).rstrip(b"=").decode()
    if plain == "{}":
        if nullable and (buffer.number("int8") < 0 if field.tag is None else buffer.varint() == 0):
            return None
        return read_fields(buffer, field.fields, version, flexible=flexible)
    length = buffer.varint() - 1 if flexible else buffer.number("int16" if plain == "string" else "int32")
    name = field.name if kind == field.kind else f"{field.name} element"
    if length < 0:
        if not nullable:
            raise MalformedError(f"the field {name} is null", f"non-nullable field {name} was serialized as null")
        return None
    if plain == "bytes":
        return buffer.take(length)
    if plain == "string":
        if length > _LONGEST_STRING:
            raise MalformedError(
                f"the field {name} has {length} bytes", f"string field {name} had invalid length {length}"
            )
        return buffer.take(length).decode(errors="replace")
    if length > buffer.left:
        raise MalformedError(
            f"the field {name} has {length} elements in {buffer.left} bytes",
            f"Tried to allocate a collection of size {length}, but there are only {buffer.left} bytes remaining.",
        )
    return [_read(buffer, plain.removeprefix("[]"), field, version, flexible=flexible) for _ in range(length)]


class MessageBuffer:
    """Bytes that are read from the front. All methods raise MalformedError if too few bytes are left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        return self._next(count, f"Error reading byte array of {count} byte(s): only {self.left} byte(s) available")

    def number_bytes(self, count: int) -> bytes:
        return self._next(count, "null")

    def number(self, kind: str) -> int:
        packed = _NUMBERS[kind]
        value: int = packed.unpack(self.number_bytes(packed.size))[0]
        return value

    def varint(self) -> int:
        """The next varint; as in Kafka an int32, so it may be negative."""
        value = 0
        for place in range(_LONGEST_VARINT):
            (byte,) = self.number_bytes(1)
            value = (value | (byte & 0x7F) << 7 * place) & 0xFFFFFFFF
            if byte < 0x80:
                return value - 2**32 if value >= 2**31 else value
        raise MalformedError(
            f"a varint is longer than {_LONGEST_VARINT} bytes",
            f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value:x}",
        )

    def _next(self, count: int, words_of_kafka: str) -> bytes:
        if not 0 <= count <= self.left:
            raise MalformedError(f"expected {count} more bytes, found {self.left}", words_of_kafka)
        self._position += count
        return self._data[self._position - count : self._position]
