"""Roots: the chain, the files under data/ and the view, each damage found where it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.log_directory import LogDirectory
from storage_engine.record.batch import scan_batches
from storage_engine.record.columns import TO_APPEND
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic import history_file
from storage_engine.topic.appending import append_records
from storage_engine.topic.kafka_import import import_topic, topics_in
from storage_engine.topic.pruning import prune
from storage_engine.topic.topics import Topics
from storage_engine.topic.transactions import Transaction
from storage_engine.topic.view import settle
from storage_engine.verify.findings import Finding, Kind, problems
from storage_engine.verify.root import check_root, repair_root
from storage_engine.verify.segment import Options
from tests.storage_engine.verify.directories import GOLDEN, contents, flip

NOW_MS = 1_700_000_000_000


class Root:
    """A root with a topic `t` of two partitions, a topic `u` that was deleted, and a settled view."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics(PosixStorage(path), BrokerConfig(), self.clock)
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

    def file(self, suffix: str, number: int = 0) -> Path:
        """The newest segment but one of a partition, under data/."""
        return sorted((self.path / f"data/{self.topics.state('t').topic_id}/{number}").glob(f"*{suffix}"))[-2]

    def change_state(self, version: int, change: dict[str, object]) -> Path:
        """Write other values into the first partition of a version."""
        file = self.path / f"meta/t/{version:020d}.json"
        document = json.loads(file.read_bytes())
        document["partitions"][0] |= change
        file.write_bytes(json.dumps(document, separators=(",", ":")).encode())
        return file


@pytest.fixture
def root(tmp_path) -> Root:
    return Root(tmp_path / "root")


def test_a_root_has_no_problem_and_what_did_not_commit_is_only_noted(root) -> None:
    assert problems(check_root(root.topics, None, None, Options(deep=True), 2).findings) == []
    (root.file(".log").parent / "00000000000000000999.9.abcd.log").write_bytes(b"left over")
    found = check_root(root.topics, "t", 0, Options(), 1).findings
    assert {each.kind for each in found} == {Kind.LEFT_OVER}
    assert all(each.is_note for each in found)


def test_repair_takes_no_entry_of_an_index_on_trust(root) -> None:
    index = root.file(".index")
    flip(index, 15)  # the position of the second entry, by one: it still lies between the first and the third
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.INDEX, str(index))]
    shown = root.path / "log/t-0" / f"{index.name.partition('.')[0]}.index"
    shown.unlink()
    settle(root.topics)
    assert {(each.kind, each.file) for each in root.problems()} == {(Kind.INDEX, str(index)), (Kind.VIEW, str(shown))}
    assert root.repaired() == []


def test_transactions_committed_aborted_and_open_are_no_problem_and_damage_to_what_tells_of_them_is(root) -> None:
    for end in (Transaction.commit, Transaction.abort):
        transaction = Transaction(root.topics)
        transaction.append("t", root.records(30))
        end(transaction)
    still_open = Transaction(root.topics)
    still_open.append("t", root.records(30))
    settle(root.topics)
    assert root.problems() == []
    index = next((root.path / "log/t-0").glob("*.txnindex"))
    snapshot = max((root.path / "log/t-0").glob("*.snapshot"))
    flip(index, 9)
    flip(snapshot, 15)
    assert {(each.kind, each.file) for each in root.problems()} == {(Kind.VIEW, str(index)), (Kind.VIEW, str(snapshot))}
    assert root.repaired() == []
    state = root.topics.state("t")
    root.change_state(state.version, {"producers": []})
    found = root.problems()
    assert any(each.kind is Kind.STATE and "producers" in each.expected for each in found)
    still_open.abort()


@pytest.mark.parametrize("name", ["txn", "compact.before2", "delrec", "legacy"])
def test_what_was_imported_from_a_broker_has_no_problem(name: str, tmp_path) -> None:
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), ManualClock(NOW_MS))
    directory = LogDirectory(GOLDEN / name / "data")
    for topic in topics_in(directory):
        import_topic(topics, directory, topic)
    settle(topics)
    assert check_root(topics, None, None, Options(deep=True), threads=2).findings == []


def test_a_changed_missing_or_short_file_of_data_is_found(root) -> None:
    log = root.file(".log")
    position = int(scan_batches(np.fromfile(log, np.uint8), log.name).positions[-1])
    flip(log, position + 70)
    assert [(each.kind, each.file, each.position) for each in root.problems()] == [(Kind.CORRUPT, str(log), position)]
    flip(log, position + 70)
    os.truncate(log, position + 10)
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
    first, second = (root.path / f"meta/u/{version:020d}.json" for version in (1, 2))
    first.write_bytes(b"{")
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.STATE, str(first))]
    second.unlink()
    found = [(each.kind, each.file) for each in root.problems()]
    assert found == [(Kind.STATE, str(first)), (Kind.STATE, str(root.path / f"meta/u/{3:020d}.json"))]


def test_a_pruned_chain_is_whole_and_damaged_history_is_found(root, monkeypatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 4)
    chain = root.topics.chain("t")
    stray = root.path / f"meta/t/{1:020d}.json"
    put_late = stray.read_bytes()
    assert prune(root.topics.storage, chain, keep=2).versions > 2
    assert root.problems() == []
    stray.write_bytes(put_late)
    assert root.problems() == [], "it was put into the hole, and does not count"
    rolled_up = root.path / "meta/t/history" / f"{4:020d}.jsonl"
    rolled_up.write_bytes(rolled_up.read_bytes().replace(b'"version":5', b'"version":6'))
    assert [(each.kind, each.file) for each in root.problems()] == [(Kind.STATE, str(rolled_up))]
    rolled_up.unlink()
    assert [each.kind for each in root.problems()] == [Kind.STATE], "versions are gone that nothing tells of"


def test_a_state_that_its_files_contradict_is_found(root) -> None:
    state = root.topics.state("t")
    segment = list(state.partitions[0].segments[-1])
    segment[4] += 1  # largest timestamp
    segments = [*(list(each) for each in state.partitions[0].segments[:-1]), segment]
    root.change_state(state.version, {"segments": segments})
    found = [each for each in root.problems() if each.kind is Kind.STATE]
    assert ["the largest timestamp" in each.expected for each in found] == [True]


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
