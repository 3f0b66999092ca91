"""Tests that the view log/ shows the state after every kind of change to a topic."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typing_extensions import Buffer

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError, NotFoundError, StorageError
from storage_engine.log.checkpoint import (
    decode_leader_epochs,
    decode_meta_properties,
    decode_offsets,
    encode_partition_metadata,
)
from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, data_key, new_segment_name, offset_name
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import EMPTY_SNAPSHOT
from storage_engine.record.batch import scan_batches
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, append_records, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import TopicWriter, take_over
from storage_engine.topic.chain.segment_lists import drop_listing
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.kafka.view_folder import hold_lock
from storage_engine.topic.topics import Topics
from tests.storage_engine.topic.wrapped_storage import PlainStorage

NOW_MS = 1_700_000_000_000
CONFIGS = {"segment.bytes": 4000, "index.interval.bytes": 300}


class Root:
    """A root with one topic `t`, and what tests do to it."""

    def __init__(self, path: Path, partitions: int = 2) -> None:
        self.path = path
        self.log = path / "log"
        self.storage = PosixStorage(path)
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics(self.storage, BrokerConfig(), self.clock)
        self.topics.create("t", partitions, CONFIGS)
        self._records = 0

    def records(self, count: int, value_bytes: int = 60) -> pa.RecordBatch:
        """Records with event times that go back and forth, so that the time indexes are not trivial."""
        numbers = np.arange(self._records, self._records + count)
        self._records += count
        times = NOW_MS - 1_000_000 + numbers * 10 + (numbers * 7919 % 13) * 100
        random = np.random.default_rng(int(self._records))
        return pa.record_batch(
            [
                pa.array([b"%d" % (number % 50) for number in numbers], pa.binary()),
                pa.array([random.bytes(value_bytes) for _ in numbers], pa.binary()),
                pa.array([None] * count, TO_APPEND.field("headers").type),
                pa.array(times, pa.int64()),
            ],
            schema=TO_APPEND,
        )

    def append(self, count: int = 20, partition: int | None = None, topic: str = "t") -> None:
        self.clock.advance(1000)
        chain = self.topics.chain(topic)
        config = self.topics.config(chain.newest())
        append_records(self.storage, chain, config, self.clock, self.records(count), partition)

    def state(self, topic: str = "t") -> TopicState:
        return self.topics.state(topic)

    def commit(self, change: Callable[[PartitionState], PartitionState], partition: int = 0) -> None:
        self.topics.chain("t").commit(
            lambda state: state.with_partitions({partition: drop_listing(change(state.partitions[partition]))}), "test"
        )

    def writer(self, storage: PosixStorage | None = None, batch_bytes: int = 700) -> "Writer":
        return Writer(self, storage or self.storage, batch_bytes)

    def data(self, partition: int, segment: Segment, suffix: str = LOG) -> Path:
        return self.path / data_key(self.state().topic_id, partition, segment.name, suffix)

    def check(self) -> None:
        """Compare every file of the view with what the state says."""
        states = [self.state(name) for name in self.topics.names()]
        folders = {f"{state.topic}-{number}" for state in states for number in range(len(state.partitions))}
        files = {
            "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint",
            "cleaner-offset-checkpoint", "meta.properties", ".lock",
        }  # fmt: skip
        assert {path.name for path in self.log.iterdir()} == folders | files
        ends = {(state.topic, n): part.high_watermark for state in states for n, part in enumerate(state.partitions)}
        assert self.checkpoint("recovery-point") == ends
        assert self.checkpoint("replication") == ends
        for state in states:
            for number, part in enumerate(state.partitions):
                self._check_partition(state, number, part)

    def checkpoint(self, name: str) -> dict[tuple[str, int], int]:
        return decode_offsets((self.log / f"{name}-offset-checkpoint").read_bytes(), name)

    def _check_partition(self, state: TopicState, number: int, part: PartitionState) -> None:
        folder = self.log / f"{state.topic}-{number}"
        expected = {
            "partition.metadata": encode_partition_metadata(state.topic_id),
            "leader-epoch-checkpoint": (folder / "leader-epoch-checkpoint").read_bytes(),
        }
        assert decode_leader_epochs(expected["leader-epoch-checkpoint"], "") == list(part.leader_epochs)
        for segment in part.segments:
            stored = self.path / data_key(state.topic_id, number, segment.name)
            data = stored.read_bytes()[: segment.size]
            assert len(data) == segment.size
            table = scan_batches(np.frombuffer(data, np.uint8), "")
            indexes = index_segment(segment.base_offset, table, 300)
            name = offset_name(segment.base_offset)
            expected[name + LOG] = data
            expected[name + INDEX] = indexes.offset_index_bytes()
            expected[name + TIME_INDEX] = indexes.time_index_bytes()
            if segment != part.segments[0]:
                expected[name + SNAPSHOT] = EMPTY_SNAPSHOT
            shown = folder / (name + LOG)
            assert shown.stat().st_mtime_ns // 1_000_000 == segment.modified_ms
            assert (shown.stat().st_ino == stored.stat().st_ino) == (stored.stat().st_size == segment.size)
        if not part.segments:
            expected |= {offset_name(part.log_start_offset) + suffix: b"" for suffix in (LOG, INDEX, TIME_INDEX)}
        elif part.high_watermark > part.segments[0].base_offset:
            expected[offset_name(part.high_watermark) + SNAPSHOT] = EMPTY_SNAPSHOT
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected

    def fingerprint(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for path in self.log.rglob("*"):
            stat = path.stat()
            found[str(path)] = stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
        return found


class Writer:
    """A streaming writer, whose small batches give the indexes entries."""

    def __init__(self, root: Root, storage: PosixStorage, batch_bytes: int) -> None:
        self._root = root
        self._storage = storage
        self._batch_bytes = batch_bytes
        topics = Topics(storage, BrokerConfig(), root.clock)
        chain = topics.chain("t")
        self._config = topics.config(chain.newest())
        self._writer = TopicWriter(storage, chain, self._config, root.clock, None)

    def append(self, count: int = 20, partition: int = 0) -> None:
        self._root.clock.advance(1000)
        encoding = Encoding.of(self._config, self._root.clock.now_ms(), self._batch_bytes)
        with StagingWriter(self._storage, staging_folder(self._root.state().topic_id, 0)) as staging:
            stage_records(staging, self._root.records(count), np.full(count, partition, np.int32), encoding)
        self._writer.append(by_partition(staging.runs))

    def close(self) -> None:
        self._writer.close()


class RefusingStorage(PosixStorage):
    """Publishes go through, commits do not."""

    refuse = False

    def put_new(self, key, data) -> None:
        if self.refuse and key.startswith("meta/"):
            raise StorageError(key, "is refused by the test")
        super().put_new(key, data)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def settled(root: Root) -> None:
    """Settle, check, and see that settling again touches nothing."""
    settle(root.topics)
    root.check()
    before = root.fingerprint()
    settle(root.topics)
    assert root.fingerprint() == before


def test_an_empty_topic_shows_as_empty_logs(root: Root) -> None:
    settled(root)
    assert (root.log / "t-0" / "00000000000000000000.log").read_bytes() == b""
    assert (root.log / "t-0" / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"


def test_appends_and_rolls_are_shown_by_links(root: Root) -> None:
    root.append(20)
    settled(root)
    writer = root.writer()
    for _ in range(12):
        writer.append(15)
        settled(root)
    writer.append(100, partition=1)
    settled(root)
    parts = root.state().partitions
    assert len(parts[0].segments) > 3
    assert sum(path.stat().st_size for path in root.log.rglob("*.index")) > 8 * 10
    writer.close()
    settled(root)


def test_a_new_epoch_is_shown_at_once_also_on_empty_partitions(root: Root) -> None:
    root.append(20, partition=0)
    take_over(root.topics.chain("t"), "query")
    settled(root)
    assert (root.log / "t-0" / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n1 20\n"
    assert (root.log / "t-1" / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n1 0\n"
    root.append(20, partition=0)
    settled(root)


def test_bytes_that_were_published_and_not_committed_are_not_shown(root: Root) -> None:
    storage = RefusingStorage(root.path)
    writer = root.writer(storage)
    writer.append(12)
    settled(root)
    segment = root.state().partitions[0].segments[-1]
    storage.refuse = True
    with pytest.raises(StorageError):
        writer.append(12)
    assert root.data(0, segment).stat().st_size > segment.size
    settled(root)
    assert (root.log / "t-0" / "00000000000000000000.log").stat().st_ino != root.data(0, segment).stat().st_ino
    storage.refuse = False
    writer.append(12)
    assert len(root.state().partitions[0].segments) == 2
    settled(root)


def test_a_copy_gives_way_to_the_link_once_all_bytes_are_committed(root: Root) -> None:
    writer = root.writer()
    writer.append(12)
    segment = root.state().partitions[0].segments[-1]
    shown = root.log / "t-0" / "00000000000000000000.log"
    with root.data(0, segment).open("ab") as file:
        file.write(b"tail")
    settled(root)
    assert shown.stat().st_ino != root.data(0, segment).stat().st_ino
    os.truncate(root.data(0, segment), segment.size)
    settled(root)
    assert shown.stat().st_ino == root.data(0, segment).stat().st_ino


def test_retention_takes_segments_out_of_the_view(root: Root) -> None:
    writer = root.writer()
    for _ in range(6):
        writer.append(30)
    settled(root)
    segments = root.state().partitions[0].segments
    start = segments[2].base_offset
    root.commit(lambda part: part.model_copy(update={"segments": segments[2:], "log_start_offset": start}))
    settled(root)
    assert root.checkpoint("log-start") == {}
    root.commit(lambda part: part.model_copy(update={"log_start_offset": start + 3}))
    settled(root)
    assert root.checkpoint("log-start") == {("t", 0): start + 3}


def test_a_partition_that_lost_all_its_segments_is_an_empty_log_at_its_start(root: Root) -> None:
    root.append(50, partition=0)
    settled(root)
    root.commit(lambda part: part.model_copy(update={"segments": (), "log_start_offset": part.high_watermark}))
    settled(root)
    assert (root.log / "t-0" / "00000000000000000050.log").read_bytes() == b""
    root.append(5, partition=0)
    settled(root)


def test_a_compacted_segment_replaces_the_one_of_the_same_base_and_size(root: Root) -> None:
    writer = root.writer()
    for _ in range(6):
        writer.append(30)
    settled(root)
    state = root.state()
    first, second = state.partitions[0].segments[:2]
    data = bytearray(root.data(0, first).read_bytes())
    data[12:16] = b"\0\0\0\7"  # another leader epoch: as long as before, other bytes
    same_size = first._replace(name=new_segment_name(0, state.version))
    root.data(0, same_size).write_bytes(data)
    root.commit(lambda part: part.model_copy(update={"segments": (same_size, *part.segments[1:])}))
    settled(root)

    # Now the first two are merged and lose their last batches; index files are not there at all.
    kept = scan_batches(np.frombuffer(root.data(0, same_size).read_bytes(), np.uint8), "")
    merged_bytes = bytes(data[: int(kept.positions[-1])])
    merged = Segment(
        0, new_segment_name(0, state.version), len(merged_bytes), int(kept.last_offsets[-2]) + 1,
        int(kept.max_timestamps[:-1].max()),
        int(kept.last_offsets[int(kept.max_timestamps[:-1].argmax())]), second.modified_ms,
    )  # fmt: skip
    root.data(0, merged).write_bytes(merged_bytes)
    root.commit(
        lambda part: part.model_copy(
            update={"segments": (merged, *part.segments[2:]), "first_dirty_offset": part.segments[-1].base_offset}
        )
    )
    settled(root)
    assert root.checkpoint("cleaner") == {("t", 0): root.state().partitions[0].segments[-1].base_offset}


def test_a_segment_emptied_by_compaction_is_shown_empty(root: Root) -> None:
    writer = root.writer()
    for _ in range(4):
        writer.append(30)
    state = root.state()
    emptied = (
        state.partitions[0]
        .segments[0]
        ._replace(name=new_segment_name(0, state.version), size=0, largest_timestamp=-1, largest_timestamp_offset=0)
    )
    root.data(0, emptied).write_bytes(b"")
    root.commit(lambda part: part.model_copy(update={"segments": (emptied, *part.segments[1:])}))
    settled(root)


def test_a_deleted_topic_goes_and_one_created_again_has_its_own_files(root: Root) -> None:
    root.append(50)
    settled(root)
    old_id = root.state().topic_id
    root.topics.delete("t")
    settled(root)
    assert not (root.log / "t-0").exists()
    root.topics.create("t", 1, CONFIGS)
    root.append(10)
    settled(root)
    assert old_id.encode() not in (root.log / "t-0" / "partition.metadata").read_bytes()
    assert not (root.log / "t-1").exists()


def test_a_topic_created_again_between_two_settles_shows_the_new_files(root: Root) -> None:
    root.append(50)
    settled(root)
    root.topics.delete("t")
    root.topics.create("t", 1, CONFIGS)
    root.append(10)
    settled(root)


def test_strays_go_and_the_identity_stays(root: Root) -> None:
    root.append(50)
    settled(root)
    identity = (root.log / "meta.properties").read_bytes()
    decode_meta_properties(identity, "")
    (root.log / "other-0" / "deep").mkdir(parents=True)
    (root.log / "other-0" / "deep" / "file").write_text("x")
    (root.log / "notes.txt").write_text("x")
    (root.log / ".kafka_cleanshutdown").write_text("x")
    (root.log / "t-7").mkdir()
    (root.log / "t-0" / ".tmp-1234").write_text("left by a crash")
    (root.log / ".tmp-1234").write_text("left by a crash")
    (root.log / "t-0" / "00000000000000000999.log").write_text("x")
    (root.log / "t-0" / "00000000000000000000.log.deleted").write_text("x")
    (root.log / "t-0" / "folder").mkdir()
    (root.log / "link").symlink_to(root.path / "data")
    settled(root)
    assert (root.log / "meta.properties").read_bytes() == identity
    assert (root.path / "data").is_dir()


def test_a_folder_in_the_place_of_a_file_and_a_file_in_the_place_of_a_folder_give_way(root: Root) -> None:
    settled(root)
    shutil.rmtree(root.log)
    root.append(50)
    (root.log / "t-0" / "00000000000000000000.log").mkdir(parents=True)
    (root.log / "replication-offset-checkpoint").mkdir()
    (root.log / "t-1").write_text("x")
    settled(root)


@pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "zeros first", "zero inside", "garbage", "grown"])
@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_a_damaged_index_under_data_is_rebuilt_in_the_view(root: Root, suffix: str, damage: str) -> None:
    writer = root.writer()
    writer.append(40)
    segment = root.state().partitions[0].segments[0]
    path = root.data(0, segment, suffix)
    data = path.read_bytes()
    assert len(data) >= 24
    match damage:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(data[: len(data) // 2 + 1])
        case "zeros":
            path.write_bytes(data[:12] + bytes(len(data) - 12))
        case "zeros first":
            path.write_bytes(bytes(24) + data[24:])
        case "zero inside":
            path.write_bytes(data[:12] + bytes(4) + data[16:])
        case "garbage":
            path.write_bytes(bytes(reversed(data)))
        case "grown":
            path.write_bytes(data + bytes(240))
    settled(root)


class CountingStorage(PosixStorage):
    """Counts the bytes of .log files that are read."""

    log_bytes = 0

    def read(self, key, start=0, length=None):
        data = super().read(key, start, length)
        if key.endswith(LOG):
            self.log_bytes += len(data)
        return data


def test_a_log_is_read_only_behind_its_last_index_entry(root: Root) -> None:
    root.topics.alter("t", configs={"segment.bytes": 10_000_000})
    root.writer().append(10_000)
    storage = CountingStorage(root.path)
    settle(Topics(storage, BrokerConfig(), root.clock))
    assert root.state().partitions[0].size > 500_000
    assert storage.log_bytes < 10_000
    root.check()


def test_damage_in_the_view_is_mended(root: Root) -> None:
    writer = root.writer()
    for _ in range(4):
        writer.append(30)
    settled(root)
    for path in [*root.log.glob("t-0/*index"), *root.log.glob("t-0/*.snapshot"), root.log / "t-0/partition.metadata"]:
        path.write_bytes(b"\xff" * path.stat().st_size)
    (root.log / "replication-offset-checkpoint").write_text("0\n0\n")
    (root.log / "meta.properties").write_text("")
    settled(root)
    shutil.rmtree(root.log)
    settled(root)


def test_only_named_topics_are_looked_at_but_checkpoints_list_all(root: Root) -> None:
    root.topics.create("u", 1, CONFIGS)
    root.append(20, 0)
    root.append(20, topic="u")
    settle(root.topics, ["t"])
    assert not (root.log / "u-0").exists()
    assert root.checkpoint("recovery-point")["u", 0] == 20
    settle(root.topics, ["u"])
    root.check()


def test_missing_committed_bytes_are_reported_and_all_else_is_settled(root: Root) -> None:
    root.append(20, 0)
    root.append(20, 1)
    segment = root.state().partitions[0].segments[0]
    os.truncate(root.data(0, segment), segment.size - 1)
    with pytest.raises(CorruptionError) as caught:
        settle(root.topics)
    assert caught.value.file.endswith(segment.name + LOG)
    assert caught.value.position == segment.size - 1
    root.data(0, segment).unlink()
    with pytest.raises(NotFoundError):
        settle(root.topics)
    assert (root.log / "t-1" / "00000000000000000000.log").exists()
    assert root.checkpoint("replication") == {("t", 0): 20, ("t", 1): 20}


class LinklessStorage(PosixStorage):
    """log/ lies on another file system."""

    def show(self, key, name, modified_ns) -> None:
        raise StorageError(name, "Invalid cross-device link")


def test_where_a_link_is_refused_a_copy_is_made_once(root: Root) -> None:
    root.append(50, 0)
    topics = Topics(LinklessStorage(root.path), BrokerConfig(), root.clock)
    settle(topics)
    segment = root.state().partitions[0].segments[0]
    shown = root.log / "t-0" / "00000000000000000000.log"
    assert shown.read_bytes() == root.data(0, segment).read_bytes()
    before = root.fingerprint()
    settle(topics)
    assert root.fingerprint() == before


def test_a_storage_without_the_capability_has_no_view(root: Root) -> None:
    root.append(20)
    storage = PlainStorage(root.storage)
    with hold_lock(storage):
        settle(Topics(storage, BrokerConfig(), root.clock))
    assert not root.log.exists()


class InterruptedStorage(PosixStorage):
    """A process that is killed at its n-th change of the view: between making a temporary file and its renaming too."""

    left = 0

    def _step(self, name: str) -> None:
        self.left -= 1
        if self.left < 0:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(f"{name.rpartition('/')[0]}/.tmp-killed").write_text("half")
            raise KeyboardInterrupt

    def show(self, key, name, modified_ns) -> None:
        self._step(name)
        super().show(key, name, modified_ns)

    def show_copy(self, key, size, name, modified_ns) -> None:
        self._step(name)
        super().show_copy(key, size, name, modified_ns)

    def show_bytes(self, data, name, modified_ns=None) -> None:
        self._step(name)
        super().show_bytes(data, name, modified_ns)

    def replace(self, key, data) -> None:
        self._step(key)
        super().replace(key, data)

    def delete(self, key) -> None:
        self._step(key)
        super().delete(key)


def test_settle_makes_it_exact_wherever_the_one_before_was_killed(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    writer = root.writer()
    for _ in range(4):
        writer.append(30)
    settle(root.topics)
    writer.append(60)
    segments = root.state().partitions[0].segments
    root.commit(
        lambda part: part.model_copy(update={"segments": segments[2:], "log_start_offset": segments[2].base_offset})
    )
    steps = 0
    while True:
        copy = tmp_path / f"copy-{steps}"
        shutil.copytree(root.path, copy, copy_function=os.link)
        storage = InterruptedStorage(copy)
        storage.left = steps
        topics = Topics(storage, BrokerConfig(), root.clock)
        finished = False
        try:
            settle(topics)
            finished = True
        except KeyboardInterrupt:
            storage.left = 1_000_000
            settle(topics)
        twin = Root.__new__(Root)
        twin.__dict__ |= root.__dict__ | {"path": copy, "log": copy / "log", "storage": storage, "topics": topics}
        twin.check()
        if finished:
            break
        steps += 1
    assert steps > 10


SETTLING = """
import sys, time
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.topics import Topics
from storage_engine.topic.kafka.view import settle
topics = Topics(PosixStorage(sys.argv[1]), BrokerConfig(), SystemClock())
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[2])
rounds = 0
while True:
    settle(topics)
    rounds += 1
    if rounds > 1 and time.monotonic() > end:
        break
