"""A Directory in memory that simulates power cuts: unsynced data may be lost, completely or in part, or become zeros.

Of the unsynced writes to a file, a random number survives, beginning with the oldest write. The last surviving write
may be torn or become zeros. Of the unsynced changes of names, a random number survives, beginning with the oldest
change. All other unsynced data is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from typing_extensions import Buffer

from storage_engine.config.kafka_dir_keys import LogConfig, LogManagerConfig
from storage_engine.errors import AlreadyExistsError, NotFoundError, StorageError
from storage_engine.storage import FolderEntry, NewFile, StoredFile

_INDEX_BYTES = 4096
"""The size of an index file that can grow. With Kafka's 10 MiB, the copies of a directory would need gigabytes."""


def topic_config(overrides: Mapping[str, object]) -> LogConfig:
    """The settings of a log in such a directory."""
    return LogManagerConfig().topic({"segment.index.bytes": _INDEX_BYTES, **overrides})


class StoppedError(Exception):
    """The process was killed here."""


@dataclass
class Node:
    """A file's bytes, those of them that would survive, and the changes in between."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # position and bytes; None: cut off here
    modified_ns: int = 0

    def change(self, position: int, data: bytes | None) -> None:
        apply_change(self.data, position, data)
        self.pending.append((position, data))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending.clear()

    def lose(self, chance: random.Random) -> None:
        data = bytearray(self.durable)
        kept = chance.randint(0, len(self.pending))
        for position, change in self.pending[:kept]:
            apply_change(data, position, change)
        if kept < len(self.pending) and chance.random() < 0.7:
            position, change = self.pending[kept]
            if change:
                part = change[: chance.randint(0, len(change))]
                apply_change(data, position, bytes(len(part)) if chance.random() < 0.3 else part)
        self.data = data
        self.sync()


def apply_change(data: bytearray, position: int, change: bytes | None) -> None:
    """What a write leaves of a file's bytes; None cuts them off there, or lengthens them with zeros."""
    end = position if change is None else position + len(change)
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    if change is None:
        del data[position:]
    else:
        data[position:end] = change


class UnreliableFile:
    """A DirectoryFile."""

    def __init__(self, directory: UnreliableDirectory, node: Node) -> None:
        self._directory, self._node = directory, node
        self._name_is_durable = False

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        self._directory.step()
        self._node.modified_ns = self._directory.now_ns
        self._node.change(position, b"".join(bytes(memoryview(part)) for part in data))

    def truncate(self, size: int) -> None:
        self._directory.step()
        self._node.modified_ns = self._directory.now_ns
        self._node.change(size, None)

    def sync(self) -> None:
        self._directory.step()
        self._node.sync()
        if not self._name_is_durable:
            self._directory.sync_names("")
            self._name_is_durable = True

    def close(self) -> None:
        pass


class UnreliableDirectory:
    """Files under one root, in memory; for one thread."""

    uri = "memory"
    is_durable_when_visible = False
    reads_at_once = 1
    root = growing = links = folders = view = directory = None

    def __init__(self) -> None:
        self.steps_left: int | None = None
        self.steps = 0
        self.failure: StorageError | None = None
        self.now_ns = 0
        self._names: dict[str, Node] = {}
        self._durable_names: dict[str, Node] = {}
        self._changes: list[tuple[str, Node | None]] = []

    def step(self) -> None:
        """Count a change; the process is killed before the one for which no step is left."""
        self.steps += 1
        if self.failure is not None:
            raise self.failure
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise StoppedError
            self.steps_left -= 1

    def cut_power(self, chance: random.Random) -> None:
        """Lose what was not synced, by chance."""
        for name, node in self._changes[: chance.randint(0, len(self._changes))]:
            _rename(self._durable_names, name, node)
        self._names = dict(self._durable_names)
        self._changes.clear()
        for node in self._names.values():
            node.lose(chance)

    def files(self) -> dict[str, bytes]:
        """All files, by name."""
        return {name: bytes(node.data) for name, node in self._names.items()}

    def damage(self, key: str, position: int, data: bytes) -> None:
        """Change a file's bytes behind everybody's back, for good."""
        apply_change(self._names[key].data, position, data)
        self._names[key].sync()

    def _change(self, name: str, node: Node | None) -> None:
        self.step()
        _rename(self._names, name, node)
        self._changes.append((name, node))

    def put_new(self, key: str, data: Buffer) -> None:
        if key in self._names:
            raise AlreadyExistsError(key, "is there")
        self.replace(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        content = bytes(memoryview(data))
        self._change(key, Node(bytearray(content), content, modified_ns=self.now_ns))
        self.sync_names("")

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        return _NewFile(self, key)

    def open(self, key: str) -> UnreliableFile:
        if key not in self._names:
            self._change(key, Node(modified_ns=self.now_ns))
        return UnreliableFile(self, self._names[key])

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._node(key).data
        return bytes(data[start : len(data) if length is None else start + length])

    def _node(self, key: str) -> Node:
        if key not in self._names:
            raise NotFoundError(key, "no such file")
        return self._names[key]

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        for name in sorted(self._names):
            if name.startswith(prefix) and name > after:
                yield StoredFile(name, len(self._names[name].data), self._names[name].modified_ns // 1_000_000)

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        prefix = f"{folder}/" if folder else ""
        found: dict[str, FolderEntry] = {}
        for name, node in self._names.items():
            if name.startswith(prefix):
                first, inner, _ = name[len(prefix) :].partition("/")
                found[first] = FolderEntry(first, bool(inner), len(node.data), node.modified_ns, (0, id(node)))
        return list(found.values())

    def folder_names(self, folder: str) -> Sequence[str]:
        return sorted(each.name for each in self.entries(folder.rstrip("/")) if each.is_folder)

    def rename(self, key: str, name: str) -> None:
        node = self._node(key)
        self.step()
        for old, new in ((key, None), (name, node)):
            _rename(self._names, old, new)
        # One change, though it is of two names: neither is ever seen without the other.
        self._changes.append((f"{key}\n{name}", node))

    def delete(self, key: str) -> None:
        if key in self._names:
            self._change(key, None)

    def sync_names(self, folder: str) -> None:
        for name, node in self._changes:
            _rename(self._durable_names, name, node)
        self._changes.clear()

    def sync_file(self, key: str) -> None:
        self._node(key).sync()
        self.sync_names("")

    def make_folder(self, folder: str) -> None:
        pass

    def remove_folder(self, folder: str) -> None:
        for name in [name for name in self._names if name.startswith(f"{folder}/")]:
            self._change(name, None)

    def set_modified(self, key: str, modified_ns: int) -> None:
        self._node(key).modified_ns = modified_ns

    def is_empty_folder(self) -> bool:
        return not self._names

    @contextmanager
    def hold_shared(self, key: str) -> Iterator[None]:
        yield

    @contextmanager
    def hold_exclusive(self, key: str) -> Iterator[None]:
        yield


def _rename(names: dict[str, Node], name: str, node: Node | None) -> None:
    old, _, new = name.rpartition("\n")
    if old:
        names.pop(old, None)
    if node is None:
        names.pop(new, None)
    else:
        names[new] = node


class _NewFile:
    def __init__(self, directory: UnreliableDirectory, key: str) -> None:
        self._directory, self._key = directory, key
        self._file = directory.open(key)
        self._size = 0

    def write(self, data: Buffer) -> None:
        self._file.write_at(self._size, [data])
        self._size += memoryview(data).nbytes

    def close(self) -> None:
        self._file.sync()

    def abort(self) -> None:
        self._directory.delete(self._key)

    def __enter__(self) -> _NewFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, StoppedError):
            self.abort()
