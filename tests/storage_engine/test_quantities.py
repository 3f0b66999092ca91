"""How amounts look to people."""

from __future__ import annotations

import pytest

from storage_engine.quantities import shown_duration, shown_number, shown_size


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (107_484_551, "107.5 MB"),
     (2.5e9, "2.5 GB"), (3e12, "3.0 TB"), (4e18, "4,000.0 PB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_makes_them_short(count: float, shown: str) -> None:
    assert shown_size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (185, "3 min 5 s"), (3600, "1 h"),
     (7800, "2 h 10 min"), (86_400 * 3 + 4 * 3600 + 59, "3 d 4 h"), (86_400, "1 d")],
)  # fmt: skip
def test_spans_of_time_have_at_most_two_units(seconds: float, shown: str) -> None:
    assert shown_duration(seconds) == shown


def test_numbers_have_commas_and_floats_one_decimal() -> None:
    assert [shown_number(value) for value in (1234567, -1, 1234.56)] == ["1,234,567", "-1", "1,234.6"]
