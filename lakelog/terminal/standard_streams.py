"""Writes lines to standard error and standard output, for work that is more important than its lines. The program that
reads a stream can end at any time, and the disk of a file can be full. Then the work continues without these lines."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO


def write_error_line(line: str) -> None:
    """Write one line, without its newline, to standard error, as one write. If standard error is closed or cannot be
    written, nothing happens."""
    if sys.stderr is not None:  # None: the process was started with standard error closed
        try:
            print(f"{line}\n", end="", file=sys.stderr, flush=True)
        except (OSError, ValueError) as error:
            _drop(sys.stderr, error)


def try_output_line(line: str) -> str | None:
    """Write one line, without its newline, to standard output, as one write.

    Returns:
        None. If standard output is closed or cannot be written, the reason.
    """
    if sys.stdout is None:  # the process was started with standard output closed
        return os.strerror(errno.EBADF)
    try:
        sys.stdout.buffer.write(f"{line}\n".encode(errors="replace"))
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        _drop(sys.stdout, error)
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return None


def _drop(stream: TextIO, error: Exception) -> None:
    """Drop what is left of a line in the buffer of a stream. Otherwise the next line or the end of Python would write it
    again. If nobody reads the stream any more, all later lines are dropped, too.
    """
    with suppress(OSError, ValueError):  # the stream object was closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        before = os.dup(stream.fileno())
        try:
            os.dup2(nowhere, stream.fileno())
            stream.flush()
            if not isinstance(error, BrokenPipeError):
                os.dup2(before, stream.fileno())
        finally:
            os.close(before)
            os.close(nowhere)
