"""Makes the parts of a line that every kind of file has. A line is text, as in Kafka's tool, or JSON.

A line of text equals Kafka's line exactly. A line of JSON is an object. Its first field names the file. The other
fields have the same values as the line of text. Each name is Kafka's name, in snake case. Keys, values and headers of
records are in base64, because JSON has no bytes; a missing value is null. Bytes in a file's name that are not UTF-8
become `?`.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import numpy as np

from lakelog.dump.reading.dumped_file import DumpedFile
from storage_engine.errors import CorruptionError
from storage_engine.record.batch import Int64Array

_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class TopicDecoder(Enum):
    """A topic of Kafka whose keys and values the dump decodes."""

    OFFSETS = "__consumer_offsets"
    TRANSACTIONS = "__transaction_state"
    METADATA = "__cluster_metadata"


class ValueDecoder(StrEnum):
    """The Java class in Kafka that decodes keys or values of a simple type."""

    STRING = "org.apache.kafka.tools.api.StringDecoder"
    INTEGER = "org.apache.kafka.tools.api.IntegerDecoder"
    LONG = "org.apache.kafka.tools.api.LongDecoder"


@dataclass(frozen=True)
class DumpOptions:
    """What to print, as given by the options.

    records: a line for each record.
    contents: the key and the value in a record's line.
    jsonl: lines of JSON instead of text.
    decoder: keys and values are decoded as those of this topic.
    key_decoder, value_decoder: how keys and values become text, if there is no decoder.
    skip_metadata: in a record's line, only the key and the value. The line of a control record is empty.
    max_bytes: print only batches that end in the first max_bytes bytes of a .log; None for the whole file.
    verify_only: compare the entries of an index, but do not print them.
    sanity_only: of an index, check only what a broker checks when it starts.
    max_message_bytes: an index entry of a larger batch is an error; None for no limit.
    """

    records: bool = False
    contents: bool = False
    jsonl: bool = False
    decoder: TopicDecoder | None = None
    key_decoder: ValueDecoder = ValueDecoder.STRING
    value_decoder: ValueDecoder = ValueDecoder.STRING
    skip_metadata: bool = False
    max_bytes: int | None = None
    verify_only: bool = False
    sanity_only: bool = False
    max_message_bytes: int | None = None


class ShownEntries(NamedTuple):
    """Some entries of a .log as lines.

    lines: the lines.
    offsets: the offsets of the records in these lines.
    error: why the next entry cannot be printed; None if it can be.
    """

    lines: list[str]
    offsets: Int64Array = np.empty(0, np.int64)
    error: CorruptionError | None = None


def encoded(text: str) -> bytes:
    """Lines as bytes for the output."""
    return text.encode(errors="replace")


def json_line(file: DumpedFile, fields: dict[str, Any]) -> str:
    """A JSON object as a line."""
    return _encode_json({"file": file.name} | fields) + "\n"


def entry_line(
    file: DumpedFile, wanted: DumpOptions, template: str, names: Sequence[str], values: tuple[int, ...]
) -> str:
    """The line of an entry that has only numbers: the template with these values, or a JSON object with these names."""
    if wanted.jsonl:
        return json_line(file, dict(zip(names, values, strict=True)))
    return f"{template % values}\n"


def text_content(key: str | None, value: str | None) -> str:
    """The key and the value at the end of a record's line."""
    return f"{'' if key is None else f' key: {key}'}{'' if value is None else f' payload: {value}'}"


def json_content(key: bytes | None, value: bytes | None, headers: list[list[str | None]]) -> dict[str, Any]:
    """The last fields of a record's JSON object: key, value and headers. A header is its name and its value in base64."""
    return {"key": base64_text(key), "value": base64_text(value), "headers": headers}


def base64_text(data: bytes | None) -> str | None:
    """Bytes as base64 for JSON; None for None."""
    return None if data is None else binascii.b2a_base64(data, newline=False).decode()
