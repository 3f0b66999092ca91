"""Wraps a storage to add the failures and limits of real storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from storage_engine.errors import StorageError
from storage_engine.storage import NewFile, Storage, StoredFile


class PlainStorage:
    """Nothing but the verbs that every storage has, and no capability, as on an object store."""

    root = growing = links = folders = view = directory = None

    def __init__(self, storage: Storage) -> None:
        self.inner = storage

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def is_durable_when_visible(self) -> bool:
        return self.inner.is_durable_when_visible

    @property
    def reads_at_once(self) -> int:
        return self.inner.reads_at_once

    def put_new(self, key: str, data) -> None:
        self.inner.put_new(key, data)

    def replace(self, key: str, data) -> None:
        self.inner.replace(key, data)

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        return self.inner.new_file(key, durable=durable)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(key, start, length)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        return self.inner.list(prefix, after)

    def folder_names(self, folder: str) -> Sequence[str]:
        return self.inner.folder_names(folder)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def sync_names(self, folder: str) -> None:
        self.inner.sync_names(folder)

    def sync_file(self, key: str) -> None:
        self.inner.sync_file(key)


class LostReplies(PlainStorage):
    """Puts take place, and then say that they did not. Where the name was taken they say so truly."""

    def __init__(self, storage: Storage, error: type[StorageError]) -> None:
        super().__init__(storage)
        self.error = error
        self.lost = 0
        self.names_synced: list[str] = []

    def sync_names(self, folder: str) -> None:
        super().sync_names(folder)
        self.names_synced.append(folder)

    def put_new(self, key: str, data) -> None:
        super().put_new(key, data)
        self.lost += 1
        raise self.error(key, "the reply was lost")


class FailedPuts(PlainStorage):
    """Puts do not take place, and nobody can tell: each raises what it is told to."""

    def __init__(self, storage: Storage, error: StorageError) -> None:
        super().__init__(storage)
        self.error: StorageError | None = error

    def put_new(self, key: str, data) -> None:
        if self.error and "/segments/" not in key:
            raise self.error
        super().put_new(key, data)


class Interrupting(PlainStorage):
    """Calls a function once, right before the put of a version of a state."""

    def __init__(self, storage: Storage, before_put: Callable[[], object]) -> None:
        super().__init__(storage)
        self.before_put: Callable[[], object] | None = before_put

    def put_new(self, key: str, data) -> None:
        if self.before_put and key.endswith(".json"):
            act, self.before_put = self.before_put, None
            act()
        super().put_new(key, data)


class BeforeEachCall(PlainStorage):
    """Calls a function right before each call, with its number from 0, its verb and its key; a listing is one call."""

    def __init__(self, storage: Storage, before: Callable[[int, str, str], object]) -> None:
        super().__init__(storage)
        self.before = before
        self.calls = 0

    def _call(self, verb: str, key: str) -> None:
        self.calls += 1
        self.before(self.calls - 1, verb, key)

    def put_new(self, key: str, data) -> None:
        self._call("put_new", key)
        super().put_new(key, data)

    def replace(self, key: str, data) -> None:
        self._call("replace", key)
        super().replace(key, data)

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        self._call("new_file", key)
        return super().new_file(key, durable=durable)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._call("read", key)
        return super().read(key, start, length)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        self._call("list", prefix)
        return super().list(prefix, after)

    def folder_names(self, folder: str) -> Sequence[str]:
        self._call("list", folder)
        return super().folder_names(folder)

    def delete(self, key: str) -> None:
        self._call("delete", key)
        super().delete(key)

    def sync_names(self, folder: str) -> None:
        self._call("sync_names", folder)
        super().sync_names(folder)
