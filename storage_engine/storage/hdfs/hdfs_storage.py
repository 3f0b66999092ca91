"""The storage of a root in HDFS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from storage_engine.errors import ConfigError, NotFoundError
from storage_engine.storage import TEMPORARY, FolderEntry, StoredFile, check_key
from storage_engine.storage.hdfs.hdfs_calls import HdfsCalls
from storage_engine.storage.hdfs.hdfs_files import HdfsNewFile, TemporaryFile
from storage_engine.storage.storage_options import storage_options

if TYPE_CHECKING:
    from hdfs_native import FileStatus

_PACKETS = 64
"""How many packets (64 KiB) of a file are read with one call."""
_NAMES = 1000
"""How many names of a folder are read with one call."""
_CHECKSUM_BYTES = 512
"""The size of a block is a multiple of this number. The NameNode may close a file before it has heard from the
DataNodes of the last block (dfs.namenode.file.close.num-committed-allowed). Until then, hdfs-native reads the file as
if its last block did not exist.
"""
_SETTINGS = ("dfs.", "fs.", "hadoop.")


class HdfsStorage:
    """The files below a folder of HDFS, with the capability `folders`. The protocol Storage states what each verb
    guarantees. Several threads may use one object.
    """

    is_durable_when_visible = True
    reads_at_once = 4
    root = growing = links = view = directory = None

    def __init__(self, uri: str) -> None:
        """
        Args:
            uri: NameNode or name service, and folder: hdfs://namenode:8020/logs or hdfs://cluster/logs. The folder is
                used as it is: `%` is not decoded. It is created with the first file.

        Raises:
            ConfigError: the URI or a setting is wrong, or the package is missing.
        """
        authority, self._folder = _parsed(uri)
        self.uri = f"hdfs://{authority}{self._folder or '/'}"
        settings = {name: value for name, value in storage_options().items() if name.startswith(_SETTINGS)}
        self._calls = HdfsCalls(self.uri, authority, settings)
        self.folders = self

    def put_new(self, key: str, data: Buffer) -> None:
        path, content = self._path(key), bytes(data)
        self._calls.repeated(
            lambda: self._written(key, path, content).name_new(lambda: self.read(key) == content),
        )

    def replace(self, key: str, data: Buffer) -> None:
        path, content = self._path(key), bytes(data)

        def put() -> None:
            file = self._written(key, path, content)
            try:
                file.name()
            except NotFoundError as error:
                if self.read(key) != content:
                    raise self._calls.unavailable(key, "another process replaced the file") from error

        self._calls.repeated(put)

    def _written(self, key: str, path: str, content: bytes) -> TemporaryFile:
        file = TemporaryFile(self._calls, key, path)
        try:
            file.write(content)
            file.complete()
        except BaseException:
            file.remove()
            raise
        return file

    def new_file(self, key: str, *, durable: bool = True) -> HdfsNewFile:  # noqa: ARG002 - see sync_file
        return HdfsNewFile(self._calls, key, self._path(key))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(key)
        return self._calls.repeated(lambda: self._read(key, path, start, length))

    def _read(self, key: str, path: str, start: int, length: int | None) -> bytes:
        reader = self._calls.call(key, lambda client: client.read(path))
        if len(reader) % _CHECKSUM_BYTES == 0 and self._calls.file_info(key, path).length > len(reader):
            raise self._calls.unavailable(key, "no DataNode has reported the last block yet")
        end = len(reader) if length is None else min(len(reader), start + length)
        if start >= end:
            return b""
        packets = reader.read_range_stream(start, end - start)
        parts: list[bytes] = []
        missing = end - start
        while missing > 0:
            part = self._calls.call(key, lambda _: b"".join(islice(packets, _PACKETS)))
            if not part:
                raise self._calls.unavailable(key, "a DataNode returned fewer bytes than the file has")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        key = prefix.rstrip("/")
        return self._walk(self._path(key), key, after)

    def _walk(self, path: str, key: str, after: str) -> Iterator[StoredFile]:
        try:
            entries = self._calls.repeated(lambda: self._entries(key, path))
        except NotFoundError:
            return
        for name, entry in sorted(entries, key=lambda found: found[0] + ("/" if found[1].isdir else "")):
            if entry.isdir:
                if after <= f"{key}/{name}/\U0010ffff":
                    yield from self._walk(f"{path}/{name}", f"{key}/{name}", after)
            elif f"{key}/{name}" > after and not name.startswith(TEMPORARY):
                yield StoredFile(f"{key}/{name}", entry.length, entry.modification_time)

    def _entries(self, key: str, path: str) -> Sequence[tuple[str, FileStatus]]:
        entries = self._calls.call(key, lambda client: client.list_status(path))
        found = some = self._calls.call(key, lambda _: [*islice(entries, _NAMES)])
        while some:
            some = self._calls.call(key, lambda _: [*islice(entries, _NAMES)])
            found += some
        return [(entry.path.rpartition("/")[2], entry) for entry in found if entry.path != path]

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        path = self._path(folder.rstrip("/")) if folder else self._folder or "/"
        try:
            found = self._calls.repeated(lambda: self._entries(folder, path))
        except NotFoundError:
            return []
        return [
            FolderEntry(name, each.isdir, each.length, each.modification_time * 1_000_000, _file_id(each.path))
            for name, each in found
        ]

    def folder_names(self, folder: str) -> Sequence[str]:
        return sorted(each.name for each in self.entries(folder.rstrip("/")) if each.is_folder)

    def is_empty_folder(self) -> bool:
        try:
            return not self._calls.repeated(lambda: self._entries("", self._folder or "/"))
        except NotFoundError:
            return False

    def remove_folder(self, folder: str) -> None:
        key = folder.rstrip("/")
        path = self._path(key)
        self._calls.repeated(lambda: self._calls.call(key, lambda client: client.delete(path, recursive=True)))

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._calls.repeated(lambda: self._calls.call(key, lambda client: client.delete(path)))

    def sync_names(self, folder: str) -> None:
        """Nothing to do: the NameNode makes each change of a name durable before it replies."""

    def sync_file(self, key: str) -> None:
        """Check that the file exists. All files of this storage are durable. If another program wrote the file, its
        bytes are on all DataNodes of each block, but perhaps not yet on their disks.
        """
        self._calls.file_info(key, self._path(key))

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._folder}/{key}"


def _file_id(path: str) -> tuple[int, int]:
    """What identifies a file. A file of HDFS has one name, so its path does."""
    return 0, int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")


def _parsed(uri: str) -> tuple[str, str]:
    """Return the authority and the folder of a URI. The folder has no slash at its end, and is empty for the root."""
    authority, _, path = uri.partition("://")[2].partition("/")
    folder = path.strip("/")
    remedy = "Write hdfs://namenode:8020/folder, or hdfs://nameservice/folder."
    if "@" in authority:
        raise ConfigError(
            "root", "the URI must not contain a user name", "Set HADOOP_USER_NAME, or get a Kerberos ticket."
        )
    if not authority:
        raise ConfigError(f"root {uri!r}", "found no NameNode and no name service", remedy)
    if folder and not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise ConfigError(f"root {uri!r}", "found an empty name, `.` or `..` in the path", remedy)
    return authority, f"/{folder}" if folder else ""
