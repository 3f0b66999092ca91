"""Defines the example event of README.md, an order of a shop. Use it as a pattern for your own events."""

from __future__ import annotations

from datetime import datetime

from schemas.event_model import EventModel


class Order(EventModel):
    """An order after its latest change; `id` is the key of the topic."""

    id: str
    amount: float
    at: datetime
