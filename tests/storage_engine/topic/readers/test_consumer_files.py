"""Registered consumers: their files, and their effect on retention, delete-records and history."""

from __future__ import annotations

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import UnknownConsumerError
from storage_engine.log.holds import Holds
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.chain.history_file import VersionChange
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.topic_state import Removal, TopicState
from storage_engine.topic.clean.topic_compaction import CompactionResult, cleaning_tasks, compact_topic
from storage_engine.topic.clean.topic_retention import HIGH_WATERMARK, RetentionResult, delete_records, retain_topic
from storage_engine.topic.readers.consumer_files import Consumers, forget, group_folder, put_positions, read_consumers
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.stores import local, storage_at

START = 1_700_000_000_000
DAY = 86_400_000
NAME = "export tables/orders"


class Log:
    """Topic t of one partition; each append is a segment of two records."""

    def __init__(self, storage: Storage, **configs: str) -> None:
        self.storage = storage
        self.clock = ManualClock(START)
        self.topics = Topics(storage, BrokerConfig(), self.clock)
        self.topics.create("t", 1, {key.replace("_", "."): value for key, value in configs.items()})
        self.chain = self.topics.chain("t")

    @property
    def state(self) -> TopicState:
        return self.chain.newest()

    def append(self, *records: tuple[bytes, bytes | None]) -> None:
        rows = [Row(key, value, (), self.clock.now_ms()) for key, value in records or ((b"k", b"a"), (b"k", b"b"))]
        append_records(
            self.storage, self.topics.chain("t"), self.topics.config(self.state), self.clock, to_table(rows), 0
        )

    def reads(self, name: str = NAME, **positions: int) -> None:
        offsets = {int(key[1:]): offset for key, offset in positions.items()}
        put_positions(self.storage, self.state, name, "delta export", offsets, self.clock.now_ms(), holds_back=True)

    def consumers(self) -> Consumers:
        return read_consumers(self.storage, self.state)

    def retain(self) -> RetentionResult:
        return retain_topic(self.topics.chain("t"), BrokerConfig())

    def history(self) -> list[VersionChange]:
        return list(HistoryReader(self.storage, self.topics.chain("t")).changes(0, self.state.version))

    def compact(self) -> CompactionResult:
        """With something new each time, or there would be nothing to do."""
        self.clock.advance(10)
        self.append((b"z", b"z"))
        return compact_topic(
            self.storage, self.topics.chain("t"), self.topics.config(self.state), BrokerConfig(), self.clock, force=True
        )

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """What is read of it, keys and values."""
        reader = PartitionReader(self.storage, self.topics.chain("t"), 0)
        return [(row.key, row.value) for records in reader.read(0) for row in to_rows(records)]

    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.state.partitions[0].segments]


@pytest.fixture
def storage(tmp_path) -> Storage:
    return storage_at(tmp_path)


@pytest.fixture
def log(storage) -> Log:
    """Two segments a week old and one of now, retention of a day that respects consumers for two more."""
    log = Log(
        storage, retention_ms=str(DAY), retention_respect_consumers="true", consumer_max_hold_ms=str(2 * DAY),
        segment_ms="1",
    )  # fmt: skip
    for _ in range(2):
        log.append()
        log.clock.advance(10)
    log.clock.advance(2 * DAY)
    log.append()
    assert log.bases() == [0, 2, 4]
    return log


def test_a_consumer_registers_advances_and_goes_back(log: Log) -> None:
    log.reads()
    assert log.consumers().holds(0) == Holds({NAME: 0})
    log.clock.advance(5)
    log.reads(p0=4)
    (consumer,) = log.consumers().known
    assert consumer.positions == {0: 4}
    assert consumer.updated_ms == consumer.registered_ms + 5
    log.reads(p0=2)
    assert log.consumers().holds(0) == Holds({NAME: 2})
    assert log.consumers().holds(1) == Holds({NAME: 0})


def test_a_position_that_is_on_record_is_not_written_again(log: Log) -> None:
    log.reads(p0=4)
    (before,) = log.storage.list(group_folder("t"))
    log.clock.advance(5)
    log.reads(p0=4)
    (after,) = log.storage.list(group_folder("t"))
    assert after == before
    assert log.consumers().known[0].updated_ms == log.clock.now_ms() - 5


def test_names_that_look_alike_are_two_consumers(log: Log) -> None:
    for name in ("a/b", "a-b", "x" * 300, "x" * 301):
        log.reads(name, p0=1)
    assert {each.name for each in log.consumers().known} == {"a/b", "a-b", "x" * 300, "x" * 301}


