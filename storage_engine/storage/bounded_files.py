"""Limits how many files of a plain Kafka log directory are open for writing at the same time.

A Kafka broker has three files of each partition open, so its administrator raises the limit on open files. But a
Lakelog command can open a directory with thousands of partitions while the limit still has its default value. So when
another file needs a descriptor, the least recently written file is synced and closed. The next write to this file
opens it again. The sync comes before the close, because the operating system reports a lost write only to a process
that has the file open. If the sync before a close fails, the next call on the file raises the error.

Only plain Kafka log directories use this module, because their files change in place, under a lock. A .log under a
Lakelog root is never opened for writing again. All functions are thread-safe. Only one thread at a time may use one
BoundedFile.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from typing_extensions import Buffer

from storage_engine.errors import StorageError
from storage_engine.storage import Directory, DirectoryFile
from storage_engine.storage.open_files import open_file_limit

_LOCK = threading.Lock()
_OPEN: dict[BoundedFile, None] = {}
"""All open files of this process, the least recently used first."""


def most_open() -> int:
    """The largest number of open files. A file that a thread is using is not closed, so more files can be open for a
    short time.
    """
    return max(1, open_file_limit() // 4)


class BoundedFile:
    """A DirectoryFile that may be closed between two calls.

    in_use: a lock. Each call holds this lock. A thread that closes this file in favor of another file also holds this
        lock.
    """

    def __init__(self, storage: Directory, key: str) -> None:
        """Open a file without changing it; create it if it is missing."""
        self._storage = storage
        self._key = key
        self.in_use = threading.Lock()
        self._file: DirectoryFile | None = None
        self._is_synced = False
        self._is_closed = False
        self._error: StorageError | None = None
        with self.in_use:
            self._opened()

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        with self.in_use:
            file = self._opened()
            self._is_synced = False
            file.write_at(position, data)

    def truncate(self, size: int) -> None:
        with self.in_use:
            file = self._opened()
            self._is_synced = False
            file.truncate(size)

    def sync(self) -> None:
        with self.in_use:
            if self._file is None and self._is_synced and self._error is None and not self._is_closed:
                return
            self._opened().sync()
            self._is_synced = True

    def close(self) -> None:
        """Close the file. Every later call raises ValueError, as with Python's own files."""
        with self.in_use:
            self._is_closed = True
            with _LOCK:
                _OPEN.pop(self, None)
            if self._file is not None:
                self._file.close()
                self._file = None

    def _opened(self) -> DirectoryFile:
        if self._is_closed:
            raise ValueError(f"{self._key} is closed")
        if self._error is not None:
            raise self._error
        with _LOCK:
            _OPEN.pop(self, None)
            victims = _longest_unused()
        for victim in victims:
            victim.close_for_others()
        if self._file is None:
            self._file = self._storage.open(self._key)
        with _LOCK:
            _OPEN[self] = None
        return self._file

    def close_for_others(self) -> None:
        """Close the file, because another file needs a descriptor. The caller holds in_use; this call releases
        in_use.
        """
        try:
            assert self._file is not None, "only an open file can make way"
            try:
                if not self._is_synced:
                    self._file.sync()
                    self._is_synced = True
            except StorageError as error:
                self._error = error
            finally:
                self._file.close()
                self._file = None
        finally:
            self.in_use.release()


def _longest_unused() -> list[BoundedFile]:
    """Choose the files that must be closed before one more is opened, and lock `in_use` of each."""
    too_many = len(_OPEN) + 1 - most_open()
    found: list[BoundedFile] = []
    for file in list(_OPEN) if too_many > 0 else ():
        if len(found) == too_many:
            break
        if file.in_use.acquire(blocking=False):
            del _OPEN[file]
            found.append(file)
    return found
