"""The check of a root: each damage to the chain, the files under data/ or the view is found at its place."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import data_folder, data_key
from storage_engine.record.batch import scan_batches
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.storage import FolderEntry
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain import history_file
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.ingest_reports import INGEST_REPORTS, IngestReport, KeptReports, put_report
from storage_engine.topic.kafka.kafka_import import import_topic, topics_in
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import Finding, Kind, problems
from storage_engine.verify.root import lost_versions
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.root_repair import repair_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.chain.signed_documents import change_fields
from tests.storage_engine.verify.directories import GOLDEN, contents, flip
from tests.stores import StoreFile, file_in, storage_at

NOW_MS = 1_700_000_000_000


class Root:
    """A root with a topic `t` of two partitions, a topic `u` that was deleted, and a settled view, if it has a view."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = storage_at(path)
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics(self.storage, BrokerConfig(), self.clock)
        for name in ("t", "u"):
            self.topics.create(name, 2, {"segment.bytes": 8000, "index.interval.bytes": 300, "max.message.bytes": 500})
            for count in (40, 60, 60, 60, 60, 60, 60):
                self.append(name, count)
        self.topics.delete("u")
        settle(self.topics)

    @staticmethod
    def records(count: int) -> pa.RecordBatch:
        return pa.record_batch(
            [
                pa.array([b"%d" % number for number in range(count)], pa.binary()),
                pa.array([bytes(60)] * count, pa.binary()),
                pa.array([None] * count, TO_APPEND.field("headers").type),
                pa.array(NOW_MS + np.arange(count), pa.int64()),
            ],
            schema=TO_APPEND,
        )

    def append(self, topic: str, count: int) -> None:
        self.clock.advance(1000)
        chain = self.topics.chain(topic)
        config = self.topics.config(chain.newest())
        append_records(self.topics.storage, chain, config, self.clock, self.records(count))

    def problems(self) -> list[Finding]:
        return problems(check_root(self.topics, None, None, Options(), threads=1).findings)

    def repaired(self) -> list[Finding]:
        repair_root(self.topics, check_root(self.topics, None, None, Options(), threads=1))
        return self.problems()

    def file(self, suffix: str, number: int = 0, topic: str = "t", segment: int = -2) -> Path | StoreFile:
        """A file of a segment under data/: of the newest segment but one, if nothing else is said."""
        state = self.topics.state(topic)
        name = state.partitions[number].segments[segment].name
        return file_in(self.storage, data_key(state.topic_id, number, name, suffix))

    def contents(self) -> dict[str, bytes]:
        """All files of the root by key, also the view if there is one."""
        if self.storage.root is not None:
            return contents(self.storage.root)
        return {
            file.key: self.storage.read(file.key) for folder in ("data/", "meta/") for file in self.storage.list(folder)
        }

    def change_state(self, version: int, change: dict[str, object]) -> Path | StoreFile:
        """Write other values into the first partition of a version."""
        key = f"meta/t/{version:020d}.json"
        partitions = json.loads(self.storage.read(key))["partitions"]
        partitions[0] |= change
        change_fields(self.storage, key, partitions=partitions)
        return file_in(self.storage, key)


@pytest.fixture
def root(tmp_path) -> Root:
    return Root(tmp_path / "root")


def test_a_root_has_no_problem_and_what_did_not_commit_is_only_noted(root) -> None:
    assert problems(check_root(root.topics, None, None, Options(deep=True), 2).findings) == []
    folder = data_folder(root.topics.state("t").topic_id, 0)
    file_in(root.storage, f"{folder}00000000000000000999.9.abcd.log").write_bytes(b"left over")
    found = check_root(root.topics, "t", 0, Options(), 1).findings
    assert {each.kind for each in found} == {Kind.LEFT_OVER}
    assert all(each.is_note for each in found)


def test_repair_takes_no_entry_of_an_index_on_trust(root) -> None:
    index = root.file(".index")
    flip(index, 15)  # the position of the second entry, by one: it still lies between the first and the third
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.INDEX, str(index))]
    assert root.repaired() == []


