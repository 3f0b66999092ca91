"""Formats the figures of `lakelog perf`, in the same lines as kafka-producer-perf-test and kafka-consumer-perf-test.

    1000 records sent, 5025.125628 records/sec (0.48 MB/sec), 83.51 ms avg latency, 121.00 ms max latency, 81 ms 50th, ...
    2026-11-26 07:06:27:788, 2026-11-26 07:06:37:874, 0.0954, 0.0095, 1000, 99.1473, 3, 10083, 0.0095, 99.1769

A megabyte has 1024 * 1024 bytes, as in Kafka's tools. As in Java, a number divided by zero is Infinity or NaN.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime

from storage_engine.errors import UsageError

_MB = 1024 * 1024
_PERCENTILES = (0.5, 0.95, 0.99, 0.999)
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms,"
    " fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
DETAILED_HEADER = HEADER.replace("start.time, end.time", "time, threadId")
_LETTERS = re.compile(r"([A-Za-z])\1*")


def _decimal(value: float, places: int) -> str:
    """A number as Java's format prints it."""
    if math.isnan(value):
        return "NaN"
    return ("-Infinity" if value < 0 else "Infinity") if math.isinf(value) else f"{value:.{places}f}"


def _ratio(value: float, by: float) -> float:
    if by:
        return value / by
    return math.nan if value == 0 else math.inf


@dataclass
class ProducerFigures:
    """The figures of appended records.

    start_ms: the time at which the first record was made.
    steady: these are the figures after the warm-up.
    """

    start_ms: float
    steady: bool = False
    count: int = 0
    size: int = 0
    total_latency: int = 0
    latencies: list[tuple[int, int]] = field(default_factory=list)
    """The latency of each commit in milliseconds, and the number of its records."""

    def record(self, latency_ms: int, count: int, size: int) -> None:
        """Add a commit.

        Args:
            size: the bytes of the values.
        """
        self.count += count
        self.size += size
        self.total_latency += latency_ms * count
        self.latencies.append((latency_ms, count))

    def window(self, now_ms: float) -> str:
        """The line of a report while the command runs."""
        seconds = (now_ms - self.start_ms) / 1000
        return (
            f"{self.count} records sent, {_decimal(_ratio(self.count, seconds), 1)} records/sec"
            f" ({_decimal(_ratio(self.size, seconds) / _MB, 2)} MB/sec),"
            f" {_decimal(_ratio(self.total_latency, self.count), 1)} ms avg latency, {self._largest:.1f} ms max latency."
        )

    def total(self, now_ms: float) -> str:
        """The line at the end."""
        seconds = (now_ms - self.start_ms) / 1000
        half, most, nearly, all_ = (self._percentile(each) for each in _PERCENTILES)
        return (
            f"{self.count}{' steady state' if self.steady else ''} records sent,"
            f" {_decimal(_ratio(self.count, seconds), 6)} records/sec"
            f" ({_decimal(_ratio(self.size, seconds) / _MB, 2)} MB/sec),"
            f" {_decimal(_ratio(self.total_latency, self.count), 2)} ms avg latency, {self._largest:.2f} ms max latency,"
            f" {half} ms 50th, {most} ms 95th, {nearly} ms 99th, {all_} ms 99.9th."
        )

    @property
    def _largest(self) -> float:
        return max((latency for latency, _ in self.latencies), default=0)

    def _percentile(self, share: float) -> int:
        """The latency of the record at this place, when the records are sorted by latency."""
        place = int(share * self.count)
        for latency, count in sorted(self.latencies):
            place -= count
            if place < 0:
                return latency
        return 0


@dataclass(frozen=True)
class Consumed:
    """The number of records and bytes that were read until a moment.

    at_ms: the moment, in milliseconds since 1970.
    size: the bytes of keys and values.
    """

    at_ms: int
    count: int = 0
    size: int = 0


def consumer_total(start: Consumed, end: Consumed, join_ms: int, date_format: str) -> str:
    """The line at the end.

    Args:
        join_ms: the time until the first read.
    """
    seconds, fetch_ms = (end.at_ms - start.at_ms) / 1000, end.at_ms - start.at_ms - join_ms
    megabytes = end.size / _MB
    return (
        f"{shown_date(start.at_ms, date_format)}, {shown_date(end.at_ms, date_format)}, {megabytes:.4f},"
        f" {_decimal(_ratio(megabytes, seconds), 4)}, {end.count}, {_decimal(_ratio(end.count, seconds), 4)}, {join_ms},"
        f" {fetch_ms}, {_decimal(_ratio(megabytes, fetch_ms / 1000), 4)},"
        f" {_decimal(_ratio(end.count, fetch_ms / 1000), 4)}"
    )


def consumer_interval(last: Consumed, now: Consumed, join_ms: int, date_format: str) -> str:
    """The line of a report while the command runs, with the rates since the last report."""
    megabytes, count = (now.size - last.size) / _MB, now.count - last.count
    seconds, fetch_ms = (now.at_ms - last.at_ms) / 1000, now.at_ms - last.at_ms - join_ms
    fetched = (0.0, 0.0) if fetch_ms <= 0 else (1000 * megabytes / fetch_ms, 1000 * count / fetch_ms)
    return (
        f"{shown_date(now.at_ms, date_format)}, 0, {now.size / _MB:.4f}, {_decimal(_ratio(megabytes, seconds), 4)},"
        f" {now.count}, {_decimal(_ratio(count, seconds), 4)}, {join_ms}, {fetch_ms}, {fetched[0]:.4f}, {fetched[1]:.4f}"
    )


def shown_date(at_ms: int, pattern: str) -> str:
    """A time in the form of a pattern of java.text.SimpleDateFormat, in local time.

    Raises:
        UsageError: the pattern has a letter other than y, M, d, H, m, s and S.
    """
    moment = datetime.fromtimestamp(at_ms // 1000)  # noqa: DTZ006 - local time, as in Kafka's tool
    numbers = {
        "y": moment.year, "M": moment.month, "d": moment.day, "H": moment.hour, "m": moment.minute, "s": moment.second,
        "S": at_ms % 1000,
    }  # fmt: skip

    def shown(found: re.Match[str]) -> str:
        letter, width = found[1], len(found[0])
        if letter not in numbers or (letter == "M" and width > 2):
            raise UsageError(
                "--date-format", f"found {found[0]!r}", "Use the letters y, M (at most two), d, H, m, s and S."
            )
        number = numbers[letter] % 100 if (letter, width) == ("y", 2) else numbers[letter]
        return str(number).zfill(width)

    return _LETTERS.sub(shown, pattern)
