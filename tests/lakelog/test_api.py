"""`import lakelog`: rows come back complete and unchanged, in every form in which they can be passed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import cli, errors
from lakelog.rows import ROWS
from storage_engine import errors as engine_errors
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.topics import Topics
from tests.in_process import run_in_process
from tests.stores import root_at, storage_at

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GIVEN: list[dict[str, Any]] = [
    {"key": b"a", "value": b"1", "headers": [("h", b"x"), ("h", None)], "timestamp": NOON},
    {"key": None, "value": b"", "headers": [], "timestamp": NOON + timedelta(milliseconds=1)},
    {"key": b"", "value": None, "headers": [("", b"")], "timestamp": NOON + timedelta(milliseconds=2)},
]
WITHOUT_ZONE = pa.array([1], pa.timestamp("ms"))
UNNAMED = pa.array([[(None, b"a")]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
READ = [
    {**row, "topic": "orders", "partition": 0, "offset": offset, "timestampType": 0}
    | {"headers": [{"key": name, "value": value} for name, value in row["headers"]]}
    for offset, row in enumerate(GIVEN)
]


@pytest.fixture
def log(tmp_path: Path) -> lakelog.Root:
    return lakelog.open(root_at(tmp_path / "root"), create=True)


@pytest.fixture
def orders(log: lakelog.Root) -> lakelog.Topic:
    return log.create_topic("orders")


def read(topic: lakelog.Topic, *args: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows as dicts, in the order of ROWS."""
    rows: list[dict[str, Any]] = topic.read(*args, **options).to_arrow().to_pylist()
    return rows


def query(rows: lakelog.Rows, sql: str) -> duckdb.DuckDBPyRelation:
    """DuckDB finds `rows` by its name here."""
    relation = duckdb.query(sql)
    assert relation is not None
    return relation


def test_the_import_is_quick_and_brings_nothing_along() -> None:
    program = (
        "import sys, lakelog; assert set(lakelog.__all__) <= set(dir(lakelog)); lakelog.errors.LogError\n"
        "heavy = {'numba', 'pyspark', 'pydantic', 'pyarrow', 'numpy', 'typer', 'rich'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_error_has_the_name_that_people_import() -> None:
    kinds = {
        name
        for name, each in vars(engine_errors).items()
        if isinstance(each, type) and issubclass(each, errors.LogError)
    }
    assert set(errors.__all__) == kinds | {"MissingPackageError"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        lakelog.Broker  # noqa: B018


def test_dicts_come_back_as_they_were_given(orders: lakelog.Topic) -> None:
    assert orders.append(GIVEN) == {0: range(3)}
    assert read(orders) == READ
    assert orders.read().to_arrow().schema == ROWS


def test_rows_in_every_form_can_be_appended_again(orders: lakelog.Topic) -> None:
    orders.append(GIVEN)
    rows = orders.read()
    forms = [
        rows, rows.to_arrow(), rows.to_reader(), rows.to_pandas(), rows.to_polars(), rows.to_arrow().to_pylist(),
        rows.to_arrow().to_batches()[0], query(rows, 'SELECT * FROM rows ORDER BY "offset"').to_arrow_table(),
    ]  # fmt: skip
    for number, form in enumerate(forms, 1):
        assert orders.append(form) == {0: range(3 * number, 3 * number + 3)}, type(form)
    expected = [row | {"offset": 3 * times + row["offset"]} for times in range(len(forms) + 1) for row in READ]
    assert read(orders) == expected


@pytest.mark.parametrize(
    ("column", "stored"),
    [
        (pa.array([5], pa.int64()), 5),
        (pa.array([5], pa.int32()), 5),
        (pa.array([1_500_999], pa.timestamp("ns", "UTC")), 1),
        (pa.array([1_999], pa.timestamp("us", "Europe/Berlin")), 1),
        (pa.array([7], pa.timestamp("s", "UTC")), 7_000),
    ],
    ids=str,
)
def test_times_are_stored_in_whole_milliseconds(orders: lakelog.Topic, column: pa.Array, stored: int) -> None:
    orders.append(pa.table({"value": ["x"], "timestamp": column}))
    (row,) = read(orders)
    assert row["timestamp"] == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=stored)


def test_rows_that_are_read_and_appended_again_keep_their_times(orders: lakelog.Topic) -> None:
    times = [542_506_294_550 + 3_919_000_003 * number for number in range(300)]
    orders.append(pa.table({"value": ["x"] * len(times), "timestamp": pa.array(times, pa.int64())}), partition=0)
    orders.append(read(orders), partition=0)
    found = orders.read().to_arrow()["timestamp"].cast(pa.int64()).to_pylist()
    assert found == [1_000 * each for each in times] * 2


def test_a_time_between_two_milliseconds_leaves_out_the_earlier_record(log: lakelog.Root) -> None:
    topic = log.create_topic("t")
    topic.append([{"value": str(ms), "timestamp": ms} for ms in (1_000, 1_001, 2_000)])
    start = datetime(1970, 1, 1, 0, 0, 1, 400, UTC)
    assert [row["value"] for row in read(topic, start)] == [b"1001", b"2000"]
    assert [each.value for each in topic.follow("g", start=start, stop_at_end=True)] == [b"1001", b"2000"]


def test_a_time_finds_the_first_record_although_deleted_records_are_later(log: lakelog.Root, tmp_path: Path) -> None:
    topic = log.create_topic("t", config={"segment.bytes": "1024"})
    for second in (9, 8, 1, 2, 3):  # each record has a segment of its own
        topic.append([{"key": str(second), "value": bytes(900), "timestamp": second * 1_000}])
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), SystemClock())
    delete_records(topics.chain("t"), 0, 2)
    assert len(topics.state("t").partitions[0].segments) == 5
    assert [row["key"] for row in read(topic, datetime.fromtimestamp(1.5, UTC))] == [b"2", b"3"]


