"""A reader that runs beside ingests, compactions and retention, and ends at the first violation.

    python -m tests.pipeline.clean.churn_reader ROOT TOPIC following|again|by-time

    following    a registered consumer: continues at its last position, and stores its new position each time
    again        repeatedly reads everything from the log start offset to the high watermark
    by-time      repeatedly looks up the offset of a time, and reads from this offset

The reader checks every record: offsets must increase, no offset may be at or above the high watermark, and the numbers
of each key must increase. The keys and values come from tests.pipeline.clean.test_churn.

After SIGTERM, the reader reads once more. Then the reader prints one JSON line: the number of passes, the number of
records, and the last number of each key (null means a tombstone).
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from typing import Any

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.log.partition_state import PartitionState
from storage_engine.storage.storage_opening import open_storage
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics


class ChurnReader:
    """What one of them has read so far."""

    def __init__(self, root: str, topic: str, way: str) -> None:
        self._topics = Topics(open_storage(root), BrokerConfig(), SystemClock())
        self._topic = topic
        self._way = way
        self._chain = self._topics.chain(topic)
        self._positions = dict.fromkeys(range(len(self._chain.newest().partitions)), 0)
        self._latest: dict[str, int | None] = {}
        self._highest: dict[str, int] = {}
        self._passes = self._records = 0
        if way == "following":
            self._register()

    def _register(self) -> None:
        topics = self._topics
        now_ms = topics.clock.now_ms()
        state = topics.state(self._topic)
        put_positions(topics.storage, state, "churn reader", "reader", self._positions, now_ms, holds_back=True)

    def look(self) -> None:
        """Read what there is, in this reader's way."""
        for number in self._positions:
            reader = PartitionReader(self._topics.storage, self._chain, number)
            if self._way != "following":
                self._latest.clear()
                self._highest.clear()
            first = self._first(reader, number)
            if first is not None:
                self._positions[number] = self._read(reader, number, first)
        if self._way == "following":
            self._register()
        self._passes += 1

    def _first(self, reader: PartitionReader, number: int) -> int | None:
        part = reader.partition
        if self._way == "following":
            return self._positions[number]
        if self._way == "again" or part.largest_timestamp < 0:
            return part.log_start_offset
        oldest = min((each.first_timestamp or 0 for each in part.segments), default=0)
        wanted = random.randint(oldest, part.largest_timestamp)
        found = reader.offset_at(wanted)
        if found is not None:
            offset, timestamp, _ = found
            assert timestamp >= wanted, f"partition {number}: offset {offset} is of {timestamp}, before {wanted}"
            return offset if offset >= reader.partition.log_start_offset else None
        return None

    def _read(self, reader: PartitionReader, number: int, first: int) -> int:
        part: PartitionState = reader.partition
        end, last = part.high_watermark, first - 1
        for batch in reader.read(first):
            columns = batch.select(["key", "value", "offset"]).to_pydict()
            for key, value, offset in zip(*columns.values(), strict=True):
                assert last < offset < end, f"partition {number}: offset {offset} behind {last}, below {end}"
                last = offset
                self._take(key.decode(), value, f"partition {number}, offset {offset}")
            self._records += batch.num_rows
        return end

    def _take(self, key: str, value: bytes | None, where: str) -> None:
        number = None if value is None else int(value[:12])
        if number is not None:
            assert number > self._highest.get(key, -1), f"{where}: key {key} has {number} after {self._highest[key]}"
            self._highest[key] = number
        self._latest[key] = number

    def result(self) -> dict[str, Any]:
        return {"passes": self._passes, "records": self._records, "latest": self._latest}


def main(root: str, topic: str, way: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    reader = ChurnReader(root, topic, way)
    print("reading", file=sys.stderr, flush=True)
    while not stop.wait(0.1):
        reader.look()
    reader.look()
    print(json.dumps(reader.result()))


if __name__ == "__main__":
    main(*sys.argv[1:])
