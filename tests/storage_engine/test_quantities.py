"""The formats of numbers, sizes, durations and times."""

from __future__ import annotations

import pytest

from storage_engine.quantities import counted, shown_duration, shown_moment, shown_number, shown_size


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (107_484_551, "107.5 MB"),
     (2.5e9, "2.5 GB"), (3e12, "3.0 TB"), (-104_807_677, "-104.8 MB"), (4e18, "4,000.0 PB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_makes_them_short(count: float, shown: str) -> None:
    assert shown_size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (185, "3 min 5 s"), (3600, "1 h"),
     (7800, "2 h 10 min"), (86_400 * 3 + 4 * 3600 + 59, "3 d 4 h"), (86_400, "1 d"), (406_684_800, "12 y 327 d")],
)  # fmt: skip
def test_spans_of_time_have_at_most_two_units(seconds: float, shown: str) -> None:
    assert shown_duration(seconds) == shown


def test_numbers_have_commas_and_floats_one_decimal() -> None:
    assert [shown_number(value) for value in (1234567, -1, 1234.56)] == ["1,234,567", "-1", "1,234.6"]


def test_counts_name_what_they_count() -> None:
    assert [counted(number, "segment") for number in (0, 1, 5000)] == ["0 segments", "1 segment", "5,000 segments"]


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
def test_a_moment_is_reported_as_exactly_as_the_calendar_reaches(ms: int, text: str) -> None:
    assert shown_moment(ms) == text
