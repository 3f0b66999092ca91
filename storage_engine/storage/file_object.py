"""Shows a new file of a storage as a file object of Python, for libraries that write to such an object."""

from __future__ import annotations

import io

from typing_extensions import Buffer

from storage_engine.storage import NewFile


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
