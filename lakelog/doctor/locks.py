"""The check of locks. Topics never depend on a lock, but Kafka's programs and plain Kafka directories do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakelog.doctor.check_report import Result, not_available, ok, problem
from lakelog.doctor.workspace import Workspace
from storage_engine.errors import StorageError
from storage_engine.storage import Directory


def locking(workspace: Workspace) -> Result:
    """One side holds the lock as an ingest does, and the other side requests it as a broker does. Then the sides swap
    roles."""
    directory, key = workspace.storage.directory, workspace.key(".lock")
    if directory is None:
        return not_available("the storage has no locks")
    if refused := _refusal(directory, key, exclusive=True):
        cost = "You yourself must make sure that no broker starts on log/. Topics need no lock."
        return not_available(f"the storage refuses a lock that no process has: {refused}", cost)
    if refused := workspace.ask("hold", key=key, exclusive=False):
        return problem(f"a shared lock is refused although no process has an exclusive lock: {refused}")
    try:
        if refused := _refusal(directory, key, exclusive=False):
            return problem(f"a second shared lock is refused: {refused}")
        if not _refusal(directory, key, exclusive=True):
            return problem(f"an exclusive lock is granted here while {workspace.partner.name} has a shared lock")
    finally:
        workspace.ask("let_go")
    with _exclusive(directory, key) as refused:
        if refused:
            return problem(f"a lock that was released is still refused: {refused}")
        if not workspace.ask("hold", key=key, exclusive=False):
            workspace.ask("let_go")
            return problem(
                f"a shared lock is granted to {workspace.partner.name} while this side has an exclusive lock"
            )
    return ok(
        "several processes can hold a shared lock; while a process holds an exclusive lock, no other process holds a"
        " lock"
    )


def _refusal(directory: Directory, key: str, *, exclusive: bool) -> str | None:
    """Why a lock is not granted now; None if it is granted."""
    try:
        with directory.hold_exclusive(key) if exclusive else directory.hold_shared(key):
            return None
    except StorageError as error:
        return error.problem


@contextmanager
def _exclusive(directory: Directory, key: str) -> Iterator[str | None]:
    try:
        with directory.hold_exclusive(key):
            yield None
    except StorageError as error:
        yield error.problem
