"""Bounds how many files of a plain Kafka log directory are open at a time, of those that are written to again and
again.

A broker keeps three files of each partition open, and is started with a limit to match; a command that opens a
directory with thousands of partitions is not. Here the file that was not written to for the longest time is synced and
closed when another file needs its place, and opened again by its next write. It is synced because the system reports a
lost write only to a process that has the file open. An error of that sync is raised at the file's next call.

Only for directories whose files change in place under a lock. A .log under a root is never opened for writing again.
Any thread may call anything; one file belongs to one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from typing_extensions import Buffer

from storage_engine.errors import StorageError
from storage_engine.storage import DirectoryFile, DirectoryStorage
from storage_engine.storage.open_files import open_file_limit

_LOCK = threading.Lock()
_OPEN: dict[BoundedFile, None] = {}
"""All that are open in this process, the one used longest ago first."""


def most_open() -> int:
    """How many are open at a time, but for those that are being used at that moment."""
    return max(1, open_file_limit() // 4)


class BoundedFile:
    """A DirectoryFile that may be closed between two calls.

    in_use: held during each call, and by whoever makes the file give way to another.
    """

    def __init__(self, storage: DirectoryStorage, key: str) -> None:
        """Open a file as it is; it is made where it is missing."""
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
        """Close it for good: what is called afterwards is a ValueError, as with Python's own files."""
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
            victims = _victims()
        for victim in victims:
            victim.make_way()
        if self._file is None:
            self._file = self._storage.open(self._key)
        with _LOCK:
            _OPEN[self] = None
        return self._file

    def make_way(self) -> None:
        """Close the file, with in_use held, which is released."""
        try:
            assert self._file is not None, "it was open"
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


def _victims() -> list[BoundedFile]:
    """Those that make way for one more; each is in use by the caller then."""
    too_many = len(_OPEN) + 1 - most_open()
    found: list[BoundedFile] = []
    for file in list(_OPEN) if too_many > 0 else ():
        if len(found) == too_many:
            break
        if file.in_use.acquire(blocking=False):
            del _OPEN[file]
            found.append(file)
    return found
