"""Reading ahead: several reads run at the same time, and give the same bytes and the same errors as the storage itself."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import NotFoundError
from storage_engine.log.isolation import Isolation
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.read_ahead import ReadAhead, read_ahead
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import PlainStorage

MIB = 1024**2


class DistantStorage(PlainStorage):
    """A storage that answers only when as many reads as `together` wait for an answer."""

    reads_at_once = 8

    def __init__(self, storage, together: int = 1) -> None:
        super().__init__(storage)
        self.waiting = threading.Barrier(together, timeout=20)
        self.reads: list[tuple[str, int, int | None]] = []

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads.append((key, start, length))
        if key.endswith(".log"):
            self.waiting.wait()
        return self.inner.read(key, start, length)


@pytest.fixture
def contents(tmp_path: Path) -> dict[str, bytes]:
    chance = random.Random(5)
    sizes = {"empty": 0, "small": 10, "block": 2 * MIB, "large": 21 * MIB + 17, "last": 3 * MIB - 1}
    contents = {name: chance.randbytes(size) for name, size in sizes.items()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return contents


def sizes_of(contents: dict[str, bytes]) -> list[tuple[str, int]]:
    return [(name, len(content)) for name, content in contents.items()]


@pytest.mark.parametrize("most", [1, 1000, 2 * MIB, 3 * MIB + 1, 8 * MIB, 30 * MIB])
def test_reads_in_order_give_the_bytes_of_the_files(tmp_path: Path, contents: dict[str, bytes], most: int) -> None:
    """As read_chunks reads: each read begins somewhere before the end of the read before it."""
    storage = DistantStorage(PosixStorage(tmp_path))
    ahead = ReadAhead(storage, sizes_of(contents))
    chance = random.Random(most)
    for name, content in contents.items():
        start = len(content) - 2000 if most < 2000 and len(content) > 2000 else 0
        while start < len(content):
            length = min(most, len(content) - start)
            assert ahead.read(name, start, length) == content[start : start + length]
            start += max(1, length - chance.randrange(length))
    assert ahead.read("small") == contents["small"]


def test_reads_in_any_order_give_the_bytes_of_the_files(tmp_path: Path, contents: dict[str, bytes]) -> None:
    ahead = ReadAhead(DistantStorage(PosixStorage(tmp_path)), sizes_of(contents))
    chance = random.Random(8)
    for _ in range(300):
        name = chance.choice(list(contents))
        start, length = chance.randrange(len(contents[name]) + 1), chance.choice([None, 1, 100, 5 * MIB, 40 * MIB])
        end = None if length is None else start + length
        assert ahead.read(name, start, length) == contents[name][start:end]


def test_each_block_is_fetched_once_and_little_after_the_place_where_reading_stops(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    storage = DistantStorage(PosixStorage(tmp_path))
    ahead = ReadAhead(storage, sizes_of(contents))
    assert ahead.read("small", 0, 10) == contents["small"]
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join()  # the blocks that were asked for have arrived
    assert storage.reads == [("small", 0, 10), ("block", 0, 2 * MIB)]

    storage = DistantStorage(PosixStorage(tmp_path))
    ahead = ReadAhead(storage, sizes_of(contents))
    for name, content in contents.items():
        for start in range(0, len(content), MIB):
            length = min(MIB, len(content) - start)
            assert ahead.read(name, start, length) == content[start : start + length]
    assert len(storage.reads) == len(set(storage.reads)) == 1 + 1 + 11 + 2


def test_a_file_that_is_missing_or_shorter_than_its_writer_said_is_read_as_from_the_storage(
    tmp_path: Path, contents: dict[str, bytes]
) -> None:
    ahead = ReadAhead(DistantStorage(PosixStorage(tmp_path)), sizes_of(contents))
    (tmp_path / "block").unlink()
    (tmp_path / "large").write_bytes(contents["large"][: 5 * MIB])
    assert ahead.read("small", 0, 10) == contents["small"]
    with pytest.raises(NotFoundError):
        ahead.read("block", 0, MIB)
    (tmp_path / "block").write_bytes(contents["block"])
    assert ahead.read("block", 0, MIB) == contents["block"][:MIB]
    assert ahead.read("large", 0, 8 * MIB) == contents["large"][: 5 * MIB]
    (tmp_path / "large").write_bytes(contents["large"])  # a cache that was stale
    assert ahead.read("large", 0, 8 * MIB) == contents["large"][: 8 * MIB]
    assert ahead.read("last", 5, MIB) == contents["last"][5 : MIB + 5]


def test_a_storage_that_reads_ahead_itself_is_used_directly(tmp_path: Path, contents: dict[str, bytes]) -> None:
    local = PosixStorage(tmp_path)
    assert read_ahead(local, sizes_of(contents)) is local
    distant = DistantStorage(local)
    assert read_ahead(distant, [("small", 10)]) is distant, "there is nothing to read ahead"


def test_small_segments_are_read_several_at_a_time(tmp_path: Path) -> None:
    """The reads wait for one another, so they time out if a reader asks for one segment after another."""
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), SystemClock())
    config = topics.config(topics.create("t", 1, {"segment.bytes": "2000"}))
    rows = [Row(b"k%d" % number, random.Random(number).randbytes(500)) for number in range(120)]
    for first in range(0, 120, 3):
        append_records(topics.storage, topics.chain("t"), config, topics.clock, to_table(rows[first : first + 3]), None)
    segments = topics.chain("t").newest().partitions[0].segments
    assert len(segments) == 40

    reader = PartitionReader(DistantStorage(topics.storage, together=2), topics.chain("t"), 0)
    found = [row for records in reader.read(0, None, Isolation.READ_COMMITTED) for row in records.to_pylist()]
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [
        (number, row.key, row.value) for number, row in enumerate(rows)
    ]
