"""Kill -9 of a program whose streams read one topic and write another, while maintenance cleans both topics."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lakelog
from tests.faults.processes.copier import COPY, GROUPS, ORIGINAL
from tests.faults.processes.driver import READY
from tests.faults.processes.programs import Program
from tests.java_options import JAVA_OPTIONS

SEED = int(os.environ.get("SEED", random.randrange(2**32)))
KILLS = int(os.environ.get("KILLS", "50"))
PARTITIONS = 3
REPEATED_KEYS = 20
"""Half of the records have one of these keys, so compaction removes many of them. The others have keys of their own."""
MOST_RECORDS = 400
LONGEST_SECONDS = 3.0
"""A program is killed up to so many seconds after it copied something."""
_BEGAN = datetime.now(UTC).replace(microsecond=0)

Written = dict[str, Any]
"""A record: key, value, headers and timestamp."""


class Feeder(threading.Thread):
    """Appends records to the original until it is told to stop. The values are different, so doubles are noticed.

    written: by partition, the records in the order of the log.
    """

    def __init__(self, root: Path, chance: random.Random) -> None:
        super().__init__()
        self._topic = lakelog.open(str(root)).topic(ORIGINAL)
        self._chance = chance
        self._number = 0
        self._stop_asked = threading.Event()
        self.written: dict[int, list[Written]] = defaultdict(list)

    def run(self) -> None:
        while not self._stop_asked.wait(0.5):
            self.append()

    def append(self) -> None:
        partition = self._chance.randrange(PARTITIONS)
        records = [self._record(partition) for _ in range(self._chance.randint(1, MOST_RECORDS))]
        self._topic.append(records, partition=partition)
        self.written[partition] += records

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()

    def _record(self, partition: int) -> Written:
        self._number += 1
        is_repeated = self._chance.random() < 0.5
        key = (
            f"{partition}/{self._chance.randrange(REPEATED_KEYS)}"
            if is_repeated
            else f"{partition}/once {self._number}"
        )
        return {
            "key": key.encode(),
            "value": b"%012d" % self._number + b"x" * self._chance.randrange(200),
            "headers": [("number", b"%d" % self._number), ("empty", None)][: self._chance.randrange(3)],
            "timestamp": _BEGAN + timedelta(milliseconds=self._number + self._chance.randrange(-50, 50)),
        }


@pytest.mark.spark
@pytest.mark.soak
def test_however_often_a_reading_and_a_writing_stream_are_killed_every_record_comes_once(tmp_path: Path) -> None:
    print(f"SEED={SEED} KILLS={KILLS}", file=sys.stderr)
    chance = random.Random(SEED)
    (root := tmp_path / "root").mkdir()
    log = lakelog.open(str(root), create=True)
    small = {"segment.bytes": 50_000, "file.delete.delay.ms": 0, "retention.ms": -1}
    cleaned_often = {
        "cleanup.policy": "compact,delete",
        "retention.bytes": 300_000,
        "retention.respect.consumers": True,
        "min.cleanable.dirty.ratio": 0.01,
    }
    log.create_topic(ORIGINAL, PARTITIONS, small | cleaned_often)
    copy = log.create_topic(COPY, PARTITIONS, small)
    feeder = Feeder(root, chance)
    feeder.append()
    started: list[Program] = []

    def copier(*options: str) -> tuple[Program, Path]:
        gate = tmp_path / f"gate.{time.monotonic_ns()}"
        started.append(
            Program(tmp_path, "tests.faults.processes.copier", gate, root, tmp_path, *options, environment=JAVA_OPTIONS)
        )
        return started[-1], gate

    def copied() -> int:
        return sum(partition.high_watermark for partition in copy.describe().partitions)

    def has_groups() -> bool:
        return {position.group for position in log.groups()} == set(GROUPS)

    def kill_all() -> None:
        for each in started:
            if each.process.poll() is None:
                each.kill()

    kills = 0
    with ExitStack() as stack:
        stack.callback(kill_all)
        janitor = None
        program, gate = copier()
        while kills < KILLS:
            program.wait_for(READY)
            begun = copied()
            gate.touch()
            feeder.append()
            program.wait_until(lambda: copied() > begun)  # noqa: B023
            if janitor is None:  # before, no group holds back retention
                program.wait_until(has_groups)
                janitor = Program(tmp_path, "tests.faults.processes.janitor", root, ORIGINAL, COPY)
                started.append(janitor)
                feeder.start()
                stack.callback(feeder.stop)
            following = copier("--once") if kills == KILLS - 1 else copier()  # starts while this one works
            time.sleep(chance.uniform(0, LONGEST_SECONDS))
            assert program.process.poll() is None, program.said
            program.kill()
            kills += 1
            program, gate = following
        feeder.stop()
        program.wait_for(READY)
        gate.touch()
        assert program.process.wait() == 0, program.said
        assert janitor is not None
        cleaned = janitor.end()
    found = defaultdict(list)
    for row in copy.read().to_arrow().to_pylist():
        found[row["partition"]].append({name: row[name] for name in ("key", "value", "headers", "timestamp")})
    for partition, records in feeder.written.items():
        _check(records, found[partition])
        _check(records, list(_stored(tmp_path / "stored", partition)))
    written = sum(map(len, feeder.written.values()))
    print(f"{kills} kills, {written} records written, {copied()} copied; {cleaned}", file=sys.stderr)
    assert copied() < written, "compaction removed nothing"
    assert cleaned["segments retained"], "retention removed nothing"


def _stored(folder: Path, partition: int) -> Iterator[Written]:
    """The records of a partition in the order of the micro-batches."""
    for batch in sorted(folder.iterdir(), key=lambda each: int(each.name)):
        rows = pq.read_table(batch).to_pylist()
        for row in sorted((row for row in rows if row["partition"] == partition), key=lambda row: row["offset"]):
            headers = [(each["key"], each["value"]) for each in row["headers"] or []]
            yield {"key": row["key"], "value": row["value"], "headers": headers, "timestamp": row["timestamp"]}


def _check(written: list[Written], found: list[Written]) -> None:
    """The found records are written ones, in their order, none twice. Missing ones were replaced by a newer record of their
    key."""
    number_of = {record["value"]: number for number, record in enumerate(written)}
    numbers = [number_of[record["value"]] for record in found]
    assert numbers == sorted(set(numbers)), "a record is doubled, or out of order"
    assert [_plain(record) for record in found] == [_plain(written[number]) for number in numbers]
    last = {record["key"]: number for number, record in enumerate(written)}
    missing = set(range(len(written))) - set(numbers)
    lost = [number for number in missing if last[written[number]["key"]] == number]
    assert not lost, f"records {lost[:10]} are lost, of {len(written)}"


def _plain(record: Written) -> Written:
    timestamp = record["timestamp"]
    moment = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    headers = [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in record["headers"] or []]
    return {**record, "timestamp": moment, "headers": headers}
