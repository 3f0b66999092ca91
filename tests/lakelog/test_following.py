"""Topic.follow: a loop gets every record, and after a failure continues with the record that it was working on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakelog
from lakelog import errors
from lakelog.given_records import record_batches
from lakelog.opening import open_topics
from storage_engine.log.filenames import data_key
from storage_engine.record import record_columns
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.readers.consumer_files import read_consumers
from storage_engine.topic.topics import Topics
from tests.stores import root_at

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
AFTER_A_LOSS = (
    "Retention or delete-records deleted the records before they were read. To continue at the log's start, pass"
    " skip_deleted=True to follow. To move the group to other offsets, use `lakelog groups reset-offsets`."
)


@pytest.fixture
def log(tmp_path: Path) -> lakelog.Root:
    return lakelog.open(root_at(tmp_path / "root"), create=True)


@pytest.fixture
def orders(log: lakelog.Root) -> lakelog.Topic:
    """Two partitions of three records each, in one append a partition."""
    topic = log.create_topic("orders", 2)
    for partition in (0, 1):
        topic.append([{"value": f"{partition}.{offset}"} for offset in range(3)], partition=partition)
    return topic


def engine(log: lakelog.Root) -> Topics:
    return open_topics(log.uri.removeprefix("file://"), None, print)


def values(topic: lakelog.Topic, group: str = "g", **options: Any) -> list[str]:
    return [(record.value or b"").decode() for record in topic.follow(group, stop_at_end=True, **options)]


def positions(topic: lakelog.Topic) -> dict[int, int | None]:
    return {each.partition: each.current_offset for each in topic.groups()}


@contextmanager
def lost_records(position: int, start: int) -> Iterator[None]:
    """Expects the error about records that were deleted before a loop got them."""
    problem = f"the next offset to read is {position}, but the log now starts at {start}"
    with pytest.raises(errors.OffsetOutOfRangeError, match=problem) as e:
        yield
    assert e.value.remedy == AFTER_A_LOSS


def test_a_loop_gets_whole_records(log: lakelog.Root) -> None:
    topic = log.create_topic("t")
    topic.append([{"key": b"k", "value": None, "headers": [("h", b"x"), ("i", None)], "timestamp": NOON}])
    (record,) = topic.follow("g", stop_at_end=True)
    assert record == lakelog.Record(b"k", None, "t", 0, 0, NOON, (("h", b"x"), ("i", None)))


def test_a_time_that_python_cannot_represent_ends_no_loop(log: lakelog.Root) -> None:
    config = {f"message.timestamp.{side}.max.ms": 2**63 - 1 for side in ("before", "after")}
    topic = log.create_topic("t", config=config)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    times = [2**63 - 1, 253_402_300_800_000, 253_402_300_799_999, 0]
    topic.append([{"value": b"v", "timestamp": each} for each in times])
    found = [record.timestamp for record in topic.follow("g", stop_at_end=True)]
    assert found == [last, last, last, datetime.fromtimestamp(0, UTC)]


def test_a_group_goes_on_where_it_stopped(orders: lakelog.Topic) -> None:
    assert values(orders) == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert values(orders) == []
    orders.append([{"value": "later"}], partition=1)
    assert values(orders) == ["later"]
    assert values(orders, "another")[-1] == "later"


def test_a_record_is_committed_when_the_loop_asks_for_the_next(orders: lakelog.Topic) -> None:
    records = orders.follow("g")
    for offset in range(3):
        assert next(records).offset == offset
        assert positions(orders)[0] == offset
    next(records)
    assert positions(orders) == {0: 3, 1: 0}


def test_a_batch_is_committed_when_the_loop_asks_for_the_next(orders: lakelog.Topic) -> None:
    batches = orders.follow_batches("g")
    first = next(batches)
    assert first["value"].to_pylist() == [b"0.0", b"0.1", b"0.2"]
    assert first.schema == orders.read().schema
    assert positions(orders) == {0: 0, 1: 0}
    next(batches)
    assert positions(orders) == {0: 3, 1: 0}


def test_what_a_loop_failed_on_comes_again(orders: lakelog.Topic) -> None:
    with pytest.raises(ZeroDivisionError):
        [1 // (record.offset - 1) for record in orders.follow("g")]
    assert positions(orders)[0] == 1
    for record in orders.follow("g"):
        if record.offset == 2:
            break
    assert values(orders) == ["0.2", "1.0", "1.1", "1.2"]


def test_the_second_loop_of_a_group_fences_the_first(orders: lakelog.Topic) -> None:
    first = orders.follow("g")
    next(first)
    second = orders.follow("g")
    assert next(second).offset == 0
    with pytest.raises(errors.FencedError, match="Another reader has joined the group"):
        next(first)
    assert next(second).offset == 1
    assert positions(orders)[0] == 1


def test_a_loop_waits_for_what_is_appended_later(orders: lakelog.Topic) -> None:
    got: list[str] = []

    def follow() -> None:
        for record in orders.follow("g", start="latest", poll_seconds=0.01):
            got.append((record.value or b"").decode())
            if record.value == b"last":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    while not positions(orders):
        time.sleep(0.01)
    orders.append([{"value": "first"}], partition=0)
    orders.append([{"value": "last"}], partition=1)
    thread.join(30)
    assert got == ["first", "last"]


def test_a_new_group_begins_at_the_start_that_is_given(orders: lakelog.Topic) -> None:
    assert values(orders, "a", start="latest") == []
    assert values(orders, "b", start={0: 2, 1: 3}) == ["0.2"]
    orders.append([{"value": "later"}], partition=0)
    assert values(orders, "a", start="earliest") == ["later"]
    with pytest.raises(errors.UnknownTopicError):
        orders.follow("c", start={7: 0})
    with pytest.raises(errors.ConfigError):
        orders.follow("")
    with pytest.raises(errors.ConfigError):
        orders.follow("c", isolation="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [{0: 99}, {1: 4}, {0: -1}, {0: 1, 1: -(2**63)}])
def test_a_start_that_the_topic_does_not_have_is_refused_and_stores_no_position(
    log: lakelog.Root, orders: lakelog.Topic, start: dict[int, int]
) -> None:
    with pytest.raises(errors.OffsetOutOfRangeError, match="expected an offset from 0 to 3, found"):
        values(orders, start=start)
    assert positions(orders) in ({}, {0: None, 1: None})
    orders.append([{"value": "0.3"}], partition=0)
    assert values(orders) == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2"]
    delete_records(engine(log).chain("orders"), 0, 2)
    assert values(orders, "skips", start={0: 1, 1: 2}, skip_deleted=True) == ["0.2", "0.3", "1.2"]


def test_records_that_were_deleted_unread_are_an_error_unless_they_may_be_skipped(
    log: lakelog.Root, orders: lakelog.Topic
) -> None:
    values(orders, start={0: 1, 1: 3})
    orders.append([{"value": "0.3"}, {"value": "0.4"}], partition=0)
    delete_records(engine(log).chain("orders"), 0, 4)
    with lost_records(3, 4):
        values(orders)
    assert values(orders, skip_deleted=True) == ["0.4"]


@pytest.mark.posix("a reader of a store has the small segments in memory before the loop gets the first record")
def test_records_that_are_deleted_while_a_loop_runs_are_an_error_with_the_same_remedy(log: lakelog.Root) -> None:
    topic = log.create_topic("t", config={"segment.bytes": 1024})
    for value in ("a", "b", "c"):
        topic.append([{"key": bytes(900), "value": value}])  # each has a segment of its own
    records, topics = topic.follow("g", stop_at_end=True), engine(log)
    assert next(records).value == b"a"
    part = topics.state("t").partitions[0]
    delete_records(topics.chain("t"), 0, 2)
    for segment in part.segments[:2]:
        topics.storage.delete(data_key(topic.id, 0, segment.name))
    with lost_records(1, 2):
        next(records)
    assert values(topic, skip_deleted=True) == ["c"]


def test_after_what_no_reader_gets_the_lag_is_nothing(log: lakelog.Root, orders: lakelog.Topic) -> None:
    (batch,) = record_batches([{"value": "aborted"}], 0)
    with TransactionWriter(engine(log), 10**9) as transaction:
        transaction.append("orders", batch, 1)
        assert values(orders)[-1] == "1.2"
        assert positions(orders) == {0: 3, 1: 3}
    assert [each.records for each in orders.groups(unread=True)] == [0, 0]
    assert values(orders) == []
    assert [(each.lag, each.records) for each in orders.groups(unread=True)] == [(0, 0), (0, 0)]


def test_the_lag_in_records_leaves_out_what_compaction_has_removed(log: lakelog.Root) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "segment.ms": 1})
    for value in ("a", "b", "c"):
        topic.append([{"key": "k", "value": value}])
        time.sleep(0.01)
    topic.append([{"key": "z", "value": "z"}])
    values(topic, start={0: 0}) and values(topic, "h", start={0: 1})
    topics = engine(log)
    state = topics.state("t")
    compact_topic(topics.storage, topics.chain("t"), topics.config(state), topics.broker, topics.clock, force=True)
    for record in topic.follow("begun", start="earliest"):
        assert record.offset == 2
        break
    found = {each.group: (each.current_offset, each.lag, each.records) for each in topic.groups(unread=True)}
    assert found == {"begun": (0, 4, 2), "g": (4, 0, 0), "h": (4, 0, 0)}
    assert log.groups() == topic.groups()


def test_a_group_that_holds_back_says_so_until_it_says_otherwise(log: lakelog.Root, orders: lakelog.Topic) -> None:
    topics = engine(log)
    for holds_back, expected in ((None, False), (True, True), (None, True), (False, False)):
        options: dict[str, Any] = {} if holds_back is None else {"holds_back": holds_back}
        values(orders, **options)
        (consumer,) = read_consumers(topics.storage, topics.state("orders")).known
        assert (consumer.holds_back, consumer.member) == (expected, "")


def test_a_topic_that_was_deleted_is_an_error(log: lakelog.Root, orders: lakelog.Topic) -> None:
    records = orders.follow("g", poll_seconds=0.01)
    for _ in range(6):
        next(records)
    log.delete_topic("orders")
    with pytest.raises(errors.UnknownTopicError, match="was deleted"):
        next(records)


def test_the_groups_of_a_root_are_those_of_the_topics_that_are_left(
    log: lakelog.Root, orders: lakelog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    values(orders)
    gone = log.create_topic("gone")
    values(gone, "h")
    listed = log.topics()
    log.delete_topic("gone")
    monkeypatch.setattr(lakelog.Root, "topics", lambda _: listed)  # "gone" is deleted after it was listed
    assert log.groups() == orders.groups()


def test_the_age_of_a_record_from_the_future_is_not_known(log: lakelog.Root) -> None:
    topic = log.create_topic("t", config={"message.timestamp.after.max.ms": 2**63 - 1})
    now_ms = time.time_ns() // 1_000_000
    topic.append([{"value": "a", "timestamp": now_ms + 3_600_000}])
    for _ in topic.follow("g"):
        break
    assert [(each.records, each.seconds) for each in topic.groups(unread=True)] == [(1, None)]
    values(topic)
    assert [(each.records, each.seconds) for each in topic.groups(unread=True)] == [(0, 0.0)]


def test_names_of_headers_that_are_not_utf_8_are_refused_and_read_as_kafkas_consumer_reads_them(
    log: lakelog.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t")
    raw = [b"a\xff", b"ok", b"\xed\xa0\x80"]
    names = pa.StringArray.from_buffers(3, *pa.array(raw, pa.binary()).buffers()[1:])
    pairs = pa.StructArray.from_arrays([names, pa.array([b"1", None, b"3"])], ["key", "value"])
    table = pa.table({"value": ["x", "y"], "headers": pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pairs)})
    with pytest.raises(errors.InvalidRecordError, match=r"column `headers`: the name of a header is not UTF-8"):
        topic.append(table)
    assert topic.read().to_arrow().num_rows == 0

    with monkeypatch.context() as other_producer:
        other_producer.setattr(record_columns, "is_utf8", lambda _: True)
        topic.append(table)
    expected = [(("a\ufffd", b"1"), ("ok", None)), (("\ufffd", b"3"),)]
    assert [record.headers for record in topic.follow("g", stop_at_end=True)] == expected
    rows = topic.read()
    for found in (rows.to_arrow().to_pylist(), rows.to_polars().to_dicts(), rows.to_pandas().to_dict("records")):
        assert [tuple((each["key"], each["value"]) for each in row["headers"]) for row in found] == expected
    topic.append(rows)
    assert [record.headers for record in topic.follow("g", stop_at_end=True)] == expected
