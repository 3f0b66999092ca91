"""Writes lines to standard error. The program that reads standard error can end at any time, and then the work
continues without these lines."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def write_error_line(line: str) -> None:
    """Write one line, without its newline, as one write. If standard error is closed or cannot be written, nothing
    happens."""
    if sys.stderr is None:  # the process was started with standard error closed, and print() would use standard output
        return
    try:
        print(f"{line}\n", end="", file=sys.stderr, flush=True)
    except BrokenPipeError:
        # The lines that follow are dropped. At exit Python would otherwise write the buffered rest again, and fail again.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (OSError, ValueError):  # the disk of a log file is full, or the stream object was closed
        return
