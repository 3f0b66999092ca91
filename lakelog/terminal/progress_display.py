"""Shows progress on standard error, so that standard output has only results.

    on a terminal   one live line, with a bar if the total is known; it disappears when the work is done
    elsewhere       a plain line every ten seconds; shorter work prints no line, so the logs of cron stay short

A terminal that cannot move its cursor (TERM=dumb) gets plain lines. NO_COLOR is respected. Other output to sys.stderr
appears above the live line, which shows the progress. The cursor stays visible, so the terminal is usable even after a
kill. Ctrl-C ends the work and removes the live line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from lakelog.terminal.log_lines import LogFormat, LogLines
from lakelog.terminal.text import new_console, shown_line
from storage_engine.clock import Clock, SystemClock
from storage_engine.progress import Meter

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINE_EVERY_MS = 10_000
_BAR_WIDTH = 20
_LOOKS_PER_SECOND = 4


class ProgressDisplay(Protocol):
    """Shows one piece of work after another."""

    def work(self, name: str, *, plain_lines: bool = True) -> AbstractContextManager[Meter]:
        """A meter for the work. Its progress is shown while the context lasts.

        Args:
            name: the name of the work, as it is shown.
            plain_lines: False for work that prints its own lines. Then the display prints no plain lines between them.
        """


class NoDisplay:
    """Shows nothing."""

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:  # noqa: ARG002
        yield Meter(name, SystemClock())


class LiveDisplay:
    """A live line on a terminal."""

    def __init__(self, terminal: TextIO, clock: Clock) -> None:
        self._terminal = terminal
        self._clock = clock

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:  # noqa: ARG002
        from rich.live import Live

        meter = Meter(name, self._clock)
        console = new_console(file=self._terminal, force_terminal=True)
        live = Live(
            console=console, get_renderable=lambda: _rendered(meter), transient=True, redirect_stdout=False,
            refresh_per_second=_LOOKS_PER_SECOND,
        )  # fmt: skip
        with live:
            console.show_cursor(True)
            yield meter


def _rendered(meter: Meter) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    share, line = meter.share, Text(meter.line)
    if share is None:
        return line
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=1, completed=share, width=_BAR_WIDTH), line)
    return row


class _LineMeter(Meter):
    """Writes a line of progress if the last line is ten seconds old and there is progress to report."""

    def __init__(self, work: str, stream: TextIO, clock: Clock, shown: Callable[[str], str]) -> None:
        super().__init__(work, clock)
        self._stream = stream
        self._shown = shown
        self._printed_ms = clock.now_ms()

    def advance(self, records: int = 0, size: int = 0) -> None:
        with self._lock:
            super().advance(records, size)
            now_ms = self._clock.now_ms()
            if now_ms - self._printed_ms >= _LINE_EVERY_MS and (self.records or self.size or self.share is not None):
                self._printed_ms = now_ms
                with suppress(OSError):  # the work continues even if standard error is closed
                    print(f"{self._shown(self.line)}\n", end="", file=self._stream, flush=True)


class PlainDisplay:
    """Plain lines to a file or a pipe."""

    def __init__(self, stream: TextIO, clock: Clock, shown: Callable[[str], str] = shown_line) -> None:
        """
        Args:
            shown: makes a printed line of a line of progress.
        """
        self._stream = stream
        self._clock = clock
        self._shown = shown

    @contextmanager
    def work(self, name: str, *, plain_lines: bool = True) -> Iterator[Meter]:
        yield _LineMeter(name, self._stream, self._clock, self._shown) if plain_lines else Meter(name, self._clock)


def display_on_stderr(lines: LogLines | None = None) -> ProgressDisplay:
    """The display that is suitable for standard error: a terminal, or a file or pipe.

    Args:
        lines: the lines of the job. If they are JSON, progress is also lines of JSON, even on a terminal.
    """
    if lines is not None and lines.form is LogFormat.JSON:
        return PlainDisplay(sys.stderr, SystemClock(), lines.progress)
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveDisplay(sys.stderr, SystemClock())
    return PlainDisplay(sys.stderr, SystemClock())
