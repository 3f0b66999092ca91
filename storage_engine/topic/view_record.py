"""Records that the folder log/ of a root is its view, because settling deletes all other files from log/.

    meta/@view/log.json    {"format":2,"view":"log","digest":"..."}

The record is put while log/ is empty or missing, before the first file is shown there. An existing log/ without a
record belongs to another program: a system or a Kafka broker in whose directory a topic was created. Settling leaves it
alone and raises an error. Views older than the record are recognised by their meta.properties, which has no comment in
its first line; a broker's file has one.
"""

from __future__ import annotations

import json
from contextlib import suppress

from storage_engine.errors import AlreadyExistsError, CorruptionError, NotFoundError, StateError, StorageError
from storage_engine.log.checkpoint import LOCK, META_PROPERTIES, decode_meta_properties, encode_meta_properties
from storage_engine.storage import Storage, ViewableStorage
from storage_engine.topic.chain.documents import FORMAT, encode_document

VIEW = "log"
VIEW_RECORDS = "meta/@view"
"""Where it is on record that the view is a root's own."""
_RECORD = f"{VIEW_RECORDS}/log.json"
OURS = "the view of this root"
NOT_OURS = "Settling would delete it. Use another root; or remove this folder, if it is the view of one: all of it is made again."


def claim_view(storage: ViewableStorage) -> None:
    """Make sure that log/ is this root's own, and put that on record.

    Raises:
        StateError: it is somebody else's. Nothing was changed.
        StorageError: the storage refused or failed.
    """
    if is_on_record(storage):
        return
    if strangers := strangers_in_view(storage):
        raise StateError(f"{storage.uri}/{VIEW}", f"expected {OURS}, found {strangers}", NOT_OURS)
    with suppress(AlreadyExistsError):
        body = json.dumps({"format": FORMAT, "view": VIEW}, separators=(",", ":")).encode()
        storage.put_new(_RECORD, encode_document(_RECORD, body))


def strangers_in_view(storage: ViewableStorage) -> str | None:
    """What lies in a log/ that is somebody else's, as a text; None where it is ours, or nobody's yet."""
    there = sum(entry.name != LOCK for entry in storage.entries(VIEW))
    # Only then the record: what another process has shown meanwhile, it has shown behind it.
    if not there or is_on_record(storage) or _has_our_properties(storage):
        return None
    return f"{there:,} files or folders that Lakelog did not make"


def is_on_record(storage: Storage) -> bool:
    """Whether a process of ours has put on record that log/ is this root's view."""
    try:
        storage.read(_RECORD)
    except NotFoundError:
        return False
    return True


def _has_our_properties(storage: Storage) -> bool:
    try:
        data = storage.read(f"{VIEW}/{META_PROPERTIES}")
        return encode_meta_properties(decode_meta_properties(data, META_PROPERTIES)) == data
    except (CorruptionError, StorageError):
        return False
