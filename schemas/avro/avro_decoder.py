"""Decodes Avro values into columns: plain values, and values in Confluent's wire format.

A plain value is decoded with the schema of the settings. In the wire format, the schema with the id of the value is the
writer's schema, and the schema of the settings is the reader's schema. fastavro resolves one to the other as Avro
prescribes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.avro.avro_columns import columns_of, converted, fields_of
from schemas.avro.avro_schema import (
    AvroSchemaError,
    Node,
    canonical_form,
    check_finite,
    in_record,
    is_record,
    parse,
    shared_names,
)
from schemas.avro.resolution import BranchNameError, check_branches, reader_in_full, writer_in_full
from schemas.avro.unknown_fields import UnknownFields
from schemas.avro.value_check import ValueCheck
from schemas.comparing import ModelField
from schemas.decoder import DecodedValues, Row, UndecodableError, decode_each
from schemas.model_columns import UnsupportedFieldError
from schemas.schema_errors import required_package
from schemas.unknown_fields.extra_column import EXTRA, extra_text, with_extra
from schemas.writers.wire_format import id_length, rows_by_id, schema_id
from schemas.writers.writer_schemas import SchemaId, UnusableSchemaError, WriterSchemas

_FORMAT = "(format)"
"""The path of the field that describes how values are written."""


@dataclass(frozen=True)
class _Unusable:
    """A writer's schema with which no value can be decoded."""

    reason: str


@dataclass(frozen=True)
class _Writer:
    """A writer's schema, and the reader's schema to which fastavro resolves its values.

    reader: None if nothing is resolved, because both are equal.
    unknown: the fields that only the writer's schema has; None if the rows do not have them.
    """

    check: ValueCheck
    writer: Node
    reader: Node | None
    unknown: UnknownFields | None = None


