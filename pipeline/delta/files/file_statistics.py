"""Computes the statistics of a Parquet file in the form of Delta's log. Readers use the statistics to skip files.

The statistics come from the footer of the file. They have the number of rows, the number of nulls, and the smallest and
the largest value of columns with numbers, texts, dates and timestamps. Columns inside other columns have none, and
neither have binary columns, booleans and decimals. This module is a pure function.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TEXT_LENGTH = 32
"""Delta's log has at most so many characters of a text."""
_LARGEST_CHARACTER = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MICROSECOND, _LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""


def delta_statistics(columns: pa.Schema, footer: pq.FileMetaData, with_nan: Collection[str] = ()) -> str:
    """The statistics of a file.

    Args:
        with_nan: the columns that contain NaN. The footer ignores NaN, but for Spark it is the largest double.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, kind, found in _statistics(columns, footer):
        if not all(each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.num_values]
        if bounds and name not in with_nan and all(each.has_min_max for each in bounds):
            low, high = _bounds(kind, bounds)
            if low is not None:
                lowest[name] = low
            if high is not None:
                highest[name] = high
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls},
        separators=(",", ":"),
    )


def _statistics(columns: pa.Schema, footer: pq.FileMetaData) -> Iterator[tuple[str, pa.DataType, list[pq.Statistics]]]:
    """By column that is not inside another one: its name, its type, and its statistics in each row group."""
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if "." not in name and name in columns.names and not pa.types.is_nested(columns.field(name).type):
            groups = (footer.row_group(each) for each in range(footer.num_row_groups))
            found = [each.column(number).statistics for each in groups]
            if all(each is not None for each in found):  # a comparison with None would end the process
                yield name, columns.field(name).type, found


def _bounds(kind: pa.DataType, found: list[pq.Statistics]) -> tuple[Any, Any]:
    """The smallest and the largest value in Delta's form; None: not known."""
    if pa.types.is_timestamp(kind):
        low, high = min(each.min_raw for each in found), max(each.max_raw for each in found)
        return _moment(low), _moment(high)
    is_text = pa.types.is_string(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_date32(kind)):
        return None, None
    low, high = min(each.min for each in found), max(each.max for each in found)
    if is_text:
        return low[:_TEXT_LENGTH], _shortened_up(high)
    return (low.isoformat(), high.isoformat()) if pa.types.is_date32(kind) else (low, high)


def _moment(microseconds: int) -> str | None:
    if not _FIRST_MICROSECOND <= microseconds <= _LAST_MICROSECOND:
        return None
    return f"{(_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _shortened_up(text: str) -> str | None:
    """A short text that is not smaller than this one."""
    if len(text) <= _TEXT_LENGTH:
        return text
    return None if text[_TEXT_LENGTH] == _LARGEST_CHARACTER else text[:_TEXT_LENGTH] + _LARGEST_CHARACTER
