"""Decodes the records of two topics of a broker: __consumer_offsets and __transaction_state. __consumer_offsets
contains committed offsets, and the members of groups.

    key      int16 type, then the key's fields
    value    int16 version, then the value's fields in this version; a tombstone has no value

coordinator_schemas.py lists the fields of each type, and record/message_fields.py decodes the fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from storage_engine.record.coordinator.coordinator_schemas import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_METADATA,
    MEMBER_CONTENTS,
    RECORD_TYPES,
    RecordTypes,
)
from storage_engine.record.message_fields import MalformedError, MessageBuffer, MessageSchema, read_fields


class UndecodableError(ValueError):
    """The bytes are not a valid record of this topic.

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


@dataclass(frozen=True)
class CoordinatorRecord:
    """A decoded record.

    type: the number of the type.
    key: the key's fields by name. A uuid is text in Kafka's form. Text and bytes that are null are
        None.
    version: the version of the value; None in a tombstone.
    value: the value's fields by name; None in a tombstone. A tagged field that has its default value is missing.
    """

    type: int
    key: dict[str, Any]
    version: int | None
    value: dict[str, Any] | None


def decode_coordinator_record(key: bytes, value: bytes | None, types: RecordTypes = RECORD_TYPES) -> CoordinatorRecord:
    """Decode a record. Bytes after the last field are ignored, as in Kafka.

    Args:
        types: the types of the topic's records. By default, the topic is __consumer_offsets.

    Raises:
        UnknownTypeError: the type is unknown.
        UndecodableError: the version is unknown, or the key or the value is truncated or malformed.
    """
    buffer = MessageBuffer(key)
    kind = _read_version(buffer, "key")
    if kind not in types:
        raise UnknownTypeError(kind)
    of_key, of_value = types[kind]
    with _reading("key", kind):
        fields = read_fields(buffer, of_key, 0, flexible=False)
    if value is None:
        return CoordinatorRecord(kind, fields, None, None)
    buffer = MessageBuffer(value)
    version = _read_version(buffer, "value")
    if not 0 <= version <= of_value.last_version:
        raise UndecodableError(
            f"version {version} of record type {kind}; the known versions are 0 to {of_value.last_version}",
            f"Found an unknown record version {version} for {kind} type",
        )
    with _reading("value", version):
        found = read_fields(buffer, of_value.fields, version, flexible=version >= of_value.flexible_since)
    if types is RECORD_TYPES and kind == GROUP_METADATA and found["protocolType"] == CONSUMER_PROTOCOL_TYPE:
        for member in found["members"]:
            member |= {name: _member_content(member[name], message) for name, message in MEMBER_CONTENTS.items()}
    return CoordinatorRecord(kind, fields, version, found)


def _read_version(buffer: MessageBuffer, part: str) -> int:
    try:
        return buffer.number("int16")
    except MalformedError as error:
        raise UndecodableError(f"the {part}: {error}", f"Could not read version from {part}'s buffer.") from None


@contextmanager
def _reading(part: str, version: int) -> Iterator[None]:
    try:
        yield
    except MalformedError as error:
        raise UndecodableError(
            f"the {part}: {error}",
            f"Could not read record with version {version} from {part}'s buffer due to: {error.words_of_kafka}.",
        ) from None


def _member_content(data: bytes, message: MessageSchema) -> bytes | dict[str, Any]:
    """The fields of a member's subscription or assignment, or the bytes if they have another form. As in Kafka, the fields of
    an unknown version are read like those of the nearest known version, but the structs of a later version are not read.
    """
    buffer = MessageBuffer(data)
    try:
        version = max(0, buffer.number("int16"))
        found = read_fields(buffer, message.fields, version, flexible=version >= message.flexible_since)
    except MalformedError:
        return data
    has_structs = any(found.get(field.name) for field in message.fields if field.fields)
    return data if has_structs and version > message.last_version else found
