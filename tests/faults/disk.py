"""Simulates a file system with power cuts. After a power cut, all synced data is left. Of the other data, any part can
be left.

The system calls of a process on a real directory are recorded and then applied to the simulation in order. A test can
try a power cut after each call, with any number of outcomes, and need not run the process again.

    a file's bytes      Each write since the last fsync survives or not, independently: whole, torn, as zeros, or not at
                        all. So a later write can survive without an earlier one, and leave a hole.
    a folder's names    Each change of a name since the last fsync of the folder survives or not, independently. So a
                        later rename can survive without an earlier link. A rename is never half done.
    a file's time       The time that was last set, or the time of the cut.

An fsync of a file does not make names durable, and an fsync of a folder does not make bytes durable. A failed fsync may
lose the bytes that it should have made durable. A later successful fsync of the same file saves only the bytes that
were written since. The simulation guarantees only what POSIX guarantees. Every file system in use guarantees more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.storage_engine.kafka_dir.unreliable_directory import apply_change

TIME_OF_CUT_NS = 1_800_000_000_123_456_789


class Event(NamedTuple):
    """A system call that changed something, or another moment that is recorded between system calls.

    handle: the number of an open file or folder; `create` and `open` introduce the number.
    path, target: relative to the root.
    """

    name: str
    path: str = ""
    target: str = ""
    handle: int = -1
    position: int = 0
    data: bytes = b""
    ns: int = 0


@dataclass(eq=False)
class File:
    """A file: the bytes that processes see, the bytes that certainly survive a power cut, and the later writes."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # position, bytes; None: cut off there
    modified_ns: int | None = None

    def change(self, position: int, data: bytes | None) -> None:
        apply_change(self.data, position, data)
        self.pending.append((position, data))
        self.modified_ns = None

    def sync(self) -> None:
        kept = bytearray(self.synced)
        for position, data in self.pending:
            apply_change(kept, position, data)
        self.synced = bytes(kept)
        self.pending.clear()

    def survivor(self, chance: random.Random, likely: float) -> bytes:
        data = bytearray(self.synced)
        for position, change in self.pending:
            if chance.random() >= likely:
                continue
            if change and 0 < likely < 1 and chance.random() < 0.5:
                part = change[: chance.randint(0, len(change))]
                apply_change(data, position, bytes(len(part)) if chance.random() < 0.3 else part)
            else:
                apply_change(data, position, change)
        return bytes(data)


@dataclass(eq=False)
class Folder:
    """A folder: the names that processes see, the names that certainly survive a power cut, and the later changes.

    A change sets names, and removes the names that it sets to None. All of this happens at once.
    """

    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, names: dict[str, File | Folder | None]) -> None:
        _rename(self.names, names)
        self.pending.append(names)

    def sync(self) -> None:
        for names in self.pending:
            _rename(self.synced, names)
        self.pending.clear()

    def survivor(self, chance: random.Random, likely: float) -> dict[str, File | Folder]:
        names = dict(self.synced)
        for change in self.pending:
            if chance.random() < likely:
                _rename(names, change)
        return names


