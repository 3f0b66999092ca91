"""Event models of the orders and trips that the tests of exports use.

They have a module of their own because Spark's Python workers import it.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field

from schemas.event_model import EventModel
from schemas.event_schema import EventSchema


def schema_of(model: type[EventModel]) -> EventSchema:
    """The schema of one of these models, which workers find in the folder that holds tests/."""
    return EventSchema(f"{model.__module__}:{model.__name__}", (str(Path(__file__).resolve().parents[3]),))


class Order(EventModel):
    number: int
    colour: str | None = None


class OrderWithDefault(EventModel):
    number: int
    colour: str | None = "white"


class MendedOrder(EventModel):
    """An order whose number may come under another name."""

    number: int = Field(validation_alias=AliasChoices("number", "nummer"))
    colour: str | None = None


class MendedOrderWithPrice(MendedOrder):
    price: float | None = None


class LargeOrder(EventModel):
    number: int = Field(ge=5)
    colour: str | None = None


class OrderWithPrice(EventModel):
    number: int
    price: float | None = None


class OrderWithText(EventModel):
    number: str


class WideOrder(EventModel):
    number: float
    colour: str | None = None


class Leg(EventModel):
    distance: int


class Home(EventModel):
    distance: int


class Trip(EventModel):
    number: int
    count: int
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)]
    marks: list[int | None]
    legs: list[Leg]
    home: Home | None = None


class WideLeg(EventModel):
    distance: float
    stop: str | None = None


class WideHome(EventModel):
    distance: float


class WideTrip(EventModel):
    number: float
    count: Annotated[Decimal, Field(max_digits=21, decimal_places=2)]
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=4)]
    marks: list[float | None]
    legs: list[WideLeg]
    home: WideHome | None = None
    note: str | None = None
