"""Positions in a picture and the marks on its axes, for numbers and times of any size."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakelog.report.scales import DAY_MS, Scale, number_ticks, time_ticks

NUMBERS = st.integers(0, 2**63 - 1)


@given(NUMBERS, NUMBERS, st.integers(2, 8))
def test_marks_are_round_few_and_within(one: int, other: int, most: int) -> None:
    low, high = sorted((one, other))
    ticks = number_ticks(low, high, most)
    assert len(ticks) <= most
    assert all(low <= tick <= high for tick in ticks)
    assert len({after - before for before, after in pairwise(ticks)}) <= 1
    times = time_ticks(low, high, most)
    assert len(times) <= most
    assert all(low <= at <= high for at, _ in times)
    assert len({label for _, label in times}) == len(times)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_every_value_has_a_place_within(one: int, other: int, value: int) -> None:
    low, high = sorted((one, other))
    assert 10 <= Scale(low, high, 10, 90)(value) <= 90
    assert 10 <= Scale(low, high, 90, 10)(value) <= 90


def test_marks_are_those_that_people_expect() -> None:
    assert number_ticks(0, 334_264) == [0, 100_000, 200_000, 300_000]
    assert number_ticks(0, 0) == [0]
    assert time_ticks(0, 3 * DAY_MS, 4) == [
        (0, "1970-01-01"), (DAY_MS, "1970-01-02"), (2 * DAY_MS, "1970-01-03"), (3 * DAY_MS, "1970-01-04")
    ]  # fmt: skip
    assert time_ticks(0, 90_000, 4) == [
        (0, "00:00:00"),
        (30_000, "00:00:30"),
        (60_000, "00:01:00"),
        (90_000, "00:01:30"),
    ]
