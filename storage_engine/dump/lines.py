"""What the lines of all files have in common: they are text as Kafka's tool writes it, or JSON.

A line of text is Kafka's to the letter. A line of JSON is an object that begins with the file it comes from and goes on
with the same values by Kafka's names in snake case; keys, values and headers of records are in base64, since JSON has no
bytes, and null where there is none. Names of files may hold bytes that are no UTF-8; they become `?`.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from storage_engine.dump.dumped_file import DumpedFile
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import Int64Array

_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True)
class Wanted:
    """What to print. records: a line for each record. contents: keys and values in it. jsonl: as lines of JSON."""

    records: bool = False
    contents: bool = False
    jsonl: bool = False


class Shown(NamedTuple):
    """Some entries of a .log as lines. offsets: of the records in them. error: why no more can be shown."""

    lines: list[str]
    offsets: Int64Array = np.empty(0, np.int64)
    error: CorruptionError | None = None


def encoded(text: str) -> bytes:
    """Lines as they are written."""
    return text.encode(errors="replace")


def json_line(file: DumpedFile, fields: dict[str, Any]) -> str:
    """An object."""
    return _encode_json({"file": file.name} | fields) + "\n"


def entry_line(file: DumpedFile, wanted: Wanted, template: str, names: Sequence[str], values: tuple[int, ...]) -> str:
    """An entry that is nothing but numbers: the template filled with them, or an object with these names."""
    if wanted.jsonl:
        return json_line(file, dict(zip(names, values, strict=True)))
    return f"{template % values}\n"


def text_content(key: str | None, value: str | None) -> str:
    """Key and value as they end a record's line."""
    return f"{'' if key is None else f' key: {key}'}{'' if value is None else f' payload: {value}'}"


def json_content(key: bytes | None, value: bytes | None, headers: list[list[str | None]]) -> dict[str, Any]:
    """Key, value and headers as they end a record's object; headers are names with their values in base64."""
    return {"key": base64_text(key), "value": base64_text(value), "headers": headers}


def base64_text(data: bytes | None) -> str | None:
    """Bytes in JSON."""
    return None if data is None else binascii.b2a_base64(data, newline=False).decode()
