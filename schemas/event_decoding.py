"""Turns JSON values into the columns of an event model, and reports the values that do not fit the model.

pydantic checks each value by the model's own rules. So this module creates a Python object for each record. This is
slow: one core decodes 140,000 flights of 19 fields per second. Therefore the other modules of the project create no
Python object for each record.

The reason of an error names pydantic's kind of error and the field, for example "int_type at dep_time". A reason never
contains a part of the value, because some people are allowed to read logs and dead-letter tables, but not the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import compress, repeat
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.comparing import ModelField, model_fields, plain_annotation
from schemas.decoder import DecodedValues, Row, UndecodableError, decode_each
from schemas.event_model import IS_NUMBER, IS_TIME
from schemas.exact_decimals import ExactValidator, has_decimal, has_long_number
from schemas.model_columns import arrow_schema, listed_values
from schemas.unknown_fields.extra_column import EXTRA, extra_text, with_extra
from schemas.unknown_fields.json_fields import unknown_in_json
from schemas.writers.wire_format import json_text

Validate = Callable[[bytes], BaseModel]
"""Makes an event from a text in JSON, or raises a ValidationError."""


@dataclass(frozen=True)
class ModelDecoder:
    """Decodes JSON with an event model. `schemas.decoder.Decoder` describes the methods.

    has_extra: whether the columns include that of unknown fields.
    """

    model: type[BaseModel]
    has_extra: bool = False

    @property
    def name(self) -> str:
        return self.model.__name__

    @property
    def columns(self) -> pa.Schema:
        return with_extra(arrow_schema(self.model), has_extra=self.has_extra)

    @property
    def fields(self) -> Mapping[str, ModelField]:
        return model_fields(self.model)

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        return decode_values(self.model, values, has_extra=self.has_extra)


def decode_values(model: type[BaseModel], values: pa.BinaryArray, *, has_extra: bool = False) -> DecodedValues:
    """Decodes each value, a JSON text in UTF-8, as an event of `model`. A null value gives neither an event nor an error.
    Confluent's serializers may have written the id of a schema before the text. The id is skipped.

    Args:
        has_extra: as in ModelDecoder.

    Raises:
        UnsupportedFieldError: if the model has a field without a column type.
    """
    schema = arrow_schema(model)
    converted = [field.name for field in schema if pa.types.is_nested(field.type) or _is_listed(model, field.name)]
    plain = TypeAdapter(model).validate_json
    validators: Iterator[Validate] = repeat(plain)
    if any(has_decimal(field.type) for field in schema):
        is_long = has_long_number(values)
        exact = ExactValidator(model).validate_json if any(is_long) else plain
        # `decode` gets the values that are not null.
        validators = (exact if each else plain for each in compress(is_long, values.is_valid().to_pylist()))

    def decode(value: bytes) -> Row:
        validate = next(validators)
        text = json_text(value)
        try:
            event: dict[str, Any] = validate(text).__dict__
        except ValidationError as error:
            raise UndecodableError(_reason(error)) from None
        except Exception as error:  # noqa: BLE001 - a validator is the user's own code; its text may contain the value
            raise UndecodableError(f"{type(error).__name__} in the model") from None
        more = {name: _plain(event[name]) for name in converted}
        if has_extra:
            more[EXTRA.name] = extra_text(unknown_in_json(text, model))
        return event | more if more else event

    return decode_each(with_extra(schema, has_extra=has_extra), values, decode)


def _reason(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A field with a time is checked for a number and for a time (schemas.event_model). Only the second error counts.
    first, *others = (each for each in errors if each["loc"][-1:] != (IS_NUMBER,))
    # The name of a field that the model forbids is data of the producer.
    has_more = first["type"] == "extra_forbidden" or first["loc"][-1:] == (IS_TIME,)
    parts = first["loc"][:-1] if has_more else first["loc"]
    place = ".".join(str(part) for part in parts)
    more = f" and {len(others)} more" if others else ""
    return f"{first['type']} at {place}{more}" if place else f"{first['type']}{more}"


def _plain(value: Any) -> Any:
    """A nested event as dicts and lists, and a member of an Enum as its value. Arrow can make columns of these."""
    if isinstance(value, BaseModel):
        return {name: _plain(inner) for name, inner in value.__dict__.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value


def _is_listed(model: type[BaseModel], name: str) -> bool:
    """Whether a field is an Enum or a Literal."""
    return listed_values(plain_annotation(model.model_fields[name].annotation)) is not None
