"""Records the system calls that a process makes for files below one directory.

While a block runs, the recorder replaces Python's own functions in os, io, shutil and pathlib. All file operations of
storage/posix.py and of the modules in the same package use these functions. A comparison shows that the recorder misses
no call: if the recorded calls are applied to a simulated disk, this disk has the contents of the real directory
(power_cuts.py).
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from tests.faults.calls import Errors, Tap
from tests.faults.disk import Event


def _error(number: int) -> Callable[[], OSError]:
    return lambda: OSError(number, os.strerror(number))


_EIO, _ENOSPC, _EEXIST, _ENOENT = (_error(number) for number in (errno.EIO, errno.ENOSPC, errno.EEXIST, errno.ENOENT))
_MAKES = Errors(_EIO, _ENOSPC, _EIO, _EEXIST)
_TAKES_AWAY = Errors(_EIO, None, _EIO, _ENOENT)
_WRITES = Errors(_EIO, _ENOSPC, _EIO)
_READS = Errors(_EIO, None, _error(errno.ESTALE))
_ASKS = Errors(_EIO)


class SystemCalls:
    """As a context, it lets the calls of this process below `root` go through the tap."""

    def __init__(self, root: Path, tap: Tap, record: Callable[[Event], object] = lambda event: None) -> None:
        """
        Args:
            record: is given each change as it is made.
        """
        self._root = str(root)
        self._tap = tap
        self._record = record
        self._open: dict[int, tuple[str, int]] = {}  # descriptor -> place, handle
        self._closed: set[int] = set()
        self._handles = itertools.count()
        self._patches = [
            patch.object(module, name, self._through(getattr(module, name), handler))
            for module, name, handler in (
                (os, "open", self._os_open),
                (io, "open", self._io_open),
                (builtins, "open", self._io_open),
                (os, "close", self._close),
                (os, "pwritev", self._pwritev),
                (os, "pwrite", self._pwrite),
                (os, "write", self._write),
                (os, "ftruncate", self._ftruncate),
                (os, "fsync", self._fsync),
                (os, "fdatasync", self._fsync),
                (os, "link", self._link),
                (os, "rename", self._rename),
                (os, "replace", self._rename),
                (os, "unlink", self._unlink),
                (os, "remove", self._unlink),
                (os, "mkdir", self._mkdir),
                (os, "rmdir", self._rmdir),
                (os, "utime", self._utime),
                (os, "stat", self._stat),
                (os, "scandir", self._scandir),
                (fcntl, "lockf", self._lockf),
                (time, "sleep", lambda original, seconds: None),  # what is gone for good is not waited for
            )
        ]

    def __enter__(self) -> Self:
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()

    @staticmethod
    def _through(original: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: handler(original, *args, **kwargs)

    def _place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Where a path lies below the root; None if it does not."""
        if isinstance(path, int):
            return self._open[path][0] if path in self._open else None
        text = os.fsdecode(path)
        if dir_fd is not None:
            return f"{self._open[dir_fd][0]}/{text}" if dir_fd in self._open else None
        if text == self._root:
            return ""
        return text[len(self._root) + 1 :] if text.startswith(f"{self._root}/") else None

    def _opened(self, descriptor: int, place: str, *, is_new: bool) -> None:
        self._open[descriptor] = place, next(self._handles)
        self._closed.discard(descriptor)
        self._record(Event("create" if is_new else "open", place, handle=self._open[descriptor][1]))

    def _os_open(self, original, path, flags, mode=0o777, *, dir_fd=None):
        place = self._place(path, dir_fd)
        if place is None:
            descriptor = original(path, flags, mode, dir_fd=dir_fd)
            self._open.pop(descriptor, None)
            self._closed.discard(descriptor)
            return descriptor
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(f"{self._root}/{place}")

        def do() -> int:
            descriptor: int = original(path, flags, mode, dir_fd=dir_fd)
            self._opened(descriptor, place, is_new=is_new)
            return descriptor

        if flags & os.O_EXCL:
            return self._tap.through("create", place, do, _MAKES)
        return self._tap.through("open", place, do, _WRITES if flags & os.O_CREAT else _ASKS)

    def _io_open(self, original, file, mode="r", *args, **kwargs):
        place = None if isinstance(file, int) else self._place(file)
        if place is None:
            return original(file, mode, *args, **kwargs)

        def do():
            opened = original(file, mode, *args, **kwargs)
            if "x" in mode:
                self._opened(opened.fileno(), place, is_new=True)
            return opened

        assert mode in ("rb", "xb"), f"open with mode {mode}"
        return self._tap.through("create" if mode == "xb" else "read", place, do, _MAKES if mode == "xb" else _READS)

    def _close(self, original, descriptor):
        if descriptor not in self._open:
            assert descriptor not in self._closed, "a descriptor is closed twice: it may be another file's by now"
            return original(descriptor)
        place, _ = self._open.pop(descriptor)
        self._closed.add(descriptor)
        return self._tap.through("close", place, lambda: original(descriptor), Errors(lost=_EIO))

    def _pwritev(self, original, descriptor, buffers, position, *args):
        if descriptor not in self._open:
            return original(descriptor, buffers, position, *args)
        return self._written(
            descriptor,
            b"".join(bytes(part) for part in buffers),
            position,
            lambda data: original(descriptor, [data], position),
        )

    def _pwrite(self, original, descriptor, data, position):
        if descriptor not in self._open:
            return original(descriptor, data, position)
        return self._written(descriptor, bytes(data), position, lambda data: original(descriptor, data, position))

    def _write(self, original, descriptor, data):
        assert descriptor not in self._open, "a file is written to without a position"
        return original(descriptor, data)

    def _written(self, descriptor: int, data: bytes, position: int, write: Callable[[bytes], int]) -> int:
        place, handle = self._open[descriptor]

        def make(data: bytes) -> int:
            written = write(data)
            self._record(Event("write", place, handle=handle, position=position, data=data[:written]))
            return written

        half = (lambda: make(data[: len(data) // 2])) if len(data) > 1 else None
        return self._tap.through("write", place, lambda: make(data), _WRITES, half)

    def _ftruncate(self, original, descriptor, size):
        if descriptor not in self._open:
            return original(descriptor, size)
        place, handle = self._open[descriptor]

        def do() -> None:
            original(descriptor, size)
            self._record(Event("truncate", place, handle=handle, position=size))

        return self._tap.through("truncate", place, do, _WRITES)

    def _fsync(self, original, descriptor):
        if descriptor not in self._open:
            return original(descriptor)
        place, handle = self._open[descriptor]

        def do() -> None:
            original(descriptor)
            self._record(Event("sync", place, handle=handle))

        return self._tap.through(
            "sync", place, do, _WRITES, failed=lambda: self._record(Event("failed sync", place, handle=handle))
        )

    def _link(self, original, source, target, **kwargs):
        return self._named(original, "link", source, target, _MAKES, kwargs)

    def _rename(self, original, source, target, **kwargs):
        return self._named(original, "rename", source, target, Errors(_EIO, _ENOSPC, _EIO, _ENOENT), kwargs)

    def _named(self, original: Any, name: str, source: Any, target: Any, errors: Errors, kwargs: dict[str, Any]) -> Any:
        old, new = self._place(source), self._place(target)
        if new is None:
            return original(source, target, **kwargs)
        assert old is not None, f"{name} of a file from elsewhere"

        def do() -> None:
            original(source, target, **kwargs)
            self._record(Event(name, old, new))

        return self._tap.through(name, new, do, errors)

    def _unlink(self, original, path, *, dir_fd=None):
        return self._changed(original, "unlink", path, dir_fd, (), _TAKES_AWAY)

    def _rmdir(self, original, path, *, dir_fd=None):
        return self._changed(original, "rmdir", path, dir_fd, (), _TAKES_AWAY)

    def _mkdir(self, original, path, mode=0o777, *, dir_fd=None):
        return self._changed(original, "mkdir", path, dir_fd, (mode,), _MAKES)

    def _changed(
        self, original: Any, name: str, path: Any, dir_fd: int | None, more: tuple[int, ...], errors: Errors
    ) -> Any:
        place = self._place(path, dir_fd)
        if place is None:
            return original(path, *more, dir_fd=dir_fd)

        def do() -> None:
            original(path, *more, dir_fd=dir_fd)
            self._record(Event(name, place))

        return self._tap.through(name, place, do, errors)

    def _utime(self, original, path, *, ns):
        place = self._place(path)
        if place is None:
            return original(path, ns=ns)

        def do() -> None:
            original(path, ns=ns)
            self._record(Event("utime", place, ns=ns[1]))

        return self._tap.through("utime", place, do, _WRITES)

    def _stat(self, original, path, **kwargs):
        place = self._place(path, kwargs.get("dir_fd"))
        if place is None:
            return original(path, **kwargs)
        return self._tap.through("stat", place, lambda: original(path, **kwargs), _ASKS)

    def _scandir(self, original, path="."):
        place = self._place(path)
        if place is None:
            return original(path)
        return self._tap.through("list", place, lambda: original(path), _ASKS)

    def _lockf(self, original, descriptor, *args):
        if descriptor not in self._open:
            return original(descriptor, *args)
        return self._tap.through(
            "lock", self._open[descriptor][0], lambda: original(descriptor, *args), Errors(_error(errno.ENOLCK))
        )
