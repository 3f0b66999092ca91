"""Documents with a digest: which documents are accepted, which documents count as damage, and how one changed byte is
corrected.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage_engine.errors import CorruptionError
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import (
    begin_root,
    decode_document,
    decode_lines,
    encode_document,
    encode_lines,
    undo_one_byte,
)
from tests.stores import storage_at

KEY = "meta/t/00000000000000000007.json"
BODY = b'{"format":2,"id":"5c0e","partitions":[[0,9],[1,8]]}'
ROOT_RECORD = "meta/@root/format.json"
LINES = [b'{"version":1,"change":"a"}', b'{"version":2,"change":"b"}']


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A root that is older than digests are: nothing says that all its documents have one."""
    return storage_at(tmp_path / "root")


def test_a_document_is_its_body_with_a_digest_of_key_and_body(storage: Storage) -> None:
    # printf 'meta/t/00000000000000000007.json\n%s' "$body" | sha256sum
    digest = b"c622ec9bccc8c37d023688ed3f2153b48e5cd3c185e324ee44f652b9e90f922a"
    data = encode_document(KEY, BODY)
    assert data == BODY[:-1] + b',"digest":"' + digest + b'"}'
    assert decode_document(storage, KEY, data, "a document", "") == {
        "format": 2,
        "id": "5c0e",
        "partitions": [[0, 9], [1, 8]],
    }


@pytest.mark.parametrize("data", [encode_document(KEY, BODY), encode_lines(KEY, LINES)], ids=["object", "lines"])
def test_no_other_byte_anywhere_is_believed(storage: Storage, data: bytes) -> None:
    decode = decode_document if data.startswith(b'{"format":2,') else decode_lines
    for position in range(len(data)):
        for value in {data[position] ^ 1 << bit for bit in range(8)} | {0, 10, 32, 48, 49, 57, 34, 125, 255}:
            changed = data[:position] + bytes((value,)) + data[position + 1 :]
            if changed != data:
                with pytest.raises(CorruptionError):
                    decode(storage, KEY, changed, "a document", "")
    for size in range(1, len(data)):
        with pytest.raises(CorruptionError):
            decode(storage, KEY, data[:size], "a document", "")


@pytest.mark.parametrize("data", [encode_document(KEY, BODY), encode_lines(KEY, LINES)], ids=["object", "lines"])
def test_a_document_under_another_key_is_not_believed(storage: Storage, data: bytes) -> None:
    decode = decode_document if data.startswith(b'{"format":2,') else decode_lines
    with pytest.raises(CorruptionError, match="with digest"):
        decode(storage, "meta/t/00000000000000000008.json", data, "a document", "")


def test_without_a_digest_only_format_1_is_believed(storage: Storage) -> None:
    assert decode_document(storage, KEY, b'{"format":1,"id":"x"}', "a document", "") == {"format": 1, "id": "x"}
    assert decode_document(storage, KEY, b'{"topic":"x"}', "a document", "") == {"topic": "x"}
    assert decode_lines(storage, KEY, LINES[0] + b"\n", "lines", "") == LINES[:1]
    for body in (BODY, b'{"format":1,"digest":"x"}'):
        with pytest.raises(CorruptionError, match="ends with its digest"):
            decode_document(storage, KEY, body, "a document", "")
    with pytest.raises(CorruptionError, match=r"found format 3\. Use a newer Lakelog"):
        decode_document(storage, KEY, encode_document(KEY, b'{"format":3}'), "a document", "")


def test_a_root_that_begins_now_has_no_document_without_a_digest(storage: Storage) -> None:
    begin_root(storage)
    assert decode_document(storage, ROOT_RECORD, storage.read(ROOT_RECORD), "", "") == {"format": 2, "first": 2}
    for document in (b'{"format":1,"id":"x"}', b'{"topic":"x"}', b'{"format":true}'):
        with pytest.raises(CorruptionError, match="ends with its digest, like every document of this root, found none"):
            decode_document(storage, KEY, document, "a document", "")
    with pytest.raises(CorruptionError, match="ends with its digest, like every document of this root, found none"):
        decode_lines(storage, KEY, LINES[0] + b"\n", "lines", "")
    for record in (b"", b'{"format":1,"first":1}', storage.read(ROOT_RECORD).replace(b'"first":2', b'"first":1')):
        storage.replace(ROOT_RECORD, record)
        with pytest.raises(CorruptionError, match=ROOT_RECORD):
            decode_document(storage, KEY, b'{"format":1,"id":"x"}', "a document", "")


def test_a_root_that_has_documents_already_may_have_some_of_format_1(storage: Storage) -> None:
    storage.put_new(KEY, b'{"format":1,"id":"x"}')
    begin_root(storage)
    assert [file.key for file in storage.list("meta/")] == [KEY]
    assert decode_document(storage, KEY, storage.read(KEY), "a document", "") == {"format": 1, "id": "x"}


@pytest.mark.parametrize("seed", range(30))
def test_one_changed_byte_is_undone_and_two_are_not(seed: int) -> None:
    chance = random.Random(seed)
    data = encode_document(KEY, BODY) if seed % 2 else encode_lines(KEY, LINES)
    damaged = bytearray(data)
    first, second = chance.sample(range(len(data)), 2)
    damaged[first] ^= chance.randrange(1, 256)
    assert undo_one_byte(KEY, bytes(damaged)) == data
    damaged[second] ^= chance.randrange(1, 256)
    assert undo_one_byte(KEY, bytes(damaged)) is None
