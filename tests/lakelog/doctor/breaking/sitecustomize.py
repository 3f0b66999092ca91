"""Breaks a guarantee of the file system on purpose: one call of the operating system does something wrong.

At its start, Python imports a module with the name sitecustomize, if the folder of this module is in PYTHONPATH. So the
variable BREAK also affects child processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_link, _replace, _fsync, _lockf, _time = os.link, os.replace, os.fsync, fcntl.lockf, time.time


def _overwriting_link(source: Any, target: Any) -> None:
    try:
        _link(source, target)
    except FileExistsError:
        _replace(source, target)


def _copying_replace(source: Any, target: Any) -> None:
    with Path(source).open("rb") as read, Path(target).open("wb") as written:
        data = read.read()
        written.write(data[: len(data) // 2])
        written.flush()
        time.sleep(0.002)
        written.write(data[len(data) // 2 :])
    Path(source).unlink()


def _refusing_fsync(_descriptor: int) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _appending_write(descriptor: int, buffers: Any, _position: int) -> int:
    os.lseek(descriptor, 0, os.SEEK_END)
    return os.writev(descriptor, buffers)


def _no_locks(_descriptor: int, _command: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


BREAKS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "link overwrites": (os, "link", _overwriting_link),
    "replace copies": (os, "replace", _copying_replace),
    "fsync is refused": (os, "fsync", _refusing_fsync),
    "writes append": (os, "pwritev", _appending_write),
    "locks are granted to all": (fcntl, "lockf", lambda descriptor, command: None),
    "there are no locks": (fcntl, "lockf", _no_locks),
    "the clock is ahead": (time, "time", lambda: _time() + 100),
}

if chosen := os.environ.get("BREAK"):
    setattr(*BREAKS[chosen])
