"""Decides by the statistics of which columns a reader may skip files of a table: Delta's property
delta.dataSkippingStatsColumns.

    `number`,`colour`,`_partition`,`_offset`,`_timestamp`

A named column has a smallest and a largest value in the statistics of every file, unless a file has only nulls in this
column, or no statistics at all. These values are exact, or include all values of the file. deltalake needs both: if a
file has statistics, but not of a named column, deltalake's datasets skip the file for every filter on this column. And
deltalake writes the bounds of decimals as doubles, which can be above the smallest or below the largest value.

So the property names only columns with whole numbers, texts, dates and timestamps that are not inside other columns.
Decimals, doubles, booleans and binary columns are left out. Readers then read every file to filter by these columns.
This module consists of pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from pipeline.delta.rows.row_columns import COORDINATES
from pipeline.delta.table_properties import SKIPPING_PROPERTY

_MOST = 32
"""The property names at most so many columns of the model: each one makes Delta's log larger."""
_SIMPLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Other names are left out, because programs read them in different ways."""


def has_exact_bounds(kind: pa.DataType) -> bool:
    """Whether all writers of Lakelog write exact bounds of the values of this type, or bounds that include them."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def skipping_columns(columns: pa.Schema, partition_by: Collection[str] = ()) -> list[str]:
    """The names of the columns for the property of a table with these columns."""
    found = [
        each.name
        for each in columns
        if has_exact_bounds(each.type) and each.name not in partition_by and _SIMPLE.fullmatch(each.name)
    ]
    fields = [name for name in found if name not in COORDINATES.names]
    kept = {*fields[:_MOST], *COORDINATES.names}
    return [name for name in found if name in kept]


def skipping_property(names: Iterable[str]) -> dict[str, str]:
    """The property that names these columns. The quotes are needed for names that are words of SQL."""
    return {SKIPPING_PROPERTY: ",".join(f"`{name}`" for name in names)}


def named_columns(value: str) -> list[str]:
    """The columns that a value of the property names."""
    names = (name.strip() for name in value.split(","))
    return [name[1:-1] if name[:1] == name[-1:] == "`" else name for name in names if name]


def names_only_exact_bounds(value: str, columns: pa.Schema) -> bool:
    """Whether a value of the property names only columns with exact bounds."""
    exact = {each.name.lower() for each in columns if has_exact_bounds(each.type)}
    return all(name.lower() in exact for name in named_columns(value))


def with_whole_statistics(names: Iterable[str], statistics: Iterable[str | None]) -> list[str]:
    """Those of the columns of which every file has bounds.

    Args:
        statistics: the statistics of the files, as in Delta's log.
    """
    found = list(names)
    for text in statistics:
        known = json.loads(text or "{}")
        if any(known.get(name) for name in ("minValues", "maxValues", "nullCount")):
            found = [name for name in found if _is_whole(known, name)]
    return found


def _is_whole(statistics: Mapping[str, Any], name: str) -> bool:
    lowest, highest, nulls = (
        (statistics.get(each) or {}).get(name) for each in ("minValues", "maxValues", "nullCount")
    )
    if nulls is None:
        return False
    return nulls == statistics.get("numRecords") or (_is_bound(lowest) and _is_bound(highest))


def _is_bound(value: Any) -> bool:
    """Whether all readers know the bound. A time after the year 9999 begins with a sign, and deltalake does not read it.
    A text may begin with a sign, too; its column is left out without need."""
    return value is not None and not (isinstance(value, str) and re.match(r"[+-][0-9]", value))


def still_fitting(names: Iterable[str], found: pa.Schema, wanted: pa.Schema, *, rebuilt: bool) -> list[str]:
    """Those of the columns that the property may name after the table has got the wanted columns.

    Args:
        found: the columns of the table.
        wanted: the columns of the export.
        rebuilt: the table will have only the wanted columns.
    """
    before, after = ({each.name.lower(): each.type for each in columns} for columns in (found, wanted))

    def fits(name: str) -> bool:
        kind = after.get(name.lower())
        if kind is None:
            return not rebuilt
        if has_exact_bounds(kind):
            return True
        was = before.get(name.lower())
        is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return is_number and was is not None and not has_exact_bounds(was)  # somebody else has named it

    return [name for name in names if fits(name)]
