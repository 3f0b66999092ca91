"""Kills a program with kill -9. The program's two streams write to several topics, and share one of these topics.
Meanwhile maintenance cleans all topics, and another program appends to a further topic.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from kafka.partitioner.default import murmur2

import lakelog
from tests.faults.processes.programs import Gated, Program
from tests.faults.processes.source import Source
from tests.faults.processes.streams.copier import checkpoint_of
from tests.faults.processes.streams.feeder import Entry, Feeder
from tests.faults.processes.streams.restarts import Restarts, query_into
from tests.faults.processes.streams.spreader import FILES, FIRST, PARTITIONS, ROWS, SECOND, SHARED, Written, expected
from tests.stores import root_at

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
KILLS = int(os.environ.get("KILLS", "2"))
QUERIES = (FIRST, SECOND)
OTHER = "other"
SMALL = {"segment.bytes": 10_000, "file.delete.delay.ms": 0, "retention.ms": -1}
CLEANED_OFTEN = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0.01, "retention.bytes": 20_000}
AHEAD = 6
"""The number of micro-batches for which files are written in advance."""


@pytest.mark.spark
@pytest.mark.slow
def test_however_often_a_writing_stream_is_killed_every_row_comes_once(tmp_path: Path) -> None:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    chance, began = random.Random(SEED), time.monotonic()
    root = root_at(tmp_path / "root")
    log = lakelog.open(root, create=True)
    for topic in (*QUERIES, SHARED):
        log.create_topic(topic, PARTITIONS, SMALL)
    log.create_topic(OTHER, PARTITIONS, SMALL | CLEANED_OFTEN)
    sources = {}
    for query in QUERIES:
        (folder := tmp_path / query).mkdir()
        sources[query] = Source(folder, ROWS, FILES)
        sources[query].reach(1)
    feeder = Feeder(root, (OTHER,), chance.random())
    queries = [query_into(root, [query, SHARED], query, checkpoint_of(tmp_path, query)) for query in QUERIES]

    def start() -> Gated:
        module = "tests.faults.processes.streams.spreader"
        return Gated(tmp_path, module, root, tmp_path)

    def supply(_: Gated) -> None:
        for query in queries:
            sources[query.name].reach(query.begun + 1 + AHEAD)

    restarts = Restarts(queries, start, chance, supply)
    with ExitStack() as stack:
        stack.callback(restarts.end)
        janitor = Program(tmp_path, "tests.faults.processes.janitor", root, *QUERIES, SHARED, OTHER)
        stack.callback(janitor.kill)
        feeder.start()
        stack.callback(feeder.stop)
        restarts.run(KILLS, feeder.stop)
        cleaned = janitor.end()
    found = [each for topic in (*QUERIES, SHARED) for each in written_records(log.topic(topic))]
    check_written({query: sources[query].written for query in QUERIES}, found)
    check_order(found)
    for row in log.topic(OTHER).read().to_arrow().to_pylist():
        assert feeder.committed[OTHER, row["partition"]][row["offset"]] == Entry.of(row)
    print(f"{restarts}; {len(found)} rows, {cleaned}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    assert cleaned["segments compacted"], "compaction did nothing"
    assert cleaned["segments retained"], "retention did nothing"


def written_records(topic: lakelog.Topic) -> list[Written]:
    """All records of a topic, in the order of the log. Fails if a partition has a gap."""
    found = []
    ends: Counter[int] = Counter()
    for row in topic.read().to_arrow().to_pylist():
        assert row["offset"] == ends[row["partition"]], f"{topic.name} has a gap"
        ends[row["partition"]] += 1
        found.append(Written(topic.name, row["partition"], Entry.of(row)))
    assert ends == {number: part.high_watermark for number, part in enumerate(topic.describe().partitions)}
    return found


def check_written(files: dict[str, int], found: list[Written]) -> None:
    """Just the rows of the files were written, and each to the partition that it names, or to the one of its key."""
    rows = [expected(query, file, row) for query in files for file in range(files[query]) for row in range(ROWS)]
    times = Counter((each.topic, each.entry) for each in found)
    times.subtract((each.topic, each.entry) for each in rows)
    wrong = {each: surplus for each, surplus in times.items() if surplus}
    assert not wrong, f"{len(wrong)} rows are doubled (1) or lost (-1), such as {list(wrong.items())[:3]}"
    places = {each.entry: each.partition for each in found}
    for each in rows:
        if each.partition is not None:
            assert places[each.entry] == each.partition, each
        elif each.entry.key is not None:
            assert places[each.entry] == (murmur2(each.entry.key) & 0x7FFFFFFF) % PARTITIONS, each


def check_order(found: list[Written]) -> None:
    """The rows of a file are in its order in each partition."""
    number = {
        expected(query, file, row).entry.timestamp: (query, file)
        for query in QUERIES
        for file in range(len(found) // ROWS + 1)
        for row in range(ROWS)
    }
    times = defaultdict(list)
    for each in found:
        times[each.topic, each.partition, number[each.entry.timestamp]].append(each.entry.timestamp)
    for where, in_order in times.items():
        assert all(one < other for one, other in pairwise(in_order)), f"{where}: out of order"
