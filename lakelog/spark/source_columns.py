"""The columns that Spark gets: the columns of Spark's Kafka source. The last column, headers, exists only if
includeHeaders is true.

A record without headers has NULL in that column. In the rows of the Python API (lakelog.rows), such a record has an
empty list.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.rows import ROWS

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_WITHOUT_HEADERS = pa.schema([field for field in ROWS if field.name != "headers"])
_WITH_HEADERS = _WITHOUT_HEADERS.append(pa.field("headers", _HEADERS))


def source_schema(*, include_headers: bool) -> pa.Schema:
    """The columns of the source."""
    return _WITH_HEADERS if include_headers else _WITHOUT_HEADERS


def as_source_rows(rows: pa.RecordBatch, *, include_headers: bool) -> pa.RecordBatch:
    """Rows with the columns of lakelog.rows.ROWS, as the source returns them."""
    columns = [rows[name] for name in _WITHOUT_HEADERS.names]
    if include_headers:
        columns.append(_headers(rows["headers"]))
    return pa.RecordBatch.from_arrays(columns, schema=source_schema(include_headers=include_headers))


def _headers(headers: pa.Array) -> pa.Array:
    if not len(headers.flatten()):
        return pa.nulls(len(headers), _HEADERS)
    given = pc.greater(pc.list_value_length(headers), 0)
    return pc.if_else(given, headers, pa.scalar(None, headers.type)).cast(_HEADERS)
