"""Declares the protocol Storage, by which Lakelog uses every kind of storage. The protocol has as few verbs (methods)
as possible.

Keys are relative paths with `/` between their parts. Every storage has the verbs of Storage: it puts, reads, lists and
deletes whole files. A capability is something that only some storages can do. Each capability is an attribute of the
storage. The attribute is None if the storage lacks the capability:

    root        the path of a local directory         for questions to the operating system: free space, owners
    growing     files that can grow                   appends; without this capability, each append writes new files
    links       second names of files                 `topics import --move`
    folders     everything that a folder contains     finding names that no listing shows; removing empty folders
    view        files under Kafka's names             log/
    directory   files that change in place            plain Kafka log directories

Code above this package asks for a capability, never for the kind of a storage. If an operation is impossible without a
capability, `needed` raises an error. The docstring of each verb says what the verb guarantees after a crash. All
commits of Lakelog depend on the guarantees of put_new.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from typing_extensions import Buffer

from storage_engine.errors import ConfigError, NotFoundError, StorageAccessError, UnsupportedError

TEMPORARY = ".tmp-"
"""The prefix of temporary names. A put may first write a file under such a name, and a crash may leave this file. No
listing shows the file.
"""
TEMPORARY_NAME = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}")
"""Matches a whole temporary name."""


def temporary_name() -> str:
    """A new temporary name."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


@dataclass(frozen=True)
class StoredFile:
    """A file in a listing.

    size: in bytes.
    modified_ms: time of the last change.
    """

    key: str
    size: int
    modified_ms: int


class NewFile(Protocol):
    """A file that is written from front to back. Other processes see it only after it is closed.

    At the end of a `with` block the file is closed, or aborted after an error. Implementations inherit this.
    """

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Complete the file. Also make the file durable, if new_file was called with durable=True. After an error, no
        file has the key.
        """

    def abort(self) -> None:
        """Delete the written bytes. After this call, no file has the key."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class Readable(Protocol):
    """What files can be read from."""

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes, beginning at `start`, or fewer bytes if the file ends earlier. If `length` is None,
        return all bytes from `start` to the end.

        Raises:
            NotFoundError: no such file.
        """


class Storage(Readable, Protocol):
    """The files under one root. Several threads and several hosts may use one root; the docstring of each verb says
    what the verb guarantees.

    All errors of the verbs are StorageErrors, with the key in `place`. A verb that can be repeated safely is repeated
    for a while before it raises StorageUnavailableError.
    """

    @property
    def uri(self) -> str:
        """The root, in the form that Spark and other programs accept."""

    @property
    def is_durable_when_visible(self) -> bool:
        """Whether a file is durable as soon as other processes see it, whichever program wrote it."""

    @property
    def reads_at_once(self) -> int:
        """How many reads at the same time use the storage's bandwidth well. 1 if the operating system reads ahead."""

    @property
    def root(self) -> Path | None: ...

    @property
    def growing(self) -> GrowingFiles | None: ...

    @property
    def links(self) -> Links | None: ...

    @property
    def folders(self) -> Folders | None: ...

    @property
    def view(self) -> View | None: ...

    @property
    def directory(self) -> Directory | None: ...

    def put_new(self, key: str, data: Buffer) -> None:
        """Create a whole file. Other processes see all of the file or nothing, and the file is durable on return.

        Raises:
            AlreadyExistsError: the name was taken, and the existing file is unchanged. If a reply was lost, the
                existing file can be the caller's own. To find out, the caller reads the file.
            AmbiguousPutError: only reading the file can show whether the file was created. If it was created,
                sync_names makes the file durable.
        """

    def replace(self, key: str, data: Buffer) -> None:
        """Create a whole file or replace it, atomically and durably.

        An object store may execute a replacement late, after its caller has repeated it. A late replacement has no effect
        if the file never gets the same bytes again. So bytes that can repeat need a random id or a time.
        """

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        """Begin a file. No other process uses its name.

        Args:
            durable: if False, a power cut may delete the file or damage any part of it, even if the file is old. Use
                False only for bytes that nobody needs after a power cut, and that every reader checks.
        """

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        """Every file whose key begins with `prefix` and is greater than `after`, in the order of the keys. `prefix` is
        a folder with `/` at its end.

        Raises:
            UnsupportedError: an object store does not list the keys in their order.
        """

    def folder_names(self, folder: str) -> Sequence[str]:
        """The names of the folders in a folder that contain files, in the order of the names. `folder` ends with `/`, or is
        empty for the root.
        """

    def delete(self, key: str) -> None:
        """Delete a file. A missing file is no error."""

    def sync_names(self, folder: str) -> None:
        """Make the names in this folder durable, whichever process created them. This call does nothing on a storage
        whose files are durable as soon as other processes see them.
        """

    def sync_file(self, key: str) -> None:
        """Make a file and its name durable. Another process has written and closed the file.

        After an error, the caller must neither use the file nor sync it again. The bytes that the first sync could not
        write can be lost, and a second sync can still report success.

        Raises:
            NotFoundError: no such file.
        """


class AppendableFile(Protocol):
    """A file that can be written again and again, by the process that created it."""

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        """Write these bytes, one after another, beginning at this position."""

    def sync(self) -> None:
        """Make all written bytes durable, and also the file's name."""

    def close(self) -> None: ...


