"""Handles the folders and files of log/: finds a partition's folder, recognises a file by its bytes, and locks the
folder against brokers while a job works there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from storage_engine.errors import NotFoundError
from storage_engine.log.checkpoint import LOCK
from storage_engine.storage import FolderEntry, Storage, ViewableStorage
from storage_engine.topic.view_record import VIEW, claim_view


def view_folder(topic: str, partition: int) -> str:
    """Where a partition is shown."""
    return f"{VIEW}/{topic}-{partition}"


def hold_lock(storage: Storage) -> AbstractContextManager[None]:
    """Keep Kafka brokers off the view while the block runs; nothing of ours depends on it.

    Raises:
        StateError: log/ is not ours.
        StorageError: a broker runs there.
    """
    if not isinstance(storage, ViewableStorage):
        return nullcontext()
    claim_view(storage)
    return storage.hold_shared(f"{VIEW}/{LOCK}")


def is_shown(storage: ViewableStorage, key: str, data: bytes, entry: FolderEntry | None) -> bool:
    """Whether a file has these bytes."""
    if entry is None or entry.is_folder or entry.size != len(data):
        return False
    try:
        return storage.read(key) == data
    except NotFoundError:
        return False  # removed by another settle since
