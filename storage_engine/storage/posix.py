"""Files on a local or network file system (POSIX, NFS).

put_new writes a temporary file, syncs it, links it to its final name and syncs the directory: link() never overwrites
and shows the whole file at once. On an unclear error (an NFS reply that was lost) the temporary file's link count
tells: 2 means that the link was made. After a crash a temporary file may stay behind; its name begins with `.tmp-`, no
listing shows it, and nothing refers to it.

What a mount says that is away for a moment (EIO, ESTALE, ETIMEDOUT...) is tried again, for about a second, where doing it
twice is doing it once: read, list, entries, delete, sync_names, make_folder, and put_new and replace as a whole, each time
with a new temporary file. Never write_at and sync: after a failed fsync the kernel has marked the dirty pages clean, and
the next one says that all is well. What stays away is a StorageUnavailableError; who can wait longer may begin anew.

O_APPEND is not used. Under a root of ours a file is never written to but through the descriptor that created it, and
nothing depends on a lock: hold_shared is for other programs, which look for one. `open`, `rename` and hold_exclusive are
for plain Kafka log directories, whose files change in place, and where the lock is what keeps others off.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from typing_extensions import Buffer

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from storage_engine.storage import TEMPORARY, FolderEntry, StoredFile
from storage_engine.storage.write_back import begin_write_back

_MOST_BUFFERS = 1024  # IOV_MAX on Linux
_COPY_BYTES = 4 * 1024**2
_PAUSES = (0.05, 0.2, 0.8)
"""Seconds before each further attempt."""
_PASSING = frozenset(
    {
        errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN, errno.ENOTCONN,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET,
        errno.ECONNABORTED, errno.ESHUTDOWN,
    }
)  # fmt: skip
"""What network mounts say of a server or a way to it that is not there now. A file that was removed on another host is
ESTALE once, and ENOENT when it is opened again."""
_T = TypeVar("_T")
_MOST_DURABLE = 1000
"""How many directories a storage remembers as durable; a long stream stages in ever new ones."""

_MEANINGS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOENT: (NotFoundError, "Check the root and the name."),
    errno.ENOTEMPTY: (AlreadyExistsError, "Another process has filled this directory."),
    errno.EEXIST: (AlreadyExistsError, "Another process has created it."),
    errno.ENOSPC: (StorageFullError, "Free space on this file system, then run it again: nothing was committed."),
    errno.EDQUOT: (StorageFullError, "Raise the quota or free space, then run it again: nothing was committed."),
    errno.EFBIG: (StorageFullError, "Raise the limit on file sizes, then run it again: nothing was committed."),
    errno.EACCES: (StorageAccessError, "Give this user permission to read and write here."),
    errno.EPERM: (StorageAccessError, "Give this user permission to read and write here."),
    errno.EROFS: (StorageAccessError, "Mount the file system for writing."),
    errno.ENOTDIR: (StorageAccessError, "A part of this path is a file: move it away, or choose another root."),
    errno.EXDEV: (StorageError, "The two lie on different file systems: copy instead of moving."),
    errno.EISDIR: (StorageAccessError, "This is a directory where a file is expected."),
}


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Turn an OSError into the storage error that names the place."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise storage_error(place, problem, error.errno, "The operating system refused it.") from error


def storage_error(place: str, problem: str, code: int | None, otherwise: str) -> StorageError:
    """The error that a number of the operating system's means, with its remedy; `otherwise` where it means none."""
    if code in _PASSING:
        return StorageUnavailableError(place, problem, "See whether the disk or the mount is well, then run it again.")
    kind, remedy = _MEANINGS.get(code or 0, (StorageError, otherwise))
    return kind(place, problem, remedy)


def _patiently(work: Callable[[], _T]) -> _T:
    """Do what may be done twice, again after a pause where the storage was not there."""
    for pause in _PAUSES:
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return work()


