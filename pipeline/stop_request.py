"""Treats SIGTERM and Ctrl-C as a request to finish the current work and begin no new work. A second signal ends the job."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_LOOK_SECONDS = 0.2


class StopRequest:
    """Records whether the process was asked to stop."""

    def __init__(self) -> None:
        self.asked = False  # no threading.Event: a handler may interrupt its wait, and would then wait for its lock

    def wait(self, seconds: float) -> bool:
        """Wait until the process is asked to stop, for at most this number of seconds. Returns whether it was asked."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return self.asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while the block runs. A second signal is handled by the previous handler.

        Python delivers signals to the main thread only. In other threads this method does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if not self.asked:
                self.asked = True
                return
            before = previous[number]
            if callable(before):
                before(number, frame)
            raise KeyboardInterrupt

        previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {
            number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
