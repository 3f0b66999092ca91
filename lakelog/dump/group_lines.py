"""Formats keys and values of the topic __consumer_offsets, as Kafka's tool does with its --offsets-decoder.

    key: {"type":"1","data":{"group":"billing","topic":"orders","partition":0}} payload: {"version":"3","data":{...}}

The payload of a tombstone is <DELETE>. If a key cannot be decoded, the line has the reason in place of the key, and no
payload.
"""

from __future__ import annotations

import re
from typing import Any

from lakelog.dump.lines import base64_text
from storage_engine.record.coordinator.coordinator_records import (
    CoordinatorRecord,
    UndecodableError,
    UnknownTypeError,
    decode_coordinator_record,
)

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def group_texts(offset: int, key: bytes | None, value: bytes | None) -> tuple[str, str | None]:
    """A record's key and value as Kafka's tool prints them."""
    try:
        record = _decoded(key, value)
    except UnknownTypeError as error:
        return f"Unknown record type {error.type} at offset {offset}, skipping.", None
    except UndecodableError as error:
        return f"Error at offset {offset}, skipping. {error.words_of_kafka}", None
    shown = _fields(record)
    payload = "<DELETE>" if shown["value"] is None else _compact_json(shown["value"])
    return _compact_json(shown["key"]), payload


def group_json(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """A record's key and value as JSON objects. If they cannot be decoded, they are base64, and the reason is added."""
    try:
        return _fields(_decoded(key, value))
    except UndecodableError as error:
        return {"key": base64_text(key), "value": base64_text(value), "error": str(error)}


def _decoded(key: bytes | None, value: bytes | None) -> CoordinatorRecord:
    if key is None:
        raise UndecodableError("the record has no key", "message had a missing key")
    return decode_coordinator_record(key, value)


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
    return str(value)


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}")
