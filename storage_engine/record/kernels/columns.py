"""Defines the columns that kernels of several modules take as arguments. The columns are named tuples of arrays, and
have numba types.

A caller may pass a plain tuple with the same fields instead of a named tuple. Numba checks the type of a plain tuple
six times as fast as the type of a named tuple. The faster check matters if a call encodes or decodes only a few
records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage_engine.record.kernels.compiled import (
    BYTES_IN,
    BYTES_OUT,
    INT8_OUT,
    INT32_IN,
    INT32_OUT,
    INT64,
    INT64_IN,
    INT64_OUT,
    columns,
)

ByteArray = npt.NDArray[np.uint8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class ByteColumn(NamedTuple):
    """The buffers of an Arrow binary column.

    offsets: int32, shape (rows + 1,).
    data: uint8.
    validity: a bitmap, least significant bit first; empty if no row is null.
    shift: the bit of row 0 in the bitmap.
    """

    offsets: Int32Array
    data: ByteArray
    validity: ByteArray
    shift: int


class RecordBuffers(NamedTuple):
    """The buffers of a columns.TO_APPEND table. header_offsets is empty if no record has headers."""

    timestamps: Int64Array
    key: ByteColumn
    value: ByteColumn
    header_offsets: Int32Array
    header_key: ByteColumn
    header_value: ByteColumn

    def plain(self) -> tuple[object, ...]:
        """The same buffers as plain tuples."""
        key, value, header_key, header_value = map(tuple, (self.key, self.value, self.header_key, self.header_value))
        return self.timestamps, key, value, self.header_offsets, header_key, header_value


class Sections(NamedTuple):
    """The records of some batches: the bytes, and where each batch's records start and end in these bytes."""

    data: ByteArray
    starts: Int64Array
    ends: Int64Array

    @property
    def size(self) -> int:
        return int((self.ends - self.starts).sum())


class RowColumns(NamedTuple):
    """The arrays that decoding writes: for each row one entry, or two in the arrays of views.

    header_positions: where the row's headers begin in its section.
    key_valid, value_valid: 1 if the row has a key or value, 0 if it is null.
    """

    offsets: Int64Array
    timestamps: Int64Array
    timestamp_types: npt.NDArray[np.int8]
    leader_epochs: Int32Array
    header_counts: Int32Array
    header_positions: Int64Array
    key_views: Int64Array
    key_valid: ByteArray
    value_views: Int64Array
    value_valid: ByteArray


BYTE_COLUMN = columns(ByteColumn, INT32_IN, BYTES_IN, BYTES_IN, INT64)
RECORDS_IN = columns(RecordBuffers, INT64_IN, BYTE_COLUMN, BYTE_COLUMN, INT32_IN, BYTE_COLUMN, BYTE_COLUMN)
SECTIONS_IN = columns(Sections, BYTES_IN, INT64_IN, INT64_IN)
ROWS_OUT = columns(
    RowColumns,
    INT64_OUT,
    INT64_OUT,
    INT8_OUT,
    INT32_OUT,
    INT32_OUT,
    INT64_OUT,
    INT64_OUT,
    BYTES_OUT,
    INT64_OUT,
    BYTES_OUT,
)
