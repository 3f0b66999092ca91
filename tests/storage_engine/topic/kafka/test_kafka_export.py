"""Exports: a topic becomes a complete Kafka log directory, or the export leaves nothing. tests/kafka starts a broker on
such directories.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from storage_engine.config import BrokerConfig
from storage_engine.errors import AlreadyExistsError, CorruptionError, NotFoundError, StorageError, UnknownTopicError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.checkpoint import decode_leader_epochs, decode_meta_properties, decode_offsets
from storage_engine.log.filenames import data_key
from storage_engine.log.isolation import Isolation
from storage_engine.log.producers.producer_snapshot import decode_snapshot
from storage_engine.record.batch import scan_batches
from storage_engine.record.crc import check_crcs
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.transaction_files import decide
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from storage_engine.verify.directory.directory_check import check_directory
from storage_engine.verify.findings import problems
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.kafka.test_kafka_import import CONFIG, GOLDEN, NOW_MS, Root
from tests.storage_engine.topic.wrapped_storage import PlainStorage
from tests.stores import file_in


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A topic `t` of two partitions; three leader epochs in the first, nothing in the second."""
    root = Root(tmp_path / "root")
    root.topics.create("t", 2, {**CONFIG, "file.delete.delay.ms": "0", "cleanup.policy": "compact"})
    for query in ("a", "b", "c"):
        root.append("t", 150)
        root.append("t", 150)
        take_over(root.topics.chain("t"), query, take_over_others=True)
    return root


def epochs_in(log: Path) -> set[int]:
    data = np.fromfile(log, np.uint8)
    table = scan_batches(data, str(log))
    check_crcs(data, table, str(log))
    return set(table.leader_epochs.tolist())