class PosixStorage:
    """A root directory; the protocols in storage_engine.storage say what each verb promises."""

    def __init__(self, root: Path | str) -> None:
        """
        Args:
            root: created with the first file; made absolute here, so that a change of directory does not matter.
        """
        self.root = Path(root).absolute()
        self._durable: dict[Path, int] = {}  # directories whose names are known to be durable -> inode

    @property
    def uri(self) -> str:
        return str(self.root)

    def path(self, key: str) -> Path:
        """Where a key lies.

        Raises:
            StorageAccessError: the key leaves the root.
        """
        return Path(self._place(key))

    def _place(self, key: str) -> str:
        """As path(), in a tenth of the time that a Path takes: opening a partition reads four files of each segment."""
        if not key or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise StorageAccessError(key or "(empty key)", "a key that leaves the root", "Use a path under the root.")
        return f"{self.root}/{key}"

    def put_new(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        with _named(str(path)):
            _patiently(lambda: self._put_name(path, data))
            try:
                _patiently(lambda: _sync_directory(path.parent))
            except OSError as error:
                problem = f"is there, but could not be made durable: {error.strerror}"
                raise AmbiguousPutError(str(path), problem, "Read it back and sync its name.") from error

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
            if temporary.stat().st_nlink != 2:  # 2: the link was made and only its reply was lost
                raise
        except OSError as error:
            try:
                links = _patiently(temporary.stat).st_nlink
            except OSError:
                links = 0
            if links == 2:
                return
            if links == 1:
                raise
            raise AmbiguousPutError(str(path), f"link failed with {error.strerror}", "Read the file back.") from error

    def _make_directory(self, path: Path) -> None:
        """Make a directory below the root durable, and its parents, whether it is missing or there.

        One that is there may have been made by a process that died before its name was durable. Whoever writes into it
        makes up for that, once: else what is synced in it goes with it in a power cut.
        """
        with suppress(FileNotFoundError):
            if self._durable.get(path) == path.stat().st_ino:
                return
        if path == self.root:
            _make_directory(path.parent)
        else:
            self._make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir()
        _check_directory(path)
        try:
            _sync_directory(path.parent)
        except PermissionError:
            if path != self.root:  # which may have been made for this user, in a directory that it cannot read
                raise
        if len(self._durable) >= _MOST_DURABLE:
            self._durable.clear()
        self._durable[path] = path.stat().st_ino

    def replace(self, key: str, data: Buffer) -> None:
        path = self.path(key)
        with _named(str(path)):
            _patiently(lambda: self._replace(path, data))

    def _replace(self, path: Path, data: Buffer) -> None:
        temporary = self._write_temporary(path, data)
        try:
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)

    def _write_temporary(self, path: Path, data: Buffer) -> Path:
        self._make_directory(path.parent)
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _write_all(descriptor, 0, [data])
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
        """As the protocol says.

        Args:
            durable: it can be; else the directories of its name are not.
        """
        path = self.path(key)
        with _named(str(path)):
            if durable:
                self._make_directory(path.parent)
            else:
                with suppress(FileExistsError):
                    path.parent.mkdir(parents=True)
                _check_directory(path.parent)
            return PosixFile(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), path, synced_soon=durable)

    def open(self, key: str) -> PosixFile:
        path = self.path(key)
        with _named(str(path)):
            return PosixFile(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), path, synced_soon=False)

    def rename(self, key: str, name: str) -> None:
        path = self.path(key)
        with _named(str(path)):
            path.rename(self.path(name))

    def set_modified(self, key: str, modified_ns: int) -> None:
        path = self.path(key)
        with _named(str(path)):
            os.utime(path, ns=(modified_ns, modified_ns))

    def link(self, key: str, name: str) -> None:
        target = self.path(name)
        with _named(str(target)):
            self._make_directory(target.parent)
            os.link(self.path(key), target)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        place = self._place(key)
        with _named(place):
            return _patiently(lambda: _read(place, start, length))

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        folder = self.path(prefix.rstrip("/"))
        with _named(str(folder)):
            yield from self._walk(folder, prefix.rstrip("/"), after)

    def _walk(self, folder: Path, key: str, after: str) -> Iterator[StoredFile]:
        try:
            entries = _patiently(lambda: _scanned(folder))
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
                    stat = _patiently(entry.stat)
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                yield StoredFile(name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def delete(self, key: str) -> None:
        path = self.path(key)
        with _named(str(path)):
            _patiently(lambda: path.unlink(missing_ok=True))

    def sync_names(self, folder: str) -> None:
        path = self._folder(folder)
        with _named(str(path)):
            _patiently(lambda: _sync_directory(path))

    def make_folder(self, folder: str) -> None:
        path = self._folder(folder)
        with _named(str(path)):
            _patiently(lambda: self._make_directory(path))

    def _folder(self, folder: str) -> Path:
        return self.path(folder.rstrip("/")) if folder else self.root

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        path = self._folder(folder)
        with _named(str(path)):
            return _patiently(lambda: _entries(path))

    def show(self, key: str, name: str, modified_ns: int) -> None:
        with _in_place_of(self.path(name)) as temporary:
            os.link(self.path(key), temporary)
            with suppress(PermissionError):  # another user's file
                os.utime(temporary, ns=(modified_ns, modified_ns))

    def show_copy(self, key: str, size: int, name: str, modified_ns: int) -> None:
        with _in_place_of(self.path(name)) as temporary, self.path(key).open("rb", buffering=0) as source:
            with temporary.open("xb", buffering=0) as copy:
                left = size
                while left and (data := source.read(min(left, _COPY_BYTES))):
                    _write_all(copy.fileno(), size - left, [data])
                    left -= len(data)
            if left:
                raise StorageError(str(self.path(key)), f"ends {left} bytes before the {size} that are wanted of it")
            os.utime(temporary, ns=(modified_ns, modified_ns))

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        with _in_place_of(self.path(name)) as temporary:
            with temporary.open("xb", buffering=0) as file:
                _write_all(file.fileno(), 0, [data])
            if modified_ns is not None:
                os.utime(temporary, ns=(modified_ns, modified_ns))

    def adopt(self, path: Path, key: str) -> None:
        """Let a file from elsewhere on this file system lie here, too: a second name of it, both durable on return.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        target = self.path(key)
        with _named(str(target)):
            self._make_directory(target.parent)
            os.link(path, target)
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _sync_directory(target.parent)

    def remove_folder(self, folder: str) -> None:
        path = self.path(folder.rstrip("/"))
        with _named(str(path)):
            _remove_folder(path)

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
        with _named(str(path)):
            _make_directory(path.parent)
            path = path.resolve()
            _acquire(path, exclusive=exclusive)
        try:
            yield
        finally:
            _release(path)


@contextmanager
def new_directory(path: Path) -> Iterator[PosixStorage]:
    """A directory that appears whole or not at all: what the block makes lies beside it, and then takes its name.

    An error leaves nothing; a crash leaves a directory beside it, whose name continues the path's with a random word.

    Raises:
        AlreadyExistsError: something is there that is no empty directory.
    """
    final = Path(os.path.realpath(path))
    with _named(str(final)):
        if final.exists() and (not final.is_dir() or any(final.iterdir())):
            raise AlreadyExistsError(
                str(final), "is there, and is no empty directory", "Name a directory that does not exist yet."
            )
        temporary = final.with_name(f"{final.name}.{secrets.token_hex(8)}")
        _make_directory(temporary)
    try:
        yield PosixStorage(temporary)
        with _named(str(final)):
            temporary.rename(final)
            _sync_directory(final.parent)
    except BaseException:
        with suppress(OSError):
            _remove_folder(temporary)
        raise


def _remove_folder(path: Path, tries: int = 3) -> None:
    """Remove a directory with all that is in it, which others may be doing, too; or may add to it, a few times.

    shutil.rmtree closes a descriptor again whose close failed, and by then it may be another thread's file.
    """
    with suppress(FileNotFoundError):
        with os.scandir(path) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                _remove_folder(Path(entry))
            else:
                with suppress(FileNotFoundError):
                    Path(entry).unlink()
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or tries == 1:
                raise
            _remove_folder(path, tries - 1)


_EXCLUSIVE = -1
_locks: dict[Path, tuple[int, int]] = {}  # descriptor, holders; _EXCLUSIVE where there is one that shares with nobody
_locks_guard = threading.Lock()


def _acquire(path: Path, *, exclusive: bool) -> None:
    """Take a POSIX record lock, the kind that Java takes.

    It belongs to the process, and closing any descriptor of the file gives it up: so all holders in this process share
    one descriptor, and nobody else here opens the file.
    """
    with _locks_guard:
        descriptor, holders = _locks.get(path, (-1, 0))
        if holders == _EXCLUSIVE or (holders and exclusive):
            raise StorageError(str(path), "is locked by this very process", "Close what has it open.")
        if not holders:
            mode, lock = (os.O_RDWR, fcntl.LOCK_EX) if exclusive else (os.O_RDONLY, fcntl.LOCK_SH)
            descriptor = os.open(path, mode | os.O_CREAT, 0o666)
            try:
                fcntl.lockf(descriptor, lock | fcntl.LOCK_NB)
            except OSError as error:
                if exclusive or error.errno in (errno.EAGAIN, errno.EACCES):
                    os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _locked(path, exclusive=exclusive) from error
                if exclusive:
                    raise
                # A file system without locks: no other program finds one here either.
        _locks[path] = descriptor, _EXCLUSIVE if exclusive else holders + 1


def _locked(path: Path, *, exclusive: bool) -> StorageError:
    if exclusive:
        return StorageError(
            str(path), "is locked by another program: a Kafka broker or another process of ours works in this directory",
            "Wait until it is done, or stop it.",
        )  # fmt: skip
    return StorageError(
        str(path), "is locked by another program: a Kafka broker runs on this directory",
        "Stop it. A broker can run on what `lakelog topics export` writes.",
    )  # fmt: skip


def _release(path: Path) -> None:
    with _locks_guard:
        descriptor, holders = _locks.pop(path)
        if holders > 1:
            _locks[path] = descriptor, holders - 1
        else:
            with suppress(OSError):  # the lock goes with the descriptor, which close() gives up in any case
                os.close(descriptor)


class PosixFile:
    """An AppendableFile and DirectoryFile: the one descriptor through which a file is written."""

    def __init__(self, descriptor: int, path: Path, *, synced_soon: bool) -> None:
        """
        Args:
            synced_soon: what is written will be synced as soon as it is whole.
        """
        self._descriptor = descriptor
        self._path = path
        self._synced_soon = synced_soon
        self._name_is_durable = False

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        with _named(str(self._path)):
            size = _write_all(self._descriptor, position, data)
        if self._synced_soon:
            begin_write_back(self._descriptor, position, size)

    def truncate(self, size: int) -> None:
        with _named(str(self._path)):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with _named(str(self._path)):
            os.fsync(self._descriptor)
            if not self._name_is_durable:
                _sync_directory(self._path.parent)
                self._name_is_durable = True

    def close(self) -> None:
        with suppress(StorageError):  # nothing is lost by it: what counts was synced
            self.close_unsynced()

    def close_unsynced(self) -> None:
        """Close the file; a mount that writes when a file is closed says here what went wrong.

        Raises:
            StorageError: what was written may be lost. The file is closed all the same: the descriptor is given up, and
                by the next call its number can be another file's.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _named(str(self._path)):
                os.close(descriptor)


class PosixNewFile:
    """A NewFile on top of a PosixFile."""

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
        with _named(str(self._path)):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


@contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """A temporary name beside a path; what the block makes there takes the path's place."""
    with _named(str(path)):
        _make_directory(path.parent)
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            yield temporary
            temporary.replace(path)
        finally:
            # Renaming one name of a file over another name of the same file leaves both.
            with suppress(OSError):
                temporary.unlink()


def _read(place: str, start: int, length: int | None) -> bytes:
    with open(place, "rb", buffering=0) as file:  # noqa: PTH123 - as _place
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


def _entries(path: Path) -> Sequence[FolderEntry]:
    found: list[FolderEntry] = []
    try:
        listed = list(os.scandir(path))
    except FileNotFoundError:
        return found
    for entry in listed:
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed since the directory was read
        is_folder = entry.is_dir(follow_symlinks=False)
        file_id = stat.st_dev, stat.st_ino
        found.append(FolderEntry(entry.name, is_folder, stat.st_size, stat.st_mtime_ns, file_id))
    return found


def _write_all(descriptor: int, position: int, data: Sequence[Buffer]) -> int:
    """Write these bytes one behind another; returns how many there are."""
    views = [memoryview(part).cast("B") for part in data]
    size = 0
    while views:
        written = os.pwritev(descriptor, views[:_MOST_BUFFERS], position + size)
        size += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views and written:
            views[0] = views[0][written:]
    return size


def _make_directory(path: Path) -> None:
    """Create a directory and its missing parents, each durable in its own parent."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
        _sync_directory(path.parent)
    _check_directory(path)


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        with suppress(OSError):  # nothing was written through it
            os.close(descriptor)
