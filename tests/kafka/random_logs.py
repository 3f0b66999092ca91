"""Makes random logs as a broker could have written them, to compare Kafka's cleaner with Lakelog's.

A log consists of rounds. Each round adds the files of new segments to the existing files, and has a time at which the
log is cleaned. The last segment of one round is an old segment in the next round. So a log is cleaned several times,
together with the results of earlier cleanings. The same log number always gives the same log.

The logs vary in:

- the number of keys, values, tombstones and headers; records without keys, as in a topic that was not compacted earlier;
- a codec for each batch; event times that are out of order, missing or in the future; append times;
- idempotent and transactional producers; interleaved transactions that commit, abort, are empty or stay open; producer
  epochs that increase by themselves and by both kinds of markers; producers that pause until a broker has expired them;
- messages of magic 0 and 1 at the beginning, plain and in wrappers;
- segments that are small, empty, or have gaps; a log start offset inside the log;
- all settings that the cleaner reads.

This module encodes batches record by record, and does not use the project's encoder. The project's code derives the
indexes, snapshots and transaction indexes from the batches. Other tests compare this code with a broker's files.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from storage_engine.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import encode_transaction_index
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.control import ControlType, TransactionMarker, encode_marker
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import CONTROL, LOG_APPEND_TIME, LOG_OVERHEAD, TRANSACTIONAL

DAY_MS = 86_400_000
PRODUCER_EXPIRATION_MS = DAY_MS
FIRST_MS = 1_700_000_000_000
_HEADER = struct.Struct(">qiibIhiqqqhii")
_NO_TIMESTAMP = -1
_SEQUENCES = 2**31
_WORDS = [b"wheat", b"barley", b"oats", b"rye", b"lorry", b"silo", b"river", b"winter", b"market", b"weight"]


class Record(NamedTuple):
    """A record to be encoded; its offset is its place in the batch."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class Sender(NamedTuple):
    """Whose a batch is."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1


_NOBODY = Sender()


def encode_batch(
    base_offset: int, records: list[Record], codec: Codec = Codec.NONE, sender: Sender = _NOBODY, attributes: int = 0
) -> bytes:
    """A batch of magic 2 and leader epoch 0."""
    times = [record.timestamp for record in records]
    largest = max(times)
    first = largest if attributes & LOG_APPEND_TIME else times[0]
    body = bytearray()
    for number, record in enumerate(records):
        delta = 0 if attributes & LOG_APPEND_TIME else record.timestamp - first
        one = b"\0" + _varint(delta) + _varint(number) + _sized(record.key) + _sized(record.value)
        one += _varint(len(record.headers)) + b"".join(_sized(name) + _sized(value) for name, value in record.headers)
        body += _varint(len(one)) + one
    packed = compress(codec, bytes(body))
    header = _HEADER.pack(
        base_offset, _HEADER.size - LOG_OVERHEAD + len(packed), 0, 2, 0, attributes | codec, len(records) - 1, first,
        largest, *sender, len(records),
    )  # fmt: skip
    data = np.frombuffer(bytearray(header + packed), np.uint8)
    seal_batches(data, np.array([len(data)]))
    return data.tobytes()


def encode_legacy(
    base_offset: int, records: list[Record], magic: int, codec: Codec = Codec.NONE, *, append_time: bool = False
) -> bytes:
    """Messages of magic 0 or 1: one behind another, or all in one that is compressed."""
    relative = codec is not Codec.NONE and magic == 1
    inner = b"".join(
        _message((0 if relative else base_offset) + number, magic, 0, record) for number, record in enumerate(records)
    )
    if codec is Codec.NONE:
        return inner
    attributes = codec | (LOG_APPEND_TIME if append_time and magic else 0)
    wrapper = Record(max(record.timestamp for record in records), None, compress(codec, inner))
    return _message(base_offset + len(records) - 1, magic, attributes, wrapper)


def _message(offset: int, magic: int, attributes: int, record: Record) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", record.timestamp) if magic else b"")
    for part in (record.key, record.value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


@dataclass(frozen=True)
class Round:
    """What is laid down before a clean, and when that is.

    files: by name in the partition's folder. modified_ms: of each .log.
    """

    now_ms: int
    log_start_offset: int
    files: Mapping[str, bytes]
    modified_ms: Mapping[str, int]


@dataclass(frozen=True)
class RandomLog:
    """settings: Kafka's keys of the topic. force: clean what is dirty, due or not."""

    settings: Mapping[str, str]
    force: bool
    rounds: tuple[Round, ...]
    counts: Counter[str]


