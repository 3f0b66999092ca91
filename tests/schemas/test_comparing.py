"""Which changes of a model are accepted, and which changes break older records or the readers of these records."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import Field

from schemas.comparing import ModelField, compare, fingerprint, model_fields
from schemas.event_model import EventModel

Money = Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
MoreMoney = Annotated[Decimal, Field(max_digits=12, decimal_places=3)]
LessMoney = Annotated[Decimal, Field(max_digits=11, decimal_places=1)]
Whole = Annotated[Decimal, Field(max_digits=21, decimal_places=2)]
Small = Annotated[Decimal, Field(max_digits=20, decimal_places=2)]


class Leg(EventModel):
    distance: int


class LongLeg(EventModel):
    distance: float
    via: str | None = None
    stops: int = 0


class Trip(EventModel):
    id: str
    seats: int
    price: Money
    note: str | None = None
    legs: list[Leg]


class Wider(EventModel):
    id: str
    seats: float
    price: MoreMoney
    note: str | None = None
    legs: list[Annotated[LongLeg | None, Field(description="one flight")]] | None
    colour: str | None = None


class Narrower(EventModel):
    id: int
    seats: int | None = None
    price: LessMoney
    note: str
    route: str
    legs: list[Leg] | None


def test_a_model_is_told_by_path_type_and_what_may_be_missing() -> None:
    assert model_fields(Trip) == {
        "id": ModelField("str", True, False),
        "seats": ModelField("int", True, False),
        "price": ModelField("Decimal(10,2)", True, False),
        "note": ModelField("str", False, True),
        "legs": ModelField("list", True, False),
        "legs[]": ModelField("object", False, False),
        "legs[].distance": ModelField("int", True, False),
    }


def test_new_optional_fields_and_wider_numbers_go_on() -> None:
    changes = compare(model_fields(Trip), model_fields(Wider))
    assert changes.breaking == ()
    assert changes.compatible == (
        "colour is new",
        "legs may now be null",
        "legs[] may now be null",
        "legs[].distance was int and is now float",
        "legs[].stops is new",
        "legs[].via is new",
        "price was Decimal(10,2) and is now Decimal(12,3)",
        "seats was int and is now float",
    )
    assert compare(model_fields(Trip), model_fields(Trip)).compatible == ()


class Address(EventModel):
    street: str
    zip: str | None = None


class Delivered(Trip):
    address: Address | None = None
    stops: list[Address] = Field(default=[])


def test_a_new_object_that_may_be_missing_goes_on_whatever_it_must_have_itself() -> None:
    there_now = compare(model_fields(Trip), model_fields(Delivered))
    assert (there_now.breaking, there_now.compatible) == ((), ("address is new", "stops is new"))
    gone_again = compare(model_fields(Delivered), model_fields(Trip))
    assert (gone_again.breaking, gone_again.compatible) == (("address is removed", "stops is removed"), ())


def test_what_would_break_readers_is_reported() -> None:
    assert compare(model_fields(Trip), model_fields(Narrower)).breaking == (
        "id was str and is now int",
        "note is now required",
        "note may no longer be null",
        "price was Decimal(10,2) and is now Decimal(11,1)",
        "route is new and required",
    )
    assert compare(model_fields(Wider), model_fields(Trip)).breaking == (
        "colour is removed",
        "legs may no longer be null",
        "legs[] may no longer be null",
        "legs[].distance was float and is now int",
        "legs[].stops is removed",
        "legs[].via is removed",
        "price was Decimal(12,3) and is now Decimal(10,2)",
        "seats was float and is now int",
    )


@pytest.mark.parametrize(("decimal", "holds"), [(Whole, True), (Small, False)])
def test_an_int_widens_only_to_a_decimal_that_holds_every_int(decimal: type, holds: bool) -> None:
    class Counted(EventModel):
        n: int

    later = type("Later", (EventModel,), {"__annotations__": {"n": decimal}})
    assert (not compare(model_fields(Counted), model_fields(later)).breaking) is holds


def test_a_fingerprint_is_that_of_the_fields() -> None:
    assert fingerprint(model_fields(Trip)) == fingerprint(dict(reversed(model_fields(Trip).items())))
    assert fingerprint(model_fields(Trip)) != fingerprint(model_fields(Wider))
