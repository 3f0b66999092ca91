"""Tests that values become columns, and that a value that does not fit the model is reported without its data."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pydantic import Field

from schemas.decoder import DecodeError
from schemas.event_decoding import decode_values
from schemas.event_model import EventModel


class Stop(EventModel):
    airport: str


class Trip(EventModel):
    number: int
    left: datetime | None = None
    day: date | None = None
    cargo: bytes | None = None
    fare: Decimal | None = Field(default=None, max_digits=6, decimal_places=2)
    stops: list[Stop] | None = None


def decoded(*values: bytes | None) -> tuple[list[dict[str, object]], list[DecodeError]]:
    result = decode_values(Trip, pa.array(values, pa.binary()))
    return result.columns.to_pylist(), result.errors


def test_json_becomes_typed_columns() -> None:
    rows, errors = decoded(
        b'{"number": 1, "left": "2013-01-01T12:00:00+02:00", "day": "2013-01-01", "cargo": "AAE=", "fare": 12.50,'
        b' "stops": [{"airport": "JFK"}]}',
        b'{"number": 2, "left": "2013-01-01T10:00:00", "fare": "0.5"}',
    )
    assert errors == []
    assert rows == [
        {
            "number": 1,
            "left": datetime(2013, 1, 1, 10, tzinfo=UTC),
            "day": date(2013, 1, 1),
            "cargo": b"\x00\x01",
            "fare": Decimal("12.50"),
            "stops": [{"airport": "JFK"}],
        },
        {
            "number": 2,
            "left": datetime(2013, 1, 1, 10, tzinfo=UTC),
            "day": None,
            "cargo": None,
            "fare": Decimal("0.50"),
            "stops": None,
        },
    ]


def test_unknown_fields_are_ignored_and_null_values_are_no_events() -> None:
    rows, errors = decoded(b'{"number": 1, "colour": "red"}', None)
    assert [row["number"] for row in rows] == [1, None]
    assert errors == []


def test_the_name_of_a_forbidden_field_is_not_shown() -> None:
    class Strict(Trip, extra="forbid"):
        pass

    values = pa.array([b'{"number": 1, "secret": 2}', b'{"number": 1, "stops": [{"airport": "JFK"}]}'], pa.binary())
    result = decode_values(Strict, values)
    assert result.errors == [DecodeError(0, "extra_forbidden")]
    assert result.columns["number"].to_pylist() == [None, 1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"number": "secret"}', "int_type at number"),
        (b'{"number": 1.0}', "int_type at number"),
        (b'{"left": null}', "missing at number"),
        (b'{"number": 1, "left": true}', "datetime_type at left"),
        (b'{"number": 1, "left": 5}', "datetime_type at left"),
        (b'{"number": 1, "stops": [{"airport": "JFK"}, {"airport": 5}]}', "string_type at stops.1.airport"),
        (b'{"number": "secret", "day": "secret"}', "int_type at number and 1 more"),
        (b"secret", "json_invalid"),
        (b"", "json_invalid"),
        (b"\xff\xfe", "json_invalid"),
        (b"[1]", "model_type"),
        (b"null", "model_type"),
        (b'{"number": 99999999999999999999}', "out_of_range at number"),
        (b'{"number": 1, "left": "9999-12-31T23:59:59-05:00"}', "out_of_range at left"),
        (b'{"number": 1, "left": "0001-01-01T00:00:00+05:00"}', "out_of_range at left"),
        (b'{"number": 1, "fare": 12345.67}', "decimal_max_digits at fare"),
    ],
)
def test_bad_value_is_named_by_row_kind_and_field_and_never_shown(value: bytes, reason: str) -> None:
    rows, errors = decoded(b'{"number": 7}', value, b'{"number": 9}')
    assert [row["number"] for row in rows] == [7, None, 9]
    [error] = errors
    assert error.row == 1
    assert error.reason == reason
    assert "secret" not in error.reason
