"""Topic.read(where=...) returns the same rows as a filter on all rows, and does not read data that cannot match."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lakelog
from lakelog import errors
from lakelog.filtering import offsets_that_can_match
from lakelog.opening import open_topics

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
f = pc.field


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> lakelog.Root:
    """Three partitions of three segments with 3,000 records each. Times rise by a second per record, but a few are
    earlier."""
    chance = random.Random(5)
    log = lakelog.open(tmp_path_factory.mktemp("filtered") / "root", create=True)
    topic = log.create_topic("orders", partitions=3)
    for part in range(3):
        for partition in range(3):
            records: list[dict[str, Any]] = [
                {
                    "key": chance.choice(["a", "b", None]),
                    "value": chance.choice([None, chance.randbytes(20), str(number)]),
                    "headers": [("h", b"x")] if number % 2 else [],
                    "timestamp": at(number if number % 97 else number // 2),
                }
                for number in range(part * 3_000, part * 3_000 + 3_000)
            ]
            topic.append(records, partition=partition)
    return log


EXPRESSIONS = [
    f("offset") == 4_711,
    (f("offset") >= 2_500) & (f("offset") < 2_510) & (f("partition") == 1),
    ~(f("offset") < 8_990) | (f("partition") == 7),
    f("offset").isin([3, 8_000]),
    f("partition") != 0,
    (f("partition") == 2) & (f("timestamp") >= at(8_400)),
    f("timestamp") < at(150),
    (f("timestamp") >= at(1_000)) & (f("timestamp") < at(1_100)),
    (f("key") == "a") & f("value").is_null(),
    f("key").is_null() | (f("offset") < 5),
    pc.list_value_length(f("headers")) > 0,
    f("topic") == "payments",
    pc.divide(f("partition") * 0 + 6, f("partition") + 1) == 3,
    pc.scalar(True),
    pc.scalar(False),
]


@pytest.mark.parametrize("where", EXPRESSIONS, ids=str)
def test_the_rows_are_those_that_a_filter_of_all_rows_leaves(log: lakelog.Root, where: pc.Expression) -> None:
    orders = log.topic("orders")
    everything = orders.read().to_arrow()
    assert orders.read(where=where).to_arrow().equals(everything.filter(where))
    later = orders.read({0: 4_000, 1: 100}, partitions=[1, 0], where=where).to_arrow()
    starts = (f("partition") == 0) & (f("offset") >= 4_000), (f("partition") == 1) & (f("offset") >= 100)
    assert later.equals(pa.concat_tables([everything.filter(starts[n] & where) for n in (1, 0)]))


@pytest.mark.parametrize(
    ("where", "most"),
    [
        (f("partition") == 1, {0: 0, 1: 9_000, 2: 0}),
        ((f("offset") >= 2_500) & (f("offset") < 2_510) & (f("partition") == 1), {0: 0, 1: 1_000, 2: 0}),
        (f("offset") == 8_999, {0: 1_000, 1: 1_000, 2: 1_000}),
        (f("timestamp") >= at(8_000), {0: 3_000, 1: 3_000, 2: 3_000}),
        (f("timestamp") > at(9_000), {0: 0, 1: 0, 2: 0}),
        (f("topic") == "payments", {0: 0, 1: 0, 2: 0}),
        (f("key") == "a", {0: 9_000, 1: 9_000, 2: 9_000}),
    ],
    ids=str,
)
def test_what_cannot_match_is_skipped(log: lakelog.Root, where: pc.Expression, most: dict[int, int]) -> None:
    ranges = log.topic("orders").read(where=where).ranges
    assert {number: len(each) <= most[number] for number, each in ranges.items()} == dict.fromkeys(most, True)


def test_a_segment_that_cannot_match_is_not_opened(tmp_path: Path) -> None:
    log = lakelog.open(tmp_path / "root", create=True)
    topic = log.create_topic("orders")
    for first in (0, 1_000, 2_000):
        records = [{"value": b"x" * 20, "timestamp": at(number)} for number in range(first, first + 1_000)]
        topic.append(records)
    logs = sorted((tmp_path / "root/data").rglob("*.log"))
    assert len(logs) == 3
    logs[1].unlink()
    found = topic.read(where=f("timestamp") >= at(2_500)).to_arrow()
    assert found["offset"].to_pylist() == list(range(2_500, 3_000))
    assert topic.read(where=f("offset") < 10).to_arrow()["offset"].to_pylist() == list(range(10))
    with pytest.raises(errors.LogError):
        topic.read(where=f("timestamp") >= at(1_500)).to_arrow()


def test_bounds_hold_in_a_log_with_gaps_and_with_times_that_do_not_fit(tmp_path: Path) -> None:
    log = lakelog.open(tmp_path / "root", create=True)
    config = {"message.timestamp.after.max.ms": 2**63 - 1}
    log.create_topic("orders", config=config).append([{"value": "a", "timestamp": 2**62}])
    topics = open_topics(str(tmp_path / "root"), None, print)
    storage, state = topics.storage, topics.state("orders")
    assert offsets_that_can_match(f("timestamp") < NOON, storage, state, 0, range(1)) == range(1)
    assert offsets_that_can_match(f("offset") > 5, storage, state, 0, range(1)) == range(0)


def test_times_beyond_the_years_1_to_9999_are_the_first_or_last_of_these_years(tmp_path: Path) -> None:
    log = lakelog.open(tmp_path / "root", create=True)
    config = {f"message.timestamp.{side}.max.ms": 2**63 - 1 for side in ("before", "after")}
    topic = log.create_topic("orders", config=config)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    for times in ([0], [2**63 - 1, 9_223_372_036_854_776, 253_402_300_800_000], [253_402_300_799_999, 1]):
        topic.append([{"value": "a", "timestamp": each} for each in times])
    epoch = datetime.fromtimestamp(0, UTC)
    wanted = [epoch, last, last, last, last, epoch + timedelta(milliseconds=1)]
    assert topic.read().to_arrow()["timestamp"].to_pylist() == wanted
    time = f("timestamp")
    for where, offsets in ((time >= last, [1, 2, 3, 4]), (time > last, []), (time < last, [0, 5])):
        assert topic.read(where=where).to_arrow()["offset"].to_pylist() == offsets
    batches = topic.follow_batches("g", stop_at_end=True)
    assert [each for batch in batches for each in batch["timestamp"].to_pylist()] == wanted


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("offset > 5", "found str"),
        (f("amount") > 5, "No match for FieldRef.Name"),
        (f("value") == 5, "no kernel"),
        (f("offset"), "must evaluate to bool"),
        (f("timestamp") > datetime(2026, 1, 1), "timestamp without timezone"),  # noqa: DTZ001
    ],
    ids=str,
)
def test_what_is_no_filter_of_rows_is_refused_at_once(log: lakelog.Root, where: Any, problem: str) -> None:
    with pytest.raises(errors.ConfigError, match=problem) as caught:
        log.topic("orders").read(where=where)
    assert caught.value.place == "where"


def test_a_filter_that_fails_on_a_row_is_an_error_without_the_row(tmp_path: Path) -> None:
    topic = lakelog.open(tmp_path / "root", create=True).create_topic("orders")
    topic.append([{"value": "5"}, {"value": "secret"}])
    as_number = f("value").cast(pa.string()).cast(pa.int64())
    with pytest.raises(errors.ConfigError) as caught:
        topic.read(where=as_number > 4).to_arrow()
    assert caught.value.problem == ("cannot be evaluated on a row of topic orders, partition 0, offsets 0 to 1")
    assert "secret" not in str(caught.value)
    assert topic.read(where=(f("offset") < 1) & (f("value") == "5")).to_arrow()["value"].to_pylist() == [b"5"]
