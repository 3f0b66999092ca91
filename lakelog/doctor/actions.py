"""Contains the functions that the other side (a second process or a second host) runs during a check. The arguments and
answers of these functions are values that JSON can express.

If a check is a race, both sides run the same function at the same time. The other functions imitate a job on another
host that works while this host writes.
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
from storage_engine.storage import Storage, needed

CHUNK = 10_000
TICK_MS = 10.0
_SAMPLES = 5
_POLL_SECONDS = 0.01
_VERSION_BYTES = 64 * 1024
_SAME_ROOT = "The other side can do this. Give both sides the same root."


def skew_ms(storage: Storage, folder: str) -> float:
    """How far the storage's clock is ahead of this host's clock, in milliseconds. The storage's clock sets the times of
    new files."""
    skews = []
    for number in range(_SAMPLES):
        key = f"{folder}{number}"
        before = time.time()
        with storage.new_file(key) as file:
            file.write(b"x")
        after = time.time()
        found = next((each for each in storage.list(folder) if each.key == key), None)
        if found is None:
            raise NotFoundError(key, "was written, but is not in the listing")
        skews.append(found.modified_ms - 1000 * (before + after) / 2)
        storage.delete(key)
    return statistics.median(skews)


def contend(
    storage: Storage, folder: str, side: str, names: int, threads: int, starts_ms: float, every_ms: float
) -> dict[str, list[int]]:
    """Try to create some names, with several threads at the same moments, as a state chain creates its versions.

    Args:
        folder: where the names are created.
        side: prefix of the names of this side's contestants. It distinguishes them from the other side's contestants.
        names: how many names to try.
        threads: how many contestants this side has.
        starts_ms: when to try the first name, by this host's clock.
        every_ms: the time between two names.

    Returns:
        For each contestant, the numbers of the names that it created, according to the replies of the storage.
    """

    def run(contestant: str) -> list[int]:
        won = []
        for number in range(names):
            # Clocks are compared with a precision of one tick of the storage's clock. A random shift lets either side
            # be first.
            moment_ms = starts_ms + number * every_ms + random.uniform(0, TICK_MS)
            time.sleep(max(0.0, moment_ms / 1000 - time.time()))
            if _put(storage, f"{folder}{number:06d}", contestant.encode()):
                won.append(number)
        return won

    contestants = [f"{side}.{thread}" for thread in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(contestants, pool.map(run, contestants), strict=True))


def _put(storage: Storage, key: str, data: bytes) -> bool:
    """Put a file. If the reply says that the put failed, read the file: a first try may have created it, without a
    reply."""
    try:
        storage.put_new(key, data)
        return True
    except (AlreadyExistsError, AmbiguousPutError):
        try:
            return storage.read(key) == data
        except NotFoundError:
            return False


def version_bytes(version: int) -> bytes:
    """The content of a version: a checksum, then the version's number many times. So a torn read is noticed."""
    body = version.to_bytes(8, "big") * (_VERSION_BYTES // 8)
    return zlib.crc32(body).to_bytes(4, "big") + body


def version_of(data: bytes) -> int | None:
    """The version with this content; None if it is not the complete content of a version."""
    if len(data) != _VERSION_BYTES + 4 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        return None
    return int.from_bytes(data[4:12], "big")


def chunk(number: int) -> bytes:
    """The bytes at this place of the growing file."""
    return bytes([number % 251 + 1]) * CHUNK


class Actor:
    """Performs the actions that it is asked for, one after another. close() releases its locks."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held = ExitStack()

    def act(self, action: str, arguments: Mapping[str, Any]) -> Any:
        """Perform one action. The actions are the public methods below."""
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
        """Read a file repeatedly while the other side replaces it. Count the reads that did not return a whole version."""
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
        """Let a file grow as a log does: write after its end, sync, and only then create a file that contains the new size."""
        growing = needed(self._storage.growing, self._storage, "letting a file grow", _SAME_ROOT)
        file = growing.create(f"{folder}growing")
        try:
            for number in range(chunks):
                file.write_at(number * CHUNK, [chunk(number)])
                file.sync()
                self._storage.put_new(f"{folder}sizes/{number:06d}", str((number + 1) * CHUNK).encode())
        finally:
            file.close()

    def exists(self, key: str) -> bool:
        """Look up the name once, so that caches remember the answer."""
        return _read_or_none(self._storage, key) is not None

    def wait(self, key: str, content: str | None, seconds: float, skew_ms: float) -> float | None:
        """Look up the file until it has this content. If content is None, look it up until the file is gone.

        Returns:
            When this was seen, in milliseconds by the storage's clock; None if it was not seen in time.
        """
        wanted = None if content is None else content.encode()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if _read_or_none(self._storage, key) == wanted:
                return time.time() * 1000 + skew_ms
            time.sleep(_POLL_SECONDS)
        return None

    def hold(self, key: str, exclusive: bool) -> str | None:
        """Lock a file and keep it locked. Returns why the lock was refused; None if it was granted."""
        directory = needed(self._storage.directory, self._storage, "locking a file", _SAME_ROOT)
        lock = directory.hold_exclusive(key) if exclusive else directory.hold_shared(key)
        try:
            self._held.enter_context(lock)
        except StorageError as error:
            return error.problem
        return None

    def let_go(self) -> None:
        """Release all locks."""
        self._held.close()


def _read_or_none(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.read(key)
    except NotFoundError:
        return None
