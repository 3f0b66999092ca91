"""Reports the progress of long work: the amount done, the total, the speed, and the time left.

Work that may take long is given a Progress and reports two things to it: how much is left to do, as far as that is
known, and each piece that is done, in records and bytes. The work does not know who reads the progress. The default,
NO_PROGRESS, ignores the reports.

A Meter is a Progress that stores the reports. `line` gives them in words:

    append to orders: 1,234,567 records, 340.2 MB of 1.2 GB, 96,000 records/s, 27.3 MB/s, 32 s left

The rate is that of the last minute, or of the last piece of work if pieces take longer. The time left is computed from
bytes if the total is known in bytes, else from records. A Meter may be used from several threads. It holds amounts
only, never contents: its lines end up in logs.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from storage_engine.clock import Clock
from storage_engine.quantities import shown_duration, shown_number, shown_size

_WINDOW_MS = 60_000
_SAMPLE_MS = 1_000


class Progress(Protocol):
    """Is told about one piece of work while it is done. Safe to call from several threads."""

    def expect(self, records: int | None = None, size: int | None = None) -> None:
        """From now on so much is left to do, None: not known. Takes the place of what was expected before."""

    def advance(self, records: int = 0, size: int = 0) -> None:
        """So much more is done."""


class _NoProgress:
    def expect(self, records: int | None = None, size: int | None = None) -> None:
        """Nobody looks."""

    def advance(self, records: int = 0, size: int = 0) -> None:
        """Nobody looks."""


NO_PROGRESS: Progress = _NoProgress()


@dataclass(frozen=True)
class _Sample:
    time_ms: int
    records: int
    size: int


class Meter:
    """Counts one piece of work.

    records, size: done so far. expected_records, expected_size: with what is left; None where that is not known.
    """

    def __init__(self, work: str, clock: Clock) -> None:
        """
        Args:
            work: what is being done, for people.
        """
        self.work = work
        self.records = self.size = 0
        self.expected_records: int | None = None
        self.expected_size: int | None = None
        self._clock = clock
        self._note = ""
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
        """What else is worth seeing just now; takes the place of the note before."""
        with self._lock:
            self._note = text

    @property
    def share(self) -> float | None:
        """How much of the work is done, 0 to 1; None where that is not known."""
        with self._lock:
            done, expected = self._measure()
            return None if expected is None else min(1.0, done / expected) if expected else 1.0

    @property
    def line(self) -> str:
        """All of it as one line of words."""
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
            done, expected = self._measure()
            rate = records_per_s if self.expected_size is None else bytes_per_s
            if rate and expected is not None and expected > done:
                parts.append(f"{shown_duration((expected - done) / rate)} left")
            if self._note:
                parts.append(self._note)
            return f"{self.work}: {', '.join(parts) or 'begun'}"

    def _measure(self) -> tuple[int, int | None]:
        """Done and expected, in the unit in which the total is known."""
        if self.expected_size is None:
            return self.records, self.expected_records
        return self.size, self.expected_size

    def _rates(self) -> tuple[float, float]:
        """Records and bytes a second; 0 while there is nothing to go by."""
        first = self._samples[0]
        seconds = (self._clock.now_ms() - first.time_ms) / 1000
        if seconds < _SAMPLE_MS / 1000:
            return 0.0, 0.0
        return (self.records - first.records) / seconds, (self.size - first.size) / seconds
