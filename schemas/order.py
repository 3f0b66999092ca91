"""One order of a shop: the event of the example in README.md, and a pattern for events of your own."""

from __future__ import annotations

from datetime import datetime

from schemas.event_model import EventModel


class Order(EventModel):
    """An order as it was last changed; `id` is the key of the topic."""

    id: str
    amount: float
    at: datetime
