"""Reads lines from standard input, some megabytes at a time, so that memory does not limit the number of lines."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
from collections.abc import Iterator

from lakelog.cli.records.json_lines import place_of
from storage_engine.errors import InvalidRecordError

_CHUNK_BYTES = 8 * 1024**2
"""How many bytes of the input are read at a time. The last line of each piece is read to its end."""


def line_chunks(longest: int) -> Iterator[list[bytes]]:
    """The lines of standard input, some megabytes at a time.

    Raises:
        InvalidRecordError: a line has more than `longest` bytes.
        OSError: there is no standard input.
    """
    if sys.__stdin__ is None:  # the process was started with standard input closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    lines: list[bytes] = []
    size = 0
    for number in itertools.count(1):
        line = sys.stdin.buffer.readline(longest + 1)
        if len(line) > longest:
            raise InvalidRecordError(
                place_of(number), f"is longer than {longest} bytes, the longest line for a record of this topic",
                "Nothing was appended. Put each record on its own line, or raise max.message.bytes.",
            )  # fmt: skip
        if line:
            lines.append(line)
            size += len(line)
        if lines and (not line or size >= _CHUNK_BYTES):
            yield lines
            lines, size = [], 0
        if not line:
            return


def input_bytes() -> int | None:
    """How many bytes of standard input are not read yet, if standard input is a regular file; else None."""
    if sys.__stdin__ is None:
        return None
    try:
        status = os.fstat(sys.stdin.fileno())
    except OSError:  # standard input has no file descriptor
        return None
    return max(0, status.st_size - sys.stdin.buffer.tell()) if stat.S_ISREG(status.st_mode) else None