def test_a_former_topic_of_the_name_has_its_consumers_to_itself(log: Log) -> None:
    log.reads(p0=3)
    log.topics.delete("t")
    log.topics.create("t", 1, {})
    assert log.consumers() == Consumers()
    log.reads(p0=1)
    assert log.consumers().holds(0) == Holds({NAME: 1})


def test_a_consumer_is_forgotten_once(log: Log) -> None:
    log.reads(p0=3)
    forget(log.storage, "t", NAME)
    assert log.consumers() == Consumers()
    with pytest.raises(UnknownConsumerError, match="has no consumer 'export tables/orders'"):
        forget(log.storage, "t", NAME)


def test_retention_waits_for_a_consumer_and_says_so(log: Log) -> None:
    log.reads(p0=3)
    result = log.retain()
    assert log.bases() == [2, 4]
    (warning,) = result.warnings
    size = log.state.partitions[0].segments[0].size
    assert warning.startswith(f"topic t, partition 0: {NAME}, at offset 3, holds back 1 segment, {size} B, until ")
    log.reads(p0=4)
    assert log.retain().warnings == ()
    assert log.bases() == [4]


def test_retention_waits_no_longer_than_it_may_and_names_who_missed_it(log: Log) -> None:
    log.reads(p0=1)
    log.retain()
    assert log.bases() == [0, 2, 4]
    log.clock.advance(DAY)
    result = log.retain()
    assert log.bases() == [4]
    assert result.warnings == (
        f"topic t, partition 0: retention by time deleted offsets below 4 that {NAME} had not read",
    )
    assert log.history()[-1].removed[0].unread_by == (NAME,)


def test_the_log_start_waits_for_a_consumer_whose_next_records_were_superseded(storage) -> None:
    log = Log(
        storage, cleanup_policy="compact,delete", retention_bytes="0", retention_respect_consumers="true",
        consumer_max_hold_ms=str(DAY), segment_bytes="1024",
    )  # fmt: skip
    value = b"." * 400  # so that two records are a segment, and compaction makes one of none
    for key in (b"a", b"b", b"b"):
        log.append((key, value), (key, value))
    log.reads(p0=2)  # goes on at offset 2, in a segment of which compaction leaves nothing
    log.compact()
    assert [key for key, _ in log.records()] == [b"a", b"b", b"z"]

    (warning,) = log.retain().warnings
    assert NAME in warning
    assert log.state.partitions[0].log_start_offset == 2

    log.reads(p0=7)
    assert log.retain().warnings == ()
    assert log.state.partitions[0].log_start_offset == 7


def test_a_topic_that_does_not_respect_consumers_names_who_missed_it(log: Log) -> None:
    log.reads(p0=1)
    log.topics.alter("t", configs={"retention.respect.consumers": "false"})
    assert log.retain().warnings == (
        f"topic t, partition 0: retention by time deleted offsets below 4 that {NAME} had not read",
    )


def test_a_damaged_file_holds_back_all_and_is_named_and_mended_by_its_owner(log: Log) -> None:
    log.reads(p0=6)
    (file,) = log.storage.list(group_folder("t"))
    for damage in (b"", b"{}", b"\xff", log.storage.read(file.key)[:-9]):
        log.storage.replace(file.key, damage)
        (warning,) = log.retain().warnings
        assert f"the damaged file {file.key}, at offset 0, holds back 2 segments" in warning
        assert log.bases() == [0, 2, 4]
    log.reads(p0=6)
    assert log.retain().warnings == ()
    assert log.bases() == [4]


@pytest.mark.posix("makes a folder")
def test_a_folder_in_the_place_of_a_consumers_file_holds_back_all(log: Log) -> None:
    log.reads(p0=6)
    (file,) = log.storage.list(group_folder("t"))
    log.storage.delete(file.key)
    folder = local(log.storage).path(file.key)
    folder.mkdir()
    (warning,) = log.retain().warnings
    assert f"the damaged file {file.key}, at offset 0, holds back 2 segments" in warning
    assert log.bases() == [0, 2, 4]
    folder.rmdir()
    log.reads(p0=6)
    assert (log.retain().warnings, log.bases()) == ((), [4])


def test_a_damaged_file_can_be_forgotten_by_its_path(log: Log) -> None:
    log.storage.put_new(f"{group_folder('t')}what.json", b"?")
    forget(log.storage, "t", f"{group_folder('t')}what.json")
    assert log.consumers() == Consumers()


