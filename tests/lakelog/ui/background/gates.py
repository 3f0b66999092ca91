"""Stops a thread at a chosen place until a test lets it go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_SECONDS = 30


class Gate:
    """A place where threads wait until it is opened."""

    def __init__(self) -> None:
        self._is_open, self._is_reached = threading.Event(), threading.Event()

    def open(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        """Let the next threads wait again."""
        self._is_open.clear()

    def wait_until_reached(self) -> None:
        assert self._is_reached.wait(PATIENCE_SECONDS)

    def passed(self) -> None:
        self._is_reached.set()
        assert self._is_open.wait(PATIENCE_SECONDS)

    def before(self, call: Callable[..., Any], start: str = "") -> Callable[..., Any]:
        """The call with a gate before it, if its first argument begins with a text."""

        def gated(*arguments: Any, **named: Any) -> Any:
            if not start or str(arguments[0]).startswith(start):
                self.passed()
            return call(*arguments, **named)

        return gated


@contextmanager
def closed_gate() -> Iterator[Gate]:
    """A gate that is opened at the end, so that no thread waits longer than the test."""
    gate = Gate()
    try:
        yield gate
    finally:
        gate.open()