def test_a_record_without_a_time_gets_the_time_of_the_append(orders: lakelog.Topic) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    orders.append([{"value": "a"}, {"value": "b", "timestamp": None}])
    orders.append(pa.table({"value": ["c", "d"], "timestamp": pa.array([None, 5], pa.int64())}))
    a, b, c, d = (row["timestamp"] for row in read(orders))
    assert before <= a == b <= c <= datetime.now(UTC)
    assert d == datetime.fromtimestamp(0.005, UTC)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    ids=str,
)
def test_text_and_bytes_of_every_width_are_taken(orders: lakelog.Topic, kind: pa.DataType) -> None:
    column = pa.array(["k\u00e9", None], pa.string()).cast(pa.binary()).cast(kind)
    orders.append(pa.table({"key": column, "value": column}))
    assert [(row["key"], row["value"]) for row in read(orders)] == [("k\u00e9".encode(),) * 2, (None, None)]


def test_columns_of_repeated_text_are_taken(orders: lakelog.Topic) -> None:
    orders.append(
        pl.DataFrame({"key": ["a", "b", "a"], "value": ["x", "y", "x"]}, schema_overrides={"key": pl.Categorical})
    )
    assert [(row["key"], row["value"]) for row in read(orders)] == [(b"a", b"x"), (b"b", b"y"), (b"a", b"x")]