def _rename(names: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class StoredName(NamedTuple):
    """A name in an image of a directory. file: the same for all names of one file; None for a folder."""

    path: str
    file: int | None
    data: bytes = b""
    modified_ns: int = 0


Image = list[StoredName]
"""The contents of a directory; each folder comes before the files and folders in it."""


class Loss(NamedTuple):
    """How likely each change that was not synced survives a power cut."""

    names: float
    data: float


LOSSES = {"nothing": Loss(0, 0), "names alone": Loss(1, 0), "bytes alone": Loss(0, 1), "by chance": Loss(0.5, 0.5)}


class Disk:
    """The simulated disk, with one directory on it."""

    def __init__(self, image: Image) -> None:
        """
        Args:
            image: the contents of the disk at the beginning; all of them are durable.
        """
        self._root = Folder()
        self._handles: dict[int, File | Folder] = {}
        files: dict[int, File] = {}
        for each in image:
            if each.file is None:
                node: File | Folder = Folder()
            else:
                fresh = File(bytearray(each.data), each.data, modified_ns=each.modified_ns)
                node = files.setdefault(each.file, fresh)
            folder, name = self._place(each.path)
            folder.names[name] = folder.synced[name] = node

    def apply(self, event: Event) -> None:
        """Apply a recorded system call to the disk."""
        match event.name:
            case "open":
                self._handles[event.handle] = self._node(event.path)
            case "create":
                self._handles[event.handle] = self._named(event.path, File())
            case "write":
                self._file(event.handle).change(event.position, event.data)
            case "truncate":
                self._file(event.handle).change(event.position, None)
            case "sync":
                self._handles[event.handle].sync()
            case "failed sync":
                node = self._handles[event.handle]
                if isinstance(node, File):
                    node.pending.clear()
            case "link":
                self._named(event.target, self._node(event.path))
            case "rename":
                self._renamed(event)
            case "unlink" | "rmdir":
                folder, name = self._place(event.path)
                folder.change({name: None})
            case "mkdir":
                self._named(event.path, Folder())
            case "utime":
                node = self._node(event.path)
                assert isinstance(node, File)
                node.modified_ns = event.ns
            case _:
                raise AssertionError(f"a system call that this file system does not know: {event.name}")

    def _renamed(self, event: Event) -> None:
        old_folder, old = self._place(event.path)
        new_folder, new = self._place(event.target)
        node = old_folder.names[old]
        if new_folder.names.get(new) is node:
            return  # POSIX: nothing happens between two names of one file
        if old_folder is new_folder:
            old_folder.change({old: None, new: node})
        else:
            new_folder.change({new: node})
            old_folder.change({old: None})

    def image(self) -> Image:
        """What processes see."""
        return list(_walk("", self._root.names, lambda folder: folder.names, lambda file: bytes(file.data)))

    def after_power_cut(self, loss: Loss, seed: int) -> Image:
        """The contents after a power cut. This object itself does not change."""
        chance = random.Random(seed)
        return list(
            _walk(
                "",
                self._root.survivor(chance, loss.names),
                lambda folder: folder.survivor(chance, loss.names),
                lambda file: file.survivor(chance, loss.data),
            )
        )

    def _place(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.split("/")
        folder = self._root
        for each in folders:
            inner = folder.names[each]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def _node(self, path: str) -> File | Folder:
        if not path:
            return self._root
        folder, name = self._place(path)
        return folder.names[name]

    def _named(self, path: str, node: File | Folder) -> File | Folder:
        folder, name = self._place(path)
        folder.change({name: node})
        return node

    def _file(self, handle: int) -> File:
        file = self._handles[handle]
        assert isinstance(file, File)
        return file


def _walk(path, names, names_of, data_of) -> Iterator[StoredName]:
    seen: dict[int, StoredName] = {}

    def walk(path: str, names: dict[str, File | Folder]) -> Iterator[StoredName]:
        for name, node in sorted(names.items()):
            inner = f"{path}{name}"
            if isinstance(node, Folder):
                yield StoredName(inner, None)
                yield from walk(f"{inner}/", names_of(node))
            else:
                if id(node) not in seen:
                    time = TIME_OF_CUT_NS if node.modified_ns is None else node.modified_ns
                    seen[id(node)] = StoredName(inner, id(node), data_of(node), time)
                yield seen[id(node)]._replace(path=inner)

    yield from walk(path, names)


def read_image(root: Path) -> Image:
    """What a real directory holds."""
    image: Image = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        prefix = "" if Path(folder) == root else f"{Path(folder).relative_to(root)}/"
        image += [StoredName(f"{prefix}{name}", None) for name in folders]
        for name in sorted(files):
            path = Path(folder, name)
            stat = path.stat()
            image.append(StoredName(f"{prefix}{name}", stat.st_ino, path.read_bytes(), stat.st_mtime_ns))
    return image


def write_image(image: Image, root: Path) -> None:
    """Make an empty directory hold this."""
    first: dict[int, str] = {}
    for each in image:
        path = f"{root}/{each.path}"
        if each.file is None:
            Path(path).mkdir()
        elif each.file in first:
            os.link(first[each.file], path)
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, each.data)
            os.utime(descriptor, ns=(each.modified_ns, each.modified_ns))
            os.close(descriptor)
            first[each.file] = path


def same(one: Image, other: Image) -> bool:
    """Whether two images have the same names with the same bytes, and the same names are links to one file."""
    return _comparable(one) == _comparable(other)


def _comparable(image: Image) -> dict[str, tuple[str | None, bytes]]:
    first: dict[int, str] = {}
    for each in sorted(image):
        if each.file is not None:
            first.setdefault(each.file, each.path)
    return {each.path: (None if each.file is None else first[each.file], each.data) for each in image}
