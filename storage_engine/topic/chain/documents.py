"""Encodes and checks the documents under meta/ and the lists under staging/. Each document ends with a digest, and is
valid only if the digest matches the document's bytes.

    {"format":2, ... ,"digest":"<64 hex digits>"}       a JSON object; the digest is its last field
    {"format":2}                                        JSON lines; the digest is the last line
    ...
    {"digest":"<64 hex digits>"}

The digest is the SHA-256 of the key, a newline, and the document's body. The body of an object is its bytes without the
field `digest`. The body of JSON lines is the lines before the digest's line. The digest covers the key, so a document
that was moved or copied to another name is invalid, too. Keys are relative to the root, so a whole root can be moved.

Documents of format 1 have no digest. A document without a digest is accepted only if every part of the document has
format 1. One changed byte cannot turn a document of format 2 into a document of format 1: the changed document would
still have the field `digest`, or would not be complete JSON.

    meta/@root/format.json                              {"format":2,"first":2,"digest":"<64 hex digits>"}

This record, meta/@root/format.json, says that the root has no documents of format 1. In a new root, this record is
stored before every other document. Older roots do not have this record. In a root with this record, a missing digest
is always damage, even if the field `format` was changed, too. The record is read only if a digest is missing. A
topic's name cannot contain `@`, so no topic uses the folder meta/@root/.

One changed byte can be corrected: if a change of one byte makes the digest match, this change restores the original
document (`undo_one_byte`).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, CorruptionError, NotFoundError
from storage_engine.storage import Folders, Storage, exists

FORMAT = 2
"""The format that is written. The number is raised if present readers could misunderstand a new kind of document."""
_FIRST_WITHOUT_DIGEST = 1
_OBJECT_END = re.compile(rb',"digest":"([0-9a-f]{64})"\}\Z')
_LINES_END = re.compile(rb'(?<=\n)\{"digest":"([0-9a-f]{64})"\}\n\Z')
_LINES_BEGIN = b'{"format":%d}\n' % FORMAT
_LINE_OF_FORMAT_1 = b'{"version":'
"""The beginning of every line of format 1. The first line of format 2 begins differently."""
_DIGITS = 64
_UNDO_SECONDS = 20.0
ASIDE = "damaged"
"""The name of a folder beside the documents, for example in meta/<topic>/. It contains copies of damaged documents that
were replaced.
"""
ROOT_FOLDER = "meta/@root"
ROOT_RECORD = f"{ROOT_FOLDER}/format.json"
_ROOT_REMEDY = (
    "`lakelog verify --repair` restores this file if all other documents end with a digest. Otherwise restore this file"
    " from a backup."
)
_OLDER_ROOT = f"If this file was restored from a root without digests, remove {ROOT_RECORD} and try again."


class NewerDocumentError(CorruptionError):
    """A document of a later format. It may be intact, but only newer software can read it."""


def begin_root(storage: Storage) -> None:
    """Record that every document of this root has a digest, if the root has no document yet.

    Call this function before a put that may create the first document of a root.

    Raises:
        StorageError: the storage refused or failed.
    """
    if next(storage.list("meta/"), None) is None:
        try:
            storage.put_new(ROOT_RECORD, root_record())
        except AlreadyExistsError:
            pass  # another process put the record; all processes put the same bytes
        except AmbiguousPutError as unclear:
            if not exists(storage, ROOT_RECORD):
                raise unclear from None
            storage.sync_names(ROOT_FOLDER)


def root_record() -> bytes:
    """The bytes of the root's record, which are the same in every root."""
    return encode_document(ROOT_RECORD, json.dumps({"format": FORMAT, "first": FORMAT}, separators=(",", ":")).encode())


def has_digest(key: str, data: bytes) -> bool:
    """Whether a document ends with a digest. The digest is not checked."""
    return _split(_LINES_END if key.endswith(".jsonl") else _OBJECT_END, data)[1] is not None


