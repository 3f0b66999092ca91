"""Decodes the records of a broker's topic __consumer_offsets: committed offsets, and the members of groups.

    key      int16 type, then the key's fields
    value    int16 version, then the value's fields in this version; a tombstone has no value

coordinator_schemas.py lists the fields of each type. The fields are encoded as in all of Kafka's messages:

    int8 to int64, uint16     big-endian
    uuid                      16 bytes
    string, bytes, array      the length, then the contents; a null has the length -1
    struct                    its fields in order. If it may be null, a byte comes first: -1 for null, else 1. If such a
                              struct is a tagged field, an unsigned varint comes first instead: 0 for null, else 1

Lengths are int16 for a string, and int32 for bytes and arrays. In a flexible version, a length is stored as an unsigned
varint: the length plus 1, or 0 for null. Each struct in a flexible version ends with tagged fields: their number, then
for each field the tag, the size and the contents. All these numbers are unsigned varints.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from storage_engine.record.coordinator.coordinator_schemas import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_METADATA,
    MEMBER_CONTENTS,
    RECORD_TYPES,
    FieldSchema,
    MessageSchema,
)

_NUMBERS = {
    name: struct.Struct(f">{code}")
    for name, code in (("int8", "b"), ("int16", "h"), ("uint16", "H"), ("int32", "i"), ("int64", "q"))
}
_UUID_BYTES = 16
_LONGEST_VARINT = 5
_LONGEST_STRING = 2**15 - 1


class UndecodableError(ValueError):
    """The bytes are not what a record of this topic has.

    Args:
        reason: why the bytes cannot be decoded, without contents of the record. This is the message of the error.
        words_of_kafka: what Kafka's dump tool prints as the reason.
    """

    def __init__(self, reason: str, words_of_kafka: str) -> None:
        self.words_of_kafka = words_of_kafka
        super().__init__(reason)


class UnknownTypeError(UndecodableError):
    """The record has a type that this version does not know.

    Args:
        type_: the number of the type.
    """

    def __init__(self, type_: int) -> None:
        self.type = type_
        super().__init__(f"unknown record type {type_}", f"Found an unknown record type {type_}")


class _MalformedError(Exception):
    """A field is truncated or malformed. The arguments are those of UndecodableError."""

    def __init__(self, reason: str, words_of_kafka: str) -> None:
        self.words_of_kafka = words_of_kafka
        super().__init__(reason)


@dataclass(frozen=True)
class CoordinatorRecord:
    """A decoded record.

    type: the number of the type, as in RECORD_TYPES.
    key: the key's fields by name. A uuid is text in Kafka's form. Text and bytes that are null are
        None.
    version: the version of the value; None in a tombstone.
    value: the value's fields by name; None in a tombstone. A tagged field that has its default value is missing.
    """

    type: int
    key: dict[str, Any]
    version: int | None
    value: dict[str, Any] | None


def decode_coordinator_record(key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Decode a record of __consumer_offsets. Bytes after the last field are ignored, as in Kafka.

    Raises:
        UnknownTypeError: the type is unknown.
        UndecodableError: the version is unknown, or the key or the value is truncated or malformed.
    """
    buffer = _Buffer(key)
    kind = _read_version(buffer, "key")
    if kind not in RECORD_TYPES:
        raise UnknownTypeError(kind)
    of_key, of_value = RECORD_TYPES[kind]
    with _reading("key", kind):
        fields = _read_fields(buffer, of_key, 0, flexible=False)
    if value is None:
        return CoordinatorRecord(kind, fields, None, None)
    buffer = _Buffer(value)
    version = _read_version(buffer, "value")
    if not 0 <= version <= of_value.last_version:
        raise UndecodableError(
            f"version {version} of record type {kind}; the known versions are 0 to {of_value.last_version}",
            f"Found an unknown record version {version} for {kind} type",
        )
    with _reading("value", version):
        found = _read_fields(buffer, of_value.fields, version, flexible=version >= of_value.flexible_since)
    if kind == GROUP_METADATA and found["protocolType"] == CONSUMER_PROTOCOL_TYPE:
        for member in found["members"]:
            member |= {name: _member_content(member[name], message) for name, message in MEMBER_CONTENTS.items()}
    return CoordinatorRecord(kind, fields, version, found)


def _read_version(buffer: _Buffer, part: str) -> int:
    try:
        return buffer.number("int16")
    except _MalformedError as error:
        raise UndecodableError(f"the {part}: {error}", f"Could not read version from {part}'s buffer.") from None


@contextmanager
def _reading(part: str, version: int) -> Iterator[None]:
    try:
        yield
    except _MalformedError as error:
        raise UndecodableError(
            f"the {part}: {error}",
            f"Could not read record with version {version} from {part}'s buffer due to: {error.words_of_kafka}.",
        ) from None


def _member_content(data: bytes, message: MessageSchema) -> bytes | dict[str, Any]:
    """The fields of a member's subscription or assignment, or the bytes if they have another form. As in Kafka, the fields of
    an unknown version are read like those of the nearest known version, but the structs of a later version are not read.
    """
    buffer = _Buffer(data)
    try:
        version = max(0, buffer.number("int16"))
        found = _read_fields(buffer, message.fields, version, flexible=version >= message.flexible_since)
    except _MalformedError:
        return data
    has_structs = any(found.get(field.name) for field in message.fields if field.fields)
    return data if has_structs and version > message.last_version else found


def _read_fields(buffer: _Buffer, fields: Sequence[FieldSchema], version: int, *, flexible: bool) -> dict[str, Any]:
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


def _read(buffer: _Buffer, kind: str, field: FieldSchema, version: int, *, flexible: bool) -> Any:
    """A value of a kind (see FieldSchema)."""
    nullable, plain = kind.endswith("?"), kind.removesuffix("?")
    if plain in _NUMBERS:
        return buffer.number(plain)
    if plain == "uuid":
        return base64.urlsafe_b64encode(buffer.number_bytes(_UUID_BYTES)).rstrip(b"=").decode()
    if plain == "{}":
        if nullable and (buffer.number("int8") < 0 if field.tag is None else buffer.varint() == 0):
            return None
        return _read_fields(buffer, field.fields, version, flexible=flexible)
    length = buffer.varint() - 1 if flexible else buffer.number("int16" if plain == "string" else "int32")
    name = field.name if kind == field.kind else f"{field.name} element"
    if length < 0:
        if not nullable:
            raise _MalformedError(f"the field {name} is null", f"non-nullable field {name} was serialized as null")
        return None
    if plain == "bytes":
        return buffer.take(length)
    if plain == "string":
        if length > _LONGEST_STRING:
            raise _MalformedError(
                f"the field {name} has {length} bytes", f"string field {name} had invalid length {length}"
            )
        return buffer.take(length).decode(errors="replace")
    if length > buffer.left:
        raise _MalformedError(
            f"the field {name} has {length} elements in {buffer.left} bytes",
            f"Tried to allocate a collection of size {length}, but there are only {buffer.left} bytes remaining.",
        )
    return [_read(buffer, plain.removeprefix("[]"), field, version, flexible=flexible) for _ in range(length)]


class _Buffer:
    """Bytes that are read from the front. All methods raise _MalformedError if too few bytes are left."""

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
        raise _MalformedError(
            f"a varint is longer than {_LONGEST_VARINT} bytes",
            f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value:x}",
        )

    def _next(self, count: int, words_of_kafka: str) -> bytes:
        if not 0 <= count <= self.left:
            raise _MalformedError(f"expected {count} more bytes, found {self.left}", words_of_kafka)
        self._position += count
        return self._data[self._position - count : self._position]
