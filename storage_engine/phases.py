"""Measures the time of a piece of work: how many seconds each phase takes.

    with phases.phase("stage"):
        ...
        with phases.phase("fsync"):     # not counted as "stage"
            ...

Time is counted for the innermost phase only, so the sum of all phases is the elapsed time. Parallel threads or
processes measure their own phases. The function `together` divides the elapsed time among the phases in proportion to
these measurements. Only one thread may use a Phases object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

FSYNC = "fsync"
"""The name of the phase that makes written bytes durable."""


class Phases:
    """Counts seconds by phase, in the order in which the phases first ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase, except the time of phases inside the block."""
        self._turn()
        self._running.append(name)
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.add(self._running[-1], now - self._since)
        self._since = now

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def together(self, parts: Mapping[str, float], otherwise: str) -> Iterator[None]:
        """Divide the elapsed time of the block among the phases of `parts`, in proportion to the seconds that the parts
        have counted.

        Args:
            otherwise: the phase that gets all the time if the parts have no seconds.
        """
        self._turn()
        started = self._since
        try:
            yield
        finally:
            self._since = time.perf_counter()
            passed = self._since - started
            whole = sum(parts.values())
            for name, seconds in parts.items():
                self.add(name, passed * seconds / whole if whole else 0.0)
            if not whole:
                self.add(otherwise, passed)


def added_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of several measurements, by phase."""
    whole = Phases()
    for part in parts:
        for name, seconds in part.items():
            whole.add(name, seconds)
    return whole.seconds


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each phase, rounded to milliseconds."""
    return {name: round(taken, 3) for name, taken in seconds.items()}


def shown_shares(seconds: Mapping[str, float]) -> str:
    """Return the share of each phase as text: `encode 40%, fsync 60%`."""
    whole = sum(seconds.values())
    return ", ".join(f"{name} {taken / whole:.0%}" for name, taken in seconds.items()) if whole else ""
