"""Runs the scheduled tasks and the cleaning of a LogManager, either continuously or only once.

The calling thread does the scheduled tasks. Other threads do the compactions; log.cleaner.threads gives their number.
The caller passes a function that waits. So a program can wait for a signal, and a test can move a clock instead of
waiting. If a thread fails, the run ends with the error of this thread. The caller then closes the logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage_engine.clock import Clock
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.upkeep.cleaning import Cleaning
from storage_engine.kafka_dir.upkeep.schedule import Task
from storage_engine.kafka_dir.upkeep.tasks import Tasks

_LONGEST_WAIT_SECONDS = 60.0


def run_once(stop: Callable[[float], bool], tasks: Tasks, cleaning: Cleaning, *, cleans: bool) -> bool:
    """Do each task one time: retention, the compactions that are due, flushes, checkpoints. Files are deleted after
    retention and at the end.

    Args:
        stop: as in run_until. The current task is finished first. A compaction is stopped, and changes nothing.
        cleans: whether logs are compacted.

    Returns:
        Whether the run came to its end. False if it had to stop before.

    Raises:
        StorageError: the last directory went offline.
    """
    for task in (Task.RETENTION, Task.DELETION):  # compaction may need the space
        if stop(0):
            return False
        tasks.run(task)
    done: set[TopicPartition] = set()
    while cleans and not stop(0) and (cleaned := cleaning.clean_next(done, lambda: stop(0))) is not None:
        done.add(cleaned)
    for task in (Task.FLUSH, Task.RECOVERY_POINTS, Task.LOG_STARTS, Task.PRODUCERS, Task.DELETION):
        if stop(0):
            return False
        tasks.run(task)
    return True


def run_until(
    stop: Callable[[float], bool], tasks: Tasks, cleaning: Cleaning, clock: Clock, *, threads: int, backoff_ms: int
) -> None:
    """Do each task when it is due, until the run must stop.

    Args:
        stop: waits for at most this number of seconds, and returns whether the run must stop.
        threads: number of threads that compact.
        backoff_ms: how long such a thread waits if no compaction is due.

    Raises:
        StorageError: the last directory went offline.
    """
    cleaners = _Cleaners(cleaning, threads, backoff_ms)
    with cleaners:
        while True:
            tasks.run_due()
            cleaners.check()
            wait_seconds = (tasks.next_ms - clock.now_ms()) / 1000
            if stop(min(max(wait_seconds, 0.0), _LONGEST_WAIT_SECONDS)):
                return


class _Cleaners:
    """The threads that compact. As a context manager, it starts them, and ends them."""

    def __init__(self, cleaning: Cleaning, threads: int, backoff_ms: int) -> None:
        self._cleaning = cleaning
        self._backoff_seconds = min(backoff_ms / 1000, threading.TIMEOUT_MAX)
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name=f"cleaner-{number}") for number in range(threads)]

    def check(self) -> None:
        """Raise the error that has ended a thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                if self._cleaning.clean_next() is None:
                    self._ending.wait(self._backoff_seconds)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._failure = error

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ending.set()
        self._cleaning.stop()
        for thread in self._threads:
            thread.join()
