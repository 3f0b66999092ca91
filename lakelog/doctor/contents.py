"""Checks of the bytes in files. Bytes can be synced. Bytes are read at the positions where they were written. When this
host sees the new size of a file, it can read the bytes that another host wrote.
"""

from __future__ import annotations

import time

from lakelog.doctor.actions import CHUNK, chunk
from lakelog.doctor.check_report import Result, not_available, ok, problem
from lakelog.doctor.workspace import PartnerError, Workspace
from storage_engine.errors import NotFoundError
from storage_engine.storage import Storage

_BUFFERS = 3000
"""More buffers than one system call takes."""
_HOLE = 1_000_000
_CHUNKS = 20
_AGAIN_SECONDS = 0.05


def syncing(workspace: Workspace) -> Result:
    """A file and its folder can be synced."""
    storage = workspace.storage
    if storage.growing is None:
        return not_available("the storage can only store whole files")
    file = storage.growing.create(workspace.key("synced/file"))
    try:
        file.write_at(0, [b"x" * 4096])
        file.sync()
    finally:
        file.close()
    storage.sync_names(workspace.key("synced/"))
    return ok("fsync of a file and of its folder succeeds")


def positions(workspace: Workspace) -> Result:
    """Bytes are read at the positions where they were written, whatever the order of the writes."""
    storage = workspace.storage
    if storage.growing is None:
        return not_available("the storage can only store whole files")
    parts = [bytes([number % 256]) * (number % 7) for number in range(_BUFFERS)]
    whole = b"".join(parts)
    expected = bytearray(_HOLE) + whole
    expected[: len(whole)] = whole
    expected[100:200] = b"\xff" * 100
    file = storage.growing.create(workspace.key("positions"))
    try:
        file.write_at(_HOLE, parts)
        file.write_at(0, parts)
        file.write_at(100, [b"\xff" * 100])
        unsynced = storage.read(workspace.key("positions"))
        file.sync()
    finally:
        file.close()
    found = storage.read(workspace.key("positions"))
    middle = storage.read(workspace.key("positions"), _HOLE - 10, 20)
    if found != expected or unsynced != expected or middle != expected[_HOLE - 10 : _HOLE + 10]:
        return problem("the bytes read at a position are not the bytes written there")
    return ok(f"a file of {_BUFFERS} buffers, with a hole and an overwritten part, is read correctly")


def growing(workspace: Workspace) -> Result:
    """While a file grows, it can be read up to the size that its writer has published."""
    if workspace.storage.growing is None:
        return not_available("the storage can only store whole files")
    # If this side looked into the folder before the folder existed, an NFS client would remember for half a minute that
    # there is no folder. So this side creates the folder.
    workspace.storage.put_new(workspace.key("sizes/folder"), b"")
    workspace.partner.begin("extend", folder=workspace.folder, chunks=_CHUNKS)
    expected, again = b"", 0
    for number in range(_CHUNKS):
        expected += chunk(number)
        until = time.monotonic() + workspace.partner.timeout_s
        while not _is_there(workspace.storage, workspace.key(f"sizes/{number:06d}")):
            if time.monotonic() > until or workspace.partner.has_answered():
                # The partner may have put the size just after the last attempt.
                if _is_there(workspace.storage, workspace.key(f"sizes/{number:06d}")):
                    break
                if workspace.partner.has_answered():
                    workspace.partner.answer()
                raise PartnerError(
                    workspace.partner.name,
                    f"did not report in time that a growing file has reached its size number {number + 1}",
                )
            time.sleep(_AGAIN_SECONDS / 10)
        while len(found := workspace.storage.read(workspace.key("growing"), 0, len(expected))) < len(expected):
            again += 1
            if time.monotonic() > until:
                return problem(
                    f"a file of {len(expected)} synced bytes ends after {len(found)} bytes, even after it is opened many times"
                )
            time.sleep(_AGAIN_SECONDS)
        if found != expected:
            return problem(f"the bytes read from a growing file are not its {len(expected)} synced bytes")
    workspace.partner.answer()
    often = f"after the file was opened again {again} times" if again else "each time at the first attempt"
    return ok(f"a file grew {_CHUNKS} times by {CHUNK} bytes, and the new bytes were read, {often}")


def _is_there(storage: Storage, key: str) -> bool:
    try:
        storage.read(key)
    except NotFoundError:
        # A cache may answer a lookup by name for a while. Listing the folder asks the server.
        return any(file.key == key for file in storage.list(f"{key.rpartition('/')[0]}/"))
    return True
