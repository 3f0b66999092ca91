"""Which tasks are due at which time."""

from __future__ import annotations

from math import inf

from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.kafka_dir.upkeep.schedule import Schedule, Task

CONFIG = LogManagerConfig.from_mapping(
    {
        "log.initial.task.delay.ms": 100,
        "log.retention.check.interval.ms": 1000,
        "log.flush.scheduler.interval.ms": 300,
        "log.flush.offset.checkpoint.interval.ms": 0,
        "log.flush.start.offset.checkpoint.interval.ms": 10_000,
        "replica.high.watermark.checkpoint.interval.ms": 10_000,
    }
)


def test_nothing_but_deletions_is_due_before_the_initial_delay() -> None:
    schedule = Schedule.beginning_at(5000, CONFIG)
    assert schedule.due(5099) == (Task.DELETION,)
    assert set(schedule.due(5100)) == set(Task) - {Task.PRODUCERS}


def test_a_task_is_due_again_after_its_interval() -> None:
    schedule = Schedule.beginning_at(0, CONFIG).after(100)
    times = [(now_ms, schedule.due(now_ms)) for now_ms in (399, 400, 999, 1000, 1100)]
    assert times == [
        (399, ()),
        (400, (Task.FLUSH,)),
        (999, (Task.FLUSH,)),
        (1000, (Task.FLUSH, Task.DELETION)),
        (1100, (Task.RETENTION, Task.FLUSH, Task.DELETION)),
    ]


def test_a_task_that_was_missed_several_times_runs_once_and_keeps_its_times() -> None:
    schedule = Schedule.beginning_at(0, CONFIG).after(100).after(1050)
    assert schedule.times[Task.FLUSH] == 1300
    assert schedule.times[Task.RETENTION] == 1100


def test_an_interval_of_zero_means_once() -> None:
    schedule = Schedule.beginning_at(0, CONFIG).after(100)
    assert Task.RECOVERY_POINTS not in schedule.times
    assert Task.RECOVERY_POINTS not in schedule.due(10**15)


def test_next_ms_is_the_earliest_time() -> None:
    assert Schedule.beginning_at(7, CONFIG).next_ms == 7
    assert Schedule.beginning_at(7, CONFIG).after(7).next_ms == 107
    assert Schedule({}, {}, {}).next_ms == inf


def test_after_the_clock_was_set_back_no_task_waits_longer_than_its_interval() -> None:
    first = Schedule.beginning_at(1_000_000, CONFIG)
    assert first.at(5000).times == Schedule.beginning_at(5000, CONFIG).times
    schedule = first.after(1_000_100).at(5000)
    assert schedule.times == {
        Task.RETENTION: 6000,
        Task.FLUSH: 5300,
        Task.LOG_STARTS: 15_000,
        Task.HIGH_WATERMARKS: 15_000,
        Task.PRODUCERS: 605_000,
        Task.DELETION: 6000,
    }
    assert schedule.after(5300).at(5400) == schedule.after(5300)
