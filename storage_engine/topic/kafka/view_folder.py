"""Works with the view (log/). The functions return the name of a partition's folder, compare a file of the view
with expected bytes, and lock the view against Kafka brokers while a job uses the view."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from storage_engine.errors import NotFoundError
from storage_engine.log.checkpoint import LOCK
from storage_engine.storage import FolderEntry, Storage
from storage_engine.topic.view_record import VIEW, claim_view


def view_folder(topic: str, partition: int) -> str:
    """The folder of a partition in the view."""
    return f"{VIEW}/{topic}-{partition}"


def hold_lock(storage: Storage) -> AbstractContextManager[None]:
    """Lock the view against Kafka brokers during the block. The correctness of Lakelog does not depend on this lock.

    Raises:
        StateError: log/ is not the view of this root.
        StorageError: a broker runs on the view.
    """
    if storage.view is None:
        return nullcontext()
    claim_view(storage, storage.view)
    return storage.view.hold_shared(f"{VIEW}/{LOCK}")


def is_shown(storage: Storage, key: str, data: bytes, entry: FolderEntry | None) -> bool:
    """Whether a file has these bytes."""
    if entry is None or entry.is_folder or entry.size != len(data):
        return False
    try:
        return storage.read(key) == data
    except NotFoundError:
        return False  # another process that settles has deleted the file meanwhile
