"""Writes columns of Arrow as text that databases read. Arrow's own functions do the work, except for bytes and for nested
values, which become JSON.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

FIRST_MOMENT = -62_135_596_800_000_000
LAST_MOMENT = 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970: what databases and Python can store."""


def text_of(column: pa.Array) -> pa.Array:
    """The values as text: numbers and dates in the usual form, timestamps in UTC and without a zone, bytes in
    hexadecimal, nested values as JSON, booleans as 1 and 0."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if is_bytes(kind):
        return pa.array([None if each is None else each.hex() for each in column.to_pylist()], pa.string())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_nested(kind):
        return pa.array([None if each is None else as_json(each, kind) for each in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def lines_of(
    batch: pa.RecordBatch,
    cell: Callable[[pa.Array, pa.DataType], pa.Array],
    null: str,
    between: str,
) -> list[str]:
    """One text for each row: the cells of the row, separated by `between`.

    cell: makes the cells from the text of a column and from the column's type.
    """
    cells = [cell(text_of(column), column.type).fill_null(null) for column in batch.columns]
    lines: list[str] = pc.binary_join_element_wise(*cells, between).to_pylist()
    return lines


def escaped(column: pa.Array, pairs: Sequence[tuple[str, str]]) -> pa.Array:
    """The texts, after each of these characters was replaced, in this order."""
    for character, replacement in pairs:
        column = pc.replace_substring(column, character, replacement)
    return column


def within_moments(column: pa.Array) -> pa.Array:
    """Timestamps. A time before the year 1 or after the year 9999 is moved to the nearest of these limits."""
    numbers = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    limited = pc.min_element_wise(
        pc.max_element_wise(numbers, FIRST_MOMENT, skip_nulls=False), LAST_MOMENT, skip_nulls=False
    )
    return limited.cast(pa.timestamp("us", tz="UTC"))


def as_json(value: Any, kind: pa.DataType) -> str:
    """JSON of a nested value. Bytes are in base64; decimals, dates, timestamps, NaN and infinity are strings. Structs and
    maps are objects.

    Args:
        value: the value as Arrow's to_pylist returns it, in which a map is a list of pairs.
    """
    return json.dumps(_plain(value, kind), ensure_ascii=False)


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _plain(value[each.name], each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {str(key): _plain(each, kind.item_type) for key, each in value}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
