"""Takes POSIX record locks, as Java does, so that a broker and Lakelog never work in one directory together."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

from storage_engine.errors import StorageError
from storage_engine.storage.posix_files import open_regular

_EXCLUSIVE = -1
_locks: dict[Path, tuple[int, int]] = {}  # descriptor, holders; _EXCLUSIVE where there is one that shares with nobody
_locks_guard = threading.Lock()


def acquire(path: Path, *, exclusive: bool) -> None:
    """Take a POSIX record lock, the kind that Java takes.

    It belongs to the process, and closing any descriptor of the file gives it up: so all holders in this process share
    one descriptor, and nobody else here opens the file.

    Raises:
        StorageError: another program or this process has it locked.
        OSError: the file cannot be opened or, to be held exclusively, locked.
    """
    with _locks_guard:
        descriptor, holders = _locks.get(path, (-1, 0))
        if holders == _EXCLUSIVE or (holders and exclusive):
            raise StorageError(str(path), "is locked by this very process", "Close what has it open.")
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
                # A file system without locks: no other program finds one here either.
        _locks[path] = descriptor, _EXCLUSIVE if exclusive else holders + 1


def _locked(path: Path, *, exclusive: bool) -> StorageError:
    if exclusive:
        return StorageError(
            str(path), "is locked by another program: a Kafka broker or another process of ours works in this directory",
            "Wait until it is done, or stop it.",
        )  # fmt: skip
    return StorageError(
        str(path), "is locked by another program: a Kafka broker runs on this directory",
        "Stop it. A broker can run on what `lakelog topics export` writes.",
    )  # fmt: skip


def release(path: Path) -> None:
    """Give one hold on the lock back."""
    with _locks_guard:
        descriptor, holders = _locks.pop(path)
        if holders > 1:
            _locks[path] = descriptor, holders - 1
        else:
            with suppress(OSError):  # the lock goes with the descriptor, which close() gives up in any case
                os.close(descriptor)
