"""Starts an unmodified Kafka broker on the output of `lakelog topics export`. The broker reports no problem, and serves
every record as Lakelog reads it. Lakelog can import the records that the broker appends.

The tests use one broker and one export for all topics. The broker creates the topics, with its own topic ids. Then the
broker is stopped, and the exported files replace the broker's files. The broker starts as after a crash, and later once
more as after an orderly stop. The answers of the running broker are stored, and the tests compare them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from lakelog.cli.records.json_lines import header_lists
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.checkpoint import (
    FIRST_DIRTY_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_offsets,
)
from storage_engine.log.filenames import data_key
from storage_engine.log.isolation import Isolation
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.storage.posix import PosixStorage
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.topic_writer import take_over
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.kafka.segment_import import ImportedTopic
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.kafka_broker import PATIENCE_SECONDS, KafkaBroker

pytestmark = pytest.mark.kafka

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = {"index.interval.bytes": "512", "internal.segment.bytes": "16384", "retention.ms": "-1"}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}  # never by the broker's own cleaner
LARGER = {"internal.segment.bytes": "1048576", "segment.ms": str(2**62)}  # so that there is room for merging
FROM_BROKERS: Mapping[str, Mapping[str, str]] = {
    **{f"codec_{codec}": {} for codec in ("none", "gzip", "snappy", "lz4", "zstd")},
    **{name: {} for name in ("shapes", "ooo", "idem", "multi", "empty", "delrec", "retention_bytes")},
    "txn": LARGER,
    "logappend": {"message.timestamp.type": "LogAppendTime"},
    "compact.after1": COMPACT,
}
"""Directories of tests/golden that are imported first, and the settings of their topics."""
LEGACY = [
    "legacy_mixed",
    *(f"legacy_v{magic}_{codec}" for magic in (0, 1) for codec in ("none", "gzip", "snappy")),
    "legacy_v1_lz4",
]
"""Topics of magic 0 and 1 in one directory of it; one mixes them with magic 2. The lz4 of magic 0 kafka-python cannot
read."""
OWN: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "appended": (3, {"compression.type": "zstd"}),
    "retained": (1, {"retention.bytes": "30000"}),
    "crashed": (1, {}),
    "compacted": (1, {**COMPACT, "compression.type": "lz4"}),
    "merged": (2, LARGER),
    "new": (2, {}),
    "transacted": (2, {**LARGER, "compression.type": "snappy"}),
}
"""Topics that Lakelog wrote: their partitions and settings."""
NOT_APPENDED_TO = "codec_none"
APPENDED = 7
"""Records, to each partition."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Log = dict[TopicPartition, list[Record]]
Offsets = dict[tuple[TopicPartition, int], tuple[int, int] | None]


@dataclass(frozen=True)
class Answers:
    """What a broker says of all partitions. offsets: of (partition, timestamp). ends: the earliest and the latest."""

    records: dict[Isolation, Log]
    offsets: Offsets
    ends: dict[TopicPartition, tuple[int, int]]
    complaints: list[str]


@dataclass(frozen=True)
class Judged:
    """The exported topics, the broker's answers about them, and the result of the import."""

    before: Answers
    after_crash: Answers
    after_stop: Answers
    with_appends: Answers
    exported_checkpoints: dict[str, dict[tuple[str, int], int]]
    stopped_checkpoints: dict[str, dict[tuple[str, int], int]]
    imported: dict[str, ImportedTopic]
    after_import: Answers
    again: dict[str, ImportedTopic]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    folder = tmp_path_factory.mktemp("exports")
    topics = Topics(PosixStorage(folder / "root"), BrokerConfig(), SystemClock())
    fill(topics)
    names = sorted(topics.names())
    with new_directory(folder / "exported") as directory:
        export_topics(topics, names, directory)
    before = answers_of(topics)
    with KafkaBroker() as broker:
        for name in names:
            state = topics.state(name)
            settings = dict(CONFIG)
            settings |= {
                key: value for key, value in state.configs.items() if key not in ("segment.bytes", "retention.bytes")
            }
            broker.create_topic(name, len(state.partitions), settings)
        broker.stop()
        broker.put(folder / "exported", cleanly_closed=False)
        broker.start()
        after_crash = asked(broker, before)
        broker.stop()
        stopped_checkpoints = checkpoints_in(broker.data)
        broker.put(folder / "exported", cleanly_closed=True)
        broker.start()
        after_stop = asked(broker, before)
        append_by_broker(broker, list(before.ends))
        with_appends = asked(broker, before)
        broker.stop()
        left = LogDirectory(broker.data)
        imported = {name: import_topic(topics, left, name) for name in names}
        again = {name: import_topic(topics, left, name) for name in names}
        exported_checkpoints = checkpoints_in(folder / "exported")
    yield Judged(
        before, after_crash, after_stop, with_appends, exported_checkpoints, stopped_checkpoints, imported,
        answers_of(topics), again,
    )  # fmt: skip
    shutil.rmtree(folder)


