"""The base of all event models: what every producer and every reader may rely on.

A subclass with annotated fields is the whole definition of an event type. Four things follow from it and are written
nowhere else: how a JSON value is checked (`schemas.decoding`), the Arrow columns (`schemas.columns`), the Spark schema
and the columns of the Delta export. An event is one JSON object in UTF-8.

The rules of checking are the same for every event:

- **A wrong type fails.** "5" is no int and 5.0 is none either. JSON has no dates and bytes, so ISO 8601 text counts as
  datetime and date (without a zone it is UTC), base64 text as bytes, and a number or text as Decimal.
- **A required field must be there.** A field with a default may be missing, which is also how Spark's to_json writes a
  null, so `int | None = None` is the form of a nullable field. Such a field may be added to an event type at any time;
  what may not be is in `schemas.comparing`.
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