def random_log(seed: int, number: int) -> RandomLog:
    """The log with this number, to be cleaned."""
    chance = random.Random(f"{seed} {number}")
    settings = _cleaner_settings(chance)
    writer = _Writer(chance, settings)
    rounds = tuple(writer.round(first=number == 0) for number in range(chance.choice([1, 2, 2, 3, 4])))
    return RandomLog(settings, chance.random() < 0.3, rounds, writer.counts)


def random_log_to_retain(seed: int, number: int) -> RandomLog:
    """The log with this number, for retention to decide on."""
    chance = random.Random(f"retention {seed} {number}")
    settings = {
        "cleanup.policy": chance.choice(["delete", "delete", "delete", "compact,delete", "compact"]),
        "segment.bytes": chance.choice(["1024", "4096"]),
        "retention.ms": chance.choice(["-1", "0", "1000", str(DAY_MS // 2), str(DAY_MS), str(3 * DAY_MS)]),
        "retention.bytes": chance.choice(["-1", "-1", "0", "100", "2048", "5000", "20000"]),
    }
    writer = _Writer(chance, settings)
    return RandomLog(settings, False, (writer.round(first=True),), writer.counts)


def random_log_of(chance: random.Random, settings: Mapping[str, str], rounds: int) -> RandomLog:
    """A log with these settings."""
    writer = _Writer(chance, settings)
    return RandomLog(settings, False, tuple(writer.round(first=number == 0) for number in range(rounds)), writer.counts)


def _cleaner_settings(chance: random.Random) -> dict[str, str]:
    settings = {
        "cleanup.policy": chance.choice(["compact", "compact", "compact,delete"]),
        "retention.ms": "-1",
        "segment.bytes": chance.choice(["1024", "2048", "4096", "16384"]),
        "segment.index.bytes": chance.choice(["4096", "4096", "48", "120"]),
        "index.interval.bytes": chance.choice(["0", "50", "200", "1000", "4096"]),
        "delete.retention.ms": chance.choice(["0", "1000", "60000", "3600000", str(DAY_MS)]),
        "min.cleanable.dirty.ratio": chance.choice(["0.0", "0.01", "0.1", "0.5", "0.9"]),
    }
    if chance.random() < 0.25:
        settings["min.compaction.lag.ms"] = chance.choice(["1", "1000", "30000", "3600000"])
    if chance.random() < 0.2:
        settings["max.compaction.lag.ms"] = chance.choice(["3600000", str(DAY_MS), str(2 * DAY_MS)])
    return settings


@dataclass
class _Producer:
    producer_id: int
    transactional: bool
    epoch: int = 0
    sequence: int = 0
    in_transaction: bool = False

    def bump(self) -> None:
        self.epoch += 1
        self.sequence = 0


@dataclass
class _Writer:
    chance: random.Random
    settings: Mapping[str, str]
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        chance = self.chance
        self.segment_bytes = int(self.settings["segment.bytes"])
        self.interval = int(self.settings.get("index.interval.bytes", "4096"))
        self.index_bytes = int(self.settings.get("segment.index.bytes", "4096"))
        self.now_ms = FIRST_MS
        self.offset = chance.choice([0, 0, 0, 1, 1000, 2**40])
        self.start = self.offset
        keys = chance.choice([1, 2, 5, 30, 30, 200])
        self.keys = [b"" if keys > 3 and number == 3 else b"key %d" % number for number in range(keys)]
        self.skew = chance.choice([1.0, 1.0, 3.0])
        self.tombstones = chance.choice([0.0, 0.1, 0.1, 0.5])
        self.keyless = chance.choice([0.0] * 9 + [0.2])
        self.without_time = chance.choice([0.0] * 9 + [0.1, 1.0])
        self.append_time = chance.choice([0.0] * 4 + [0.2, 1.0])
        self.headers = chance.choice([0.0, 0.0, 0.1])
        self.gaps = chance.choice([0.0, 0.0, 0.05])
        self.codecs = chance.choice(
            [
                [Codec.NONE],
                [Codec.NONE],
                [chance.choice(list(Codec))],
                [Codec.NONE, chance.choice(list(Codec))],
                list(Codec),
            ]
        )
        self.most_records = chance.choice([1, 3, 10, 30])
        self.coordinator_epoch = chance.randrange(3)
        self.senders: list[_Producer] = []
        if chance.random() < 0.7:
            for _ in range(chance.choice([1, 1, 2, 3, 6, 14])):
                producer = _Producer(
                    chance.choice([chance.randrange(30), chance.randrange(2**40)]), chance.random() < 0.7
                )
                if producer.producer_id not in {each.producer_id for each in self.senders}:
                    self.senders.append(producer)
                if chance.random() < 0.05:
                    producer.sequence = _SEQUENCES - 5
        self.plain = chance.choice([0.0, 0.3, 0.8]) if self.senders else 1.0
        self.aborts = chance.choice([0.1, 0.5, 0.9])
        self.lasting = chance.choice([0.2, 0.5, 0.8])  # how likely a transaction goes on
        self.legacy = chance.random() < 0.2
        self.producers = Producers()
        self.last_snapshot = ""

    def round(self, *, first: bool) -> Round:
        """The next segments, with the time of the clean that follows."""
        chance = self.chance
        then, self.now_ms = self.now_ms, self.now_ms + chance.choice([1000, 61_000, 3_600_001, DAY_MS + 1, 3 * DAY_MS])
        # As a broker that starts at that time: without those that were silent, in buckets counted anew.
        self.producers.expire(then, PRODUCER_EXPIRATION_MS)
        self.producers = Producers(self.producers.entries())
        files: dict[str, bytes] = {}
        modified_ms: dict[str, int] = {}
        count = chance.choice([1, 2, 3, 5, 8, 12]) if first else chance.choice([1, 1, 2, 3, 5])
        times = sorted(chance.randrange(then, self.now_ms + 1) for _ in range(count))
        for number, modified in enumerate(times):
            if not (first and number == 0):
                files |= self._snapshot()
            is_last = number + 1 == count
            empty = chance.random() < (0.1 if is_last else 0.04)
            base = self.offset
            files |= self._segment(times[number - 1] if number else then, modified, empty=empty)
            modified_ms[f"{offset_name(base)}{LOG}"] = modified
            if empty and not is_last:
                self.offset += chance.randrange(1, 20)
        if self.offset > self.start:
            files |= self._snapshot()
        if chance.random() < 0.2:
            self.start = self._later_start(files)
        return Round(self.now_ms, self.start, files, modified_ms)

    def _later_start(self, files: Mapping[str, bytes]) -> int:
        """A log start: anywhere up to an open transaction, behind that only where a batch is (docs/decisions/0030)."""
        unstable = self.producers.first_unstable_offset()
        if unstable is None or self.chance.random() < 0.5:
            end = self.offset if unstable is None else min(unstable, self.offset)
            return self.chance.randint(self.start, max(self.start, end))
        bases = [int(name[: -len(LOG)]) for name, data in files.items() if name.endswith(LOG) and data]
        return self.chance.choice([self.start, *(base for base in bases if base >= self.start)])

    def _snapshot(self) -> dict[str, bytes]:
        """The producers now; one that is there is never written again."""
        name = f"{offset_name(self.offset)}{SNAPSHOT}"
        if name == self.last_snapshot:
            return {}
        self.last_snapshot = name
        return {name: encode_snapshot(self.producers.entries())}

    def _segment(self, since: int, until: int, *, empty: bool) -> dict[str, bytes]:
        base, log = self.offset, bytearray()
        most = 0 if empty else self.segment_bytes * self.chance.choice([0.2, 0.5, 1.0])
        indexed = GrowingSegment(base, 0, self.interval)
        magic = self.chance.choice([0, 1, 1, 2]) if self.legacy else 2
        self.legacy = self.legacy and magic < 2  # a broker that was updated stays so
        while len(log) < most and not self._indexes_full(indexed):
            if log and self.gaps and self.chance.random() < self.gaps:
                self.offset += self.chance.randrange(1, 1000)
            # Event times run ahead with the segment, each batch around its own.
            batch = self._batch(since + int((until - since) * min(1.0, len(log) / most)), magic)
            ahead = indexed.copy()
            ahead.append_all(scan_batches(np.frombuffer(batch, np.uint8), "a random batch"))
            if log and (len(log) + len(batch) > self.segment_bytes or self._too_many_entries(ahead)):
                break
            log += batch
            indexed = ahead
            self.offset = indexed.end_offset
        self.offset = indexed.end_offset
        data = np.frombuffer(log, np.uint8)
        table = scan_batches(data, "a random log")
        stem = offset_name(base)
        indexed.seal()
        files = {
            stem + LOG: bytes(log),
            stem + INDEX: indexed.offset_index_bytes(),
            stem + TIME_INDEX: indexed.time_index_bytes(),
        }
        aborted = aborted_among(self.producers.replay(data, table, stem))
        if aborted:
            files[stem + TRANSACTION_INDEX] = encode_transaction_index(aborted)
        self.counts["segments"] += 1
        self.counts["batches"] += len(table)
        self.counts["transactions aborted"] += len(aborted)
        return files

    def _indexes_full(self, indexed: GrowingSegment) -> bool:
        offsets, times = self.index_bytes // 8, self.index_bytes // 12
        return len(indexed.offset_entries) >= offsets or len(indexed.time_entries) >= times - 1

    def _too_many_entries(self, indexed: GrowingSegment) -> bool:
        return (
            len(indexed.offset_entries) > self.index_bytes // 8 or len(indexed.time_entries) >= self.index_bytes // 12
        )

    def _batch(self, time: int, magic: int) -> bytes:
        chance = self.chance
        if magic < 2 and chance.random() < 0.95:
            return self._legacy(time, magic)
        if not self.senders or chance.random() < self.plain:
            return self._data(time, _NOBODY, 0)
        producer = chance.choice(self.senders)
        if producer.transactional:
            if producer.in_transaction and chance.random() > self.lasting:
                return self._marker(time, producer)
            if not producer.in_transaction and chance.random() < 0.03:
                return self._marker(time, producer)
        if not producer.in_transaction and chance.random() < 0.05:
            producer.bump()
        producer.in_transaction = producer.transactional
        sender = Sender(producer.producer_id, producer.epoch, producer.sequence)
        batch = self._data(time, sender, TRANSACTIONAL if producer.transactional else 0)
        producer.sequence = (producer.sequence + int.from_bytes(batch[23:27], "big") + 1) % _SEQUENCES
        self.counts["batches of producers"] += 1
        return batch

    def _data(self, time: int, sender: Sender, attributes: int) -> bytes:
        chance = self.chance
        records = [self._record(time) for _ in range(chance.randint(1, self.most_records))]
        if chance.random() < self.append_time:
            records = [record._replace(timestamp=time) for record in records]
            attributes |= LOG_APPEND_TIME
        codec = chance.choice(self.codecs)
        self.counts[f"{codec.name.lower()} batches"] += 1
        self.counts["records"] += len(records)
        self.counts["tombstones"] += sum(record.value is None for record in records)
        return encode_batch(self.offset, records, codec, sender, attributes)

    def _legacy(self, time: int, magic: int) -> bytes:
        chance = self.chance
        codec = chance.choice(self.codecs)
        if codec is Codec.ZSTD or (codec is Codec.LZ4 and magic == 0):
            codec = Codec.GZIP  # there was none, and one whose checksum was another
        most = self.most_records if self.index_bytes >= 4096 else 3  # each of them can be an index entry
        records = [self._record(time)._replace(headers=()) for _ in range(chance.randint(1, most))]
        self.counts[f"messages of magic {magic}"] += len(records)
        return encode_legacy(self.offset, records, magic, codec, append_time=chance.random() < self.append_time)

    def _record(self, time: int) -> Record:
        chance = self.chance
        timestamp = time + int(chance.gauss(0, 2000)) if chance.random() < 0.3 else time
        if self.without_time and chance.random() < self.without_time:
            timestamp = _NO_TIMESTAMP
        elif chance.random() < 0.003:
            timestamp = time + chance.choice([-DAY_MS, -3 * DAY_MS, DAY_MS])
        key = self.keys[int(len(self.keys) * chance.random() ** self.skew)]
        value = None if chance.random() < self.tombstones else b" ".join(chance.choices(_WORDS, k=chance.randrange(8)))
        headers: tuple[tuple[bytes, bytes | None], ...] = ()
        if self.headers and chance.random() < self.headers:
            headers = tuple(
                (b"h%d" % number, chance.choice([b"", b"x", None])) for number in range(chance.randint(1, 3))
            )
        return Record(timestamp, None if chance.random() < self.keyless else key, value, headers)

    def _marker(self, time: int, producer: _Producer) -> bytes:
        chance = self.chance
        kind = ControlType.ABORT if chance.random() < self.aborts else ControlType.COMMIT
        if chance.random() < 0.05:
            self.coordinator_epoch += 1
        producer.in_transaction = False
        if chance.random() < 0.3:
            producer.bump()  # KIP-890: the marker fences the transaction's epoch
        key, value = encode_marker(TransactionMarker(kind, self.coordinator_epoch))
        self.counts["markers"] += 1
        sender = Sender(producer.producer_id, producer.epoch, -1)
        return encode_batch(self.offset, [Record(time, key, value)], sender=sender, attributes=TRANSACTIONAL | CONTROL)
