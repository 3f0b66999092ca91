"""Limits one run of maintenance to a number of minutes and bytes.

Running pieces of work always finish; the budget decides whether a new piece may begin. A piece may not begin if

    --max-bytes      it would read more, together with all that was begun
    --max-minutes    the time is over, or would be before it ends, at the fastest rate that a piece has had so far:
                     small ones mostly show how long Spark takes to begin, and until one has ended any may begin

A smaller piece may still fit. So a run exceeds its minutes only by the pieces that are running when the time is over.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


class Limit(StrEnum):
    """What a piece of work has no room in."""

    MINUTES = "--max-minutes"
    BYTES = "--max-bytes"


class Budget:
    """What is left of a run's minutes and bytes. The time begins when it is made. For one thread."""

    def __init__(
        self,
        max_minutes: float | None = None,
        max_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            max_minutes, max_bytes: None for no limit.
            monotonic: a clock that never goes back, in seconds.
        """
        self.max_bytes = max_bytes
        self._monotonic = monotonic
        self._end = None if max_minutes is None else monotonic() + 60 * max_minutes
        self._begun_bytes = 0
        self._fastest = 0.0

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Budget:
        """What the command line gives, by the options of add_budget_options; without them no limit."""
        return cls(getattr(arguments, "max_minutes", None), getattr(arguments, "max_bytes", None))

    @property
    def time_is_over(self) -> bool:
        return self._end is not None and self._monotonic() >= self._end

    def against(self, size: int) -> Limit | None:
        """What is against it that a piece begins now which reads so many bytes; None where nothing is."""
        if self.max_bytes is not None and self._begun_bytes + size > self.max_bytes:
            return Limit.BYTES
        seconds = size / self._fastest if self._fastest else 0.0
        if self._end is not None and (self.time_is_over or self._monotonic() + seconds > self._end):
            return Limit.MINUTES
        return None

    def begin(self, size: int) -> float:
        """Note that a piece begins; returns when."""
        self._begun_bytes += size
        return self._monotonic()

    def end(self, size: int, begun: float) -> None:
        """Note that a piece has ended which began then."""
        seconds = self._monotonic() - begun
        if seconds > 0:
            self._fastest = max(self._fastest, size / seconds)


def add_budget_options(parser: argparse.ArgumentParser) -> None:
    """--max-minutes and --max-bytes."""
    parser.add_argument(
        Limit.MINUTES,
        type=_positive(float),
        metavar="N",
        help="begin nothing that would take longer; what runs is let end",
    )
    parser.add_argument(
        Limit.BYTES, type=_positive(int), metavar="N", help="read no more than this to compact and to merge"
    )


def _positive(kind: type[_Number]) -> Callable[[str], _Number]:
    def number(text: str) -> _Number:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"found {text}; give a number above 0")
        return value

    return number
