"""Defines the column of unknown fields, and writes its JSON.

The unknown fields of a value are a tree of Python objects, from which `extra_text` makes a text:

    a dict    by name, the unknown fields, and the unknown fields inside known fields
    a list    for each item of a known list, its unknown fields, or None
    None      nothing is unknown

The text is the same for all values with the same unknown fields: names are sorted, and there is no white space.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

EXTRA = pa.field("_extra", pa.string())
"""The fields of a value that its schema does not have, as a JSON object. Null: there are none."""

Unknown = Any
"""The unknown fields of a value, as the module describes them."""


_quoted = json.JSONEncoder(ensure_ascii=False).encode


class JsonNumber(str):
    """A number, written as in the JSON from which it comes. So it keeps all digits."""

    __slots__ = ()


def extra_text(unknown: Unknown) -> str | None:
    """The value of the column `_extra`."""
    return None if unknown is None else _json(unknown)


def of_items(items: Iterable[Unknown]) -> Unknown:
    """The unknown fields of a list."""
    found = list(items)
    return found if any(each is not None for each in found) else None


def of_fields(fields: Iterable[tuple[str, Unknown]]) -> Unknown:
    """The unknown fields inside named parts, such as the entries of a map."""
    return {name: each for name, each in fields if each is not None} or None


def _json(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return value
    if isinstance(value, Mapping):
        entries = (f"{_quoted(name)}:{_json(each)}" for name, each in sorted(value.items()))
        return f"{{{','.join(entries)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    return _quoted(_scalar(value))


def _scalar(value: Any) -> Any:
    """A value as JSON has it. JSON has no bytes, decimals, dates and times, and neither NaN nor infinite numbers. They
    become texts."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return str(value) if isinstance(value, (date, Decimal)) else value
