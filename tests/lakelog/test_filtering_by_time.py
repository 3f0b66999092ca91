"""Topic.read(where=...) with bounds on the timestamp: no row is lost in any order of timestamps, and few bytes
are read if timestamps rise.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from lakelog.topic import Topic
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

START = 1_700_000_000_000
SMALL = {
    "segment.bytes": "12000", "max.message.bytes": "700", "index.interval.bytes": "500", "retention.ms": "-1",
    "segment.ms": str(2**62),
}  # fmt: skip
f = pc.field


class CountingStorage(PosixStorage):
    """Counts the bytes that are read, by the suffix of the file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_bytes: Counter[str] = Counter()

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().read(key, start, length)
        self.read_bytes[key.rpartition(".")[2]] += len(data)
        return data


def append(topics: Topics, times: Iterable[int]) -> None:
    """One commit."""
    config = topics.config(topics.state("t"))
    rows = [Row(b"%d" % (number % 50), b"v" * 40, (), time) for number, time in enumerate(times)]
    append_records(topics.storage, topics.chain("t"), config, topics.clock, to_table(rows), 0)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START + ms)


def some_filters(chance: random.Random, count: int) -> list[pc.Expression]:
    """Time ranges of all lengths, open and closed, alone and together with other conditions."""
    time, found = f("timestamp"), []
    for _ in range(count):
        low = chance.randrange(-70_000, 560_000)
        high = low + chance.choice([0, 1, 900, 20_000, 300_000])
        found += [
            time >= at(low),
            time < at(low),
            (time >= at(low)) & (time < at(high)),
            (time > at(low)) & (time <= at(high)) & (f("offset") > chance.randrange(500)),
            (time == at(low)) | ((time >= at(high)) & (f("key") == "7")),
            ~(time > at(low)),
        ]
    return [*found, time < at(-START), time.isin([at(100_000), at(101_000)]), time.is_null()]


def forget_times(topics: Topics) -> None:
    """Make the state one of an earlier version."""

    def forget(state: Any) -> Any:
        (part,) = state.partitions
        segments = [each._replace(smallest_timestamp=None, largest_lateness_ms=None) for each in part.segments]
        return state.with_partitions({0: part.model_copy(update={"segments": tuple(segments)})})

    topics.chain("t").commit(forget, "as a root of an earlier version")


@pytest.mark.parametrize("kind", ["out of order", "some late by much", "some without a time", "append time", "rising"])
def test_the_rows_are_those_that_a_filter_of_all_rows_leaves(tmp_path: Path, kind: str) -> None:
    topics, chance = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(START)), random.Random(kind)
    more = {"message.timestamp.type": "LogAppendTime"} if kind == "append time" else {}
    topics.create("t", 1, SMALL | more | {"cleanup.policy": "compact"})
    for first in range(0, 500, 100):
        times = [START + number * 1_000 for number in range(first, first + 100)]
        if kind != "rising":
            times = [time + chance.randrange(-3_000, 3_000) for time in times]
        if kind == "some late by much":
            times[chance.randrange(100)] -= chance.randrange(60_000)
        if kind == "some without a time":
            times[chance.randrange(100)] = -1
        topics.clock = ManualClock(START + first * 1_000)
        append(topics, times)
    topic = Topic(topics, topics.state("t"))

    def check(count: int) -> None:
        everything = topic.read().to_arrow()
        for where in some_filters(chance, count):
            assert topic.read(where=where).to_arrow().equals(everything.filter(where)), where
            middle = topic.read({0: 200}, where=where).to_arrow()
            assert middle.equals(everything.filter(where & (f("offset") >= 200))), where

    check(8)
    config = topics.config(topics.state("t"))
    assert compact_topic(topics.storage, topics.chain("t"), config, topics.broker, topics.clock, force=True).cleaned
    check(3)
    topics.alter("t", configs={"segment.bytes": "60000"})
    merge_topic(topics.storage, topics.chain("t"), topics.config(topics.state("t")))
    check(3)
    forget_times(topics)
    check(3)


def test_a_read_of_a_hundredth_of_rising_times_reads_about_a_hundredth_of_the_bytes(tmp_path: Path) -> None:
    storage = CountingStorage(tmp_path)
    topics, counted = Topics(storage, BrokerConfig(), ManualClock(START)), storage.read_bytes
    topics.create("t", 1, SMALL | {"segment.bytes": "1000000000"})
    append(topics, range(START, START + 50_000))
    topic = Topic(topics, topics.state("t"))
    (segment,) = topics.state("t").partitions[0].segments
    hundredths = {}
    wheres = {
        "first": f("timestamp") < at(500),
        "middle": (f("timestamp") >= at(25_000)) & (f("timestamp") < at(25_500)),
        "last": f("timestamp") >= at(49_500),
        "later": f("timestamp") >= at(50_000),
        "earlier": f("timestamp") < at(0),
    }
    for name, where in wheres.items():
        counted.clear()
        rows = topic.read(where=where).to_arrow()
        hundredths[name] = (rows.num_rows, round(counted["log"] / segment.size * 100))
    assert hundredths == {"first": (500, 1), "middle": (500, 1), "last": (500, 1), "later": (0, 0), "earlier": (0, 0)}

    forget_times(topics)
    counted.clear()
    assert topic.read(where=wheres["middle"]).to_arrow().num_rows == 500
    assert round(counted["log"] / segment.size * 100) == 50, "without the numbers, up to the end"
    counted.clear()
    assert topic.read(where=wheres["earlier"]).to_arrow().num_rows == 0
    assert counted["log"] == segment.size
