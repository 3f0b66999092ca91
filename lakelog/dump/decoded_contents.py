"""Formats keys and values as the decoders of Kafka's tool do: records of Kafka's own topics, and values of simple
types.

    key: {"type":"1","data":{"group":"billing","topic":"orders","partition":0}} payload: {"version":"3","data":{...}}
    payload: {"type":"TOPIC_RECORD","version":0,"data":{"name":"orders","topicId":"_XmAHoLuTpKfDcwxqqG1IA"}}

The first line is a record of __consumer_offsets. A record of __transaction_state is printed in the same form. The
payload of a tombstone is <DELETE>. If a key cannot be decoded, the line has the reason in place of the key, and no
payload. The second line is a record of __cluster_metadata. These records have no key. If such a record cannot be
decoded, its line shows the reason as the payload.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from lakelog.dump.java_text import java_double, java_texts
from lakelog.dump.lines import DumpOptions, TopicDecoder, ValueDecoder, base64_text, json_content, text_content
from storage_engine.record.cluster_metadata.metadata_records import (
    UndecodableMetadataError,
    decode_any_metadata_record,
)
from storage_engine.record.cluster_metadata.metadata_schemas import CONTROL_RECORD_TYPES
from storage_engine.record.coordinator.coordinator_records import (
    CoordinatorRecord,
    UndecodableError,
    UnknownTypeError,
    decode_coordinator_record,
)
from storage_engine.record.coordinator.coordinator_schemas import RECORD_TYPES, TRANSACTION_RECORD_TYPES, RecordTypes
from storage_engine.record.message_fields import MalformedError, MessageBuffer, read_fields
from storage_engine.record.record_columns import java_text

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


_NUMBER_BYTES = {ValueDecoder.INTEGER: 4, ValueDecoder.LONG: 8}
_COORDINATORS = {TopicDecoder.OFFSETS: RECORD_TYPES, TopicDecoder.TRANSACTIONS: TRANSACTION_RECORD_TYPES}


def text_contents(keys: pa.Array, values: pa.Array, offsets: list[int], wanted: DumpOptions) -> list[str]:
    """The keys and the values at the end of the lines of these records.

    Args:
        keys, values: binary.
    """
    if wanted.decoder is None and wanted.key_decoder is wanted.value_decoder is ValueDecoder.STRING:
        return [text_content(*pair) for pair in zip(java_texts(keys), java_texts(values), strict=True)]
    rows = zip(offsets, keys.to_pylist(), values.to_pylist(), strict=True)
    return [record_text(offset, key, value, wanted) for offset, key, value in rows]


def record_text(offset: int, key: bytes | None, value: bytes | None, wanted: DumpOptions) -> str:
    """The key and the value at the end of the line of one record."""
    if wanted.decoder is TopicDecoder.METADATA:
        return text_content(None, _metadata_text(offset, value))
    if wanted.decoder is not None:
        return text_content(*_coordinator_texts(offset, key, value, _COORDINATORS[wanted.decoder]))
    return text_content(_value_text(key, wanted.key_decoder, offset), _value_text(value, wanted.value_decoder, offset))


def json_contents(
    key: bytes | None, value: bytes | None, headers: list[list[str | None]], wanted: DumpOptions
) -> dict[str, Any]:
    """The last fields of a record's JSON object. A header is its name and its value in base64."""
    content = json_content(key, value, headers)
    if wanted.decoder is TopicDecoder.METADATA:
        return content | _metadata_json(value)
    return content if wanted.decoder is None else content | _coordinator_json(key, value, _COORDINATORS[wanted.decoder])


def control_text(kind: int, value: bytes | None) -> str | None:
    """What Kafka's tool prints of a control record of __cluster_metadata; None if the record cannot be decoded."""
    if kind not in CONTROL_RECORD_TYPES:
        return None
    name, schema = CONTROL_RECORD_TYPES[kind]
    data = value or b""
    try:
        version = MessageBuffer(data).number("int16")
        return f"{name} {_compact_json(read_fields(MessageBuffer(data), schema.fields, version, flexible=True))}"
    except MalformedError:
        return None


def _value_text(data: bytes | None, decoder: ValueDecoder, offset: int) -> str | None:
    if data is None:
        return None
    if decoder is ValueDecoder.STRING:
        return java_text(data)
    size = _NUMBER_BYTES[decoder]
    if len(data) < size:
        return f"Error at offset {offset}, skipping. Expected {size} bytes, found {len(data)}."
    return str(int.from_bytes(data[:size], "big", signed=True))


def _metadata_text(offset: int, value: bytes | None) -> str:
    """A value of __cluster_metadata as Kafka's tool prints it."""
    try:
        record = decode_any_metadata_record(value)
    except UndecodableMetadataError as error:
        return f"Error at {offset}, skipping. {error}"
    return _compact_json({"type": record.name, "version": record.version, "data": _with_text(record.fields)})


def _metadata_json(value: bytes | None) -> dict[str, Any]:
    try:
        record = decode_any_metadata_record(value)
    except UndecodableMetadataError as error:
        return {"error": str(error)}
    return {"value": {"type": record.name, "version": record.version, "data": _with_text(record.fields)}}


def _coordinator_texts(
    offset: int, key: bytes | None, value: bytes | None, types: RecordTypes
) -> tuple[str, str | None]:
    """A record's key and value as Kafka's tool prints them."""
    try:
        record = _decoded(key, value, types)
    except UnknownTypeError as error:
        return f"Unknown record type {error.type} at offset {offset}, skipping.", None
    except UndecodableError as error:
        return f"Error at offset {offset}, skipping. {error.words_of_kafka}", None
    shown = _fields(record)
    payload = "<DELETE>" if shown["value"] is None else _compact_json(shown["value"])
    return _compact_json(shown["key"]), payload


def _coordinator_json(key: bytes | None, value: bytes | None, types: RecordTypes) -> dict[str, Any]:
    """A record's key and value as JSON objects. If they cannot be decoded, they are base64, and the reason is added."""
    try:
        return _fields(_decoded(key, value, types))
    except UndecodableError as error:
        return {"key": base64_text(key), "value": base64_text(value), "error": str(error)}


def _decoded(key: bytes | None, value: bytes | None, types: RecordTypes) -> CoordinatorRecord:
    if key is None:
        raise UndecodableError("the record has no key", "message had a missing key")
    return decode_coordinator_record(key, value, types)


def _fields(record: CoordinatorRecord) -> dict[str, Any]:
    """The fields as Kafka's tool prints them: the numbers of types and versions are text."""
    key = {"type": str(record.type), "data": _with_text(record.key)}
    if record.value is None:
        return {"key": key, "value": None}
    return {"key": key, "value": {"version": str(record.version), "data": _with_text(record.value)}}


def _with_text(value: Any) -> Any:
    """A value with base64 in place of bytes."""
    match value:
        case bytes():
            return base64_text(value)
        case dict():
            return {name: _with_text(each) for name, each in value.items()}
        case list():
            return [_with_text(each) for each in value]
    return value


def _compact_json(value: Any) -> str:
    """JSON as Jackson prints it. Jackson and Python escape control characters in different ways."""
    match value:
        case str():
            return f'"{_ESCAPED.sub(_escape, value)}"'
        case dict():
            return f"{{{','.join(f'{_compact_json(name)}:{_compact_json(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{','.join(map(_compact_json, value))}]"
        case bool() | None:
            return {None: "null", True: "true", False: "false"}[value]
        case float():
            return java_double(value)
    return str(value)


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}")
