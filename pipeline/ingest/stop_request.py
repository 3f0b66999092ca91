"""Treats SIGTERM and Ctrl-C as a request to finish current work and begin no other. A second ends the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Let time pass until the process is asked to stop, at most so much; whether it is."""
        return self._asked.wait(seconds)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while the block runs; a second one goes to whoever took them before.

        Python hands signals to the main thread; in others nothing is taken.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if not self.asked:
                self._asked.set()
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
