"""Imports: Kafka log directories become topics, even if the broker crashed or files are damaged."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakelog.cli.records.json_lines import format_lines
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    StateError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UnsupportedError,
)
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import LOG, data_key
from storage_engine.log.isolation import Isolation
from storage_engine.record.batch import scan_batches
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.clean.sweeping import sweep_topic
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.kafka.kafka_import import import_topic, skipped_folders, topics_in
from storage_engine.topic.kafka.segment_import import ImportedTopic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.wrapped_storage import Interrupting, PlainStorage
from tests.stores import storage_at

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
WITH_RECORDS = sorted(path.parent.name for path in GOLDEN.glob("*/records.read_uncommitted.jsonl"))
ALL = sorted(path.parent.name for path in GOLDEN.glob("*/data") if path.parent.name != "legacy")
LEGACY = sorted(path.name.removesuffix("-0") for path in (GOLDEN / "legacy" / "data").iterdir())
CONFIG = {"index.interval.bytes": "512", "segment.bytes": "16384", "retention.ms": "-1"}
NOW_MS = 1_800_000_000_000
EMPTY_BASE = 4000
"""Where compact.before ends."""


class Root:
    """A root, and the calls that the tests make on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = storage_at(path)
        self.topics = Topics(self.storage, BrokerConfig(), ManualClock(NOW_MS))

    def take(self, directory: Path, name: str, **options) -> ImportedTopic:
        return import_topic(self.topics, LogDirectory(directory), name, **options)

    def read(self, name: str, number: int = 0, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        reader = PartitionReader(self.storage, self.topics.chain(name), number)
        records = reader.read(reader.partition.log_start_offset, None, isolation)
        return b"".join(format_lines(name, number, each) for each in records).decode().splitlines()

    def records(self, count: int, partition: int = 0) -> pa.RecordBatch:
        numbers = np.arange(count)
        columns = [
            pa.array([b"%d" % number for number in numbers], pa.binary()),
            pa.array([b"appended to %d" % partition] * count, pa.binary()),
            pa.array([None] * count, TO_APPEND.field("headers").type),
            pa.array(NOW_MS + numbers, pa.int64()),
        ]
        return pa.record_batch(columns, schema=TO_APPEND)

    def append(self, name: str, count: int, partition: int = 0) -> None:
        config = self.topics.config(self.topics.state(name))
        records = self.records(count, partition)
        append_records(self.storage, self.topics.chain(name), config, self.topics.clock, records, partition)

    def export(self, directory: Path, keep_epochs: bool = False) -> Path:
        with new_directory(directory) as folder:
            export_topics(self.topics, sorted(self.topics.names()), folder, keep_epochs=keep_epochs)
        return directory

    def stored(self) -> set[str]:
        return {file.key for file in self.storage.list("data/")}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.fixture
def other(tmp_path: Path) -> Root:
    """Another root that plays the broker: it takes an export, appends to it, and exports it again."""
    return Root(tmp_path / "other")


@pytest.fixture
def left(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a golden directory, to be changed."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(GOLDEN / name / "data", tmp_path / name))

    return copy


def topic_of(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("name", WITH_RECORDS)
def test_a_brokers_records_are_read_as_its_consumer_read_them(root: Root, name: str, isolation: Isolation) -> None:
    topic = topic_of(name)
    imported = root.take(GOLDEN / name / "data", topic, configs=CONFIG)
    for number in range(len(imported.partitions)):
        suffix = f".{number}.jsonl" if number else ".jsonl"
        given = GOLDEN / name / f"records.{isolation}{suffix}"
        if not given.exists():  # where both isolations give the same
            given = given.with_name(f"records.read_uncommitted{suffix}")
        head = f'{{"topic":"{topic}","partition":{number},'
        assert root.read(topic, number, isolation) == [
            head + line.removeprefix("{") for line in given.read_text().splitlines()
        ]


@pytest.mark.parametrize("name", ALL)
def test_what_was_imported_is_exported_byte_for_byte(root: Root, tmp_path: Path, name: str) -> None:
    source = GOLDEN / name / "data"
    root.take(source, topic_of(name), configs=CONFIG)
    exported = root.export(tmp_path / "exported", keep_epochs=True)
    for folder in filter(Path.is_dir, source.iterdir()):
        found = {path.name: path.read_bytes() for path in (exported / folder.name).iterdir()}
        expected = {path.name: path.read_bytes() for path in folder.iterdir() if ".dump." not in path.name}
        # One for the first segment is what retention has left until the next load.
        expected.pop(f"{min(file for file in expected if file.endswith('.log')).removesuffix('.log')}.snapshot", None)
        if name in RESTARTED:
            suffixes = (".log", ".metadata", "-checkpoint")
            found, expected = ({n: d for n, d in each.items() if n.endswith(suffixes)} for each in (found, expected))
        assert found == expected
    for file in (
        ("log-start", "cleaner") if name in RESTARTED else ("recovery-point", "replication", "log-start", "cleaner")
    ):
        checkpoint = source / f"{file}-offset-checkpoint"
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        ours = (exported / checkpoint.name).read_text().splitlines()[2:]
        assert sorted(ours) == sorted(line for line in lines if line.split()[0] == topic_of(name))


RESTARTED = {name for name in ALL if name.endswith(("before2", "after2", "after2h"))}
"""Logs to which was appended after the broker had stopped: in the segment that spans the restart the count of bytes since
the last index entry began again, and two checkpoints are older than the log."""


def test_log_start_first_dirty_offset_epochs_producers_and_times_come_along(root: Root, left) -> None:
    assert root.take(left("delrec"), "delrec").state.partitions[0].log_start_offset == 300
    source = left("compact.after1")
    log = source / "compact-0" / "00000000000000000000.log"
    os.utime(log, ns=(0, 1_600_000_000_123_456_789))
    compact = root.take(source, "compact").state.partitions[0]
    assert compact.first_dirty_offset == int((source / "cleaner-offset-checkpoint").read_text().split()[-1])
    assert compact.segments[0].modified_ms == 1_600_000_000_123
    txn = root.take(left("txn"), "txn").state.partitions[0]
    assert txn.producers
    assert len(list(txn.aborted_transactions())) > 5
    source = left("ooo")
    (source / "ooo-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n7 100\n")
    state = root.take(source, "ooo").state
    assert state.partitions[0].leader_epochs == ((0, 0), (7, 100))
    assert state.writer.epoch == 7
    root.append("ooo", 3)
    assert root.topics.state("ooo").partitions[0].leader_epochs == ((0, 0), (7, 100))
    assert {json.loads(line)["leaderEpoch"] for line in root.read("ooo")[-3:]} == {7}


@pytest.mark.posix("reads the view")
def test_the_view_of_an_imported_topic_holds_the_same_logs(root: Root, left) -> None:
    source = left("multi")
    root.take(source, "multi", configs=CONFIG)
    settle(root.topics)
    for log in source.glob("multi-*/*.log"):
        assert (root.path / "log" / log.parent.name / log.name).read_bytes() == log.read_bytes()


@pytest.mark.parametrize("name", LEGACY)
def test_logs_of_old_brokers_come_and_go_as_they_are(root: Root, other: Root, tmp_path: Path, name: str) -> None:
    data = GOLDEN / "legacy" / "data"
    log = f"{name}-0/{0:020d}.log"
    root.take(data, name, configs=CONFIG)
    lines = (GOLDEN / "legacy" / f"{name}.records_and_offsets.jsonl").read_text().splitlines()
    given = [json.loads(line) for line in lines[:-1]]
    assert [json.loads(line) for line in root.read(name)] == given
    kept = root.export(tmp_path / "kept", keep_epochs=True)
    assert (kept / log).read_bytes() == (data / log).read_bytes()
    for rebuilt in (GOLDEN / "legacy" / "rebuilt_by_broker" / f"{name}-0").iterdir():
        assert (kept / f"{name}-0" / rebuilt.name).read_bytes() == rebuilt.read_bytes()
    other.take(root.export(tmp_path / "exported"), name, configs=CONFIG)
    other.append(name, 20)
    root.take(other.export(tmp_path / "appended"), name)
    found = [{**json.loads(line), "leaderEpoch": None} for line in root.read(name)]
    assert found[: len(given)] == [{**record, "leaderEpoch": None} for record in given]
    assert len(found) == len(given) + 20


@pytest.mark.parametrize("name", ["txn", "multi", "compact.after1"])
def test_nothing_but_the_logs_is_needed(root: Root, left, name: str) -> None:
    source = left(name)
    for path in source.rglob("*"):
        if path.is_file() and path.suffix != ".log":
            path.unlink()
    topic = topic_of(name)
    imported = root.take(source, topic)
    given = (GOLDEN / name / "records.read_uncommitted.jsonl").read_text().splitlines()
    assert len(root.read(topic)) == len(given)
    named = (GOLDEN / name / "data" / f"{topic}-0" / "partition.metadata").read_text().split()[-1]
    assert imported.state.topic_id != named
    assert len(imported.state.topic_id) == 22
    if name == "txn":
        committed = (GOLDEN / name / "records.read_committed.jsonl").read_text().splitlines()
        assert len(root.read(topic, 0, Isolation.READ_COMMITTED)) == len(committed)


def test_the_topic_id_is_kept_where_it_is_free(root: Root, left) -> None:
    source = left("ooo")
    named = (source / "ooo-0" / "partition.metadata").read_text().split()[-1]
    assert root.take(source, "ooo").state.topic_id == named
    root.topics.delete("ooo")
    again = root.take(source, "ooo").state
    assert again.topic_id != named  # what knows the deleted topic must not take this one for it
    assert len(root.read("ooo")) == 600
    (source / "ooo-0").rename(source / "renamed-0")
    assert root.take(source, "renamed").state.topic_id not in (named, again.topic_id)


@pytest.mark.parametrize("topic_id", ["../../../../etc/passwd", "A" * 22, "short"])
def test_a_topic_id_that_is_none_is_replaced(root: Root, left, topic_id: str) -> None:
    source = left("ooo")
    (source / "ooo-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    assert root.take(source, "ooo").state.topic_id != topic_id
    assert len(root.read("ooo")) == 600


def test_many_segments_and_epochs_come_as_one_version(root: Root, left) -> None:
    source = left("ooo") / "ooo-0"
    (log, *rest) = sorted(source.glob("*.log"))
    data = log.read_bytes()
    for path in [*rest, *source.glob("*index"), *source.glob("*.snapshot")]:
        path.unlink()
    size = 12 + int.from_bytes(data[8:12], "big")
    log.write_bytes(data[:size])
    records = int.from_bytes(data[23:27], "big") + 1
    for number in range(1, 150):
        offset = number * records
        (source / f"{offset:020d}.log").write_bytes(offset.to_bytes(8, "big") + data[8:size])
    root.take(source.parent, "ooo")
    state = Root(root.path).topics.state("ooo")
    assert state.version == 0
    assert len(state.partitions[0].segments) == 150
    assert len(root.read("ooo")) == 150 * records


def test_a_missing_partition_is_named(root: Root, left) -> None:
    source = left("multi")
    shutil.rmtree(source / "multi-1")
    with pytest.raises(CorruptionError, match="no folder multi-1, but 2 folders of other"):
        root.take(source, "multi")
    with pytest.raises(UnknownTopicError):
        root.take(source, "absent")
    assert root.topics.find("multi") is None


def test_a_clusters_own_topics_and_what_brokers_put_aside_are_left_out(left) -> None:
    source = left("ooo")
    folder = source / "ooo-0"
    aside = [
        "__transaction_state-0",
        "ooo-0.0123456789abcdef0123456789abcdef-delete",
        "ooo-1.a-future",
        "ooo-2.b-stray",
    ]
    for name in aside:
        shutil.copytree(folder, source / name)
    (source / "not a partition").mkdir()
    directory = LogDirectory(source)
    assert topics_in(directory) == ("ooo",)
    assert set(skipped_folders(directory)) == {*aside, "not a partition"}


def test_a_torn_tail_is_left_out_and_told(root: Root, left) -> None:
    source = left("ooo")
    whole = len(root.take(GOLDEN / "ooo" / "data", "ooo").state.partitions[0].segments)
    root.topics.delete("ooo")
    (source / ".kafka_cleanshutdown").unlink()
    last = max(source.glob("ooo-0/*.log"))
    with last.open("ab") as log:
        log.write(last.read_bytes()[:100])
    imported = root.take(source, "ooo")
    assert imported.partitions[0].torn == 100
    assert len(imported.state.partitions[0].segments) == whole
    assert len(root.read("ooo")) == 600


@pytest.mark.parametrize("clean", [True, False])
def test_damage_before_the_end_is_refused_and_leaves_nothing(root: Root, left, clean: bool) -> None:
    source = left("ooo")
    if not clean:
        (source / ".kafka_cleanshutdown").unlink()
    second = sorted(source.glob("ooo-0/*.log"))[1]
    data = bytearray(second.read_bytes())
    data[200] ^= 1
    second.write_bytes(data)
    with pytest.raises(CorruptionError, match=rf"{second.name} at position 0.*verify --repair"):
        root.take(source, "ooo")
    assert root.topics.find("ooo") is None
    assert root.stored() == set()


def test_settings_are_checked_before_anything_is_copied(root: Root, left) -> None:
    source = left("ooo")
    with pytest.raises(ConfigError):
        root.take(source, "ooo", configs={"retention.ms": "soon"})
    root.take(source, "ooo")
    with pytest.raises(ConfigError, match="alter"):
        root.take(source, "ooo", configs={"retention.ms": "1"})


def test_a_directory_that_a_broker_uses_is_refused(root: Root, left) -> None:
    source = left("ooo")
    (source / ".lock").touch()
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB);"
        " print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(source / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout
        broker.stdout.readline()
        with pytest.raises(StorageError, match="a Kafka broker runs on this directory"):
            root.take(source, "ooo")
        broker.communicate()
    root.take(source, "ooo")


@pytest.mark.posix("moves files, by links")
def test_moving_takes_the_files_themselves(root: Root, left) -> None:
    source = left("multi")
    (source / "multi-1" / "00000000000000000267.100.corrupt").write_bytes(b"kept by a recovery")
    inodes = {path.stat().st_ino for path in source.rglob("*.log")}
    root.take(source, "multi", move=True)
    assert {path.stat().st_ino for path in root.path.rglob("data/**/*.log")} == inodes
    assert sorted(path.name for path in source.rglob("*") if path.parent != source) == [
        "00000000000000000267.100.corrupt"
    ]
    assert len(root.read("multi", 2)) == 300
    root.append("multi", 5, 2)
    assert len(root.read("multi", 2)) == 305


def test_roots_that_cannot_link_are_copied_into(root: Root, left) -> None:
    source = left("txn")
    topics = Topics(PlainStorage(root.storage), BrokerConfig(), ManualClock(NOW_MS))
    with pytest.raises(UnsupportedError) as refused:
        import_topic(topics, LogDirectory(source), "txn", move=True)
    problem = "moving files into it is not possible on this kind of storage"
    assert str(refused.value) == f"root {root.storage.uri}: {problem}. Import without --move."
    import_topic(topics, LogDirectory(source), "txn")
    assert len(root.read("txn")) > 500


def test_what_an_export_was_appended_comes_back(root: Root, other: Root, tmp_path: Path) -> None:
    root.take(GOLDEN / "txn" / "data", "txn", configs=CONFIG)
    root.topics.create("own", 2, CONFIG)
    take_over(root.topics.chain("own"), "query")
    root.append("own", 50, 0)
    exported = root.export(tmp_path / "exported")
    for name in ("txn", "own"):
        other.take(exported, name, configs=CONFIG)
        for _ in range(3):
            other.append(name, 200, 0)
    other.append("own", 10, 1)
    other.topics.alter("own", partitions=3)
    other.append("own", 7, 2)
    appended = other.export(tmp_path / "appended")
    before = root.topics.state("own")
    for name in ("txn", "own"):
        imported = root.take(appended, name)
        assert not imported.is_new
    assert imported.partitions[0][:2] == (50, 650)
    own = root.topics.state("own")
    assert own.topic_id == before.topic_id
    assert own.version == before.version + 1
    assert [part.high_watermark for part in own.partitions] == [650, 10, 7]
    assert len(own.partitions[0].segments) > len(before.partitions[0].segments) + 1

    def contents(lines: list[str]) -> list[dict[str, object]]:
        return [{**json.loads(line), "leaderEpoch": None} for line in lines]

    for name, number in (("txn", 0), ("own", 0), ("own", 1), ("own", 2)):
        for isolation in Isolation:
            assert contents(root.read(name, number, isolation)) == contents(other.read(name, number, isolation))
    assert root.topics.state("txn").partitions[0].producers == other.topics.state("txn").partitions[0].producers
    assert {json.loads(line)["leaderEpoch"] for line in root.read("own", 1)} == {own.writer.epoch} == {1}
    again = root.take(appended, "own")
    assert again.state.version == own.version
    root.append("own", 5, 2)
    assert len(root.read("own", 2)) == 12


def named(root: Root, topic: str) -> set[str]:
    """The .log files that the newest state of a topic names."""
    state = root.topics.state(topic)
    return {
        data_key(state.topic_id, number, segment.name)
        for number, part in enumerate(state.partitions)
        for segment in part.segments
    }


def test_a_partition_without_new_records_leaves_no_file(root: Root, other: Root, tmp_path: Path) -> None:
    root.topics.create("own", 3, CONFIG)
    root.append("own", 5, 0)
    exported = root.export(tmp_path / "exported")
    before, version = root.stored(), root.topics.state("own").version
    assert [part[:3] for part in root.take(exported, "own").partitions] == [(5, 5, 0), (0, 0, 0), (0, 0, 0)]
    assert (root.stored(), root.topics.state("own").version) == (before, version)
    other.take(exported, "own", configs=CONFIG)
    other.append("own", 4, 1)
    assert root.take(other.export(tmp_path / "appended"), "own").partitions[1][:2] == (0, 4)
    assert {key for key in root.stored() if key.endswith(LOG)} == named(root, "own")
    assert len(root.stored() - before) == 3  # .log, .index and .timeindex of partition 1


@pytest.fixture
def with_empty_end(left: Callable[[str], Path]) -> Path:
    """A broker's log whose active segment is empty."""
    source = left("compact.before")
    folder = source / "compact-0"
    for suffix in (".log", ".index", ".timeindex"):
        (folder / f"{EMPTY_BASE:020d}{suffix}").touch()
    return source


@pytest.mark.posix("reads the view")
def test_an_empty_active_segment_comes_along_and_all_full_ones_can_be_compacted(
    root: Root, with_empty_end: Path, tmp_path: Path
) -> None:
    state = root.take(with_empty_end, "compact", configs={**CONFIG, "cleanup.policy": "compact"}).state
    part = state.partitions[0]
    assert part.empty_end == part.segments[-1]
    assert (part.segments[-1].base_offset, part.segments[-1].size, part.high_watermark) == (EMPTY_BASE, 0, EMPTY_BASE)
    settle(root.topics)
    shown = root.path / "log" / "compact-0"
    assert {path.name for path in shown.glob("*.log")} == {
        path.name for path in (with_empty_end / "compact-0").glob("*.log")
    }
    exported = root.export(tmp_path / "exported", keep_epochs=True)
    assert (exported / "compact-0" / f"{EMPTY_BASE:020d}.log").stat().st_size == 0
    assert len(list((exported / "compact-0").glob(f"{EMPTY_BASE:020d}.*"))) == 4  # with its snapshot
    before = root.read("compact")
    result = compact_topic(
        root.storage, root.topics.chain("compact"), root.topics.config(state), BrokerConfig(), root.topics.clock
    )
    assert result.state.partitions[0].first_dirty_offset == EMPTY_BASE
    assert len(root.read("compact")) < len(before)
    settle(root.topics)
    assert check_root(root.topics, None, None, Options(deep=True), threads=1).findings == []


@pytest.mark.posix("reads the view")
def test_what_is_appended_takes_the_place_of_an_empty_active_segment(root: Root, with_empty_end: Path) -> None:
    root.take(with_empty_end, "compact", configs=CONFIG)
    settle(root.topics)
    before = root.topics.state("compact").partitions[0]
    root.append("compact", 10)
    state = root.topics.state("compact")
    after = state.partitions[0]
    assert [each.base_offset for each in after.segments] == [each.base_offset for each in before.segments]
    assert (after.segments[-1].end_offset, after.high_watermark, after.empty_end) == (EMPTY_BASE + 10,) * 2 + (None,)
    assert [each.name for each in state.dropped] == [before.segments[-1].name]
    settle(root.topics)
    assert (root.path / "log" / "compact-0" / f"{EMPTY_BASE:020d}.log").stat().st_size == after.segments[-1].size
    assert [json.loads(line)["offset"] for line in root.read("compact")][-10:] == list(
        range(EMPTY_BASE, EMPTY_BASE + 10)
    )
    assert check_root(root.topics, None, None, Options(deep=True), threads=1).findings == []


def test_a_log_that_a_broker_has_rolled_and_appended_to_comes_back(
    root: Root, other: Root, left, with_empty_end: Path, tmp_path: Path
) -> None:
    root.take(GOLDEN / "compact.before" / "data", "compact", configs=CONFIG)
    first = root.topics.state("compact")
    assert first.partitions[0].empty_end is None
    rolled = root.take(with_empty_end, "compact").state
    assert [each.base_offset for each in rolled.partitions[0].segments][-1] == EMPTY_BASE
    before = root.stored()
    assert root.take(with_empty_end, "compact").state.version == rolled.version  # nothing new any more
    assert root.stored() == before
    other.take(with_empty_end, "compact", configs=CONFIG)
    other.append("compact", 10)
    root.take(other.export(tmp_path / "appended"), "compact")
    state = root.topics.state("compact")
    assert [each.base_offset for each in state.partitions[0].segments][-1] == EMPTY_BASE
    assert (state.partitions[0].high_watermark, len(state.dropped)) == (EMPTY_BASE + 10, 1)
    assert len(root.read("compact")) == len(other.read("compact"))


def test_retention_leaves_an_empty_active_segment(root: Root, with_empty_end: Path) -> None:
    configs = {**CONFIG, "cleanup.policy": "delete", "retention.ms": "1000"}
    root.take(with_empty_end, "compact", configs=configs)
    result = retain_topic(root.topics.chain("compact"), root.topics.broker)
    part = result.state.partitions[0]
    assert ([each.base_offset for each in part.segments], part.log_start_offset) == ([EMPTY_BASE], EMPTY_BASE)
    settle(root.topics)
    assert root.read("compact") == []
    root.append("compact", 3)
    assert [json.loads(line)["offset"] for line in root.read("compact")] == list(range(EMPTY_BASE, EMPTY_BASE + 3))
    settle(root.topics)
    assert check_root(root.topics, None, None, Options(deep=True), threads=1).findings == []


def test_segments_know_the_first_delete_horizon_in_them(root: Root, left) -> None:
    source = left("compact.after1")
    expected = []
    for log in sorted(source.glob("compact-0/*.log")):
        horizons = scan_batches(np.frombuffer(log.read_bytes(), np.uint8), log.name).delete_horizons
        expected.append(int(horizons[horizons >= 0].min(initial=2**63 - 1)) if (horizons >= 0).any() else -1)
    part = root.take(source, "compact", configs=CONFIG).state.partitions[0]
    assert [each.horizon_ms for each in part.segments] == expected
    assert max(expected) > min(expected) == -1


def test_a_transaction_that_ends_behind_the_export_is_aborted_here_too(root: Root, left, tmp_path: Path) -> None:
    # The first export ends in the middle of the golden log, as if the broker had appended the rest.
    source = left("txn")
    shortened = Path(shutil.copytree(source, tmp_path / "shortened"))
    for path in [*shortened.glob("*-checkpoint"), shortened / ".kafka_cleanshutdown", *shortened.glob("txn-0/*")]:
        if not path.name.endswith(".log") or path.name >= "00000000000000000477":
            path.unlink()
    root.take(shortened, "txn")
    root.take(source, "txn")
    given = (GOLDEN / "txn" / "records.read_committed.jsonl").read_text().splitlines()
    offsets = [json.loads(line)["offset"] for line in root.read("txn", 0, Isolation.READ_COMMITTED)]
    assert offsets == [json.loads(line)["offset"] for line in given]


def test_a_log_that_does_not_continue_the_topic_is_refused(root: Root, other: Root, left, tmp_path: Path) -> None:
    source = left("ooo")
    root.take(source, "ooo")
    last = max(source.glob("ooo-0/*.log"))
    whole = last.read_bytes()
    last.unlink()
    (source / ".kafka_cleanshutdown").unlink()
    with pytest.raises(TopicExistsError, match=r"ends at offset \d+, but the topic ends at offset 600"):
        root.take(source, "ooo")
    last.write_bytes(whole)
    root.append("ooo", 1)
    other.take(GOLDEN / "ooo" / "data", "ooo")
    for _ in range(2):
        other.append("ooo", 1)  # as many bytes, and another key
        other.append("ooo", 3)
    diverged = other.export(tmp_path / "diverged")
    root.append("ooo", 2)
    with pytest.raises(TopicExistsError, match="the batches up to offset 602 differ"):
        root.take(diverged, "ooo")
    assert len(root.read("ooo")) == 603


def test_a_log_that_begins_behind_the_topics_end_is_refused(root: Root, left) -> None:
    source = left("retention_bytes")
    root.topics.create("retention_bytes", 1, CONFIG)
    root.append("retention_bytes", 10)
    with pytest.raises(TopicExistsError, match=r"begins at offset 336, but the topic ends at offset 10"):
        root.take(source, "retention_bytes")


def test_a_topic_without_a_record_takes_everything(root: Root, left) -> None:
    root.topics.create("delrec", 1, CONFIG)
    assert not root.take(left("delrec"), "delrec").is_new
    assert root.topics.state("delrec").configs == {**CONFIG}
    assert [json.loads(line)["offset"] for line in root.read("delrec")] == list(range(300, 600))
    root.append("delrec", 1)
    assert len(root.read("delrec")) == 301


def test_what_is_appended_meanwhile_refuses_the_import(root: Root, other: Root, tmp_path: Path) -> None:
    root.topics.create("t", 1, CONFIG)
    root.append("t", 5)
    other.take(root.export(tmp_path / "exported"), "t", configs=CONFIG)
    other.append("t", 5)
    appended = LogDirectory(other.export(tmp_path / "appended"))
    stored = root.stored()
    storage = Interrupting(root.storage, lambda: root.append("t", 1))
    topics = Topics(storage, BrokerConfig(), ManualClock(NOW_MS))
    with pytest.raises(ConflictError, match="was changed since the import began"):
        import_topic(topics, appended, "t")
    assert len(root.read("t")) == 6
    assert len(root.stored() - stored) == 3  # of the append


def test_a_topic_that_is_made_meanwhile_refuses_the_import(root: Root, left) -> None:
    storage = Interrupting(root.storage, lambda: root.topics.create("ooo", 1, {}))
    with pytest.raises(TopicExistsError):
        import_topic(Topics(storage, BrokerConfig(), ManualClock(NOW_MS)), LogDirectory(left("ooo")), "ooo")
    assert root.stored() == set()
    assert root.topics.state("ooo").partitions[0].high_watermark == 0


def test_a_process_that_dies_anywhere_leaves_all_or_nothing(root: Root) -> None:
    class Killed(BaseException):
        pass

    class Dying(PlainStorage):
        def __init__(self, calls: int) -> None:
            super().__init__(root.storage)
            self.left = calls

        def count(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Killed

        def new_file(self, key: str, *, durable: bool = True):
            self.count()
            return super().new_file(key, durable=durable)

        def put_new(self, key: str, data) -> None:
            self.count()
            super().put_new(key, data)
            self.count()

        def delete(self, key: str) -> None:
            if self.left < 0:
                raise Killed
            super().delete(key)

    directory = LogDirectory(GOLDEN / "multi" / "data")
    for calls in itertools.count():
        storage = Dying(calls)
        try:
            import_topic(Topics(storage, BrokerConfig(), ManualClock(NOW_MS)), directory, "multi")
        except Killed:
            if root.topics.find("multi") is None:
                continue
        break
    # The id, which one that died has taken; each file of each segment; the version was put, and its writer died.
    assert calls == 1 + 3 * 3 * 3 + 1
    assert [len(root.read("multi", number)) for number in range(3)] == [300, 300, 300]
    assert import_topic(root.topics, directory, "multi").state.version == 0


def test_after_a_commit_that_nobody_can_tell_of_the_files_stay(root: Root, left) -> None:
    class Away(PlainStorage):
        def put_new(self, key: str, data) -> None:
            if key.startswith("meta/ooo/"):
                raise StorageError(key, "is out of reach")
            super().put_new(key, data)

    topics = Topics(Away(root.storage), BrokerConfig(), ManualClock(NOW_MS))
    with pytest.raises(StorageError, match="out of reach"):
        import_topic(topics, LogDirectory(left("ooo")), "ooo")
    assert root.stored()
    root.take(GOLDEN / "ooo" / "data", "ooo")
    assert len(root.read("ooo")) == 600


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_an_import_before_its_commit_leaves_no_files(root: Root, stopped_by: type[BaseException]) -> None:
    class Stopping(PlainStorage):
        def new_file(self, key: str, *, durable: bool = True):
            if key.endswith(".timeindex"):
                raise stopped_by
            return super().new_file(key, durable=durable)

    storage = Stopping(root.storage)
    with pytest.raises(stopped_by):
        import_topic(
            Topics(storage, BrokerConfig(), ManualClock(NOW_MS)), LogDirectory(GOLDEN / "multi" / "data"), "multi"
        )
    assert root.stored() == set()
    root.take(GOLDEN / "multi" / "data", "multi")
    assert [len(root.read("multi", number)) for number in range(3)] == [300, 300, 300]


def test_an_interrupt_behind_the_commit_takes_no_files_away(root: Root) -> None:
    class Stopping(PlainStorage):
        def put_new(self, key: str, data) -> None:
            super().put_new(key, data)
            if key.startswith("meta/multi/"):
                raise KeyboardInterrupt

    topics = Topics(Stopping(root.storage), BrokerConfig(), ManualClock(NOW_MS))
    with pytest.raises(KeyboardInterrupt):
        import_topic(topics, LogDirectory(GOLDEN / "multi" / "data"), "multi")
    assert [len(root.read("multi", number)) for number in range(3)] == [300, 300, 300]


def test_a_directory_whose_name_is_not_utf8_is_named_in_the_history(root: Root, other: Root, tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"left\xe9")
    shutil.copytree(GOLDEN / "ooo" / "data", source)
    assert root.take(source, "ooo").state.change == f"imported from {tmp_path}/left\\udce9"
    other.take(source, "ooo")
    other.append("ooo", 1)
    again = other.export(tmp_path / os.fsdecode(b"more\xe9"))
    assert root.take(again, "ooo").state.change == f"imported later batches from {tmp_path}/more\\udce9"
    assert len(root.read("ooo")) == 601


def test_a_log_that_was_last_written_before_1970_comes_in(root: Root, left) -> None:
    source = left("ooo")
    for log in source.glob("ooo-0/*.log"):
        os.utime(log, (-1, -1))
    state = root.take(source, "ooo").state
    assert {segment.modified_ms for segment in state.partitions[0].segments} == {0}
    assert len(root.read("ooo")) == 600


def test_copies_of_a_topic_that_come_in_at_once_do_not_share_their_files(root: Root, left, tmp_path: Path) -> None:
    source = left("multi")
    for number in range(3):
        shutil.copytree(source / f"multi-{number}", tmp_path / "copy" / f"copy-{number}")
    other_import: list[ImportedTopic] = []

    class Slow(PlainStorage):
        def new_file(self, key: str, *, durable: bool = True):
            if not other_import:
                other_import.append(root.take(tmp_path / "copy", "copy"))
            return super().new_file(key, durable=durable)

    topics = Topics(Slow(root.storage), BrokerConfig(), ManualClock(NOW_MS))
    one = import_topic(topics, LogDirectory(source), "multi").state
    assert one.topic_id != other_import[0].state.topic_id
    clock = ManualClock(NOW_MS)
    root.topics = Topics(root.storage, BrokerConfig(), clock)
    for _ in range(2):  # so that the sweep has a floor above the imports
        clock.advance(3 * 86_400_000)
        root.append("copy", 1)
    sweep_topic(root.storage, root.topics.chain("copy"), BrokerConfig())
    assert [len(root.read("multi", number)) for number in range(3)] == [300, 300, 300]


def test_an_id_under_which_any_partition_has_files_is_not_free(root: Root, left) -> None:
    source = left("multi")
    named = (source / "multi-0" / "partition.metadata").read_text().split()[-1]
    root.storage.put_new(f"data/{named}/2/{0:020d}.0.0123abcd.log", b"of an import that was killed")
    assert root.take(source, "multi").state.topic_id != named


def test_an_import_that_was_refused_gives_the_id_back(root: Root, left) -> None:
    source = left("ooo")
    named = (source / "ooo-0" / "partition.metadata").read_text().split()[-1]
    second = sorted(source.glob("ooo-0/*.log"))[1]
    whole = second.read_bytes()
    second.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with pytest.raises(CorruptionError):
        root.take(source, "ooo")
    second.write_bytes(whole)
    assert root.take(source, "ooo").state.topic_id == named


def test_a_topic_whose_leader_epochs_have_come_to_their_end_says_so_when_it_is_taken_over(root: Root, left) -> None:
    source = left("ooo")
    checkpoint = source / "ooo-0" / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n1\n2147483647 0\n")
    assert root.take(source, "ooo").state.writer.epoch == 2147483647
    with pytest.raises(StateError, match=r"topic ooo.* 2147483647.*leader-epoch-checkpoint"):
        take_over(root.topics.chain("ooo"), "q")
    root.topics.delete("ooo")
    checkpoint.unlink()
    root.take(source, "ooo")
    assert take_over(root.topics.chain("ooo"), "q").writer.epoch == 1
    assert len(root.read("ooo")) == 600