def test_history_tells_what_retention_took_by_rule_and_only_once(log: Log) -> None:
    sizes = [segment.size for segment in log.state.partitions[0].segments]
    delete_records(log.topics.chain("t"), 0, 2)
    log.retain()
    log.append()
    deleted, retained, appended = log.history()[-3:]
    assert deleted.removed == (
        Removal(partition=0, by="delete-records", from_offset=0, to_offset=2, segments=0, bytes=0),
    )
    assert retained.removed == (
        Removal(
            partition=0, by="retention by start offset", from_offset=0, to_offset=2, segments=1, bytes=sizes[0]
        ),
        Removal(partition=0, by="retention by time", from_offset=2, to_offset=4, segments=1, bytes=sizes[1]),
    )  # fmt: skip
    assert appended.removed == ()


def test_deleted_records_are_held_back_by_nobody_but_who_missed_them_is_named(log: Log) -> None:
    log.reads("slow", p0=1)
    log.reads("fast", p0=6)
    assert delete_records(log.topics.chain("t"), 0, 2).unread_by == Holds({"slow": 1})
    assert log.history()[-1].removed[0].unread_by == ("slow",)
    assert not delete_records(log.topics.chain("t"), 0, 2).unread_by
    done = delete_records(log.topics.chain("t"), 0, HIGH_WATERMARK)
    assert (done.after, done.unread_by) == (6, Holds({"slow": 1}))


@pytest.fixture
def buried(storage) -> Log:
    """Offset 2 deletes a, in a batch whose delete horizon is START + 130; a consumer may hold it for 1000 ms."""
    log = Log(storage, cleanup_policy="compact", delete_retention_ms="100", consumer_max_hold_ms="1000", segment_ms="1")
    log.append((b"a", b"1"), (b"b", b"2"))
    log.clock.advance(10)
    log.append((b"a", None))
    log.clock.advance(10)
    log.append((b"c", b"3"))
    first = log.compact()
    assert first.warnings == ()
    assert log.records()[:2] == [(b"b", b"2"), (b"a", None)]
    log.clock.advance(100)
    return log


def test_a_tombstone_waits_for_who_has_not_read_it(buried: Log) -> None:
    buried.reads(p0=2)
    (warning,) = buried.compact().warnings
    assert warning == (
        f"topic t, partition 0: {NAME}, at offset 2, prevents the deletion of tombstones whose delete horizon has passed"
        " (batches: 1); the first batch is kept until 2023-11-14 22:13:21.130Z"
    )
    assert (b"a", None) in buried.records()
    assert buried.state.partitions[0].tombstones_end == 0
    buried.reads(p0=3)
    assert buried.compact().warnings == ()
    assert (b"a", None) not in buried.records()
    assert buried.state.partitions[0].tombstones_end == 3


def test_without_consumers_a_tombstone_goes_at_its_horizon(buried: Log) -> None:
    assert buried.compact().warnings == ()
    assert (b"a", None) not in buried.records()
    part = buried.state.partitions[0]
    assert part.tombstones_end == part.first_dirty_offset


def test_a_tombstone_waits_no_longer_than_it_may_and_who_missed_it_is_named(buried: Log) -> None:
    buried.reads(p0=2)
    buried.clock.advance(START + 1129 - buried.clock.now_ms() - 10)
    buried.compact()
    assert (b"a", None) in buried.records()
    (warning,) = buried.compact().warnings
    assert warning == (
        f"topic t, partition 0: after consumer.max.hold.ms, compaction removed tombstones that {NAME} may not have read"
    )
    assert (b"a", None) not in buried.records()
    assert buried.history()[-1].removed[0].unread_by == (NAME,)
    part = buried.state.partitions[0]
    assert part.tombstones_end == part.first_dirty_offset


def test_history_tells_what_compaction_took_by_cause(buried: Log) -> None:
    buried.compact()
    removed = [each.removed for each in buried.history() if each.change.startswith("compaction")]
    assert [(each.records, each.from_offset, each.to_offset) for (each,) in removed] == [
        ({"outdated": 1}, 0, 4),
        ({"tombstones": 1}, 0, 5),
    ]


def test_what_is_held_makes_a_clean_log_due_once_it_may_go(buried: Log) -> None:
    buried.topics.alter("t", configs={"cleaner.clean.expired.horizons": "true", "min.cleanable.dirty.ratio": "1"})
    buried.reads(p0=2)

    def due() -> int:
        config = buried.topics.config(buried.state)
        return len(cleaning_tasks(buried.storage, buried.state, config, BrokerConfig(), buried.clock.now_ms()))

    assert due() == 0
    buried.clock.advance(1000)
    assert due() == 1
    buried.clock.advance(-1000)
    buried.reads(p0=4)  # all of the segment
    assert due() == 1