@pytest.mark.parametrize(
    ("records", "place", "problem"),
    [
        (7, "records", "found int"),
        ("text", "records", "found str"),
        ({"value": 1}, "records", "found dict"),
        ([7], "record 0", "expected a dict, found int"),
        ([{"value": b"a"}, {"key": "secret"}], "record 1", "value is missing"),
        ([{"value": "a", "vlaue": "b"}], "record 0", "expected key, value, headers, timestamp; found 'vlaue'"),
        ([{"value": 7}], "record 0", "expected bytes, text or None as value, found int"),
        ([{"value": "\ud800"}], "record 0", "value is text with half a surrogate pair, which UTF-8 cannot encode"),
        ([{"value": "a", "headers": "secret"}], "record 0", "expected pairs of a name and a value as headers, found str"),
        ([{"value": "a", "headers": [("a", 1)]}], "record 0", "expected bytes, text or None as a header's value, found int"),
        ([{"value": "a", "headers": [(1, b"a")]}], "record 0", "expected each header as a pair of a name and a value"),
        ([{"value": "a", "timestamp": True}], "record 0", "expected a time or whole milliseconds as the timestamp, found bool"),
        ([{"value": "a", "timestamp": datetime(2026, 1, 1)}], "record 0", "found a timestamp without a zone"),  # noqa: DTZ001
        (pa.table({"key": ["a"]}), "columns", "value is missing"),
        (pa.table({"value": [1]}), "column `value`", "expected bytes or text, found int64"),
        (pa.table({"value": pa.array([], pa.int8())}), "column `value`", "expected bytes or text, found int8"),
        (pa.table([["a"], ["b"]], ["value", "value"]), "column `value`", "occurs twice"),
        (pa.table({"value": ["a"], "headers": ["secret"]}), "column `headers`", "found string"),
        (pa.table({"value": ["a"], "headers": UNNAMED}), "column `headers`", "a name for each header"),
        (pa.table({"value": ["a"], "timestamp": ["secret"]}), "column `timestamp`", "found string"),
        (pa.table({"value": ["a"], "timestamp": WITHOUT_ZONE}), "column `timestamp`", "found times without a zone"),
        (pa.chunked_array([["a"]]), "records", "found ChunkedArray, which cannot be converted to an Arrow table"),
        (pd.DataFrame({"value": ["secret", b"a", 1]}), "records", "found DataFrame, which cannot be converted to an Arrow table"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_and_nothing_is_appended(
    orders: lakelog.Topic, records: object, place: str, problem: str
) -> None:
    with pytest.raises(errors.InvalidRecordError) as caught:
        orders.append(records)
    assert caught.value.place == place
    assert problem in caught.value.problem
    assert "secret" not in str(caught.value)
    assert read(orders) == []


def test_a_record_that_the_topic_may_not_hold_takes_the_whole_append_along(log: lakelog.Root) -> None:
    small = log.create_topic("small", config={"max.message.bytes": 1000})
    with pytest.raises(errors.RecordTooLargeError, match="record 1"):
        small.append([{"value": "fits"}, {"value": b"x" * 2000}])
    keyed = log.create_topic("keyed", config={"cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecordError):
        keyed.append([{"key": "a", "value": "fits"}, {"value": "without a key"}])
    assert read(small) == read(keyed) == []


def test_keys_choose_partitions_as_kafka_does_and_a_partition_can_be_named(log: lakelog.Root) -> None:
    wide = log.create_topic("wide", partitions=4)
    # Kafka's murmur2 of these keys modulo 4, from kafka-python's DefaultPartitioner.
    offsets = wide.append([{"key": key, "value": key} for key in ("a", "b", "c", "d", "a")])
    assert {number: [row["key"] for row in read(wide, partitions=[number])] for number in range(4)} == expected_keys()
    assert {number: len(each) for number, each in offsets.items()} == {
        number: len(keys) for number, keys in expected_keys().items() if keys
    }
    assert wide.append([{"value": "all"}] * 3, partition=3) == {
        3: range(len(expected_keys()[3]), len(expected_keys()[3]) + 3)
    }
    with pytest.raises(errors.InvalidRecordError, match="has partitions 0 to 3, but no partition 4"):
        wide.append([{"value": "x"}], partition=4)


def expected_keys() -> dict[int, list[bytes]]:
    from kafka.partitioner.default import murmur2

    keys: dict[int, list[bytes]] = {number: [] for number in range(4)}
    for key in (b"a", b"b", b"c", b"d", b"a"):
        keys[(murmur2(key) & 0x7FFFFFFF) % 4].append(key)
    return keys


def test_reading_starts_where_it_is_told(log: lakelog.Root) -> None:
    topic = log.create_topic("timed", partitions=2)
    for number in range(2):
        topic.append(
            [{"value": f"{number}{at}", "timestamp": NOON + timedelta(hours=at)} for at in range(3)], partition=number
        )
    values = [row["value"] for row in read(topic)]
    assert values == [b"00", b"01", b"02", b"10", b"11", b"12"]
    in_berlin = (NOON + timedelta(minutes=61)).astimezone(timezone(timedelta(hours=1)))
    assert [row["value"] for row in read(topic, in_berlin)] == [b"02", b"12"]
    assert [row["value"] for row in read(topic, {1: 2})] == [b"00", b"01", b"02", b"12"]
    assert [row["value"] for row in read(topic, {1: 3}, partitions=[1, 1])] == []
    assert read(topic, "latest") == []
    assert read(topic, NOON + timedelta(days=1)) == []
    for before_1970 in (1, 2, 3, 4, 5, 86_400_000):  # some negative times have a special meaning in Kafka's ListOffsets
        assert [
            row["value"] for row in read(topic, datetime.fromtimestamp(0, UTC) - timedelta(milliseconds=before_1970))
        ] == values


@pytest.mark.parametrize(
    ("start", "options", "error"),
    [
        ("newest", {}, errors.ConfigError),
        (7, {}, errors.ConfigError),
        (datetime(2026, 1, 1), {}, errors.ConfigError),  # noqa: DTZ001
        ("earliest", {"isolation": "snapshot"}, errors.ConfigError),
        ("earliest", {"partitions": [1]}, errors.UnknownTopicError),
        ({1: 0}, {}, errors.UnknownTopicError),
        ({0: 9}, {}, errors.OffsetOutOfRangeError),
    ],
)
def test_a_start_that_cannot_be_is_refused(
    orders: lakelog.Topic, start: Any, options: dict[str, Any], error: type[errors.LogError]
) -> None:
    orders.append(GIVEN)
    with pytest.raises(error):
        orders.read(start, **options)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda log: log.topic("t").append([{"value": "x"}], partition="0"), "partition: expected a whole number, found str '0'"),
        (lambda log: log.topic("t").append([{"value": "x"}], partition=True), "partition: expected a whole number, found bool"),
        (lambda log: log.topic("t").append([{"value": "x"}], partition=1.0), "partition: expected a whole number, found float"),
        (lambda log: log.topic("t").read(partitions=["0"]), "partitions: expected a whole number, found str '0'"),
        (lambda log: log.topic("t").read(partitions=[False]), "partitions: expected a whole number, found bool False"),
        (lambda log: log.topic("t").read(partitions=0), "partitions: expected several whole numbers, found int 0"),
        (lambda log: log.topic("t").read(partitions="01"), "partitions: expected several whole numbers, found str '01'"),
        (lambda log: log.topic("t").read(start={"0": 0}), "start: expected a whole number, found str '0'. Give partitions"),
        (lambda log: log.topic("t").read(start={0: "5"}), "start: expected a whole number, found str '5'. Give partitions"),
        (lambda log: log.topic("t").read(start={0: True}), "start: expected a whole number, found bool True"),
        (lambda log: log.topic("t").follow("g", start={"0": 0}), "start: expected a whole number, found str '0'"),
        (lambda log: log.topic("t").follow("\ud800"), "group: found half a surrogate pair in '\\ud800', which UTF-8"),
        (lambda log: log.topic("t").follow(5), "group: expected a text, found int 5. Name the group."),
        (lambda log: log.topic("t").follow("g", poll_seconds=float("nan")), "poll_seconds: expected a number of seconds, found"),
        (lambda log: log.topic("t").follow("g", poll_seconds=-1), "poll_seconds: expected a number of seconds, found int -1"),
        (lambda log: log.topic("t").follow("g", poll_seconds="1"), "poll_seconds: expected a number of seconds, found str"),
        (lambda log: log.topic("t").follow_batches("g", poll_seconds=1e12), "Give 0 or more, and at most a year."),
        (lambda log: log.topic("t").follow("g", holds_back="no"), "holds_back: expected a boolean, found str 'no'."),
        (lambda log: lakelog.open(cast("str", 5)), "root: expected a path or a URI, found int 5. Give the path or the URI"),
        (lambda log: log.create_topic("x", partitions="2"), "partitions: expected a whole number, found str '2'"),
        (lambda log: log.create_topic("x", partitions=1.5), "partitions: expected a whole number, found float 1.5"),
        (lambda log: log.create_topic("x", partitions=True), "partitions: expected a whole number, found bool True"),
        (lambda log: log.create_topic("x", config=["a"]), "config: expected a dict, found list ['a']"),
        (lambda log: log.transaction(timeout_seconds="5"), "timeout_seconds: expected a number of seconds, found str '5'"),
        (lambda log: log.transaction(timeout_seconds=None), "timeout_seconds: expected a number of seconds, found NoneType"),
        (lambda log: log.plan(at="2026-01-01"), "at: expected a datetime, found str '2026-01-01'. Give a datetime with"),
        (
            lambda log: log.plan(at=datetime(1969, 12, 31, tzinfo=UTC)),
            "at: found 1969-12-31 00:00:00+00:00. Give a time from 1970 on.",
        ),
        (lambda log: log.verify("t", "0"), "partition: expected a whole number, found str '0'"),
        (lambda log: log.verify(threads="1"), "threads: expected a whole number, found str '1'. Give 1 or more."),
    ],
)  # fmt: skip
def test_an_argument_of_a_wrong_type_is_named_and_changes_nothing(
    log: lakelog.Root, call: Callable[[lakelog.Root], object], told: str
) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.append([{"value": "kept"}], partition=1)
    with pytest.raises(errors.ConfigError, match=re.escape(told)):
        call(log)
    assert (log.topics(), topic.groups()) == (["t"], [])
    assert [row["value"] for row in read(topic)] == [b"kept"]


def test_a_topic_whose_name_is_no_text_is_refused(log: lakelog.Root) -> None:
    name: Any = 5
    for call in (log.topic, log.create_topic, log.delete_topic, log.describe, log.plan):
        with pytest.raises(errors.InvalidTopicNameError, match="topic 5: expected a text, found int"):
            call(name)
    assert log.topics() == []


def test_integers_of_numpy_are_whole_numbers(log: lakelog.Root) -> None:
    one: Any = np.int32(1)
    chosen: Any = np.array([1])
    topic = log.create_topic("t", partitions=one + one)
    assert topic.append([{"value": "a"}, {"value": "b"}], partition=one) == {1: range(2)}
    assert topic.read({one: one}, partitions=chosen).ranges == {1: range(1, 2)}
    followed = topic.follow("g", start={one: one}, stop_at_end=True, poll_seconds=np.float64(1))
    assert [record.value for record in followed] == [b"b"]
    assert [each.current_offset for each in topic.groups()] == [0, 2]


def test_rows_are_those_of_the_moment_of_read_and_can_be_read_again(orders: lakelog.Topic) -> None:
    orders.append(GIVEN)
    rows = orders.read()
    orders.append([{"value": "later"}])
    assert rows.to_arrow().to_pylist() == rows.to_arrow().to_pylist() == READ
    assert rows.ranges == {0: range(3)}
    assert query(rows, 'SELECT count(*), count("key"), count("value") FROM rows').fetchall() == [(3, 2, 2)]


def test_a_reader_of_committed_records_sees_nothing_of_an_open_transaction(
    orders: lakelog.Topic, tmp_path: Path
) -> None:
    orders.append(GIVEN)
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), SystemClock())
    with TransactionWriter(topics) as transaction:
        transaction.append("orders", as_appended("open"))
        assert read(orders) == READ
        assert [row["value"] for row in read(orders, {0: 3}, isolation="read_uncommitted")] == [b"open"]
        transaction.commit()
    assert [row["value"] for row in read(orders, {0: 3})] == [b"open"]


