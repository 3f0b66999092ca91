"""Writes to standard output in large pieces. The process that reads this output, for example `head`, can stop at any
time.

Text for people never contains a control character, even if its source does (lakelog/terminal/text.py).
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lakelog.terminal.standard_streams import try_output_line, write_error_line
from lakelog.terminal.text import new_console, shown_line
from storage_engine.errors import NotFoundError, StorageAccessError

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH_OF_A_FILE = 160
"""Width in characters of a table that goes to a pipe or a file. Pipes and files have no width."""


class OutputClosed(Exception):  # noqa: N818  (not an error)
    """The reading process has closed standard output, because it needs no more output. A closed output is not an
    error."""


def write(data: bytes) -> None:
    """Write and flush, so that a closed pipe is noticed here and not at exit."""
    if sys.__stdout__ is None:  # the process was started with standard output closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        # At exit Python would write the buffered rest again, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosed from None
        raise


def write_line(text: str) -> None:
    """Write one line of text."""
    write(f"{shown_line(text)}\n".encode(errors="replace"))


def try_line(text: str) -> str | None:
    """Write one line of text about work that continues without its lines. Returns why the line could not be written."""
    return try_output_line(shown_line(text))


def write_table(*parts: RenderableType) -> None:
    """Write tables and text in the layout of rich, with the width of the terminal."""
    import io

    width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns
    console = new_console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty())
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    write(captured.get().encode(errors="replace"))


def write_error(what: object) -> None:
    """Write one line to standard error: an error, or a fact that a user should know. If nobody can read standard error,
    nothing happens."""
    write_error_line(shown_line(f"lakelog: {' '.join(str(what).split())}"))


def write_missing_markers(problems: Iterable[object]) -> None:
    """Write to standard error that a transaction was committed, but some of its markers could not be written."""
    for problem in problems:
        write_error(f"committed, but markers are missing; `lakelog transactions finish` writes them. {problem}")


def replaceable(option: str, given: Path) -> Path:
    """The absolute path of a file that a command will write as a whole.

    Raises:
        NotFoundError: the file's directory does not exist.
        StorageAccessError: the path is not a regular file. Writing replaces it, and would remove a device or a pipe.
        StorageError: the operating system refuses to look at the path, for example because a name is too long.
    """
    from storage_engine.storage.posix_errors import named

    place = f"{option} {given}"
    with named(place):
        file = given.expanduser().resolve()
        is_replaceable = file.is_file() or not file.exists()
        has_parent = file.parent.is_dir()
    if not has_parent:
        raise NotFoundError(place, f"found no directory {file.parent}", "Create the directory, or choose another file.")
    if not is_replaceable:
        raise StorageAccessError(place, "exists and is not a regular file", "Name a file.")
    return file
