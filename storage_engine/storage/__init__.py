"""The seam to the world: what Lakelog asks of a storage, as few verbs as it takes.

Keys are relative paths with `/` between their parts. Everything above this seam works with keys, byte ranges and these
verbs alone; nothing assumes a local path, mmap, hard links or appending. A storage that can also append and link says
so by being an AppendableStorage.

What each verb promises after a crash stands with it; the whole design leans on put_new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from typing_extensions import Buffer


@dataclass(frozen=True)
class StoredFile:
    """A file as a listing shows it: key, size in bytes, time of last change in milliseconds."""

    key: str
    size: int
    modified_ms: int


class NewFile(Protocol):
    """A file that is being written from front to back and exists for others only once it is closed."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Make the file durable and complete."""

    def abort(self) -> None:
        """Give up; nothing stays under the key."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """Files under one root. Safe to use from several threads and, by its verbs' promises, from several hosts.

    Every verb raises StorageError or a subclass of it, with the key in `place`.
    """

    @property
    def uri(self) -> str:
        """The root, in the form that Spark and other programs take."""

    def put_new(self, key: str, data: Buffer) -> None:
        """Create a whole file, or nothing: others see all of it or none, and it is durable on return.

        Raises:
            AlreadyExistsError: a file of this name was there first. It is untouched. After a lost reply it can be
                this very file: who must know reads it back.
            AmbiguousPutError: only reading back can tell.
        """

    def replace(self, key: str, data: Buffer) -> None:
        """Put a whole file in place of what was there, atomically and durably."""

    def new_file(self, key: str) -> NewFile:
        """Begin a file whose name nobody else uses."""

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from start on, fewer than length where the file ends earlier.

        Raises:
            NotFoundError: no such file.
        """

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        """Every file whose key begins with prefix (a folder, ending in `/`) and is greater than `after`, in order."""

    def delete(self, key: str) -> None:
        """Remove a file; that it is not there is no error."""

    def sync_names(self, folder: str) -> None:
        """Make durable which names this folder holds, whoever created them."""


class AppendableFile(Protocol):
    """A file that the process which created it may go on writing to."""

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        """Write these bytes, one behind another, from this position on."""

    def sync(self) -> None:
        """Return once everything written is durable, the file's name included."""

    def close(self) -> None: ...


@runtime_checkable
class AppendableStorage(Storage, Protocol):
    """A storage whose files can grow, and can have a second name."""

    def create(self, key: str) -> AppendableFile:
        """Create an empty file.

        Raises:
            AlreadyExistsError: the name is taken.
        """

    def link(self, key: str, name: str) -> None:
        """Give a file a second name.

        Raises:
            AlreadyExistsError: the name is taken.
        """
