"""How the lakelog source and exports read transactions, without a Spark session: their plans, and the work of
tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakelog.spark.data_source import LakelogSource
from lakelog.spark.splits import read_split, splits_of
from pipeline.delta.without_spark.topic_records import RUN_AGAIN, batch_reader
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConfigError, OffsetOutOfRangeError
from storage_engine.log.filenames import SEGMENT_SUFFIXES, data_key
from storage_engine.log.isolation import Isolation
from storage_engine.progress import NO_PROGRESS
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.chain.transaction_files import decide, newest_decided
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

NOW_MS = 1_700_000_000_000


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(NOW_MS))
    for name in ("a", "b"):
        topics.create(name, 1, {})
    return topics


def begun(topics: Topics, value: bytes) -> TransactionWriter:
    transaction = TransactionWriter(topics)
    for topic in ("a", "b"):
        transaction.append(topic, to_table([Row(b"k", value, timestamp=NOW_MS)]))
    return transaction


def source(topics: Topics, level: str | None = None) -> LakelogSource:
    options = {"root": topics.storage.uri, "subscribe": "a,b", "startingOffsets": "earliest"}
    return LakelogSource(options | ({"kafka.isolation.level": level} if level else {}))


def values_of(batches: Iterable[Any]) -> list[bytes]:
    return [value for rows in batches for value in rows["value"].to_pylist()]


def batch(topics: Topics, level: str | None = None) -> list[bytes]:
    reader = source(topics, level).reader(source(topics).schema())
    return [value for part in reader.partitions() for value in values_of(reader.read(part))]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", '{"a": {"0": 2}}'),
        ("startingOffsetsByTimestamp", f'{{"a": {{"0": {NOW_MS + 1}}}}}'),
        ("startingTimestamp", str(NOW_MS + 1)),
    ],
)
def test_a_batch_that_begins_after_its_end_names_the_option_of_its_start(
    topics: Topics, option: str, value: str
) -> None:
    begun(topics, b"v").commit()
    options = {"subscribe": "a", option: value, "endingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"}
    reader = LakelogSource({"root": topics.storage.uri} | options).reader(source(topics).schema())
    with pytest.raises(ConfigError, match=f"option {option}: the start 2 of a-0 is greater than the end 0"):
        reader.partitions()


def test_a_batch_reads_what_its_isolation_allows(topics: Topics) -> None:
    begun(topics, b"aborted").abort()
    begun(topics, b"committed").commit()
    transaction = begun(topics, b"open")
    everything = [b"aborted", b"committed", b"open"] * 2
    assert batch(topics) == batch(topics, "read_uncommitted") == everything
    assert batch(topics, "read_committed") == [b"committed"] * 2
    transaction.commit()
    assert batch(topics, "read_committed") == [b"committed", b"open"] * 2


@pytest.mark.parametrize(
    ("option", "value", "values"),
    [
        ("startingTimestamp", "-4", [b"v", b"v"]),
        ("startingTimestamp", "-5", "a-0 has no record at or after the time -5"),
        ("startingTimestamp", "-6", "option startingTimestamp: found -6 as the time for a-0. Give 0 or more"),
        ("endingTimestamp", "-4", []),
        ("endingTimestamp", "-5", [b"v", b"v"]),
        ("endingTimestamp", "-6", "option endingTimestamp: found -6 as the time for a-0. Give 0 or more"),
        (
            "startingOffsets",
            '{"a": {"0": -2}, "b": {"0": -3}}',
            "option startingOffsets: found -3 as the offset for b-0",
        ),
        ("endingOffsets", '{"a": {"0": -3}, "b": {"0": 1}}', "option endingOffsets: found -3 as the offset for a-0"),
    ],
)
def test_negative_numbers_mean_what_they_mean_in_kafka(
    topics: Topics, option: str, value: str, values: list[bytes] | str
) -> None:
    begun(topics, b"v").commit()
    given = LakelogSource({"root": topics.storage.uri, "subscribe": "a,b", option: value})
    reader = given.reader(given.schema())  # nothing is refused before the batch runs

    if isinstance(values, str):
        with pytest.raises(ConfigError, match=values):
            reader.partitions()
    else:
        assert [value for part in reader.partitions() for value in values_of(reader.read(part))] == values


def test_a_stream_stops_before_an_open_transaction_and_goes_on_once_it_is_decided(topics: Topics) -> None:
    stream = source(topics, "read_committed").streamReader(source(topics).schema())
    start = stream.initialOffset()
    transaction = begun(topics, b"v")
    waiting = stream.latestOffset(start, ReadAllAvailable())
    assert [position["offsets"] for position in waiting.values()] == [{"0": 0}, {"0": 0}]
    assert transaction.producer_id is not None
    decide(topics.storage, topics.clock, transaction.producer_id, committed=True)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [position["offsets"] for position in end.values()] == [{"0": 1}, {"0": 1}]
    assert [values_of(stream.read(part)) for part in stream.partitions(start, end)] == [[b"v", b"v"]]


def test_a_first_micro_batch_that_is_repeated_begins_where_the_stream_began(topics: Topics) -> None:
    def stream() -> Any:
        options = {"root": topics.storage.uri, "subscribe": "a,b"}
        return LakelogSource(options).streamReader(LakelogSource(options).schema())

    first = stream()
    start = first.initialOffset()
    begun(topics, b"v").commit()
    end = first.latestOffset(start, ReadAllAvailable())
    begun(topics, b"w").commit()

    again = stream()  # the process that asked before was killed: what is the latest is another offset now
    moved = again.initialOffset()
    assert [position["offsets"] for position in (*start.values(), *moved.values())] == [{"0": 0}] * 2 + [{"0": 4}] * 2
    assert [values_of(again.read(part)) for part in again.partitions(moved, end)] == [[b"v", b"v"]]
    after = again.latestOffset(end, ReadAllAvailable())
    assert after == moved
    assert [values_of(again.read(part)) for part in again.partitions(end, after)] == [[b"w", b"w"]]
    assert again.latestOffset(after, ReadAllAvailable()) == after


def test_large_segments_are_cut_into_tasks_by_bytes(topics: Topics) -> None:
    rows = [Row(b"k", b"%07d" % number * 1000, timestamp=NOW_MS) for number in range(12_000)]
    transaction = TransactionWriter(topics)
    transaction.append("a", to_table(rows))
    transaction.commit()
    reader = LakelogSource({"root": topics.storage.uri, "subscribe": "a"}).reader(source(topics).schema())
    sizes = [part.value.splits[0].size >> 20 for part in reader.partitions()]
    marker = [] if topics.storage.growing else [0]  # where files do not grow, the marker has a segment of its own
    assert sizes == [26, 26, 26, *marker]
    values = [value for part in reader.partitions() for value in values_of(reader.read(part))]
    assert values == [row.value for row in rows]


def test_a_stream_that_changes_its_isolation_does_not_go_back(topics: Topics) -> None:
    transaction = begun(topics, b"open")
    uncommitted = source(topics).streamReader(source(topics).schema())
    position = uncommitted.latestOffset(uncommitted.initialOffset(), ReadAllAvailable())
    committed = source(topics, "read_committed").streamReader(source(topics).schema())
    assert committed.latestOffset(position, ReadAllAvailable()) == position
    transaction.abort()


def test_an_unknown_isolation_is_refused(topics: Topics) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.isolation\.level.*snapshot"):
        batch(topics, "snapshot")


def test_a_task_whose_file_has_gone_goes_on_with_the_same_isolation(topics: Topics) -> None:
    begun(topics, b"aborted").abort()
    begun(topics, b"committed").commit()
    chain = topics.chain("a")
    state = newest_decided(topics.storage, chain)
    first, *others = splits_of(state, 0, 0, 4, Isolation.READ_COMMITTED)
    assert (first.aborted, [split.aborted for split in others]) == (
        tuple(state.partitions[0].aborted_transactions()), [()],
    )  # fmt: skip
    old = state.partitions[0].segments[0]
    for suffix in SEGMENT_SUFFIXES:
        key = data_key(state.topic_id, 0, old.name, suffix)
        topics.storage.put_new(data_key(state.topic_id, 0, "swapped", suffix), topics.storage.read(key))
        topics.storage.delete(key)

    def swap(state):
        part = state.partitions[0]
        segments = (old._replace(name="swapped"), *part.segments[1:])
        return state.with_partitions({0: part.model_copy(update={"segments": segments})})

    chain.commit(swap, "a compaction")
    assert list(read_split(topics.storage, first)) == []
    uncommitted = splits_of(state, 0, 0, 4, Isolation.READ_UNCOMMITTED)
    read = [value for split in uncommitted for value in values_of(read_split(topics.storage, split))]
    assert read == [b"aborted", b"committed"]


def test_only_a_task_that_was_to_read_required_offsets_ends_for_their_loss(topics: Topics) -> None:
    for value in (b"0", b"1", b"2"):
        begun(topics, value).commit()  # offsets 0, 2, 4, each with a marker behind it
    state = newest_decided(topics.storage, topics.chain("a"))
    splits = splits_of(state, 0, 0, 6, Isolation.READ_UNCOMMITTED)
    gone = splits[:-1]
    delete_records(topics.chain("a"), 0, gone[-1].segment.end_offset)
    for split in gone:
        for suffix in SEGMENT_SUFFIXES:
            topics.storage.delete(f"{split.segment.stem}{suffix}")
    required_from = gone[-1].segment.base_offset
    assert len(gone) >= 2
    for split in gone[:-1]:
        assert list(read_split(topics.storage, split, required_from=required_from)) == []
    with pytest.raises(OffsetOutOfRangeError, match=r"now starts at .* before they were read\. Begin again\."):
        list(read_split(topics.storage, gone[-1], required_from=required_from, if_lost="Begin again."))


def test_each_reader_gives_the_remedy_of_its_own_program(topics: Topics) -> None:
    for value in (b"0", b"1", b"2"):
        begun(topics, value).commit()
    bounds = {"startingOffsets": '{"a": {"0": 0}, "b": {"0": 0}}'}
    reader = LakelogSource({"root": topics.storage.uri, "subscribe": "a,b", **bounds}).reader(source(topics).schema())
    tasks = reader.partitions()
    stream = source(topics).streamReader(source(topics).schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    state, chain = newest_decided(topics.storage, topics.chain("a")), topics.chain("a")
    export = batch_reader(topics.storage, chain, state, NO_PROGRESS)({0: 0}, {0: 6}, {0: 0})
    delete_records(chain, 0, 4)
    for segment in state.partitions[0].segments:
        if segment.end_offset <= 4:
            topics.storage.delete(data_key(state.topic_id, 0, segment.name))
    go_on = "To continue with the remaining records, set failOnDataLoss to false."
    reads: dict[str, Callable[[], object]] = {
        "a read is planned": reader.partitions,
        "a task reads": lambda: [list(reader.read(task)) for task in tasks],
        "a stream is planned": lambda: stream.partitions(start, end),
        "an export reads": lambda: list(export),
    }
    for name, read in reads.items():
        with pytest.raises(
            OffsetOutOfRangeError, match="the next offset to read is 0, but the log now starts at 4"
        ) as e:
            read()
        remedy = RUN_AGAIN if name == "an export reads" else go_on
        assert e.value.remedy == f"Retention or delete-records deleted the records before they were read. {remedy}"
