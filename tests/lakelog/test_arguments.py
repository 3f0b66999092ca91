"""Arguments of a wrong type, and values that the types allow but Lakelog cannot use: each is a typed error that names the
argument and the value, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import lakelog
from lakelog import errors
from tests.stores import root_at


class NoOffset(tzinfo):
    """A zone that does not know its offset."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> None:
        return None


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/root"


NOWHERE = datetime(2026, 1, 1, tzinfo=NoOffset())
Call = Callable[[Any], object]


@pytest.fixture
def log(tmp_path: Path) -> lakelog.Root:
    log = lakelog.open(root_at(tmp_path / "root"), create=True)
    log.create_topic("t").append([{"value": "kept"}])
    return log


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda log: log.topic("t").follow("g", isolaton="x"), "found the unknown option 'isolaton'. Did you mean isolation?"),
        (lambda log: log.topic("t").follow_batches("g", zzz=1), "found the unknown option 'zzz'. The options are start,"),
        (lambda log: log.topic("t").follow("g", skip_deleted="false"), "skip_deleted: expected a boolean, found str 'false'"),
        (lambda log: log.topic("t").follow("g", stop_at_end=1), "stop_at_end: expected a boolean, found int 1"),
        (lambda log: next(log.topic("t").follow("g", start=NOWHERE)), "Give earliest, latest, a datetime with a zone"),
        (lambda log: log.topic("t").read(NOWHERE), "Give earliest, latest, a datetime with a zone"),
        (lambda log: log.topic("t").groups(unread="no"), "unread: expected a boolean, found str 'no'"),
        (lambda log: log.groups(unread=None), "unread: expected a boolean, found NoneType None"),
        (lambda log: log.plan(force=1), "force: expected a boolean, found int 1. Give True or False."),
        (lambda log: log.plan(at=NOWHERE), "at: found a time without a time zone"),
        (lambda log: log.verify(deep="yes"), "deep: expected a boolean, found str 'yes'"),
        (lambda log: log.verify(repair=1), "repair: expected a boolean, found int 1"),
        (lambda log: log.create_topic("x", 1, {5: 1}), "config: expected a text as each key, found int 5"),
        (lambda log: lakelog.open(log.uri, create=cast("bool", "no")), "create: expected a boolean, found str 'no'"),
        (lambda log: lakelog.open(cast("str", BytesPath())), "root: expected a path or a URI, found bytes b'/root'"),
    ],
)  # fmt: skip
def test_an_argument_is_named_and_nothing_is_changed(log: lakelog.Root, call: Call, told: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        call(log)
    assert told in str(raised.value)
    assert (log.topics(), log.groups()) == (["t"], [])


@pytest.mark.parametrize("name", [["t"], None, "\ud800", "a\0b", "é", "", 5])
def test_a_name_that_no_topic_can_have_is_refused(log: lakelog.Root, name: Any) -> None:
    calls: list[Call] = [log.topic, log.describe, log.plan, log.delete_topic]
    if name is not None:
        calls.append(log.verify)
    for call in calls:
        with pytest.raises(errors.InvalidTopicNameError):
            call(name)
    with pytest.raises(errors.InvalidTopicNameError), log.transaction() as transaction:
        transaction.append(name, [{"value": "x"}])


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (pa.array([2**60], pa.timestamp("s", "UTC")), "found a time that is too early or too late"),
        (pa.array([-(2**63) + 1], pa.timestamp("us", "UTC")), "found a time that is too early or too late"),
        (pa.array([-(2**63)], pa.timestamp("ns", "UTC")), "found a time that is too early or too late"),
        (pa.array([-1], pa.timestamp("ms", "UTC")), "found a time before 1970"),
        (pa.array([-1], pa.timestamp("ns", "UTC")), "found a time before 1970"),
    ],
    ids=str,
)
def test_a_time_that_is_no_timestamp_is_refused(log: lakelog.Root, times: pa.Array, told: str) -> None:
    with pytest.raises(errors.InvalidRecordError) as raised:
        log.topic("t").append(pa.table({"value": ["x"], "timestamp": times}))
    assert str(raised.value).startswith(f"column `timestamp`: {told}")
    assert "-9223" not in str(raised.value)
    for given in (np.array([5]), np.bool_(True), np.datetime64(5, "ms"), 2**63):
        with pytest.raises(errors.InvalidRecordError, match="record 0: expected a time or whole milliseconds"):
            log.topic("t").append([{"value": "x", "timestamp": given}])
    for moment in (NOWHERE, datetime.fromisoformat("1969-12-31T23:59:59.999Z")):
        with pytest.raises(errors.InvalidRecordError, match="record 0: found a time"):
            log.topic("t").append([{"value": "x", "timestamp": moment}])
    assert log.topic("t").read().to_arrow()["value"].to_pylist() == [b"kept"]


def test_rows_without_timestamps_are_appended_again_with_their_timestamps_as_milliseconds(log: lakelog.Root) -> None:
    """The steps of docs/API.md: `read` returns a time that `append` refuses."""
    topic = log.topic("t")
    topic.append([{"value": "a", "timestamp": -1}, {"value": "b", "timestamp": 5}])
    rows = topic.read({0: 1}).to_arrow()
    assert rows["timestamp"].to_pylist() == [
        datetime.fromisoformat("1969-12-31T23:59:59.999Z"), datetime.fromisoformat("1970-01-01T00:00:00.005Z"),
    ]  # fmt: skip
    with pytest.raises(errors.InvalidRecordError, match="column `timestamp`: found a time before 1970"):
        topic.append(rows)
    milliseconds = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    topic.append(rows.drop_columns("timestamp").append_column("timestamp", milliseconds))
    assert topic.read({0: 3}).to_arrow().select(["value", "timestamp"]) == rows.select(["value", "timestamp"])


def test_whole_numbers_of_other_libraries_and_unknown_zones_are_taken(log: lakelog.Root) -> None:
    topic = log.topic("t")
    topic.append([{"value": "a", "timestamp": np.int64(5)}])
    topic.append(pa.table({"value": ["b"], "timestamp": pa.array([6_999], pa.timestamp("us", "No/Where"))}))
    rows = topic.read({0: 1}).to_arrow().select(["value", "timestamp"]).cast(
        pa.schema([("value", pa.string()), ("timestamp", pa.int64())])
    )  # fmt: skip
    assert rows.to_pylist() == [{"value": "a", "timestamp": 5_000}, {"value": "b", "timestamp": 6_000}]


def test_a_deleted_topic_has_no_table(log: lakelog.Root) -> None:
    topic = log.topic("t")
    log.delete_topic("t")
    with pytest.raises(errors.UnknownTopicError, match="was deleted"):
        topic.table()
