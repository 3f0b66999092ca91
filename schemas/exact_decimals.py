"""Keeps the digits of decimals that are numbers in JSON.

pydantic reads a number with a point or an exponent as a double, which holds 15 digits of every number, but not more.
So this module finds the rows in which such a number has more digits. These rows are decoded by a second validator of
the same model. Before this validator checks a Decimal, it replaces the double by the number in the row's text that has
this double. All other rows are decoded as fast as by pydantic alone.

Two different numbers in one row can have the same double. If a Decimal has this double, the row is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticCustomError, SchemaValidator

_LONG_NUMBER = r"[:,\[\s]-?(?:[0-9.]{17}|[0-9]{16}[eE]|[0-9.]+[eE][-+]?[0-9]{3})"
"""Matches in each text with a number that a double may not hold: a number with more than 15 digits, or with a large
exponent. Also matches in some other texts, for example in one with a long whole number."""
_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(-?[0-9]+(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+))', re.DOTALL)
"""A text in quotes, or a number with a point or an exponent."""
_INNER = ("schema", "items_schema", "fields", "steps", "definitions", "json_schema", "python_schema")
"""The keys of pydantic's core schemas that contain other core schemas."""
_OWN_CODE = ("function-before", "function-wrap")
"""The core schemas whose function gets a value before pydantic has checked it."""


def has_decimal(kind: pa.DataType) -> bool:
    """Whether a column of this type contains decimals."""
    return bool(pa.types.is_decimal(kind)) or any(
        has_decimal(kind.field(number).type) for number in range(kind.num_fields)
    )


def has_long_number(values: pa.BinaryArray) -> list[bool]:
    """For each value, a text in JSON, whether a double may not hold one of its numbers."""
    found: list[bool] = pc.match_substring_regex(values, _LONG_NUMBER).fill_null(False).to_pylist()
    return found


class ExactValidator:
    """Validates texts in JSON with a model, and keeps the digits of decimals. For one thread."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._numbers: dict[float, Decimal | None] = {}
        schema = _with_digits(TypeAdapter(model).core_schema, self._exact)
        # Otherwise pydantic would take the validators of nested models from their classes.
        self._validator = SchemaValidator(schema, _use_prebuilt=False)

    def validate_json(self, text: bytes) -> Any:
        """The event.

        Raises:
            ValidationError: as by pydantic; also if two numbers of the text have the double of one Decimal.
        """
        self._numbers = _numbers(text)
        return self._validator.validate_json(text)

    def _exact(self, value: Any) -> Any:
        if not isinstance(value, float):
            return value
        number = self._numbers.get(value, value)
        if number is None:
            raise PydanticCustomError(
                "decimal_not_exact", "two numbers differ only in digits that a double cannot hold"
            )
        return number


def _numbers(text: bytes) -> dict[float, Decimal | None]:
    """The numbers in a text that are no whole numbers, by their double; None if several numbers have the same double."""
    found: dict[float, Decimal | None] = {}
    for each in _NUMBER.findall(text):
        if each:
            digits = each.decode()
            try:
                number = Decimal(digits)
            except InvalidOperation:  # the exponent has too many digits
                found[float(digits)] = None
                continue
            if found.setdefault(float(digits), number) != number:
                found[float(digits)] = None
    return found


def _with_digits(schema: Any, exact: Callable[[Any], Any], *, replaces: bool = True) -> Any:
    """A core schema in which `exact` gets each Decimal before pydantic checks it. Code of the model that gets a value
    before pydantic has checked it still gets a double, and the result of this code is not replaced.

    Args:
        replaces: false below such code.
    """
    if isinstance(schema, list):
        return [_with_digits(each, exact, replaces=replaces) for each in schema]
    kind = schema.get("type")
    if not isinstance(kind, str):  # the fields of a model, by name
        return {name: _with_digits(each, exact, replaces=replaces) for name, each in schema.items()}
    if kind == "decimal":
        # The function returns an object of Python, of which a strict Decimal accepts no text.
        checked = {**schema, "strict": False}
        function = {"type": "no-info", "function": exact}
        return {"type": "function-before", "function": function, "schema": checked} if replaces else schema
    replaces = kind == "model" or (replaces and kind not in _OWN_CODE)
    inner = {name: _with_digits(schema[name], exact, replaces=replaces) for name in _INNER if name in schema}
    return {**schema, **inner}
