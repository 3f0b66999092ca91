"""Defines the column of unknown fields, and writes its JSON.

The unknown fields of a value are a tree of Python objects, from which `extra_text` makes a text:

    a dict    by name, the unknown fields, and the unknown fields inside known fields
    a list    for each item of a known list, its unknown fields, or None
    None      nothing is unknown

In the text, names are sorted, and there is no white space.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

EXTRA = pa.field("_extra", pa.string())
"""The fields of a value that its schema does not have, as a JSON object. Null: there are none."""

Unknown = Any
"""The unknown fields of a value, as the module describes them."""

_MARK = "\ud800"
"""Stands around a number that is copied as it is written. No text has it: it is half of a surrogate pair."""


def as_written(number: str) -> str:
    """A number of JSON that `extra_text` writes with the same digits."""
    return f"{_MARK}{number}{_MARK}"


def with_extra(columns: pa.Schema, *, has_extra: bool) -> pa.Schema:
    """The columns of a decoder."""
    return columns.append(EXTRA) if has_extra else columns


def extra_text(unknown: Unknown) -> str | None:
    """The value of the column `_extra`."""
    if unknown is None:
        return None
    text = _TO_JSON(unknown)
    return text.replace(f'"{_MARK}', "").replace(f'{_MARK}"', "") if _MARK in text else text


def of_items(items: Iterable[Unknown]) -> Unknown:
    """The unknown fields of a list."""
    found = list(items)
    return found if any(each is not None for each in found) else None


def of_fields(fields: Iterable[tuple[str, Unknown]]) -> Unknown:
    """The unknown fields inside named parts, such as the entries of a map."""
    return {name: each for name, each in fields if each is not None} or None


def finite(number: float) -> float | str:
    """A number as JSON has it: NaN and infinite numbers become texts."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _as_text(value: Any) -> str:
    """JSON has no bytes, decimals, dates and times. They become texts."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


_TO_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_as_text).encode
