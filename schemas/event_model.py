"""Defines the base class of all event models, and the rules that every producer and every reader may rely on.

A subclass with annotated fields is the whole definition of an event type. Four things follow from it and are written
nowhere else: how a JSON value is checked (`schemas.decoding`), the Arrow columns (`schemas.columns`), the Spark schema
and the columns of the Delta export. An event is one JSON object in UTF-8.

The rules of checking are the same for every event:

- **A wrong type fails.** Neither "5" nor 5.0 is an int. JSON has no type for dates or bytes. So ISO 8601 text is accepted as
  datetime and date (UTC if it has no zone), base64 text as bytes, and a number or text as Decimal.
- **A required field must be there.** A field with a default may be missing. Spark's to_json leaves out a null field, so
  declare a nullable field as `int | None = None`. Such a field may be added to an event type at any time;
  `schemas.comparing` lists the changes that are refused.
- **Unknown fields are ignored**, so that producers may add one before the model knows it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class EventModel(BaseModel):
    """Subclassed once per event type, and by the models nested in one."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        val_json_bytes="base64",
        ser_json_bytes="base64",
    )
