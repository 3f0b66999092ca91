"""Converts the records that a Python program gives to `append`. The result has the Arrow columns that the engine
appends (record.record_columns.TO_APPEND).

    value       bytes or text; null is a tombstone
    key         bytes or text; null or missing: no key
    headers     pairs of a name and bytes or text; missing: no headers
    timestamp   a time, or whole milliseconds since 1970; null or missing: now

The other columns that a read returns (topic, partition, offset, timestampType) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.arguments import as_integer
from storage_engine.errors import InvalidRecordError
from storage_engine.quantities import milliseconds_of
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.record.record_columns import HEADERS, TO_APPEND

_TAKEN = ("key", "value", "headers", "timestamp")
_LEFT_OUT = ("topic", "partition", "offset", "timestampType")
_DICTS_AT_ONCE = 20_000
_BYTES_AT_ONCE = 64 * 1024**2
_BEFORE_1970 = "found a time before 1970"
_NOTHING_APPENDED = "Nothing was appended."


def record_batches(records: object, now_ms: int) -> Iterator[pa.RecordBatch]:
    """The given records as record batches with the columns of TO_APPEND.

    Args:
        records: a table, a frame or dicts.
        now_ms: the timestamp of records that have none.

    Raises:
        InvalidRecordError: a column or a record is wrong. The error names the column or record, and what was found.
    """
    if isinstance(records, pa.RecordBatch):
        batches: Iterator[pa.RecordBatch] = iter([records])
    elif hasattr(records, "__arrow_c_stream__"):
        batches = _batches_of_stream(records)
    elif isinstance(records, Iterable) and not isinstance(records, Mapping | str | bytes):
        batches = _batches_of_dicts(records)
    else:
        raise _refused("records", f"found {type(records).__name__}", "Pass a table, a frame or a list of dicts.")
    for batch in batches:
        rows = max(1, batch.num_rows * _BYTES_AT_ONCE // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield _to_append(batch.slice(first, rows), now_ms)
        if batch.num_rows == 0:
            _to_append(batch, now_ms)  # checks the columns


def _refused(place: str, problem: str, remedy: str = _NOTHING_APPENDED) -> InvalidRecordError:
    return InvalidRecordError(place, problem, remedy)


def _batches_of_stream(records: object) -> Iterator[pa.RecordBatch]:
    try:
        reader = pa.RecordBatchReader.from_stream(records)
        # A stream may have no batches, but its columns must still be checked.
        yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in reader.schema], schema=reader.schema)
        yield from reader
    except (pa.ArrowException, TypeError):  # not chained, because the original message may show data of a column
        problem = f"found {type(records).__name__}, which cannot be converted to an Arrow table"
        raise _refused("records", problem, "Give each column one type. Nothing was appended.") from None


def _batches_of_dicts(records: Iterable[object]) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        rows.append(_checked(record, number))
        if len(rows) == _DICTS_AT_ONCE:
            yield _batch_of_dicts(rows)
            rows = []
    if rows:
        yield _batch_of_dicts(rows)


def _checked(record: object, number: int) -> dict[str, Any]:
    """A record as a dict with key, value, headers and timestamp. Error messages never show the contents of a record."""
    place = f"record {number}"
    if not isinstance(record, Mapping):
        raise _refused(place, f"expected a dict, found {type(record).__name__}")
    _check_names(place, record)
    row = {name: record.get(name) for name in _TAKEN}
    for name in ("key", "value"):
        row[name] = _bytes(row[name], place, name)
    row["headers"] = _headers(row["headers"], place)
    row["timestamp"] = _milliseconds(row["timestamp"], place)
    return row


def _check_names(place: str, names: Iterable[Any]) -> None:
    given = list(names)
    unknown = next((name for name in given if name not in _TAKEN and name not in _LEFT_OUT), None)
    if unknown is not None:
        raise _refused(place, f"expected {', '.join(_TAKEN)}; found {unknown!r:.60}")
    if "value" not in given:
        raise _refused(place, "value is missing", "The value of a tombstone is None. Nothing was appended.")


def _bytes(value: object, place: str, name: str) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise _refused(place, f"{name} is text with half a surrogate pair, which UTF-8 cannot encode") from None
    raise _refused(place, f"expected bytes, text or None as {name}, found {type(value).__name__}")


def _headers(value: object, place: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    given = value.items() if isinstance(value, Mapping) else value
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _refused(place, f"expected pairs of a name and a value as headers, found {type(value).__name__}")
    headers = []
    for pair in given:
        if isinstance(pair, Mapping) and pair.keys() == {"key", "value"}:  # the form in which `read` returns headers
            pair = (pair["key"], pair["value"])  # noqa: PLW2901 - the same pair, in its usual form
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _refused(place, "expected each header as a pair of a name and a value")
        _bytes(pair[0], place, "a header's name")
        headers.append({"key": pair[0], "value": _bytes(pair[1], place, "a header's value")})
    return headers


def _milliseconds(value: object, place: str) -> int | None:
    match value:
        case None:
            return None
        case datetime() if value.utcoffset() is None:
            raise _refused(place, "found a timestamp without a zone", "Give the time a zone, such as timezone.utc.")
        case datetime():
            if (number := milliseconds_of(value)) == NO_TIMESTAMP:
                raise _refused(place, _BEFORE_1970)
            return number
    whole = as_integer(value)
    if whole is not None and -(2**63) <= whole < 2**63:
        return whole
    raise _refused(place, f"expected a time or whole milliseconds as the timestamp, found {type(value).__name__}")


def _batch_of_dicts(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, pa.schema([field.with_nullable(True) for field in TO_APPEND]))


def _to_append(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    _check_names("columns", batch.schema.names)
    twice = {name for name in batch.schema.names if batch.schema.names.count(name) > 1}
    if twice:
        raise _refused(f"column `{min(twice)}`", "occurs twice")
    return to_append({name: batch[name] for name in batch.schema.names}, batch.num_rows, now_ms)


def to_append(columns: Mapping[str, pa.Array], rows: int, now_ms: int) -> pa.RecordBatch:
    """Columns as the engine appends them (record.record_columns.TO_APPEND). Columns with other names are ignored.

    Args:
        columns: the column `value`, and the columns `key`, `headers` and `timestamp` if they exist. Each has `rows` rows.
        now_ms: the timestamp of records that have none.

    Raises:
        InvalidRecordError: a column has a wrong type.
    """
    now = pa.repeat(pa.scalar(now_ms, pa.int64()), rows)
    timestamps = _timestamps(columns["timestamp"]) if "timestamp" in columns else pa.nulls(rows, pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            _binary(columns.get("key"), "key", rows),
            _binary(columns["value"], "value", rows),
            _header_column(columns.get("headers"), rows),
            pc.coalesce(timestamps, now),
        ],
        schema=TO_APPEND,
    )


def _binary(column: pa.Array | None, name: str, rows: int) -> pa.Array:
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(rows, pa.binary())
    if pa.types.is_dictionary(column.type):
        return _binary(column.dictionary, name, len(column.dictionary)).take(column.indices)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
             pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)  # fmt: skip
    if not any(kind(column.type) for kind in kinds):
        raise _refused(f"column `{name}`", f"expected bytes or text, found {column.type}")
    try:
        return column.cast(pa.binary())
    except pa.ArrowException:
        raise _refused(f"column `{name}`", "found more than 2 GiB in one record") from None


def _header_column(column: pa.Array | None, rows: int) -> pa.Array:
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(rows, HEADERS)
    try:
        return column.cast(HEADERS)
    except pa.ArrowException:
        problem = f"expected {HEADERS}, a name for each header, found {column.type}"
        raise _refused("column `headers`", problem) from None


def _timestamps(column: pa.Array) -> pa.Array:
    """Whole milliseconds since 1970. Finer times are rounded down."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise _refused("column `timestamp`", "found times without a zone", "Give the times a zone, such as UTC.")
        column = column.cast(pa.timestamp(kind.unit, tz="UTC"))  # the same times; the zone need not exist
        try:
            times = pc.floor_temporal(column, unit="millisecond") if kind.unit in ("us", "ns") else column
            found = times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        except pa.ArrowException:  # not chained, because the original message shows the time
            raise _refused("column `timestamp`", "found a time that is too early or too late") from None
        if pc.any(pc.equal(found, NO_TIMESTAMP)).as_py():
            raise _refused("column `timestamp`", _BEFORE_1970)
        return found
    if pa.types.is_signed_integer(kind) or pa.types.is_null(kind):  # milliseconds
        return column.cast(pa.int64())
    raise _refused("column `timestamp`", f"expected times or whole milliseconds, found {kind}")