@pytest.mark.posix("looks at the view")
def test_repair_takes_no_entry_of_an_index_of_the_view_on_trust(root) -> None:
    index = root.file(".index")
    flip(index, 15)
    shown = root.path / "log/t-0" / f"{index.name.partition('.')[0]}.index"
    shown.unlink()
    settle(root.topics)
    assert {(each.kind, each.file) for each in root.problems()} == {(Kind.INDEX, str(index)), (Kind.VIEW, str(shown))}
    assert root.repaired() == []


def test_an_index_may_be_of_another_interval_than_the_topic_has_now(root) -> None:
    for interval in (500, 100):
        root.topics.alter("t", configs={"index.interval.bytes": interval})
        root.append("t", 60)
        unsettled = set() if root.storage.view is None else {Kind.VIEW}
        assert {each.kind for each in root.problems()} == unsettled, "what was appended is not shown yet"
        settle(root.topics)
        assert root.problems() == []
    flip(root.file(".index"), 15)
    assert [each.kind for each in root.problems()] == [Kind.INDEX]
    assert root.repaired() == []


def test_zeros_in_the_place_of_a_first_entry_do_not_pass_for_the_first_batch(root) -> None:
    root.topics.create("v", 1, {"index.interval.bytes": 100, "max.message.bytes": 180})
    root.append("v", 10)
    settle(root.topics)
    index = root.file(".index", topic="v", segment=-1)
    data = index.read_bytes()
    assert len(data) >= 16
    index.write_bytes(bytes(8) + data[8:])
    assert [(each.kind, each.file, each.position) for each in root.problems()] == [(Kind.INDEX, str(index), 0)]
    assert root.repaired() == []


@pytest.mark.posix("damages the view")
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_of_the_view_that_lacks_entries_is_found(root, suffix: str) -> None:
    shown = max((root.path / "log/t-0").glob(f"*{suffix}"), key=lambda file: file.stat().st_size)
    size = 8 if suffix == ".index" else 12
    whole = shown.read_bytes()
    assert len(whole) >= 3 * size
    for damaged in (whole[size:], whole[:-size], whole[:size] + whole[2 * size :], b""):
        shown.write_bytes(damaged)
        assert [(each.kind, each.file) for each in root.problems()] == [(Kind.VIEW, str(shown))]
    assert root.repaired() == []
    assert shown.read_bytes() == whole


@pytest.fixture
def transacted(root) -> Iterator[Root]:
    """The root, with a committed transaction, an aborted transaction and an open transaction."""
    for end in (TransactionWriter.commit, TransactionWriter.abort):
        transaction = TransactionWriter(root.topics)
        transaction.append("t", root.records(30))
        end(transaction)
    still_open = TransactionWriter(root.topics)
    still_open.append("t", root.records(30))
    settle(root.topics)
    yield root
    still_open.abort()


def test_transactions_are_no_problem_and_a_state_that_says_nothing_of_them_is(transacted) -> None:
    assert transacted.problems() == []
    state = transacted.topics.state("t")
    transacted.change_state(state.version, {"producers": []})
    found = transacted.problems()
    assert any(each.kind is Kind.STATE and "producers" in each.expected for each in found)


def test_a_partition_without_segments_may_have_producers(root) -> None:
    transaction = TransactionWriter(root.topics)
    transaction.append("t", root.records(30))
    transaction.commit()
    chain = root.topics.chain("t")
    root.topics.alter("t", configs={"retention.ms": "1"})
    newest = max(part.largest_timestamp for part in chain.newest().partitions)
    retain_topic(chain, BrokerConfig(), now_ms=newest + 10_000)
    parts = chain.newest().partitions
    assert not any(part.segments for part in parts)
    assert any(part.producers for part in parts)
    settle(root.topics)
    assert root.problems() == []


def test_compaction_may_empty_the_segments_of_an_aborted_transaction(root) -> None:
    root.topics.create("c", 1, {"cleanup.policy": "compact", "segment.bytes": "1024", "max.message.bytes": "600"})
    transaction = TransactionWriter(root.topics)
    for _ in range(6):
        transaction.append("c", root.records(5))
    transaction.abort()
    for _ in range(4):
        root.append("c", 5)
    settle(root.topics)
    assert root.problems() == []
    chain = root.topics.chain("c")
    compact_topic(root.storage, chain, root.topics.config(chain.newest()), BrokerConfig(), root.clock, force=True)
    segments = chain.newest().partitions[0].segments
    assert any(one.end_offset < other.base_offset for one, other in itertools.pairwise(segments))
    settle(root.topics)
    assert root.problems() == []


