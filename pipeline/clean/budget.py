"""Limits one run of maintenance to a number of minutes and bytes.

The budget decides whether a piece of work may begin. A piece that has begun is always finished. A piece must not begin
if

    --max-bytes      this piece and all pieces begun before it would together read more bytes than the limit
    --max-minutes    the time limit has passed, or would pass before the end of the piece

If a piece must not begin, the budget can still allow a smaller piece. The duration of a piece is estimated from the
rate of the fastest piece so far, in bytes per second. Lower rates are ignored, because the rate of a small piece mostly
shows how long Spark takes to start. Until the first piece has ended, there is no estimate, and a piece may begin at any
time before the time limit. So a run lasts longer than the time limit only if pieces of work are still running when the
limit passes.
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
    """The limits of a budget; the values are the options of the command line."""

    MINUTES = "--max-minutes"
    BYTES = "--max-bytes"


class Budget:
    """The remaining minutes and bytes of a run. The time begins when the object is created. Only one thread may use the
    object."""

    def __init__(
        self,
        max_minutes: float | None = None,
        max_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            max_minutes, max_bytes: None for no limit.
            monotonic: a monotonic clock, in seconds.
        """
        self.max_bytes = max_bytes
        self._monotonic = monotonic
        self._end = None if max_minutes is None else monotonic() + 60 * max_minutes
        self._begun_bytes = 0
        self._fastest = 0.0

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Budget:
        """The budget that the options of add_budget_options give. Without these options there is no limit."""
        return cls(getattr(arguments, "max_minutes", None), getattr(arguments, "max_bytes", None))

    @property
    def time_is_over(self) -> bool:
        return self._end is not None and self._monotonic() >= self._end

    def against(self, size: int) -> Limit | None:
        """The limit that forbids a piece of `size` bytes to begin; None if the piece may begin."""
        if self.max_bytes is not None and self._begun_bytes + size > self.max_bytes:
            return Limit.BYTES
        seconds = size / self._fastest if self._fastest else 0.0
        if self._end is not None and (self.time_is_over or self._monotonic() + seconds > self._end):
            return Limit.MINUTES
        return None

    def begin(self, size: int) -> float:
        """Record that a piece begins; returns the time."""
        self._begun_bytes += size
        return self._monotonic()

    def end(self, size: int, begun: float) -> None:
        """Record that a piece has ended. begun: the time at which the piece began."""
        seconds = self._monotonic() - begun
        if seconds > 0:
            self._fastest = max(self._fastest, size / seconds)


def add_budget_options(parser: argparse.ArgumentParser) -> None:
    """Add --max-minutes and --max-bytes."""
    parser.add_argument(
        Limit.MINUTES,
        type=_positive(float),
        metavar="N",
        help="begin only work that is expected to end in the first N minutes of the run; work that has begun is finished",
    )
    parser.add_argument(
        Limit.BYTES, type=_positive(int), metavar="N", help="read at most N bytes for compaction and merging"
    )


def _positive(kind: type[_Number]) -> Callable[[str], _Number]:
    def number(text: str) -> _Number:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"found {text}; give a number above 0")
        return value

    return number
