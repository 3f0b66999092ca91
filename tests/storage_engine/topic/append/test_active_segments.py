"""Appends to a storage whose files cannot grow: each process continues the small active segment that another process
wrote, and copies no byte of it unchecked. Old files are deleted by later processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.log.filenames import data_key
from storage_engine.log.partition_state import Segment
from storage_engine.record.batch import scan_batches
from storage_engine.record.header import (
    BASE_OFFSET_POSITION,
    EPOCH_POSITION,
    HEADER_BYTES,
    LENGTH_POSITION,
    MAGIC_POSITION,
)
from storage_engine.storage import NewFile, Storage
from storage_engine.topic.append import new_files_publisher
from storage_engine.topic.append.appending import Append, Encoding, append_records, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import TopicWriter, take_over
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.storage_engine.topic.wrapped_storage import Interrupting, PlainStorage
from tests.stores import storage_at

START_MS = 1_700_000_000_000
DELAY_MS = 60_000
PARTITIONS = 40
REQUEST_SECONDS = 0.01


@dataclass
class Root:
    """A root on a storage that has only the verbs of an object store, with one topic."""

    storage: Storage
    topics: Topics
    clock: ManualClock

    @property
    def state(self) -> TopicState:
        return self.topics.state("t")

    def segments(self, partition: int = 0) -> tuple[Segment, ...]:
        return self.state.partitions[partition].segments

    def append(self, *values: int, partition: int | None = 0, through: Storage | None = None) -> TopicState:
        """Append in a new process: nothing of an earlier append is in memory."""
        topics = Topics(through or self.storage, self.topics.broker, self.clock)
        state = topics.state("t")
        table = to_table([row(value) for value in values])
        return append_records(
            topics.storage, topics.chain("t"), topics.config(state), self.clock, table, partition
        ).state

    def read(self, partition: int = 0) -> list[Row]:
        reader = PartitionReader(self.storage, self.topics.chain("t"), partition)
        return [each for records in reader.read(reader.partition.log_start_offset) for each in to_rows(records)]

    def files(self) -> set[str]:
        return {file.key for file in self.storage.list("data/")}

    def named_files(self, *segments: Segment) -> set[str]:
        suffixes = (".log", ".index", ".timeindex")
        return {data_key(self.state.topic_id, 0, each.name, suffix) for each in segments for suffix in suffixes}

    def bytes_of(self, partition: int = 0) -> list[dict[str, bytes]]:
        """The files of each segment of a partition."""
        stems = [data_key(self.state.topic_id, partition, each.name, "") for each in self.segments(partition)]
        return [
            {suffix: self.storage.read(stem + suffix) for suffix in (".log", ".index", ".timeindex")} for stem in stems
        ]

    def findings(self) -> Sequence[object]:
        return problems(check_root(self.topics, None, None, Options(deep=True), threads=1).findings)


def row(value: int) -> Row:
    return Row(b"k%d" % value, b"v%d " % value * 20, (), START_MS + value)


def root_in(folder: Path, partitions: int = 1, **configs: str) -> Root:
    storage, clock = PlainStorage(storage_at(folder)), ManualClock(START_MS)
    topics = Topics(storage, BrokerConfig(), clock)
    settings = {"index.interval.bytes": "100", **{key.replace("_", "."): value for key, value in configs.items()}}
    topics.create("t", partitions, settings)
    return Root(storage, topics, clock)


@pytest.fixture(autouse=True)
def segments_of_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run whose roots are in a store (tests.stores)."""
    monkeypatch.setattr(new_files_publisher, "_MOST_READ", new_files_publisher._MOST_CONTINUED)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return root_in(tmp_path)


def test_appends_by_many_processes_leave_the_bytes_that_one_process_leaves(tmp_path: Path) -> None:
    by_many, by_one = root_in(tmp_path / "many"), root_in(tmp_path / "one")
    chain = by_one.topics.chain("t")
    config = by_one.topics.config(chain.newest())
    writer = TopicWriter(by_one.storage, chain, config, by_one.clock, None)
    for first in range(0, 60, 6):
        by_many.append(*range(first, first + 6))
        with StagingWriter(by_one.storage, staging_folder(by_one.state.topic_id, 0)) as staging:
            table = to_table([row(value) for value in range(first, first + 6)])
            stage_records(staging, table, np.zeros(6, np.int32), Encoding.of(config, START_MS))
        writer.append(by_partition(staging.runs))
    writer.close()
    assert by_many.read() == [row(value) for value in range(60)]
    assert len(by_many.segments()) == 1
    assert by_many.bytes_of() == by_one.bytes_of()
    assert len(by_many.bytes_of()[0][".index"]) > 8, "the index has entries of several appends"
    (many,), (one,) = by_many.segments(), by_one.segments()
    assert many._replace(name="") == one._replace(name="")
    assert by_many.findings() == []


