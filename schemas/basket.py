"""Defines the example event of docs/SOURCES.md: a shopping basket, with nested models and a field of each type."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from pydantic import Field

from schemas.event_model import EventModel


class Item(EventModel):  # a nested model; it could also be in another file
    """One product in a basket."""

    product: str
    count: int


class Basket(EventModel):
    """A basket; `id` is the key of the topic."""

    id: str
    at: datetime
    weight: float
    gift: bool
    items: list[Item]
    total: Decimal = Field(max_digits=9, decimal_places=2)
    photo: bytes | None = None  # optional; give a default to every field that you add later
    delivery: date | None = None
    cheapest: Item | None = None
