"""Kills a program with kill -9. The program's streams read two topics and copy one of these topics. Meanwhile another
program appends to the topics, also in transactions, and maintenance cleans the topics.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lakelog
from tests.faults.processes.programs import Gated, Program
from tests.faults.processes.streams.copier import COMPACTED, COPIED, COPY, PLAIN, STORED, checkpoint_of, stored_file
from tests.faults.processes.streams.feeder import PARTITIONS, Entry, Feeder, Where
from tests.faults.processes.streams.restarts import Query, Restarts, query_into
from tests.stores import root_at

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
KILLS = int(os.environ.get("KILLS", "2"))
SMALL = {"segment.bytes": 10_000, "file.delete.delay.ms": 0, "retention.ms": -1}
COMPACTED_OFTEN = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 500,
    "cleaner.clean.expired.horizons": True,
}
RETAINED_OFTEN = {"retention.bytes": 20_000, "retention.respect.consumers": True}

Offsets = dict[int, Entry]
"""Records by their offsets, in the order in which they were found."""


@pytest.mark.spark
@pytest.mark.slow
def test_however_often_a_reading_stream_is_killed_every_committed_record_comes_once(tmp_path: Path) -> None:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    chance, began = random.Random(SEED), time.monotonic()
    root = root_at(tmp_path / "root")
    log = lakelog.open(root, create=True)
    log.create_topic(COMPACTED, PARTITIONS, SMALL | COMPACTED_OFTEN)
    log.create_topic(PLAIN, PARTITIONS, SMALL | RETAINED_OFTEN)
    copy = log.create_topic(COPY, PARTITIONS, SMALL)
    feeder = Feeder(root, (COMPACTED, PLAIN), chance.random())
    for _ in range(6):
        feeder.append()
    janitors: list[Program] = []
    stack = ExitStack()

    def start() -> Gated:
        module = "tests.faults.processes.streams.copier"
        return Gated(tmp_path, module, root, tmp_path)

    def have_groups() -> bool:
        return {each.group for each in log.groups()} == {COPIED, STORED}

    def begin(program: Gated) -> None:
        """The rest of the world waits for the groups, because nothing else holds back retention."""
        if janitors:
            return
        program.wait_until(lambda: program.has_failed or have_groups())
        if have_groups():
            janitors.append(Program(tmp_path, "tests.faults.processes.janitor", root, COMPACTED, PLAIN, COPY))
            stack.callback(janitors[0].kill)
            feeder.start()

    queries = (
        Query(STORED, checkpoint_of(tmp_path, STORED), [lambda number: stored_file(tmp_path, number).exists()]),
        query_into(root, [COPY], COPIED, checkpoint_of(tmp_path, COPIED)),
    )
    restarts = Restarts(queries, start, chance, begin)
    with stack:
        stack.callback(restarts.end)
        stack.callback(feeder.stop)
        restarts.run(KILLS, feeder.stop)
        cleaned = janitors[0].end()
    stored = stored_records(tmp_path)
    check_read(feeder, stored)
    check_copy(feeder, copy)
    left = {topic: check_log(log.topic(topic), stored) for topic in (COMPACTED, PLAIN)}
    assert {each.lag for each in log.groups()} == {0}
    written, read = (sum(map(len, each.values())) for each in (feeder.committed, stored))
    print(
        f"{restarts}; {written} records committed in {feeder.transactions} transactions and without, "
        f"{sum(map(len, feeder.aborted.values()))} aborted, {read} read, {left} left in the log, {cleaned}, "
        f"{time.monotonic() - began:.0f} s",
        file=sys.stderr,
    )
    assert cleaned["segments compacted"], "compaction did nothing"
    assert cleaned["segments retained"], "retention did nothing"


def stored_records(folder: Path) -> dict[Where, Offsets]:
    """The records in the order of the micro-batches. Fails if an offset comes twice."""
    found: dict[Where, Offsets] = defaultdict(dict)
    for file in sorted(stored_file(folder, 0).parent.glob("*.parquet"), key=lambda each: int(each.stem)):
        for row in pq.read_table(file).to_pylist():
            records = found[row["topic"], row["partition"]]
            assert row["offset"] not in records, f"{row} is doubled"
            records[row["offset"]] = Entry.of(row)
    return found


def check_read(feeder: Feeder, stored: Mapping[Where, Offsets]) -> None:
    for where, committed in feeder.committed.items():
        found = stored[where]
        assert list(found) == sorted(found), f"{where}: out of order"
        assert found == {offset: committed.get(offset) for offset in found}, f"{where}: not what was committed"
        check_missing(where, committed, set(found))
    assert stored.keys() == feeder.committed.keys()


def check_copy(feeder: Feeder, copy: lakelog.Topic) -> None:
    """The copy has other offsets, so its records are found again as a whole."""
    original = {entry: offset for where in feeder.committed for offset, entry in feeder.committed[where].items()}
    found: dict[int, list[Entry]] = defaultdict(list)
    for row in copy.read().to_arrow().to_pylist():
        assert row["offset"] == len(found[row["partition"]]), "the copy has a gap"
        found[row["partition"]].append(Entry.of(row))
    for number in range(PARTITIONS):
        offsets = [original[entry] for entry in found[number]]
        assert offsets == sorted(set(offsets)), "a copy is doubled, or out of order"
        committed = feeder.committed[COMPACTED, number]
        assert found[number] == [committed[offset] for offset in offsets]
        check_missing((COMPACTED, number), committed, set(offsets))


def check_missing(where: Where, committed: Offsets, found: set[int]) -> None:
    """Compaction may remove a record before it is read. Then the newest record of its key must have been found."""
    newest = {entry.key: offset for offset, entry in sorted(committed.items())}
    missing = committed.keys() - found
    lost = missing if where[0] == PLAIN else {each for each in missing if newest[committed[each].key] not in found}
    assert not lost, f"{where}: {len(lost)} of {len(committed)} records are lost, such as {sorted(lost)[:10]}"


def check_log(topic: lakelog.Topic, stored: Mapping[Where, Offsets]) -> int:
    """What is in the log until the end was there to be read. Returns how many records that are."""
    rows = topic.read().to_arrow().to_pylist()
    for row in rows:
        assert stored[topic.name, row["partition"]].get(row["offset"]) == Entry.of(row), f"{row} was not read"
    return len(rows)