def fill(topics: Topics) -> None:
    """Topics of every kind: those that brokers left, and those that Lakelog wrote."""
    for name, configs in FROM_BROKERS.items():
        import_topic(topics, LogDirectory(GOLDEN / name / "data"), name.partition(".")[0], {**CONFIG, **configs})
    for name in LEGACY:
        import_topic(topics, LogDirectory(GOLDEN / "legacy" / "data"), name, CONFIG)
    for name, (partitions, configs) in OWN.items():
        topics.create(name, partitions, {**CONFIG, **configs})
    for query in ("first", "second"):
        for name in OWN.keys() - {"new"}:
            take_over(topics.chain(name), query, take_over_others=True)  # so that its leader epochs have to be stamped
            for part in range(OWN[name][0]):
                append(topics, name, part)
                append(topics, name, part)
    for ending in (TransactionWriter.commit, TransactionWriter.abort, TransactionWriter.commit):
        transaction = TransactionWriter(topics)
        for part in (0, 1, 0):
            transaction.append("transacted", records_from(40), part)
        ending(transaction)
    state = topics.state("crashed")
    active = state.partitions[0].segments[-1]
    storage = topics.storage
    assert isinstance(storage, PosixStorage)
    with storage.path(data_key(state.topic_id, 0, active.name)).open("ab") as log:
        log.write(b"what a process that died had published and not committed")
    append(topics, "crashed", 0)
    retain_topic(topics.chain("retained"), topics.broker)
    state = topics.state("compacted")
    compact_topic(storage, topics.chain("compacted"), topics.config(state), topics.broker, topics.clock, force=True)
    assert topics.state("compacted").partitions[0].first_dirty_offset
    for name in ("merged", "transacted", "txn"):
        assert merge_topic(storage, topics.chain(name), topics.config(topics.state(name))).cleaned
    assert topics.state("retained").partitions[0].log_start_offset


def records_from(first: int, count: int = 120) -> pa.RecordBatch:
    """Repeated keys, empty and null values, headers, and times that go back and forth."""
    numbers = range(first, first + count)
    headers = [[("trace", b"%d" % number), ("none", None)] if number % 3 == 0 else [] for number in numbers]
    values = [
        None if number % 11 == 0 else b"" if number % 7 == 0 else b"value %d " % number * 12 for number in numbers
    ]
    columns = [
        pa.array([b"key %d" % (number % 40) for number in numbers], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, TO_APPEND.field("headers").type),
        pa.array([1_700_000_000_000 + number * 1000 - number * 7919 % 13_000 for number in numbers], pa.int64()),
    ]
    return pa.record_batch(columns, schema=TO_APPEND)


def append(topics: Topics, name: str, partition: int) -> None:
    state = topics.state(name)
    records = records_from(state.partitions[partition].high_watermark)
    append_records(topics.storage, topics.chain(name), topics.config(state), topics.clock, records, partition)


def answers_of(topics: Topics) -> Answers:
    """What Lakelog says of all partitions."""
    records: dict[Isolation, Log] = {isolation: {} for isolation in Isolation}
    offsets: Offsets = {}
    ends = {}
    for name in topics.names():
        chain = topics.chain(name)
        for number in range(len(chain.newest().partitions)):
            reader = PartitionReader(topics.storage, chain, number)
            where = TopicPartition(name, number)
            start = reader.partition.log_start_offset
            ends[where] = start, reader.partition.high_watermark
            for isolation in Isolation:
                records[isolation][where] = [
                    each for batch in reader.read(start, None, isolation) for each in rows(batch)
                ]
            for timestamp in sample([each.timestamp for each in records[Isolation.READ_UNCOMMITTED][where]]):
                found = reader.offset_at(timestamp)
                offsets[where, timestamp] = found[:2] if found else None
    return Answers(records, offsets, ends, [])


