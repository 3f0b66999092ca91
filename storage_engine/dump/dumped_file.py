"""A file that somebody named, and the three things that it is called.

Its path is what is read, and what errors name. In what is printed, a file has the name that it was given; in what is
told at the end, its absolute one, as java.io.File would put it: neither follows links nor takes `..` away.

Files are read through the storage that the engine itself uses, so that one that is missing or may not be read ends in
the same typed errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from storage_engine.errors import LogError
from storage_engine.storage.posix import PosixStorage


@dataclass(frozen=True)
class DumpedFile:
    """A file, and how it is named in what is printed: as it was given, and absolutely in what is told at the end."""

    path: Path
    name: str
    absolute_name: str

    @classmethod
    def of(cls, argument: str) -> DumpedFile:
        """A file by the path that somebody typed, named as java.io.File would."""
        name = re.sub("/+", "/", argument)
        name = name.rstrip("/") or name
        return cls(Path(argument), name, name if name.startswith("/") else f"{Path.cwd()}/{name}")

    @property
    def base_offset(self) -> int:
        """That of its segment, which its name begins with.

        Raises:
            LogError: it does not.
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


def storage_of(path: Path) -> tuple[PosixStorage, str]:
    """Where a file lies and its key there; reading it names it in every error."""
    return PosixStorage(path.parent), path.name


def read_whole(path: Path) -> bytes:
    """All of a file.

    Raises:
        NotFoundError, StorageError: it cannot be read.
    """
    storage, key = storage_of(path)
    return storage.read(key)