@pytest.mark.posix("damages the view")
def test_damage_to_the_files_of_the_view_that_say_something_of_transactions_is_found(transacted) -> None:
    root = transacted
    index = next((root.path / "log/t-0").glob("*.txnindex"))
    snapshot = max((root.path / "log/t-0").glob("*.snapshot"))
    flip(index, 9)
    flip(snapshot, 15)
    assert {(each.kind, each.file) for each in root.problems()} == {(Kind.VIEW, str(index)), (Kind.VIEW, str(snapshot))}
    assert root.repaired() == []


@pytest.mark.parametrize("name", ["txn", "compact.before2", "delrec", "legacy"])
def test_what_was_imported_from_a_broker_has_no_problem(name: str, tmp_path) -> None:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(NOW_MS))
    directory = LogDirectory(GOLDEN / name / "data")
    for topic in topics_in(directory):
        import_topic(topics, directory, topic)
    settle(topics)
    assert check_root(topics, None, None, Options(deep=True), threads=2).findings == []


def test_a_changed_missing_or_short_file_of_data_is_found(root) -> None:
    log = root.file(".log")
    data = np.frombuffer(log.read_bytes(), np.uint8)
    position = int(scan_batches(data, str(log)).positions[-1])
    flip(log, position + 70)
    assert [(each.kind, each.file, each.position) for each in root.problems()] == [(Kind.CORRUPT, str(log), position)]
    flip(log, position + 70)
    log.write_bytes(log.read_bytes()[: position + 10])
    assert (Kind.CORRUPT, str(log), position + 10) in [
        (each.kind, each.file, each.position) for each in root.problems()
    ]
    log.unlink()
    assert (Kind.CORRUPT, str(log), 0) in [(each.kind, each.file, each.position) for each in root.problems()]


def test_wrong_and_missing_indexes_of_data_are_found_and_derived(root) -> None:
    index, times, missing = root.file(".index"), root.file(".timeindex", 1), root.file(".index", 1)
    flip(index, 8)
    flip(times, 3)
    missing.unlink()
    found = {(each.kind, each.file) for each in root.problems()}
    assert {(Kind.INDEX, str(index)), (Kind.INDEX, str(times)), (Kind.INDEX, str(missing))} <= found
    assert root.repaired() == []


DERIVABLE = "this file can be rebuilt from the .log: by --repair, or by a broker after you remove the file"
OFTEN = "an entry after at most 476 bytes, as elsewhere in this index"
RISES = "the largest timestamp so far and the last offset of the batch that has it"


def last_entry_with(data: bytes, relative_offset: int) -> bytes:
    """The bytes of a .timeindex, with another relative offset in its last entry."""
    return data[:-4] + struct.pack(">i", relative_offset)


@pytest.mark.parametrize(
    ("damage", "position", "expected", "found"),
    [
        (lambda data: b"", 0, "timestamp and relative offset 1700000000021 and 11", "none"),
        (lambda data: data[:-12], 48, "timestamp and relative offset 1700000000058 and 31", "none"),
        (lambda data: data[:-1], 48, "timestamp and relative offset 1700000000058 and 31", "none"),
        (lambda data: data[:12], 12, "timestamp and relative offset 1700000000037 and 17", "none"),
        (
            lambda data: data[:24] + data[36:], 24, "timestamp and relative offset 1700000000047 and 23",
            "timestamp and relative offset 1700000000055 and 29",
        ),
        (lambda data: data + bytes(1), 60, "no zeros after the last entry", "1 bytes of zeros"),
        (lambda data: data + bytes(12), 60, "no zeros after the last entry", "12 bytes of zeros"),
        (lambda data: data + bytes(4099), 60, "no zeros after the last entry", "4099 bytes of zeros"),
        (lambda data: data[:-12] + bytes(12), 48, "no zeros after the last entry", "12 bytes of zeros"),
        (lambda data: data + b"\0\0\1\1", 60, "entries of 12 bytes", "4 bytes of an incomplete entry"),
        (lambda data: last_entry_with(data, 30), 48, RISES, "timestamp and relative offset 1700000000058 and 30"),
        (lambda data: last_entry_with(data, 32), 48, RISES, "timestamp and relative offset 1700000000058 and 32"),
        (lambda data: last_entry_with(data, 9999), 48, RISES, "timestamp and relative offset 1700000000058 and 9999"),
    ],
)  # fmt: skip
def test_each_damage_to_a_timeindex_of_data_is_found_and_repaired(
    root, damage: Callable[[bytes], bytes], position: int, expected: str, found: str
) -> None:
    times = root.file(".timeindex")
    before = root.contents()
    times.write_bytes(damage(times.read_bytes()))
    assert root.problems() == [Finding(Kind.INDEX, str(times), position, expected, found, DERIVABLE)]
    assert root.repaired() == []
    assert root.contents() == before


