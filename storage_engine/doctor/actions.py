"""What the other side of a check does when it is asked. Arguments and answers are what JSON can carry.

Both sides of a race run the same function; the rest is what a job on another host would do while this one writes.
"""

from __future__ import annotations

import random
import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from storage_engine.errors import AlreadyExistsError, AmbiguousPutError, NotFoundError, StorageError
from storage_engine.storage import AppendableStorage, Storage
from storage_engine.storage.posix import PosixStorage

CHUNK = 10_000
TICK_MS = 10.0
_SAMPLES = 5
_POLL_SECONDS = 0.01
_VERSION_BYTES = 64 * 1024


def skew_ms(storage: Storage, folder: str) -> float:
    """How far the storage's clock, as the times of new files show it, is ahead of this host's."""
    skews = []
    for number in range(_SAMPLES):
        key = f"{folder}{number}"
        before = time.time()
        with storage.new_file(key) as file:
            file.write(b"x")
        after = time.time()
        found = next((each for each in storage.list(folder) if each.key == key), None)
        if found is None:
            raise NotFoundError(key, "was written, and is not listed")
        skews.append(found.modified_ms - 1000 * (before + after) / 2)
        storage.delete(key)
    return statistics.median(skews)


def contend(
    storage: Storage, folder: str, side: str, names: int, threads: int, starts_ms: float, every_ms: float
) -> dict[str, list[int]]:
    """Try to put each of some names, with several threads at the same moment, as a state chain puts its versions.

    Args:
        side: tells these contestants from the other side's.
        starts_ms: when to try the first name, by this host's clock; every_ms later the next.

    Returns:
        By contestant, the numbers of the names that it believes to have won.
    """

    def run(contestant: str) -> list[int]:
        won = []
        for number in range(names):
            # Clocks are known to a tick of the storage's only: at times now these are first, now those.
            moment_ms = starts_ms + number * every_ms + random.uniform(0, TICK_MS)
            time.sleep(max(0.0, moment_ms / 1000 - time.time()))
            if _put(storage, f"{folder}{number:06d}", contestant.encode()):
                won.append(number)
        return won

    contestants = [f"{side}.{thread}" for thread in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(contestants, pool.map(run, contestants), strict=True))


def _put(storage: Storage, key: str, data: bytes) -> bool:
    """Put, and read back where the reply says that it was in vain: it may be the reply that was lost."""
    try:
        storage.put_new(key, data)
        return True
    except (AlreadyExistsError, AmbiguousPutError):
        try:
            return storage.read(key) == data
        except NotFoundError:
            return False


def version_bytes(version: int) -> bytes:
    """The content of a version: its number, a checksum, and bytes of which a part can be told from all."""
    body = version.to_bytes(8, "big") * (_VERSION_BYTES // 8)
    return zlib.crc32(body).to_bytes(4, "big") + body


def version_of(data: bytes) -> int | None:
    """The version whose content this is; None where it is no whole one."""
    if len(data) != _VERSION_BYTES + 4 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        return None
    return int.from_bytes(data[4:12], "big")


def chunk(number: int) -> bytes:
    """The bytes at this place of the growing file."""
    return bytes([number % 251 + 1]) * CHUNK


class Actor:
    """Does what it is asked, one action after another. close() lets go of what it holds."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held = ExitStack()

    def act(self, action: str, arguments: Mapping[str, Any]) -> Any:
        """Do one action; the public methods below are what there is."""
        actions: dict[str, Callable[..., Any]] = {
            "skew": self.skew, "contend": self.contend, "watch": self.watch, "extend": self.extend,
            "exists": self.exists, "wait": self.wait, "hold": self.hold, "let_go": self.let_go,
        }  # fmt: skip
        return actions[action](**arguments)

    def close(self) -> None:
        self._held.close()

    def skew(self, folder: str) -> float:
        return skew_ms(self._storage, folder)

    def contend(
        self, folder: str, side: str, names: int, threads: int, starts_ms: float, every_ms: float
    ) -> dict[str, list[int]]:
        return contend(self._storage, folder, side, names, threads, starts_ms, every_ms)

    def watch(self, key: str, seconds: float) -> dict[str, int]:
        """Read a file that the other side replaces, over and over; count what is not a whole version."""
        counts = {"reads": 0, "missing": 0, "torn": 0, "versions": 0, "backwards": 0}
        last = -1
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            counts["reads"] += 1
            try:
                version = version_of(self._storage.read(key))
            except NotFoundError:
                counts["missing"] += 1
                continue
            if version is None:
                counts["torn"] += 1
                continue
            counts["versions"] += version > last
            counts["backwards"] += version < last
            last = max(last, version)
        return counts

    def extend(self, folder: str, chunks: int) -> None:
        """Let a file grow as a log does: write behind its end, sync, and only then put a file that says how long it is."""
        assert isinstance(self._storage, AppendableStorage), "the asking side has looked"
        file = self._storage.create(f"{folder}growing")
        try:
            for number in range(chunks):
                file.write_at(number * CHUNK, [chunk(number)])
                file.sync()
                self._storage.put_new(f"{folder}sizes/{number:06d}", str((number + 1) * CHUNK).encode())
        finally:
            file.close()

    def exists(self, key: str) -> bool:
        """Look once, so that whatever caches looks is filled."""
        return _read_or_none(self._storage, key) is not None

    def wait(self, key: str, content: str | None, seconds: float, skew_ms: float) -> float | None:
        """Look by name until the file has this content, or is gone where it is None.

        Returns:
            When that was seen, in milliseconds by the storage's clock; None if not within so many seconds.
        """
        wanted = None if content is None else content.encode()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if _read_or_none(self._storage, key) == wanted:
                return time.time() * 1000 + skew_ms
            time.sleep(_POLL_SECONDS)
        return None

    def hold(self, key: str, exclusive: bool) -> str | None:
        """Lock a file and keep it locked; the refusal where another has it."""
        assert isinstance(self._storage, PosixStorage), "the asking side has looked"
        lock = self._storage.hold_exclusive(key) if exclusive else self._storage.hold_shared(key)
        try:
            self._held.enter_context(lock)
        except StorageError as error:
            return error.problem
        return None

    def let_go(self) -> None:
        """Give up what is locked."""
        self._held.close()


def _read_or_none(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except NotFoundError:
        return None
