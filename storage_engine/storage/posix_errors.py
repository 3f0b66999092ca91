"""Turns errors of the operating system into StorageErrors with a remedy, and repeats calls after temporary errors."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from storage_engine.errors import (
    AlreadyExistsError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)

_PAUSES = (0.05, 0.2, 0.8)
"""Seconds of pause before each further attempt."""
_PASSING = frozenset(
    {
        errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.ENOTCONN,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET,
        errno.ECONNABORTED, errno.ESHUTDOWN,
    }
)  # fmt: skip
"""Errors of network mounts that may disappear by themselves: the server or the network is unavailable. A file that
another host removed gives ESTALE once, and ENOENT when it is opened again."""

_MEANINGS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOENT: (NotFoundError, "Check the root and the name."),
    errno.ENOTEMPTY: (AlreadyExistsError, "Another process has filled this directory."),
    errno.EEXIST: (AlreadyExistsError, "Another process has created a file of this name."),
    errno.ENOSPC: (StorageFullError, "Free space on this file system."),
    errno.EDQUOT: (StorageFullError, "Raise the quota or free space."),
    errno.EMLINK: (
        StorageFullError,
        "This folder cannot contain more folders: spread the topics over several roots, or use a file system such as xfs.",
    ),
    errno.EFBIG: (StorageFullError, "Raise the limit on file sizes."),
    errno.EACCES: (StorageAccessError, "Give this user permission to read and write here."),
    errno.EPERM: (StorageAccessError, "Give this user permission to read and write here."),
    errno.EROFS: (StorageAccessError, "Mount the file system for writing."),
    errno.ENOTDIR: (StorageAccessError, "A part of this path is a file: move the file away, or choose another root."),
    errno.ENFILE: (StorageError, "All processes of this host have too many files open: raise fs.file-max."),
    errno.EXDEV: (StorageError, "The two paths are on different file systems: copy the files instead."),
    errno.EISDIR: (StorageAccessError, "The path is a directory, but must be a file."),
}

_T = TypeVar("_T")


class named:  # noqa: N801 - used like a function, with `with`
    """Turn an OSError of the block into a StorageError that names the place."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            problem = error.strerror or str(error)
            remedy = "The operating system refused the operation."
            raise storage_error(self._place, problem, error.errno, remedy) from error


def storage_error(place: str, problem: str, code: int | None, otherwise: str) -> StorageError:
    """Return the StorageError for an errno, with its remedy. `otherwise` is the remedy for an unknown errno."""
    if code in _PASSING:
        return StorageUnavailableError(place, problem, "Check the disk or the mount, then repeat the command.")
    if code == errno.EMFILE:
        return StorageError(place, problem, too_many_open_files())
    kind, remedy = _MEANINGS.get(code or 0, (StorageError, otherwise))
    return kind(place, problem, remedy)


def too_many_open_files() -> str:
    """Return the remedy for a process that may open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process may have {soft} files open, and its hard limit is {hard}. Raise both limits with `ulimit -n`"
        " (LimitNOFILE of systemd), and start the process again."
    )


def with_retries(work: Callable[[], _T]) -> _T:
    """Call `work`, which must be idempotent, and call it again after a pause if a temporary error is raised."""
    for pause in _PAUSES:
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return work()
