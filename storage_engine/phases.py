"""Measures the time of a piece of work: seconds by phase.

    with phases.phase("stage"):
        ...
        with phases.phase("fsync"):     # not counted as "stage"
            ...

Each moment belongs to one phase, the innermost, so the seconds of all phases add up to the elapsed time. Work in
several parallel threads or processes is measured there, and then gets its share of the elapsed time. Phases belong to
one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

FSYNC = "fsync"
"""The phase of making written bytes durable, whoever wrote them."""


class Phases:
    """Seconds by phase, in the order in which the phases first ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block's time is this phase's, but for what phases inside it take."""
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
        """The block's time is divided as `parts` are to one another at its end.

        Args:
            otherwise: the phase of the whole time where the parts are empty.
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
    """The seconds of several, by phase."""
    whole = Phases()
    for part in parts:
        for name, seconds in part.items():
            whole.add(name, seconds)
    return whole.seconds


def shown_shares(seconds: Mapping[str, float]) -> str:
    """`encode 40%, fsync 60%`: each phase's share of the whole, in words."""
    whole = sum(seconds.values())
    return ", ".join(f"{name} {taken / whole:.0%}" for name, taken in seconds.items()) if whole else ""
