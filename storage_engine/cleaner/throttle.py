"""Limits the rate at which cleaning reads and writes. The limit is log.cleaner.io.max.bytes.per.second (Kafka's
Throttler).

Each task counts the bytes that it reads and writes. At most once in 300 ms, the task compares the count with the
rate, and waits if the count is too high. Kafka has one count for all cleaner threads. In Lakelog, tasks run in
several processes, so each task has its own count and its share of the rate.

One throttle serves one task, in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_CHECK_SECONDS = 0.3


class Throttle:
    """Limits the rate at which one task reads and writes bytes."""

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            bytes_per_second: rate of reading and writing together, above 0.
            monotonic: returns a time in seconds.
            sleep: waits for a number of seconds.
        """
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._began = monotonic()
        self._bytes = 0

    def observe(self, size: int) -> None:
        """Count bytes that were read or written, and sleep if the task is ahead of the rate."""
        self._bytes += size
        if self._monotonic() - self._began > _CHECK_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Sleep until the counted bytes are within the rate. Every task calls this method at its end, even a task that
        took less than 300 ms.
        """
        ahead = self._bytes / self._rate - (self._monotonic() - self._began)
        if ahead > 0:
            self._sleep(ahead)
        self._began = self._monotonic()
        self._bytes = 0