class GrowingFiles(Protocol):
    """Files that grow."""

    def create(self, key: str) -> AppendableFile:
        """Create an empty file.

        Raises:
            AlreadyExistsError: the name is taken.
        """

    def write_derivable(self, key: str, position: int, data: Buffer) -> None:
        """Write bytes into a file that this process created and closed, then close the file again. A power cut may lose
        the bytes.

        Use this only for index files. An index can be derived, and is checked before it is used. So an index needs no
        open descriptor. A .log is never opened for writing again.

        Raises:
            NotFoundError: no such file.
        """


class Links(Protocol):
    """Files that have several names."""

    def link(self, key: str, name: str) -> None:
        """Give a file a second name.

        Raises:
            AlreadyExistsError: the name is taken.
        """

    def adopt(self, path: Path, key: str) -> None:
        """Give a file from outside the root a second name under the root. File and name are durable on return.

        Raises:
            AlreadyExistsError: the name is taken.
        """


@dataclass(frozen=True)
class FolderEntry:
    """A name in a folder: a file, a folder or something else.

    modified_ns: time of the last change, in nanoseconds since the epoch.
    file_id: the same for all names of one file.
    """

    name: str
    is_folder: bool
    size: int
    modified_ns: int
    file_id: tuple[int, int]

    @property
    def modified_ms(self) -> int:
        """Milliseconds since the epoch; 0 for a time before the epoch, because a state cannot store such a time."""
        return max(0, self.modified_ns // 1_000_000)


class Folders(Protocol):
    """Folders that exist by themselves, not only as the beginning of keys."""

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        """Everything in a folder, including what no listing shows. Empty if the folder does not exist.

        Args:
            folder: empty for the root itself. It may end with `/`.
        """

    def is_empty_folder(self) -> bool:
        """Whether the root exists and is empty."""

    def remove_folder(self, folder: str) -> None:
        """Delete a folder with everything in it. A missing folder is no error."""


class View(Folders, Protocol):
    """A directory for other programs, derived from other files.

    Each show verb creates a whole file or replaces it, atomically. A power cut may lose the file. A crash may leave an
    entry with a temporary name in the folder.
    """

    def show(self, key: str, name: str, modified_ns: int) -> None:
        """Make `name` a second name of a file. Also set the file's time, if this user owns the file."""

    def show_copy(self, key: str, size: int, name: str, modified_ns: int) -> None:
        """Make `name` a copy of the first `size` bytes of a file."""

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        """Make `name` a file with these bytes."""

    def show_folders(self, files: Mapping[str, Buffer], folders: Sequence[str]) -> Sequence[str]:
        """Create several folders that contain the same files. Each folder appears with all its files, or not at all.

        The folders may share a file, which then has one name in each folder.

        Args:
            files: bytes by name.
            folders: have the same parent.

        Returns:
            The folders that existed already and were not empty. This call does not change these folders.
        """

    def hold_shared(self, key: str) -> AbstractContextManager[None]:
        """Keep other programs from locking this file exclusively, if the storage has locks. A missing file is created.

        When the process ends, the lock ends, too. Several holders may share the lock, also in one process.

        Raises:
            LockedError: another program has locked the file exclusively.
        """


class DirectoryFile(AppendableFile, Protocol):
    """A file that can be written at any position, and truncated."""

    def truncate(self, size: int) -> None:
        """Truncate the file to this size, or lengthen it with zeros, which take no space."""


class Directory(Storage, Folders, Protocol):
    """A plain Kafka log directory: a storage in which one process changes files in place, while the process holds a
    lock.

    A change of a name (created, renamed, deleted) survives a power cut after sync_names of its folder. A change of a
    file's bytes survives a power cut after a sync of the file.
    """

    def open(self, key: str) -> DirectoryFile:
        """Open a file for writing without changing it. A missing file is created empty."""

    def rename(self, key: str, name: str) -> None:
        """Give a file or folder another name. If a file has that name already, that file is replaced, atomically.

        Raises:
            NotFoundError: no such file or folder.
        """

    def make_folder(self, folder: str) -> None:
        """Create a folder durably. A folder that exists is no error."""

    def set_modified(self, key: str, modified_ns: int) -> None:
        """Set the time of a file's last change."""

    def hold_shared(self, key: str) -> AbstractContextManager[None]:
        """As in View."""

    def hold_exclusive(self, key: str) -> AbstractContextManager[None]:
        """Lock this file against other programs and against other holders in this process. A missing file is created.

        Raises:
            LockedError: the file is locked already.
        """


_Capability = TypeVar("_Capability")


def needed(capability: _Capability | None, storage: Storage, operation: str, remedy: str) -> _Capability:
    """Return the capability that an operation needs.

    Args:
        operation: the first words of the error's problem, for example "moving files into it".
        remedy: what to do instead.

    Raises:
        UnsupportedError: the storage lacks the capability.
    """
    if capability is None:
        raise UnsupportedError(f"root {storage.uri}", f"{operation} is not possible on this kind of storage", remedy)
    return capability


def exists(storage: Readable, key: str) -> bool:
    """Whether there is a file with this key. Unlike a listing, the answer is never stale."""
    try:
        storage.read(key, 0, 1)
    except NotFoundError:
        return False
    return True


def check_key(key: str) -> None:
    """Check that a key names a place below the root.

    Raises:
        StorageAccessError: the key is empty, or leaves the root.
    """
    if not key or not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise StorageAccessError(
            key or "(empty key)", "the key names a place outside of the root", "Use a path without `..`."
        )


def missing_package(uri: str, package: str, extra: str) -> ConfigError:
    """The error for a root whose storage needs a package that is not installed."""
    return ConfigError(
        f"root {uri}", f"the package {package} is not installed", f"Install it: pip install 'lakelog[{extra}]'."
    )