@pytest.mark.parametrize(
    ("damage", "position", "expected", "found"),
    [
        (lambda data: b"", 0, "an entry for relative offset 11, as in the .timeindex", "none"),
        (lambda data: data[:-8], 32, OFTEN, "no entry for 481 bytes"),
        (lambda data: data[:-1], 32, OFTEN, "no entry for 481 bytes"),
        (lambda data: data[8:], 0, "an entry for relative offset 11, as in the .timeindex", "none"),
        (lambda data: data[:8] + data[24:], 8, OFTEN, "no entry for 962 bytes"),
        (lambda data: data + bytes(8), 40, "no zeros after the last entry", "8 bytes of zeros"),
        (lambda data: data + b"\0\0\0\1", 40, "entries of 8 bytes", "4 bytes of an incomplete entry"),
        (
            lambda data: data[:-4] + struct.pack(">i", 9999), 32, "the last offset and the position of a batch",
            "relative offset and position 31 and 9999",
        ),
    ],
)  # fmt: skip
def test_each_damage_to_an_index_of_data_is_found_and_repaired(
    root, damage: Callable[[bytes], bytes], position: int, expected: str, found: str
) -> None:
    index = root.file(".index")
    before = root.contents()
    index.write_bytes(damage(index.read_bytes()))
    assert root.problems() == [Finding(Kind.INDEX, str(index), position, expected, found, DERIVABLE)]
    assert root.repaired() == []
    assert root.contents() == before


def test_entries_for_bytes_that_did_not_commit_are_no_problem(root) -> None:
    files = {suffix: root.file(suffix) for suffix in (".index", ".timeindex")}
    whole = {suffix: file.read_bytes() for suffix, file in files.items()}
    end = {".index": struct.pack(">ii", 33, 2602 + 80), ".timeindex": struct.pack(">qi", NOW_MS + 59, 33)}
    for suffix, file in files.items():
        for more in range(1, len(end[suffix]) + 1):
            if any(end[suffix][:more]):
                file.write_bytes(whole[suffix] + end[suffix][:more])
                assert root.problems() == [], f"{more} bytes of the next entry of the {suffix}"
        file.write_bytes(whole[suffix] + end[suffix])
    assert root.problems() == []


def test_a_timeindex_of_data_may_have_its_closing_entry_or_not(root) -> None:
    root.topics.create("v", 1, {"max.message.bytes": 180})
    root.append("v", 10)
    settle(root.topics)
    index, times = (root.file(suffix, topic="v", segment=-1) for suffix in (".index", ".timeindex"))
    closed = struct.pack(">qi", NOW_MS + 9, 9)
    assert (index.read_bytes(), times.read_bytes()) == (b"", b"" if root.storage.growing is not None else closed)
    for closing in (closed, struct.pack(">qi", NOW_MS + 3, 3), b""):
        times.write_bytes(closing)
        assert root.problems() == []
    closing = struct.pack(">qi", NOW_MS + 9, 8)
    times.write_bytes(closing)
    found = f"timestamp and relative offset {NOW_MS + 9} and 8"
    assert root.problems() == [Finding(Kind.INDEX, str(times), 0, RISES, found, DERIVABLE)]
    assert root.repaired() == []
    assert (index.read_bytes(), times.read_bytes()) == (b"", closed)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"high_watermark": 1000}, "high watermark"),
        ({"log_start_offset": 5000}, "log start offset"),
        ({"first_dirty_offset": 5000}, "first dirty offset"),
        ({"leader_epochs": [[0, 0], [0, 9]]}, "leader epochs"),
        ({"segments": [], "high_watermark": 0}, "high watermark"),
    ],
)
def test_a_version_that_contradicts_itself_or_the_one_before_is_found(root, change, expected: str) -> None:
    file = root.change_state(7, change)
    found = [each for each in root.problems() if each.kind is Kind.STATE]
    assert any(each.file == str(file) and expected in each.expected for each in found)


