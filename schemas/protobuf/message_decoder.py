"""Decodes Protobuf messages into columns: plain messages, and messages in Confluent's wire format.

A message is always decoded with the descriptors of the settings, because the numbers of the fields say which fields it
has. Fields that the descriptors do not have are ignored, or kept as JSON (`unknown_numbers`). In the wire format, the
writer's schema only says which message the value is. A value of another message has no row.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from schemas.comparing import ModelField
from schemas.decoder import DecodedValues, Row, UndecodableError, decode_each
from schemas.protobuf.message_columns import columns_of, fields_of
from schemas.protobuf.message_types import ProtobufSchemaError, message_class
from schemas.protobuf.proto_names import ProtoFile
from schemas.protobuf.unknown_numbers import unknown_in_message
from schemas.unknown_fields.extra_column import EXTRA, extra_text, with_extra
from schemas.writers.wire_format import id_length, message_indexes, schema_id
from schemas.writers.writer_schemas import SchemaId, UnusableSchemaError, WriterSchemas

_FORMAT = "(format)"
"""The path of the field that describes how values are written."""


class MessageDecoder:
    """Decodes Protobuf messages of one kind. `schemas.decoder.Decoder` describes the methods."""

    def __init__(self, content: bytes, name: str, writers: WriterSchemas | None, *, has_extra: bool = False) -> None:
        """Find the message.

        Args:
            content: a FileDescriptorSet.
            name: the full name of the message.
            writers: the writers' schemas; None if values are plain.
            has_extra: whether the columns include that of unknown fields.

        Raises:
            ProtobufSchemaError: the content is no such set, or has no such message.
            UnsupportedFieldError: the message has no fields, or a field has no column type.
            MissingFormatError: protobuf is not installed.
        """
        self._message = message_class(content, name)
        self._columns, self._readers = columns_of(self._message.DESCRIPTOR)
        self._has_extra = has_extra
        self._writers = writers
        self._known: dict[SchemaId, ProtoFile | str] = {}

    @property
    def name(self) -> str:
        return str(self._message.DESCRIPTOR.full_name)

    @property
    def columns(self) -> pa.Schema:
        return with_extra(self._columns, has_extra=self._has_extra)

    @property
    def fields(self) -> Mapping[str, ModelField]:
        form = "Protobuf" if self._writers is None else "Protobuf with schema ids"
        fields = fields_of(self._message.DESCRIPTOR, self._columns)
        return {**fields, _FORMAT: ModelField(form, required=True, nullable=False)}

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        missing: dict[SchemaId, str] = {}  # an id that is missing now may be there for the next batch
        return decode_each(self.columns, values, lambda value: self._row(value, missing))

    def _row(self, value: bytes, missing: dict[SchemaId, str]) -> Row:
        if self._writers is not None:
            value = self._unframed(self._writers, value, missing)
        message = self._message()
        try:
            # A field of the message can have the name of a method.
            self._message.ParseFromString(message, value)
            if not self._message.IsInitialized(message):
                raise UndecodableError("missing_field: a required field is not there")
            row = {name: read(message) for name, read in self._readers.items()}
            if self._has_extra:
                row[EXTRA.name] = extra_text(unknown_in_message(message))
            return row
        except UndecodableError:
            raise
        except OverflowError:
            raise UndecodableError("out_of_range: a time is outside of the years 1 to 9999") from None
        except Exception:  # noqa: BLE001 - the texts of protobuf's errors may contain the value
            raise UndecodableError("malformed") from None

    def _unframed(self, writers: WriterSchemas, value: bytes, missing: dict[SchemaId, str]) -> bytes:
        """The message inside a value in the wire format."""
        number = schema_id(value)
        place, message = message_indexes(value[id_length(value) :])
        written = self._known.get(number) or missing.get(number) or self._writer(writers, number, missing)
        if isinstance(written, str):
            raise UndecodableError(written)
        try:
            name = written.name_at(place)
        except ProtobufSchemaError as error:
            raise UndecodableError(f"no_message_indexes: in the schema with the id {number}, {error}") from None
        if name is None:
            raise UndecodableError(
                f"no_message_indexes: the schema with the id {number} has no message at the place in the value"
            )
        if name != self.name:
            raise UndecodableError(f"other_message: the value is the message {name}, not {self.name}")
        return message

    def _writer(self, writers: WriterSchemas, number: SchemaId, missing: dict[SchemaId, str]) -> ProtoFile | str:
        """The writer's schema with an id, from the folder or the registry; or why it cannot be used."""
        try:
            found = writers.find(number)
        except UnusableSchemaError as error:
            missing[number] = f"unusable_schema: the schema with the id {number} cannot be used: {error}"
            return missing[number]
        if found is None:
            missing[number] = f"unknown_schema: {writers.shown} has no schema with the id {number}"
            return missing[number]
        known: ProtoFile | str
        schema = f"the schema with the id {number}"
        if found.kind != "PROTOBUF":
            known = f"other_format: {schema} is {found.kind}, not PROTOBUF"
        else:
            try:
                known = ProtoFile.parse(found.text)
            except ProtobufSchemaError as error:
                known = f"unusable_schema: {schema} cannot be used: {error}"
        self._known[number] = known
        return known
