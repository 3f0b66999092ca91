"""Builds something once in .venv, for example a server that the tests start."""

from __future__ import annotations

import fcntl
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def built_once(name: str, build: Callable[[Path], Path]) -> Path:
    """Return the path of this name in .venv. If it is missing, it is built.

    The path appears whole, by a rename. If several processes call this function at the same time, one process builds,
    and the other processes wait for a file lock. After a crash, the next call builds again.

    Args:
        name: contains the version.
        build: builds in an empty directory, and returns the path of the result in this directory.
    """
    built = Path(sys.prefix) / name
    if built.exists():
        return built
    with (built.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            print(f"lakelog: fetching or building {name} for the tests, once (some minutes)", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=built.parent, prefix=f"{name}.") as folder:
                build(Path(folder)).rename(built)
    return built
