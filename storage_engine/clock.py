"""Defines the clock. Functions that need the time take a Clock as an argument, so that tests can pass a ManualClock."""

from __future__ import annotations

import time
from typing import Protocol


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
