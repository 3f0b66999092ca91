"""Makes the root that the tests damage. The root has all kinds of small files, with real content.

`orders` has many versions and segments, compactions, history, a list of segments, transactions in all states, a model
and a consumer. `events` has segments with many batches, so its indexes have entries. `txn` was imported from files that
a broker wrote. Three micro-batches have a staged list. Both topics committed the first micro-batch, only `orders`
committed the second micro-batch, and no topic committed the third micro-batch. The view log/ shows the newest state,
and data/ has bytes that were never committed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import LogError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.record.partitioner import partition_keys
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Encoding, append_records, stage_records
from storage_engine.topic.append.staged_list import StagedBatch, StagedTopic, put_list
from storage_engine.topic.append.staged_run import StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.broker_settings import read_broker_settings
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.topic_state import RecordedField, RecordedModel
from storage_engine.topic.chain.transaction_files import decide
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table

GOLDEN = Path(__file__).parents[2] / "golden"
BEGIN_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
BIG, SMALL, DENSE = "orders", "clicks", "events"
IMPORTED = next((GOLDEN / "txn" / "data").glob("*-0")).name.removesuffix("-0")
NAMES = (BIG, SMALL, DENSE, IMPORTED)
NEVER = b"never committed"
BROKER = {"log.retention.hours": "1000000", "log.cleaner.delete.retention.ms": "7200000"}
"""The root's own settings. By Kafka's defaults retention would take all of the imported topic."""
MODEL = RecordedModel(
    name="order", fingerprint="7" * 64, fields={"id": RecordedField(type="string", required=True, nullable=False)}
)
DENSE_ROWS = 120
"""How many records each partition of `events` has, each in a batch of its own."""


def topics_of(path: Path, now_ms: int) -> Topics:
    """The root as a process sees it that has just started."""
    storage = PosixStorage(path)
    return Topics(storage, BrokerConfig.from_mapping(read_broker_settings(storage) or {}), ManualClock(now_ms))


def topics_to_verify(path: Path, now_ms: int) -> Topics:
    """Like topics_of. But if the root's own settings cannot be read, Kafka's defaults are used, so that `verify` checks
    everything else."""
    with suppress(LogError):
        return topics_of(path, now_ms)
    return Topics(PosixStorage(path), BrokerConfig(), ManualClock(now_ms))


def rows(first: int, count: int, time_ms: int) -> list[Row]:
    """Records whose keys come again, with headers, and times that go back now and then."""
    return [
        Row(
            b"k%d" % (number % 23), b"v%d" % number * 3, (("h", b"%d" % number),) if number % 3 else (),
            time_ms + (number * 37) % 1000,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def append(topics: Topics, topic: str, values: list[Row], partition: int | None = None) -> None:
    state = topics.state(topic)
    append_records(topics.storage, topics.chain(topic), topics.config(state), topics.clock, to_table(values), partition)


def build(path: Path) -> int:
    """Make the root; returns the time by which everything is done to it."""
    clock = ManualClock(BEGIN_MS)
    storage = PosixStorage(path)
    topics = Topics(storage, BrokerConfig.from_mapping(BROKER), clock, BROKER)
    configs = {
        "segment.bytes": "1200", "index.interval.bytes": "120", "cleanup.policy": "compact,delete",
        "retention.ms": str(30 * HOUR_MS), "retention.respect.consumers": "true", "min.cleanable.dirty.ratio": "0.1",
    }  # fmt: skip
    topics.create(BIG, 2, configs)
    topics.create(SMALL, 2, {"segment.bytes": "1200", "index.interval.bytes": "120", "retention.ms": "-1"})
    dense = {"segment.bytes": "6000", "index.interval.bytes": "150", "retention.ms": "-1"}
    topics.create(DENSE, 2, dense)
    import_topic(topics, LogDirectory(GOLDEN / "txn" / "data"), IMPORTED)
    topics.chain(SMALL).commit(lambda state: state.model_copy(update={"model": MODEL}), "recorded a model")
    _append_batches(topics, clock)
    number = 0
    for count in range(95):
        clock.advance(HOUR_MS // 2)
        for topic in (BIG, SMALL) if count % 9 == 0 else (BIG,):
            append(topics, topic, rows(number, 2 + number % 3, clock.now_ms()), 0 if count % 8 else 1)
        number += 11
        if count in (8, 16):
            compact(topics, BIG)
    for values in (range(3), range(4)):
        with TransactionWriter(topics) as done:
            done.append(BIG, to_table(rows(len(values), 4, clock.now_ms())), 1)
            done.append(SMALL, to_table(rows(len(values), 2, clock.now_ms())), 0)
            done.append(DENSE, to_table(rows(len(values), 2, clock.now_ms())), 0)
            if len(values) == 3:
                done.commit()
    _leave_open(topics, clock)
    _stage(topics, clock)
    put_positions(storage, topics.state(BIG), "audit", "reader", {0: 100, 1: 5}, clock.now_ms(), holds_back=True)
    put_positions(storage, topics.state(SMALL), "audit", "reader", {0: 20, 1: 0}, clock.now_ms(), holds_back=True)
    put_positions(
        storage, topics.state(DENSE), "audit", "reader", {0: DENSE_ROWS, 1: 10}, clock.now_ms(), holds_back=True
    )
    for topic in (BIG, SMALL):
        prune(storage, topics.chain(topic))
    settle(topics)
    for _ in range(3):  # the view is of a moment before the newest versions
        clock.advance(HOUR_MS // 2)
        append(topics, BIG, rows(number, 5, clock.now_ms()), 0)
        number += 11
    settle(topics)
    _leave_uncommitted(topics)
    return clock.now_ms() + HOUR_MS


def compact(topics: Topics, topic: str) -> None:
    state = topics.state(topic)
    compact_topic(topics.storage, topics.chain(topic), topics.config(state), topics.broker, topics.clock, force=True)


def dense_rows(partition: int) -> list[Row]:
    """The first records of `events` in a partition. Sometimes a timestamp is smaller than the one before it."""
    return [
        Row(b"e%d" % number, b"value %d" % number, (), BEGIN_MS + number * 1000 - (number % 7) * 900)
        for number in range(partition, 2 * DENSE_ROWS, 2)
    ]


def _append_batches(topics: Topics, clock: ManualClock) -> None:
    """Append to `events` in batches of one record, so that each segment has many entries in its indexes."""
    for first in range(0, DENSE_ROWS, DENSE_ROWS // 4):
        state = topics.state(DENSE)
        with StagingWriter(topics.storage, f"staging/{state.topic_id}/{state.version}/") as writer:
            for partition in range(2):
                table = to_table(dense_rows(partition)[first : first + DENSE_ROWS // 4])
                encoding = replace(Encoding.of(topics.config(state), clock.now_ms()), batch_bytes=1)
                stage_records(writer, table, np.full(len(table), partition, np.int32), encoding)
        appender = TopicWriter(topics.storage, topics.chain(DENSE), topics.config(state), clock, None)
        appender.append(by_partition(writer.runs))
        appender.close()


def _leave_open(topics: Topics, clock: ManualClock) -> None:
    """Transactions without their markers: one is decided to be committed, one to be aborted, one is open."""
    for decision in (True, False, None):
        left = TransactionWriter(topics, timeout_ms=10**9)
        left.append(BIG, to_table(rows(7, 3, clock.now_ms())), 1)
        left.append(SMALL, to_table(rows(9, 3, clock.now_ms())), 1)
        if decision is not None:
            assert left.producer_id is not None
            decide(topics.storage, clock, left.producer_id, committed=decision)


def _stage(topics: Topics, clock: ManualClock) -> None:
    """Three micro-batches with staged lists: both topics commit the first, only BIG the second, and none the third."""
    query = "6f2c0a34-0000-4000-8000-000000000001"
    for batch_id in (0, 1, 2):
        identity = BatchIdentity(query, batch_id, f"{batch_id}" * 64)
        staged = []
        for topic in (BIG, SMALL):
            state = topics.state(topic)
            table = to_table(rows(500 + batch_id, 5, clock.now_ms()))
            with StagingWriter(topics.storage, f"staging/{state.topic_id}/{state.version}/") as writer:
                stage_records(
                    writer, table, partition_keys(table["key"], 2, 0),
                    Encoding.of(topics.config(state), clock.now_ms()),
                )  # fmt: skip
            staged.append(StagedTopic(topic, state.topic_id, dict(state.configs), tuple(writer.runs)))
        put_list(topics.storage, StagedBatch(identity, tuple(staged)))
        for each in staged[: 2 if batch_id == 0 else 1 if batch_id == 1 else 0]:
            chain = topics.chain(each.topic)
            epoch = take_over(chain, query).writer.epoch
            writer_of = TopicWriter(topics.storage, chain, topics.config(chain.newest()), clock, epoch)
            writer_of.append(by_partition(each.runs), identity)
            writer_of.close()


def _leave_uncommitted(topics: Topics) -> None:
    """Whole batches after the committed end of files, and in a file that no version names."""
    storage = topics.storage
    for topic in (BIG, SMALL):
        state = topics.state(topic)
        with StagingWriter(storage, f"staging/{state.topic_id}/{state.version}/") as writer:
            part = state.partitions[0]
            table = to_table([Row(b"x", NEVER, (), BEGIN_MS)] * 2)
            stage_records(
                writer, table, partition_keys(table["key"], 1, 0),
                Encoding.of(topics.config(state), BEGIN_MS),
            )  # fmt: skip
        data = bytearray(storage.read(writer.runs[0].key))
        data[:8] = part.high_watermark.to_bytes(8, "big")
        assert part.active_segment is not None
        assert isinstance(storage, PosixStorage)
        folder = storage.path(f"data/{state.topic_id}/0")
        name = part.active_segment.name
        grown = (folder / f"{name}.log").read_bytes() + data
        modified = (folder / f"{name}.log").stat().st_mtime_ns
        (folder / f"{name}.log").unlink()  # the view keeps its own name of the file as it was
        (folder / f"{name}.log").write_bytes(grown)
        os.utime(folder / f"{name}.log", ns=(modified, modified))
        (folder / f"{part.high_watermark:020d}.999.00000000.log").write_bytes(data)
    settle(topics)
