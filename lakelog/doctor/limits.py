"""Checks of the storage's limits: the mount options, the permissions, the free space and the speed."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lakelog.doctor.check_report import Result, not_available, ok, problem
from lakelog.doctor.workspace import Workspace
from storage_engine.quantities import shown_number, shown_size

_MOUNTS = Path("/proc/self/mounts")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_HARMFUL = {
    "soft": "if the server is slow, writes fail",
    "nocto": "a closed file is not seen completely on other hosts",
}
_LEAST_BYTES = 100_000_000
_LEAST_FILES = 10_000
_SYNCS = 50
_PUTS = 20
_PARTS = ("meta", "data", "staging", "checkpoints", "tables", "log")


def mount(workspace: Workspace) -> Result:
    """What kind of file system this is, and how it is mounted."""
    path = workspace.path("mount")
    if path is None or not _MOUNTS.exists():
        return not_available("it is not known how this storage is mounted")
    found: tuple[str, str, str] = "", "", ""
    for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
        _, place, kind, options, *_ = line.split(" ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)
        if len(place) >= len(found[0]) and path.resolve().is_relative_to(place):
            found = place, kind, options
    place, kind, options = found
    said = f"{kind} at {place}"
    if harmful := [f"{name}: {_HARMFUL[name]}" for name in options.split(",") if name in _HARMFUL]:
        return problem(f"{said}, mounted {', '.join(harmful)}")
    if kind in _IN_MEMORY:
        return not_available(f"{said} stores files in memory", "A power cut deletes all of them.")
    return ok(f"{said}, mounted {options}")


def permissions(workspace: Workspace) -> Result:
    """This user may read and write here, also in the folders that exist already."""
    storage, root = workspace.storage, workspace.storage.root
    storage.put_new(workspace.key("own"), b"x")
    storage.read(workspace.key("own"))
    if root is None:
        return ok("files can be written and read")
    closed = [
        name for name in _PARTS
        if (root / name).exists() and not os.access(root / name, os.R_OK | os.W_OK | os.X_OK)
    ]  # fmt: skip
    if closed:
        return problem(f"this user, {os.geteuid()}, cannot write in {', '.join(f'{name}/' for name in closed)}")
    owner = (root / workspace.key("own")).stat().st_uid
    if owner != os.geteuid():
        return ok(f"files can be written and read; this storage gives the files of user {os.geteuid()} to user {owner}")
    return ok(f"user {owner} can write and read")


def room(workspace: Workspace) -> Result:
    """Free space."""
    if workspace.storage.root is None:
        return not_available("the storage does not report its free space")
    found = os.statvfs(workspace.storage.root)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    said = f"{shown_size(free)} of {shown_size(total)} are free"
    return ok(said) if free >= _LEAST_BYTES else problem(f"only {said}")


def inodes(workspace: Workspace) -> Result:
    """Room for the names of files."""
    found = os.statvfs(workspace.storage.root) if workspace.storage.root is not None else None
    if not found or not found.f_files:
        return not_available("the storage has no limit on the number of files, or does not report it")
    said = f"{shown_number(found.f_favail)} of {shown_number(found.f_files)} files are free"
    return ok(said) if found.f_favail >= _LEAST_FILES else problem(f"only {said}")


def speed(workspace: Workspace) -> Result:
    """The time of a sync and of a commit. A long time is reported, but is never a problem."""
    storage = workspace.storage
    puts = [_timed(partial(storage.put_new, workspace.key(f"put/{number}"), bytes(2000))) for number in range(_PUTS)]
    said = f"put-if-absent of 2 kB {_median_ms(puts)}"
    if storage.growing is None:
        return ok(said)
    file = storage.growing.create(workspace.key("grown"))
    try:
        file.sync()
        syncs = []
        for number in range(_SYNCS):
            file.write_at(number * 4096, [bytes(4096)])
            syncs.append(_timed(file.sync))
    finally:
        file.close()
    return ok(f"fsync after 4 kB {_median_ms(syncs)}, {said} (medians)")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_ms(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.2f} ms"