def as_appended(value: str) -> pa.RecordBatch:
    from lakelog.given_records import record_batches

    (batch,) = record_batches([{"value": value}], 0)
    return batch


@pytest.mark.posix("reads the view")
def test_the_tool_reads_what_was_appended_and_the_view_shows_it(orders: lakelog.Topic, tmp_path: Path) -> None:
    shown = tmp_path / "root/log/orders-0/00000000000000000000.log"
    assert shown.stat().st_size == 0, "a topic is shown when it is created"
    orders.append(GIVEN)
    assert shown.stat().st_size > 0
    ended = run_in_process(cli.main, ["lakelog", "verify", "--root", root_at(tmp_path / "root")])
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.posix("writes into the view")
def test_a_view_that_cannot_be_settled_is_a_warning_and_the_commit_stands(log: lakelog.Root, tmp_path: Path) -> None:
    (tmp_path / "root/log").mkdir(parents=True)
    (tmp_path / "root/log/syslog").write_text("somebody else's")
    said = "committed, but log/ does not show the change yet"
    with pytest.warns(UserWarning, match=said) as at_creation:
        orders = log.create_topic("orders")
    with pytest.warns(UserWarning, match=said) as at_append:
        offsets = orders.append(GIVEN)
    assert offsets == {0: range(3)}
    assert [each.filename for each in (*at_creation, *at_append)] == [__file__] * 2, (
        "each warning names the caller's line"
    )
    assert read(orders) == READ


