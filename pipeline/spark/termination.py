"""Ends a job on SIGTERM or Ctrl-C, with one line and an exit status. It also stops the work that the job has started in
other processes.

The first signal runs the registered endings (such as the stop of Spark) in a separate thread, and raises Terminated in
the main thread. So if the main thread waits for Spark, directly or through other threads, it soon continues. Later
signals are ignored until the process has ended, because the command `timeout` sends two signals. While the stream of an
ingest runs, the ingest handles the signals itself (pipeline/stop_request.py).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ENDING_SECONDS = 30.0
"""Longest wait for the registered endings."""


class Terminated(BaseException):
    """A signal has asked the process to end. Terminated is not an Exception, so code that handles failures does not
    catch it.

    number: the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """The status that a shell reports for a process that the signal ended."""
        return 128 + self.number

    def __str__(self) -> str:
        return "interrupted" if self.number == signal.SIGINT else "ended by SIGTERM"


class Termination:
    """The handling of SIGTERM and Ctrl-C in this process."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._is_listening = False
        self._is_held_back = False
        self._endings: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the block runs. After the first signal, later ones are ignored until the process ends.

        Python delivers signals to the main thread only. In other threads this method does nothing.

        Raises:
            Terminated: a signal arrived. This error replaces errors that the block raises after the signal, because the
                stop of Spark causes them.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_listening = True
        previous = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        try:
            yield
        except BaseException as error:
            # For a moment PySpark handles Ctrl-C, which then raises KeyboardInterrupt (held_back).
            if isinstance(error, KeyboardInterrupt) or (self._asked and not isinstance(error, Terminated)):
                raise Terminated(self._asked or signal.SIGINT) from error
            raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler if self._asked is None else signal.SIG_IGN)
            self._asked, self._is_listening = None, False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Delay signals that arrive during the block until the block ends.

        The block is the start of Spark. There PySpark installs its own handler of Ctrl-C, which cancels jobs over a
        connection on which the main thread may be waiting for a reply. After the block, the handler from before the block
        is installed again.
        """
        before = signal.getsignal(signal.SIGINT)
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
            if self._is_listening and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, before)
        if self._asked is not None and self._thread is None:
            self._end(self._asked)

    def when_asked(self, ending: Callable[[], None]) -> None:
        """Register a function that is called in another thread as soon as a signal arrives."""
        self._endings.append(ending)

    def await_endings(self) -> None:
        """Wait until the registered functions have returned, up to a limit."""
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
"""The Termination of this process."""
