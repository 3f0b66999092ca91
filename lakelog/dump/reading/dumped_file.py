"""Defines a file that the user named: its path, and the two names under which the dump prints the file.

Lakelog reads the file by its path, and errors name this path. Printed lines contain the name that the user typed. The
findings at the end of the output contain the absolute path. As in java.io.File, links in this path are not resolved,
and `..` is kept.

Files are read through the engine's storage. So a missing file, or a file without read permission, raises the same typed
errors as elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from storage_engine.errors import LogError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_directory


@dataclass(frozen=True)
class DumpedFile:
    """A file and its names.

    path: the path that is read.
    name: the name in printed lines, as the user typed it.
    absolute_name: the name in findings.
    """

    path: Path
    name: str
    absolute_name: str

    @classmethod
    def of(cls, argument: str) -> DumpedFile:
        """The file of a path that the user typed, with names as java.io.File would make them."""
        name = re.sub("/+", "/", argument)
        name = name.rstrip("/") or name
        return cls(Path(argument), name, name if name.startswith("/") else f"{Path.cwd()}/{name}")

    @property
    def base_offset(self) -> int:
        """The base offset of the file's segment. The file's name begins with it.

        Raises:
            LogError: the name does not begin with a base offset.
        """
        digits = self.path.name.partition(".")[0]
        if not digits.isdecimal():
            raise LogError(
                str(self.path), f"expected a name that begins with a base offset, found {digits!r}",
                "Kafka names a segment's files after its base offset, in 20 digits.",
            )  # fmt: skip
        return int(digits)

    def sibling(self, suffix: str) -> Path:
        """The file of the same segment with this suffix."""
        return self.path.with_name(self.path.name[: self.path.name.rfind(".")] + suffix)


def storage_of(path: Path) -> tuple[Storage, str]:
    """A storage that holds a file, and the file's key there. Every error of reading names the file."""
    return open_directory(path.parent), path.name


def read_whole(path: Path) -> bytes:
    """The complete content of a file.

    Raises:
        NotFoundError, StorageError: the file cannot be read.
    """
    storage, key = storage_of(path)
    return storage.read(key)
