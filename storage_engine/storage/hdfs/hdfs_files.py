"""Writes files to HDFS under temporary names, and renames them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, StorageError
from storage_engine.storage import NewFile, temporary_name
from storage_engine.storage.hdfs.hdfs_calls import HdfsCalls

if TYPE_CHECKING:
    from hdfs_native import Client, FileWriter

_PIECE_BYTES = 4 * 1024**2
_BLOCK_BYTES = 128 * 1024**2
"""The size of a block of a new file. It is fixed, because a writer must know where a block ends."""


class TemporaryFile:
    """A new file with a temporary name. It gets its final name when it is complete.

    key, path: of the final name.
    """

    def __init__(self, calls: HdfsCalls, key: str, path: str) -> None:
        self._calls = calls
        self._key = key
        self._path = path
        self._name = f"{path.rpartition('/')[0]}/{temporary_name()}"
        self._buffer = bytearray()
        self.size = 0
        try:
            self._writer = calls.call(key, self._created)
        except StorageError:
            self.remove()  # the file may have been created
            raise

    def _created(self, client: Client) -> FileWriter:
        from hdfs_native import WriteOptions

        return client.create(self._name, WriteOptions(_BLOCK_BYTES, self._calls.replication))

    def write(self, data: Buffer) -> None:
        self._buffer += memoryview(data).cast("B")
        if len(self._buffer) >= _PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        content, self._buffer = bytes(self._buffer), bytearray()
        begin = 0
        while begin < len(content):
            end = begin + min(_PIECE_BYTES, _BLOCK_BYTES - self.size % _BLOCK_BYTES)
            self._send(content[begin:end])
            begin = end

    def _send(self, piece: bytes) -> None:
        self._calls.call(self._key, lambda _: self._writer.write(piece))
        self.size += len(piece)
        if self.size % _BLOCK_BYTES == 0:
            self._calls.call(self._key, lambda _: self._writer.hsync())

    def complete(self) -> None:
        """Sync and close the file."""
        self._flush()
        if self.size % _BLOCK_BYTES:
            self._calls.call(self._key, lambda _: self._writer.hsync())
        self._calls.call(self._key, lambda _: self._writer.close())

    def name_new(self, is_ours: Callable[[], bool]) -> None:
        """Give the file its final name, if the name is free.

        Args:
            is_ours: whether the file that has the name is this file.

        Raises:
            AmbiguousPutError: this file may have got the name.
            StorageError: this file did not get the name, and was deleted.
        """
        try:
            self._calls.repeated(lambda: self._rename(overwrite=False))
            return
        except StorageError as error:
            outcome = error
        problem = outcome.problem
        try:
            if self._calls.repeated(lambda: self._calls.call(self._key, lambda client: client.delete(self._name))):
                raise outcome
            if is_ours():
                return
        except StorageError as error:
            if error is outcome:
                raise
            problem = error.problem
        if isinstance(outcome, AlreadyExistsError):
            raise outcome
        remedy = "Check whether the file exists, and what it contains."
        raise AmbiguousPutError(outcome.place, f"the reply of a rename was lost: {problem}", remedy) from outcome

    def name(self) -> None:
        """Give the file its final name. If another file has the name, this file replaces it.

        Raises:
            NotFoundError: the temporary name is gone. hdfs-native has repeated the rename after a lost reply.
        """
        try:
            self._rename(overwrite=True)
        except StorageError:
            self.remove()
            raise

    def _rename(self, *, overwrite: bool) -> None:
        self._calls.call(self._key, lambda client: client.rename(self._name, self._path, overwrite))

    def remove(self) -> None:
        """Delete the file, if it still has its temporary name. If the NameNode does not answer soon, do not wait."""
        self._calls.remove_quietly(self._key, self._name)


class HdfsNewFile(NewFile):
    """A NewFile that has a temporary name until it is closed."""

    def __init__(self, calls: HdfsCalls, key: str, path: str) -> None:
        self._calls = calls
        self._key = key
        self._path = path
        self._file = calls.repeated(lambda: TemporaryFile(calls, key, path))

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        try:
            self._file.complete()
            self._file.name_new(lambda: self._calls.file_info(self._key, self._path).length == self._file.size)
        except AmbiguousPutError:
            self._calls.remove_quietly(self._key, self._path)  # no other process uses this name
            raise
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        self._file.remove()