print(rounds)
"""


@pytest.fixture
def settlers(root: Root) -> Iterator[Callable[[float], list[subprocess.Popen[str]]]]:
    started: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> list[subprocess.Popen[str]]:
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", SETTLING, str(root.path), str(seconds)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append(process)
        for process in started:
            assert process.stdout
            assert process.stdin
            process.stdout.readline()
        for process in started:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_two_settles_in_two_processes_beside_a_writer(
    root: Root, settlers: Callable[[float], list[subprocess.Popen[str]]]
) -> None:
    writer = root.writer()
    writer.append(60)
    processes = settlers(1.0)
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        writer.append(15)
        segments = root.state().partitions[0].segments
        if len(segments) > 6:
            kept = segments[3:]
            root.commit(
                lambda part, kept=kept: part.model_copy(  # type: ignore[misc]
                    update={"segments": kept, "log_start_offset": kept[0].base_offset}
                )
            )
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert int(output) > 1
    settled(root)


def test_ingests_hold_the_lock_shared_so_that_a_broker_refuses(root: Root) -> None:
    exclusive = (
        "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB); print('locked')"
    )

    def broker_can_start() -> bool:
        run = subprocess.run(
            [sys.executable, "-c", exclusive, str(root.log / ".lock")], capture_output=True, text=True, check=False
        )
        return "locked" in run.stdout

    with hold_lock(root.storage):
        assert not broker_can_start()
        with hold_lock(root.storage):
            settle(root.topics)
        assert not broker_can_start()  # what ended inside has not taken the lock along
    assert broker_can_start()


def test_settle_and_ingests_refuse_where_a_broker_runs(root: Root) -> None:
    settle(root.topics)
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB);"
        " print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(root.log / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout
        broker.stdout.readline()
        with pytest.raises(StorageError, match="a Kafka broker runs on this directory"):
            settle(root.topics)
        broker.communicate()
    settle(root.topics)


def test_without_locks_on_the_file_system_it_goes_on(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with hold_lock(root.storage):
        settle(root.topics)
    root.check()


class WatchedStorage(PosixStorage):
    """Notes which files of data/ are read, and what is shown."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.noted: list[str] = []

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.startswith("data/"):
            self.noted.append(key)
        return super().read(key, start, length)

    def show(self, key: str, name: str, modified_ns: int) -> None:
        self.noted.append(name)
        super().show(key, name, modified_ns)

    def show_bytes(self, data: Buffer, name: str, modified_ns: int | None = None) -> None:
        self.noted.append(name)
        super().show_bytes(data, name, modified_ns)


def test_what_is_settled_is_not_read_again(root: Root) -> None:
    for _ in range(5):
        root.append(20, 0)
    settled(root)
    storage = WatchedStorage(root.path)
    topics = Topics(storage, BrokerConfig(), root.clock)
    settle(topics)
    assert storage.noted == []
    root.append(1, 0)
    settle(topics)
    newest = root.state().partitions[0].segments[-1]
    assert {key.rpartition("/")[2].partition(".")[0] for key in storage.noted} == {
        offset_name(newest.base_offset), offset_name(newest.end_offset)
    }  # fmt: skip
