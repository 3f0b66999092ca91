"""A storage that lets a test intercept the storage's methods, and the methods of the files that the storage opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    StorageError,
    StorageFullError,
)
from tests.faults.calls import Errors, Tap


def _raises(kind: type[StorageError], key: str) -> Callable[[], StorageError]:
    return lambda: kind(key, "a fault of the test")


def _errors(key: str, kinds: tuple[type[StorageError] | None, ...]) -> Errors:
    return Errors(*(_raises(kind, key) if kind else None for kind in kinds))


_PUTS = StorageError, StorageFullError, AmbiguousPutError, AlreadyExistsError
_MAKES = StorageError, StorageFullError, StorageError, AlreadyExistsError
_SHOWS = StorageError, StorageFullError, StorageError
_WRITES = StorageError, StorageFullError, StorageError
_CHANGES = StorageError, None, StorageError
_READS = (StorageError,)
_ASKS = (StorageError,)

_VERBS: dict[str, tuple[type[StorageError] | None, ...]] = {
    "put_new": _PUTS, "replace": _SHOWS, "new_file": _MAKES, "read": _READS, "list": _ASKS, "delete": _CHANGES,
    "sync_names": _CHANGES, "sync_file": _CHANGES, "create": _MAKES, "link": _MAKES, "entries": _ASKS, "show": _SHOWS,
    "write_derivable": _WRITES,
    "show_copy": _SHOWS, "show_bytes": _SHOWS, "show_folders": _SHOWS, "remove_folder": _CHANGES, "hold_shared": _ASKS,
}  # fmt: skip
_FILE_VERBS: dict[str, tuple[type[StorageError] | None, ...]] = {
    "write": _WRITES, "write_at": _WRITES, "sync": _WRITES, "close": _WRITES, "abort": _CHANGES,
}  # fmt: skip
_CAPABILITIES = ("growing", "links", "folders", "view", "directory")
_NOT_COUNTED = ("uri", "is_durable_when_visible", "reads_at_once", "root", "path")


class CountedStorage:
    """A storage with the capabilities of the one below, each of them through the same tap; or such a capability."""

    def __init__(self, inner: Any, tap: Tap) -> None:
        self._inner = inner
        self._tap = tap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in _NOT_COUNTED or found is None:
            return found
        if name in _CAPABILITIES:
            return CountedStorage(found, self._tap)
        assert name in _VERBS, f"a verb that is not counted: {name}"

        def call(key: str, *args: Any, **kwargs: Any) -> Any:
            def do() -> Any:
                result = found(key, *args, **kwargs)
                if name in ("new_file", "create"):
                    return CountedFile(result, self._tap, key)
                return iter(list(result)) if name == "list" else result

            place = (
                args[1]
                if name == "show_copy"
                else args[0]
                if name in ("link", "show", "show_bytes")
                else args[0][0]
                if name == "show_folders"
                else key
            )
            return self._tap.through(name, str(place), do, _errors(str(place), _VERBS[name]))

        return call


class CountedFile:
    """A file that it opened."""

    def __init__(self, inner: Any, tap: Tap, key: str) -> None:
        self._inner = inner
        self._tap = tap
        self._key = key

    def _call(self, name: str, *args: Any, half: Callable[[], object] | None = None) -> None:
        # A close that fails leaves nothing, where nothing was there before.
        failed = self._inner.abort if name == "close" and hasattr(self._inner, "abort") else lambda: None
        self._tap.through(
            f"file.{name}", self._key, lambda: getattr(self._inner, name)(*args),
            _errors(self._key, _FILE_VERBS[name]), half, failed,
        )  # fmt: skip

    def write(self, data: Any) -> None:
        part = bytes(data)[: memoryview(data).nbytes // 2]
        self._call("write", data, half=lambda: self._inner.write(part))

    def write_at(self, position: int, data: Any) -> None:
        whole = b"".join(bytes(part) for part in data)
        self._call("write_at", position, data, half=lambda: self._inner.write_at(position, [whole[: len(whole) // 2]]))

    def sync(self) -> None:
        self._call("sync")

    def close(self) -> None:
        self._call("close")

    def abort(self) -> None:
        self._call("abort")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()
