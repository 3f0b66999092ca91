"""Computes the statistics of a Parquet file in the form of Delta's log. Readers use the statistics to skip files.

The statistics come from the footer of the file. They have the number of rows, the number of nulls, and the smallest and
the largest value of columns with whole numbers, texts, dates and timestamps. Columns inside other columns have none, and
neither have binary columns, booleans, decimals and doubles (`pipeline.delta.files.skipping_columns`). If one of the
values cannot be written, the file has only the number of rows: deltalake's datasets skip a file of which only some
columns have a smallest and a largest value. This module is a pure function.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.delta.files.skipping_columns import has_exact_bounds
from pipeline.delta.without_spark.log_commits import log_json
from schemas.decoder import FIRST_MICROSECOND, LAST_MICROSECOND

_TEXT_LENGTH = 32
"""Delta's log has at most so many characters of a text."""
_LARGEST_CHARACTER = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def delta_statistics(columns: pa.Schema, footer: pq.FileMetaData) -> str:
    """The statistics of a file."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, kind, found in _statistics(columns, footer):
        bounds = [each for each in found if each.num_values]
        is_known = all(each.has_null_count for each in found)
        if has_exact_bounds(kind) and bounds:
            low, high = _bounds(kind, bounds) if all(each.has_min_max for each in bounds) else (None, None)
            if not is_known or low is None or high is None:
                return log_json({"numRecords": footer.num_rows})
            lowest[name], highest[name] = low, high
        if is_known:
            nulls[name] = sum(each.null_count for each in found)
    return log_json({"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


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
    low, high = min(each.min for each in found), max(each.max for each in found)
    if isinstance(low, str):
        return low[:_TEXT_LENGTH], _shortened_up(high)
    return (low.isoformat(), high.isoformat()) if pa.types.is_date32(kind) else (low, high)


def _moment(microseconds: int) -> str | None:
    if not FIRST_MICROSECOND <= microseconds <= LAST_MICROSECOND:
        return None
    return f"{(_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _shortened_up(text: str) -> str:
    """A short text that is not smaller than this one. It is longer than Delta's texts if it must begin with more of the
    largest characters."""
    for length in range(_TEXT_LENGTH, len(text)):
        if text[length] != _LARGEST_CHARACTER:
            return text[:length] + _LARGEST_CHARACTER
    return text
