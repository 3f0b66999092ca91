"""Starts writing bytes to the disk that an fsync will need there soon.

Linux leaves written bytes in memory for seconds, so that an fsync behind a long write waits for all of them. If the
writing starts early, the disk works while the next bytes are made, and fsync has little left to wait for. This
guarantees nothing: fsync reports any error on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

_SYNC_FILE_RANGE_WRITE = 2
"""From linux/fs.h: begin to write what is dirty in the range, wait for nothing."""
_WORTH_BYTES = 512 * 1024
"""Of less fsync takes as long as the disk does to turn to it."""


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The C library's call, which only Linux has."""
    import ctypes  # most commands write nothing that is so long

    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


def begin_write_back(descriptor: int, position: int, size: int) -> None:
    """Let the disk begin with these bytes of a file, where the system can do that."""
    if size >= _WORTH_BYTES and (call := _sync_file_range()) is not None:
        call(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)
