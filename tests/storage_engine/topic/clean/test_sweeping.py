"""Sweeping: the files that a sweep deletes, the files that must remain, and commits that come after the sweep."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import LogError, StorageError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import data_folder
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.append.appending import Encoding, append_records, stage_records
from storage_engine.topic.append.staged_list import StagedBatch, StagedTopic, delete_list, put_list
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.sweeping import Swept, sweep_topic, unnamed_files
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall
from tests.stores import clear_root, copy_root, storage_at

START = 1_700_000_000_000
DAY = 24 * 3_600_000
BROKER = BrokerConfig()


class Root:
    """A root with one topic, seen by one process."""

    def __init__(self, storage: Storage | BeforeEachCall, clock: ManualClock | None = None) -> None:
        self.storage = storage
        self.clock = clock or ManualClock(START)
        self.topics = Topics(storage, BROKER, self.clock)

    def on(self, storage: BeforeEachCall) -> Root:
        """Another process, which sees the same through another storage."""
        return Root(storage, self.clock)

    @property
    def state(self) -> TopicState:
        return self.topics.chain("t").newest()

    @property
    def config(self) -> TopicConfig:
        return self.topics.config(self.state)

    def append(self, *values: str) -> None:
        table = to_table([Row(b"k", value.encode(), timestamp=self.clock.now_ms()) for value in values])
        append_records(self.storage, self.topics.chain("t"), self.config, self.clock, table)

    def stage(self, value: str) -> list[StagedRun]:
        state = self.state
        with StagingWriter(self.storage, staging_folder(state.topic_id, state.version)) as staging:
            table = to_table([Row(b"k", value.encode(), timestamp=self.clock.now_ms())])
            stage_records(staging, table, np.zeros(1, np.int32), Encoding.of(self.config, self.clock.now_ms()))
        return staging.runs

    def values(self) -> list[str]:
        reader = PartitionReader(self.storage, self.topics.chain("t"), 0)
        batches = reader.read(reader.partition.log_start_offset)
        return [row.value.decode() for batch in batches for row in to_rows(batch) if row.value is not None]

    def days_pass(self, days: int = 2) -> None:
        """Days pass, and the topic gets a version that changes nothing important."""
        self.clock.advance(days * DAY)
        self.topics.alter("t", configs={"retention.ms": "-1"})

    def sweep(self) -> Swept:
        return sweep_topic(self.storage, self.topics.chain("t"), BROKER)

    def files(self, folder: str = "data/") -> set[str]:
        return {file.key for file in self.storage.list(folder)}

    def put(self, name: str, version: int, topic_id: str = "") -> str:
        """A file that a publish left which died, planned on a version."""
        key = f"{data_folder(topic_id or self.state.topic_id, 0)}{0:020d}.{version}.{name}"
        self.storage.put_new(key, b"12345678")
        return key


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(storage_at(tmp_path / "root"))
    root.topics.create("t", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    root.append("a")
    return root


def test_where_there_is_nothing_to_sweep_no_version_is_made(root: Root) -> None:
    root.days_pass()
    before = root.state
    assert root.sweep() == Swept(before)
    assert root.state == before


def test_files_of_old_plans_that_no_version_names_go_and_no_others(root: Root) -> None:
    left = [root.put(f"0000000{digit}{suffix}", 1) for digit in "12" for suffix in (".log", ".index", ".timeindex")]
    root.append("b")
    named = root.files() - set(left)
    root.storage.put_new(foreign := f"{data_folder(root.state.topic_id, 0)}notes.txt", b"")
    root.clock.advance(DAY)
    root.append("c")
    young = root.put("00000003.log", 3)
    swept = root.sweep()
    assert (swept.files, swept.bytes, swept.state.sweep_floor) == (6, 48, 2)
    assert root.files() >= named | {foreign, young}
    assert not root.files() & set(left)
    assert root.values() == ["a", "b", "c"]
    assert root.state.change == "sweep floor 2"


def test_a_floor_never_goes_back(root: Root) -> None:
    root.put("00000001.log", 1)
    root.days_pass()
    root.clock.advance(2 * DAY)
    assert root.sweep().state.sweep_floor == 2
    root.put("00000002.log", 1)
    slow = Root(root.storage, ManualClock(START))
    assert slow.sweep().files == 1
    assert root.state.sweep_floor == 2


def test_dropped_files_wait_for_their_own_delay(root: Root) -> None:
    root.append("b")
    root.append("c")
    assert compact_topic(root.storage, root.topics.chain("t"), root.config, BROKER, root.clock).cleaned
    files = root.files()
    root.days_pass()
    root.clock.advance(DAY)
    assert root.sweep().files == 0
    assert root.files() == files
    delete_dropped(root.storage, root.topics.chain("t"), root.config, root.clock.now_ms())
    assert len(root.files()) < len(files)


@pytest.mark.posix("appends to a file")
def test_a_long_lived_active_segment_goes_on_growing(root: Root) -> None:
    root.topics.alter("t", configs={"segment.ms": str(100 * DAY)})
    writer = TopicWriter(root.storage, root.topics.chain("t"), root.config, root.clock, epoch=None)
    writer.append(by_partition(root.stage("b")))
    (name,) = {segment.name for segment in root.state.partitions[0].segments[1:]}
    for value in "cd":
        root.put(f"0000000{value}.log", 1)
        root.days_pass()
        root.clock.advance(2 * DAY)
        assert root.sweep().files >= 1
        writer.append(by_partition(root.stage(value)))
    assert root.state.partitions[0].segments[-1].name == name
    assert root.values() == ["a", "b", "c", "d"]


def _append(root: Root) -> None:
    root.append("late")


def _append_staged(root: Root) -> None:
    writer = TopicWriter(root.storage, root.topics.chain("t"), root.config, root.clock, epoch=None)
    writer.append(by_partition(root.stage("late")))


def _compact(root: Root) -> None:
    compact_topic(root.storage, root.topics.chain("t"), root.config, BROKER, root.clock, force=True)


def _merge(root: Root) -> None:
    merge_topic(root.storage, root.topics.chain("t"), root.config)


def _run_at_every_call(
    tmp_path: Path,
    original: Root,
    act: Callable[[Root], None],
    between: Callable[[Root], None],
    holds: Callable[[Root], None],
) -> int:
    """Let something happen before each call to the storage of `act`, one call a run; returns how many there were."""
    for call in itertools.count():
        root = Root(storage_at(tmp_path / f"run-{call}"), ManualClock(original.clock.now_ms()))
        copy_root(original.storage, root.storage)

        def before(number: int, verb: str, key: str, root: Root = root, call: int = call) -> None:
            if number == call:
                between(root)

        disturbed = BeforeEachCall(root.storage, before)
        with suppress(LogError):
            act(root.on(disturbed))
        holds(root)
        clear_root(root.storage)
        if disturbed.calls <= call:
            return call
    raise AssertionError


@pytest.mark.parametrize("act", [_append, _append_staged, _compact, _merge])
def test_whoever_is_swept_in_the_middle_commits_all_of_it_or_nothing(tmp_path: Path, root: Root, act) -> None:
    """Before one call of the work, days pass and a sweep runs. Each call is tried."""
    if act is _merge:
        root.topics.alter("t", configs={"cleanup.policy": "delete"})
    root.append("b")
    root.append("c")

    def days_and_a_sweep(root: Root) -> None:
        root.days_pass()
        root.put("00000001.log", 1)
        root.clock.advance(DAY)
        root.sweep()

    def holds(root: Root) -> None:
        assert root.values() in (["a", "b", "c"], ["a", "b", "c", "late"], ["b", "c"])
        root.clock.advance(3 * DAY)
        root.topics.alter("t", configs={"retention.ms": "-1"})
        root.clock.advance(3 * DAY)
        root.sweep()
        assert root.values() in (["a", "b", "c"], ["a", "b", "c", "late"], ["b", "c"])
        state = root.state
        named = {segment.name for segment in state.partitions[0].segments} | {each.name for each in state.dropped}
        assert {key.rpartition("/")[2].rpartition(".")[0] for key in root.files()} <= named, "nothing stays for good"
        assert not root.files("staging/")

    assert _run_at_every_call(tmp_path, root, act, days_and_a_sweep, holds) > 15


def test_a_sweep_that_fails_at_any_call_is_done_by_the_next(tmp_path: Path, root: Root) -> None:
    for name in ("00000001.log", "00000002.log", "00000002.index"):
        root.put(name, 1)
    root.stage("never committed")
    root.days_pass()
    root.clock.advance(DAY)

    def fail(root: Root) -> None:
        raise StorageError("k", "failed")

    def holds(root: Root) -> None:
        assert root.values() == ["a"]
        root.sweep()
        assert len(root.files()) == 3
        assert not root.files("staging/")
        assert root.values() == ["a"]

    assert _run_at_every_call(tmp_path, root, lambda root: void(root.sweep()), fail, holds) > 10


def void(_: object) -> None:
    """Ignore a value that is not needed."""


def test_staged_files_go_with_their_folders(root: Root) -> None:
    old = root.stage("never committed")
    root.days_pass()
    root.clock.advance(DAY)
    root.topics.alter("t", configs={"retention.ms": "-1"})
    new = root.stage("under way")
    assert root.sweep().files == 1
    assert root.files("staging/") == {new[0].key}
    assert not (Path(root.storage.uri) / old[0].key).parent.exists()
    append = TopicWriter(root.storage, root.topics.chain("t"), root.config, root.clock, epoch=None).append
    with pytest.raises(
        StorageError, match="was staged at version 1, and a sweep has deleted all files before version 2"
    ):
        append(by_partition(old))
    append(by_partition(new))
    assert root.values() == ["a", "under way"]


def test_staged_files_in_a_list_stay_until_the_batch_is_done(root: Root) -> None:
    runs = root.stage("b")
    state = root.state
    listed = StagedBatch(BatchIdentity("q", 7, "0" * 64), (StagedTopic("t", state.topic_id, {}, runs),))
    put_list(root.storage, listed)
    root.days_pass(9)
    root.clock.advance(DAY)
    assert root.sweep().files == 0
    writer = TopicWriter(root.storage, root.topics.chain("t"), root.config, root.clock, epoch=None)
    writer.append(by_partition(runs), listed.batch)
    assert root.values() == ["a", "b"]
    delete_list(root.storage, listed)
    assert not root.files("staging/")


@pytest.mark.posix("sets the times of files")
def test_temporary_files_of_dead_puts_go_once_they_are_old(root: Root) -> None:
    home = Path(root.storage.uri)
    topic_id = root.state.topic_id
    (folder := home / "meta/t/segments").mkdir()
    young = home / "meta/t/.tmp-0"
    old = [folder.parent / ".tmp-1", folder / ".tmp-2", home / f"data/{topic_id}/0/.tmp-3"]
    shared = ("@transactions", "@imported", "@view", "@broker", "@ingests", "@root")
    old += [home / f"meta/{name}/.tmp-4" for name in shared]
    old += [home / f"staging/batches/{'q' * 8}/.tmp-5"]
    old += [home / f"staging/{topic_id}/.tmp-6", home / f"staging/{topic_id}/{0:020d}/.tmp-7"]
    for path in (young, *old):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
        os.utime(path, (START / 1000, START / 1000))
    os.utime(young, ((START + DAY) / 1000, (START + DAY) / 1000))
    root.clock.advance(DAY)
    swept = root.sweep()
    assert list(home.rglob(".tmp-*")) == [young]
    assert (swept.files, swept.bytes) == (12, 48)


def test_what_a_deleted_topic_left_goes_and_its_successor_stays(root: Root) -> None:
    first = root.state.topic_id
    root.put("00000001.log", 1)
    root.stage("never committed")
    root.topics.delete("t")
    root.topics.create("t", 1, {})
    root.append("b")
    assert [former.topic_id for former in root.state.former] == [first]
    root.days_pass()
    delete_dropped(root.storage, root.topics.chain("t"), root.config, root.clock.now_ms())
    root.clock.advance(DAY)
    assert root.sweep().files == 2
    assert not root.files(f"data/{first}/") | root.files(f"staging/{first}/")
    assert root.state.former == ()
    assert root.values() == ["b"]


def test_a_deleted_topic_is_swept(root: Root) -> None:
    left = root.put("00000001.log", 1)
    root.topics.delete("t")
    root.clock.advance(2 * DAY)
    assert root.sweep().files == 1
    assert left not in root.files()
    assert root.state.deleted


def test_an_import_that_was_swept_in_the_middle_is_refused_or_whole(tmp_path: Path, root: Root) -> None:
    """The import uses the name of a deleted topic, so it continues the chain of that topic."""
    with new_directory(tmp_path / "kafka") as directory:
        export_topics(root.topics, ["t"], directory)
    root.topics.delete("t")
    root.clock.advance(DAY)

    def days_and_a_sweep(root: Root) -> None:
        state = root.state
        root.topics.chain("t").commit(lambda state: state, "nothing")
        root.clock.advance(3 * DAY)
        root.put("00000001.log", 1, state.topic_id)
        root.sweep()

    def holds(root: Root) -> None:
        state = root.state
        assert state.deleted or root.values() == ["a"]

    def act(root: Root) -> None:
        import_topic(root.topics, LogDirectory(tmp_path / "kafka"), "t")

    assert _run_at_every_call(tmp_path, root, act, days_and_a_sweep, holds) > 8


def test_unnamed_files_are_reported_whatever_their_age(root: Root) -> None:
    assert list(unnamed_files(root.storage, root.state)) == []
    key = root.put("00000001.log", 9)
    (run,) = root.stage("under way")
    assert {file.key for file in unnamed_files(root.storage, root.state)} == {key, run.key}
