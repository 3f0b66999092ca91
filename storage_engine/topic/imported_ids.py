"""Stores the topic ids that imports use, so that no two topics of a root ever have the same id.

    meta/@imported/<topic id>.json    {"format":2,"topic":"orders","digest":"..."}

An import keeps the topic id of the log directory, and copies of one directory contain the same id. Two topics with one
id would share a folder under data/, and the sweep of one topic would delete the other topic's files. Two imports may
check at the same time whether an id is free. So **the put of this record reserves the id**, before any file of the
topic is written. The second import uses a new id.

The id remains reserved, even if the topic is deleted or its import was killed. Another import of the same directory
then gets a new id. Only an import that fails before its commit, and has deleted its files, releases the id. A topic's
name cannot contain `@`, so no topic uses the folder meta/@imported/.
"""

from __future__ import annotations

import json

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import FORMAT, begin_root, encode_document

IMPORTED_IDS = "meta/@imported"
"""The folder of the records."""


def reserve_id(storage: Storage, topic_id: str, topic: str) -> bool:
    """Reserve an id for a topic, durably. Return False if the id is already reserved, or if this is unknown.

    Raises:
        StorageError: the storage refused or failed.
    """
    begin_root(storage)
    key = _key(topic_id)
    body = json.dumps({"format": FORMAT, "topic": topic}, separators=(",", ":")).encode()
    try:
        storage.put_new(key, encode_document(key, body))
    except (AlreadyExistsError, AmbiguousPutError):
        return False
    return True


def release_id(storage: Storage, topic_id: str) -> None:
    """Remove the reservation of an id. Only the import that reserved the id may call this, if no file and no state uses
    it."""
    storage.delete(_key(topic_id))


def _key(topic_id: str) -> str:
    return f"{IMPORTED_IDS}/{topic_id}.json"
