"""A storage in memory that simulated processes share. At every call, the storage lets other processes run.

Each effect happens as a whole between two pauses. Some calls take several steps on a real file system, and take the
same steps here:

    put_new     visible first, durable later: the process can die in between, and others can use what they see
    new_file    for a file system, exists with its first byte; for an object store, when it is closed
    write_at    visible immediately, durable after sync; a process that dies during the call leaves a part of the bytes
    list        includes changes that happen while it runs

Calls fail, and replies are lost: a put can raise AmbiguousPutError or AlreadyExistsError, whether the put took effect
or not. On an object store, a put may also take effect twice, or take effect late, when its caller has already
continued.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from storage_engine.clock import Clock
from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, NotFoundError, StorageError
from storage_engine.storage import GrowingFiles, NewFile, StoredFile
from tests.model.scheduler import Killed, Process, Scheduler

_LISTED_AT_ONCE = 4
_LOST = (AmbiguousPutError, AlreadyExistsError, StorageError)
"""What a put that took place may say. The last: its name could not be made durable."""


@dataclass(eq=False)
class File:
    """A file's bytes. durable: so many survive a power cut, the name included; -1 while the name does not."""

    data: bytearray
    durable: int = -1
    modified_ms: int = 0


@dataclass
class Disk:
    """All files, and who is told of what happens to them."""

    clock: Clock
    files: dict[str, File] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    on_create: Callable[[str], None] = lambda key: None
    on_put: Callable[[str, bytes], None] = lambda key, data: None
    on_write: Callable[[str, int], None] = lambda key, position: None
    on_delete: Callable[[str], None] = lambda key: None

    def create(self, key: str, data: bytes = b"") -> File:
        self.on_create(key)
        file = self.files[key] = File(bytearray(data), modified_ms=self.clock.now_ms())
        insort(self.keys, key)
        return file

    def delete(self, key: str) -> None:
        if key in self.files:
            self.on_delete(key)
            del self.files[key]
            del self.keys[bisect_left(self.keys, key)]


class ObjectStore:
    """The verbs that every storage has. Files appear whole, and durable if they are to be."""

    uri = "model:"
    growing: GrowingFiles | None = None
    root = links = folders = view = directory = None
    visible_while_written = False
    is_durable_when_visible = False  # sync_names of this model makes names durable
    reads_at_once = 1

    def __init__(self, scheduler: Scheduler, disk: Disk) -> None:
        self.scheduler = scheduler
        self.disk = disk

    def put_new(self, key: str, data: Buffer) -> None:
        self._before("put", key)
        if key in self.disk.files:
            raise AlreadyExistsError(key, "is there")
        scheduler, content = self.scheduler, bytes(memoryview(data))
        if scheduler.draw(scheduler.character.lose_reply / 4):
            if scheduler.draw(0.5):
                self._arrives_later(key, content)
            raise AmbiguousPutError(key, "it did not take place")
        file = self.disk.create(key, content)
        if not self.visible_while_written:
            file.durable = len(content)
        self.disk.on_put(key, content)
        if scheduler.draw(scheduler.character.lose_reply / 4):
            self._arrives_later(key, content)
        scheduler.pause("put, reply", key)
        if scheduler.draw(scheduler.character.lose_reply):
            raise scheduler.chance.choice(_LOST)(key, "it took place")
        file.durable = len(content)

    def _arrives_later(self, key: str, content: bytes) -> None:
        """The network of an object store repeats the request, or delays it: it arrives when nobody waits for it."""
        if self.visible_while_written:
            return

        def arrive() -> None:
            if key not in self.disk.files:
                self.disk.create(key, content).durable = len(content)
                self.disk.on_put(key, content)

        after = int(self.scheduler.character.longest_sleep ** self.scheduler.chance.random()) + 1
        self.scheduler.spawn(Process("network"), arrive, after)

    def replace(self, key: str, data: Buffer) -> None:
        self._before("replace", key)
        self.disk.delete(key)
        file = self.disk.create(key, bytes(memoryview(data)))
        file.durable = len(file.data)

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        return SimulatedNewFile(self, key, durable)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._before("read", key)
        file = self.disk.files.get(key)
        if file is None:
            raise NotFoundError(key, "no such file")
        return bytes(file.data[start : None if length is None else start + length])

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        keys, last = self.disk.keys, max(after, prefix)
        for number in itertools.count():
            if number % _LISTED_AT_ONCE == 0:
                self._before("list", prefix)
            at = bisect_right(keys, last)
            if at == len(keys) or not keys[at].startswith(prefix):
                self.scheduler.pause("listed", prefix)
                return
            last = keys[at]
            file = self.disk.files[last]
            yield StoredFile(last, len(file.data), file.modified_ms)

    def folder_names(self, folder: str) -> Sequence[str]:
        self._before("list", folder)
        below = (key.removeprefix(folder) for key in self.disk.keys if key.startswith(folder))
        return sorted({key.partition("/")[0] for key in below if "/" in key})

    def delete(self, key: str) -> None:
        self._before("delete", key)
        self.disk.delete(key)

    def sync_names(self, folder: str) -> None:
        self.scheduler.pause("sync names", folder)
        prefix = f"{folder.rstrip('/')}/"
        keys = self.disk.keys
        for key in keys[bisect_left(keys, prefix) :]:
            if not key.startswith(prefix):
                break
            file = self.disk.files[key]
            if file.durable < 0 and "/" not in key.removeprefix(prefix):
                file.durable = len(file.data)

    def sync_file(self, key: str) -> None:
        self._before("sync file", key)
        file = self.disk.files[key]
        file.durable = len(file.data)

    def _before(self, verb: str, key: str) -> None:
        scheduler = self.scheduler
        scheduler.pause(verb, key)
        if scheduler.draw(scheduler.character.fail):
            raise StorageError(key, f"{verb} failed")