def test_a_version_that_does_not_parse_and_a_hole_are_found(root) -> None:
    first, second = (file_in(root.storage, f"meta/u/{version:020d}.json") for version in (1, 2))
    first.write_bytes(b"{")
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.STATE, str(first))]
    second.unlink()
    found = [(each.kind, each.file) for each in root.problems()]
    assert found == [(Kind.STATE, str(first)), (Kind.STATE, str(file_in(root.storage, f"meta/u/{3:020d}.json")))]


@pytest.mark.parametrize("lost", [[0], [1], [1, 2], [3], [-2], [-3, -2], [0, 1, -2]])
def test_each_gap_is_found_and_only_the_version_before_the_newest_closes_the_topic(root, lost: list[int]) -> None:
    newest = root.topics.state("t").version
    numbers = [number % (newest + 1) for number in lost]
    for number in numbers:
        file_in(root.storage, f"meta/t/{number:020d}.json").unlink()
    gaps = [each for each in root.problems() if each.file.endswith(".json")]
    after = [number + 1 for number in numbers if number + 1 not in numbers]
    assert [each.file for each in gaps] == [
        str(file_in(root.storage, f"meta/t/{number:020d}.json")) for number in after
    ]
    assert [each.found for each in gaps] == ["none"] * len(after)
    closed = ["the topic cannot be opened" in each.meaning for each in gaps]
    assert closed == [number == newest for number in after]
    if not any(closed):
        assert root.topics.state("t").version == newest