def test_an_ingest_that_starts_again_continues_the_segment(root: Root) -> None:
    root.append(1)
    for value in (2, 3):
        chain = root.topics.chain("t")
        epoch = take_over(chain, "query").writer.epoch
        writer = TopicWriter(root.storage, chain, root.topics.config(chain.newest()), root.clock, epoch)
        writer.prepare()
        with StagingWriter(root.storage, staging_folder(root.state.topic_id, 0)) as staging:
            stage_records(staging, to_table([row(value)]), np.zeros(1, np.int32), Encoding.of(writer.config, START_MS))
        writer.append(by_partition(staging.runs), is_state_fresh=True)
        writer.close()
    assert len(root.segments()) == 1
    assert root.read() == [row(value) for value in (1, 2, 3)]
    assert root.findings() == []


def test_the_markers_of_a_transaction_are_in_the_same_segment(root: Root) -> None:
    root.append(1)
    for value, ends in ((2, TransactionWriter.commit), (3, TransactionWriter.abort)):
        with TransactionWriter(root.topics) as transaction:
            transaction.append("t", to_table([row(value)]))
            ends(transaction)
    root.append(4)
    assert len(root.segments()) == 1
    assert [each[1:3] for each in root.segments()[0].aborted] == [(3, 4)]
    assert root.read() == [row(value) for value in (1, 2, 3, 4)]
    assert root.findings() == []


def test_a_segment_above_the_limit_is_not_written_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.append(*range(20))
    size = root.segments()[0].size
    monkeypatch.setattr(new_files_publisher, "_MOST_READ", size)
    root.append(20)
    root.append(21)
    assert [each.base_offset for each in root.segments()] == [0, 21]
    assert root.read() == [row(value) for value in range(22)]


@pytest.mark.parametrize("configs", [{"segment_ms": "10"}, {"segment_bytes": "1100"}], ids=str)
def test_a_segment_rolls_as_in_one_process(tmp_path: Path, configs: dict[str, str]) -> None:
    root = root_in(tmp_path, 1, **configs)
    for value in range(1, 16):
        root.append(value)
    assert 1 < len(root.segments()) < 10
    assert root.read() == [row(value) for value in range(1, 16)]


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a record": lambda data: flipped(data, HEADER_BYTES + 8),
    "the leader epoch": lambda data: flipped(data, EPOCH_POSITION + 3),
    "the base offset of the first batch": lambda data: flipped(data, BASE_OFFSET_POSITION + 7),
    "the base offset of the last batch": lambda data: flipped(data, last_batch(data) + BASE_OFFSET_POSITION + 7),
    "the magic": lambda data: flipped(data, MAGIC_POSITION),
    "the length": lambda data: flipped(data, LENGTH_POSITION + 3),
    "the end is missing": lambda data: data[:-1],
    "everything is missing": lambda data: b"",
    "other records": lambda data: data[last_batch(data) :] + data[: last_batch(data)],
}


def last_batch(data: bytes) -> int:
    return int(scan_batches(np.frombuffer(data, np.uint8), "log").positions[-1])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_not_copied(root: Root, damage: str) -> None:
    for value in range(3):
        root.append(value)
    (before,) = root.segments()
    key = data_key(root.state.topic_id, 0, before.name)
    whole = root.storage.read(key)
    root.storage.replace(key, DAMAGES[damage](whole))
    state = root.append(3)
    assert state.partitions[0].segments[:-1] == (before,), "the damaged segment remains as it is"
    assert before.name not in {each.name for each in state.dropped}
    root.storage.replace(key, whole)
    assert root.read() == [row(value) for value in range(4)]