def _began_with_digests(storage: Storage, key: str) -> bool:
    """Whether every document of this root, including the given document, was stored with a digest.

    Raises:
        CorruptionError: the root's record (meta/@root/format.json) is damaged.
    """
    if key == ROOT_RECORD:  # never written without a digest: digests are older than this record
        return True
    try:
        data = storage.read(ROOT_RECORD)
    except NotFoundError:
        return False
    decode_document(storage, ROOT_RECORD, data, "the format of the root's documents", _ROOT_REMEDY)
    return True


def encode_document(key: str, body: bytes) -> bytes:
    """A JSON object with its digest as the last field.

    Args:
        key: the key under which the document will be put.
        body: the object as compact JSON, with the field `format`.
    """
    assert body.endswith(b"}"), "a JSON object"
    return b'%b,"digest":"%b"}' % (body[:-1], document_digest(key, body).encode())


def encode_lines(key: str, lines: list[bytes]) -> bytes:
    """JSON lines between a line with the format and a line with the digest."""
    body = _LINES_BEGIN + b"".join(line + b"\n" for line in lines)
    return b'%b{"digest":"%b"}\n' % (body, document_digest(key, body).encode())


def document_digest(key: str, body: bytes) -> str:
    """The digest of a document's key and body, as 64 hex digits."""
    return hashlib.sha256(key.encode() + b"\n" + body).hexdigest()


def decode_document(storage: Storage, key: str, data: bytes, what: str, remedy: str) -> dict[str, Any]:
    """The fields of a document, without the digest, after a check of the digest.

    Args:
        storage: the storage of the document. It is read only if the digest is missing.
        what: names the expected document in an error, for example "a topic's state".
        remedy: tells the reader of an error what to do.

    Returns:
        The object. `format` is 1 if the document has no digest.

    Raises:
        CorruptionError: the document is damaged, was stored under another key, or is of a later format.
    """
    body, digest = _split(_OBJECT_END, data)
    body = body if digest is None else body + b"}"
    _check_digest(key, body, digest, remedy)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(key, 0, what, "no complete JSON object", remedy) from error
    if not isinstance(document, dict):
        raise CorruptionError(key, 0, what, "no JSON object", remedy)
    found = document.get("format", _FIRST_WITHOUT_DIGEST)
    if not isinstance(found, int) or found < _FIRST_WITHOUT_DIGEST:
        raise CorruptionError(key, 0, what, "no format number", remedy)
    if found > FORMAT:
        raise NewerDocumentError(key, 0, f"a document of format {FORMAT}", f"format {found}", "Use a newer Lakelog.")
    if digest is None and (found > _FIRST_WITHOUT_DIGEST or "digest" in document):
        raise CorruptionError(key, len(data), f"{what} that ends with its digest", "none", remedy)
    if digest is None and _began_with_digests(storage, key):
        raise _older_than_root(key, len(data), what, remedy)
    if digest is not None and found == _FIRST_WITHOUT_DIGEST:
        raise CorruptionError(key, 0, f"format {FORMAT} in a document with a digest", f"format {found}", remedy)
    return document


def decode_lines(storage: Storage, key: str, data: bytes, what: str, remedy: str) -> list[bytes]:
    """The lines of a document, without the lines of the format and the digest, after a check of the digest.

    Arguments and errors are those of decode_document.
    """
    body, digest = _split(_LINES_END, data)
    _check_digest(key, body, digest, remedy)
    lines = body.splitlines()
    if digest is None:
        if not lines or not all(line.startswith(_LINE_OF_FORMAT_1) for line in lines):
            raise CorruptionError(key, len(data), f"{what} that ends with its digest", "none", remedy)
        if _began_with_digests(storage, key):
            raise _older_than_root(key, len(data), what, remedy)
        return lines
    if not body.startswith(_LINES_BEGIN):
        raise NewerDocumentError(key, 0, f"a document of format {FORMAT}", "another format", "Use a newer Lakelog.")
    return lines[1:]


def _older_than_root(key: str, position: int, what: str, remedy: str) -> CorruptionError:
    expected = f"{what} that ends with its digest, like every document of this root"
    return CorruptionError(key, position, expected, "none", f"{remedy} {_OLDER_ROOT}".strip())


