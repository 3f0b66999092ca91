"""Defines the clock. Functions that need the time take a Clock as an argument, so that tests can pass a ManualClock."""

from __future__ import annotations

import time
from typing import Protocol

_CLOCKS_APART_MS = 30_000
"""How far the clocks of two hosts may be apart."""


class Clock(Protocol):
    """Returns milliseconds since the epoch. Only decisions about age use a clock; no safety rule depends on a clock."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that changes only by `advance`."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move the clock forward."""
        self._now_ms += ms


def tells_age(timestamp_ms: int, now_ms: int) -> bool:
    """Whether the timestamp of a record tells how old the record is: it is set, and not in the future."""
    return 0 <= timestamp_ms <= now_ms + _CLOCKS_APART_MS
