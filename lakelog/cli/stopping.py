"""Lets a signal end a command that otherwise runs forever."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST_WAIT_SECONDS = 365 * 86_400
"""The longest interval of a command. The system cannot wait for a time such as 1e10 seconds."""
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Iterator[Callable[[float | None], bool]]:
    """A function that waits for a number of seconds (None: without a limit), and returns whether a signal has arrived.
    A signal ends the wait.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heeded = [each for each in _STOPPING if signal.getsignal(each) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {each: signal.signal(each, lambda *_: None) for each in heeded}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield lambda seconds: bool(select.select([reading], [], [], seconds)[0])
    finally:
        signal.set_wakeup_fd(previous)
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(reading)
        os.close(writing)
