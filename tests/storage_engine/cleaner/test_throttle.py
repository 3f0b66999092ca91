"""The throttle, with a clock that only its own sleeping and the test move."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cleaner.throttle import Throttle


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def _throttle(bytes_per_second: float) -> tuple[Throttle, _Clock]:
    clock = _Clock()
    return Throttle(bytes_per_second, clock.monotonic, clock.sleep), clock


def test_what_is_ahead_of_the_rate_is_slept_out_once_the_interval_is_over() -> None:
    throttle, clock = _throttle(1000)
    throttle.observe(800)
    assert clock.slept == []
    clock.now += 0.4
    throttle.observe(200)
    assert clock.slept == [pytest.approx(0.6)]


def test_a_count_begins_anew_after_each_look() -> None:
    throttle, clock = _throttle(1000)
    clock.now += 10
    throttle.observe(100)  # far behind the rate, which is no credit
    clock.now += 0.5
    throttle.observe(1000)
    assert clock.slept == [pytest.approx(0.5)]


def test_below_the_rate_nothing_is_slept() -> None:
    throttle, clock = _throttle(1000)
    for _ in range(10):
        clock.now += 1
        throttle.observe(999)
    assert clock.slept == []


def test_a_short_task_owes_its_time_at_its_end() -> None:
    throttle, clock = _throttle(1000)
    throttle.observe(500)
    throttle.settle()
    assert clock.slept == [pytest.approx(0.5)]
    throttle.settle()
    assert len(clock.slept) == 1


def test_no_limit_never_sleeps() -> None:
    for rate in (inf, 1.7976931348623157e308):
        throttle, clock = _throttle(rate)
        for _ in range(10):
            clock.now += 0.5
            throttle.observe(2**40)
        throttle.settle()
        assert clock.slept == []


@given(
    rate=st.floats(1, 1e9),
    steps=st.lists(st.tuples(st.integers(0, 2**30), st.floats(0, 2)), max_size=30),
)
def test_no_more_goes_by_than_the_rate_allows(rate: float, steps: list[tuple[int, float]]) -> None:
    throttle, clock = _throttle(rate)
    began = clock.now
    for size, seconds in steps:
        clock.now += seconds
        throttle.observe(size)
    throttle.settle()
    assert sum(size for size, _ in steps) <= rate * (clock.now - began) * (1 + 1e-6) + 1