def test_an_append_after_a_segment_whose_file_is_gone_begins_a_segment(root: Root) -> None:
    root.append(0)
    (before,) = root.segments()
    root.storage.delete(data_key(root.state.topic_id, 0, before.name))
    assert [each.base_offset for each in root.append(1).partitions[0].segments] == [0, 1]


def test_a_segment_with_other_facts_than_the_state_is_not_continued(root: Root) -> None:
    """Such as an imported segment that begins with a record without a timestamp."""
    root.append(0)
    chain = root.topics.chain("t")

    def change(state: TopicState) -> TopicState:
        part = state.partitions[0]
        other = part.segments[0]._replace(largest_timestamp=START_MS + 5)
        return state.with_partitions({0: part.model_copy(update={"segments": (other,)})})

    chain.commit(change, "test")
    assert [each.base_offset for each in root.append(1).partitions[0].segments] == [0, 1]


def test_two_processes_that_continue_the_same_segment_lose_nothing(root: Root) -> None:
    """The other process commits when this one has written its files: its put fails, and it continues the other's file."""
    root.append(1)
    root.append(3, through=Interrupting(root.storage, lambda: root.append(2)))
    assert root.read() == [row(value) for value in (1, 2, 3)]
    assert len(root.segments()) == 1
    assert root.findings() == []


def test_an_append_during_the_staging_of_another_is_continued(root: Root) -> None:
    root.append(1)
    chain = root.topics.chain("t")
    with Append(root.storage, chain, root.topics.config(chain.newest()), root.clock, 0) as append:
        append.stage(to_table([row(3)]))
        root.append(2)
        append.commit()
    assert root.read() == [row(value) for value in (1, 2, 3)]
    assert len(root.segments()) == 1


def test_old_files_wait_for_their_delay_and_go_with_later_appends(root: Root) -> None:
    root.append(0)
    first = root.segments()
    root.append(1)
    second = root.segments()
    root.clock.advance(DELAY_MS - 1)
    root.append(2)
    third = root.segments()
    assert root.files() == root.named_files(*first, *second, *third), "readers may still use them"
    root.clock.advance(1)
    root.append(3)
    fourth = root.segments()
    assert root.files() == root.named_files(*first, *second, *third, *fourth), "at the last commit it was too early"
    root.append(4)
    assert root.files() == root.named_files(*second, *third, *fourth, *root.segments())
    assert [each.name for each in root.state.dropped][-3:] == [second[0].name, third[0].name, fourth[0].name]
    root.clock.advance(DELAY_MS)
    root.append(5)
    root.append(6)
    assert len(root.files()) == 3 * 3
    assert root.read() == [row(value) for value in range(7)]


def test_files_and_states_of_a_day_of_single_appends_stay_few(root: Root) -> None:
    most_files = most_dropped = 0
    for value in range(150):
        root.clock.advance(10_000)
        state = root.append(value)
        most_files, most_dropped = max(most_files, len(root.files())), max(most_dropped, len(state.dropped))
    assert most_files <= 3 * 10
    assert most_dropped <= 10
    assert len(root.segments()) == 1
    assert root.read() == [row(value) for value in range(150)]


class Slow(PlainStorage):
    """A storage on which each put and each deletion of a file of a segment takes equally long."""

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        time.sleep(REQUEST_SECONDS)
        return super().new_file(key, durable=durable)

    def delete(self, key: str) -> None:
        time.sleep(REQUEST_SECONDS)
        super().delete(key)


def test_single_appends_to_many_partitions_leave_no_more_old_files_than_the_last_appends_replaced(
    tmp_path: Path,
) -> None:
    root = root_in(tmp_path, partitions=PARTITIONS, file_delete_delay_ms="0")
    slow = Slow(root.storage)
    for _ in range(8):
        state = root.append(*range(8 * PARTITIONS), partition=None, through=slow)
        assert len(state.dropped) <= 2 * PARTITIONS
    assert sum(len(part.segments) for part in state.partitions) == PARTITIONS


@pytest.mark.posix("appends to a file")
def test_where_files_can_grow_appends_delete_nothing(tmp_path: Path) -> None:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(START_MS))
    topics.create("t", 1, {})
    root = Root(topics.storage, topics, ManualClock(START_MS))
    for value in range(3):
        root.append(value)
    assert [each.base_offset for each in root.segments()] == [0, 1, 2]
    assert root.state.dropped == ()
