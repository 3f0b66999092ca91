"""Defines the folder in which checks work, and the arguments of each check.

    <root>/.lakelog-doctor-<random>/    created at the beginning of an examination, removed at its end

After a SIGKILL, the folder remains. A later examination removes the folder if the folder is an hour old, according to
the storage's clock. Nothing else in the root is touched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lakelog.doctor.check_report import Promise, Result
from storage_engine.errors import LogError, StorageAccessError, StorageError, StorageFullError
from storage_engine.storage import Storage

FOLDER = ".lakelog-doctor-"
TOKEN = "token"
_OLD_MS = 3_600_000


class PartnerError(LogError):
    """The other side of a check failed."""


class PartnerGoneError(PartnerError):
    """The other side did not appear, does not answer, or has ended. No further check can be made with it."""


class Partner(Protocol):
    """The other side of a check, which performs one action at a time.

    name: its name in findings.
    timeout_s: how long an answer may take.
    """

    name: str
    timeout_s: float

    def begin(self, action: str, **arguments: Any) -> None:
        """Ask the other side for an action, without waiting. The actions are in lakelog.doctor.actions."""

    def has_answered(self) -> bool:
        """Whether answer() would return without waiting."""

    def answer(self) -> Any:
        """The result of the action.

        Raises:
            PartnerError: the action failed.
            PartnerGoneError: there will be no answer.
        """


@dataclass(frozen=True)
class Workspace:
    """The arguments of a check.

    storage: the storage that is tested.
    folder: a folder for this check alone; it ends in `/`.
    partner: the other side of the check.
    this_side: the name of this process in findings.
    """

    storage: Storage
    folder: str
    partner: Partner
    this_side: str

    def key(self, name: str) -> str:
        return f"{self.folder}{name}"

    def ask(self, action: str, **arguments: Any) -> Any:
        """Ask the partner for an action, and wait for its answer."""
        self.partner.begin(action, **arguments)
        return self.partner.answer()

    def path(self, name: str) -> Path | None:
        """The path of a key; None if the storage is not a file system."""
        return self.storage.root / self.key(name) if self.storage.root is not None else None


@dataclass(frozen=True)
class Check:
    """The check of one assumption.

    name: the name in findings.
    promise: the promise of Lakelog that depends on this assumption.
    otherwise: the consequence if the assumption does not hold on this storage.
    run: makes the check.
    """

    name: str
    promise: Promise
    otherwise: str
    run: Callable[[Workspace], Result]


@contextmanager
def temporary_folder(storage: Storage) -> Iterator[str]:
    """The folder of an examination, without a trailing `/`. The folder, and parent folders that were created for it,
    are removed at the end.

    Raises:
        StorageAccessError, StorageFullError: nothing can be written here, so no check can be made.
    """
    made = _missing(storage.root) if storage.root is not None else []
    folder = f"{FOLDER}{secrets.token_hex(8)}"
    try:
        _begin(storage, folder)
        yield folder
    finally:
        remove_folder(storage, folder)
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _begin(storage: Storage, folder: str) -> None:
    try:
        storage.replace(f"{folder}/{TOKEN}", folder.encode())
    except (StorageAccessError, StorageFullError):
        raise
    except StorageError:
        return  # the checks will report this defect
    _remove_old(storage, folder)


def _missing(root: Path) -> list[Path]:
    """The folders of the root's path that do not exist, innermost first."""
    return [path for path in (root, *root.parents) if not path.exists()]


def _remove_old(storage: Storage, mine: str) -> None:
    changed = _changed_ms(storage)
    for name, changed_ms in changed.items():
        if mine in changed and changed[mine] - changed_ms > _OLD_MS:
            remove_folder(storage, name)


def _changed_ms(storage: Storage) -> dict[str, int]:
    """When each folder of an examination was last changed, by the storage's clock. On an object store, the time of the
    newest object in the folder.
    """
    if storage.folders is not None:
        entries = storage.folders.entries("")
        return {entry.name: entry.modified_ms for entry in entries if entry.name.startswith(FOLDER)}
    names = [name for name in storage.folder_names("") if name.startswith(FOLDER)]
    times = {name: [file.modified_ms for file in storage.list(f"{name}/")] for name in names}
    return {name: max(of_files) for name, of_files in times.items() if of_files}


def remove_folder(storage: Storage, folder: str) -> None:
    """Remove a folder as far as the storage allows. Deletion may be the broken operation, so errors are ignored."""
    with suppress(LogError):
        if storage.folders is not None:
            storage.folders.remove_folder(folder)
        else:
            for file in list(storage.list(f"{folder}/")):
                storage.delete(file.key)