def test_a_version_that_pruning_does_not_delete_yet_is_missed(root, monkeypatch) -> None:
    """The history contains the version, and version 0 is retired. But a thousand newer versions do not exist."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    monkeypatch.setattr(lost_versions, "KEPT_VERSIONS", 4)
    chain = root.topics.chain("t")
    newest = chain.newest().version
    prune(root.topics.storage, chain, keep=4)
    assert root.problems() == []
    file_in(root.storage, f"meta/t/{newest - 3:020d}.json").unlink()
    file_in(root.storage, f"meta/t/{newest - 2:020d}.json").unlink()
    (found,) = root.problems()
    assert found.expected == f"versions {newest - 3} to {newest - 2} before it"
    assert found.meaning.startswith("the topic can be read and written, but its history has a gap")
    assert len(list(root.topics.chain("t").versions())) == 3
    file_in(root.storage, f"meta/t/{0:020d}.json").unlink()
    assert [each.expected for each in root.problems()] == [f"versions 0, {newest - 3} to {newest - 2} before it"]


def test_a_pruned_chain_is_whole_and_damaged_history_is_found(root, monkeypatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 4)
    chain = root.topics.chain("t")
    stray = file_in(root.storage, f"meta/t/{1:020d}.json")
    put_late = stray.read_bytes()
    monkeypatch.setattr(lost_versions, "KEPT_VERSIONS", 2)
    assert prune(root.topics.storage, chain, keep=2).versions > 2
    assert root.problems() == []
    stray.write_bytes(put_late)
    assert root.problems() == [], "it was put into the hole, and does not count"
    rolled_up = file_in(root.storage, f"meta/t/history/{4:020d}.jsonl")
    rolled_up.write_bytes(rolled_up.read_bytes().replace(b'"version":5', b'"version":6'))
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.STATE, str(rolled_up))]
    rolled_up.unlink()
    assert [each.kind for each in root.problems()] == [Kind.STATE], "versions are gone that nothing tells of"


def test_a_history_file_that_is_missing_between_others_is_found(root, monkeypatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    monkeypatch.setattr(lost_versions, "KEPT_VERSIONS", 2)
    prune(root.topics.storage, root.topics.chain("t"), keep=2)
    assert root.problems() == []
    lost = file_in(root.storage, f"meta/t/history/{2:020d}.jsonl")
    lost.unlink()
    assert [(each.kind, each.file, each.expected, each.found) for each in root.problems()] == [
        (Kind.STATE, str(lost), "a history file", "none")
    ]


def test_a_state_that_its_files_contradict_is_found(root) -> None:
    state = root.topics.state("t")
    segment = list(state.partitions[0].segments[-1])
    segment[4] += 1  # largest timestamp
    segments = [*(list(each) for each in state.partitions[0].segments[:-1]), segment]
    root.change_state(state.version, {"segments": segments})
    found = [each for each in root.problems() if each.kind is Kind.STATE]
    assert ["the largest timestamp" in each.expected for each in found] == [True]


@pytest.mark.posix("damages the view")
def test_a_view_that_shows_something_else_is_found_and_made_exact(root) -> None:
    log = root.path / "log"
    whole = contents(log)
    index = max((log / "t-0").glob("*.index"), key=lambda file: file.stat().st_size)
    times = index.stat()
    flip(index, 4)
    os.utime(index, ns=(times.st_atime_ns, times.st_mtime_ns))
    (log / "t-0/notes").touch()
    (log / "u-0").mkdir()
    min((log / "t-1").glob("*.log")).unlink()
    (log / "t-1/leader-epoch-checkpoint").write_bytes(b"")
    (log / "replication-offset-checkpoint").write_bytes(b"0\n0\n")
    (log / "cleaner-offset-checkpoint").unlink()
    found = root.problems()
    assert {each.kind for each in found} == {Kind.VIEW}
    assert {Path(each.file).name for each in found} == {
        index.name, "notes", "u-0", f"{0:020d}.log", "leader-epoch-checkpoint", "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
    }  # fmt: skip
    assert root.repaired() == []
    assert contents(log) == whole


@pytest.mark.posix("damages the view")
def test_folders_in_the_view_where_files_belong_are_found_and_removed(root) -> None:
    names = (f"t-0/{0:020d}.index", "t-0/leader-epoch-checkpoint", "t-0/more", "replication-offset-checkpoint")
    places = [root.path / "log" / name for name in names]
    for place in places:
        place.unlink(missing_ok=True)
        place.mkdir()
    found = {each.file for each in root.problems() if each.kind is Kind.VIEW}
    assert found == {str(place) for place in places}
    assert root.repaired() == []


@pytest.mark.posix("makes a folder")
def test_a_folder_in_the_place_of_an_index_of_data_is_found_and_the_index_derived(root) -> None:
    index = root.file(".index")
    whole = index.read_bytes()
    index.unlink()
    index.mkdir()
    (index / "more").touch()
    assert {(each.kind, each.file) for each in root.problems()} == {(Kind.UNREADABLE, str(index))}
    assert root.repaired() == []
    assert index.read_bytes() == whole


@pytest.mark.posix("makes a folder")
def test_a_folder_in_the_place_of_a_document_is_found(root) -> None:
    place = root.path / "meta/@root/format.json"
    place.unlink()
    place.mkdir()
    (found,) = root.problems()
    assert (found.kind, found.file, found.found) == (Kind.STATE, str(place), "a folder")


def test_a_topic_that_is_called_like_a_document_has_no_problem(root) -> None:
    for name in ("events.json", "events.jsonl"):
        root.topics.create(name, 1, {})
    settle(root.topics)
    assert root.problems() == []


@pytest.mark.posix("damages the view")
@pytest.mark.parametrize(
    "name",
    ["t-0/leader-epoch-checkpoint", "t-0/{:020d}.snapshot", "t-0/{:020d}.index", "t-0", "meta.properties",
     "cleaner-offset-checkpoint"],
)  # fmt: skip
def test_what_cannot_be_read_in_the_view_hides_no_damage_and_is_made_again(root, name: str) -> None:
    log = root.path / "log"
    whole = contents(log)
    shown = log / name.format(root.topics.state("t").partitions[0].segments[1].base_offset)
    shutil.rmtree(shown) if shown.is_dir() else shown.unlink()
    shown.symlink_to(shown.name)
    damaged = root.file(".log", 1)
    flip(damaged, 70)
    found = {(each.kind, each.file) for each in root.problems()}
    assert (Kind.VIEW, str(shown)) in found
    assert {where for where in found if where[0] is not Kind.VIEW} == {(Kind.CORRUPT, str(damaged))}
    flip(damaged, 70)
    assert root.repaired() == []
    assert contents(log).keys() == whole.keys()


@pytest.mark.posix("replaces a folder by a file")
def test_a_partition_that_cannot_be_read_is_a_finding_among_others(root) -> None:
    folder = root.file(".log").parent
    shutil.rmtree(folder)
    folder.touch()
    damaged = root.file(".log", 1)
    flip(damaged, 70)
    found = {(each.kind, each.file) for each in root.problems()}
    assert {(Kind.UNREADABLE, str(folder)), (Kind.CORRUPT, str(damaged))} <= found


class Busy(PosixStorage):
    """Right before the view is looked at, something happens to the root, for so many times."""

    def __init__(self, path: Path, act: Callable[[], object], times: int) -> None:
        super().__init__(path)
        self.act = act
        self.times = times

    def entries(self, folder: str) -> Sequence[FolderEntry]:
        if folder == "log" and self.times:
            self.times -= 1
            self.act()
        return super().entries(folder)


@pytest.mark.posix("acts when the view is listed")
@pytest.mark.parametrize("topic", ["t", "a"])
def test_a_writer_that_commits_and_settles_during_the_check_makes_no_problem(root, topic: str) -> None:
    def act() -> None:
        if topic == "a" and root.topics.find("a") is None:
            root.topics.create("a", 1, {})
        else:
            root.append(topic, 20)
        settle(root.topics)

    for times in (1, 2, 5):
        busy = Topics(Busy(root.path, act, times), BrokerConfig(), root.clock)
        assert problems(check_root(busy, None, None, Options(), threads=1).findings) == []
    busy = Topics(Busy(root.path, act, 1000), BrokerConfig(), root.clock)
    found = check_root(busy, None, None, Options(), threads=1).findings
    assert problems(found) == []
    assert any("the view is being settled" in each.meaning for each in found if each.kind is Kind.VIEW)
    index = max(root.file(".index").parent.glob("*.index"), key=lambda file: file.stat().st_size)
    flip(index, 0)
    found = check_root(busy, None, None, Options(), threads=1).findings
    assert [(each.kind, each.file) for each in problems(found)] == [(Kind.INDEX, str(index))]


@pytest.mark.posix("acts when the view is listed")
def test_a_topic_that_is_deleted_during_the_check_makes_no_problem(root) -> None:
    def act() -> None:
        root.topics.delete("t")
        settle(root.topics)

    busy = Topics(Busy(root.path, act, 1), BrokerConfig(), root.clock)
    assert problems(check_root(busy, None, None, Options(), threads=1).findings) == []


def test_a_damaged_report_of_an_ingest_is_removed_by_a_repair(root) -> None:
    for query in ("q", "well"):
        put_report(root.storage, IngestReport(query=query, updated_ms=NOW_MS, is_running=True))
    root.storage.replace(f"{INGEST_REPORTS}/q.json", b"torn")
    (found,) = problems(check_root(root.topics, None, None, Options(), threads=1).findings)
    assert found.file.endswith(f"{INGEST_REPORTS}/q.json")
    assert found.meaning == (
        "`lakelog verify --repair` removes the file: it is only a report, which a running ingest writes again."
    )
    assert repair_documents(root.topics) == []
    assert problems(check_root(root.topics, None, None, Options(), threads=1).findings) == []
    aside, left = [file.key for file in root.storage.list(f"{INGEST_REPORTS}/")]
    assert (aside.startswith(f"{INGEST_REPORTS}/damaged/q.json."), root.storage.read(aside)) == (True, b"torn")
    assert left == f"{INGEST_REPORTS}/well.json"
    assert KeptReports().read(root.storage).by_query.keys() == {"well"}


def test_a_report_of_a_newer_lakelog_is_not_removed(root) -> None:
    key = f"{INGEST_REPORTS}/q.json"
    root.storage.replace(key, b'{"format":99}')
    assert repair_documents(root.topics) == []
    (found,) = problems(check_root(root.topics, None, None, Options(), threads=1).findings)
    assert found.file == f"{root.storage.uri}/{key}"
    assert root.storage.read(key) == b'{"format":99}'


@pytest.mark.posix("makes a file in the place of a folder")
def test_a_folder_of_reports_that_cannot_be_listed_is_found(root) -> None:
    (root.path / INGEST_REPORTS).write_bytes(b"")
    (found,) = problems(check_root(root.topics, None, None, Options(), threads=1).findings)
    assert (found.kind, found.file) == (Kind.UNREADABLE, f"{root.storage.uri}/{INGEST_REPORTS}")
