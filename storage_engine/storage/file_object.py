"""Shows the files of a storage as file objects of Python, for libraries that read or write such objects."""

from __future__ import annotations

import io

from typing_extensions import Buffer

from storage_engine.storage import NewFile, Readable


class FileObject(io.RawIOBase):
    """A NewFile that can be written, but not read. `close` does not complete the file: its owner does this."""

    def __init__(self, file: NewFile) -> None:
        super().__init__()
        self._file = file
        self.size = 0
        """The number of bytes written so far."""

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        length = memoryview(data).nbytes
        self._file.write(data)
        self.size += length
        return length

    def tell(self) -> int:
        return self.size


class ReadableObject(io.RawIOBase):
    """A file that exists, and does not change."""

    def __init__(self, storage: Readable, key: str, size: int) -> None:
        """
        Args:
            size: the size of the file in bytes.
        """
        super().__init__()
        self._storage = storage
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._position, 0)
        length = left if size is None or size < 0 else min(size, left)
        found = self._storage.read(self._key, self._position, length) if length else b""
        self._position += len(found)
        return found
