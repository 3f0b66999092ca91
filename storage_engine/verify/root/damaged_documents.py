"""Finds the documents under meta/ and the lists under staging/ whose bytes do not match their digests. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_list import STAGED_LISTS
from storage_engine.topic.chain.documents import (
    ASIDE,
    ROOT_FOLDER,
    ROOT_RECORD,
    decode_document,
    decode_lines,
    has_digest,
)

A_DOCUMENT = "a document"


def damaged_documents(storage: Storage, topic: str | None = None) -> Iterator[CorruptionError]:
    """The documents that do not match their digests: all documents under meta/, or those of one topic, and all lists
    under staging/.

    The root's own record comes first, because it shows whether the other documents must have a digest. The caller can
    repair this record before the other documents are read.
    """
    for key in _document_keys(storage, topic):
        try:
            data = storage.read(key)
        except NotFoundError:
            continue  # a commit, a pruning or a consumer has removed it meanwhile
        try:
            _check(storage, key, data)
        except CorruptionError as error:
            if error.file == key:  # otherwise the error is again the one about the root's record
                yield error


def all_have_digests(storage: Storage) -> bool:
    """Whether all documents of the root end with a digest, apart from the root's own record."""
    for key in _document_keys(storage, None):
        with suppress(NotFoundError):  # removed meanwhile
            if key != ROOT_RECORD and not has_digest(key, storage.read(key)):
                return False
    return True


def _document_keys(storage: Storage, topic: str | None) -> list[str]:
    prefixes = (f"meta/{topic}/",) if topic else ("meta/", f"{STAGED_LISTS}/")
    listed = (file.key for prefix in (f"{ROOT_FOLDER}/", *prefixes) for file in storage.list(prefix))
    keys = dict.fromkeys(listed)  # the first key is listed twice
    return [key for key in keys if key.endswith((".json", ".jsonl")) and key.split("/")[2:3] != [ASIDE]]


def _check(storage: Storage, key: str, data: bytes) -> None:
    if key.endswith(".jsonl"):
        decode_lines(storage, key, data, A_DOCUMENT, "")
    else:
        decode_document(storage, key, data, A_DOCUMENT, "")
