"""Takes POSIX record locks, as Java does, so that a Kafka broker and Lakelog never work in the same directory.

All functions are thread-safe. When a process ends, its locks end, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path

from storage_engine.errors import LockedError
from storage_engine.storage.posix_files import open_regular

_EXCLUSIVE = -1
_FLOCK = struct.Struct("hhqqi4x")
"""The struct flock of Linux: l_type, l_whence, l_start, l_len, l_pid."""
_locks: dict[Path, tuple[int, int]] = {}  # descriptor, number of holders (_EXCLUSIVE: one exclusive holder)
_locks_guard = threading.Lock()


def acquire(path: Path, *, exclusive: bool) -> None:
    """Lock a file, shared or exclusively. The file is created if it is missing.

    A record lock belongs to the process, and is lost when the process closes any descriptor of the file. So all holders
    in this process share one descriptor, and no other code in this process may open the file.

    Raises:
        LockedError: the file is locked by another program or by this process.
        OSError: the file cannot be opened, or the file system cannot lock it exclusively.
    """
    with _locks_guard:
        descriptor, holders = _locks.get(path, (-1, 0))
        if holders == _EXCLUSIVE or (holders and exclusive):
            raise LockedError(str(path), "is already locked by this process", "Close the directory first.")
        if not holders:
            mode, lock = (os.O_RDWR, fcntl.LOCK_EX) if exclusive else (os.O_RDONLY, fcntl.LOCK_SH)
            descriptor = open_regular(path, mode | os.O_CREAT)
            try:
                fcntl.lockf(descriptor, lock | fcntl.LOCK_NB)
            except OSError as error:
                if exclusive or error.errno in (errno.EAGAIN, errno.EACCES):
                    os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _locked(path, exclusive=exclusive) from error
                if exclusive:
                    raise
                # The file system has no locks, so other programs cannot check for a lock either.
        _locks[path] = descriptor, _EXCLUSIVE if exclusive else holders + 1


def is_locked(path: Path) -> bool:
    """Whether a file is locked exclusively, by another program or by this process. The lock is neither taken nor changed,
    and a missing file is not created. False if the file cannot be opened, or if the file system has no locks.
    """
    with _locks_guard:
        if path in _locks:
            return _locks[path][1] == _EXCLUSIVE
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            if os.uname().sysname == "Linux":
                answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
                return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # ends with the descriptor
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EACCES)
        finally:
            os.close(descriptor)
    return False


def _locked(path: Path, *, exclusive: bool) -> LockedError:
    if exclusive:
        return LockedError(
            str(path), "is locked by another program: a Kafka broker or another Lakelog process works in this directory",
            "Wait until that program ends, or stop it.",
        )  # fmt: skip
    return LockedError(
        str(path), "is locked by another program: a Kafka broker runs on this directory",
        "Stop the broker. A broker can run on a directory that `lakelog topics export` writes.",
    )  # fmt: skip


def release(path: Path) -> None:
    """End one hold on the lock. The lock ends with its last hold."""
    with _locks_guard:
        descriptor, holders = _locks.pop(path)
        if holders > 1:
            _locks[path] = descriptor, holders - 1
        else:
            with suppress(OSError):  # close() frees the descriptor and the lock even if it fails
                os.close(descriptor)
