"""Defines the base class of all event models, and the rules by which every event is checked.

A subclass with annotated fields is the complete definition of an event type. Four things are derived from this
definition: the check of a JSON value (`schemas.event_decoding`), the Arrow columns (`schemas.model_columns`), the Spark
schema, and the columns of the Delta export. An event is one JSON object in UTF-8.

The rules are the same for every event:

- **A wrong type is an error.** For an int, neither "5" nor 5.0 is accepted. JSON has no type for dates or bytes. So a
  datetime or date is accepted as ISO 8601 text (UTC if the text has no zone), bytes are accepted as base64 text, and a
  Decimal is accepted as a number or text.
- **A required field must be present.** A field with a default may be missing. Spark's to_json leaves out null fields, so
  declare a nullable field as `int | None = None`. You can add such a field to an event type at any time.
  `schemas.comparing` lists the changes that are refused.
- **Unknown fields are ignored**, so producers can add a field before the model has it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class EventModel(BaseModel):
    """The base class of event types and of the models nested in them."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        val_json_bytes="base64",
        ser_json_bytes="base64",
    )
