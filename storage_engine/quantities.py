"""Formats numbers, sizes, times and spans of time for people. Times are UTC. Also reads times.

All output for people uses these functions, so that the same amount looks the same everywhere. Output for programs (JSON
lines, --json) has plain numbers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SIZES = ("kB", "MB", "GB", "TB", "PB")
_SPANS = (("y", 31_536_000), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def shown_number(value: float) -> str:
    """An integer as "12,345", a float with one decimal."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: 1 segment, 5,000 segments."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown_size(count: float) -> str:
    """A number of bytes with a unit, in powers of 1000: "999 B", "107.5 MB"."""
    if abs(round(count)) < 1000:
        return f"{round(count)} B"
    scaled, power = count / 1000, 0
    while abs(round(scaled, 1)) >= 1000 and power < len(_SIZES) - 1:
        scaled, power = scaled / 1000, power + 1
    return f"{scaled:,.1f} {_SIZES[power]}"


def shown_duration(seconds: float) -> str:
    """A span of time in at most two units: "4.2 s", "32 s", "3 min 5 s", "3 d 4 h". A year has 365 days."""
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    shown: list[str] = []
    for unit, length in _SPANS:
        count, left = divmod(left, length)
        if count or shown:
            shown.append(f"{count:,} {unit}")
        if len(shown) == 2:
            break
    return " ".join(part for part in shown if not part.startswith("0 "))


def iso_moment(ms: int) -> str:
    """A time, given in milliseconds since 1970, as programs read it: 2026-01-31T12:00:00.000Z."""
    return shown_moment(ms).replace(" ", "T")


def milliseconds_of(time: datetime) -> int:
    """The whole milliseconds since 1970 at a time with a zone, rounded down. Exact, unlike datetime.timestamp()."""
    return (time - _EPOCH) // _MILLISECOND


def next_millisecond(time: datetime) -> int:
    """The first millisecond since 1970 that is not before a time with a zone: records from there on are not older."""
    return -((_EPOCH - time) // _MILLISECOND)


def parse_moment(text: str) -> int:
    """The first millisecond since 1970 that is not before a time in ISO 8601. Text without a zone is UTC.

    Raises:
        ValueError: the text is no time.
    """
    time = datetime.fromisoformat(text)
    return next_millisecond(time if time.tzinfo else time.replace(tzinfo=UTC))


def shown_moment(ms: int) -> str:
    """A time, given in milliseconds since 1970. The text is "none" for Kafka's -1, and the number itself for a time
    after the year 9999.
    """
    if ms < 0:
        return "none"
    try:
        text = (_EPOCH + timedelta(milliseconds=ms)).isoformat(" ", "milliseconds")
    except OverflowError:
        return str(ms)
    return text.replace("+00:00", "Z")
