"""Makes log directories as a broker leaves them: partitions with topic ids, and the records of __cluster_metadata."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage_engine.clock import ManualClock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import LogError
from storage_engine.kafka_dir.log_manager import LogManager
from tests.storage_engine.record_tables import Row, to_table

NOW_MS = 1_700_000_000_000
IDS = {
    name: base64.urlsafe_b64encode(bytes([number]) * 16).rstrip(b"=").decode()
    for number, name in enumerate("abcdef", 1)
}
"""A topic id for each name."""


class Told:
    """A Reporter that stores the reports."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[LogError] = []

    def did(self, place: str, what: str) -> None:
        self.lines.append(f"{place}: {what}")

    def failed(self, error: LogError) -> None:
        self.errors.append(error)


def rows(count: int, keys: int = 0, age_ms: int = 0) -> list[Row]:
    """Records, each with a key of its own, or with so many keys in turn."""
    return [
        Row(b"k%d" % (number % keys if keys else number), b"%064d" % number, (), NOW_MS - age_ms)
        for number in range(count)
    ]


def make_directory(
    directory: Path, topics: Mapping[str, Sequence[Row]], metadata: Sequence[bytes] = (), *, partitions: int = 1
) -> None:
    """Make a directory in which each topic has these records in each partition, in segments of a few records. If records
    of __cluster_metadata are given, they are there, too.
    """
    config = LogManagerConfig.from_mapping({"log.segment.bytes": 1024, "log.message.timestamp.before.max.ms": 2**62})
    with LogManager([directory], config, clock=ManualClock(NOW_MS)) as logs:
        for topic, records in topics.items():
            for number in range(partitions):
                log = logs.create(topic, number, IDS.get(topic))
                for row in records:
                    log.append_records(to_table([row]))
        if metadata:
            log = logs.create("__cluster_metadata", 0)
            for value in metadata:
                log.append_records(to_table([Row(None, value, (), NOW_MS)]))


def topic_record(name: str, id_of: str = "") -> bytes:
    """id_of: the name whose id the topic has; the topic's own name if empty."""
    return _record(2, 0, _string(name) + _uuid(IDS[id_of or name]))


def remove_topic_record(name: str) -> bytes:
    return _record(9, 0, _uuid(IDS[name]))


def partition_record(name: str, number: int, replicas: Sequence[int]) -> bytes:
    body = struct.pack(">i", number) + _uuid(IDS[name])
    body += b"".join(_ints(each) for each in (replicas, replicas, (), ())) + struct.pack(">iii", replicas[0], 3, 4)
    return _record(3, 1, body + _varint(len(replicas) + 1) + bytes(16 * len(replicas)))


def replicas_record(name: str, number: int, replicas: Sequence[int]) -> bytes:
    """A PartitionChangeRecord that changes only the replicas."""
    return _record(5, 1, struct.pack(">i", number) + _uuid(IDS[name]), {2: _ints(replicas)})


def config_record(resource: int, name: str, key: str, value: str | None) -> bytes:
    """resource: 2 for a topic, 4 for a broker."""
    return _record(4, 0, struct.pack(">b", resource) + _string(name) + _string(key) + _string(value))


def transaction_record(kind: int) -> bytes:
    """kind: 23 begins, 24 ends, 25 aborts."""
    return _record(kind, 0, b"")


def known(name: str, settings: Mapping[str, str] | None = None, replicas: Sequence[int] = (1,)) -> list[bytes]:
    """The records of a topic with one partition."""
    settings_records = [config_record(2, name, key, value) for key, value in (settings or {}).items()]
    return [topic_record(name), partition_record(name, 0, replicas), *settings_records]


def _record(kind: int, version: int, body: bytes, tagged: Mapping[int, bytes] | None = None) -> bytes:
    fields = b"".join(_varint(tag) + _varint(len(data)) + data for tag, data in (tagged or {}).items())
    return _varint(1) + _varint(kind) + _varint(version) + body + _varint(len(tagged or {})) + fields


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def _string(text: str | None) -> bytes:
    return _varint(0) if text is None else _varint(len(text.encode()) + 1) + text.encode()


def _uuid(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")


def _ints(numbers: Sequence[int]) -> bytes:
    return _varint(len(numbers) + 1) + b"".join(struct.pack(">i", number) for number in numbers)
