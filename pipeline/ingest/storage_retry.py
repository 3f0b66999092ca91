"""Repeats work while the storage is full or unreachable, with longer and longer pauses.

It must be safe to repeat the work. A repeated commit of a micro-batch writes the same staged runs into new files. If a
commit raised an error but succeeded, the topic's state contains the batch. Then the repeated commit is skipped. A
permanent error (no permission, a corrupt file) is raised immediately. After the process was asked to stop, all errors
are raised immediately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pipeline.spark.failures import SPARK_ERRORS, SparkFailedError, storage_failure
from storage_engine.errors import AmbiguousPutError, StorageError, StorageFullError, StorageUnavailableError
from storage_engine.quantities import shown_duration

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_T = TypeVar("_T")


class StorageRetry:
    """Repeats steps of an ingest's micro-batches, up to a timeout. Only the thread of the micro-batches may use this
    object."""

    def __init__(self, timeout_ms: int, wait: Callable[[float], bool], report: Callable[[str], None]) -> None:
        """
        Args:
            timeout_ms: the largest sum of the pauses of one step, in milliseconds.
            wait: waits for this number of seconds, or until the process is asked to stop; returns whether it was asked.
            report: receives a line before each pause.
        """
        self._timeout = timeout_ms / 1000
        self._wait = wait
        self._report = report

    def attempt(self, name: str, work: Callable[[], _T]) -> _T:
        """Do the work, and repeat it if the storage is full or unreachable.

        Args:
            name: the beginning of the reported lines.

        Raises:
            StorageError, SparkFailedError, PySparkException: the last error of the work.
        """
        left, pause = self._timeout, _FIRST_PAUSE
        while True:
            try:
                return work()
            except (StorageError, SparkFailedError, *SPARK_ERRORS) as error:
                reason = _passing(error)
                if reason is None or left <= 0:
                    raise
                pause = min(pause, left)
                self._report(
                    f"{name}: waiting for the storage, {reason}; next attempt in {shown_duration(pause)}, giving up in"
                    f" {shown_duration(left)}"
                )
                if self._wait(pause):
                    raise
            left -= pause
            pause = min(2 * pause, _LONGEST_PAUSE)


def _passing(error: Exception) -> str | None:
    """The storage's message if the cause of the error may go away; None if waiting does not help."""
    if isinstance(error, SparkFailedError) and error.__cause__ is not None:
        return storage_failure(error.__cause__)
    if isinstance(error, SPARK_ERRORS):
        return storage_failure(error)
    if isinstance(error, StorageFullError | StorageUnavailableError | AmbiguousPutError):
        return f"{error.place}: {error.problem}"
    return None
