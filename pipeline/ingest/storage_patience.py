"""Repeats work while the storage is full or unreachable, after pauses that grow.

The work must be repeatable. A staged micro-batch is committed again from the same staged runs, into new files. If a
commit succeeded in spite of its error, the topic's state contains it, and it is skipped. A permanent error (no
permission, a corrupt file) is raised immediately, and so is every error after the process was asked to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pipeline.spark.failures import SPARK_ERRORS, storage_failure
from storage_engine.errors import AmbiguousPutError, StorageError, StorageFullError, StorageUnavailableError
from storage_engine.quantities import shown_duration

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_T = TypeVar("_T")


class StoragePatience:
    """How long the micro-batches of one ingest wait. For the thread that they run on."""

    def __init__(self, timeout_ms: int, wait: Callable[[float], bool], report: Callable[[str], None]) -> None:
        """
        Args:
            timeout_ms: the pauses of one piece of work together.
            wait: lets so many seconds pass, fewer if the process is asked to stop; whether it is.
            report: is given a line before each pause.
        """
        self._timeout = timeout_ms / 1000
        self._wait = wait
        self._report = report

    def attempt(self, name: str, work: Callable[[], _T]) -> _T:
        """Do the work, again where only the storage stood in its way.

        Args:
            name: what it is for, as lines begin with it.

        Raises:
            StorageError, PySparkException: what the work raised last.
        """
        left, pause = self._timeout, _FIRST_PAUSE
        while True:
            try:
                return work()
            except (StorageError, *SPARK_ERRORS) as error:
                reason = _passing(error)
                if reason is None or left <= 0:
                    raise
                pause = min(pause, left)
                self._report(
                    f"{name}: waiting for the storage, {reason}; again in {shown_duration(pause)}, giving up in"
                    f" {shown_duration(left)}"
                )
                if self._wait(pause):
                    raise
            left -= pause
            pause = min(2 * pause, _LONGEST_PAUSE)


def _passing(error: Exception) -> str | None:
    """What the storage said, if it may be over later; None if waiting does not help."""
    if isinstance(error, SPARK_ERRORS):
        return storage_failure(error)
    if isinstance(error, StorageFullError | StorageUnavailableError | AmbiguousPutError):
        return f"{error.place}: {error.problem}"
    return None