@pytest.mark.posix("names local roots")
def test_a_path_that_is_no_root_is_an_error_unless_it_is_to_become_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.NoRootError):
        lakelog.open(tmp_path)
    with pytest.raises(errors.NoRootError):
        lakelog.open(tmp_path / "mistyped")
    assert lakelog.open(os.fspath(tmp_path / "new"), create=True).topics() == []
    with pytest.raises(errors.UsageError):
        lakelog.open("ftp://host/root")


def test_topics_are_listed_described_and_deleted(log: lakelog.Root, orders: lakelog.Topic, tmp_path: Path) -> None:
    log.create_topic("a", partitions=3, config={"retention.ms": 5_000})
    assert log.topics() == ["a", "orders"]
    assert (log.topic("a").partitions, log.topic("a").config) == (3, {"retention.ms": "5000"})
    with pytest.raises(errors.TopicExistsError):
        log.create_topic("a")
    log.delete_topic("orders")
    assert not (tmp_path / "root/log/orders-0").exists()
    with pytest.raises(errors.UnknownTopicError):
        log.topic("orders")
    again = log.create_topic("orders")
    assert again.id != orders.id
    for use in (orders.read, lambda: orders.append(GIVEN), lambda: orders.partitions):
        with pytest.raises(errors.UnknownTopicError, match="was deleted"):
            use()
    assert read(again) == []