def rows(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = (batch[name].to_pylist() for name in ("offset", "timestamp", "timestamp_type", "key", "value"))
    headers = map(tuple, header_lists(batch["headers"]))
    return (Record(*fields) for fields in zip(*columns, headers, strict=True))


def sample(timestamps: list[int]) -> Iterable[int]:
    """Some of the times of a log's records, and times beside and between them."""
    if not timestamps:
        return (0,)
    some = np.unique(timestamps)[:: max(1, len(timestamps) // 8)]
    return sorted({max(0, int(each) + shift) for each in [*some, max(timestamps)] for shift in (-1, 0, 1)})


def asked(broker: KafkaBroker, like: Answers) -> Answers:
    """What the broker says of the same partitions, and offsets by the same times."""
    records = {}
    offsets: Offsets = {}
    for isolation in Isolation:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, isolation_level=isolation.value, enable_auto_commit=False,
            auto_offset_reset="none", fetch_max_wait_ms=100,
        )  # fmt: skip
        wanted = list(like.ends)
        consumer.assign(wanted)
        first, last = consumer.beginning_offsets(wanted), consumer.end_offsets(wanted)
        records[isolation] = consumed(consumer, first, last)
        if isolation is Isolation.READ_UNCOMMITTED:
            ends = {each: (first[each], last[each]) for each in wanted}
            times = sorted(like.offsets, key=lambda each: each[0])
            columns = [[time for _, time in group] for _, group in groupby(times, key=lambda each: each[0])]
            parts = [part for part, _ in groupby(times, key=lambda each: each[0])]
            for row in range(max(map(len, columns))):
                at = {part: column[row] for part, column in zip(parts, columns, strict=True) if row < len(column)}
                for part, found in consumer.offsets_for_times(at).items():
                    offsets[part, at[part]] = (found.offset, found.timestamp) if found else None
        consumer.close()
    return Answers(records, offsets, ends, broker.complaints)


def consumed(consumer: KafkaConsumer, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]) -> Log:
    """Every record from the first offsets on to the last ones."""
    found: Log = {part: [] for part in first}
    for part, offset in first.items():
        consumer.seek(part, offset)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(consumer.position(part) < last[part] for part in first):
        assert time.monotonic() < deadline, {part: consumer.position(part) for part in first}
        for part, records in consumer.poll(100, max_records=5000).items():
            found[part] += map(received, records)
    return found


def received(record: ConsumerRecord) -> Record:
    """A record as the broker gave it; those of magic 0 have no timestamp."""
    timed = record.timestamp_type is not None
    return Record(
        record.offset, record.timestamp if timed else -1, record.timestamp_type if timed else -1, record.key,
        record.value, tuple(record.headers),
    )  # fmt: skip


def append_by_broker(broker: KafkaBroker, partitions: list[TopicPartition]) -> None:
    """Plain records, then a transaction that is committed and one that is not, to every partition but one topic's."""
    partitions = [each for each in partitions if each.topic != NOT_APPENDED_TO]
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="judge", linger_ms=20)
    producer.init_transactions()
    for ending in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for part in partitions:
            for number in range(APPENDED):
                producer.send(part.topic, key=b"%d" % number, value=b"transacted", partition=part.partition)
        producer.flush()
        ending()
    producer.close()
    plain = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=20)
    for part in partitions:
        for number in range(APPENDED):
            plain.send(part.topic, key=b"%d" % number, value=b"appended", partition=part.partition)
    plain.close()


def checkpoints_in(directory: Path) -> dict[str, dict[tuple[str, int], int]]:
    """What the checkpoints say, apart from the broker's own topics."""
    files = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, FIRST_DIRTY_OFFSETS)
    found = {file: decode_offsets((directory / file).read_bytes(), file) for file in files}
    return {
        file: {each: offset for each, offset in offsets.items() if not each[0].startswith("__")}
        for file, offsets in found.items()
    }


def test_a_broker_complains_of_nothing(judged: Judged) -> None:
    for answers in (judged.after_crash, judged.after_stop, judged.with_appends):
        assert [line for line in answers.complaints if "QuorumController" not in line] == []


@pytest.mark.parametrize("isolation", Isolation)
def test_a_broker_serves_every_record_as_we_read_it(judged: Judged, isolation: Isolation) -> None:
    assert sum(map(len, judged.before.records[isolation].values())) > 9_000
    for answers in (judged.after_crash, judged.after_stop):
        assert answers.records[isolation].keys() == judged.before.records[isolation].keys()
        for part, records in answers.records[isolation].items():
            assert records == judged.before.records[isolation][part], part


def test_a_broker_finds_the_offsets_of_timestamps_that_we_find(judged: Judged) -> None:
    assert len(judged.before.offsets) > 200
    assert judged.after_crash.offsets == judged.before.offsets
    assert judged.after_stop.offsets == judged.before.offsets


def test_a_broker_knows_where_logs_begin_and_end(judged: Judged) -> None:
    assert judged.after_crash.ends == judged.before.ends
    assert judged.after_stop.ends == judged.before.ends


def test_a_broker_that_stops_leaves_the_checkpoints_that_we_wrote(judged: Judged) -> None:
    assert judged.stopped_checkpoints == judged.exported_checkpoints
    assert all(judged.exported_checkpoints.values())


def test_what_a_broker_appended_is_imported_and_read(judged: Judged) -> None:
    for isolation in Isolation:
        for part, records in judged.with_appends.records[isolation].items():
            assert judged.after_import.records[isolation][part] == records, part
            new = 0 if part.topic == NOT_APPENDED_TO else (3 if isolation is Isolation.READ_COMMITTED else 4) * APPENDED
            assert len(records) == len(judged.before.records[isolation][part]) + new
    assert judged.after_import.ends == judged.with_appends.ends
    assert not any(imported.is_new for imported in judged.imported.values())


def test_importing_again_brings_nothing_new(judged: Judged) -> None:
    for name, imported in judged.again.items():
        assert imported.state.version == judged.imported[name].state.version
        assert all(part.first_offset == part.end_offset for part in imported.partitions)
