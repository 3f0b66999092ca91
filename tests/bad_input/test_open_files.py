"""Topics with more partitions than the number of files that a process may open. Either all records are written, or the
error says which limit is too low.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import StorageError
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.storage import bounded_files, open_files
from storage_engine.storage.open_files import OpenFileShare
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import TopicWriter
from storage_engine.topic.topics import Topics
from tests.bad_input.conftest import Lakelog
from tests.lakelog.cli.conftest import line
from tests.storage_engine.record_tables import Row, to_rows, to_table

CLOCK = ManualClock(1_700_000_000_000)


def append_with_limit(root: Path, soft: int, hard: int, lines: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "lakelog.cli", "append", "--topic", "t", "--root", root],
        input="".join(f"{each}\n" for each in lines).encode(), capture_output=True, check=False, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )  # fmt: skip


def some_lines(first: int, count: int) -> list[str]:
    return [line(b"k%d" % number, b"v%d" % number, timestamp=number) for number in range(first, first + count)]


@pytest.mark.posix("counts the open files of a local root")
def test_a_topic_of_more_partitions_than_open_files_is_written_and_read_whole(lakelog: Lakelog, root: Path) -> None:
    assert lakelog("topics", "create", "t", "--partitions", "150").status == 0
    lines = some_lines(0, 1500)
    for part in (lines[:750], lines[750:]):
        ended = append_with_limit(root, 64, 64, part)
        assert (ended.returncode, ended.stderr) == (0, b"")
    read = lakelog("read", "--topic", "t").records
    wanted = [tuple(json.loads(each)[name] for name in ("timestamp", "key", "value")) for each in lines]
    assert sorted((each["timestamp"], each["key"], each["value"]) for each in read) == wanted
    assert lakelog("verify", "--format", "jsonl").out == ""


def test_the_soft_limit_is_raised_where_the_hard_limit_allows_it() -> None:
    program = "from storage_engine.storage.open_files import open_file_limit as limit; import resource; "
    program += "print(limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 700)),
    )  # fmt: skip
    assert found.stdout.split() == ["700", "700", "700"]


@contextlib.contextmanager
def no_file_left() -> Iterator[int]:
    """While the block runs, the process cannot open another file. The block gets the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield used
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_strikes_all_the_same_is_named_with_what_raises_it(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path)
    storage.put_new("a", b"1")
    with no_file_left() as limit, pytest.raises(StorageError) as caught:
        storage.read("a")
    assert f"This process may have {limit} files open" in str(caught.value)
    assert "`ulimit -n`" in str(caught.value)
    assert storage.read("a") == b"1"


def opened_logs(folder: Path) -> int:
    names = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return sum(name.startswith(str(folder)) for name in names)


class Writing:
    """A writer whose every append puts one record on some partitions."""

    def __init__(self, topics: Topics, topic: str, partitions: int) -> None:
        self.topics = topics
        self.chain = topics.chain(topic)
        state = topics.create(topic, partitions, {})
        self.config = topics.config(state)
        self.writer = TopicWriter(topics.storage, self.chain, self.config, CLOCK, None)

    def append(self, *partitions: int) -> list[int]:
        """Returns how many segments each partition has then."""
        state = self.chain.newest()
        with StagingWriter(self.topics.storage, f"staging/{state.topic_id}/{state.version}/") as staging:
            for number in partitions:
                records = to_table([Row(b"%d" % state.version, b"%d" % number)])
                chosen = np.full(1, number, np.int32)
                stage_records(staging, records, chosen, Encoding.of(self.config, CLOCK.now_ms()))
        self.writer.append(by_partition(staging.runs))
        return [len(part.segments) for part in self.chain.newest().partitions]


