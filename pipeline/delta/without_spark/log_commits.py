"""Writes commits into Delta's log. Delta's log accepts each version once, so a commit is a put-if-absent.

<table>/_delta_log/00000000000000000011.json    the commit of version 11: one action per line
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from storage_engine.errors import AlreadyExistsError
from storage_engine.storage import Storage


def log_json(document: Mapping[str, Any]) -> str:
    """A document in the form of Delta's log: one line, with all letters unescaped. deltalake reads some escapes wrongly.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def commit_key(version: int) -> str:
    """The key of a commit in the folder of the table."""
    return f"_delta_log/{version:020d}.json"


def put_commit(storage: Storage, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Make a version of the table. False: another writer has made this version.

    Args:
        storage: the storage that begins at the table.

    Raises:
        StorageError: the commit cannot be written.
    """
    content = "".join(f"{log_json(action)}\n" for action in actions).encode()
    try:
        storage.put_new(commit_key(version), content)
    except AlreadyExistsError:
        return storage.read(commit_key(version)) == content  # equal: the reply to an earlier try was lost
    return True
