"""Which Arrow column an annotation becomes. If an annotation has no column type, the error names the path of the
annotation.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, Optional

import pyarrow as pa
import pytest
from pydantic import Field, create_model

from schemas.event_model import EventModel
from schemas.flight import Flight
from schemas.model_columns import UnsupportedFieldError, arrow_schema


class Leg(EventModel):
    origin: str
    miles: float | None = None


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Trip(EventModel):
    number: int
    cargo: bytes
    booked: bool
    left: datetime
    day: date
    fare: Decimal = Field(max_digits=10, decimal_places=2)
    seat: Optional[str] = None  # noqa: UP045 - the older spelling counts too
    first: Leg
    legs: list[Leg]
    stops: list[int | None] | None = None
    colour: Colour
    level: Literal["low", "high"] | None = None
    sizes: list[Literal["S", "L"]]
    taxes: list[Annotated[Decimal, Field(max_digits=6, decimal_places=3)]] = Field(default_factory=list)


def test_each_supported_annotation_has_its_column() -> None:
    leg = pa.struct([pa.field("origin", pa.string(), nullable=False), pa.field("miles", pa.float64())])
    assert arrow_schema(Trip) == pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("cargo", pa.binary(), nullable=False),
            pa.field("booked", pa.bool_(), nullable=False),
            pa.field("left", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("fare", pa.decimal128(10, 2), nullable=False),
            pa.field("seat", pa.string()),
            pa.field("first", leg, nullable=False),
            pa.field("legs", pa.list_(pa.field("element", leg, nullable=False)), nullable=False),
            pa.field("stops", pa.list_(pa.field("element", pa.int64()))),
            pa.field("colour", pa.string(), nullable=False),
            pa.field("level", pa.string()),
            pa.field("sizes", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
            pa.field("taxes", pa.list_(pa.field("element", pa.decimal128(6, 3), nullable=False)), nullable=False),
        ]
    )


def test_flight_has_the_columns_of_the_package_in_its_order() -> None:
    schema = arrow_schema(Flight)
    assert schema.names[:3] == ["year", "month", "day"]
    assert len(schema) == 19
    assert [field.name for field in schema if field.nullable] == [
        "dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time",
    ]  # fmt: skip


class Early(EventModel):
    late: list[Late] | None = None


class Late(EventModel):
    n: int


def test_a_model_may_use_a_type_that_is_defined_later() -> None:
    late = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    expected = pa.schema([pa.field("late", pa.list_(pa.field("element", late, nullable=False)))])
    assert arrow_schema(Early) == expected


class Level(IntEnum):
    LOW = 1


class Mixed(EventModel):
    odd: Literal["a", 1]


class Member(EventModel):
    odd: Literal[Colour.RED]


class Unfinished(EventModel):
    missing: Missing | None = None  # type: ignore[name-defined] # noqa: F821


class Looped(EventModel):
    inner: list[Looped]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (create_model("Odd", __base__=EventModel, tags=(dict[str, int], ...)), r"Odd\.tags: .*no column type"),
        (create_model("Odd", __base__=EventModel, either=(int | str, ...)), r"Odd\.either: .*several types"),
        (create_model("Odd", __base__=EventModel, price=(Decimal, ...)), r"Odd\.price: Decimal needs"),
        (create_model("Odd", __base__=EventModel, anything=(list[Any], ...)), r"Odd\.anything\[\]: .*no column type"),
        (
            create_model("Odd", __base__=EventModel, id=(int, ...), ID=(int, ...)),
            r"Odd\.ID: differs from id only in upper and lower case",
        ),
        (
            Mixed,
            r"Mixed\.odd: allows values of the type int; use only str",
        ),
        (
            create_model("Odd", __base__=EventModel, odd=(Level, ...)),
            r"Odd\.odd: allows values of the type int; use only",
        ),
        (
            Member,
            r"Member\.odd: allows values of the type Colour; use only str",
        ),
        (create_model("Odd", __base__=EventModel), "Odd: Odd has no fields"),
        (Unfinished, "Unfinished: uses Missing, which its module does not define"),
        (Looped, r"Looped\.inner\[\]: .*contains itself"),
    ],
)
def test_annotation_without_a_column_is_refused_with_its_path(model: type[EventModel], message: str) -> None:
    with pytest.raises(UnsupportedFieldError, match=message):
        arrow_schema(model)