@pytest.fixture
def sixteen_files(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit of sixteen open files, only for the writers of this test. They keep eight files open."""
    monkeypatch.setattr(open_files, "_POOL", open_files._Pool())
    for module in (open_files, bounded_files):
        monkeypatch.setattr(module, "open_file_limit", lambda: 16)
    return 8


def test_what_does_not_stay_open_is_rolled_and_never_written_to_again(
    tmp_path: Path, sixteen_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    original = os.open

    def noted(path, flags, *args, **kwargs):
        if str(path).endswith(".log") and flags & (os.O_WRONLY | os.O_RDWR):
            written.append(str(path))
        return original(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", noted)
    writing = Writing(Topics(PosixStorage(tmp_path), BrokerConfig(), CLOCK), "t", 20)
    assert writing.append(*range(20)) == 20 * [1]
    assert opened_logs(tmp_path / "data") == sixteen_files
    after = writing.append(*range(20))
    assert sorted(after) == sixteen_files * [1] + (20 - sixteen_files) * [2]
    staying = [number for number, segments in enumerate(after) if segments == 1]
    assert writing.append(*staying) == after, "who fits in goes on in its segments"
    others = [number for number in range(20) if number not in staying][:3]
    assert sum(writing.append(*others)) == sum(after) + 3
    assert sum(writing.append(*others)) == sum(after) + 3, "the place of what was used longest ago is theirs"
    assert opened_logs(tmp_path / "data") == sixteen_files
    assert len(written) == len(set(written)), "a .log that was closed is never opened for writing again"
    writing.writer.close()
    assert opened_logs(tmp_path / "data") == 0


def test_two_topics_share_what_may_be_open(tmp_path: Path, sixteen_files: int) -> None:
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), CLOCK)
    large, small = Writing(topics, "large", 10), Writing(topics, "small", 3)
    for _ in range(3):
        of_large, of_small = large.append(*range(10)), small.append(*range(3))
        assert opened_logs(tmp_path / "data") <= sixteen_files
    assert of_small == small.append(*range(3)), "the smaller one keeps what it needs"
    assert sum(large.append(*range(10))) == sum(of_large) + 10 - (sixteen_files - 3)
    small.writer.close()
    large.append(*range(10))
    assert opened_logs(tmp_path / "data") == sixteen_files, "what one gives up the other gets"
    large.writer.close()


def test_a_share_that_nobody_closed_is_given_back_with_its_owner(sixteen_files: int) -> None:
    forgotten, other = OpenFileShare(), OpenFileShare()
    forgotten.want(100)
    assert forgotten.take()
    assert other.want(100) == sixteen_files // 2
    del forgotten
    assert other.want(100) == sixteen_files
    other.close()


def test_shares_are_given_back(sixteen_files: int) -> None:
    one, other = OpenFileShare(), OpenFileShare()
    assert (one.want(100), other.want(100)) == (sixteen_files, sixteen_files // 2)
    assert one.want(100) == sixteen_files // 2
    assert other.want(1) == 1
    assert one.want(100) == sixteen_files - 1
    other.close()
    assert one.want(5) == 5
    one.close()


def test_a_plain_kafka_directory_of_many_partitions_is_written_with_few_open_files(
    tmp_path: Path, sixteen_files: int
) -> None:
    config = LogManagerConfig.from_mapping({"log.message.timestamp.after.max.ms": 2**62})
    rows = [[Row(b"k", b"%d" % (number + turn)) for turn in range(3)] for number in range(12)]
    with LogManager([tmp_path], config, clock=CLOCK) as logs:
        for number in range(12):
            logs.create("orders", number)
        for turn in range(3):
            for number in range(12):
                logs.log("orders", number).append_records(to_table(rows[number][turn : turn + 1]))
                assert opened_logs(tmp_path / "orders-") <= sixteen_files
        assert opened_logs(tmp_path / "orders-") == sixteen_files // 2
    with LogManager([tmp_path], config, clock=CLOCK) as logs:
        for number in range(12):
            read = [row for part in logs.log("orders", number).read(0, 3) for row in to_rows(part)]
            assert [(row.key, row.value) for row in read] == [(row.key, row.value) for row in rows[number]]
