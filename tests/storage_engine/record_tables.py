"""Generates records as rows of Python values, and converts them, for tests that compare records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from storage_engine.record.compression import MOST_BYTES, Codec, decompress_into
from storage_engine.record.record_columns import TO_APPEND


class Row(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000


def to_table(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as columns.TO_APPEND."""
    columns = [
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array(
            [[{"key": name, "value": value} for name, value in row.headers] for row in rows],
            TO_APPEND.field("headers").type,
        ),
        pa.array([row.timestamp for row in rows], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TO_APPEND)


def to_rows(records: pa.RecordBatch) -> list[Row]:
    """columns.RECORDS as rows."""
    return [
        Row(
            record["key"],
            record["value"],
            tuple((header["key"], header["value"]) for header in record["headers"]),
            record["timestamp"],
        )
        for record in records.to_pylist()
    ]


_payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=140)
_headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
_timestamps = st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(1, 2**62)

row_lists = st.lists(st.builds(Row, _payloads, _payloads, _headers, _timestamps), min_size=1, max_size=25)
"""Lists of records with everything that Kafka allows: nulls, empty values, headers, timestamps that go back."""


def decompress(codec: Codec, data: bytes | memoryview) -> bytes:
    """What was compressed, in memory of its own."""
    out = memoryview(bytearray(4 * len(data) + 64 * 1024))
    while (size := decompress_into(codec, memoryview(data), out)) is None:
        out = memoryview(bytearray(min(8 * len(out), MOST_BYTES)))
    return bytes(out[:size])
