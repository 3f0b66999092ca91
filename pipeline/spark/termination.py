"""Ends a job on SIGTERM or Ctrl-C: with one line, its exit status, and the end of the work that it began elsewhere.

The first signal starts the registered endings, in a thread of their own, and raises Terminated in the main thread: so a
main thread that waits for Spark, or for threads that wait for Spark, does not wait for long. Further signals do nothing
until the process has ended, since `timeout` sends two. While its stream runs, an ingest handles the signals itself
(pipeline/ingest/stop_request.py).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ENDING_SECONDS = 30.0
"""So long at most what was begun elsewhere is waited for."""


class Terminated(BaseException):
    """A signal has asked the process to end. No Exception: nothing that mends or reports failures may take it for one.

    number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """What a shell reports for a process that the signal ended."""
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else "ended by SIGTERM"


class Termination:
    """What SIGTERM and Ctrl-C do to this process."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._is_listening = False
        self._is_held_back = False
        self._endings: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while the block runs; after one they are ignored for good, for the process is ending.

        Python hands signals to the main thread; in others nothing is taken.

        Raises:
            Terminated: also in the place of whatever the block raises after the signal: Spark is being stopped under it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_listening = True
        previous = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        try:
            yield
        except BaseException as error:
            # PySpark has Ctrl-C for a moment, in which it is a KeyboardInterrupt (held_back).
            if isinstance(error, KeyboardInterrupt) or (self._asked and not isinstance(error, Terminated)):
                raise Terminated(self._asked or signal.SIGINT) from error
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler if self._asked is None else signal.SIG_IGN)
            self._asked, self._is_listening = None, False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the block come to its end before a signal that arrives in its middle is heard.

        The block is the start of Spark. There PySpark takes Ctrl-C, to cancel jobs by the connection on which the main
        thread may be waiting for a reply: where this listens, it takes the signal back.
        """
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
            if self._is_listening and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, self._ask)
        if self._asked is not None and self._thread is None:
            self._end(self._asked)

    def when_asked(self, ending: Callable[[], None]) -> None:
        """Let this be done in another thread as soon as a signal arrives."""
        self._endings.append(ending)

    def await_endings(self) -> None:
        """Wait until what was registered is done."""
        if self._thread is not None:
            self._thread.join(_ENDING_SECONDS)
            self._thread = None

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self._asked is not None:
            return
        self._asked = number
        if not self._is_held_back:
            self._end(number)

    def _end(self, number: int) -> None:
        self._thread = threading.Thread(target=self._run_endings, name="termination", daemon=True)
        self._thread.start()
        raise Terminated(number)

    def _run_endings(self) -> None:
        for ending in self._endings:
            ending()


TERMINATION = Termination()
"""The one of this process."""
