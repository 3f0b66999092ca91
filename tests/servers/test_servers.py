"""Tests the servers through Lakelog's own storage: the server gives the guarantees that a commit needs, and a root
never shows the files of another root.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from storage_engine.errors import AlreadyExistsError
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import open_storage
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

KEYS = ["a-b", "a.x", "a/b", "a/b.x", "a/b/c", "a/é", "a0", "b/c"]
"""In the order of the keys. A directory of a server's own files has another order."""


@pytest.fixture
def storage(
    server_of_roots: ObjectServer | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """On the server of LAKELOG_TEST_STORE, or else on the S3 server."""
    server: ObjectServer = server_of_roots or request.getfixturevalue("s3")
    bucket = new_bucket(server)
    for name, value in environment(server, bucket).items():
        monkeypatch.setenv(name, value)
    open_storage(f"{server.uri_of(bucket)}/some/root2").put_new("of/another/root", b"")
    return open_storage(f"{server.uri_of(bucket)}/some/root")


def test_one_of_many_creators_of_a_file_wins(storage: Storage) -> None:
    def create(number: int) -> bytes | None:
        data = b"creator %d" % number
        try:
            storage.put_new("t/1.json", data)
        except AlreadyExistsError:
            return None
        return data

    with ThreadPoolExecutor(8) as pool:
        won = [data for data in pool.map(create, range(8)) if data is not None]
    assert won == [storage.read("t/1.json")]


def test_a_listing_is_complete_and_in_the_order_of_the_keys(storage: Storage) -> None:
    for key in reversed(KEYS):
        if key != "a/b":  # on this S3 server, a file cannot be a folder
            storage.put_new(key, key.encode())
    assert [file.key for file in storage.list("a/")] == ["a/b.x", "a/b/c", "a/é"]
    assert [file.key for file in storage.list("a/", after="a/b.x")] == ["a/b/c", "a/é"]
    assert [file.key for file in storage.list("b/")] == ["b/c"]
    storage.delete("a/b/c")
    assert [file.key for file in storage.list("a/b/")] == []


def test_a_listing_of_several_pages_is_complete(storage: Storage) -> None:
    keys = [f"t/{number:05}" for number in range(2_100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.replace(key, b""), keys))
    assert [file.key for file in storage.list("t/")] == keys
    assert [file.key for file in storage.list("t/", after=keys[1_500])] == keys[1_501:]


def test_a_root_in_a_store_opens_in_every_process(s3_root: str) -> None:
    open_storage(s3_root).put_new("a", b"1")
    assert open_storage(s3_root).read("a") == b"1"


def test_both_spellings_of_a_uri_open_the_same_root(storage: Storage) -> None:
    storage.put_new("a", b"1")
    scheme, rest = storage.uri.split("://")
    bucket, _, path = rest.partition("/")
    other = f"s3a://{rest}" if scheme == "s3" else f"az://{bucket.partition('@')[0]}/{path}"
    assert open_storage(other).read("a") == b"1"
