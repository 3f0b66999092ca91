"""Defines what each kind of schema does: it names the columns of a table, and turns the values of records into these
columns.

A pydantic model and Spark's DDL decode JSON (`schemas.event_decoding`). The packages `schemas.avro` and
`schemas.protobuf` decode the binary formats of the same names. All exports, the proof of a table, fresh views and the
check of an ingest use a `Decoder`, and do not know which kind it is.

The reason of an error never contains a part of the value, because some people are allowed to read logs and dead-letter
tables, but not the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.comparing import ModelField
from schemas.model_columns import MAX_DECIMAL_DIGITS


@dataclass(frozen=True)
class DecodeError:
    """The error of a value that does not fit the schema."""

    row: int
    """Index into the values."""
    reason: str


@dataclass(frozen=True)
class DecodedValues:
    """The columns of the schema, with one row for each value, in the order of the values."""

    columns: pa.RecordBatch
    """If a value is null or cannot be decoded, its row is null in every column. So every column is nullable."""
    errors: list[DecodeError]
    """In ascending order of row."""


class Decoder(Protocol):
    """A schema that was found and checked.

    A decoder may be used by several threads at the same time, and stays valid for the life of the process.
    """

    @property
    def name(self) -> str:
        """The name of the model, record or message, for messages and for the topic's state."""

    @property
    def columns(self) -> pa.Schema:
        """The columns; a column is nullable if a value may lack it."""

    @property
    def fields(self) -> Mapping[str, ModelField]:
        """The fields by path, to compare two versions of the schema. A path in round brackets describes how the values
        are written."""

    def decode(self, values: pa.BinaryArray) -> DecodedValues:
        """Decode each value. A null value gives neither a row nor an error.

        Raises:
            RegistryError: the schemas with which the values were written cannot be read.
        """


Row = Mapping[str, Any]
"""A decoded value: for each column a Python object from which Arrow can make a value of the column's type."""

CONVERSION_ERRORS = (ArithmeticError, ValueError, TypeError)
"""Arrow's errors for a value that does not fit the type of its column. They include pa.ArrowInvalid and
pa.ArrowTypeError.
"""
FIRST_MICROSECOND, LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970: the times that Python, Spark and databases can store."""
_NOT_UTF8 = "was not a utf8 string"
"""The end of Arrow's error for bytes in a column of strings."""
_EXACT = Context(prec=MAX_DECIMAL_DIGITS, traps=[Inexact, InvalidOperation])


class UndecodableError(Exception):
    """A value cannot be decoded. Decoders raise and catch this error.

    Args:
        reason: the reason, without any part of the value.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def decode_each(
    columns: pa.Schema,
    values: pa.BinaryArray,
    decode: Callable[[bytes], Row],
    reasons: MutableMapping[int, str] | None = None,
) -> DecodedValues:
    """Decode values one by one. A null value gives neither a row nor an error.

    Args:
        decode: decodes one value, or raises an UndecodableError.
        reasons: by row, why a value cannot be decoded, if this is known already. These values are not decoded.
    """
    rows: list[Row | None] = []
    reasons = {} if reasons is None else reasons
    for number, value in enumerate(values.to_pylist()):
        row = None
        if value is not None and number not in reasons:
            try:
                row = decode(value)
            except UndecodableError as error:
                reasons[number] = error.reason
        rows.append(row)
    return _decoded_values(columns, rows, reasons)


def value_bytes(
    values: pa.BinaryArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of all values, and the start and the end of each value in these bytes."""
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets or b"", np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    return np.frombuffer(data or b"", np.uint8), places[:-1], places[1:]


def _decoded_values(
    columns: pa.Schema, rows: MutableSequence[Row | None], reasons: MutableMapping[int, str]
) -> DecodedValues:
    """The columns of decoded values. A row that fits the schema but not the columns becomes an error.

    Args:
        rows: the decoded values; None for a value that is null or cannot be decoded.
        reasons: by row, why a value cannot be decoded.
    """
    schema = pa.schema([field.with_nullable(True) for field in columns])
    try:
        arrays = [_column(field, rows) for field in schema]
    except CONVERSION_ERRORS:
        _drop_rows_that_no_column_holds(schema, rows, reasons)
        arrays = [_column(field, rows) for field in schema]
    errors = [DecodeError(row, reasons[row]) for row in sorted(reasons)]
    return DecodedValues(pa.record_batch(arrays, schema=schema), errors)


def _column(field: pa.Field, rows: Sequence[Row | None]) -> pa.Array:
    name = field.name
    values = [None if row is None else row[name] for row in rows]
    if (scale := _scaling(field.type)) is not None:
        values = [_scaled(value, scale) for value in values]
    array = pa.array(values, type=field.type)
    if _has_time_outside_years(array):
        raise OverflowError
    return array


def _scaling(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Gives each decimal in a value of this type, which is not null, the decimal places of its column; None if the type
    contains no decimals. Otherwise Arrow adds and removes zeros, and if a decimal has many zeros, Arrow's 128 bits overflow:
    some numbers become 0 without an error.

    The function raises an ArithmeticError if a decimal has other digits than zeros after these places, or too many digits
    before them.
    """
    if pa.types.is_decimal(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        return lambda value: value.quantize(unit, context=_EXACT) if isinstance(value, Decimal) else value
    inner = [_scaling(kind.field(number).type) for number in range(kind.num_fields)]
    if not any(inner):
        return None
    if pa.types.is_struct(kind):
        fields = [(kind.field(number).name, scale) for number, scale in enumerate(inner)]
        return lambda value: {name: _scaled(value.get(name), scale) for name, scale in fields}
    if pa.types.is_map(kind):
        key_scale, item_scale = _scaling(kind.key_type), _scaling(kind.item_type)
        return lambda value: [
            (_scaled(key, key_scale), _scaled(item, item_scale))
            for key, item in (value.items() if isinstance(value, Mapping) else value)
        ]
    return lambda value: [_scaled(item, inner[0]) for item in value]


def _scaled(value: Any, scale: Callable[[Any], Any] | None) -> Any:
    return value if value is None or scale is None else scale(value)


def _has_time_outside_years(array: pa.Array) -> bool:
    """Whether a time, perhaps inside another value, is outside of the years 1 to 9999 in UTC. In its own time zone, the
    time can be inside of these years."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        bounds = pc.min_max(array.cast(pa.int64())).as_py()
        low, high = bounds["min"], bounds["max"]
        return low is not None and not (low >= FIRST_MICROSECOND and high <= LAST_MICROSECOND)
    if pa.types.is_struct(kind):
        return any(map(_has_time_outside_years, array.flatten()))
    if pa.types.is_map(kind):
        return _has_time_outside_years(array.keys) or _has_time_outside_years(array.items)
    return bool(pa.types.is_list(kind)) and _has_time_outside_years(array.flatten())


def _drop_rows_that_no_column_holds(
    schema: pa.Schema, rows: MutableSequence[Row | None], reasons: MutableMapping[int, str]
) -> None:
    """Drop rows that fit the schema but not the columns, for example an int of more than 64 bits. A string of proto2 may
    have bytes that are not UTF-8."""
    for number, row in enumerate(rows):
        if row is None:
            continue
        for field in schema:
            try:
                _column(field, [row])
            except CONVERSION_ERRORS as error:
                rows[number] = None
                kind = "not_utf8" if str(error).endswith(_NOT_UTF8) else "out_of_range"
                reasons[number] = f"{kind} at {field.name}"
                break
