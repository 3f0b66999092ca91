"""Stores files on a local or network file system (POSIX, NFS).

put_new writes a temporary file, syncs it, links it to its final name and syncs the directory. put_new uses link(),
because link() never overwrites a file, and makes the whole file visible in one step. After an unclear error (a lost NFS
reply), the link count of the temporary file shows the result: 2 means that the link was made. A crash can leave a
temporary file. The name of a temporary file begins with `.tmp-`, no listing shows the file, and no document names it.

If a mount is unavailable for a moment (EIO, ESTALE, ETIMEDOUT...), the idempotent methods are retried for about a
second: read, list, entries, delete, sync_names and make_folder. put_new and replace are retried as a whole, each time
with a new temporary file. write_at and sync are never retried. After a failed fsync, the kernel has marked the dirty
pages as clean, so the next fsync would report success. If the mount stays unavailable, StorageUnavailableError is
raised. A caller that can wait longer may repeat the call.

O_APPEND is not used. Under a root, a .log is written only through the descriptor that created it, and an index file
only by the process that created it. No guarantee under a root depends on a lock; hold_shared only makes a Kafka
broker refuse to start on `log/`. `open`, `rename` and hold_exclusive are for plain Kafka log directories. The files
of a plain Kafka log directory change in place, and the lock blocks other programs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from typing_extensions import Buffer

from storage_engine.errors import AmbiguousPutError, StorageAccessError
from storage_engine.storage import TEMPORARY, FolderEntry, StoredFile, check_key, temporary_name
from storage_engine.storage.posix_directories import check_directory, make_directory, remove_folder, sync_directory
from storage_engine.storage.posix_errors import named, with_retries
from storage_engine.storage.posix_files import PosixFile, PosixNewFile, open_regular, write_all
from storage_engine.storage.posix_view import show, show_bytes, show_copy, show_folders
from storage_engine.storage.record_locks import acquire, release

_MOST_DURABLE = 20_000
"""How many durable directories a storage remembers. A long stream creates more and more staging directories."""


class PosixStorage:
    """A root directory, with every capability. The protocols in storage_engine.storage state the guarantees of each verb."""

    is_durable_when_visible = False
    reads_at_once = 1

    def __init__(self, root: Path | str, *, follows_links: bool = False) -> None:
        """
        Args:
            root: is created with the first file. A relative path is made absolute here, so a later chdir has no effect.
            follows_links: whether `entries` shows what a symbolic link leads to, and not the link itself.
        """
        self.root = Path(root).absolute()
        self._prefix = str(self.root).rstrip("/") + "/"  # the root may be `/`
        self._follows_links = follows_links
        self.growing = self.links = self.folders = self.view = self.directory = self
        self._durable: dict[Path, int] = {}  # directories whose names are known to be durable -> inode

    @property
    def uri(self) -> str:
        return str(self.root)

    def path(self, key: str) -> Path:
        """Return the path of a key.

        Raises:
            StorageAccessError: the key is empty, or leaves the root.
        """
        return Path(self._place(key))

    def _place(self, key: str) -> str:
        """Like path(), but returns text, which is ten times as fast. The speed matters because opening a partition
        reads four files of each segment.
        """
        check_key(key)
        return f"{self._prefix}{key}"

    def put_new(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        with named(str(path)):
            with_retries(lambda: self._put_name(path, data))
            try:
                with_retries(lambda: sync_directory(path.parent))
            except OSError as error:
                problem = f"was written, but could not be made durable: {error.strerror}"
                raise AmbiguousPutError(
                    str(path), problem, "Check the contents of the file, and sync its folder."
                ) from error

    def _put_name(self, path: Path, data: Buffer) -> None:
        temporary = self._write_temporary(path, data)
        try:
            self._link(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()

    @staticmethod
    def _link(temporary: Path, path: Path) -> None:
        try:
            os.link(temporary, path)
        except FileExistsError:
            if temporary.stat().st_nlink != 2:  # 2: the link was made, but its reply was lost
                raise
        except OSError as error:
            try:
                links = with_retries(temporary.stat).st_nlink
            except OSError:
                links = 0
            if links == 2:
                return
            if links == 1:
                raise
            raise AmbiguousPutError(
                str(path), f"link failed with {error.strerror}", "Check whether the file exists, and what it contains."
            ) from error

    def _make_directory(self, path: Path) -> None:
        """Create a directory below the root, and its missing parents. Make the names of all these directories durable.

        An existing directory may have been created by a process that died before the name was durable. A power cut
        could then remove the directory with every synced file in it. So the name of an existing directory is synced,
        too, once by each PosixStorage.
        """
        with suppress(FileNotFoundError):
            if self._durable.get(path) == path.stat().st_ino:
                return
        if path == self.root:
            make_directory(path.parent)
        else:
            self._make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir()
        check_directory(path)
        try:
            sync_directory(path.parent)
        except PermissionError:
            if path != self.root:  # the root may be in a directory that this user cannot read
                raise
        if len(self._durable) >= _MOST_DURABLE:
            self._durable.clear()
        self._durable[path] = path.stat().st_ino

    def replace(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        with named(str(path)):
            with_retries(lambda: self._replace(path, data))

    def _replace(self, path: Path, data: Buffer) -> None:
        temporary = self._write_temporary(path, data)
        try:
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)

    def _write_temporary(self, path: Path, data: Buffer) -> Path:
        self._make_directory(path.parent)
        temporary = path.with_name(temporary_name())
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            write_all(descriptor, 0, [data])
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(descriptor)
        return temporary

    def new_file(self, key: str, *, durable: bool = True) -> PosixNewFile:
        return PosixNewFile(self.create(key, durable=durable), self.path(key), durable)

    def create(self, key: str, *, durable: bool = True) -> PosixFile:
        """As in GrowingFiles.

        Args:
            durable: False if the file will not be synced. Then the names of its new directories are not synced either.
        """
        path = self.path(key)
        with named(str(path)):
            if durable:
                self._make_directory(path.parent)
            else:
                with suppress(FileExistsError):
                    path.parent.mkdir(parents=True)
                check_directory(path.parent)
            return PosixFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path, synced_soon=durable)

    def write_derivable(self, key: str, position: int, data: Buffer) -> None:
        place = self._place(key)
        with named(place):
            descriptor = open_regular(place, os.O_WRONLY)
            try:
                write_all(descriptor, position, [data])
            finally:
                os.close(descriptor)  # a network mount may write the bytes only here, and report its errors here

    def open(self, key: str) -> PosixFile:
        path = self.path(key)
        with named(str(path)):
            return PosixFile(open_regular(path, os.O_WRONLY | os.O_CREAT), path, synced_soon=False)

    def rename(self, key: str, name: str) -> None:
        path = self.path(key)
        with named(str(path)):
            path.rename(self.path(name))

    def set_modified(self, key: str, modified_ns: int) -> None:
        path = self.path(key)
        with named(str(path)):
            os.utime(path, ns=(modified_ns, modified_ns))

    def link(self, key: str, name: str) -> None:
        target = self.path(name)
        with named(str(target)):
            self._make_directory(target.parent)
            os.link(self.path(key), target)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        place = self._place(key)
        with named(place):
            return with_retries(lambda: _read(place, start, length))

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        folder = self.path(prefix.rstrip("/"))
        with named(str(folder)):
            yield from self._walk(folder, prefix.rstrip("/"), after)

    def _walk(self, folder: Path, key: str, after: str) -> Iterator[StoredFile]:
        try:
            entries = with_retries(lambda: _scanned(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            name = f"{key}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if after > f"{name}/\U0010ffff":
                    continue
                yield from self._walk(folder / entry.name, name, after)
            elif name > after and not entry.name.startswith(TEMPORARY):
                try:
                    stat = with_retries(entry.stat)
                except FileNotFoundError:
                    continue  # deleted after the directory was read
                yield StoredFile(name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def delete(self, key: str) -> None:
        path = self.path(key)
        with named(str(path)):
            with_retries(lambda: path.unlink(missing_ok=True))

    def sync_names(self, folder: str) -> None:
        path = self._folder(folder)
        with named(str(path)):
            with_retries(lambda: sync_directory(path))

    def sync_file(self, key: str) -> None:
        path = self.path(key)
        with named(str(path)):
            descriptor = with_retries(lambda: open_regular(path, os.O_RDONLY))
            try:
                os.fsync(descriptor)
            finally:
                with suppress(OSError):  # nothing was written through this descriptor
                    os.close(descriptor)
            with_retries(lambda: self._make_directory(path.parent))
            with_retries(lambda: sync_directory(path.parent))

    def make_folder(self, folder: str) -> None:
        path = self._folder(folder)
        with named(str(path)):
            with_retries(lambda: self._make_directory(path))

    def _folder(self, folder: str) -> Path:
        return self.path(folder.rstrip("/")) if folder else self.root

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        path = self._folder(folder)
        with named(str(path)):
            return with_retries(lambda: _entries(path, follow_links=self._follows_links))

    def folder_names(self, folder: str) -> Sequence[str]:
        return sorted(each.name for each in self.entries(folder.rstrip("/")) if each.is_folder)

    def is_empty_folder(self) -> bool:
        with named(self.uri):
            return self.root.is_dir() and not self.entries("")

    def show(self, key: str, name: str, modified_ns: int) -> None:
        show(self._place(key), self._place(name), modified_ns)

    def show_copy(self, key: str, size: int, name: str, modified_ns: int) -> None:
        show_copy(self._place(key), size, self._place(name), modified_ns)

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        show_bytes(data, self._place(name), modified_ns)

    def show_folders(self, files: Mapping[str, Buffer], folders: Sequence[str]) -> Sequence[str]:
        there = show_folders(files, [self._place(folder) for folder in folders]) if folders else ()
        return [folders[number] for number in there]

    def adopt(self, path: Path, key: str) -> None:
        target = self.path(key)
        with named(str(target)):
            self._make_directory(target.parent)
            os.link(path, target)
            descriptor = open_regular(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(target.parent)

    def remove_folder(self, folder: str) -> None:
        path = self.path(folder.rstrip("/"))
        with named(str(path)):
            remove_folder(path)

    @contextmanager
    def hold_shared(self, key: str) -> Iterator[None]:
        with self._held(key, exclusive=False):
            yield

    @contextmanager
    def hold_exclusive(self, key: str) -> Iterator[None]:
        with self._held(key, exclusive=True):
            yield

    @contextmanager
    def _held(self, key: str, *, exclusive: bool) -> Iterator[None]:
        path = self.path(key)
        with named(str(path)):
            make_directory(path.parent)
            path = path.resolve()
            acquire(path, exclusive=exclusive)
        try:
            yield
        finally:
            release(path)


def _read(place: str, start: int, length: int | None) -> bytes:
    with open(open_regular(place, os.O_RDONLY), "rb", buffering=0) as file:  # noqa: PTH123 - text is faster
        if start:
            file.seek(start)
        parts: list[bytes] = []
        wanted = length if length is not None else -1
        while wanted:
            part = file.read(wanted)
            if not part:
                break
            parts.append(part)
            wanted = wanted - len(part) if length is not None else -1
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _scanned(folder: Path) -> Sequence[os.DirEntry[str]]:
    return sorted(os.scandir(folder), key=lambda entry: entry.name + ("/" if entry.is_dir() else ""))


def _entries(path: Path, *, follow_links: bool) -> Sequence[FolderEntry]:
    found: list[FolderEntry] = []
    try:
        listed = list(os.scandir(path))
    except FileNotFoundError:
        return found
    for entry in listed:
        try:
            stat = entry.stat(follow_symlinks=follow_links)
        except FileNotFoundError:
            if not entry.is_symlink() or not os.path.lexists(entry):
                continue  # removed after the directory was read
            raise StorageAccessError(
                entry.path, "is a symbolic link to a path that does not exist", "Mount the disk, or remove the link."
            ) from None
        is_folder = entry.is_dir(follow_symlinks=follow_links)
        file_id = stat.st_dev, stat.st_ino
        found.append(FolderEntry(entry.name, is_folder, stat.st_size, stat.st_mtime_ns, file_id))
    return found
