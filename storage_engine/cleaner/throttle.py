"""Limits how fast cleaning reads and writes: log.cleaner.io.max.bytes.per.second (Kafka's Throttler).

Each task counts the bytes that it reads and writes. Every 300 ms at the earliest it compares the count with the rate,
and sleeps if it is ahead of the rate. Kafka has one such count for all cleaner threads; here each task has its own,
with its share of the rate, because tasks run in other processes.

One throttle serves one task, in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_CHECK_SECONDS = 0.3


class Throttle:
    """Holds what one task reads and writes below a rate."""

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            bytes_per_second: of reading and writing together; above 0.
            monotonic: tells seconds. sleep: waits for so many.
        """
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._began = monotonic()
        self._bytes = 0

    def observe(self, size: int) -> None:
        """Count bytes that were read or written; sleeps where the rate asks for it."""
        self._bytes += size
        if self._monotonic() - self._began > _CHECK_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Sleep until the bytes that were counted are within the rate, which also a task of less than 300 ms owes."""
        ahead = self._bytes / self._rate - (self._monotonic() - self._began)
        if ahead > 0:
            self._sleep(ahead)
        self._began = self._monotonic()
        self._bytes = 0
