"""Defines the base class of all event models, and the rules by which every event is checked.

A subclass with annotated fields is the complete definition of an event type. Four things are derived from this
definition: the check of a JSON value (`schemas.event_decoding`), the Arrow columns (`schemas.model_columns`), the Spark
schema, and the columns of the Delta export. An event is one JSON object in UTF-8.

The rules are the same for every event:

- **A wrong type is an error.** For an int, neither "5" nor 5.0 is accepted. JSON has no type for dates or bytes. So a
  datetime or date is accepted as ISO 8601 text (UTC if the text has no zone), bytes are accepted as base64 text, and a
  Decimal is accepted as a number or text. A text that is only a number, such as "20130101", is no datetime or date.
- **A required field must be present.** A field with a default may be missing. Spark's to_json leaves out null fields, so
  declare a nullable field as `int | None = None`. You can add such a field to an event type at any time.
  `schemas.comparing` lists the changes that are refused.
- **A Decimal has at most the digits of its type.** Zero fits into each type.
- **Unknown fields are no error**, so producers can add a field before the model has it. An export ignores them, or keeps
  them in the column `_extra` (`schemas.unknown_fields`).
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

IS_NUMBER: Final = "(number)"
IS_TIME: Final = "(time)"
"""What a text in a field with a time is checked for: the last part of the place of an error."""
_TIMES = ("datetime", "date")
_NUMBER = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_INNER = ("schema", "items_schema", "fields")
"""The keys of pydantic's core schemas that contain the core schemas of a model's fields."""
_OTHERS = ("model", "function-before", "function-wrap")
"""The core schemas that are left as they are: a nested model has its own rules, and code of the model that gets a value
before pydantic may make a time from anything."""


def _by_rules(schema: Any) -> Any:
    """A core schema that refuses a number in quotes as a time, and accepts each zero as a Decimal."""
    kind = schema.get("type")
    if not isinstance(kind, str):  # the fields of a model, by name
        return {name: _by_rules(each) for name, each in schema.items()}
    if kind == "decimal" and schema.get("max_digits") == schema.get("decimal_places") is not None:
        # pydantic counts a digit before the point, and would refuse 0.
        bounds = {"gt": max(schema.get("gt", -1), -1), "lt": min(schema.get("lt", 1), 1)}
        return {name: schema[name] for name in schema if name != "max_digits"} | bounds
    if kind in _TIMES and schema.get("strict") is not False:
        # The union makes a text of a number, and the second step refuses every text.
        number = {"type": "str", "pattern": _NUMBER}
        union = {"type": "union", "mode": "left_to_right", "choices": [(number, IS_NUMBER), (schema, IS_TIME)]}
        return {
            "type": "json-or-python",
            "json_schema": {"type": "chain", "steps": [union, {"type": kind}]},
            "python_schema": schema,
        }
    if kind in _OTHERS:
        return schema
    return {**schema, **{name: _by_rules(schema[name]) for name in _INNER if name in schema}}


class EventModel(BaseModel):
    """The base class of event types and of the models nested in them."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        val_json_bytes="base64",
        ser_json_bytes="base64",
        protected_namespaces=(),
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        """The rules, which also refuse a number in quotes as a time. pydantic would take it for a Unix time."""
        found = handler(source)
        model: Any = handler.resolve_ref_schema(found)
        while model["type"] == "function-after":
            model = handler.resolve_ref_schema(model["schema"])
        if model["type"] == "model" and model["cls"] is cls and model["config"].get("strict"):
            model["schema"] = _by_rules(model["schema"])
        return found
