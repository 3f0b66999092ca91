"""Numbers, sizes and times as people read them: in tables at a prompt and in the report. Times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_DURATIONS = ((31_536_000_000, "y"), (86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


def moment(ms: int) -> str:
    """A time in milliseconds since 1970; "none" for Kafka's -1, the number itself where no calendar reaches."""
    if ms < 0:
        return "none"
    try:
        text = (_EPOCH + timedelta(milliseconds=ms)).isoformat(" ", "milliseconds")
    except OverflowError:
        return str(ms)
    return text.replace("+00:00", "Z")


def count(number: int) -> str:
    """A number of things: 334,264."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: 1 segment, 5,000 segments."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """A number of bytes in the unit that fits, powers of ten: 107.5 MB."""
    for unit_bytes, unit in _SIZES:
        if abs(size_bytes) >= unit_bytes:
            return f"{size_bytes / unit_bytes:,.1f} {unit}"
    return f"{size_bytes} B"


def duration(ms: int) -> str:
    """The length of a span of time in its two largest units: 12 y 327 d, 1 min 5 s, 0 ms. A year has 365 days."""
    left = abs(ms)
    parts: list[str] = []
    for unit_ms, unit in _DURATIONS:
        whole, left = divmod(left, unit_ms)
        if whole:
            parts.append(f"{whole:,} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 ms"
