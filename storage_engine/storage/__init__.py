"""Declares the protocol between Lakelog and a storage, with as few verbs as possible.

Keys are relative paths with `/` between their parts. Everything above this seam works with keys, byte ranges and these
verbs alone; nothing assumes a local path, mmap, hard links or appending. A storage that can also append and link is an
AppendableStorage. A storage that can show files under further names, as a directory that other programs read, is a
ViewableStorage.

Each verb's docstring says what it guarantees after a crash; the whole design depends on put_new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from typing_extensions import Buffer

TEMPORARY = ".tmp-"
"""How names begin that a put makes on its way, where the storage shows them: what a crash has left has such a name. No
listing shows one."""


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
        """Make the file complete, and durable if it was to be; where that fails nothing stays under the key."""

    def abort(self) -> None:
        """Give up; nothing stays under the key."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Protocol):
    """Files under one root. Safe to use from several threads and, by its verbs' promises, from several hosts.

    Every verb raises StorageError or a subclass of it, with the key in `place`; a StorageUnavailableError only after it
    has tried again what may be done twice.
    """

    @property
    def uri(self) -> str:
        """The root, in the form that Spark and other programs take."""

    def put_new(self, key: str, data: Buffer) -> None:
        """Create a whole file, or nothing: others see all of it or none, and it is durable on return.

        Raises:
            AlreadyExistsError: a file of this name was there first. It is untouched. After a lost reply it can be
                this very file: who must know reads it back.
            AmbiguousPutError: only reading back can tell, and sync_names makes durable what is found.
        """

    def replace(self, key: str, data: Buffer) -> None:
        """Put a whole file in place of what was there, atomically and durably."""

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        """Begin a file whose name nobody else uses.

        Args:
            durable: else a power cut may take it, or any part of it, for as long as it lives: for bytes that are of no use
                behind one, and that their reader checks.
        """

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

    def sync_file(self, key: str) -> None:
        """Make durable a file that another process has written and closed, its name included.

        Whoever has failed here must not go on with this file and sync it again: what the first sync could not write may
        be forgotten by the second one.

        Raises:
            NotFoundError: no such file.
        """


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

    def write_derivable(self, key: str, position: int, data: Buffer) -> None:
        """Write bytes into a file that this process created and has closed, and close it again: a power cut may take them.

        For index files alone, which can be derived and are checked before they are believed, so that none of them holds a
        descriptor. A .log is never opened for writing again.

        Raises:
            NotFoundError: no such file.
        """

    def link(self, key: str, name: str) -> None:
        """Give a file a second name.

        Raises:
            AlreadyExistsError: the name is taken.
        """


@dataclass(frozen=True)
class FolderEntry:
    """What stands in a folder under a name, be it a file, a folder or something else.

    file_id: two names with the same one are the same file. modified_ns: nanoseconds since the epoch.
    """

    name: str
    is_folder: bool
    size: int
    modified_ns: int
    file_id: tuple[int, int]

    @property
    def modified_ms(self) -> int:
        """Milliseconds since the epoch; 0 for a time before it, which a state cannot hold."""
        return max(0, self.modified_ns // 1_000_000)


@runtime_checkable
class ViewableStorage(AppendableStorage, Protocol):
    """A storage in which a directory of other programs' making can be shown, derived from other files.

    Each show verb puts a whole file in the place of what had that name, atomically; none promises that it survives a
    power cut. What a crash in the middle leaves is an entry of that folder under a name that nobody gave.
    """

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        """Everything that stands in a folder, what no listing shows too; nothing where there is no folder.

        Args:
            folder: empty for the root itself.
        """

    def show(self, key: str, name: str, modified_ns: int) -> None:
        """Let `name` be a second name of a file. The time becomes the file's where its owner asks for it."""

    def show_copy(self, key: str, size: int, name: str, modified_ns: int) -> None:
        """Let `name` be a copy of the first `size` bytes of a file."""

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        """Let `name` be a file with these bytes."""

    def show_folders(self, files: Mapping[str, Buffer], folders: Sequence[str]) -> Sequence[str]:
        """Let each of these folders, beside one another, hold files with these names and bytes, all of them or none.

        Files of one name may be one file in all folders. Returns the folders that are there already, with something in them.
        """

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it; that it is not there is no error."""

    def hold_shared(self, key: str) -> AbstractContextManager[None]:
        """Keep other programs from locking this file exclusively, as well as the storage can; made where missing.

        The lock ends with the process at the latest. Several may hold it, in one process too.

        Raises:
            StorageError: another program has locked it exclusively.
        """


class DirectoryFile(AppendableFile, Protocol):
    """A file that can be written to anywhere, and cut off."""

    def truncate(self, size: int) -> None:
        """Cut the file off at this size, or lengthen it with zeros, which take no space."""


class DirectoryStorage(Storage, Protocol):
    """Files that one process changes in place while it holds a lock: a plain Kafka log directory.

    What becomes of a name (created, renamed, deleted) survives a power cut once sync_names was called for its folder,
    what becomes of a file's bytes once the file was synced.
    """

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        """As in ViewableStorage; the root itself under the empty name."""

    def open(self, key: str) -> DirectoryFile:
        """A file for writing, as it is; made empty where it is missing."""

    def rename(self, key: str, name: str) -> None:
        """Give a file or folder another name; a file of that name is replaced by it, atomically.

        Raises:
            NotFoundError: no such file or folder.
        """

    def make_folder(self, folder: str) -> None:
        """Create a folder, durably; that it is there already is no error."""

    def remove_folder(self, folder: str) -> None:
        """As in ViewableStorage."""

    def set_modified(self, key: str, modified_ns: int) -> None:
        """Set a file's time of last change."""

    def hold_exclusive(self, key: str) -> AbstractContextManager[None]:
        """Lock this file, made where missing, against all other programs and all other holders in this one.

        Raises:
            StorageError: it is locked.
        """
