"""Implements Storage for object stores: S3, Google Cloud Storage and Azure Blob Storage, by the package obstore.

An object is created whole or not at all, is durable as soon as it is visible, and cannot grow. So an object store has
none of the capabilities that storage/__init__.py lists.

**put_new** is a conditional put (`If-None-Match: *` on S3 and Azure, generation 0 on Google). The reply can be lost
after the store has executed the put. A store can also answer "conflict" (409), which does not say whether the put
succeeded. So each put carries a random mark in the object's metadata. After every unclear answer, put_new reads the
object's metadata: the mark shows whether the put succeeded. If there is no object, put_new tries again with the same
mark. If the result is still unknown after the last attempt, or if the metadata cannot be read, the caller gets
AmbiguousPutError.

Some stores, and proxies in front of stores, ignore such a condition. With such a store, two writers could both create
the same object. So before its first conditional put, each process creates one random name twice, and then replaces the
object twice, both times on the condition that it has its first content. Each time the second put must be refused;
otherwise the process ends with an error. The random name is <root>/.tmp-<16 hex digits>. A process that is killed
during this check leaves the object. Each check deletes such objects that are at least an hour old.

**replace** is also conditional (`If-Match`): the object must still have the content that this process saw last. A put
whose reply was lost can reach the store late, perhaps after the next replacement. Then the condition of the late put
is no longer true, so this put cannot bring back the older content. On S3, the condition compares only the bytes (their
ETag), not the metadata. So the caller must not store bytes again that the object has had before.

obstore repeats all other requests for up to 30 seconds. Repeating these requests is harmless: data files have random
names, and are always written with the same bytes. If only the beginning of a reply arrives, obstore repeats some
reads. obstore repeats no listing, no deletion, and no read of a missing file; this module repeats these requests. A
listing continues after the last key that arrived.

A file larger than one part (8 MiB) is uploaded in parts. If the writer dies during an upload in parts, the store
keeps the parts, invisible, until a lifecycle rule deletes them. Large reads are divided into parts that are read in
parallel.

Error messages contain the HTTP status and the store's error code. The messages never contain the text of the store's
answer, because this text can contain parts of the credentials.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    NotFoundError,
    StorageError,
    StorageUnavailableError,
    UnsupportedError,
)
from storage_engine.quantities import milliseconds_of
from storage_engine.storage import TEMPORARY, TEMPORARY_NAME, NewFile, StoredFile, check_key, temporary_name
from storage_engine.storage.objects.marked_put import MARK, MarkedPut, version_of
from storage_engine.storage.objects.object_errors import (
    PAUSES,
    is_beyond_end,
    pause_or_raise,
    repeated,
    storage_error,
)
from storage_engine.storage.objects.object_store_access import checked_uri, object_store

if TYPE_CHECKING:
    from obstore import BufferedWriter, ObjectMeta, UpdateVersion  # type: ignore[attr-defined]
    from obstore.store import ObjectStore

_OLD = timedelta(hours=1)
_PART_BYTES = 8 * 1024**2
_PARTS_AT_ONCE = 4
_LARGE_READ = 4 * 1024**2
"""A longer range is read in parts."""
_READ_PART = 2 * 1024**2
_READS_AT_ONCE = 4
_MOST_VERSIONS = 1_000
"""How many replaced objects a storage remembers, so that it need not look up an object before the next replacement."""


class ObjectStorage:
    """The objects under one prefix, without any capability. The protocol Storage states what each verb guarantees."""

    is_durable_when_visible = True
    reads_at_once = 8
    root = growing = links = folders = view = directory = None

    def __init__(self, uri: str) -> None:
        """
        Args:
            uri: bucket and prefix, for example s3://bucket/prefix.

        Raises:
            ConfigError: the URI is wrong, or a package is missing.
        """
        self.uri = checked_uri(uri)
        self._store = object_store(self.uri, retries=True)
        self._once = object_store(self.uri, retries=False)
        self._versions: dict[str, UpdateVersion] = {}

    def put_new(self, key: str, data: Buffer) -> None:
        self._check_conditions()
        self._create(key, data)

    def _check_conditions(self) -> None:
        """Check, once in each process, that the store refuses a second put of a name, and a put that replaces a content
        which was already replaced.
        """
        with _CHECKS:
            if self.uri in _CHECKED:
                return
            key = temporary_name()
            try:
                ignored = self._ignored_condition(key)
            except AmbiguousPutError as error:  # nobody needs this file
                remedy = "Check the network and the endpoint of the store, then repeat the command."
                raise StorageUnavailableError(error.place, error.problem, remedy) from None
            self._delete_old_checks(key)
            self.delete(key)
            if ignored is None:
                _CHECKED.add(self.uri)
                return
        raise UnsupportedError(
            f"root {self.uri}", f"this store overwrites an object although the request forbids it ({ignored})",
            "Two writers could both succeed. Use a store with conditional puts, and no proxy that removes headers.",
        )  # fmt: skip

    def _ignored_condition(self, key: str) -> str | None:
        """Try each condition with a file that nobody needs. Returns the header that the store ignores."""
        self._create(key, b"first")
        with suppress(AlreadyExistsError):
            self._create(key, b"second")
            return "If-None-Match: *"
        first = self._version(key)
        if first is not None:
            self._replace(key, b"third")
            late = MarkedPut(self._once, key, b"late", self._place(key))
            if late.attempt(first) is not None or (late.is_unclear and self._mark(key) == late.mark):
                return "If-Match"
        return None

    def _delete_old_checks(self, mine: str) -> None:
        """Delete the objects that killed processes left during this check, if they are at least an hour old by the store's
        clock. `mine` is the object of this check. If the store refuses, a later check tries again.
        """
        with suppress(StorageError), self.named(mine):
            times = {}
            for found in chain.from_iterable(self._store.list()):
                if found["path"] > f"{TEMPORARY}g":  # after all hexadecimal digits
                    break
                if TEMPORARY_NAME.fullmatch(found["path"]):
                    times[found["path"]] = found["last_modified"]
            for key, time_left in times.items():
                if mine in times and times[mine] - time_left >= _OLD:
                    self.delete(key)

    def _create(self, key: str, data: Buffer) -> None:
        check_key(key)
        put = MarkedPut(self._once, key, data, self._place(key))
        for pause in (*PAUSES, None):
            if put.attempt("create") is not None:
                return
            try:
                found = self._mark(key)
            except StorageError as error:
                raise self._ambiguous(key, error.problem) from None
            if found == put.mark:
                return
            if found is not None:
                raise AlreadyExistsError(
                    self._place(key), "already exists", "Another process has created a file of this name."
                )
            if pause is not None:
                time.sleep(pause)
        if put.is_unclear:
            raise self._ambiguous(key, f"the store did not answer whether it created the file{put.last_answer}")
        raise StorageUnavailableError(
            self._place(key), f"the store answered {len(PAUSES) + 1} times that other requests conflict with this one (409)",
            "Repeat the command later.",
        )  # fmt: skip

    def _mark(self, key: str) -> str | None:
        """The mark of an object; empty if it has none; None if there is no object."""
        with suppress(NotFoundError), self.named(key):
            found = self._store.get(key, options={"head": True})
            return str(found.attributes.get(MARK, ""))
        return None

    def _ambiguous(self, key: str, problem: str) -> AmbiguousPutError:
        return AmbiguousPutError(self._place(key), problem, "Check whether the file exists, and what it contains.")

    def replace(self, key: str, data: Buffer) -> None:
        self._check_conditions()
        self._replace(key, data)

    def _replace(self, key: str, data: Buffer) -> None:
        check_key(key)
        put = MarkedPut(self._once, key, data, self._place(key))
        for pause in (*PAUSES, None):
            known = self._versions.pop(key, None)
            written = put.attempt(known or self._version(key) or "create")
            if written is not None:
                if len(self._versions) >= _MOST_VERSIONS:
                    self._versions.clear()
                self._versions[key] = version_of(written)
                return
            if self._mark(key) == put.mark:
                return
            if pause is not None:
                time.sleep(pause)
        raise StorageUnavailableError(
            self._place(key), f"could not be replaced in {len(PAUSES) + 1} attempts{put.last_answer}",
            "Repeat the command later.",
        )  # fmt: skip

    def _version(self, key: str) -> UpdateVersion | None:
        """What identifies the present content of an object; None if there is no object."""
        with suppress(NotFoundError), self.named(key):
            return version_of(self._store.head(key))
        return None

    def new_file(self, key: str, *, durable: bool = True) -> _NewObject:  # noqa: ARG002 - objects are always durable
        return _NewObject(self, self._store, key)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if length is not None and length <= 0:
            return b""
        with self.named(key):
            return repeated(lambda: self._read(key, start, length))

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        from obstore.exceptions import BaseError

        try:
            if length is not None and length <= _LARGE_READ:
                return bytes(self._store.get_range(key, start=start, length=length))
            if length is not None:
                return self._read_parts(key, start, start + length)
            found = self._store.get(key, options={"range": {"offset": start}} if start else None)
            if found.meta["size"] - start > _LARGE_READ:
                return self._read_parts(key, start, found.meta["size"])
            return bytes(found.bytes())
        except BaseError as error:
            if not is_beyond_end(error):  # a part begins behind the file's end
                raise
        size = int(self._store.head(key)["size"])
        return self._read_parts(key, start, size) if start < size else b""

    def _read_parts(self, key: str, start: int, end: int) -> bytes:
        """Read a range in parts, several at once: one connection does not use the whole bandwidth of a store."""
        starts = range(start, end, _READ_PART)
        with ThreadPoolExecutor(min(_READS_AT_ONCE, len(starts))) as threads:
            return b"".join(
                threads.map(
                    lambda begin: self._store.get_range(key, start=begin, end=min(end, begin + _READ_PART)), starts
                )
            )

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        """Like Storage.list. Hadoop marks a folder by an empty object whose name ends with `/`. obstore lists it without
        this `/`. So an empty file is left out if the next file is below a folder of the same name.
        """
        empty: StoredFile | None = None
        for file in self._listed(prefix, after):
            if empty is not None and not file.key.startswith(f"{empty.key}/"):
                yield empty
            empty = None if file.size else file
            if file.size:
                yield file
        if empty is not None:
            yield empty

    def _listed(self, prefix: str, after: str) -> Iterator[StoredFile]:
        from obstore.exceptions import BaseError

        last, pauses = after, iter(PAUSES)
        with self.named(prefix.removesuffix("/")):
            while True:
                try:
                    for found in self._in_order(self._store.list(prefix, offset=last or None)):
                        pauses = iter(PAUSES)
                        key = found["path"]
                        if key <= last:  # a store that ignores the offset lists these keys again
                            continue
                        last = key
                        if not key.rpartition("/")[2].startswith(TEMPORARY):
                            yield StoredFile(key, found["size"], milliseconds_of(found["last_modified"]))
                    return
                except BaseError as error:
                    pause_or_raise(error, pauses)

    def _in_order(self, listing: Iterable[Sequence[ObjectMeta]]) -> Iterator[ObjectMeta]:
        """The objects of a listing, without marks of folders that are not in the order of the other names."""
        before = ""
        for found in chain.from_iterable(listing):
            key = found["path"]
            if key >= before:
                before = key
                yield found
            elif found["size"] or f"{key}/" <= before:
                raise UnsupportedError(
                    f"root {self.uri}", f"the store lists {key!r} after {before!r}, not in the order of the names",
                    "Azure does this in accounts with a hierarchical namespace. Use a store that lists names in their"
                    " order.",
                )  # fmt: skip

    def folder_names(self, folder: str) -> Sequence[str]:
        with self.named(folder.removesuffix("/"), may_be_root=True):
            found = repeated(lambda: self._store.list_with_delimiter(folder or None))
        return sorted(each.removesuffix("/").rpartition("/")[2] for each in found["common_prefixes"])

    def delete(self, key: str) -> None:
        with suppress(NotFoundError), self.named(key):
            repeated(lambda: self._store.delete(key))

    def sync_names(self, folder: str) -> None:
        """Nothing to do: an object is durable as soon as it is visible."""

    def sync_file(self, key: str) -> None:
        """Nothing to do: an object is durable as soon as it is visible."""

    def _place(self, key: str) -> str:
        return f"{self.uri}/{key}"

    @contextmanager
    def named(self, key: str, *, may_be_root: bool = False) -> Iterator[None]:
        """Turn an error of obstore in the block into a StorageError that names the key.

        Raises:
            StorageAccessError: the key leaves the root, or is empty although the root is not allowed.
        """
        if key or not may_be_root:
            check_key(key)
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise storage_error(self._place(key), error) from None


class _NewObject(NewFile):
    """A NewFile: it becomes an object when it is closed."""

    def __init__(self, storage: ObjectStorage, store: ObjectStore, key: str) -> None:
        self._storage = storage
        self._store = store
        self._key = key
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._size = 0
        self._upload: BufferedWriter | None = None

    def write(self, data: Buffer) -> None:
        part = bytes(data)
        self._size += len(part)
        self._part_bytes += len(part)
        self._parts.append(part)
        if self._part_bytes > _PART_BYTES:
            with self._storage.named(self._key):
                if self._upload is None:
                    self._upload = repeated(self._begin)
                else:
                    self._send(self._upload)
            self._parts.clear()
            self._part_bytes = 0

    def _begin(self) -> BufferedWriter:
        """Begin an upload with the first parts. After an error, another upload can begin with the same parts."""
        import obstore

        upload = obstore.open_writer(self._store, self._key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        self._send(upload)
        return upload

    def _send(self, upload: BufferedWriter) -> None:
        for part in self._parts:
            upload.write(part)

    def close(self) -> None:
        with self._storage.named(self._key):
            if self._upload is None:
                content = b"".join(self._parts)
                repeated(lambda: self._store.put(self._key, content, use_multipart=False))
            else:
                self._send(self._upload)
                self._complete(self._upload)

    def _complete(self, upload: BufferedWriter) -> None:
        """Complete the upload. After an error, the object's size shows whether the store completed it: nobody else uses
        its name. obstore repeats the request if the reply ended early, and the store then knows no such upload.
        """
        from obstore.exceptions import BaseError

        self._upload = None
        try:
            upload.close()
        except (BaseError, OSError):
            with suppress(FileNotFoundError):
                if self._store.head(self._key)["size"] == self._size:
                    return
            raise

    def abort(self) -> None:
        """An upload in parts that is not completed never becomes an object."""
        self._upload = None
        self._parts.clear()


_CHECKS = threading.Lock()
_CHECKED: set[str] = set()
"""The roots whose store this process has checked."""
