"""Writes files and makes them durable through one descriptor."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from storage_engine.errors import StorageAccessError, StorageError
from storage_engine.storage.posix_directories import sync_directory
from storage_engine.storage.posix_errors import named
from storage_engine.storage.write_back import begin_write_back

_MOST_BUFFERS = 1024  # IOV_MAX on Linux


def open_regular(path: Path | str, flags: int) -> int:
    """A descriptor of a file. To open a FIFO would wait for whoever writes to it, a device might do anything.

    Raises:
        StorageAccessError: something else than a file stands there.
        OSError: as the operating system says.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a FIFO that nobody reads, a socket
            raise
        raise _no_file(path) from None
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a directory has an error of its own
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: Path | str) -> StorageAccessError:
    remedy = "No program of ours made it: move it away, or put the file back."
    return StorageAccessError(str(path), "found a FIFO, a socket or a device where a file is expected", remedy)


class PosixFile:
    """An AppendableFile and DirectoryFile: the one descriptor through which a file is written."""

    def __init__(self, descriptor: int, path: Path, *, synced_soon: bool) -> None:
        """
        Args:
            synced_soon: what is written will be synced as soon as it is whole.
        """
        self._descriptor = descriptor
        self._path = path
        self._synced_soon = synced_soon
        self._name_is_durable = False

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        with named(str(self._path)):
            size = write_all(self._descriptor, position, data)
        if self._synced_soon:
            begin_write_back(self._descriptor, position, size)

    def truncate(self, size: int) -> None:
        with named(str(self._path)):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with named(str(self._path)):
            os.fsync(self._descriptor)
            if not self._name_is_durable:
                sync_directory(self._path.parent)
                self._name_is_durable = True

    def close(self) -> None:
        with suppress(StorageError):  # nothing is lost by it: what counts was synced
            self.close_unsynced()

    def close_unsynced(self) -> None:
        """Close the file; a mount that writes when a file is closed says here what went wrong.

        Raises:
            StorageError: what was written may be lost. The file is closed all the same: the descriptor is given up, and
                by the next call its number can be another file's.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with named(str(self._path)):
                os.close(descriptor)


class PosixNewFile:
    """A NewFile on top of a PosixFile."""

    def __init__(self, file: PosixFile, path: Path, durable: bool) -> None:
        self._file = file
        self._path = path
        self._durable = durable
        self._position = 0

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._file.write_at(self._position, [view])
        self._position += len(view)

    def close(self) -> None:
        try:
            if self._durable:
                self._file.sync()
                self._file.close()
            else:
                self._file.close_unsynced()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self._file.close()
        with named(str(self._path)):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


def write_all(descriptor: int, position: int, data: Sequence[Buffer]) -> int:
    """Write these bytes one behind another; returns how many there are."""
    views = [view for part in data if len(view := memoryview(part).cast("B"))]
    size = 0
    while views:
        written = os.pwritev(descriptor, views[:_MOST_BUFFERS], position + size)
        size += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views and written:
            views[0] = views[0][written:]
    return size
