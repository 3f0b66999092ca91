"""Puts the roots of tests on the kind of storage that LAKELOG_TEST_STORE names.

    posix   a local directory (the default)
    s3      a real S3 server, versitygw
    azure   Azurite, an emulator of Azure Blob Storage
    hdfs    a NameNode with two DataNodes

A test names its root by a local path, for example `tmp_path / "root"`. `root_at` returns the root that belongs to this
path: the path itself, or a place in the server of this run. `storage_at` opens this root. Processes that a test starts
find the same root, because an environment variable contains the place of all roots.

A test that depends on local files has the marker `posix` with the reason: @pytest.mark.posix("reads the view"). `make
test-stores` leaves out these tests. `make test-stores` also leaves out the tests that use neither `root_at` nor
`storage_at`, because such tests do the same for each kind of storage. A test with the fixture `stored_root`
(tests.roots.stored_roots) runs on each store anyway.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
from typing_extensions import Buffer

from storage_engine.storage import Storage, StoredFile
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.storage_opening import open_storage
from storage_engine.storage.storage_options import VARIABLE
from storage_engine.topic.append import new_files_publisher
from tests.servers.object_server import ObjectServer

STORE = os.environ.get("LAKELOG_TEST_STORE", "posix")
STORES = ("posix", "s3", "azure", "hdfs")
_BUCKET = "TEST_STORE_BUCKET"
"""The environment variable with the URI of the place that contains the roots: a bucket, or a folder of HDFS."""


def root_at(path: Path | str) -> str:
    """The URI of the root that belongs to an absolute local path. deltalake cannot handle spaces in paths of HDFS."""
    if STORE == "posix" and _BUCKET not in os.environ:
        return str(path)
    return f"{os.environ[_BUCKET]}{str(path).replace(' ', '-') if STORE == 'hdfs' else path}"


def storage_at(path: Path | str) -> Storage:
    """The storage of the root that belongs to an absolute local path."""
    return open_storage(root_at(path))


def copy_root(source: Storage, target: Storage) -> None:
    """Copy all files of a root into another root. Times are copied where a storage lets a client set times."""
    if source.root is not None and target.root is not None:
        shutil.copytree(source.root, target.root)
        return
    for file in _files(source):
        target.replace(file.key, source.read(file.key))


def clear_root(storage: Storage) -> None:
    """Delete all files of a root, to save time and space."""
    if storage.root is not None:
        shutil.rmtree(storage.root)
        return
    for file in _files(storage):
        storage.delete(file.key)


def _files(storage: Storage) -> list[StoredFile]:
    return [file for folder in ("data/", "meta/", "staging/") for file in storage.list(folder)]


def files_below(storage: Storage, folder: str) -> list[str]:
    """The keys of all files in a folder, also of files that no listing shows. `folder` ends with `/`."""
    if storage.folders is None:
        return [file.key for file in storage.list(folder)]
    found = []
    for entry in storage.folders.entries(folder):
        key = f"{folder}{entry.name}"
        found += files_below(storage, f"{key}/") if entry.is_folder else [key]
    return found


def is_untouched(storage: Storage) -> bool:
    """Whether there is no file of this root, and no folder."""
    if storage.folders is not None:
        return not storage.folders.entries("") and not storage.folders.is_empty_folder()
    return not any(files_below(storage, folder) for folder in ("data/", "meta/", "staging/", "checkpoints/", "tables/"))


def delete_folder(storage: Storage, folder: str) -> None:
    """Delete a folder with all its files."""
    if storage.folders is not None:
        storage.folders.remove_folder(folder)
        return
    for key in files_below(storage, folder):
        storage.delete(key)


def local(storage: Storage) -> PosixStorage:
    """A storage that is certainly local, for a test with the marker `posix`."""
    assert isinstance(storage, PosixStorage)
    return storage


class StoreFile:
    """A file in a store, with the methods of a path that tests use to look at files and to damage them."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key

    def __str__(self) -> str:
        return f"{self._storage.uri}/{self._key}"

    @property
    def name(self) -> str:
        return self._key.rpartition("/")[2]

    def read_bytes(self) -> bytes:
        return self._storage.read(self._key)

    def write_bytes(self, data: Buffer) -> None:
        self._storage.replace(self._key, data)

    def unlink(self) -> None:
        self._storage.delete(self._key)


