"""Divides this process's limit of open files among its components.

The operating system limits the open files of each process. The soft limit is commonly 1,024, and the process may raise
it to the hard limit (`ulimit -n`, LimitNOFILE of systemd). Between two calls, only the active segments, to which
Lakelog appends, are open. Active segments may use half of the limit. The other half is for files that are read,
directories that are synced, sockets, and the rest of the program.

A component makes an OpenFileShare, asks for a number of files, and gets the number that is allowed. Components that
need few files leave the rest of their share to the other components. All functions are thread-safe.
"""

from __future__ import annotations

import resource
import threading
from functools import cache
from weakref import WeakKeyDictionary

_WORTH_RAISING_TO = 65_536
"""Lakelog never needs more open files. With a higher limit, some child programs start slowly, because they close every
possible descriptor.
"""


@cache
def open_file_limit() -> int:
    """The number of files that this process is allowed to have open. First this function raises the soft limit, if the
    system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WORTH_RAISING_TO if hard == resource.RLIM_INFINITY else min(hard, _WORTH_RAISING_TO)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):  # some systems allow less than the hard limit
            pass
    return _WORTH_RAISING_TO if soft == resource.RLIM_INFINITY else min(soft, _WORTH_RAISING_TO)


def threads_that_write(most: int) -> int:
    """How many threads (at most `most`) may write at the same time, if each has a few files open."""
    return max(1, min(most, open_file_limit() // 16))


class _Pool:
    """How many files each OpenFileShare wants. A share that is garbage-collected without `close` no longer counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted: WeakKeyDictionary[OpenFileShare, int] = WeakKeyDictionary()

    @property
    def opened(self) -> int:
        """How many files the components have open."""
        return sum(share.taken for share in self.wanted)

    def shares(self) -> dict[OpenFileShare, int]:
        """How many files each share may have open. Small requests are granted in full; large requests share the rest
        evenly.
        """
        left = open_file_limit() // 2
        shares: dict[OpenFileShare, int] = {}
        for number, (share, wanted) in enumerate(sorted(self.wanted.items(), key=lambda each: each[1])):
            shares[share] = min(wanted, left // (len(self.wanted) - number))
            left -= shares[share]
        return shares


_POOL = _Pool()


class OpenFileShare:
    """The open files of one component. For each file, the component calls `take` once, and `give_back` after it closes
    the file.
    """

    def __init__(self) -> None:
        self.taken = 0
        with _POOL.lock:
            _POOL.wanted[self] = 0

    def want(self, files: int) -> int:
        """Ask for a number of open files in total; returns the number that is allowed."""
        with _POOL.lock:
            _POOL.wanted[self] = files
            return _POOL.shares()[self]

    def take(self) -> bool:
        """Count one more open file. Returns False, and counts nothing, if this share or the process would have too many
        open files.
        """
        with _POOL.lock:
            if _POOL.opened >= open_file_limit() // 2 or self.taken >= _POOL.shares()[self]:
                return False
            self.taken += 1
            return True

    def may_keep(self) -> bool:
        """Whether an open file may stay open. If not, the file is also given back, because the share has become too
        small for it.
        """
        with _POOL.lock:
            if self.taken <= _POOL.shares()[self]:
                return True
            self.taken -= 1
            return False

    def give_back(self) -> None:
        """Report that an open file was closed."""
        with _POOL.lock:
            self.taken -= 1

    def close(self) -> None:
        """End the share. All of its files must be given back before this call."""
        assert self.taken == 0, "every taken file is given back before the share is closed"
        with _POOL.lock:
            _POOL.wanted.pop(self, None)
