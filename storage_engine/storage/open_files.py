"""Divides the number of files that this process may have open among the components that want to keep many open.

The operating system counts descriptors for each process: a soft limit, commonly 1,024, which the process itself may
raise up to the hard limit (`ulimit -n`, LimitNOFILE of systemd). Between calls Lakelog keeps only the newest segments
open, to which it appends. These get half of the limit. The other half is for files that are read, directories that are
synced, sockets, and the rest of the program.

A component that keeps files open asks for a number, and gets the number that it may keep open: the others share what
one component does not need. Any thread may call anything.
"""

from __future__ import annotations

import resource
import threading
from functools import cache
from weakref import WeakKeyDictionary

_WORTH_RAISING_TO = 65_536
"""More is never needed, and some programs that inherit the limit count up to it when they start."""


@cache
def open_file_limit() -> int:
    """How many files this process may have open. The soft limit is raised first, as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WORTH_RAISING_TO if hard == resource.RLIM_INFINITY else min(hard, _WORTH_RAISING_TO)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):  # a system may allow less than its hard limit says
            pass
    return _WORTH_RAISING_TO if soft == resource.RLIM_INFINITY else min(soft, _WORTH_RAISING_TO)


def threads_that_write(most: int) -> int:
    """How many threads may each have a few files open at the same time, `most` at most."""
    return max(1, min(most, open_file_limit() // 16))


class _Pool:
    """What there is to share: who wants how many. Whoever is gone without having said so wants nothing more."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted: WeakKeyDictionary[OpenFileShare, int] = WeakKeyDictionary()

    @property
    def opened(self) -> int:
        """How many files are kept open."""
        return sum(share.taken for share in self.wanted)

    def shares(self) -> dict[OpenFileShare, int]:
        """Each gets what it wants, the most modest first, and the others share what is left."""
        left = open_file_limit() // 2
        shares: dict[OpenFileShare, int] = {}
        for number, (share, wanted) in enumerate(sorted(self.wanted.items(), key=lambda each: each[1])):
            shares[share] = min(wanted, left // (len(self.wanted) - number))
            left -= shares[share]
        return shares


_POOL = _Pool()


class OpenFileShare:
    """The share of one that keeps files open. Each file that it keeps is taken, and given back when it is closed."""

    def __init__(self) -> None:
        self.taken = 0
        with _POOL.lock:
            _POOL.wanted[self] = 0

    def want(self, files: int) -> int:
        """Ask for so many in all; returns how many there may be."""
        with _POOL.lock:
            _POOL.wanted[self] = files
            return _POOL.shares()[self]

    def take(self) -> bool:
        """Keep one more; False where that would be too many, here or in the whole process."""
        with _POOL.lock:
            if _POOL.opened >= open_file_limit() // 2 or self.taken >= _POOL.shares()[self]:
                return False
            self.taken += 1
            return True

    def may_keep(self) -> bool:
        """Whether one that was taken may stay; False gives it back, as the others want more than before."""
        with _POOL.lock:
            if self.taken <= _POOL.shares()[self]:
                return True
            self.taken -= 1
            return False

    def give_back(self) -> None:
        """One that was kept is closed."""
        with _POOL.lock:
            self.taken -= 1

    def close(self) -> None:
        """Want nothing more. What was taken is to be given back before."""
        assert self.taken == 0, "a file that was kept is not closed"
        with _POOL.lock:
            _POOL.wanted.pop(self, None)