class AvroDecoder:
    """Decodes Avro with a reader's schema. `schemas.decoder.Decoder` describes the methods."""

    def __init__(
        self, text: str, writers: WriterSchemas | None, *, may_be_single: bool = False, has_extra: bool = False
    ) -> None:
        """Parse the reader's schema.

        Args:
            text: the schema in Avro's JSON.
            writers: the writers' schemas; None if values are plain.
            may_be_single: whether the schema may be another type than a record. It becomes the column `value`.
            has_extra: whether the columns include that of unknown fields.

        Raises:
            AvroSchemaError: the text is no Avro schema, or the schema cannot be used.
            UnsupportedFieldError: the schema is no record, or a field has no column type.
            MissingFormatError: fastavro is not installed.
        """
        self._text = text
        self._reader = parse(text, is_reader=True)
        self._is_single = may_be_single and not is_record(self._reader)
        if self._is_single:
            self._text = in_record(text)
            self._reader = parse(self._text, is_reader=True)
        try:
            self._columns, conversions = columns_of(self._reader)
            check_finite(self._reader)
            self._plain = _Writer(ValueCheck(self._reader), self._reader.root, None)
        except (UnsupportedFieldError, AvroSchemaError):
            raise
        except Exception as error:  # noqa: BLE001 - fastavro does not check everything in a schema
            raise AvroSchemaError(f"it cannot become columns: {type(error).__name__}") from None
        self._has_extra = has_extra
        self._conversions = {name: each for name, each in conversions.items() if each is not None}
        self._writers = writers
        self._known: dict[bytes, _Writer | _Unusable] = {}  # by the magic byte and the id
        self._read: Callable[..., Any] = required_package("fastavro", "fastavro", "avro").schemaless_reader

    @property
    def name(self) -> str:
        return str(self._reader.resolved(self._reader.root)["name"])

    @property
    def columns(self) -> pa.Schema:
        return with_extra(self._columns, has_extra=self._has_extra)

    @property
    def fields(self) -> Mapping[str, ModelField]:
        """The fields, and one more field for the format. If values are plain, its type contains a fingerprint: if the
        schema changes, older values can no longer be decoded, because they do not name their schema."""
        form = "Avro with schema ids" if self._writers is not None else f"Avro {canonical_form(self._reader)}"
        return {**fields_of(self._reader, self._columns), _FORMAT: ModelField(form, required=True, nullable=False)}

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        if self._writers is None:
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            return decode_each(self.columns, values, self._plain_row, self._plain.check.reasons(values, rows))
        return decode_each(self.columns, values, self._row, self._unfit(self._writers, values))

    def _unfit(self, writers: WriterSchemas, values: pa.BinaryArray) -> dict[int, str]:
        """By row, why a value that begins with an id cannot be decoded. The schemas of the other ids are known then."""
        reasons: dict[int, str] = {}
        for start, rows in rows_by_id(values).items():
            writer = self._known.get(start) or self._writer(writers, start)
            if isinstance(writer, _Writer):
                reasons |= writer.check.reasons(values, rows, len(start))
            else:
                reasons |= dict.fromkeys(rows.tolist(), writer.reason)
        return reasons

    def _plain_row(self, value: bytes) -> Row:
        return self._decoded(value, self._plain)

    def _row(self, value: bytes) -> Row:
        schema_id(value)  # raises an error if there is none
        length = id_length(value)
        writer = self._known[value[:length]]
        assert isinstance(writer, _Writer), "a value of an unusable schema is not decoded"
        return self._decoded(value[length:], writer)

    def _decoded(self, value: bytes, writer: _Writer) -> Row:
        try:
            record = self._read(io.BytesIO(value), writer.writer, writer.reader, return_named_type=True)
            if isinstance(record, tuple):  # the writer's outermost type is a union
                _, record = record
            row = converted(record, self._conversions)
            if self._has_extra:
                row[EXTRA.name] = extra_text(writer.unknown.of(value)) if writer.unknown is not None else None
            return row
        except UndecodableError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro raises many types; their texts may contain the value
            raise UndecodableError(_REASONS.get(type(error).__name__, "malformed")) from None

    def _writer(self, writers: WriterSchemas, start: bytes) -> _Writer | _Unusable:
        """The writer's schema of values with this magic byte and id, from the folder or the registry. An id that is missing
        now may be there for the next batch."""
        number = schema_id(start)
        try:
            found = writers.find(number)
        except UnusableSchemaError as error:
            return _unusable(number, str(error))
        if found is None:
            return _Unusable(f"unknown_schema: {writers.shown} has no schema with the id {number}")
        if found.kind != "AVRO":
            known: _Writer | _Unusable = _Unusable(
                f"other_format: the schema with the id {number} is {found.kind}, not AVRO"
            )
        else:
            try:
                known = self._resolved(in_record(found.text) if self._is_single else found.text, found.references)
            except AvroSchemaError as error:
                known = _unusable(number, str(error))
            except Exception as error:  # noqa: BLE001 - one schema must not stop the topic
                known = _unusable(number, type(error).__name__)
        self._known[start] = known
        return known

    def _resolved(self, text: str, references: Sequence[str]) -> _Writer:
        schema, reader = parse(text, references), self._reader
        check_finite(schema)
        if schema.root == reader.root:
            return _Writer(ValueCheck(schema), schema.root, None)
        try:
            check_branches(schema, reader)
        except BranchNameError:
            names = shared_names(reader)
            schema, reader = parse(text, references, names), parse(self._text, (), names)
            check_branches(schema, reader)
        unknown = UnknownFields(schema, reader) if self._has_extra else None
        return _Writer(ValueCheck(schema), writer_in_full(schema), reader_in_full(reader, schema), unknown)


def _unusable(number: SchemaId, why: str) -> _Unusable:
    return _Unusable(f"unusable_schema: the schema with the id {number} cannot be used: {why}")


_REASONS: Mapping[str, str] = {
    "SchemaResolutionError": "no_match: the writer's schema does not fit the schema of the settings",
    "UnicodeDecodeError": "not_utf8: a string is not text in UTF-8",
    "OverflowError": "out_of_range: a date or time is outside of the years 1 to 9999",
}
"""By the name of fastavro's or Python's error, the reason of a dead letter."""
