"""Decodes the records of __cluster_metadata that name topics, their replicas and their settings.

    varint   the version of this frame: 1
    varint   the type of the record
    varint   the version of the record
    fields   as in record/message_fields.py, always flexible

All three numbers are unsigned. The records have no keys. The fields are those of Kafka 4.3.1 (metadata, *Record.json).
Records of all other types are skipped, because they do not change topics and settings. All functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from storage_engine.record.message_fields import FieldSchema, MalformedError, MessageBuffer, MessageSchema, read_fields

_FRAME = 1


class MetadataType(IntEnum):
    """The types of the records that are decoded."""

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


_PLACE = (FieldSchema("partitionId", "int32"), FieldSchema("topicId", "uuid"))
_REASON = MessageSchema((FieldSchema("reason", "string?", tag=0),))

METADATA_TYPES: Final[dict[MetadataType, MessageSchema]] = {
    MetadataType.TOPIC: MessageSchema((FieldSchema("name", "string"), FieldSchema("topicId", "uuid"))),
    MetadataType.PARTITION: MessageSchema(
        (
            *_PLACE,
            FieldSchema("replicas", "[]int32"),
            FieldSchema("isr", "[]int32"),
            FieldSchema("removingReplicas", "[]int32"),
            FieldSchema("addingReplicas", "[]int32"),
            FieldSchema("leader", "int32"),
            FieldSchema("leaderRecoveryState", "int8", tag=0, default=0),
            FieldSchema("leaderEpoch", "int32"),
            FieldSchema("partitionEpoch", "int32"),
            FieldSchema("directories", "[]uuid", since=1),
        ),
        last_version=2,
    ),
    MetadataType.CONFIG: MessageSchema(
        (
            FieldSchema("resourceType", "int8"),
            FieldSchema("resourceName", "string"),
            FieldSchema("name", "string"),
            FieldSchema("value", "string?"),
        )
    ),
    MetadataType.PARTITION_CHANGE: MessageSchema((*_PLACE, FieldSchema("replicas", "[]int32?", tag=2)), last_version=2),
    MetadataType.REMOVE_TOPIC: MessageSchema((FieldSchema("topicId", "uuid"),)),
    MetadataType.BEGIN_TRANSACTION: MessageSchema((FieldSchema("name", "string?", tag=0),)),
    MetadataType.END_TRANSACTION: MessageSchema(()),
    MetadataType.ABORT_TRANSACTION: _REASON,
}
"""The fields of each type. Tagged fields that have no effect on topics and settings are not listed."""


class UndecodableMetadataError(ValueError):
    """The bytes are not a record of __cluster_metadata, or a later version of Kafka wrote the record. The message
    contains no contents of the record.
    """


@dataclass(frozen=True)
class MetadataRecord:
    """A decoded record. `fields` has the fields by name. A uuid is text in Kafka's form."""

    type: MetadataType
    fields: dict[str, Any]


def decode_metadata_record(value: bytes | None) -> MetadataRecord | None:
    """Decode a record of __cluster_metadata. None if the type of the record is not one of MetadataType.

    Raises:
        UndecodableMetadataError: the record is truncated or malformed, or its version is unknown.
    """
    buffer = MessageBuffer(value or b"")
    try:
        frame, number, version = buffer.varint(), buffer.varint(), buffer.varint()
        if frame != _FRAME:
            raise UndecodableMetadataError(f"expected frame version {_FRAME}, found {frame}")
        if number not in METADATA_TYPES:
            return None
        kind = MetadataType(number)
        schema = METADATA_TYPES[kind]
        if not 0 <= version <= schema.last_version:
            raise UndecodableMetadataError(
                f"version {version} of record type {number}; the known versions are 0 to {schema.last_version}"
            )
        return MetadataRecord(kind, read_fields(buffer, schema.fields, version, flexible=True))
    except MalformedError as error:
        raise UndecodableMetadataError(str(error)) from None
