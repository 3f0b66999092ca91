"""The publishers: the files that they write, the file names, and the files that remain after an error."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import LogError, NotFoundError, StorageFullError, StorageUnavailableError
from storage_engine.phases import Phases
from storage_engine.record.batch import scan_batches
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage import NewFile, Storage
from storage_engine.topic.append.append_plan import AppendPlan, plan_append
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.appending_publisher import AppendingPublisher
from storage_engine.topic.append.new_files_publisher import NewFilesPublisher, NewSegments, with_names
from storage_engine.topic.append.publishers import publisher_for
from storage_engine.topic.append.publishing import run_together
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import TopicWriter
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import PlainStorage
from tests.stores import local, storage_at

CLOCK = ManualClock(1_700_000_000_000)
PARTITIONS = 2


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_at(tmp_path)


@pytest.fixture
def topics(storage: Storage) -> Topics:
    topics = Topics(storage, BrokerConfig(), CLOCK)
    topics.create("t", PARTITIONS, {"segment.bytes": "1200", "index.interval.bytes": "0"})
    return topics


def staged(topics: Topics, count: int) -> Mapping[int, list[StagedRun]]:
    state = topics.state("t")
    table = to_table([Row(b"k%d" % n, b"v%d" % n * 10, (), CLOCK.now_ms() + n) for n in range(count)])
    with StagingWriter(topics.storage, f"staging/{state.topic_id}/b/") as staging:
        chosen = partition_keys(table["key"], PARTITIONS, 0)
        stage_records(staging, table, chosen, Encoding.of(topics.config(state), CLOCK.now_ms(), 300))
    return by_partition(staging.runs)


def a_plan(topics: Topics) -> AppendPlan:
    """Rows staged, and planned as if nobody had a segment open."""
    state = topics.state("t")
    return plan_append(state, topics.config(state), staged(topics, 60), {}, CLOCK.now_ms(), random.Random(0))


def files(storage: Storage) -> dict[str, bytes]:
    return {file.key: storage.read(file.key) for file in storage.list("data/")}


def by_segment(storage: Storage) -> dict[tuple[str, str, str], bytes]:
    """Bytes by partition, base offset and kind of file, whatever the random part of the names."""
    found = {}
    for key, data in files(storage).items():
        *_, partition, name = key.split("/")
        base_offset, _, _, suffix = name.split(".")
        found[partition, base_offset, suffix] = data
    return found


@pytest.mark.posix("appends to a file")
def test_all_ways_write_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("appended", "new"):
        storage = storage_at(tmp_path / name)
        topics = Topics(storage, BrokerConfig(), CLOCK)
        topics.create("t", PARTITIONS, {"segment.bytes": "1200", "index.interval.bytes": "0"})
        publisher_for(storage if name == "appended" else PlainStorage(storage)).publish(a_plan(topics), Phases())
        written.append(by_segment(storage))
    appended, new = written
    assert appended.keys() == new.keys()
    assert len(appended) > 3 * PARTITIONS, "some segments were rolled"
    different = [key for key in new if new[key] != appended[key]]
    assert {suffix for _, _, suffix in different} == {"timeindex"}, "of the active segments, which were not closed"
    assert all(new[key].startswith(appended[key]) for key in different)


@pytest.mark.posix("appends to a file")
def test_batches_lie_behind_one_another_with_offsets_and_epoch(storage: Storage, topics: Topics) -> None:
    AppendingPublisher(storage, local(storage)).publish(a_plan(topics), Phases())
    ends = dict.fromkeys(map(str, range(PARTITIONS)), 0)
    for (partition, base_offset, suffix), data in sorted(by_segment(storage).items()):
        if suffix == "log":
            table = scan_batches(np.frombuffer(data, np.uint8), "log")
            assert int(base_offset) == ends[partition]
            assert [*table.base_offsets[1:], table.last_offsets[-1] + 1] == [*(table.last_offsets + 1)]
            ends[partition] = int(table.last_offsets[-1]) + 1
            assert set(table.leader_epochs.tolist()) == {0}
    assert sum(ends.values()) == 60


def test_attempts_of_one_partition_write_files_of_their_own(storage: Storage, topics: Topics) -> None:
    plan = a_plan(topics)
    part = plan.partitions[0]
    task = NewSegments.of(plan, part, "0123456789abcdef")
    task = pickle.loads(pickle.dumps(task))
    first, second = task.write(storage), task.write(storage)
    assert not set(first) & set(second)
    for names in (first, second):
        named = with_names(part, names)
        assert [append.name for append in named.appends] == list(names)
        for append in named.appends:
            assert len(storage.read(f"{task.folder}{append.name}.log")) == append.after.size


def test_what_attempts_left_can_be_deleted_and_nothing_else_is(storage: Storage, topics: Topics) -> None:
    plan = a_plan(topics)
    part = plan.partitions[0]
    others = [NewSegments.of(plan, part), NewSegments.of(plan, part, "fedcba9876543210")]
    for other in others:
        other.write(storage)
    before = files(storage)
    task = NewSegments.of(plan, part, "0123456789abcdef")
    for _ in range(2):
        task.write(storage)
    task.delete_all(storage)
    assert files(storage) == before


class FullAfter(PlainStorage):
    """A storage on which so many new files fit."""

    def __init__(self, storage: Storage, room: int) -> None:
        super().__init__(storage)
        self.room = room

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        if key.startswith("data/"):
            self.room -= 1
            if self.room < 0:
                raise StorageFullError(key, "no space")
        return super().new_file(key, durable=durable)


@pytest.mark.parametrize("room", range(0, 12, 3))
def test_new_files_of_a_publish_that_fails_are_gone(storage: Storage, topics: Topics, room: int) -> None:
    plan = a_plan(topics)
    with pytest.raises(StorageFullError):
        NewFilesPublisher(FullAfter(storage, room)).publish(plan, Phases())
    assert files(storage) == {}


@pytest.mark.posix("appends to a file")
def test_staged_bytes_that_a_host_lost_are_an_error_and_leave_nothing(storage: Storage, topics: Topics) -> None:
    plan = a_plan(topics)
    key = plan.partitions[0].appends[0].slices[0].key
    name = key.rpartition("/")[2]
    data = storage.read(key)
    middle = len(data) // 2
    for publisher in (AppendingPublisher(storage, local(storage)), NewFilesPublisher(storage)):
        for lost in (data[:-1], b"", bytes(len(data)), data[:middle] + bytes(8) + data[middle + 8 :]):
            storage.replace(key, lost)
            with pytest.raises(LogError, match=rf"{name} at position.*expected.*Nothing was committed"):
                publisher.publish(plan, Phases())
        storage.delete(key)
        with pytest.raises(NotFoundError, match=name):
            publisher.publish(plan, Phases())
        assert files(storage) == {}


@pytest.mark.posix("appends to a file")
def test_an_append_by_new_files_closes_the_segment_that_was_open(storage: Storage, topics: Topics) -> None:
    chain = topics.chain("t")
    writer = TopicWriter(storage, chain, topics.config(chain.newest()), CLOCK, None)
    names = []
    for publisher in (None, NewFilesPublisher(storage), None, None):
        state = writer.append(staged(topics, 4), publisher=publisher).state
        names.append([part.segments[-1].name for part in state.partitions])
    for opened, by_new_files, opened_again, went_on in zip(*names, strict=True):
        assert len({opened, by_new_files, opened_again}) == 3
        assert went_on == opened_again


def test_no_call_runs_any_more_if_a_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the threads of a container has this effect."""
    started: list[threading.Thread] = []
    ended: list[int] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def call(number: int) -> None:
        time.sleep(0.1)
        ended.append(number)

    with ThreadPoolExecutor(8) as threads:
        monkeypatch.setattr(threading.Thread, "start", limited)
        with pytest.raises(StorageUnavailableError, match="cannot start a thread"):
            run_together(threads, [partial(call, number) for number in range(8)])
        seen = list(ended)
    assert sorted(seen) == sorted(ended) == [0, 1]
