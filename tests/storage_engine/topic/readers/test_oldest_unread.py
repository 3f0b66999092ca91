"""Tests that `oldest_unread` finds the first unread record without reading the later records. The test counts all
unread records, and compares the first of them with the record that `oldest_unread` finds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

NOW_MS = 1_700_000_000_000


class Log:
    """A topic of one partition."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics(storage_at(folder), BrokerConfig(), self.clock)
        self.topic_id = self.topics.create("t", 1, configs).topic_id
        self.chain = self.topics.chain("t")

    def append(self, *rows: Row) -> None:
        config = self.topics.config(self.chain.newest())
        append_records(self.topics.storage, self.chain, config, self.clock, to_table(rows))

    def transaction(self, *rows: Row, commits: bool) -> None:
        with TransactionWriter(self.topics, timeout_ms=1000) as transaction:
            transaction.append("t", to_table(rows))
            if commits:
                transaction.commit()

    def reader(self) -> PartitionReader:
        return PartitionReader(self.topics.storage, self.chain, 0)


def rows(random_numbers: random.Random) -> list[Row]:
    count = random_numbers.randint(1, 5)
    return [
        Row(bytes([random_numbers.randrange(8)]), b"v", timestamp=NOW_MS + random_numbers.randrange(10_000))
        for _ in range(count)
    ]


def test_the_first_record_is_the_same_that_counting_finds(tmp_path: Path) -> None:
    """In logs with compacted records, control batches and aborted transactions."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(2**32)))
    print(f"SEED={seed}")
    random_numbers = random.Random(seed)
    configs = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
    log = Log(tmp_path, **configs)
    for number in range(40):
        if random_numbers.random() < 0.3:
            log.transaction(*rows(random_numbers), commits=random_numbers.random() < 0.5)
        else:
            log.append(*rows(random_numbers))
        if number == 25:
            log.clock.advance(1000)
            config = log.topics.config(log.chain.newest())
            compact_topic(log.topics.storage, log.chain, config, log.topics.broker, log.clock)
    reader = log.reader()
    for position in range(reader.partition.high_watermark + 1):
        counted = reader.unread(position)
        assert reader.oldest_unread(position) == (counted.oldest_ms if counted.records else None), position


def test_the_last_record_of_a_batch_was_compacted(tmp_path: Path) -> None:
    """The batch keeps its last offset. So a reader at this offset begins in a batch that has no record for it."""
    log = Log(tmp_path, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"})
    for number, keys in enumerate((b"ab", b"bc", b"d")):
        log.append(*(Row(bytes([key]), b"v", timestamp=NOW_MS + number) for key in keys))
        log.clock.advance(1000)
    config = log.topics.config(log.chain.newest())
    compact_topic(log.topics.storage, log.chain, config, log.topics.broker, log.clock)
    reader = log.reader()
    assert len(reader.partition.segments) == 2
    found = reader.unread(1)
    assert (found.records, found.oldest_ms, reader.oldest_unread(1)) == (3, NOW_MS + 1, NOW_MS + 1)


@pytest.mark.posix("damages a local file")
def test_damage_after_the_first_record_is_not_read_and_damage_in_it_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(Row(b"k", b"v", timestamp=NOW_MS - 5))
    log.append(Row(b"k", b"w", timestamp=NOW_MS - 3))
    _, path = sorted((tmp_path / "data" / log.topic_id / "0").glob("*.log"))  # each append begins a segment here
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert log.reader().oldest_unread(0) == NOW_MS - 5
    with pytest.raises(CorruptionError, match=f"{path.name} at position 0: expected a batch with CRC-32C"):
        log.reader().oldest_unread(1)


def test_nothing_is_unread_at_the_end_and_a_position_below_the_start_begins_at_the_start(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.reader().oldest_unread(0) is None
    log.append(Row(b"k", b"v", timestamp=NOW_MS), Row(b"k", b"v", timestamp=NOW_MS + 7))
    assert (log.reader().oldest_unread(2), log.reader().oldest_unread(1)) == (None, NOW_MS + 7)
