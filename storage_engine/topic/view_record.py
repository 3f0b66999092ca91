"""Writes a document that marks the folder log/ of a root as the root's view (topic.kafka.view).

Settling deletes all other files from the view, so settling must not run on a folder log/ that belongs to another
program.

    meta/@view/log.json    {"format":2,"view":"log","digest":"..."}

This document, the record, is stored while log/ is empty or missing, before the first file is written into log/. A
folder log/ without the record belongs to another program. For example, someone may have created a topic in the
directory of a Kafka broker. If the record is missing, settling changes nothing and raises an error. Older versions of
Lakelog wrote no record. The views of older versions are recognised by meta.properties: unlike a broker's
meta.properties, this file does not begin with a comment.
"""

from __future__ import annotations

import json
from contextlib import suppress

from storage_engine.errors import AlreadyExistsError, CorruptionError, NotFoundError, StateError, StorageError
from storage_engine.log.checkpoint import LOCK, META_PROPERTIES, decode_meta_properties, encode_meta_properties
from storage_engine.storage import Folders, Storage
from storage_engine.topic.chain.documents import FORMAT, encode_document

VIEW = "log"
VIEW_RECORDS = "meta/@view"
"""The folder of the record."""
_RECORD = f"{VIEW_RECORDS}/log.json"
OURS = "the view of this root"
NOT_OURS = (
    "Settling would delete these files. Use another root. Or, if this folder is the view of a root, remove the folder;"
    " settling then writes the whole view again."
)


def claim_view(storage: Storage, folders: Folders) -> None:
    """Check that log/ is the view of this root, and record that.

    Raises:
        StateError: log/ belongs to another program. Nothing was changed.
        StorageError: the storage refused or failed.
    """
    if is_on_record(storage):
        return
    if foreign := foreign_files_in_view(storage, folders):
        raise StateError(f"{storage.uri}/{VIEW}", f"expected {OURS}, found {foreign}", NOT_OURS)
    with suppress(AlreadyExistsError):
        body = json.dumps({"format": FORMAT, "view": VIEW}, separators=(",", ":")).encode()
        storage.put_new(_RECORD, encode_document(_RECORD, body))


def foreign_files_in_view(storage: Storage, folders: Folders) -> str | None:
    """A text about the files in log/, if they belong to another program; None if log/ is this root's view, empty or
    missing."""
    there = sum(entry.name != LOCK for entry in folders.entries(VIEW))
    # The record must be read after the listing: another process puts the record before it writes files.
    if not there or is_on_record(storage) or _has_our_properties(storage):
        return None
    return f"{there:,} files or folders that Lakelog did not make"


def is_on_record(storage: Storage) -> bool:
    """Whether the root has the record that log/ is its view."""
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
