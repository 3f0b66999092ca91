"""Tells Linux to write bytes to the disk early, so that a later fsync takes less time.

Linux leaves written bytes in memory for seconds, so an fsync after a long write waits for all of these bytes. With this
hint, the disk already writes while the next bytes are computed. But only fsync makes bytes durable and reports errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

_SYNC_FILE_RANGE_WRITE = 2
"""From linux/fs.h: start to write the dirty pages of the range, and do not wait."""
_WORTH_BYTES = 512 * 1024
"""For fewer bytes the hint saves no time, because the fsync mostly waits for the disk's latency."""


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the function of the C library; None if the system is not Linux."""
    import ctypes  # most commands never write so many bytes

    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


def begin_write_back(descriptor: int, position: int, size: int) -> None:
    """Start to write these bytes of a file to the disk, if there are enough bytes and the operating system can start
    early.
    """
    if size >= _WORTH_BYTES and (call := _sync_file_range()) is not None:
        call(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)
