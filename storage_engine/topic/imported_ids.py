"""Records the topic ids that imports have taken, so that no two topics of a root ever get the same id.

    meta/@imported/<topic id>.json    {"format":2,"topic":"orders","digest":"..."}

A log directory contains its topic's id, and copies of the directory under other names contain the same id. Two topics
of one id would share a folder under data/, and the sweep of one topic would delete the other's files. A check whether
an id is free is not enough when two imports check together: **one put takes the id**, before a file is written under
it. The second import makes another id.

The id stays taken permanently, also if the topic is deleted or its import was killed: another import of the directory
then gets a new id. Only an import that ends before its commit, and has deleted its files, gives the id back. No topic's
name contains `@`.
"""

from __future__ import annotations

import json

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import FORMAT, begin_root, encode_document

IMPORTED_IDS = "meta/@imported"
"""Where they lie."""


def take_id(storage: Storage, topic_id: str, topic: str) -> bool:
    """Take an id for a topic, durably; False where it is taken, or perhaps is.

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


def give_back_id(storage: Storage, topic_id: str) -> None:
    """Let others take an id. Only the import that took the id may call this, while no file and no state has it."""
    storage.delete(_key(topic_id))


def _key(topic_id: str) -> str:
    return f"{IMPORTED_IDS}/{topic_id}.json"
