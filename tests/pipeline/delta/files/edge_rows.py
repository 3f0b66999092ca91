"""Rows with values at the edges of each type that a column can have, and filters on each of their columns."""

from __future__ import annotations

import base64
import json
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from schemas.event_schema import EventSchema

DDL = (
    "id BIGINT, text STRING, whole BIGINT, price DECIMAL(18,2), inside STRUCT<price: DECIMAL(20,2)>, wide DECIMAL(38,10),"
    " real DOUBLE, flag BOOLEAN, raw BINARY, moment TIMESTAMP, day DATE, `order` STRING"
)
COLUMNS = ["text", "whole", "price", "wide", "real", "flag", "raw", "moment", "day", "order"]
LARGEST = "\U0010ffff"
_WIDE = "1234567890123456789012345678.0123456789"
_ROWS: list[list[tuple[Any, ...]]] = [
    [
        ("b" * 31, 1, "1.10", "0.1", 1.5, True, "a", "2026-01-31T10:00:00.123456Z", "2026-01-31", "x"),
        (LARGEST * 40, -(2**63), "1234567890123456.78", _WIDE, math.nan, True, "", "9999-12-31T23:59:59.999999Z",
         "9999-12-31", "b"),
    ],
    [
        ("x" * 32 + LARGEST * 3, 2**63 - 1, "-9999999999999999.99", f"-{_WIDE}", math.inf, False, "zz",
         "0001-01-01T00:00:00Z", "0001-01-01", "a" * 100),
        ("", 0, "3382002918088614.93", "-0.0000000001", -0.0, False, "b", "1969-12-31T23:59:59.999999Z", "1969-12-31",
         ""),
        (None,) * 10,
    ],
    [(None,) * 10],
    [("é" * 40, 9007199254740993, "0.01", "1e-9", -math.inf, True, "c", "2013-01-01T00:00:00.999999Z", "2013-01-01", "é")],
    [("b" * 33, 7, "7.90", "7.9", 7.0, None, None, None, None, None)],
]  # fmt: skip
"""By file, the values of COLUMNS."""


@dataclass(frozen=True)
class Filter:
    """A filter, and the ids of the rows that it finds. operation: =, >=, <=, or empty: the value is null."""

    column: str
    operation: str
    value: Any
    found: tuple[int, ...]


def schema() -> EventSchema:
    return EventSchema(DDL)


def values() -> list[list[tuple[int, bytes]]]:
    """By file, the ids and the values of the records."""
    count = 0
    files: list[list[tuple[int, bytes]]] = []
    for rows in _ROWS:
        files.append([])
        for row in rows:
            fields = {"id": count, **dict(zip(COLUMNS, row, strict=True)), "inside": {"price": row[2]}}
            fields["raw"] = None if fields["raw"] is None else base64.b64encode(fields["raw"].encode()).decode()
            files[-1].append((count, json.dumps(fields).encode()))
            count += 1
    return files


def _python(column: str, value: Any) -> Any:
    if value is None or column not in ("price", "wide", "raw", "moment", "day"):
        return value
    if column == "raw":
        return value.encode()
    if column == "day":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value).astimezone(UTC) if column == "moment" else Decimal(value)


def filters() -> Iterator[Filter]:
    """For each column: whether it is null, and for each value =, >= and <=. NaN is in no filter and matches none: not all
    readers compare it in the same way."""
    rows = [row for rows in _ROWS for row in rows]
    for position, column in enumerate(COLUMNS):
        there = [_python(column, row[position]) for row in rows]
        yield Filter(column, "", None, tuple(each for each, value in enumerate(there) if value is None))
        known = {each: value for each, value in enumerate(there) if value is not None and value == value}
        for value in known.values():
            for name, compare in _OPERATIONS.items() if column != "flag" else [("=", operator.eq)]:
                found = tuple(each for each, other in known.items() if compare(other, value))
                yield Filter(column, name, value, found)


_OPERATIONS = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}


def without_nan(each: Filter, found: Sequence[int]) -> tuple[int, ...]:
    """The ids that a reader found, in order. The row with NaN does not count in filters of its column."""
    return tuple(sorted(set(found) - ({1} if each.column == "real" and each.operation else set())))


_TYPES = {"whole": "BIGINT", "price": "DECIMAL(18,2)", "wide": "DECIMAL(38,10)", "real": "DOUBLE"}


def sql(each: Filter, quote: str = '"', moment: str = "TIMESTAMPTZ '%s'") -> str:
    """The filter in SQL."""
    name, value = f"{quote}{each.column}{quote}", each.value
    if not each.operation:
        return f"{name} IS NULL"
    if each.column == "flag":
        return name if value else f"NOT {name}"
    if each.column == "moment":
        literal = moment % f"{value.isoformat(' ', 'microseconds').removesuffix('+00:00')}+00:00"
    elif each.column == "day":
        literal = f"DATE '{value.isoformat()}'"
    elif each.column == "raw":
        literal = f"X'{value.hex()}'"
    elif each.column in _TYPES:
        shown = f"{value:f}" if isinstance(value, Decimal) else str(value).replace("inf", "Infinity")
        literal = f"CAST('{shown}' AS {_TYPES[each.column]})"
    else:
        literal = f"'{value}'"
    return f"{name} {each.operation} {literal}"
