"""Tests that values become columns, and that a value that does not fit the model is reported without its data."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Literal

import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.ddl import event_model
from schemas.decoder import DecodeError, decode_each
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
        (b'{"number": 1, "left": "2013-13-01T00:00:00"}', "datetime_parsing at left"),
        (b'{"number": "secret", "left": "secret", "day": "secret"}', "int_type at number and 2 more"),
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


def test_a_time_inside_a_map_that_is_outside_of_the_years_is_found() -> None:
    good = datetime(2013, 1, 1, tzinfo=UTC)
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-5)))
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    maps = [[("a", good)], None, [("b", None), ("c", late)], [], [("x", good), ("y", early)]]
    columns = pa.schema([("at", pa.map_(pa.string(), pa.timestamp("us", tz="UTC")))])
    values = pa.array([b"%d" % number for number in range(len(maps))], pa.binary())
    for some, rows in ((values, [2, 4]), (values.slice(1, 3), [1])):
        found = decode_each(columns, some, lambda value: {"at": maps[int(value)]})
        assert [(each.row, each.reason) for each in found.errors] == [(row, "out_of_range at at") for row in rows]


@pytest.mark.parametrize(
    "text",
    ["20130101", "2013", "20130101120000", "1356998400.5", "-1.5", "+5", ".5", "5.", "1.5e3", "-1.E+3", "86400e0"],
)
def test_a_number_in_quotes_is_no_time(text: str) -> None:
    model = event_model("at TIMESTAMP, day DATE, legs ARRAY<STRUCT<at: TIMESTAMP>>, days ARRAY<DATE>")
    quoted = "".join(f"\\u{ord(each):04x}" for each in text)
    values = [
        f'{{"at": "{text}"}}', f'{{"at": "{quoted}"}}', f'{{"day": "{text}"}}', f'{{"legs": [{{}}, {{"at": "{text}"}}]}}',
        f'{{"days": ["2013-01-01", "{text}"]}}',
    ]  # fmt: skip
    result = decode_values(model, pa.array([each.encode() for each in values], pa.binary()))
    assert [each.reason for each in result.errors] == [
        "datetime_type at at", "datetime_type at at", "date_type at day", "datetime_type at legs.1.at", "date_type at days.1",
    ]  # fmt: skip


def test_times_are_texts_and_objects_of_python() -> None:
    left, day = datetime(2013, 1, 1, 10, tzinfo=UTC), date(2013, 1, 1)
    trip = Trip(number=1, left=left, day=day)
    assert (trip.left, trip.day) == (left, day)
    assert Trip.model_validate_json(trip.model_dump_json()) == trip


class Fare(BaseModel):
    """A model with its own configuration and with validators."""

    model_config = ConfigDict(populate_by_name=True)
    price: Decimal = Field(alias="Price", max_digits=20, decimal_places=2)
    rounded: Decimal | None = Field(default=None, max_digits=20, decimal_places=2)

    @field_validator("rounded", mode="before")
    @classmethod
    def round_it(cls, value: float) -> float:
        return round(value, 2)


class Bill(EventModel):
    total: Decimal | None = Field(default=None, max_digits=38, decimal_places=18)
    cents: Decimal | None = Field(default=None, max_digits=20, decimal_places=2)
    weight: float | None = None
    text: str | None = None
    fare: Fare | None = None
    fares: list[Fare] | None = None
    parts: list[Annotated[Decimal, Field(max_digits=20, decimal_places=2)]] | None = None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"cents": 123456789012345678.12', {"cents": Decimal("123456789012345678.12")}),
        ('"cents": 999999999999999.99', {"cents": Decimal("999999999999999.99")}),
        ('"cents":-9007199254740993.5', {"cents": Decimal("-9007199254740993.50")}),
        ('"cents": 99999999999999999e-2', {"cents": Decimal("999999999999999.99")}),
        ('"cents": 1e3', {"cents": Decimal("1000.00")}),
        (
            '"cents": 12.25, "total": 12.500000000000000001',
            {"cents": Decimal("12.25"), "total": Decimal("12.500000000000000001")},
        ),
        ('"total": 12.500000000000000000, "weight": 12.5', {"total": Decimal("12.500000000000000000"), "weight": 12.5}),
        ('"weight": 0.12345678901234568, "cents": 0.1', {"weight": 0.12345678901234568, "cents": Decimal("0.10")}),
        (
            '"text": "\\" , 9999999999999999.98", "cents": 9999999999999999.99',
            {"text": '" , 9999999999999999.98', "cents": Decimal("9999999999999999.99")},
        ),
        (
            '"parts": [1.5, 123456789012345678.12, "0.25"]',
            {"parts": [Decimal("1.50"), Decimal("123456789012345678.12"), Decimal("0.25")]},
        ),
        (
            '"fare": {"Price": 123456789012345678.12}, "fares": [{"price": 123456789012345678.12, "rounded": 1.2345}]',
            {
                "fare": {"price": Decimal("123456789012345678.12"), "rounded": None},
                "fares": [{"price": Decimal("123456789012345678.12"), "rounded": Decimal("1.23")}],
            },
        ),
    ],
)  # fmt: skip
def test_a_decimal_keeps_the_digits_of_a_number(text: str, found: dict[str, object]) -> None:
    values = pa.array([None, b'{"cents": 1.5}', f"{{{text}}}".encode(), f"\0\0\0\0\7{{{text}}}".encode()], pa.binary())
    result = decode_values(Bill, values)
    assert result.errors == []
    none = dict.fromkeys(Bill.model_fields)
    assert result.columns.to_pylist() == [none, {**none, "cents": Decimal("1.50")}, *[{**none, **found}] * 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"cents": 1234567890.1200000000000001', "decimal_max_digits at cents"),
        ('"cents": 123.4500000000000001', "decimal_max_places at cents"),
        ('"cents": 1e-400', "decimal_max_digits at cents"),
        ('"cents": 1e400', "decimal_max_digits at cents"),
        ('"cents": 1e-99999999999999999999', "decimal_not_exact at cents"),
        ('"cents": true, "weight": 0.12345678901234568', "decimal_type at cents"),
        ('"cents": "secret", "weight": 0.12345678901234568', "decimal_parsing at cents"),
        ('"text": 123456789012345678.12', "string_type at text"),
        ('"weight": 12.5, "total": 12.500000000000000001', "decimal_not_exact at total"),
        (
            '"fares": [{"Price": 9999999999999999.98}, {"Price": 9999999999999999.99}]',
            "decimal_not_exact at fares.0.Price and 1 more",
        ),
        ('"cents": 123456789012345678.12, ', "json_invalid"),
    ],
)  # fmt: skip
def test_a_decimal_is_never_changed(text: str, reason: str) -> None:
    result = decode_values(Bill, pa.array([f"{{{text}}}".encode()], pa.binary()))
    assert [each.reason for each in result.errors] == [reason]
    assert "secret" not in reason


@pytest.mark.parametrize("form", ["number", "text", "exponent"])
@pytest.mark.parametrize("zeros", [*range(90), 1_000])
def test_zeros_at_the_end_change_no_decimal(form: str, zeros: int) -> None:
    def of(digits: str) -> str:
        whole, _, places = digits.partition(".")
        text = f"{whole}{places}{'0' * zeros}e-{len(places) + zeros}" if form == "exponent" else digits + "0" * zeros
        return f'"{text}"' if form == "text" else text

    price = f'{{"Price": {of("-3776987.3")}}}'
    text = f'{{"cents": {of("1.5")}, "total": {of("12345678901234567890.25")}, "fares": [{price}], "fare": {price},'
    text += f' "parts": [{of("123456789012345678.12")}, {of("9.5")}]}}'
    result = decode_values(Bill, pa.array([text.encode()], pa.binary()))
    fare = {"price": Decimal("-3776987.30"), "rounded": None}
    assert result.errors == []
    assert result.columns.to_pylist() == [
        {
            **dict.fromkeys(Bill.model_fields), "cents": Decimal("1.50"), "total": Decimal("12345678901234567890.25"),
            "fare": fare, "fares": [fare], "parts": [Decimal("123456789012345678.12"), Decimal("9.50")],
        }
    ]  # fmt: skip


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Size(StrEnum):
    S = "s"


class Level(str, Enum):  # noqa: UP042 - the older spelling counts too
    LOW = "low"


class Dress(EventModel):
    colour: Colour = Colour.GREEN
    size: Size | None = None
    level: Annotated[Level, Field(description="how warm")] | None = None
    kind: Literal["short", "long"] = "short"
    others: list[Colour] | None = None


def test_a_member_of_an_enum_is_its_value() -> None:
    values = [
        b'{"colour": "red", "size": "s", "level": "low", "kind": "long", "others": ["red", "green"]}',
        b"{}",
        b'{"colour": "RED"}',
        b'{"level": true}',
        b'{"others": ["blue"]}',
    ]
    result = decode_values(Dress, pa.array(values, pa.binary()))
    assert result.columns.to_pylist()[:2] == [
        {"colour": "red", "size": "s", "level": "low", "kind": "long", "others": ["red", "green"]},
        {"colour": "green", "size": None, "level": None, "kind": "short", "others": None},
    ]
    assert result.errors == [
        DecodeError(2, "enum at colour"),
        DecodeError(3, "enum at level"),
        DecodeError(4, "enum at others.0"),
    ]
