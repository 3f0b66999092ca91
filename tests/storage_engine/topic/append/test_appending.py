"""Appends from staging to commit: each is committed exactly once, with other writers and with every failure."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.clock import ManualClock
from storage_engine.config import LONG_MAX, BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    BatchRefusedError,
    FencedError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageAccessError,
    StorageFullError,
    UnknownTopicError,
    WriterRefusedError,
)
from storage_engine.log.filenames import data_folder, data_key
from storage_engine.log.partition_state import LeaderEpoch
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage import Storage
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Append, Encoding, append_records, stage_records
from storage_engine.topic.append.staged_run import StagedRun, StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import BatchIdentity, Committed, TopicWriter, take_over
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, row_lists, to_rows, to_table
from tests.storage_engine.topic.wrapped_storage import FailedPuts, Interrupting, LostReplies, PlainStorage
from tests.stores import storage_at

CLOCK = ManualClock(1_700_000_000_000)


@pytest.fixture
def storage(tmp_path) -> Storage:
    return storage_at(tmp_path)


def new_topic(storage, partitions: int = 1, **configs: str) -> Topics:
    topics = Topics(storage, BrokerConfig(), CLOCK)
    topics.create("t", partitions, {key.replace("_", "."): value for key, value in configs.items()})
    return topics


def append(topics: Topics, rows: list[Row], partition: int | None = None) -> Committed:
    state = topics.state("t")
    return append_records(
        topics.storage, topics.chain("t"), topics.config(state), topics.clock, to_table(rows), partition
    )


def contents(topics: Topics, partition: int = 0) -> list[Row]:
    reader = PartitionReader(topics.storage, topics.chain("t"), partition)
    return [row for records in reader.read(reader.partition.log_start_offset) for row in to_rows(records)]


def rows(*values: int) -> list[Row]:
    return [Row(b"k%d" % value, b"v%d" % value) for value in values]


class Query:
    """A streaming query that feeds the topic, batch by batch."""

    def __init__(self, topics: Topics, name: str = "q", take_over_others: bool = False) -> None:
        self.topics = topics
        self.name = name
        self.chain = topics.chain("t")
        self.epoch = take_over(self.chain, name, take_over_others).writer.epoch
        config = topics.config(self.chain.newest())
        self.writer = TopicWriter(topics.storage, self.chain, config, topics.clock, self.epoch)

    def batch(self, number: int, values: list[Row], offsets_hash: str = "h") -> Committed:
        runs = staged(self.topics, values)
        return self.writer.append(by_partition(runs), BatchIdentity(self.name, number, f"{offsets_hash}{number}"))


def staged(topics: Topics, values: list[Row]) -> list[StagedRun]:
    state = topics.chain("t").newest()
    table = to_table(values)
    with StagingWriter(topics.storage, f"staging/{state.topic_id}/b/") as writer:
        partitions = partition_keys(table["key"], len(state.partitions), 0)
        stage_records(writer, table, partitions, Encoding.of(topics.config(state), topics.clock.now_ms()))
    return writer.runs


@settings(max_examples=20)
@given(appends=st.lists(row_lists, min_size=1, max_size=4), codec=st.sampled_from(["uncompressed", "zstd", "lz4"]))
def test_appended_records_can_be_read_in_their_order(tmp_path_factory, appends, codec) -> None:
    storage = storage_at(tmp_path_factory.mktemp("root"))
    later = {"message_timestamp_after_max_ms": str(2**63 - 1)}
    topics = new_topic(storage, 2, compression_type=codec, segment_bytes="1200", **later)
    expected: dict[int, list[Row]] = {0: [], 1: []}
    for records in appends:
        before = [part.high_watermark for part in topics.state("t").partitions]
        committed = append(topics, records)
        assert committed.records == len(records)
        table = to_table(records)
        after = [part.high_watermark for part in committed.state.partitions]
        sticky = next(
            sticky
            for sticky in (0, 1)
            for chosen in [partition_keys(table["key"], 2, sticky).tolist()]
            if [before[number] + chosen.count(number) for number in (0, 1)] == after
        )
        for row, partition in zip(records, partition_keys(table["key"], 2, sticky).tolist(), strict=True):
            expected[partition].append(row)
    for partition, values in expected.items():
        read = contents(topics, partition)
        assert sorted(map(repr, read)) == sorted(map(repr, values))
        if all(row.key is not None for records in appends for row in records):
            assert read == values
    assert not list(storage.list("staging/"))


def test_an_append_of_several_chunks_is_one_version(storage) -> None:
    topics = new_topic(storage, 2)
    state = topics.state("t")
    with Append(storage, topics.chain("t"), topics.config(state), CLOCK) as pending:
        for first in range(0, 30, 10):
            pending.stage(to_table(rows(*range(first, first + 10))))
            assert topics.state("t").version == 0
        committed = pending.commit()
    assert (committed.records, committed.state.version) == (30, 1)
    read = contents(topics, 0) + contents(topics, 1)
    assert sorted(read) == sorted(rows(*range(30)))
    assert not list(storage.list("staging/"))


def test_an_append_without_records_makes_no_version(storage) -> None:
    topics = new_topic(storage)
    assert append(topics, []).state.version == 0


def test_one_refused_record_refuses_them_all(storage) -> None:
    topics = new_topic(storage, cleanup_policy="compact", max_message_bytes="1000")
    cases: list[tuple[Row, type[Exception]]] = [
        (Row(None, b"v"), InvalidRecordError),
        (Row(b"k", bytes(1000)), RecordTooLargeError),
        (Row(b"k", b"v", timestamp=-2), InvalidTimestampError),
        (Row(b"k", b"v", timestamp=CLOCK.now_ms() + 3_600_001), InvalidTimestampError),
    ]
    for bad, error in cases:
        with pytest.raises(error, match="record 1"):
            append(topics, [*rows(1), bad])
    assert contents(topics) == []
    assert topics.state("t").version == 0
    assert not list(storage.list("staging/"))
    assert not list(storage.list("data/"))


def test_the_largest_record_that_fits_is_taken(storage) -> None:
    topics = new_topic(storage, max_message_bytes="1000")
    overhead = 61 + 2 + 1 + 1 + 1 + 1 + 2 + 1  # header; length, attributes, deltas, null key, value length, headers
    append(topics, [Row(None, bytes(1000 - overhead))])
    with pytest.raises(RecordTooLargeError):
        append(topics, [Row(None, bytes(1001 - overhead))])
    assert topics.state("t").partitions[0].size == 1000


def test_appends_that_race_lose_nothing(storage) -> None:
    topics = new_topic(storage)
    other = Topics(storage, BrokerConfig(), CLOCK)
    racing = Topics(Interrupting(storage, lambda: append(other, rows(1, 2))), BrokerConfig(), CLOCK)
    append(racing, rows(3))
    assert contents(topics) == rows(1, 2, 3)
    assert not list(storage.list("staging/"))


def test_a_batch_that_is_replayed_is_skipped(storage) -> None:
    topics = new_topic(storage, 2)
    query = Query(topics)
    assert query.batch(0, rows(1, 2, 3)).records == 3
    again = Query(topics).batch(0, rows(1, 2, 3))
    assert (again.records, again.skipped) == (0, True)
    assert sorted(contents(topics, 0) + contents(topics, 1)) == rows(1, 2, 3)


def test_a_batch_without_records_is_committed_all_the_same(storage) -> None:
    topics = new_topic(storage)
    query = Query(topics)
    query.batch(0, [])
    assert query.batch(0, []).skipped
    assert topics.state("t").queries["q"].batch_id == 0


def test_a_checkpoint_that_was_rolled_back_is_refused(storage) -> None:
    topics = new_topic(storage)
    query = Query(topics)
    query.batch(0, rows(1))
    query.batch(1, rows(2))
    with pytest.raises(
        BatchRefusedError, match="found batch 0 with the offsets' hash h0, but the topic already has batch 1"
    ):
        query.batch(0, rows(1))
    with pytest.raises(BatchRefusedError, match="copied or rolled back"):
        query.batch(1, rows(9), offsets_hash="other")
    assert contents(topics) == rows(1, 2)


def test_the_same_query_takes_over_at_once_and_the_first_is_fenced(storage) -> None:
    topics = new_topic(storage)
    first = Query(topics)
    first.batch(0, rows(1))
    second = Query(topics)
    with pytest.raises(
        FencedError, match=r", since 2023-11-14 22:13:20.000Z\) took over with epoch 2; this writer has epoch 1"
    ) as caught:
        first.batch(1, rows(2))
    assert caught.value.exit_status == 3
    second.batch(1, rows(3))
    assert contents(topics) == rows(1, 3)
    assert topics.state("t").partitions[0].leader_epochs == (LeaderEpoch(1, 0), LeaderEpoch(2, 1))


def test_another_query_takes_over_only_where_it_is_asked_to(storage) -> None:
    topics = new_topic(storage)
    first = Query(topics)
    with pytest.raises(WriterRefusedError, match="--take-over") as caught:
        Query(topics, "other")
    assert caught.value.exit_status == 1
    first.batch(0, rows(1))
    second = Query(topics, "other", take_over_others=True)
    with pytest.raises(FencedError, match="query other"):
        first.batch(1, rows(2))
    second.batch(0, rows(3))
    assert contents(topics) == rows(1, 3)


@pytest.mark.posix("appends to a file")
def test_an_append_goes_in_between_a_querys_batches(storage) -> None:
    topics = new_topic(storage)
    query = Query(topics)
    query.batch(0, rows(1))
    append(topics, rows(2))
    query.batch(1, rows(3))
    query.batch(2, rows(4))
    assert contents(topics) == rows(1, 2, 3, 4)
    assert topics.state("t").writer.query == "q"
    assert len(topics.state("t").partitions[0].segments) == 3, (
        "each lost the other's open segment, then goes on in its own"
    )


def test_an_append_that_is_overtaken_by_a_take_over_is_stamped_anew(storage) -> None:
    topics = new_topic(storage)
    append(topics, rows(1))
    racing = Topics(Interrupting(storage, lambda: take_over(topics.chain("t"), "q")), BrokerConfig(), CLOCK)
    append(racing, rows(2))
    assert topics.state("t").partitions[0].leader_epochs == (LeaderEpoch(0, 0), LeaderEpoch(1, 1))
    records = list(PartitionReader(storage, topics.chain("t"), 0).read(0))
    assert [epoch for batch in records for epoch in batch["leader_epoch"].to_pylist()] == [0, 1]


def test_a_topic_created_again_refuses_the_old_ones_writer(storage) -> None:
    topics = new_topic(storage, 2)
    old = Query(topics)
    old.batch(0, rows(1, 2))
    topics.delete("t")
    with pytest.raises(UnknownTopicError, match="was deleted"):
        old.batch(1, rows(3))
    topics.create("t", 1, {})
    new = Query(topics)
    assert new.epoch == old.epoch, "epochs begin again, so only the topic's id tells the two apart"
    with pytest.raises(UnknownTopicError, match="created again"):
        old.batch(1, rows(3))
    new.batch(0, rows(4))
    assert contents(topics) == rows(4)


def test_an_append_does_not_go_into_another_topic_of_the_same_name(storage) -> None:
    topics = new_topic(storage, 2)

    def replace() -> None:
        topics.delete("t")
        topics.create("t", 1, {})

    with pytest.raises(UnknownTopicError, match="created again"):
        append(Topics(Interrupting(storage, replace), BrokerConfig(), CLOCK), rows(1, 2, 3))
    assert contents(topics) == []


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_commit_whose_reply_was_lost_is_not_repeated(storage, error) -> None:
    topics = new_topic(storage)
    losing = Topics(LostReplies(storage, error), BrokerConfig(), CLOCK)
    append(losing, rows(1, 2))
    query = Query(losing)
    query.batch(0, rows(3))
    query.batch(1, rows(4))
    assert contents(topics) == rows(1, 2, 3, 4)


def test_a_commit_that_fails_leaves_the_topic_as_it_was(storage) -> None:
    topics = new_topic(storage)
    query = Query(topics)
    first = query.batch(0, rows(1)).state.partitions[0].segments[-1]
    failing = FailedPuts(storage, StorageFullError("k", "no space"))
    chain = query.writer._chain
    chain.storage = failing
    with pytest.raises(StorageFullError):
        query.batch(1, rows(2))
    assert contents(topics) == rows(1)
    failing.error = None
    query.batch(1, rows(2))
    assert contents(topics) == rows(1, 2)
    second = topics.state("t").partitions[0].segments[-1]
    assert first.name != second.name, "a file with bytes that were not committed is never appended to again"


def test_a_storage_that_cannot_append_gets_new_files_with_each_commit(storage) -> None:
    topics = new_topic(PlainStorage(storage), 2, segment_bytes="1100", index_interval_bytes="0")
    query = Query(topics)
    for number in range(6):
        query.batch(number, [Row(b"k", b"%d" % number * 200, timestamp=number) for _ in range(4)])
    append(topics, rows(1))
    partition = int(partition_keys(to_table([Row(b"k", None)])["key"], 2, 0)[0])
    state = topics.state("t")
    segments = state.partitions[partition].segments
    assert len({segment.name for segment in segments}) == len(segments) >= 6
    read = [row for row in contents(topics, partition) if row.key == b"k"]
    assert [row.value for row in read] == [b"%d" % number * 200 for number in range(6) for _ in range(4)]
    for segment in segments:
        sizes = {file.key: file.size for file in storage.list(data_folder(state.topic_id, partition))}
        assert sizes[data_key(state.topic_id, partition, segment.name)] == segment.size
        assert sizes[data_key(state.topic_id, partition, segment.name, ".timeindex")] % 12 == 0
    assert PartitionReader(topics.storage, topics.chain("t"), partition).offset_at(3) == (12, 3, 1)


def test_append_time_is_the_clocks(storage) -> None:
    topics = new_topic(storage, message_timestamp_type="LogAppendTime")
    append(topics, [Row(b"k", b"v", timestamp=5)])
    (read,) = contents(topics)
    assert read.timestamp == CLOCK.now_ms()


def test_reading_is_bounded_by_log_start_and_high_watermark(storage) -> None:
    topics = new_topic(storage)
    append(topics, rows(1, 2, 3))
    reader = PartitionReader(storage, topics.chain("t"), 0)
    append(topics, rows(4))
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError, match="0 to 3"):
            reader.read(offset)
    assert [row for records in reader.read(1) for row in to_rows(records)] == rows(2, 3)
    assert list(reader.read(3)) == []
    assert reader.refresh().high_watermark == 4


def test_what_lies_beyond_the_committed_size_is_read_by_nobody(storage) -> None:
    topics = new_topic(storage)
    state = append(topics, rows(1, 2)).state
    key = data_key(state.topic_id, 0, state.partitions[0].segments[0].name)
    storage.replace(key, storage.read(key) + b"\xff" * 500)
    assert contents(topics) == rows(1, 2)
    append(topics, rows(3))
    assert contents(topics) == rows(1, 2, 3)


def scramble(storage: Storage, key: str) -> None:
    storage.replace(key, bytes(range(97)))


def delete(storage: Storage, key: str) -> None:
    storage.delete(key)


def test_damaged_or_missing_indexes_cost_time_and_nothing_else(storage) -> None:
    topics = new_topic(storage, index_interval_bytes="0", max_message_bytes="200")
    values = [Row(b"k", base64.b64encode(b"%d" % number), timestamp=number) for number in range(60)]
    state = append(topics, values).state
    reader = PartitionReader(storage, topics.chain("t"), 0)
    for damage in (scramble, delete):
        for suffix in (".index", ".timeindex"):
            damage(storage, data_key(state.topic_id, 0, state.partitions[0].segments[0].name, suffix))
        for number in (0, 17, 59):
            first = next(reader.read(number))
            assert first["offset"][0].as_py() == number
            assert reader.offset_at(number) == (number, number, 0)


class UndeletableStaging(PosixStorage):
    """Staged files cannot be deleted."""

    def delete(self, key: str) -> None:
        if key.startswith("staging/"):
            raise StorageAccessError(key, "Operation not permitted")
        super().delete(key)


@pytest.mark.posix("its storage is derived from the local storage")
def test_a_committed_append_has_not_failed_because_what_it_staged_stays(tmp_path) -> None:
    topics = new_topic(UndeletableStaging(tmp_path))
    assert append(topics, rows(1)).records == 1
    assert contents(topics) == rows(1)


def test_an_append_does_not_reach_a_topic_that_was_created_anew(storage) -> None:
    topics = new_topic(storage, partitions=6)
    state = topics.state("t")
    topics.delete("t")
    new_topic(storage, partitions=1, cleanup_policy="compact")
    with Append(storage, topics.chain("t"), topics.config(state), CLOCK, 5, state=state) as late:
        late.stage(to_table(rows(1)))
        with pytest.raises(UnknownTopicError, match="created again"):
            late.commit()
    assert contents(topics) == []


def test_a_log_takes_no_record_behind_the_last_offset(storage) -> None:
    topics = new_topic(storage)

    def at_the_end(state):
        part = state.partitions[0]
        return state.with_partitions(
            {0: part.model_copy(update={"high_watermark": 2**63 - 3, "log_start_offset": 2**63 - 3})}
        )

    topics.chain("t").commit(at_the_end, "as an import may leave it")
    append(topics, rows(1))
    with pytest.raises(OffsetOutOfRangeError, match=r"topic t, partition 0: 2 records do not fit"):
        append(topics, rows(2, 3))
    append(topics, rows(4))
    assert contents(topics) == rows(1, 4)
    with pytest.raises(OffsetOutOfRangeError):
        append(topics, rows(5))


class RetentionAtOpening(PosixStorage):
    """Before a .log is opened, its partition's records up to an offset go; once."""

    def __init__(self, root: Path, topics: Topics, offset: int) -> None:
        super().__init__(root)
        self.topics = topics
        self.offset = offset

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.endswith(".log") and self.offset:
            delete_records(self.topics.chain("t"), 0, self.offset)
            self.offset = 0
            super().delete(key)
        return super().read(key, start, length)


@pytest.mark.posix("its storage is derived from the local storage")
@pytest.mark.parametrize(("required_from", "fails"), [(LONG_MAX, False), (3, False), (2, True), (0, True)])
def test_what_retention_takes_from_under_a_reader_is_passed_over_or_an_error(
    storage, tmp_path, required_from: int, fails: bool
) -> None:
    topics = new_topic(storage)
    for number in range(4):
        append(topics, rows(number))
    reader = PartitionReader(RetentionAtOpening(tmp_path, topics, 3), topics.chain("t"), 0)
    records = reader.read(1, required_from=required_from, if_lost="Begin again.")
    if fails:
        with pytest.raises(
            OffsetOutOfRangeError, match="the next offset to read is 1, but the log now starts at 3"
        ) as e:
            list(records)
        assert e.value.remedy == "Retention or delete-records deleted the records before they were read. Begin again."
    else:
        assert [row for some in records for row in to_rows(some)] == rows(3)
