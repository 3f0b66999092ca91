"""Defines the Arrow columns of records, and converts them to and from the buffers of the kernels.

There are two schemas:

- TO_APPEND has the records of a producer: key, value, headers, timestamp (milliseconds since the epoch, never null).
  Keys and values may be binary or binary_view.
- RECORDS has the records that a reader gets: the columns of TO_APPEND, and also offset, timestamp type and leader
  epoch. Keys and values are binary_view columns: each row points into the bytes of the log, without a copy. with_binary
  converts them to binary columns, which most programs accept.

Key and value may be null. A null list of headers counts as an empty list. Header names are never null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.errors import InvalidRecordError
from storage_engine.record.kernels.columns import (
    ByteArray,
    ByteColumn,
    Int32Array,
    Int64Array,
    RecordBuffers,
    RowColumns,
)

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

TO_APPEND = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
)

RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("key", pa.binary_view()),
        pa.field("value", pa.binary_view()),
        pa.field("headers", HEADERS, nullable=False),
    ]
)

CREATE_TIME = 0
LOG_APPEND_TIME_TYPE = 1
NO_TIMESTAMP_TYPE = -1
TIMESTAMP_TYPE_NAMES = {
    NO_TIMESTAMP_TYPE: "NoTimestampType",
    CREATE_TIME: "CreateTime",
    LOG_APPEND_TIME_TYPE: "LogAppendTime",
}

Number = TypeVar("Number", bound=np.generic)
_SMALL = 64 * 1024  # bytes; for smaller arrays np.empty is faster, because the process keeps their memory
_ALIGNMENT = 64  # bytes; Arrow recommends that buffers begin at multiples of it
_ROW_TYPES = (
    np.int64, np.int64, np.int8, np.int32, np.int32, np.int64, np.int64, np.uint8, np.int64, np.uint8,
)  # fmt: skip
_ROW_BYTES = (8, 8, 1, 4, 4, 8, 16, 1, 16, 1)
_VIEW = pa.binary_view()
_NO_BYTES: ByteArray = np.empty(0, np.uint8)
_NO_OFFSETS: Int32Array = np.empty(0, np.int32)


def new_array(length: int, dtype: type[Number]) -> npt.NDArray[Number]:
    """Return an array whose contents are not initialised. A large array is allocated in Arrow's memory pool.

    The pool keeps freed memory for a while. The allocator of np.empty returns large blocks to the system immediately,
    and new pages from the system take several times as long as filling them.
    """
    size = length * np.dtype(dtype).itemsize
    return np.empty(length, dtype) if size < _SMALL else np.frombuffer(pa.allocate_buffer(size), dtype)


class RowMemory:
    """The arrays that decoding writes for a number of rows, in one block of memory.

    columns: the arrays. Their contents are not initialised.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._starts = []
        end = 0
        for size in _ROW_BYTES:
            self._starts.append(end)
            end += -(-rows * size // _ALIGNMENT) * _ALIGNMENT
        self._block = new_array(end, np.uint8)
        self.columns = RowColumns(
            *(
                self._block[start : start + rows * size].view(dtype)
                for start, size, dtype in zip(self._starts, _ROW_BYTES, _ROW_TYPES, strict=True)
            )
        )

    def with_room(self, used: int, more: int) -> RowMemory:
        """Return the used rows in memory that has space for `more` rows after them."""
        if used + more <= self.rows:
            return self
        larger = RowMemory(max(2 * self.rows, used + more))
        for column in range(len(larger.columns)):
            entries = used * len(self.columns[column]) // max(self.rows, 1)  # a row has one or two entries
            larger.columns[column][:entries] = self.columns[column][:entries]
        return larger

    def records(self, used: int, buffers: Sequence[ByteArray], headers: pa.Array) -> pa.RecordBatch:
        """Return the used rows as Arrow columns over the same memory.

        Args:
            buffers: the bytes to which the views of keys and values refer.
            headers: the headers of these rows.
        """
        block = pa.py_buffer(self._block)
        data = list(map(pa.py_buffer, buffers))
        columns = dict(
            zip(RowColumns._fields, map(block.slice, self._starts, (used * size for size in _ROW_BYTES)), strict=True)
        )
        numbers = [
            pa.Array.from_buffers(RECORDS.field(number).type, used, [None, columns[name]], 0)
            for number, name in enumerate(("offsets", "timestamps", "timestamp_types", "leader_epochs"))
        ]
        views = []
        for kind in ("key", "value"):
            validity, nulls = _validity(getattr(self.columns, f"{kind}_valid")[:used])
            views.append(pa.Array.from_buffers(_VIEW, used, [validity, columns[f"{kind}_views"], *data], nulls))
        return pa.RecordBatch.from_arrays([*numbers, *views, headers], schema=RECORDS)


_NO_COLUMN = ByteColumn(_NO_OFFSETS, _NO_BYTES, _NO_BYTES, 0)


def byte_column(column: pa.Array) -> ByteColumn:
    """Return the buffers of a binary or string array, or of a slice of an array, without a copy. A binary_view array is
    copied first.
    """
    if column.type == pa.binary_view():
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    return ByteColumn(
        np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
        if offsets is not None and offsets.size
        else np.zeros(1, np.int32),
        np.frombuffer(data, np.uint8) if data is not None else _NO_BYTES,
        np.frombuffer(validity, np.uint8) if validity is not None and column.null_count else _NO_BYTES,
        column.offset,
    )


def record_buffers(records: pa.RecordBatch) -> RecordBuffers:
    """Return the buffers of a TO_APPEND table.

    Raises:
        InvalidRecordError: a column is missing or has another type, a timestamp or a header's name is null, or a header's
            name is not UTF-8.
    """
    for field in TO_APPEND:
        found = records.schema.field(field.name).type if field.name in records.schema.names else None
        is_views = field.type == pa.binary() and found == pa.binary_view()
        if found is None or not (
            is_views or found.equals(field.type) or (field.name == "headers" and _is_headers(found))
        ):
            raise InvalidRecordError(
                f"column `{field.name}`",
                f"expected {field.type}, found {found or 'none'}",
                "Cast the column before the append.",
            )
    if records["timestamp"].null_count:
        raise InvalidRecordError("column `timestamp`", f"{records['timestamp'].null_count} values are null")
    headers = records["headers"]
    header_offsets, header_key, header_value = _NO_OFFSETS, _NO_COLUMN, _NO_COLUMN
    if len(headers.flatten()):
        header_offsets, header_key, header_value = _header_buffers(headers)
    return RecordBuffers(
        np.ascontiguousarray(records["timestamp"].to_numpy()),
        byte_column(records["key"]),
        byte_column(records["value"]),
        header_offsets,
        header_key,
        header_value,
    )


def _is_headers(found: pa.DataType) -> bool:
    if not pa.types.is_list(found) or not pa.types.is_struct(found.value_type):
        return False
    struct = found.value_type
    return [(struct.field(i).name, struct.field(i).type) for i in range(struct.num_fields)] == [
        ("key", pa.string()),
        ("value", pa.binary()),
    ]


def _header_buffers(headers: pa.ListArray) -> tuple[Int32Array, ByteColumn, ByteColumn]:
    flat = headers.flatten()  # without the contents of null lists, and only those of this slice
    lengths = headers.value_lengths().fill_null(0).to_numpy()
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    key, value = flat.flatten()
    if key.null_count:
        raise InvalidRecordError("column `headers`", f"{key.null_count} headers have no name")
    if not is_utf8(key):
        raise InvalidRecordError("column `headers`", "the name of a header is not UTF-8", "Correct the name.")
    return offsets, byte_column(key), byte_column(value)


def with_binary(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same columns, but copy each binary_view column to a binary column."""
    for number, field in enumerate(records.schema):
        if field.type == pa.binary_view():
            records = records.set_column(number, field.with_type(pa.binary()), records.column(number).cast(pa.binary()))
    return records


def view_lengths(array: pa.Array) -> Int64Array:
    """Return the length in bytes of each value of a binary_view array; 0 for null."""
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)  # a view has 16 bytes and begins with the length
    lengths = views[array.offset : array.offset + len(array), 0].astype(np.int64)
    if array.null_count:
        bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
        lengths[bits[array.offset : array.offset + len(array)] == 0] = 0
    return lengths


def _validity(valid: ByteArray) -> tuple[pa.Buffer | None, int]:
    """Return the validity bitmap (None without nulls) and the number of nulls."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def binary_array(
    offsets: Int32Array, data: ByteArray, valid: ByteArray | None, kind: pa.DataType | None = None
) -> pa.Array:
    """Return a binary (or string) array from kernel output. `valid` has one byte per row."""
    validity, nulls = (None, 0) if valid is None else _validity(valid)
    return pa.Array.from_buffers(
        kind or pa.binary(), len(offsets) - 1, [validity, pa.py_buffer(offsets), pa.py_buffer(data)], nulls
    )


def is_utf8(texts: pa.Array) -> bool:
    """Whether all texts of a string column are UTF-8. Arrow does not check this if it gets the buffers of a column."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def java_text(data: bytes) -> str:
    """Bytes as the text that new String(bytes, UTF_8) makes of them in Java, and so Kafka's consumer of a header's name.

    Bytes that are not UTF-8 become as many U+FFFD as in Python. The exception is half a surrogate pair: Java replaces
    it with a single U+FFFD.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _HALF_PAIR.sub(b"\xff", data).decode(errors="replace")


def header_names(found: pa.Array) -> pa.Array:
    """The names of headers as Kafka's consumer returns them.

    Args:
        found: a string column with the bytes of the names.
    """
    if is_utf8(found):
        return found
    return pa.array([java_text(name) for name in found.cast(pa.binary()).to_pylist()], pa.string())


def header_array(offsets: Int32Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return the headers column, made from the offsets of its lists and the flat names and values."""
    struct = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    return pa.Array.from_buffers(HEADERS, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[struct])


_NO_HEADERS = pa.StructArray.from_arrays(
    [pa.nulls(0, pa.string()), pa.nulls(0, pa.binary())],  # pa.array() would import pandas
    fields=list(HEADERS.value_type),
)
_HALF_PAIR = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a surrogate pair in three bytes, or in two if the third is missing."""
_ZEROS = pa.py_buffer(bytes(64 * 1024))


def no_headers(rows: int) -> pa.Array:
    """Return a headers column of empty lists."""
    size = (rows + 1) * np.dtype(np.int32).itemsize
    offsets = _ZEROS.slice(0, size) if size <= _ZEROS.size else pa.py_buffer(bytes(size))
    return pa.Array.from_buffers(HEADERS, rows, [None, offsets], 0, children=[_NO_HEADERS])
