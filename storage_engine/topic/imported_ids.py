"""Which topic ids imports have taken, so that no two topics of a root ever get the same.

    meta/@imported/<topic id>.json    {"format":2,"topic":"orders","digest":"..."}

A log directory brings its topic's id along, and copies of it under other names bring the same. Two topics of one id would
share a folder under data/, and the sweep of one would delete the other's files. Looking whether an id is free is not
enough when two imports look at once: **one put takes it**, before anything is written under it. Who comes second draws
another.

It stays taken for good, also when the topic is gone or its import was killed: another import of it then gets a new id.
Only an import that ends before its commit, and has deleted what it wrote, gives it back. `@` stands in no topic's name.
"""

from __future__ import annotations

import json

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError
from storage_engine.storage import Storage
from storage_engine.topic.documents import FORMAT, begin_root, encode_document

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
    """Let others take an id. To be called by whoever took it, while no file and no state has it."""
    storage.delete(_key(topic_id))


def _key(topic_id: str) -> str:
    return f"{IMPORTED_IDS}/{topic_id}.json"
