"""Decodes the records of __cluster_metadata.

    varint   the version of this frame: 1
    varint   the type of the record
    varint   the version of the record
    fields   as in record/message_fields.py, always flexible

The frame version, the type and the version are unsigned. The records have no keys. metadata_schemas.py lists the
fields of each type. All functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from storage_engine.record.cluster_metadata.metadata_schemas import METADATA_RECORD_TYPES
from storage_engine.record.message_fields import MalformedError, MessageBuffer, read_fields

_FRAME = 1


class MetadataType(IntEnum):
    """The types of the records that name topics, their replicas and their settings."""

    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    REMOVE_TOPIC = 9
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25


class ResourceType(IntEnum):
    """What the settings of a CONFIG record belong to. The resources of all other types have no settings of topics."""

    TOPIC = 2
    BROKER = 4


class UndecodableMetadataError(ValueError):
    """The bytes are not a record of __cluster_metadata, or a later version of Kafka wrote the record. The message
    contains no contents of the record.
    """


@dataclass(frozen=True)
class MetadataRecord:
    """A decoded record. `fields` has the fields by name. A uuid is text in Kafka's form."""

    type: MetadataType
    fields: dict[str, Any]


@dataclass(frozen=True)
class AnyMetadataRecord:
    """A decoded record of any type.

    name: Kafka's name of the type.
    fields: the fields by name. A tagged field that has its default value is missing.
    """

    name: str
    version: int
    fields: dict[str, Any]


def decode_metadata_record(value: bytes | None) -> MetadataRecord | None:
    """Decode a record that names topics, replicas or settings. None if the record has another type.

    Raises:
        UndecodableMetadataError: the record is truncated or malformed, or its version is unknown.
    """
    try:
        buffer, number, version = _begin(value)
        if number not in _DECODED:
            return None
        return MetadataRecord(MetadataType(number), _fields(buffer, number, version))
    except MalformedError as error:
        raise UndecodableMetadataError(str(error)) from None


def decode_any_metadata_record(value: bytes | None) -> AnyMetadataRecord:
    """Decode a record of any type.

    Raises:
        UndecodableMetadataError: the record is truncated or malformed, or its type or version is unknown.
    """
    try:
        buffer, number, version = _begin(value)
        if number not in METADATA_RECORD_TYPES:
            raise UndecodableMetadataError(f"unknown record type {number}")
        return AnyMetadataRecord(METADATA_RECORD_TYPES[number][0], version, _fields(buffer, number, version))
    except MalformedError as error:
        raise UndecodableMetadataError(str(error)) from None


_DECODED = frozenset(MetadataType)


def _begin(value: bytes | None) -> tuple[MessageBuffer, int, int]:
    """The bytes after the frame, the type and the version."""
    buffer = MessageBuffer(value or b"")
    frame, number, version = buffer.varint(), buffer.varint(), buffer.varint()
    if frame != _FRAME:
        raise UndecodableMetadataError(f"expected frame version {_FRAME}, found {frame}")
    return buffer, number, version


def _fields(buffer: MessageBuffer, number: int, version: int) -> dict[str, Any]:
    schema = METADATA_RECORD_TYPES[number][1]
    if not 0 <= version <= schema.last_version:
        raise UndecodableMetadataError(
            f"version {version} of record type {number}; the known versions are 0 to {schema.last_version}"
        )
    return read_fields(buffer, schema.fields, version, flexible=True)
