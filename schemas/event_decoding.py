"""Turns JSON values into the columns of an event model, and reports the values that do not fit the model.

pydantic checks each value by the model's own rules. So this module creates a Python object for each record. This is
slow: one core decodes 140,000 flights of 19 fields per second. Therefore the other modules of the project create no
Python object for each record.

The reason of an error names pydantic's kind of error and the field, for example "int_type at dep_time". A reason never
contains a part of the value, because some people are allowed to read logs and dead-letter tables, but not the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.model_columns import arrow_schema


@dataclass(frozen=True)
class DecodeError:
    """The error of a value that does not fit the model."""

    row: int
    """Index into the values."""
    reason: str


@dataclass(frozen=True)
class DecodedValues:
    """The columns of the model, with one row for each value, in the order of the values."""

    columns: pa.RecordBatch
    """If a value is null or cannot be decoded, its row is null in every column. So every column is nullable."""
    errors: list[DecodeError]
    """In ascending order of row."""


def decode_values(model: type[BaseModel], values: pa.BinaryArray) -> DecodedValues:
    """Decodes each value, a JSON text in UTF-8, as an event of `model`. A null value gives neither an event nor an error.

    Raises:
        UnsupportedFieldError: if the model has a field without a column type.
    """
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema(model)])
    validate = TypeAdapter(model).validate_json
    reasons: dict[int, str] = {}
    events: list[dict[str, Any] | None] = []
    for row, value in enumerate(values.to_pylist()):
        event = None
        if value is not None:
            try:
                event = validate(value).__dict__
            except ValidationError as error:
                reasons[row] = _reason(error)
            except Exception as error:  # noqa: BLE001 - a validator is the user's own code; its text may contain the value
                reasons[row] = f"{type(error).__name__} in the model"
        events.append(event)
    try:
        columns = [_column(field, events) for field in schema]
    except _CONVERSION_ERRORS:
        _drop_events_that_no_column_holds(schema, events, reasons)
        columns = [_column(field, events) for field in schema]
    errors = [DecodeError(row, reasons[row]) for row in sorted(reasons)]
    return DecodedValues(pa.record_batch(columns, schema=schema), errors)


_CONVERSION_ERRORS = (ArithmeticError, ValueError, TypeError)
"""Arrow's errors for a value that does not fit the type of its column. They include pa.ArrowInvalid and
pa.ArrowTypeError.
"""


def _reason(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    # The name of a field that the model forbids is data of the producer.
    parts = first["loc"][:-1] if first["type"] == "extra_forbidden" else first["loc"]
    place = ".".join(str(part) for part in parts)
    more = f" and {len(others)} more" if others else ""
    return f"{first['type']} at {place}{more}" if place else f"{first['type']}{more}"


def _column(field: pa.Field, events: Sequence[dict[str, Any] | None]) -> pa.Array:
    name = field.name
    values = [None if event is None else event[name] for event in events]
    if pa.types.is_nested(field.type):
        values = [_plain(value) for value in values]
    return pa.array(values, type=field.type)


def _plain(value: Any) -> Any:
    """A nested event as dicts and lists, from which Arrow can make columns."""
    if isinstance(value, BaseModel):
        return {name: _plain(inner) for name, inner in value.__dict__.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _drop_events_that_no_column_holds(
    schema: pa.Schema, events: list[dict[str, Any] | None], reasons: dict[int, str]
) -> None:
    """Drop events that fit the model but not the columns, for example an int of more than 64 bits."""
    for row, event in enumerate(events):
        if event is None:
            continue
        for field in schema:
            try:
                _column(field, [event])
            except _CONVERSION_ERRORS:
                events[row] = None
                reasons[row] = f"out_of_range at {field.name}"
                break
