"""Tests that columns in Spark's DDL give the same event model as a class with these fields."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated

import pyarrow as pa
import pytest
from pydantic import Field

from schemas.comparing import model_fields
from schemas.ddl import DdlError, event_model
from schemas.event_decoding import decode_values
from schemas.event_model import EventModel

COLUMNS = """
    id string NOT NULL COMMENT 'the key, it\\'s unique', `odd name` BIGINT, n: long, price DECIMAL(8, 2), whole decimal,
    rate Double, paid BOOLEAN not null, raw BINARY, at TIMESTAMP, day DATE, copy STRING,
    legs ARRAY<STRUCT<distance: BIGINT NOT NULL, stops: ARRAY<STRING>>>, home STRUCT<lat DOUBLE, lon DOUBLE> NOT NULL
"""


class Leg(EventModel):
    distance: int
    stops: list[str | None] | None = None


class Home(EventModel):
    lat: float | None = None
    lon: float | None = None


class Written(EventModel):
    """What COLUMNS says, but for the columns whose names a class cannot have."""

    id: str
    n: int | None = None
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)] | None = None
    whole: Annotated[Decimal, Field(max_digits=10, decimal_places=0)] | None = None
    rate: float | None = None
    paid: bool
    raw: bytes | None = None
    at: datetime | None = None
    day: date | None = None
    legs: list[Leg | None] | None = None
    home: Home


def test_columns_make_the_model_that_one_would_write() -> None:
    fields = model_fields(event_model(COLUMNS))
    for name in ("odd name", "copy"):
        assert fields.pop(name).required is False
    assert fields == model_fields(Written)


def test_values_are_decoded_by_columns_as_by_a_model() -> None:
    everything = (
        b'{"id": "a", "odd name": 9007199254740993, "n": 1, "price": "12.50", "whole": 7, "rate": 0.5, "paid": true,'
        b' "raw": "AAE=", "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "copy": "c",'
        b' "legs": [{"distance": 3, "stops": ["x", null]}, null], "home": {"lat": 1.5}, "more": 1}'
    )
    values = [
        everything,
        b'{"id": "b", "paid": false, "home": {}}',
        b'{"id": 5, "paid": false, "home": {}}',
        b'{"paid": false, "home": {}}',
    ]
    decoded = decode_values(event_model(COLUMNS), pa.array(values))
    nothing = dict.fromkeys(decoded.columns.schema.names)
    assert decoded.columns.to_pylist() == [
        {
            "id": "a",
            "odd name": 9007199254740993,
            "n": 1,
            "price": Decimal("12.50"),
            "whole": Decimal(7),
            "rate": 0.5,
            "paid": True,
            "raw": b"\x00\x01",
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": date(2026, 1, 2),
            "copy": "c",
            "legs": [{"distance": 3, "stops": ["x", None]}, None],
            "home": {"lat": 1.5, "lon": None},
        },
        nothing | {"id": "b", "paid": False, "home": {"lat": None, "lon": None}},
        nothing,
        nothing,
    ]
    assert [(error.row, error.reason) for error in decoded.errors] == [(2, "string_type at id"), (3, "missing at id")]


def test_a_column_can_have_the_name_of_a_method() -> None:
    decoded = decode_values(
        event_model("model_dump STRING, json BIGINT"), pa.array([b'{"model_dump": "a", "json": 1}'])
    )
    assert decoded.columns.to_pylist() == [{"model_dump": "a", "json": 1}]


@pytest.mark.parametrize("text", ["0", "0.0", '"0"', "-0.0", '"0.00000"', "0.99999", "-0.5", "1", "-1.5", "0.999999"])
def test_a_decimal_without_whole_digits_can_be_zero(text: str) -> None:
    decoded = decode_values(event_model("x DECIMAL(5, 5)"), pa.array([b'{"x": %s}' % text.encode()]))
    (row,) = decoded.columns.to_pylist()
    number = Decimal(text.strip('"'))
    fits = abs(number) < 1 and number == number.quantize(Decimal("0.00001"))
    assert (row["x"], len(decoded.errors)) == ((number, 0) if fits else (None, 1))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id STRIN", "after 'id': found 'STRIN', expected the type of column id: STRING, BIGINT, LONG, DOUBLE"),
        ("id INT", "after 'id': found 'INT', expected the type of column id: BIGINT"),
        ("id FLOAT", "after 'id': found 'FLOAT', expected the type of column id: DOUBLE"),
        ("id MAP<STRING, STRING>", "after 'id': found 'MAP', expected the type of column id"),
        ("id", "after 'id': found the end, expected the type of column id"),
        ("id STRING,", "after 'id STRING,': found the end, expected the name of a column"),
        ("id STRING, id BIGINT", "two columns are called id"),
        ("id STRING> x", "after 'id STRING': found '>', expected a comma, or the end"),
        ("id STRING DEFAULT 'a'", "after 'id STRING': found 'DEFAULT', expected a comma, or the end"),
        ("id STRING NOT", "after 'id STRING NOT': found the end, expected NULL"),
        ("id STRING COMMENT x", "after 'id STRING COMMENT': found 'x', expected a text in single quotation marks"),
        ("id ARRAY", "after 'id ARRAY': found the end, expected <"),
        ("id ARRAY<STRING", "after 'id ARRAY<STRING': found the end, expected >"),
        ("id STRUCT<>", "after 'id STRUCT<': found '>', expected the name of a column"),
        ("id DECIMAL(x)", "after 'id DECIMAL(': found 'x', expected a number"),
        ("__base__ STRING", "the column __base__ begins with an underscore, which is not allowed"),
        ("model_config STRING", "`model_config` cannot be used as a model field name"),
        ("_id STRING", "the column _id begins with an underscore, which is not allowed"),
        ("id STRING; x", "found '; x', which is not part of DDL"),
        ("", "at the start: found the end, expected the name of a column"),
    ],
)
def test_what_is_no_list_of_columns_is_an_error_with_its_place(columns: str, problem: str) -> None:
    with pytest.raises(DdlError) as caught:
        event_model(columns)
    assert str(caught.value).startswith(problem)
