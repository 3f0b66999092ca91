"""Writes files, each through one descriptor, and makes them durable."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from typing_extensions import Buffer

from storage_engine.errors import StorageAccessError, StorageError
from storage_engine.storage import NewFile
from storage_engine.storage.posix_directories import sync_directory
from storage_engine.storage.posix_errors import named
from storage_engine.storage.write_back import begin_write_back

_MOST_BUFFERS = 1024  # IOV_MAX on Linux


def open_regular(path: Path | str, flags: int) -> int:
    """Open a regular file or a directory, and return the descriptor. Everything else is refused: opening a FIFO can
    block, and opening a device can have effects.

    If another host has just replaced the file, an NFS client may open the old file, and then fstat raises ESTALE. The
    descriptor is closed then. As long as the old file is open, the NFS client opens it again instead of the new file.

    Raises:
        StorageAccessError: the path is a FIFO, a socket or a device.
        OSError: the operating system refuses to open the path.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: a FIFO without a reader, or a socket
            raise
        raise _no_file(path) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading or writing a directory raises EISDIR
            raise _no_file(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _no_file(path: Path | str) -> StorageAccessError:
    remedy = "Lakelog creates only files here. Move this object away, or restore the file that had this name."
    return StorageAccessError(str(path), "expected a file, found a FIFO, a socket or a device", remedy)


class PosixFile:
    """An AppendableFile and DirectoryFile: a file with the one descriptor that writes it."""

    def __init__(self, descriptor: int, path: Path, *, synced_soon: bool) -> None:
        """
        Args:
            synced_soon: the caller will sync the file after its last write, so the disk may start to write early.
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
        with suppress(StorageError):  # bytes that must be durable were synced before
            self.close_unsynced()

    def close_unsynced(self) -> None:
        """Close a file that was not synced. A network mount may write the bytes only during this call, which then
        reports the errors of the mount.

        Raises:
            StorageError: the written bytes may be lost. The file is closed in this case, too. The descriptor is not
                used again, because its number may already belong to another file.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with named(str(self._path)):
                os.close(descriptor)


class PosixNewFile(NewFile):
    """A NewFile that writes to a PosixFile."""

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


def write_all(descriptor: int, position: int, data: Sequence[Buffer]) -> int:
    """Write the buffers one after another, beginning at `position`. Returns the number of written bytes."""
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
