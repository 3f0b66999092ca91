"""The throttle with a simulated clock, which advances only when the throttle sleeps or the test sets it."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cleaner import cleaner, segment_merging
from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.cleaner.throttle import Throttle
from storage_engine.config import BrokerConfig
from storage_engine.topic.clean.topic_compaction import cleaning_tasks, run_cleaning_task
from storage_engine.topic.clean.topic_merging import merge_topic
from tests.storage_engine.cleaner.test_cleaner import Log, put


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


def test_cleaning_counts_what_it_reads_and_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(cleaner, "Throttle", lambda rate: Throttle(rate, clock.monotonic, clock.sleep))
    log = Log(tmp_path)
    log.append(put("a", "1"), put("b", "1"))
    log.append(put("a", "2"))
    log.append(put("c"))
    broker = BrokerConfig(log_cleaner_io_max_bytes_per_second=100)
    (task,) = cleaning_tasks(
        log.storage, log.chain.newest(), log.config, broker, log.clock.now_ms(), force=True, at_once=4
    )
    assert task.bytes_per_second == 25
    done = run_cleaning_task(log.storage, task)
    assert isinstance(done, CleanedPartition)
    assert 0 < done.bytes_after < done.bytes_before
    assert clock.slept == [pytest.approx((2 * done.bytes_before + done.bytes_after) / 25)]


def test_merging_counts_what_it_reads_and_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(segment_merging, "Throttle", lambda rate: Throttle(rate, clock.monotonic, clock.sleep))
    log = Log(tmp_path, cleanup_policy="delete")
    for key in ("a", "b", "c"):
        log.append(put(key))
    (done,) = merge_topic(log.storage, log.chain, log.config, bytes_per_second=50).cleaned
    assert clock.slept == [pytest.approx((done.bytes_before + done.bytes_after) / 50)]