def test_leader_epochs_are_those_of_a_new_cluster(root: Root, tmp_path: Path) -> None:
    folder = root.export(tmp_path / "exported") / "t-0"
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 2
    assert set.union(*map(epochs_in, logs)) == {0}
    assert (folder / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_leader_epochs_are_kept_where_that_is_asked_for(root: Root, tmp_path: Path) -> None:
    folder = root.export(tmp_path / "exported", keep_epochs=True) / "t-0"
    assert set.union(*map(epochs_in, folder.glob("*.log"))) == {0, 1, 2}
    epochs = decode_leader_epochs((folder / "leader-epoch-checkpoint").read_bytes(), "")
    assert epochs == [(0, 0), (1, 300), (2, 600), (3, 900)]
    state = root.topics.state("t")
    for segment in state.partitions[0].segments:
        stored = file_in(root.storage, data_key(state.topic_id, 0, segment.name))
        assert (folder / f"{segment.base_offset:020d}.log").read_bytes() == stored.read_bytes()


def test_the_directory_has_what_a_broker_leaves_after_an_orderly_stop(root: Root, tmp_path: Path) -> None:
    root.topics.create("u", 1, {})
    exported = root.export(tmp_path / "exported")
    assert {path.name for path in exported.iterdir()} == {
        "t-0", "t-1", "u-0", "meta.properties", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint",
    }  # fmt: skip
    ends = decode_offsets((exported / "recovery-point-offset-checkpoint").read_bytes(), "")
    assert ends == {("t", 0): 900, ("t", 1): 0, ("u", 0): 0}
    assert decode_meta_properties((exported / "meta.properties").read_bytes(), "").node_id == 1
    assert {path.name for path in (exported / "t-1").iterdir()} == {
        "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex",
        "leader-epoch-checkpoint", "partition.metadata",
    }  # fmt: skip
    segments = root.topics.state("t").partitions[0].segments
    snapshots = {int(path.stem) for path in (exported / "t-0").glob("*.snapshot")}
    assert snapshots == {segment.base_offset for segment in segments[1:]} | {900}
    newest = (exported / "t-0" / f"{segments[-1].base_offset:020d}.log").stat()
    assert newest.st_mtime_ns == segments[-1].modified_ms * 1_000_000


def test_an_exported_directory_verifies(root: Root, tmp_path: Path) -> None:
    for name in ("txn", "multi", "delrec", "idem", "shapes"):
        root.take(GOLDEN / name / "data", name, configs=CONFIG)
    for keep_epochs in (False, True):
        exported = LogDirectory(root.export(tmp_path / f"exported-{keep_epochs}", keep_epochs))
        checked = check_directory(exported, exported.partitions, Options(deep=True), 2)
        assert len(checked.partitions) == 9
        assert problems(checked.all_findings()) == []


def test_the_snapshots_know_the_producers_whose_batches_retention_has_deleted(root: Root, tmp_path: Path) -> None:
    def transact() -> int | None:
        transaction = TransactionWriter(root.topics)
        transaction.append("t", root.records(120), 1)
        transaction.commit()
        return transaction.producer_id

    first = transact()
    chain = root.topics.chain("t")
    root.topics.alter("t", configs={"cleanup.policy": "delete", "retention.ms": "1"})
    retain_topic(chain, BrokerConfig(), now_ms=NOW_MS + 60_000)
    assert not chain.newest().partitions[1].segments
    for _ in range(5):
        transact()
    part = chain.newest().partitions[1]
    assert len(part.segments) > 1
    exported = LogDirectory(root.export(tmp_path / "exported"))
    snapshots = sorted((exported.path / "t-1").glob("*.snapshot"))
    known = [{each.producer_id for each in decode_snapshot(path.read_bytes(), path.name)} for path in snapshots]
    assert all(first in each for each in known)
    directories = [exported]
    if root.storage.view is not None:
        settle(root.topics)
        directories.append(LogDirectory(root.path / "log"))
    for each in directories:
        checked = check_directory(each, each.partitions, Options(deep=True), 2)
        assert problems(checked.all_findings()) == []


@pytest.mark.posix("an export copies the snapshots of the view")
def test_transactions_that_were_open_at_a_roll_are_known_there_behind_a_compaction_too(
    root: Root, tmp_path: Path
) -> None:
    root.take(GOLDEN / "txn" / "data", "txn", configs={**CONFIG, "cleanup.policy": "compact"})
    config = root.topics.config(root.topics.state("txn"))
    chain = root.topics.chain("txn")
    compact_topic(root.storage, chain, config, BrokerConfig(), root.topics.clock, force=True)
    exported = root.export(tmp_path / "exported")
    base = root.topics.state("txn").partitions[0].segments[-1].base_offset
    snapshot = f"txn-0/{base:020d}.snapshot"
    assert (exported / snapshot).read_bytes() == (GOLDEN / "txn" / "data" / snapshot).read_bytes()
    directory = LogDirectory(exported)
    assert problems(check_directory(directory, directory.partitions, Options(deep=True), 2).all_findings()) == []


def test_what_a_broker_goes_by_is_written_for_transactions_that_are_decided(root: Root, tmp_path: Path) -> None:
    for committed in (True, False):
        transaction = TransactionWriter(root.topics)
        transaction.append("t", root.records(10), 1)
        assert transaction.producer_id is not None
        decide(root.storage, root.topics.clock, transaction.producer_id, committed=committed)  # and then it dies
    still_open = TransactionWriter(root.topics)
    still_open.append("t", root.records(3), 1)
    exported = LogDirectory(root.export(tmp_path / "exported"))
    found = exported.inspect(exported.partitions[1])
    assert (found.state.high_watermark, found.state.last_stable_offset) == (25, 20)
    reader = exported.reader(found)
    batches = reader.read(0, None, Isolation.READ_COMMITTED)
    assert [offset for records in batches for offset in records["offset"].to_pylist()] == list(range(10))
    assert [path.stat().st_size for path in (tmp_path / "exported" / "t-1").glob("*.txnindex")] == [34]


def test_only_committed_bytes_go_out(root: Root, tmp_path: Path) -> None:
    state = root.topics.state("t")
    segment = state.partitions[0].segments[-1]
    stored = file_in(root.storage, data_key(state.topic_id, 0, segment.name))
    stored.write_bytes(stored.read_bytes() + b"published, not committed")
    exported = root.export(tmp_path / "exported")
    assert (exported / "t-0" / f"{segment.base_offset:020d}.log").stat().st_size == segment.size


def test_a_topic_that_is_not_there_leaves_no_directory(root: Root, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicError), new_directory(tmp_path / "exported") as folder:
        export_topics(root.topics, ["t", "absent"], folder)
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == set()


def test_damage_is_not_handed_out(root: Root, tmp_path: Path) -> None:
    state = root.topics.state("t")
    stored = file_in(root.storage, data_key(state.topic_id, 0, state.partitions[0].segments[1].name))
    data = bytearray(stored.read_bytes())
    data[100] ^= 1
    stored.write_bytes(data)
    with pytest.raises(CorruptionError, match=stored.name):
        root.export(tmp_path / "exported")
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == set()


def test_a_topic_whose_open_transaction_may_have_timed_out_is_not_handed_out(root: Root, tmp_path: Path) -> None:
    transaction = TransactionWriter(root.topics)
    transaction.append("t", root.records(3), 1)
    record = file_in(root.storage, f"meta/@transactions/{transaction.producer_id:020d}.begun.json")
    whole = record.read_bytes()
    record.write_bytes(whole[:-9])
    with pytest.raises(CorruptionError, match=record.name):
        root.export(tmp_path / "exported")
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == set()
    record.write_bytes(whole)
    exported = LogDirectory(root.export(tmp_path / "exported"))
    assert exported.inspect(exported.partitions[1]).state.high_watermark == 3


def test_an_empty_directory_is_filled_and_any_other_is_refused(root: Root, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    root.export(tmp_path / "empty")
    assert (tmp_path / "empty" / "t-0").is_dir()
    for taken in (tmp_path / "empty", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(AlreadyExistsError, match="already exists and is not an empty directory"):
            root.export(taken)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    root.export(tmp_path / "link")
    assert (tmp_path / "real" / "t-0").is_dir()


def test_a_directory_that_is_filled_meanwhile_is_refused(root: Root, tmp_path: Path) -> None:
    def export_too_late() -> None:
        with new_directory(tmp_path / "exported") as folder:
            export_topics(root.topics, ["t"], folder)
            (tmp_path / "exported").mkdir()
            (tmp_path / "exported" / "somebody's").touch()

    with pytest.raises(AlreadyExistsError):
        export_too_late()
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == {"exported"}
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["somebody's"]


def test_nothing_has_the_name_before_all_is_there(root: Root, tmp_path: Path) -> None:
    seen = []

    class Watched(PlainStorage):
        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            seen.append((tmp_path / "exported").exists())
            return super().read(key, start, length)

    topics = Topics(Watched(root.storage), BrokerConfig(), root.topics.clock)
    with new_directory(tmp_path / "exported") as folder:
        export_topics(topics, ["t"], folder)
        seen.append((tmp_path / "exported").exists())
    assert len(seen) > 5
    assert not any(seen)
    assert (tmp_path / "exported").exists()


def test_what_compaction_takes_away_meanwhile_is_taken_from_the_newest_state(root: Root, tmp_path: Path) -> None:
    class Compacting(PlainStorage):
        """Compacts, and deletes what was replaced, once the second segment is asked for."""

        done = False

        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if not self.done and state.partitions[0].segments[1].name in key:
                self.done = True
                chain = root.topics.chain("t")
                config = root.topics.config(state)
                compact_topic(root.storage, chain, config, BrokerConfig(), root.topics.clock, force=True)
                assert delete_dropped(root.storage, chain, config, root.topics.clock.now_ms())
            return super().read(key, start, length)

    state = root.topics.state("t")
    topics = Topics(Compacting(root.storage), BrokerConfig(), root.topics.clock)
    with new_directory(tmp_path / "exported") as folder:
        (exported,) = export_topics(topics, ["t"], folder)
    assert exported.version == state.version + 2
    bases = {int(path.stem) for path in (tmp_path / "exported" / "t-0").glob("*.log")}
    assert bases == {segment.base_offset for segment in exported.partitions[0].segments}
    assert (tmp_path / "exported" / "cleaner-offset-checkpoint").read_text().startswith("0\n1\nt 0 ")


def test_a_file_that_is_lost_is_reported(root: Root, tmp_path: Path) -> None:
    state = root.topics.state("t")
    file_in(root.storage, data_key(state.topic_id, 0, state.partitions[0].segments[1].name)).unlink()
    with pytest.raises(NotFoundError):
        root.export(tmp_path / "exported")


def test_a_full_disk_leaves_nothing(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, buffers: object, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(StorageError, match="No space left"):
        root.export(tmp_path / "exported")
    assert {path.name for path in tmp_path.iterdir()} - {"root"} == set()


def test_a_file_can_be_moved_into_a_storage_once(root: Root, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    storage = PosixStorage(tmp_path / "storage")
    storage.adopt(tmp_path / "file", "data/x")
    assert storage.read("data/x") == b"data"
    with pytest.raises(AlreadyExistsError):
        storage.adopt(tmp_path / "file", "data/x")
