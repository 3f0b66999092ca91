"""Converts records to lines of JSON, and lines to records.

    {"topic":"t","partition":0,"offset":7,"timestamp":1700000000042,"timestampType":"CreateTime",
     "key":"azA=","value":null,"headers":[["trace","AAE="],["empty",null]],"leaderEpoch":0}

The lines that Lakelog writes have all fields, in this order, in UTF-8, without spaces. Bytes are in base64. In a
header's name, bytes that are not UTF-8 are replaced by U+FFFD, as in Kafka's Java clients.

Lines that are read have these fields:

    key, value              required, as base64 or null: else a record with a misspelt `value` would be a tombstone
    headers                 optional; default: none
    timestamp               optional, in milliseconds; -1: none; default: now
    topic                   required with --transactional, else ignored
    partition, offset,      ignored, because the appended record gets a new place; allowed, so that lines from `read`
    timestampType,          can be appended
    leaderEpoch

Any other field is an error. A field that occurs twice is an error, too. Blank lines are skipped.

Error messages name the line and what was expected, but never show the contents of a record.
"""

from __future__ import annotations

import binascii
import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa

from lakelog.cli.options import LONG_MAX
from lakelog.terminal.text import shown_json
from storage_engine.config import TopicConfig
from storage_engine.errors import InvalidRecordError
from storage_engine.log.validator import record_limit
from storage_engine.record.kernels.columns import Int64Array
from storage_engine.record.record_columns import (
    TIMESTAMP_TYPE_NAMES,
    TO_APPEND,
    header_array,
    no_headers,
    view_lengths,
)

_TAKEN = ("key", "value", "headers", "timestamp")
_PASSED_OVER = ("topic", "partition", "offset", "timestampType", "leaderEpoch")
_FIELDS = frozenset((*_TAKEN, *_PASSED_OVER))

_decode = json.JSONDecoder().decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=list).decode
_to_base64 = binascii.b2a_base64
_BARE = b'"key":null,"value":null,"headers":[]'
"""How a line shows that its record has no key, no value and no headers."""
_BASE64_AT_ONCE = 3 * 256 * 1024
"""In bytes; a multiple of 3, so that only the last piece of base64 ends with padding."""
_HEADERS_AT_ONCE = 10_000
_HEADER_TEXT = 16
"""About how many bytes a header takes in a line in addition to its name and value."""


@dataclass(frozen=True)
class ParsedLines:
    """Some lines as columns.

    records: the records, with the columns of columns.TO_APPEND.
    line_numbers: the number of each record's line, counted from 1.
    topics: the topic that each line names; empty if lines need not name one.
    """

    records: pa.RecordBatch
    line_numbers: list[int]
    topics: list[str]


def parse_lines(
    lines: Sequence[bytes], first_number: int, now_ms: int, *, each_names_topic: bool = False
) -> ParsedLines:
    """Parse some lines of JSON.

    Args:
        lines: the lines, one after another.
        first_number: the number of the first line, for messages.
        now_ms: the timestamp of records that have none.
        each_names_topic: whether a line must name its topic.

    Raises:
        InvalidRecordError: a line is wrong. The error names the first wrong line and what was expected.
    """
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    timestamps: list[int] = []
    header_names: list[str] = []
    header_values: list[bytes | None] = []
    header_ends: list[int] = [0]
    numbers: list[int] = []
    topics: list[str] = []
    for number, line in enumerate(lines, first_number):
        if line.isspace():
            continue
        fields = _fields(line, number)
        keys.append(_bytes(fields["key"], "the field key", number))
        values.append(_bytes(fields["value"], "the field value", number))
        timestamps.append(_timestamp(fields.get("timestamp"), number, now_ms))
        for name, value in _headers(fields.get("headers"), number):
            header_names.append(name)
            header_values.append(value)
        header_ends.append(len(header_names))
        numbers.append(number)
        if each_names_topic:
            topics.append(_topic(fields.get("topic"), number))
    if header_names:
        headers = header_array(
            np.array(header_ends, np.int32), pa.array(header_names, pa.string()), pa.array(header_values, pa.binary())
        )
    else:
        headers = no_headers(len(keys))
    columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), headers, pa.array(timestamps, pa.int64())]
    return ParsedLines(pa.RecordBatch.from_arrays(columns, schema=TO_APPEND), numbers, topics)