class FileSystem(ObjectStore):
    """Files can grow, and are seen while they are written."""

    visible_while_written = True

    def __init__(self, scheduler: Scheduler, disk: Disk) -> None:
        super().__init__(scheduler, disk)
        self.growing = self

    def create(self, key: str) -> SimulatedFile:
        self._before("create", key)
        if key in self.disk.files:
            raise AlreadyExistsError(key, "is there")
        return SimulatedFile(self, key, self.disk.create(key))

    def write_derivable(self, key: str, position: int, data: Buffer) -> None:
        file = self.disk.files.get(key)
        if file is None:
            raise NotFoundError(key, "no such file")
        SimulatedFile(self, key, file).write_at(position, [data])


class SimulatedFile:
    """A file of a process that may go on writing to it, whether it still has a name or not."""

    def __init__(self, storage: ObjectStore, key: str, file: File) -> None:
        self._storage = storage
        self._key = key
        self._file = file

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        content = b"".join(bytes(memoryview(part)) for part in data)
        try:
            self._storage._before("write", self._key)
        except (Killed, StorageError) as error:
            if not isinstance(error, Killed) or error.in_call:
                self._write(position, content[: len(content) // 2])
            raise
        self._write(position, content)

    def _write(self, position: int, content: bytes) -> None:
        disk, held = self._storage.disk, self._file.data
        disk.on_write(self._key, position)
        if position > len(held):
            held.extend(bytes(position - len(held)))
        held[position : position + len(content)] = content
        self._file.modified_ms = disk.clock.now_ms()

    def sync(self) -> None:
        self._storage._before("sync", self._key)
        self._file.durable = len(self._file.data)

    def close(self) -> None:
        pass


class SimulatedNewFile:
    """A file that is written from front to back."""

    def __init__(self, storage: ObjectStore, key: str, durable: bool) -> None:
        self._storage = storage
        self._key = key
        self._durable = durable
        self._content = bytearray()
        self._file: File | None = None
        if storage.visible_while_written:
            storage._before("new file", key)
            self._file = storage.disk.create(key)

    def write(self, data: Buffer) -> None:
        self._content += memoryview(data)

    def close(self) -> None:
        storage = self._storage
        try:
            storage._before("close new file", self._key)
        except StorageError:
            self.abort()
            raise
        if self._file is None:
            if self._key in storage.disk.files:
                raise AlreadyExistsError(self._key, "is there")
            self._file = storage.disk.create(self._key)
        self._file.data[:] = self._content
        if self._durable:
            self._file.durable = len(self._content)

    def abort(self) -> None:
        if self._file is not None:
            self._storage.scheduler.pause("abort new file", self._key)
            if self._storage.disk.files.get(self._key) is self._file:
                self._storage.disk.delete(self._key)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, Killed):
            self.abort()
