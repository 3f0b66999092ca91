"""A full disk. Whichever write fails, no committed record is lost or repeated. After somebody frees space, the same
command succeeds.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import deltalake
import pytest
from typing_extensions import Buffer

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import StorageFullError
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_key
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.posix_files import PosixFile
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.bad_input.conftest import Lakelog, RunJob, said
from tests.lakelog.cli.conftest import line
from tests.small_disks import can_mount
from tests.small_disks import small_disk as mounted
from tests.storage_engine.record_tables import Row, to_rows, to_table

NOW_MS = 1_700_000_000_000
PLENTY = 10**9


class FullDisk(PosixStorage):
    """A real directory on which a limited number of writes succeed. The next write writes half of its bytes and fails.

    uncertain: the files under data/ at the time when a commit failed. These files stay, because on a real disk it is
        unknown whether the commit took effect.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.writes_left = PLENTY
        self.uncertain: set[str] = set()

    def files(self, folder: str) -> set[str]:
        return {str(path.relative_to(self.root)) for path in (self.root / folder).rglob("*") if path.is_file()}

    def spend(self, place: str) -> None:
        if not self.writes_left:
            raise StorageFullError(place, "No space left on device", "Free space.")
        self.writes_left -= 1

    def put_new(self, key: str, data: Buffer) -> None:
        if not self.writes_left and key.startswith("meta/"):
            self.uncertain |= self.files("data")
        self.spend(key)
        super().put_new(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        self.spend(key)
        super().replace(key, data)

    def create(self, key: str, *, durable: bool = True) -> PosixFile:
        self.spend(key)
        return _FileOnAFullDisk(super().create(key, durable=durable), self, key)

    def show(self, key: str, name: str, modified_ns: int) -> None:
        self.spend(name)
        super().show(key, name, modified_ns)

    def show_copy(self, key: str, size: int, name: str, modified_ns: int) -> None:
        self.spend(name)
        super().show_copy(key, size, name, modified_ns)

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        self.spend(name)
        super().show_bytes(data, name, modified_ns)


class _FileOnAFullDisk(PosixFile):
    def __init__(self, file: PosixFile, disk: FullDisk, key: str) -> None:
        self.__dict__.update(file.__dict__)
        self._disk = disk
        self._key = key

    def write_at(self, position: int, data: Sequence[Buffer]) -> None:
        try:
            self._disk.spend(self._key)
        except StorageFullError:
            whole = b"".join(bytes(part) for part in data)
            super().write_at(position, [whole[: len(whole) // 2]])
            raise
        super().write_at(position, data)

    def sync(self) -> None:
        self._disk.spend(self._key)
        super().sync()


class Log:
    """A compacted topic of two partitions on a disk that can be full."""

    def __init__(self, folder: Path) -> None:
        self.disk = FullDisk(folder)
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics(self.disk, BrokerConfig(), self.clock)
        settings = {"cleanup.policy": "compact,delete", "segment.bytes": "1024", "max.message.bytes": "500"}
        self.topics.create("t", 2, settings | {"retention.ms": "1000", "file.delete.delay.ms": "0"})

    @property
    def state(self) -> TopicState:
        return self.topics.state("t")

    def append(self, numbers: Sequence[int]) -> None:
        rows = [Row(b"%d" % (number % 7), b"%d" % number + bytes(100), (), NOW_MS) for number in numbers]
        config = self.topics.config(self.state)
        append_records(self.disk, self.topics.chain("t"), config, self.clock, to_table(rows))

    def records(self) -> list[Row]:
        """What a reader finds whose disk has nothing to do with it."""
        topics = Topics(PosixStorage(self.disk.root), BrokerConfig(), self.clock)
        readers = [PartitionReader(topics.storage, topics.chain("t"), number) for number in range(2)]
        return [
            row
            for reader in readers
            for found in reader.read(reader.partition.log_start_offset)
            for row in to_rows(found)
        ]

    def left_over(self) -> set[str]:
        """Files that no version names and that no commit can have named."""
        state = self.state
        named = {
            data_key(state.topic_id, number, segment.name, suffix)
            for number, part in enumerate(state.partitions)
            for segment in part.segments
            for suffix in SEGMENT_SUFFIXES
        }
        named |= {data_key(*each[:3], suffix) for each in state.dropped for suffix in SEGMENT_SUFFIXES}
        return self.disk.files("data") - named - self.disk.uncertain | self.disk.files("staging")

    def fill_everywhere(self, work: Callable[[], object], unchanged: Callable[[], object]) -> int:
        """Do the work on a disk that is full after 0, 1, 2... writes, until it succeeds. Returns how often it failed."""
        for writes in itertools.count():
            before = unchanged()
            self.disk.writes_left = writes
            try:
                work()
            except StorageFullError:
                assert unchanged() == before, f"full after {writes} writes"
            else:
                return writes
            finally:
                self.disk.writes_left = PLENTY
        raise AssertionError("unreachable")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "root")


def test_an_append_is_there_once_or_not_at_all_and_leaves_nothing(log: Log) -> None:
    log.append(range(20))
    there = log.records()
    failed = log.fill_everywhere(
        lambda: log.append(range(20, 40)),
        lambda: (log.state.version, log.records(), log.left_over()),
    )
    assert failed > 20, "stage, three files for each new segment, and the commit"
    assert not log.left_over()
    found = log.records()
    assert set(there) < set(found)
    assert sorted(int(row.value.rstrip(b"\0")) for row in found if row.value) == list(range(40))


def test_a_compaction_swaps_all_or_nothing_and_leaves_nothing(log: Log) -> None:
    log.append(range(30))
    latest = {row.key: row.value for row in log.records()}

    def compact() -> None:
        config = log.topics.config(log.state)
        chain = log.topics.chain("t")
        result = compact_topic(log.disk, chain, config, log.topics.broker, log.clock, force=True)
        for failure in result.failed:
            raise failure.error

    before = len(log.records())
    failed = log.fill_everywhere(compact, lambda: {row.key: row.value for row in log.records()})
    assert failed > 4
    assert len(log.records()) < before
    assert {row.key: row.value for row in log.records()} == latest
    assert not log.left_over()


def test_retention_and_the_deletion_of_files_are_done_or_not(log: Log) -> None:
    log.append(range(60))
    log.clock.advance(10_000)

    def retain() -> None:
        retain_topic(log.topics.chain("t"), log.topics.broker)

    def delete() -> None:
        delete_dropped(log.disk, log.topics.chain("t"), log.topics.config(log.state), log.clock.now_ms())

    assert log.fill_everywhere(retain, lambda: (log.state.version, log.records())) == 1
    assert log.records() == []
    assert log.fill_everywhere(delete, lambda: log.state.version) == 1
    assert log.disk.files("data") == set()


def test_settling_goes_on_where_it_failed(log: Log) -> None:
    log.append(range(60))
    there = log.records()
    failed = log.fill_everywhere(lambda: settle(log.topics), lambda: (log.state.version, log.disk.files("data")))
    assert failed >= 10
    shown = sum(path.stat().st_size for path in (log.disk.root / "log").glob("t-*/*.log"))
    assert shown == sum(part.size for part in log.state.partitions)
    assert log.records() == there


def test_a_topic_is_created_altered_and_deleted_or_not(log: Log) -> None:
    assert log.fill_everywhere(lambda: log.topics.create("u", 1, {}), lambda: list(log.topics.names())) == 1
    assert log.fill_everywhere(lambda: log.topics.alter("u", 2), lambda: log.topics.state("u").version) == 1
    assert log.fill_everywhere(lambda: log.topics.delete("u"), lambda: list(log.topics.names())) == 1


# --- Disks that are really full -------------------------------------------------------------------------------------


class SmallDisk:
    """The root as a file system of four megabytes of its own."""

    problem = "No space left on device"
    remedy = "Free space on this file system"
    too_little_to_append: tuple[int, ...] = (0, 4096, 100_000, 400_000)
    too_little_to_ingest: tuple[int, ...] = (0, 20_000, 300_000, 700_000)

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def prepared(self) -> Iterator[Self]:
        with mounted(self._root, 4 * 1024**2):
            yield self

    @contextmanager
    def full(self, left: int) -> Iterator[None]:
        """Fill the disk, except for this number of bytes, while the block runs."""
        ballast = self._root / "ballast"
        free = shutil.disk_usage(self._root).free
        ballast.write_bytes(bytes(max(0, free - left)))
        yield
        ballast.unlink()


class FileSizeLimit(SmallDisk):
    """A limit that needs no mount: no file of this process becomes larger than the limit. It does not affect Spark's
    tasks."""

    problem = "File too large"
    remedy = "Raise the limit on file sizes"
    too_little_to_append = (4096, 100_000)
    too_little_to_ingest = (20_000, 300_000)  # what stands in for a terminal is a file, too, and needs some

    @contextmanager
    def prepared(self) -> Iterator[Self]:
        yield self

    @contextmanager
    def full(self, left: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=[FileSizeLimit, SmallDisk] if can_mount() else [FileSizeLimit])
def small_disk(request: pytest.FixtureRequest, root: Path) -> Iterator[SmallDisk]:
    with request.param(root).prepared() as disk:
        yield disk


@pytest.mark.posix("fills the disk of a local root")
def test_a_full_disk_ends_commands_and_with_space_again_they_work(
    lakelog: Lakelog, small_disk: SmallDisk, root: Path
) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", b"v")])
    rows = [line(b"%d" % number, bytes(500)) for number in range(500)]
    for left in small_disk.too_little_to_append:
        with small_disk.full(left):
            message = said(lakelog("append", "--topic", "t", stdin=rows), str(root))
        assert f"{small_disk.problem}. {small_disk.remedy}" in message
        assert len(lakelog("read", "--topic", "t").records) == 1
    assert lakelog("append", "--topic", "t", stdin=rows).status == 0
    assert len(lakelog("read", "--topic", "t").records) == 501
    assert not [path for path in (root / "staging").rglob("*") if path.is_file()]


@pytest.mark.posix("starts a command with a path as its root")
def test_reading_into_a_full_file_is_an_error(lakelog: Lakelog, root: Path) -> None:
    lakelog("topics", "create", "t")
    lakelog("append", "--topic", "t", stdin=[line(b"k", bytes(500))] * 100)
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "lakelog.cli", "read", "--topic", "t", "--root", root],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == b"lakelog: standard input or output: No space left on device.\n"


@pytest.mark.posix("fills the disk of a local root")
def test_an_ingest_on_a_full_disk_loses_and_doubles_nothing(
    small_disk: SmallDisk, root: Path, tmp_path: Path, job: RunJob, lakelog: Lakelog, spark: object
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    settings = [
        "ingest.topic=t", "ingest.source.format=json", f"ingest.source.path={source}", "ingest.value=v", "ingest.key=k",
        "ingest.source.schema=k STRING, v STRING", "topics.t.cleanup.policy=compact",
        "ingest.storage.retry.timeout.ms=0",
    ]  # fmt: skip
    ingest = ("ingest", *(word for setting in settings for word in ("--set", setting)))

    def write(first: int, count: int) -> None:
        rows = ({"k": str(number) if number % 10 else None, "v": "x" * 500} for number in range(first, first + count))
        (source / f"{first}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    write(0, 10)
    assert job(*ingest).status == 0
    write(10, 1000)
    for left in small_disk.too_little_to_ingest:
        with small_disk.full(left):
            message = said(job(*ingest))
        assert small_disk.problem in message
        assert len(lakelog("read", "--topic", "t").records) == 9
    os.sync()
    assert job(*ingest).status == 0
    assert len(lakelog("read", "--topic", "t").records) == 909
    letters = deltalake.DeltaTable(root / "tables/dead_letters/ingest/t").to_pyarrow_table()
    assert letters.num_rows == 101, "each refused row once"
