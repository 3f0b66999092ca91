"""Decides which tasks are due. In Kafka, LogManager.startup gives these tasks to KafkaScheduler. All functions are
pure.

A task is due for the first time when log.initial.task.delay.ms have passed, and then at its interval. If a task
became due several times during other work, the task runs only once. A task with the interval 0 runs only once, as in
Kafka. If the clock is set back, no task waits longer than its interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from storage_engine.config.kafka_dir_keys import LogManagerConfig

_EXPIRY_CHECK_MS = 600_000
_DELETION_CHECK_MS = 1_000


class Task(StrEnum):
    """A kind of work that is repeated. If several tasks are due, they run in this order."""

    RETENTION = "retention"
    FLUSH = "flush"
    RECOVERY_POINTS = "recovery points"
    LOG_STARTS = "log start offsets"
    HIGH_WATERMARKS = "high watermarks"
    PRODUCERS = "expiry of producers"
    DELETION = "deletion"


@dataclass(frozen=True)
class Schedule:
    """The next time of each task, in milliseconds. A task that will never run again has no time.

    waits: how long each task waits for its next time at most.
    """

    intervals: Mapping[Task, int]
    times: Mapping[Task, int]
    waits: Mapping[Task, int]

    @classmethod
    def beginning_at(cls, now_ms: int, config: LogManagerConfig) -> Schedule:
        """The schedule of a LogManager that has just loaded its logs."""
        intervals = {
            Task.RETENTION: config.retention_check_interval_ms,
            Task.FLUSH: config.flush_scheduler_interval_ms,
            Task.RECOVERY_POINTS: config.flush_offset_checkpoint_interval_ms,
            Task.LOG_STARTS: config.flush_start_offset_checkpoint_interval_ms,
            Task.HIGH_WATERMARKS: config.high_watermark_checkpoint_interval_ms,
            Task.PRODUCERS: _EXPIRY_CHECK_MS,
            Task.DELETION: _DELETION_CHECK_MS,
        }
        waits = dict.fromkeys(intervals, config.initial_task_delay_ms)
        waits |= {Task.DELETION: 0, Task.PRODUCERS: _EXPIRY_CHECK_MS}
        return cls(intervals, {task: now_ms + wait_ms for task, wait_ms in waits.items()}, waits)

    def at(self, now_ms: int) -> Schedule:
        """The schedule at this time. If the clock was set back, the times are earlier than before."""
        times = {task: min(time_ms, now_ms + self.waits[task]) for task, time_ms in self.times.items()}
        return replace(self, times=times)

    def due(self, now_ms: int) -> tuple[Task, ...]:
        """The tasks that must run now."""
        return tuple(task for task in Task if self.times.get(task, inf) <= now_ms)

    def after(self, now_ms: int) -> Schedule:
        """The schedule after the due tasks have run."""
        times, waits = dict(self.times), dict(self.waits)
        for task in self.due(now_ms):
            interval_ms = waits[task] = self.intervals[task]
            if interval_ms:
                times[task] += ((now_ms - times[task]) // interval_ms + 1) * interval_ms
            else:
                del times[task]
        return replace(self, times=times, waits=waits)

    @property
    def next_ms(self) -> float:
        """The earliest time at which a task is due; infinite if no task is left."""
        return min(self.times.values(), default=inf)