def longest_line(config: TopicConfig) -> int:
    """The size in bytes of the longest line whose record still fits into the topic.

    Base64 writes three bytes as four characters. JSON writes each of these characters in at most six bytes. Names and
    numbers are short.
    """
    return 8 * record_limit(config) + 64 * 1024


def place_of(line_number: int) -> str:
    """The name of a line in messages."""
    return f"standard input, line {line_number}"


def _refuse(number: int, problem: str, remedy: str = "") -> InvalidRecordError:
    return InvalidRecordError(place_of(number), problem, remedy or "Nothing was appended.")


def _fields(line: bytes, number: int) -> dict[str, object]:
    try:
        fields = _decode(line.decode())
    except UnicodeDecodeError as error:
        raise _refuse(number, f"is not UTF-8 text at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise _refuse(number, f"is not JSON at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise _refuse(number, "is JSON that is nested too deeply, or that has a number with too many digits") from None
    if not isinstance(fields, dict):
        raise _refuse(number, f"expected a JSON object, found {_kind(fields)}")
    # Only a line with more colons than fields can have a field twice. Searching all lines would take 20% more time.
    if line.count(b":") > len(fields) and len(_decode_pairs(line.decode())) > len(fields):
        raise _refuse(number, "expected each field once, found a field twice")
    if not fields.keys() <= _FIELDS:
        unknown = next(name for name in fields if name not in _FIELDS)
        nearest = difflib.get_close_matches(unknown, _FIELDS, n=1)
        meant = f"; it looks like {nearest[0]}" if nearest else ""
        raise _refuse(number, f"expected only the fields {', '.join(_TAKEN)}, found another field{meant}")
    for name in ("key", "value"):
        if name not in fields:
            raise _refuse(number, f"the field {name} is missing; expected base64 or null")
    return fields


def _kind(value: object) -> str:
    """The kind of a JSON value in words. Messages contain the kind in place of the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def _bytes(value: object, name: str, number: int) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _refuse(number, f"{name} must be base64 text or null, found {_kind(value)}")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise _refuse(number, f"{name} must be base64, found text that is not base64") from None


def _timestamp(value: object, number: int, now_ms: int) -> int:
    if value is None:
        return now_ms
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= LONG_MAX:
        found = "another number" if isinstance(value, int | float) and not isinstance(value, bool) else _kind(value)
        raise _refuse(
            number,
            f"the field timestamp must be a whole number of milliseconds, 0 or more, or -1 for no timestamp, found {found}",
        )
    return value


def _topic(value: object, number: int) -> str:
    if not isinstance(value, str):
        raise _refuse(number, f"the field topic must contain a topic's name, found {_kind(value)}")
    return value


def _headers(value: object, number: int) -> Iterator[tuple[str, bytes | None]]:
    if not value and (value is None or isinstance(value, list)):
        return
    if not isinstance(value, list):
        raise _refuse(number, f"the field headers must be a list, found {_kind(value)}")
    for header in value:
        if not isinstance(header, list) or len(header) != 2 or not isinstance(header[0], str):
            raise _refuse(number, "each header must be [name, base64 or null], found something else")
        try:
            header[0].encode()
        except UnicodeEncodeError:
            raise _refuse(
                number, "expected a header name that UTF-8 can encode, found half of a surrogate pair"
            ) from None
        yield header[0], _bytes(header[1], "a header's value", number)


def format_lines(topic: str, partition: int, records: pa.RecordBatch) -> bytes:
    """Records as lines, each with its line end.

    Args:
        records: records with the columns of columns.RECORDS.
    """
    head = f'{{"topic":{encode_basestring(topic)},"partition":{partition},"offset":'
    types = {number: f',"timestampType":"{name}","key":' for number, name in TIMESTAMP_TYPE_NAMES.items()}
    lines = [
        f'{head}{offset},"timestamp":{timestamp}{types[kind]}{_quoted(key)},"value":{_quoted(value)}'
        f',"headers":{headers},"leaderEpoch":{"null" if epoch < 0 else epoch}}}\n'
        for offset, timestamp, kind, epoch, key, value, headers in zip(
            records["offset"].to_pylist(), records["timestamp"].to_pylist(), records["timestamp_type"].to_pylist(),
            records["leader_epoch"].to_pylist(), records["key"].to_pylist(), records["value"].to_pylist(),
            _header_texts(records["headers"]), strict=True,
        )
    ]  # fmt: skip
    return "".join(lines).encode()


def line_pieces(topic: str, partition: int, record: pa.RecordBatch) -> Iterator[bytes]:
    """The line of one record, in pieces. However large the record is, a piece needs little memory.

    Args:
        record: one row, with the columns of columns.RECORDS. The pieces together are what format_lines returns.
    """
    bare = {"key": pa.nulls(1, pa.binary_view()), "value": pa.nulls(1, pa.binary_view()), "headers": no_headers(1)}
    columns = [bare.get(name, record[name]) for name in record.schema.names]
    line = format_lines(topic, partition, pa.RecordBatch.from_arrays(columns, schema=record.schema))
    before, _, after = line.rpartition(_BARE)
    yield before + b'"key":'
    yield from _quoted_pieces(record["key"])
    yield b',"value":'
    yield from _quoted_pieces(record["value"])
    yield b',"headers":['
    headers = record["headers"].flatten()
    for first in range(0, len(headers), _HEADERS_AT_ONCE):
        some = headers.slice(first, _HEADERS_AT_ONCE)
        (text,) = _header_texts(pa.ListArray.from_arrays(pa.array([0, len(some)], pa.int32()), some))
        yield f"{',' if first else ''}{text[1:-1]}".encode()
    yield b"]" + after


def _quoted_pieces(column: pa.Array) -> Iterator[bytes]:
    """The only value of a column as _quoted returns it, in pieces."""
    if column.null_count:
        yield b"null"
        return
    data = memoryview(column[0].as_buffer())
    yield b'"'
    for first in range(0, len(data), _BASE64_AT_ONCE):
        yield _to_base64(data[first : first + _BASE64_AT_ONCE], newline=False)
    yield b'"'


def line_sizes(records: pa.RecordBatch) -> Int64Array:
    """About how many bytes the keys, values and headers of each record take in a line."""
    sizes = view_lengths(records["key"]) + view_lengths(records["value"])
    headers = records["headers"]
    flat = headers.flatten()
    if len(flat):
        first = headers.offset  # to_numpy() would import pandas, which takes longer than to print some records
        counts = np.diff(np.frombuffer(headers.buffers()[1], np.int32)[first : first + len(headers) + 1])
        ends = np.cumsum(counts)
        sizes += _HEADER_TEXT * counts
        for column in flat.flatten():
            offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :]
            sizes += offsets[ends] - offsets[ends - counts]
    return sizes


def _quoted(data: bytes | None) -> str:
    return "null" if data is None else f'"{_to_base64(data, newline=False).decode()}"'


def _quoted_name(name: str) -> str:
    quoted = encode_basestring(name)
    return quoted if quoted.isprintable() else shown_json(quoted)


def _header_texts(headers: pa.Array) -> Iterator[str]:
    for each in header_lists(headers):
        pairs = (f"[{_quoted_name(name)},{_quoted(value)}]" for name, value in each)
        yield f"[{','.join(pairs)}]" if each else "[]"


def header_lists(headers: pa.Array) -> Iterator[list[tuple[str, bytes | None]]]:
    """The headers of each record as names and values."""
    flat = headers.flatten()
    if not len(flat):
        yield from ([] for _ in range(len(headers)))
        return
    names, values = flat.flatten()
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    for length in headers.value_lengths().to_pylist():
        yield [next(pairs) for _ in range(length)]