def set_aside(storage: Storage, key: str, data: bytes) -> None:
    """Copy the bytes of a document that will be replaced to a folder beside the document.

    Raises:
        StorageError: the storage refused or failed.
    """
    folders = key.split("/")
    aside = "/".join((*folders[:2], ASIDE, folders[-1]))
    storage.put_new(f"{aside}.{uuid.uuid4().hex}", data)


def folders_for_documents(
    folders: Folders | None, folder: str, what: str, remedy: str, *, holds_documents: bool = True
) -> Iterator[CorruptionError]:
    """An error for each folder, at any depth, whose name is that of a document. Listings of files do not show folders.

    Args:
        folder: without a slash at its end.
        what, remedy: as in decode_document.
        holds_documents: whether documents are directly in `folder`. meta/ itself has only folders with the names of
            topics, and a topic may be called `events.json`.
    """
    for entry in folders.entries(folder) if folders is not None else ():
        key = f"{folder}/{entry.name}"
        if entry.is_folder and holds_documents and entry.name.endswith((".json", ".jsonl")):
            yield CorruptionError(key, 0, what, "a folder", remedy)
        elif entry.is_folder:
            yield from folders_for_documents(folders, key, what, remedy)


def digest_of(data: bytes) -> str | None:
    """The digest at the end of a document that is a JSON object; None if it has none."""
    found = _OBJECT_END.search(data, max(0, len(data) - _DIGITS - 16))
    return found[1].decode() if found else None


def undo_one_byte(key: str, data: bytes) -> bytes | None:
    """The original document, if exactly one byte of it was changed; None if no change of one byte makes the digest
    match.

    First, each bit of each byte is tried, and then every other value of each byte, for 20 seconds at most. A state of a
    few kilobytes takes less than one second. In a document of more than about 50 kB not all changes can be tried in
    that time. A digest of 256 bits does not match by chance.
    """
    if (found := _undo_in_end(key, data)) is not None:
        return found
    end = time.monotonic() + _UNDO_SECONDS
    for pattern, tail in ((_OBJECT_END, b"}"), (_LINES_END, b"")):
        body, digest = _split(pattern, data)
        if digest is not None:
            body += tail
            fitting = _undone(key, body, digest, end)
            return None if fitting is None else fitting[: len(fitting) - len(tail)] + data[len(body) - len(tail) :]
    return None


def _undone(key: str, body: bytes, digest: str, end: float) -> bytes | None:
    wanted = bytes.fromhex(digest)
    changes = ([1 << bit for bit in range(8)], [value for value in range(1, 256) if value.bit_count() > 1])
    for masks in changes:
        before = hashlib.sha256(key.encode() + b"\n")
        for position, byte in enumerate(body):
            if time.monotonic() > end:
                return None
            rest = body[position + 1 :]
            for mask in masks:
                tried = before.copy()
                tried.update(bytes((byte ^ mask,)) + rest)
                if tried.digest() == wanted:
                    return body[:position] + bytes((byte ^ mask,)) + rest
            before.update(body[position : position + 1])
    return None


def _undo_in_end(key: str, data: bytes) -> bytes | None:
    """The original document, if the changed byte is in the digest or in the fixed text around the digest."""
    size = len(b',"digest":""}') + _DIGITS
    rest = data[:-size]
    line = len(b'{"digest":""}\n') + _DIGITS
    for found in (
        encode_document(key, rest + b"}"),
        b'%b{"digest":"%b"}\n' % (data[:-line], document_digest(key, data[:-line]).encode()),
    ):
        if len(found) == len(data) and sum(a != b for a, b in zip(found, data, strict=True)) == 1:
            return found
    return None


def _split(end: re.Pattern[bytes], data: bytes) -> tuple[bytes, str | None]:
    found = end.search(data, max(0, len(data) - _DIGITS - 16))
    return (data[: found.start()], found[1].decode()) if found else (data, None)


def _check_digest(key: str, body: bytes, digest: str | None, remedy: str) -> None:
    if digest is not None and (fits := document_digest(key, body)) != digest:
        raise CorruptionError(key, 0, f"bytes with digest {digest[:16]}...", f"{fits[:16]}...", remedy)
