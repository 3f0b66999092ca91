"""Converts numbers and times to positions in a picture, and chooses the marks on an axis. All functions are pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
DAY_MS: Final = 24 * _HOUR_MS
TIME_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(step * _SECOND_MS for step in (1, 2, 5, 10, 15, 30)),
    *(step * _MINUTE_MS for step in (1, 2, 5, 10, 15, 30)),
    *(step * _HOUR_MS for step in (1, 2, 3, 6, 12)),
    *(step * DAY_MS for step in (1, 2, 7, 14, 28, 91, 182, 365, 730, 1825, 3650)),
)
"""Lengths of time that are round numbers, ascending."""


@dataclass(frozen=True)
class Scale:
    """Maps values between `low` and `high` linearly to positions between `start` and `end`. A value outside this range
    is mapped to the nearer end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def number_ticks(low: int, high: int, most: int = 5) -> list[int]:
    """At most `most` marks between low and high: the multiples of a round number (1, 2 or 5 times a power of ten)."""
    step = 1
    for factor in _one_two_five():
        step = factor
        if high // step - -(-low // step) + 1 <= most:
            break
    return list(range(-(-low // step) * step, high + 1, step))


def _one_two_five() -> list[int]:
    return [digit * 10**power for power in range(20) for digit in (1, 2, 5)]


def time_ticks(low_ms: int, high_ms: int, most: int = 5) -> list[tuple[int, str]]:
    """Marks at round times in UTC between low and high, with labels that are as exact as the distances require."""
    step = next((step for step in TIME_STEPS_MS if high_ms // step - -(-low_ms // step) + 1 <= most), None)
    if step is None:
        step = (high_ms - low_ms) // most + 1
    return [(at, _time_label(at, step)) for at in range(-(-low_ms // step) * step, high_ms + 1, step)]


def _time_label(ms: int, step_ms: int) -> str:
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    if step_ms >= DAY_MS:
        return f"{at:%Y-%m-%d}"
    if step_ms >= _MINUTE_MS:
        return f"{at:%Y-%m-%d %H:%M}"
    return f"{at:%H:%M:%S}" if step_ms >= _SECOND_MS else f"{at:%H:%M:%S}.{ms % 1000:03d}"
