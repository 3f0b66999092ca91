"""Tests that Phases counts each second for one phase, and divides the time of parallel work."""

from __future__ import annotations

import time

import pytest

from storage_engine.phases import Phases, added_up, shown_shares


class Clock:
    """Stands in for the processor's clock: it goes on when told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_an_inner_phase_is_not_counted_to_the_outer_one(clock: Clock) -> None:
    phases = Phases()
    with phases.phase("stage"):
        clock.now += 1
        with phases.phase("fsync"):
            clock.now += 2
        clock.now += 4
    clock.now += 8
    with phases.phase("fsync"):
        clock.now += 16
    assert phases.seconds == {"fsync": 18, "stage": 5}


def test_a_phase_that_fails_is_counted_too(clock: Clock) -> None:
    phases = Phases()

    def fail() -> None:
        with phases.phase("stage"):
            clock.now += 3
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert phases.seconds == {"stage": 3}


def test_what_was_done_at_once_shares_the_time_that_it_took_together(clock: Clock) -> None:
    phases = Phases()
    parts: dict[str, float] = {}
    with phases.phase("other"):
        clock.now += 1
        with phases.together(parts, "publish"):
            clock.now += 4
            parts |= added_up([{"publish": 6.0, "fsync": 1.0}, {"fsync": 1.0}])
        with phases.together({}, "publish"):
            clock.now += 2
    assert phases.seconds == {"publish": 5, "fsync": 1, "other": 1}


def test_shares_are_shown_in_words() -> None:
    assert shown_shares({"encode": 3.0, "fsync": 1.0}) == "encode 75%, fsync 25%"
    assert shown_shares({}) == ""