def file_in(storage: Storage, key: str) -> Path | StoreFile:
    """A file of a root: a path if the root is local."""
    return storage.root / key if storage.root is not None else StoreFile(storage, key)


@contextmanager
def segments_as_on_a_file_system() -> Iterator[None]:
    """If the roots are in a store, no append of this process continues a segment of another writer, as on a file system.
    So tests of cleaning and reading find the same segments on each kind of storage. A test of continued segments sets
    _MOST_READ itself.
    """
    most = new_files_publisher._MOST_READ if STORE == "posix" else 0
    with patch.object(new_files_publisher, "_MOST_READ", most):
        yield


@contextmanager
def serving_store() -> Iterator[ObjectServer | None]:
    """Start the server of LAKELOG_TEST_STORE, with an empty place for all roots, and set the environment of clients.

    With a root in a store, too, each process that appends begins a segment (segments_as_on_a_file_system).

    The result is None if the store is no object store.
    """
    if STORE not in STORES:
        raise pytest.UsageError(f"LAKELOG_TEST_STORE is {STORE!r}, expected one of {', '.join(STORES)}")
    with patch.dict(os.environ), segments_as_on_a_file_system():
        os.environ.pop("LAKELOG_TEST_STORE", None)  # jobs refuse variables that begin like their settings
        if STORE == "posix":
            yield None
        elif STORE == "hdfs":
            from tests.servers.minicluster import HdfsCluster

            with HdfsCluster() as cluster, patch.dict(os.environ, {_BUCKET: f"{cluster.uri}roots"}):
                yield None
        else:
            with _object_server() as server, patch.dict(os.environ, environment(server, new_bucket(server))):
                yield server


@contextmanager
def bucket_of_its_own(server: ObjectServer | None) -> Iterator[None]:
    """In the block, all roots are in a new bucket, if the server becomes slower with many objects. Azurite looks at all its
    objects to list one folder."""
    if server is None or server.delete_bucket is None:
        yield
        return
    bucket = new_bucket(server)
    with patch.dict(os.environ, environment(server, bucket)):
        yield
    server.delete_bucket(bucket)


def environment(server: ObjectServer, bucket: str) -> Mapping[str, str]:
    """The environment of a client of this server."""
    return {VARIABLE: json.dumps(server.config), _BUCKET: server.uri_of(bucket)}


def new_bucket(server: ObjectServer) -> str:
    name = f"lake-{uuid.uuid4().hex}"
    server.create_bucket(name)
    return name


def _object_server() -> AbstractContextManager[ObjectServer]:
    from tests.servers.azurite import azure_server
    from tests.servers.versitygw import s3_server

    return s3_server() if STORE == "s3" else azure_server()


def choose_tests(items: list[pytest.Item]) -> list[pytest.Item]:
    """Skip the tests that need local files. Returns the tests that are independent of LAKELOG_TEST_STORE."""
    if STORE == "posix":
        return []
    for item in items:
        marker = item.get_closest_marker("posix")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs local files: {marker.args[0]}"))
    functions = [item for item in items if isinstance(item, pytest.Function)]
    return [item for item in functions if "stored_root" in item.fixturenames or not _uses_stores(item)]


def _uses_stores(test: pytest.Function) -> bool:
    """Whether the module of a test, or of one of its fixtures, uses this module, directly or through other modules."""
    fixtures = test._fixtureinfo.name2fixturedefs.values()
    names = {each.func.__module__ for definitions in fixtures for each in definitions}
    return any(
        __name__ in _used_modules(name) for name in {test.module.__name__, *names} if not name.endswith("conftest")
    )


@cache
def _used_modules(name: str) -> frozenset[str]:
    """The modules of tests that a module uses, and the module itself."""
    found, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name not in found and name.startswith("tests.") and module is not None:
            found.add(name)
            waiting += [
                value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
                for value in vars(module).values()
            ]
    return frozenset(found)
