"""Retention, compaction and deletion beside writers, readers and other cleaners, and after crashes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from storage_engine.cleaner.cleaner import CleanedPartition, CleaningTask
from storage_engine.cleaner.replacement import Replacement
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import StorageError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import data_key
from storage_engine.log.leader_epochs import cut_start
from storage_engine.log.partition_state import LeaderEpoch, PartitionState
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Encoding, append_records, stage_records
from storage_engine.topic.append.staged_run import StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import TopicWriter, take_over
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import ChangeNote, DroppedFile, TopicState
from storage_engine.topic.clean.state_swap import Failure
from storage_engine.topic.clean.topic_compaction import (
    CompactionResult,
    cleaning_tasks,
    compact_topic,
    run_cleaning_task,
    swap_cleaned,
)
from storage_engine.topic.clean.topic_merging import MergeResult, merge_tasks, merge_topic, run_merge_task, swap_merged
from storage_engine.topic.clean.topic_retention import RetentionResult, delete_records, retain_topic
from storage_engine.topic.dropped_files import delete_dropped
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from storage_engine.verify.directory.directory_check import check_directory
from storage_engine.verify.findings import problems
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.storage_engine.topic.wrapped_storage import FailedPuts, Interrupting, PlainStorage
from tests.stores import storage_at

START = 1_700_000_000_000
BROKER = BrokerConfig()


class Log:
    """A topic on a storage, seen through chains of its own; each append is a segment."""

    def __init__(self, storage: Storage, partitions: int = 1, **configs: str) -> None:
        self.storage = storage
        self.clock = ManualClock(START)
        self.topics = Topics(storage, BROKER, self.clock)
        self.topics.create("t", partitions, {key.replace("_", "."): value for key, value in configs.items()})
        self.chain = self.topics.chain("t")

    @property
    def state(self) -> TopicState:
        return self.chain.newest()

    @property
    def part(self) -> PartitionState:
        return self.state.partitions[0]

    @property
    def config(self) -> TopicConfig:
        return self.topics.config(self.state)

    def append(self, *values: str, partition: int = 0) -> None:
        rows = [row(value, self.clock.now_ms()) for value in values]
        append_records(self.storage, self.topics.chain("t"), self.config, self.clock, to_table(rows), partition)

    def retain(self) -> RetentionResult:
        return retain_topic(self.topics.chain("t"), BROKER)

    def tasks(self) -> list[CleaningTask]:
        return cleaning_tasks(self.storage, self.state, self.config, BROKER, self.clock.now_ms(), force=True)

    def clean(self) -> list[CleanedPartition | Failure]:
        return [run_cleaning_task(self.storage, task) for task in self.tasks()]

    def compact(self) -> CompactionResult:
        return compact_topic(self.storage, self.topics.chain("t"), self.config, BROKER, self.clock, force=True)

    def merged(self) -> list[Replacement | Failure]:
        return [run_merge_task(self.storage, task) for task in merge_tasks(self.state, self.config)]

    def merge(self) -> MergeResult:
        return merge_topic(self.storage, self.topics.chain("t"), self.config)

    def delete_dropped(self) -> tuple[DroppedFile, ...]:
        return delete_dropped(self.storage, self.topics.chain("t"), self.config, self.clock.now_ms())

    def reader(self, partition: int = 0) -> PartitionReader:
        return PartitionReader(self.storage, self.topics.chain("t"), partition)

    def values(self, partition: int = 0) -> list[str]:
        reader = self.reader(partition)
        return read(reader, reader.partition.log_start_offset)

    def files(self) -> set[str]:
        """Names of the segments that have a .log on storage."""
        keys = (file.key for file in self.storage.list("data/") if file.key.endswith(".log"))
        return {key.rsplit("/", 1)[1].removesuffix(".log") for key in keys}

    def named(self) -> set[str]:
        return {segment.name for part in self.state.partitions for segment in part.segments}


def row(value: str, timestamp: int = START) -> Row:
    """A value `a1` has the key `a`."""
    return Row(value[0].encode(), value.encode(), (), timestamp)


def read(reader: PartitionReader, offset: int) -> list[str]:
    return [(row.value or b"").decode() for records in reader.read(offset) for row in to_rows(records)]


@pytest.fixture
def storage(tmp_path) -> Storage:
    return storage_at(tmp_path)


@pytest.fixture
def compacted(storage) -> Log:
    """Partition 0: a1 b1 | a2 c1 | d1, the last one active."""
    log = Log(storage, cleanup_policy="compact")
    log.append("a1", "b1")
    log.append("a2", "c1")
    log.append("d1")
    return log


@pytest.fixture
def aging(storage) -> Log:
    """Partition 0: a1 b1 | c1 d1, then 100 ms, | e1; retention.ms is 50."""
    log = Log(storage, retention_ms="50")
    log.append("a1", "b1")
    log.append("c1", "d1")
    log.clock.advance(100)
    log.append("e1")
    return log


def test_retention_moves_the_start_and_drops_segments_in_one_version(aging) -> None:
    version = aging.state.version
    result = aging.retain()
    assert result.changed
    assert result.state.version == version + 1
    assert (aging.part.log_start_offset, aging.part.high_watermark) == (4, 5)
    assert aging.values() == ["e1"]
    assert len(aging.state.dropped) == 2
    assert aging.part.leader_epochs == (LeaderEpoch(0, 4),)


def test_retention_with_nothing_to_do_writes_no_version(aging) -> None:
    aging.retain()
    version = aging.state.version
    assert not aging.retain().changed
    assert aging.state.version == version


def test_a_partition_that_lost_everything_goes_on_at_its_end(aging) -> None:
    aging.clock.advance(100)
    aging.retain()
    assert (aging.part.segments, aging.part.log_start_offset, aging.part.high_watermark) == ((), 5, 5)
    assert aging.values() == []
    aging.append("f1")
    assert aging.values() == ["f1"]
    assert aging.part.high_watermark == 6


def test_a_writer_whose_active_segment_was_dropped_rolls(storage) -> None:
    log = Log(storage, retention_ms="50")
    chain = log.topics.chain("t")
    epoch = take_over(chain, "q").writer.epoch
    writer = TopicWriter(storage, chain, log.config, log.clock, epoch)

    def batch(value: str) -> None:
        with StagingWriter(storage, "staging/t/") as staging:
            table = to_table([row(value, log.clock.now_ms())])
            stage_records(staging, table, np.zeros(1, np.int32), Encoding.of(log.config, log.clock.now_ms()))
        writer.append(by_partition(staging.runs))

    batch("a1")
    log.clock.advance(100)
    log.retain()
    batch("b1")
    batch("c1")
    assert log.values() == ["b1", "c1"]
    assert [segment.base_offset for segment in log.part.segments] == [1]


def test_retention_decides_again_when_the_log_has_moved_on(storage, aging) -> None:
    late = Interrupting(storage, before_put=lambda: aging.append("f1"))
    result = retain_topic(StateChain(late, "t", aging.clock), BROKER)
    assert result.changed
    assert aging.values() == ["e1", "f1"]


def test_advancing_the_start_keeps_the_epoch_that_holds_there() -> None:
    epochs = LeaderEpoch(1, 0), LeaderEpoch(3, 10), LeaderEpoch(4, 20)
    assert cut_start(epochs, 0) == epochs
    assert cut_start(epochs, 5) == (LeaderEpoch(1, 5), LeaderEpoch(3, 10), LeaderEpoch(4, 20))
    assert cut_start(epochs, 10) == (LeaderEpoch(3, 10), LeaderEpoch(4, 20))
    assert cut_start(epochs, 99) == (LeaderEpoch(4, 99),)
    assert cut_start((), 99) == ()


def test_compaction_changes_no_other_partition_and_takes_one_version(storage) -> None:
    log = Log(storage, partitions=3, cleanup_policy="compact")
    for partition in (0, 1):
        log.append("a1", "a2", partition=partition)
        log.append("b1", partition=partition)
    log.append("a1", "a2", partition=2)
    version = log.state.version
    result = log.compact()
    assert [each.partition for each in result.cleaned] == [0, 1]
    assert log.state.version == version + 1
    assert [log.values(partition) for partition in range(3)] == [["a2", "b1"], ["a2", "b1"], ["a1", "a2"]]


def test_a_compaction_drops_an_aborted_transaction_below_the_log_start_as_kafka_does(tmp_path) -> None:
    log = Log(storage_at(tmp_path), cleanup_policy="compact", segment_bytes="1024")
    transaction = TransactionWriter(log.topics)
    transaction.append("t", to_table([row(f"{key}1") for key in "abc"]))
    transaction.abort()
    log.append("z1")
    log.append("y" + 900 * "1")
    delete_records(log.chain, 0, 4)
    log.compact()
    assert log.part.segments[0].aborted == ()
    assert problems(check_root(log.topics, None, None, Options(deep=True), 1).findings) == []
    if log.storage.view is not None:
        settle(log.topics)
        directory = LogDirectory(tmp_path / "log")
        found = check_directory(directory, directory.partitions, Options(deep=True), 1)
        assert problems(found.all_findings()) == []


def test_a_topic_that_is_not_compacted_is_left_alone(storage) -> None:
    log = Log(storage)
    log.append("a1", "a2")
    log.append("b1")
    assert log.compact().cleaned == ()
    assert log.values() == ["a1", "a2", "b1"]


def test_a_crash_before_the_swap_leaves_the_log_as_it_was(compacted) -> None:
    state, before = compacted.state, compacted.values()
    outcomes = compacted.clean()
    assert compacted.state == state
    assert compacted.values() == before
    assert len(compacted.files()) == len(compacted.named()) + 1  # one that nobody reads
    swap_cleaned(compacted.storage, compacted.chain, outcomes)
    assert compacted.values() == ["b1", "a2", "c1", "d1"]


def test_an_append_between_cleaning_and_swap_stays(compacted) -> None:
    outcomes = compacted.clean()
    compacted.append("e1")
    result = swap_cleaned(compacted.storage, compacted.chain, outcomes)
    assert len(result.cleaned) == 1
    assert compacted.values() == ["b1", "a2", "c1", "d1", "e1"]


def test_a_swap_is_refused_where_retention_took_a_segment_meanwhile(storage) -> None:
    log = Log(storage, partitions=2, cleanup_policy="compact,delete", retention_ms="50")
    log.append("a1", "b1")
    log.append("a1", "a2", partition=1)
    log.clock.advance(100)
    log.append("a2", "c1")
    log.append("d1")
    log.append("b1", partition=1)
    log.topics.alter("t", configs={"retention.ms": "99"})
    tasks = [task for task in log.tasks() if task.partition == 0]
    outcomes = [run_cleaning_task(storage, task) for task in tasks]
    log.retain()
    before = log.state

    result = swap_cleaned(storage, log.chain, outcomes)

    assert (result.cleaned, len(result.changed_meanwhile)) == ((), 1)
    assert log.state == before
    assert log.values() == ["a2", "c1", "d1"]
    assert log.files() == log.named() | {each.name for each in before.dropped}  # the work was thrown away


def test_two_compactions_at_once_end_as_one(compacted) -> None:
    first, second = compacted.clean(), compacted.clean()
    assert swap_cleaned(compacted.storage, compacted.chain, first).cleaned
    assert swap_cleaned(compacted.storage, compacted.topics.chain("t"), second).changed_meanwhile
    assert compacted.values() == ["b1", "a2", "c1", "d1"]


def test_a_swap_that_lost_the_race_for_its_version_tries_again(storage, compacted) -> None:
    outcomes = compacted.clean()
    late = Interrupting(storage, before_put=lambda: compacted.append("e1"))
    result = swap_cleaned(late, StateChain(late, "t", compacted.clock), outcomes)
    assert result.cleaned
    assert compacted.values() == ["b1", "a2", "c1", "d1", "e1"]


def test_a_topic_created_again_takes_nothing_of_the_old_one(compacted) -> None:
    outcomes = compacted.clean()
    compacted.topics.delete("t")
    compacted.topics.create("t", 1, {})
    assert swap_cleaned(compacted.storage, compacted.chain, outcomes).changed_meanwhile
    assert compacted.values() == []


def test_a_swap_of_which_nobody_knows_whether_it_took_place_deletes_nothing(storage, compacted) -> None:
    outcomes = compacted.clean()
    files = compacted.files()
    lost = FailedPuts(storage, StorageError("a version", "no reply"))
    with pytest.raises(StorageError):
        swap_cleaned(lost, StateChain(lost, "t", compacted.clock), outcomes)
    assert compacted.files() == files
    assert compacted.values() == ["a1", "b1", "a2", "c1", "d1"]


def test_a_reader_of_the_old_state_reads_on_and_later_finds_its_way(compacted) -> None:
    reader = compacted.reader()
    compacted.compact()
    assert read(reader, 0) == ["a1", "b1", "a2", "c1", "d1"]
    compacted.clock.advance(60_000)
    assert len(compacted.delete_dropped()) == 2
    assert read(reader, 0) == ["b1", "a2", "c1", "d1"]


def test_a_reader_in_the_middle_of_a_segment_that_goes_misses_and_repeats_nothing(compacted) -> None:
    reading = compacted.reader().read(0)
    seen = to_rows(next(reading))
    compacted.compact()
    compacted.clock.advance(60_000)
    compacted.delete_dropped()
    seen += [row for records in reading for row in to_rows(records)]
    assert [row.value for row in seen] == [b"a1", b"b1", b"a2", b"c1", b"d1"]


def test_dropped_files_go_after_their_delay_and_no_others(compacted) -> None:
    compacted.compact()
    assert compacted.delete_dropped() == ()
    compacted.clock.advance(59_999)
    assert compacted.delete_dropped() == ()
    compacted.clock.advance(1)
    assert len(compacted.delete_dropped()) == 2
    assert compacted.state.dropped == ()
    assert compacted.files() == compacted.named()
    assert compacted.values() == ["b1", "a2", "c1", "d1"]


def test_a_deletion_that_died_before_its_version_is_done_again(storage, compacted) -> None:
    compacted.compact()
    compacted.clock.advance(60_000)
    lost = FailedPuts(storage, StorageError("a version", "no reply"))
    with pytest.raises(StorageError):
        delete_dropped(lost, StateChain(lost, "t", compacted.clock), compacted.config, compacted.clock.now_ms())
    assert compacted.files() == compacted.named()
    assert len(compacted.delete_dropped()) == 2
    assert compacted.state.dropped == ()


def test_the_files_of_a_deleted_topic_go(compacted) -> None:
    compacted.topics.delete("t")
    assert list(compacted.topics.names()) == []
    assert list(compacted.topics.names(with_deleted=True)) == ["t"]
    assert not compacted.retain().changed
    assert compacted.tasks() == []
    compacted.clock.advance(60_000)
    compacted.delete_dropped()
    assert compacted.files() == set()


@pytest.fixture
def scattered(storage) -> Log:
    """Two partitions with a segment for each value: a1 | b1 | c1 | d1, the last one active."""
    log = Log(storage, partitions=2)
    for value in ("a1", "b1", "c1", "d1"):
        log.append(value)
        log.append(value, partition=1)
    return log


def sizes(log: Log) -> list[int]:
    return [len(part.segments) for part in log.state.partitions]


def test_merging_names_the_new_segments_of_all_partitions_in_one_version(scattered) -> None:
    before = scattered.state
    result = scattered.merge()
    assert [each.partition for each in result.cleaned] == [0, 1]
    assert scattered.state.version == before.version + 1
    assert sizes(scattered) == [2, 2]
    assert [scattered.values(partition) for partition in range(2)] == [["a1", "b1", "c1", "d1"]] * 2
    old = {segment.name for part in before.partitions for segment in part.segments[:-1]}
    assert {each.name for each in scattered.state.dropped} == old
    assert (scattered.merge().cleaned, scattered.state.version) == ((), before.version + 1)


def test_several_runs_of_one_partition_are_merged_at_once(storage) -> None:
    log = Log(storage, segment_bytes="1024")
    for number in range(9):
        log.append(str(number) * 250)
    assert len(log.merge().cleaned) == 3
    assert [segment.base_offset for segment in log.part.segments] == [0, 3, 6, 8]
    assert log.values() == [str(number) * 250 for number in range(9)]


def test_a_run_of_which_a_segment_was_dropped_meanwhile_is_thrown_away_and_the_others_are_not(storage) -> None:
    log = Log(storage, partitions=2)
    for value in ("a1", "b1"):
        log.append(value)
    log.clock.advance(100)
    for value in ("a1", "b1", "c1"):
        log.append(value, partition=1)
    log.append("c1")
    outcomes = log.merged()
    log.topics.alter("t", configs={"retention.ms": "50"})
    log.retain()

    result = swap_merged(storage, log.chain, outcomes)

    assert ([each.partition for each in result.changed_meanwhile], [each.partition for each in result.cleaned]) == (
        [0],
        [1],
    )
    assert [log.values(partition) for partition in range(2)] == [["c1"], ["a1", "b1", "c1"]]
    assert log.files() == log.named() | {each.name for each in log.state.dropped}


def test_an_append_beside_a_merge_stays_and_the_writer_goes_on_in_its_file(storage) -> None:
    log = Log(storage)
    chain = log.topics.chain("t")
    writer = TopicWriter(storage, chain, log.config, log.clock, take_over(chain, "q").writer.epoch)

    def batch(value: str) -> None:
        with StagingWriter(storage, "staging/t/") as staging:
            table = to_table([row(value, log.clock.now_ms())])
            stage_records(staging, table, np.zeros(1, np.int32), Encoding.of(log.config, log.clock.now_ms()))
        writer.append(by_partition(staging.runs))

    log.append("a1")
    log.append("b1")
    batch("c1")
    outcomes = log.merged()
    batch("d1")
    late = Interrupting(storage, before_put=lambda: batch("e1"))
    assert swap_merged(late, StateChain(late, "t", log.clock), outcomes).cleaned
    batch("f1")
    assert log.values() == ["a1", "b1", "c1", "d1", "e1", "f1"]
    assert [segment.base_offset for segment in log.part.segments] == [0, 2]


def before_it_was_compacted(log: Log) -> TopicConfig:
    return replace(log.config, cleanup_policy=frozenset({"delete"}))


def test_a_compaction_and_a_merge_of_the_same_segments_end_as_one(compacted) -> None:
    tasks = merge_tasks(compacted.state, before_it_was_compacted(compacted))
    merged, cleaned = [run_merge_task(compacted.storage, task) for task in tasks], compacted.clean()
    assert swap_cleaned(compacted.storage, compacted.chain, cleaned).cleaned
    assert swap_merged(compacted.storage, compacted.chain, merged).changed_meanwhile
    assert compacted.values() == ["b1", "a2", "c1", "d1"]
    assert compacted.part.first_dirty_offset == 4


def test_what_was_merged_is_compacted_like_its_parts(compacted) -> None:
    assert merge_topic(compacted.storage, compacted.chain, before_it_was_compacted(compacted)).cleaned
    assert compacted.part.first_dirty_offset is None
    compacted.compact()
    assert compacted.values() == ["b1", "a2", "c1", "d1"]


def test_a_merge_of_which_nobody_knows_whether_it_took_place_deletes_nothing(storage, scattered) -> None:
    outcomes = scattered.merged()
    files = scattered.files()
    lost = FailedPuts(storage, StorageError("a version", "no reply"))
    with pytest.raises(StorageError):
        swap_merged(lost, StateChain(lost, "t", scattered.clock), outcomes)
    assert scattered.files() == files
    assert scattered.values() == ["a1", "b1", "c1", "d1"]


def test_a_partition_of_which_it_cannot_be_decided_stops_no_other(storage) -> None:
    log = Log(storage, 2, cleanup_policy="compact", max_compaction_lag_ms="1", min_cleanable_dirty_ratio="1")
    for number in (0, 1):
        for value in ("a1", "a2", "a3"):
            log.append(value, partition=number)

    def as_imported(state: TopicState) -> TopicState:
        """The first timestamps of segments that a broker wrote are not known: the first batch has to be read."""
        parts = {
            number: part.model_copy(
                update={"segments": tuple(each._replace(first_timestamp=None) for each in part.segments)}
            )
            for number, part in enumerate(state.partitions)
        }
        return state.with_partitions(parts)

    log.chain.commit(as_imported, lambda: ChangeNote("import"))
    storage.delete(data_key(log.state.topic_id, 0, log.part.segments[0].name))
    log.clock.advance(1000)
    done = compact_topic(storage, log.chain, log.config, BROKER, log.clock)
    assert [failure.partition for failure in done.failed] == [0]
    assert [each.partition for each in done.cleaned] == [1]
    assert log.values(1) == ["a2", "a3"]


def test_a_damaged_run_stops_no_other(storage, scattered) -> None:
    state = scattered.state
    damaged = data_key(state.topic_id, 0, state.partitions[0].segments[1].name)
    data = bytearray(storage.read(damaged))
    data[-1] ^= 1
    storage.replace(damaged, data)
    result = scattered.merge()
    assert [each.partition for each in result.cleaned] == [1]
    assert [damaged in str(failure) for failure in result.failed] == [True]
    assert sizes(scattered) == [4, 2]


def test_a_reader_in_the_middle_of_a_run_reads_on_in_the_merged_segment(scattered) -> None:
    reading = scattered.reader().read(0)
    seen = to_rows(next(reading))
    scattered.merge()
    scattered.clock.advance(60_000)
    assert len(scattered.delete_dropped()) == 6
    seen += [row for records in reading for row in to_rows(records)]
    assert [row.value for row in seen] == [b"a1", b"b1", b"c1", b"d1"]


def test_merging_needs_nothing_but_the_plain_verbs(storage) -> None:
    log = Log(storage)
    log.append("a1")
    log.append("b1")
    log.append("c1")
    plain = PlainStorage(storage)
    assert merge_topic(plain, StateChain(plain, "t", log.clock), log.config).cleaned
    assert log.values() == ["a1", "b1", "c1"]


def test_a_long_list_of_segments_survives_a_swap_and_a_cold_start(storage) -> None:
    log = Log(storage, cleanup_policy="compact")
    for number in range(70):
        log.append(f"a{number}", f"{chr(200 + number)}")
    assert log.part.listed is not None
    log.compact()
    fresh = log.topics.chain("t").newest()
    assert len(fresh.partitions[0].segments) == 2
    assert len(log.values()) == 72
    log.append("z1")
    assert len(log.values()) == 73
