"""SIGTERM to a job: it ends with one line and status 143, and what it has begun elsewhere ends with it.

The first signal lets the registered endings begin, in a thread of their own, and raises Terminated in the main thread: so
a main thread that waits for Spark, or for threads that wait for Spark, does not wait for long. Further signals do nothing,
since `timeout` sends two. An ingest takes the signal for itself as long as its stream runs (pipeline/stop_request.py).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 143
"""What a shell reports for a process that SIGTERM ended."""

_ENDING_SECONDS = 30.0
"""So long at most what was begun elsewhere is waited for."""


class Terminated(BaseException):
    """SIGTERM has asked the process to end. No Exception: nothing that mends or reports failures may take it for one."""


class Termination:
    """What SIGTERM does to this process."""

    def __init__(self) -> None:
        self._asked = False
        self._is_held_back = False
        self._endings: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signal while the block runs. Python hands it to the main thread; in others nothing is taken.

        Raises:
            Terminated: also in the place of whatever the block raises after the signal: Spark is being stopped under it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._asked = False
        previous = signal.signal(signal.SIGTERM, self._ask)
        try:
            yield
        except BaseException as error:
            if self._asked and not isinstance(error, Terminated):
                raise Terminated from error
            raise
        finally:
            signal.signal(signal.SIGTERM, previous)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the block come to its end before a signal that arrives in its middle is heard."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
        if self._asked and self._thread is None:
            self._end()

    def when_asked(self, ending: Callable[[], None]) -> None:
        """Let this be done in another thread as soon as the signal arrives."""
        self._endings.append(ending)

    def await_endings(self) -> None:
        """Wait until what was registered is done."""
        if self._thread is not None:
            self._thread.join(_ENDING_SECONDS)
            self._thread = None

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            return
        self._asked = True
        if not self._is_held_back:
            self._end()

    def _end(self) -> None:
        self._thread = threading.Thread(target=self._run_endings, name="termination", daemon=True)
        self._thread.start()
        raise Terminated

    def _run_endings(self) -> None:
        for ending in self._endings:
            ending()


TERMINATION = Termination()
"""The one of this process: a process has one SIGTERM."""
