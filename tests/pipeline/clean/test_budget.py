"""Which pieces of work may begin in a run with limited minutes and bytes."""

from __future__ import annotations

import argparse

import pytest

from pipeline.clean.budget import Budget, Limit, add_budget_options


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_without_limits_everything_may_begin() -> None:
    clock = Seconds()
    budget = Budget(monotonic=clock)
    budget.begin(2**62)
    clock.now += 10**9
    assert budget.against(2**62) is None
    assert not budget.time_is_over


def test_bytes_count_when_work_begins_and_smaller_work_may_still_find_room() -> None:
    budget = Budget(max_bytes=100)
    assert budget.against(100) is None
    budget.begin(60)
    assert budget.against(41) is Limit.BYTES
    assert budget.against(40) is None


def test_what_would_end_too_late_does_not_begin() -> None:
    clock = Seconds()
    budget = Budget(max_minutes=10, monotonic=clock)
    assert budget.against(10**15) is None, "as long as nothing has ended, nobody knows how long it takes"
    for size, seconds in ((1_000, 100), (60_000, 60), (10, 20)):
        begun = budget.begin(size)
        clock.now += seconds
        budget.end(size, begun)
    # 420 seconds are left, and the fastest piece had 1,000 bytes a second.
    assert budget.against(420_000) is None
    assert budget.against(421_000) is Limit.MINUTES


def test_nothing_begins_when_the_time_is_over() -> None:
    clock = Seconds()
    budget = Budget(max_minutes=0.5, monotonic=clock)
    clock.now += 29
    assert budget.against(1) is None
    clock.now += 1
    assert budget.time_is_over
    assert budget.against(0) is Limit.MINUTES


def test_the_command_line_sets_the_limits() -> None:
    parser = argparse.ArgumentParser()
    add_budget_options(parser)
    assert Budget.of(parser.parse_args([])).max_bytes is None
    budget = Budget.of(parser.parse_args(["--max-minutes", "0.01", "--max-bytes", "5"]))
    assert budget.against(6) is Limit.BYTES
    assert budget.against(5) is None


@pytest.mark.parametrize("options", [["--max-bytes", "0"], ["--max-bytes", "1.5"], ["--max-minutes", "nan"]])
def test_limits_that_are_no_amount_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_budget_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(options)
    assert options[0] in capsys.readouterr().err
