"""Models with a column of each kind, and random values of them, also values that do not fit.

They have a module of their own because decoders import it by name.
"""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from schemas.event_model import EventModel

FLOATS = (0.0, -0.0, 1.0, 1.5, -2.25, 1e300, math.nan, None)


class Part(EventModel):
    weight: float | None = None
    made: datetime | None = None


class Goods(EventModel):
    number: int
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)] | None = None
    ratio: float | None = None
    moment: datetime | None = None
    day: date | None = None
    flag: bool | None = None
    note: str | None = None
    tags: list[str | None] | None = None
    part: Part | None = None
    parts: list[Part] | None = None


class WideGoods(Goods):
    """The same columns, two of them wider."""

    number: float  # type: ignore[assignment]
    price: Annotated[Decimal, Field(max_digits=18, decimal_places=4)] | None = None


class StrictGoods(Goods):
    """The same columns. Some records that were rows do not fit."""

    number: int = Field(ge=300_000)


def some_value(chance: random.Random) -> bytes | None:
    """The value of a record: usually goods, sometimes a tombstone or a value that does not fit."""
    kind = chance.random()
    if kind < 0.1:
        return None
    if kind < 0.2:
        return chance.choice([b"{", b"", b"[]", b'{"number": "x"}', b'{"number": 1, "price": "a"}'])
    return goods(chance)


def goods(chance: random.Random) -> bytes:
    """A value that fits. Fields that may be null are sometimes null, and sometimes missing."""
    found: dict[str, Any] = {"number": chance.randrange(10**6)}
    for name, make in _FIELDS.items():
        kind = chance.random()
        if kind < 0.75:
            found[name] = make(chance)
        elif kind < 0.9:
            found[name] = None
    return json.dumps(found).encode()


def _moment(chance: random.Random) -> str:
    return (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**13))).isoformat()


def _part(chance: random.Random) -> dict[str, Any]:
    return {"weight": chance.choice(FLOATS), "made": _moment(chance)} if chance.random() < 0.8 else {}


_FIELDS: dict[str, Any] = {
    "price": lambda chance: f"{chance.randrange(10**6)}.{chance.randrange(100):02}",
    "ratio": lambda chance: chance.choice(FLOATS),
    "moment": _moment,
    "day": lambda chance: (date(2024, 1, 1) + timedelta(days=chance.randrange(3000))).isoformat(),
    "flag": lambda chance: chance.random() < 0.5,
    "note": lambda chance: chance.choice(["", "a", "é", "a\u0000b"]),
    "tags": lambda chance: [chance.choice(["x", "", None]) for _ in range(chance.randrange(4))],
    "part": _part,
    "parts": lambda chance: [_part(chance) for _ in range(chance.randrange(3))],
}
