"""Decodes Avro values into columns: plain values, and values in Confluent's wire format.

A plain value is decoded with the schema of the settings. In the wire format, the schema with the id of the value is the
writer's schema, and the schema of the settings is the reader's schema. fastavro resolves one to the other as Avro
prescribes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from schemas.avro.avro_columns import columns_of, converted, fields_of
from schemas.avro.avro_schema import (
    AvroSchema,
    AvroSchemaError,
    canonical_form,
    check_finite,
    parse,
    with_checked_indexes,
)
from schemas.avro.resolution import check_branches
from schemas.comparing import ModelField
from schemas.decoder import DecodedValues, Row, UndecodableError, decode_each
from schemas.model_columns import UnsupportedFieldError
from schemas.schema_errors import required_package
from schemas.writers.wire_format import after_id, schema_id
from schemas.writers.writer_schemas import UnusableSchemaError, WriterSchemas

_FORMAT = "(format)"
"""The path of the field that describes how values are written."""


@dataclass(frozen=True)
class _Unusable:
    """A writer's schema with which no value can be decoded."""

    reason: str


class AvroDecoder:
    """Decodes Avro with a reader's schema. `schemas.decoder.Decoder` describes the methods."""

    def __init__(self, text: str, writers: WriterSchemas | None) -> None:
        """Parse the reader's schema.

        Args:
            text: the schema in Avro's JSON.
            writers: the writers' schemas; None if values are plain.

        Raises:
            AvroSchemaError: the text is no Avro schema, or the schema cannot be used.
            UnsupportedFieldError: the schema is no record, or a field has no column type.
            MissingFormatError: fastavro is not installed.
        """
        self._reader = parse(text)
        try:
            self._columns, conversions = columns_of(self._reader)
            check_finite(self._reader)
        except (UnsupportedFieldError, AvroSchemaError):
            raise
        except Exception as error:  # noqa: BLE001 - fastavro does not check everything in a schema
            raise AvroSchemaError(f"it cannot become columns: {type(error).__name__}") from None
        self._conversions = {name: each for name, each in conversions.items() if each is not None}
        self._plain = with_checked_indexes(parse(text))
        self._writers = writers
        self._known: dict[int, AvroSchema | _Unusable] = {}
        self._read: Callable[..., Any] = required_package("fastavro", "fastavro", "avro").schemaless_reader

    @property
    def name(self) -> str:
        return str(self._reader.resolved(self._reader.root)["name"])

    @property
    def columns(self) -> pa.Schema:
        return self._columns

    @property
    def fields(self) -> Mapping[str, ModelField]:
        """The fields, and one more field for the format. If values are plain, its type contains a fingerprint: if the
        schema changes, older values can no longer be decoded, because they do not name their schema."""
        form = "Avro with schema ids" if self._writers is not None else f"Avro {canonical_form(self._reader)}"
        return {**fields_of(self._reader, self._columns), _FORMAT: ModelField(form, required=True, nullable=False)}

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        missing: dict[int, _Unusable] = {}  # an id that is missing now may be there for the next batch
        return decode_each(self._columns, values, lambda value: self._row(value, missing))

    def _row(self, value: bytes, missing: dict[int, _Unusable]) -> Row:
        if self._writers is None:
            return self._decoded(value, self._plain, None)
        number = schema_id(value)
        writer = self._known.get(number) or missing.get(number) or self._writer(self._writers, number, missing)
        if isinstance(writer, _Unusable):
            raise UndecodableError(writer.reason)
        return self._decoded(after_id(value), writer, self._reader.root)

    def _decoded(self, value: bytes, writer: AvroSchema, reader: Any) -> Row:
        stream = io.BytesIO(value)
        try:
            record = self._read(stream, writer.root, reader, return_named_type=True)
            if isinstance(record, tuple):  # the writer's outermost type is a union
                _, record = record
            row = converted(record, self._conversions)
        except UndecodableError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro raises many types; their texts may contain the value
            raise UndecodableError(_REASONS.get(type(error).__name__, "malformed")) from None
        if stream.tell() < len(value):
            raise UndecodableError("too_long: the value has more bytes than its schema describes")
        return row

    def _writer(self, writers: WriterSchemas, number: int, missing: dict[int, _Unusable]) -> AvroSchema | _Unusable:
        """The writer's schema with an id, from the folder or the registry."""
        try:
            found = writers.find(number)
        except UnusableSchemaError as error:
            missing[number] = _unusable(number, str(error))
            return missing[number]
        if found is None:
            missing[number] = _Unusable(f"unknown_schema: {writers.shown} has no schema with the id {number}")
            return missing[number]
        if found.kind != "AVRO":
            known: AvroSchema | _Unusable = _Unusable(
                f"other_format: the schema with the id {number} is {found.kind}, not AVRO"
            )
        else:
            try:
                known = parse(found.text, found.references)
                check_finite(known)
                check_branches(known, self._reader)
                known = with_checked_indexes(known)
            except AvroSchemaError as error:
                known = _unusable(number, str(error))
            except Exception as error:  # noqa: BLE001 - one schema must not stop the topic
                known = _unusable(number, type(error).__name__)
        self._known[number] = known
        return known


def _unusable(number: int, why: str) -> _Unusable:
    return _Unusable(f"unusable_schema: the schema with the id {number} cannot be used: {why}")


_REASONS: Mapping[str, str] = {
    "EOFError": "too_short: the value ends before all of its fields",
    "SchemaResolutionError": "no_match: the writer's schema does not fit the schema of the settings",
    "UnicodeDecodeError": "not_utf8: a string is not text in UTF-8",
    "OverflowError": "out_of_range: a date or time is outside of the years 1 to 9999",
}
"""By the name of fastavro's or Python's error, the reason of a dead letter."""
