"""Statistics of files in Delta's log: a reader that skips files by them finds every row."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.delta.files.file_statistics import delta_statistics

LARGEST = "\U0010ffff"


def statistics(columns: dict[str, pa.Array], row_group: int = 2) -> dict[str, Any]:
    """The statistics of a file with several row groups."""
    rows, file = pa.table(columns), io.BytesIO()
    pq.write_table(rows, file, row_group_size=row_group)
    found: dict[str, Any] = json.loads(delta_statistics(rows.schema, pq.read_metadata(file)))
    return found


def test_each_type() -> None:
    moment = pa.timestamp("us", tz="UTC")
    columns = {
        "number": pa.array([3, None, -2]),
        "double": pa.array([1.5, 0.0, -0.0]),
        "text": pa.array(["b", "ä", None]),
        "day": pa.array([date(2026, 1, 2), date(1, 1, 1), date(9999, 12, 31)]),
        "time": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), datetime(1, 1, 1, tzinfo=UTC), None], moment),
        "nothing": pa.nulls(3, pa.int64()),
        "_key": pa.array([b"a", None, b"c"]),
        "flag": pa.array([True, False, None]),
        "price": pa.array([Decimal("1.10"), Decimal("2.20"), None], pa.decimal128(10, 2)),
        "inside": pa.array([{"number": 1}, None, {"number": 2}]),
        "list": pa.array([[1], [], None]),
    }
    assert statistics(columns) == {
        "numRecords": 3,
        "minValues": {
            "number": -2, "text": "b", "day": "0001-01-01", "time": "0001-01-01T00:00:00.000000Z",
        },
        "maxValues": {
            "number": 3, "text": "ä", "day": "9999-12-31", "time": "2026-01-02T03:04:05.678901Z",
        },
        "nullCount": {
            "number": 1, "double": 0, "text": 1, "day": 0, "time": 1, "nothing": 3, "_key": 1, "flag": 1, "price": 1,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("x" * 32, "x" * 32, "x" * 32),
        ("x" * 33, "x" * 32, "x" * 32 + LARGEST),
        ("x" * 32 + LARGEST, "x" * 32, "x" * 32 + LARGEST),
        ("x" * 32 + LARGEST * 2 + "xy", "x" * 32, "x" * 32 + LARGEST * 3),
        ("é" * 40, "é" * 32, "é" * 32 + LARGEST),
    ],
)
def test_long_texts(text: str, low: str, high: str) -> None:
    found = statistics({"text": pa.array([text])})
    assert (found["minValues"]["text"], found["maxValues"]["text"]) == (low, high)
    assert low.encode() <= text.encode()
    assert text.encode() <= high.encode()


def test_doubles_have_no_bounds() -> None:
    found = statistics({"double": pa.array([1.0, float("nan"), float("inf"), None])})
    assert found == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {"double": 1}}


def test_a_file_with_a_time_that_no_calendar_has_has_no_statistics_of_any_column() -> None:
    """With the bounds of `number` alone, deltalake's datasets would skip the file for each filter on `time`."""
    times = pa.array([-(2**62), 2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    assert statistics({"number": pa.array([1, 2]), "time": times}) == {"numRecords": 2}
