"""Measures how much was appended to a topic over time. For this, the module groups the topic's changes by intervals of
equal length. All functions are pure.

The length of an interval is a round number, such as 5 s, 15 min or a day. Intervals are long enough that one picture
can show all of them. Intervals begin at multiples of their length, so a picture made an hour later has the same
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakelog.report.scales import DAY_MS, TIME_STEPS_MS
from lakelog.report.topic_changes import Change

MOST_INTERVALS = 96
SHORTEST_MS = 1000
"""In an interval of less than a second, a rate would show the duration of commits and not the rate of the source."""


@dataclass(frozen=True)
class TimeInterval:
    """The appends from start_ms up to, but not including, end_ms.

    appends: number of versions that appended records.
    records: number of their records.
    bytes: size of their records.
    largest: number of records in the largest append.
    """

    start_ms: int
    end_ms: int
    appends: int = 0
    records: int = 0
    bytes: int = 0
    largest: int = 0

    @property
    def records_per_second(self) -> float:
        return self.records * 1000 / (self.end_ms - self.start_ms)

    @property
    def mean(self) -> float:
        """The mean number of records in an append."""
        return self.records / self.appends if self.appends else 0.0


def rates(changes: Sequence[Change]) -> tuple[TimeInterval, ...]:
    """The appends in intervals that contain one append each on average. With shorter intervals, a steady stream would
    seem to have gaps."""
    appends = [change for change in changes if change.records > 0]
    return _intervals(appends, min(MOST_INTERVALS, len(appends) + 1))


def batch_sizes(changes: Sequence[Change]) -> tuple[TimeInterval, ...]:
    """The appends in the shortest intervals that a picture can show, so that few appends share an interval."""
    return _intervals([change for change in changes if change.records > 0], MOST_INTERVALS)


def _intervals(appends: Sequence[Change], most: int) -> tuple[TimeInterval, ...]:
    """Group appends into at least 2 and at most `most` intervals. Together, the intervals cover the time of all
    appends."""
    if not appends:
        return ()
    first = min(change.written_ms for change in appends)
    last = max(change.written_ms for change in appends)
    length = _interval_ms(last - first, most)
    start = first // length * length
    gathered = [TimeInterval(at, at + length) for at in range(start, last + 1, length)]
    for change in appends:
        place = (change.written_ms - start) // length
        before = gathered[place]
        gathered[place] = TimeInterval(
            before.start_ms,
            before.end_ms,
            before.appends + 1,
            before.records + change.records,
            before.bytes + max(0, change.bytes),
            max(before.largest, change.records),
        )
    return tuple(gathered)


def _interval_ms(span_ms: int, most: int) -> int:
    """The shortest round length with which `most` intervals cover the span, wherever the span begins in the first
    one."""
    for step in TIME_STEPS_MS:
        if step >= SHORTEST_MS and span_ms // step + 2 <= most:
            return step
    return (span_ms // (most - 1) // DAY_MS + 1) * DAY_MS
