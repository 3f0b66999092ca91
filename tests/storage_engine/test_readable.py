"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import pytest

from storage_engine.readable import count, counted, duration, moment, size


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-1, "none"),
        (0, "1970-01-01 00:00:00.000Z"),
        (1_700_000_000_001, "2023-11-14 22:13:20.001Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (2**63 - 1, "9223372036854775807"),
    ],
)
def test_a_moment_is_told_as_exactly_as_the_calendar_reaches(ms: int, text: str) -> None:
    assert moment(ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (107_495_512, "107.5 MB"), (-104_807_677, "-104.8 MB"),
        (2 * 10**15, "2,000.0 TB"),
    ],
)  # fmt: skip
def test_a_size_has_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1000, "1 s"), (65_000, "1 min 5 s"), (-3_600_000, "1 h"), (3_600_001, "1 h"),
        (604_799_999, "6 d 23 h"), (406_684_800_000, "12 y 327 d"),
    ],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_a_count_has_separators() -> None:
    assert count(334_264) == "334,264"
    assert [counted(number, "segment") for number in (0, 1, 5000)] == ["0 segments", "1 segment", "5,000 segments"]
