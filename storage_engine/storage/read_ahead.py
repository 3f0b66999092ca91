"""Reads files from front to back, and requests the next pieces before they are needed.

An object store answers a small read after tens of milliseconds, but answers many reads at the same time. So a reader
wastes most of the store's bandwidth if the reader waits for one segment before it requests the next segment. A
ReadAhead knows the files that its reader will read, in order. The ReadAhead divides these files into blocks of 2 MiB.
It always requests some blocks before the reader needs them, including blocks of the next files.

A ReadAhead first requests two blocks at the same time, and doubles this number with each read up to the limit. So if a
reader stops after a few records, few blocks were requested without need.

Each block is read by a thread of its own, and the thread ends when the block has been read. So a ReadAhead that is no
longer used leaves no thread behind. A process can end without waiting for a storage that does not answer. A ReadAhead
holds or requests at most Storage.reads_at_once blocks at a time. If a single read needs more blocks, all blocks of
this read are requested. Only one thread may use a ReadAhead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import Future
from threading import Thread

from storage_engine.storage import Readable, Storage

_BLOCK_BYTES = 2 * 1024**2
_LARGEST_READ = 8 * _BLOCK_BYTES
"""A longer range is read directly."""


def read_ahead(storage: Storage, files: Iterable[tuple[str, int]]) -> Readable:
    """What to read these files from, in this order: a ReadAhead, or the storage itself if it has no use for one.

    Args:
        files: key and size of each file. Each key occurs once.
    """
    if storage.reads_at_once == 1:
        return storage
    ahead = ReadAhead(storage, files)
    return ahead if ahead.blocks > 1 else storage


class ReadAhead:
    """Returns the same bytes and raises the same errors as the storage, and sooner if the files are read in their order.
    A block is read before it is needed. So an error can have happened before the call that raises it. After an error,
    the block is read again.
    """

    def __init__(self, storage: Storage, files: Iterable[tuple[str, int]]) -> None:
        """
        Args:
            files: as for read_ahead.
        """
        self._storage = storage
        self._keys: list[str] = []
        self._sizes: dict[str, int] = {}
        self._first_blocks: list[int] = []
        """By file, the number of its first block. Blocks are numbered from 0, through all files."""
        self.blocks = 0
        for key, size in files:
            if size:
                self._keys.append(key)
                self._sizes[key] = size
                self._first_blocks.append(self.blocks)
                self.blocks += -(-size // _BLOCK_BYTES)
        self._places = dict(zip(self._keys, self._first_blocks, strict=True))
        self._fetched: dict[int, Future[bytes]] = {}
        self._window = 1
        self._most = storage.reads_at_once

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like Storage.read. A range outside of the known files, or a very long range, is read directly."""
        first_block = self._places.get(key)
        if first_block is None or length is None or not 0 < length <= _LARGEST_READ:
            return self._storage.read(key, start, length)
        end = start + length
        if end > self._sizes[key]:
            return self._storage.read(key, start, length)
        first, last = first_block + start // _BLOCK_BYTES, first_block + (end - 1) // _BLOCK_BYTES
        self._fetch(first, last)
        found = b"".join(self._block(number) for number in range(first, last + 1))
        begin = start % _BLOCK_BYTES
        expected = min((last - first_block + 1) * _BLOCK_BYTES, self._sizes[key]) - (first - first_block) * _BLOCK_BYTES
        if len(found) != expected:  # the file is shorter than its writer said, or was a moment ago
            self._fetched.clear()
            return self._storage.read(key, start, length)
        return found if len(found) == length else found[begin : begin + length]

    def _block(self, number: int) -> bytes:
        try:
            return self._fetched[number].result()
        except BaseException:
            del self._fetched[number]
            raise

    def _fetch(self, first: int, last: int) -> None:
        """Forget the blocks before the first one that is needed, and ask for the blocks up to some after the last one."""
        for number in [each for each in self._fetched if not first <= each <= last + self._most]:
            del self._fetched[number]
        self._window = min(2 * self._window, self._most)
        for number in range(first, min(max(last + 1, first + self._window), self.blocks)):
            if number not in self._fetched:
                self._fetched[number] = block = Future[bytes]()
                Thread(target=self._read_block, args=(number, block), name="read-ahead", daemon=True).start()

    def _read_block(self, number: int, block: Future[bytes]) -> None:
        file = bisect_right(self._first_blocks, number) - 1
        key = self._keys[file]
        start = (number - self._first_blocks[file]) * _BLOCK_BYTES
        try:
            block.set_result(self._storage.read(key, start, min(_BLOCK_BYTES, self._sizes[key] - start)))
        except BaseException as error:  # noqa: BLE001 - raised by the reader
            block.set_exception(error)
