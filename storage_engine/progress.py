"""Reports the progress of long work: the amount done, the total, the speed, and the time left.

Functions that can take a long time have a parameter of type Progress. A function that knows the remaining amount
calls `expect` with this amount. After each piece of work, the function calls `advance` with the amount that was done.
Amounts are in records and bytes. The default value of this parameter is NO_PROGRESS, which ignores the reports.

A Meter is a Progress that stores the reports. The property `line` of a Meter shows the reports as text:

    append to orders: 1,234,567 records, 340.2 MB of 1.2 GB, 96,000 records/s, 27.3 MB/s, 32 s left

The rate is measured over the last minute, or over the last piece of work if this piece took longer than a minute. The
remaining time is computed from bytes if the total is known in bytes, and otherwise from records. Several threads may
use one Meter. A Meter stores only amounts, never contents of records. The reason is that programs print `line`, and
this output can become part of a log file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from storage_engine.clock import Clock
from storage_engine.quantities import shown_duration, shown_number, shown_size

_WINDOW_MS = 60_000
_SAMPLE_MS = 1_000


class Progress(Protocol):
    """Receives the reports of one piece of work. Several threads may call it."""

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        """Set the amount that remains to be done (None: not known). This amount replaces the earlier amount."""

    def advance(self, records: int = 0, size: int = 0) -> None:
        """Add an amount that is done."""


class _NoProgress:
    def expect(self, records: int | None = None, size: int | None = None) -> None:
        """Ignore the report."""

    def advance(self, records: int = 0, size: int = 0) -> None:
        """Ignore the report."""


NO_PROGRESS: Progress = _NoProgress()


@dataclass(frozen=True)
class _Sample:
    time_ms: int
    records: int
    size: int


class Meter:
    """Counts one piece of work.

    records, size: the amount done.
    expected_records, expected_size: the amount done plus the remaining amount; None if that is not known.
    """

    def __init__(self, work: str, clock: Clock) -> None:
        """
        Args:
            work: what is being done, as text for people.
        """
        self.work = work
        self.records = self.size = 0
        self.expected_records: int | None = None
        self.expected_size: int | None = None
        self._clock = clock
        self._note = ""
        self._figures: dict[str, float | Mapping[str, float]] = {}
        self._lock = threading.RLock()
        self._samples = deque([_Sample(clock.now_ms(), 0, 0)])

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        with self._lock:
            self.expected_records = None if records is None else self.records + records
            self.expected_size = None if size is None else self.size + size

    def advance(self, records: int = 0, size: int = 0) -> None:
        with self._lock:
            self.records += records
            self.size += size
            now_ms = self._clock.now_ms()
            if (records or size) and now_ms - self._samples[-1].time_ms >= _SAMPLE_MS:
                self._samples.append(_Sample(now_ms, self.records, self.size))
                while len(self._samples) > 2 and self._samples[1].time_ms <= now_ms - _WINDOW_MS:
                    self._samples.popleft()

    def note(self, text: str) -> None:
        """Set a text that `line` shows at its end. This text replaces the earlier text."""
        with self._lock:
            self._note = text

    def figure(self, name: str, value: float | Mapping[str, float] | None) -> None:
        """Set a figure that only this kind of work has: a number, or several numbers by name. This value replaces the
        figure's earlier value. None removes the figure. `facts` returns the figures, and `line` does not show them.
        """
        with self._lock:
            self._figures.pop(name, None)
            if value is not None:
                self._figures[name] = value

    @property
    def share(self) -> float | None:
        """The share of the work that is done, 0 to 1; None if the total is not known."""
        with self._lock:
            done, expected = self._measure()
            return None if expected is None else min(1.0, done / expected) if expected else 1.0

    @property
    def line(self) -> str:
        """All reports as one line of text."""
        with self._lock:
            records_per_s, bytes_per_s = self._rates()
            parts = []
            if self.records or self.expected_records is not None:
                total = "" if self.expected_records is None else f" of {shown_number(self.expected_records)}"
                parts.append(f"{shown_number(self.records)}{total} records")
            if self.size or self.expected_size is not None:
                total = "" if self.expected_size is None else f" of {shown_size(self.expected_size)}"
                parts.append(f"{shown_size(self.size)}{total}")
            if records_per_s:
                parts.append(f"{shown_number(round(records_per_s))} records/s")
            if bytes_per_s:
                parts.append(f"{shown_size(bytes_per_s)}/s")
            left = self._seconds_left()
            if left:
                parts.append(f"{shown_duration(left)} left")
            if self._note:
                parts.append(self._note)
            return f"{self.work}: {', '.join(parts) or 'begun'}"

    def facts(self) -> dict[str, str | float | Mapping[str, float] | None]:
        """All reports and figures by name. Rates are per second; what is not known is None."""
        with self._lock:
            records_per_s, bytes_per_s = self._rates()
            left = self._seconds_left()
            return {
                "work": self.work,
                "records": self.records,
                "expected_records": self.expected_records,
                "bytes": self.size,
                "expected_bytes": self.expected_size,
                "records_per_second": round(records_per_s),
                "bytes_per_second": round(bytes_per_s),
                "seconds_left": None if left is None else round(left),
                "note": self._note,
                **self._figures,
            }

    def _seconds_left(self) -> float | None:
        """The time that the remaining work takes at the present rate; None if that is not known."""
        done, expected = self._measure()
        records_per_s, bytes_per_s = self._rates()
        rate = records_per_s if self.expected_size is None else bytes_per_s
        return (expected - done) / rate if rate and expected is not None and expected >= done else None

    def _measure(self) -> tuple[int, int | None]:
        """The amounts done and expected: bytes if the total is known in bytes, else records."""
        if self.expected_size is None:
            return self.records, self.expected_records
        return self.size, self.expected_size

    def _rates(self) -> tuple[float, float]:
        """Records and bytes per second; 0 in the first second."""
        first = self._samples[0]
        seconds = (self._clock.now_ms() - first.time_ms) / 1000
        if seconds < _SAMPLE_MS / 1000:
            return 0.0, 0.0
        return (self.records - first.records) / seconds, (self.size - first.size) / seconds
