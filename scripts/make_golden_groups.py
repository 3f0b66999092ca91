"""Rebuilds the files of tests/golden/groups: `python -m scripts.make_golden_groups`, in about a minute.

A broker of Kafka 4.3.1 runs during this program. At the end, the folder contains

    orders-0 to orders-3       a topic with twenty records, and with the markers of transactions
    __consumer_offsets-0       the groups that read this topic: classic, consumer, share and streams groups, and a
                               deleted group; some commits have metadata or an expiry, and some are in transactions
    every-type-0               records of every type and every version that __consumer_offsets can have, with random
                               fields
    offsets_decoder.txt.gz     what Kafka's own dump tool prints for __consumer_offsets-0 and every-type-0
    described.txt              what kafka-consumer-groups prints for all groups
"""

from __future__ import annotations

import gzip
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import OffsetAndMetadata

from storage_engine.record.coordinator.coordinator_schemas import (
    MEMBER_CONTENTS,
    RECORD_TYPES,
    FieldSchema,
    MessageSchema,
)
from tests.kafka_broker import KafkaBroker, distribution
from tests.kafka_jvm import kafka_command

HOME = Path(__file__).resolve().parent.parent
FOLDER = HOME / "tests/golden/groups"
REQUESTS = HOME / "tests/kafka/KafkaGroupRequests.java"
LOG = f"{0:020d}.log"
DECODED = ("__consumer_offsets-0", "every-type-0")
ORDERS = [TopicPartition("orders", number) for number in range(4)]
SAMPLES = 3
TEXTS = ("", "a", "orders", "é", "日本", 'quo"te\\', "tab\tnew\nline\x01\x1f", "x" * 40)
NUMBERS = {"int8": ("b", 7), "int16": ("h", 15), "int32": ("i", 31), "int64": ("q", 63)}
GROUP_3 = b"\x00\x03\x00\x01g"
OTHERS = (
    (b"\x00\x63xx", b"\x00\x00"),
    (b"\x00\x09xx", None),
    (b"\xff\xffxx", b"v"),
    (GROUP_3, b"\x00\x00\x00\x00\x00\x01\x00trailing"),
    (GROUP_3 + b"trailing", b"\x00\x00\x00\x00\x00\x01\x00"),
    (b"", b"v"),
    (b"\x00\x01\x00\x09g", b"\x00\x01"),
    (GROUP_3, b""),
    (GROUP_3, b"\x00\x09"),
    (GROUP_3, b"\x00\x00\x00"),
    (b"\x00\x03\xff\xffg", b"\x00\x00\x00"),
    (b"\x00\x10\x00\x01g\x00\x01r", b"\x00\x00\x02\x00"),
    (b"\x00\x10\x00\x01g\x00\x01r", b"\x00\x00\x09\x00"),
    (b"\x00\x10\x00\x01g\x00\x01r", b"\x00\x00\xff\xff\xff\xff\x1f"),
    (b"\x00\x10\x00\x01g\x00\x01r", b"\x00\x00\x02\x81\x80\x02"),
    (GROUP_3, b"\x00\x00\x00\x00\x00\x01\x01\x00\xff\xff\xff\xff\xff"),
)
"""Keys and values that have an unknown type, have extra bytes after their fields, or are damaged."""
TOOLS = "org.apache.kafka.tools"


def main() -> None:
    with KafkaBroker() as broker:
        for topic, partitions in (("orders", len(ORDERS)), ("every-type", 1)):
            broker.create_topic(topic, partitions, {"retention.ms": "-1"})
        fill(broker)
        run_groups(broker)
        end_with_an_open_transaction(broker)
        described = run_tool(
            "consumer.group", broker, "ConsumerGroupCommand", "--describe", "--all-groups", "--offsets"
        )
        broker.stop()
        shutil.rmtree(FOLDER, ignore_errors=True)
        for name in (*DECODED, *(f"orders-{number}" for number in range(len(ORDERS)))):
            (FOLDER / name).mkdir(parents=True)
            for file in (LOG, *(["partition.metadata"] if name.startswith("orders") else [])):
                shutil.copyfile(broker.data / name / file, FOLDER / name / file)
    (FOLDER / "described.txt").write_text(described)
    printed = subprocess.run(
        [*java(), f"{TOOLS}.DumpLogSegments", "--offsets-decoder", "--files", ",".join(f"{name}/{LOG}" for name in DECODED)],
        cwd=FOLDER, capture_output=True, check=True,
    )  # fmt: skip
    (FOLDER / "offsets_decoder.txt.gz").write_bytes(gzip.compress(printed.stdout, mtime=0))
    sys.stderr.write(printed.stderr.decode())


def fill(broker: KafkaBroker) -> None:
    """Append to the topics orders and every-type."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(20):
        producer.send("orders", b"v%d" % number, partition=number % len(ORDERS))
    for key, value in RandomRecords(seed=7).all():
        producer.send("every-type", value, key=key, timestamp_ms=1_700_000_000_000)
    producer.close()


def run_groups(broker: KafkaBroker) -> None:
    """Let a group of each kind read the topic orders."""
    servers = broker.bootstrap_servers
    for group in ("billing", "deleted"):
        classic = KafkaConsumer(
            "orders", bootstrap_servers=servers, group_id=group, enable_auto_commit=False, client_id="one"
        )
        while not classic.assignment():
            classic.poll(200)
        classic.commit({each: OffsetAndMetadata(each.partition + 1, 'said "by" one', -1) for each in ORDERS})
        classic.close()
    alone = KafkaConsumer(bootstrap_servers=servers, group_id="assigned é", enable_auto_commit=False)
    alone.assign(ORDERS[:1])
    alone.commit({ORDERS[0]: OffsetAndMetadata(3, "", 0)})
    alone.close()
    run_tool(
        "consumer", broker, "ConsoleConsumer", "--topic", "orders", "--from-beginning", "--max-messages", "20",
        "--command-property", "group.id=modern", "--command-property", "group.protocol=consumer",
    )  # fmt: skip
    run_tool(
        "consumer", broker, "ConsoleShareConsumer", "--topic", "orders", "--group", "shared", "--timeout-ms", "6000"
    )
    subprocess.run([*kafka_command(REQUESTS), str(broker.port)], check=True, timeout=120)
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_groups(["deleted"])
    admin.close()
    producer = transactional(broker, "tx")
    for offset, end in ((4, producer.commit_transaction), (5, producer.abort_transaction)):
        begin_commit(producer, "exactly-once", offset)
        end()
    producer.close()


def end_with_an_open_transaction(broker: KafkaBroker) -> None:
    """Commit an offset in a transaction, and leave this transaction open. Then let another group commit an offset."""
    producer = transactional(broker, "open")
    begin_commit(producer, "billing", 5)
    after = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="assigned é", enable_auto_commit=False)
    after.assign(ORDERS[:1])
    after.commit({ORDERS[0]: OffsetAndMetadata(6, "again", -1)})
    after.close()


def transactional(broker: KafkaBroker, transactional_id: str) -> KafkaProducer:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def begin_commit(producer: KafkaProducer, group: str, offset: int) -> None:
    """Begin a transaction, append to partition 0, and commit an offset of the group. The transaction stays open."""
    producer.begin_transaction()
    producer.send("orders", b"t", partition=0)
    producer.send_offsets_to_transaction({ORDERS[0]: OffsetAndMetadata(offset, "", -1)}, group)
    producer.flush()


def run_tool(package: str, broker: KafkaBroker, tool: str, *arguments: str) -> str:
    """Return what a tool of Kafka prints. Some tools end with an error when no more records arrive."""
    command = [*java(), f"{TOOLS}.{package}.{tool}", "--bootstrap-server", broker.bootstrap_servers, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=False).stdout


def java() -> list[str]:
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{distribution()}/*"]


class RandomRecords:
    """Records of __consumer_offsets with random fields. Equal seeds give equal records."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def all(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values: first those of random records, then those in OTHERS."""
        for kind, (key, value) in RECORD_TYPES.items():
            for version in range(value.last_version + 1):
                for _ in range(SAMPLES):
                    yield self._key(kind, key), self._message(value, version)
            yield self._key(kind, key), None
        group = RECORD_TYPES[2][1]
        for version in range(group.last_version + 1):
            for _ in range(SAMPLES):
                yield b"\x00\x02\x00\x01g", self._consumers(group, version)
        yield from OTHERS

    def _key(self, kind: int, fields: tuple[FieldSchema, ...]) -> bytes:
        return struct.pack(">h", kind) + self._fields(fields, 0, flexible=False)

    def _message(self, message: MessageSchema, version: int, given: Mapping[str, bytes] | None = None) -> bytes:
        flexible = version >= message.flexible_since
        return struct.pack(">h", version) + self._fields(message.fields, version, flexible=flexible, given=given)

    def _consumers(self, group: MessageSchema, version: int) -> bytes:
        """A group of consumers. Each member has a subscription and an assignment; some assignments are random bytes."""
        flexible = version >= group.flexible_since
        subscription, assignment = (
            self._message(message, self._random.randrange(5)) for message in MEMBER_CONTENTS.values()
        )
        if self._random.random() < 0.3:
            assignment = self._random.randbytes(self._random.randrange(6))
        given = {
            "protocolType": _length(8, "string", flexible=flexible) + b"consumer",
            "subscription": _length(len(subscription), "bytes", flexible=flexible) + subscription,
            "assignment": _length(len(assignment), "bytes", flexible=flexible) + assignment,
        }
        return self._message(group, version, given)

    def _fields(
        self, fields: tuple[FieldSchema, ...], version: int, *, flexible: bool, given: Mapping[str, bytes] | None = None
    ) -> bytes:
        there = [field for field in fields if field.since <= version <= field.until]
        encoded = b"".join(
            (given or {}).get(field.name) or self._value(field.kind, field, version, flexible=flexible, given=given)
            for field in there if field.tag is None
        )  # fmt: skip
        if not flexible:
            return encoded
        tagged = [
            (field.tag, self._value(field.kind, field, version, flexible=True))
            for field in there
            if field.tag is not None and self._random.random() < 0.7
        ]
        if self._random.random() < 0.3:
            tagged.append((9, self._random.randbytes(5)))
        encoded += _varint(len(tagged))
        return encoded + b"".join(_varint(tag) + _varint(len(content)) + content for tag, content in tagged)

    def _value(
        self, kind: str, field: FieldSchema, version: int, *, flexible: bool, given: Mapping[str, bytes] | None = None
    ) -> bytes:
        chance = self._random
        nullable, plain = kind.endswith("?"), kind.removesuffix("?")
        null = nullable and chance.random() < 0.3
        if plain in NUMBERS:
            code, bits = NUMBERS[plain]
            return struct.pack(f">{code}", chance.choice([0, 1, -1, -(2**bits), 2**bits - 1, chance.randrange(100)]))
        if plain == "uint16":
            return struct.pack(">H", chance.choice([0, 65535, 9092]))
        if plain == "uuid":
            return chance.randbytes(16)
        if plain == "{}":
            if null:
                return b"\xff" if field.tag is None else b"\x00"
            return b"\x01" * nullable + self._fields(field.fields, version, flexible=flexible, given=given)
        if null:
            return _length(-1, plain, flexible=flexible)
        if plain in ("string", "bytes"):
            data = chance.choice(TEXTS).encode() if plain == "string" else chance.randbytes(chance.randrange(20))
            return _length(len(data), plain, flexible=flexible) + data
        count = chance.randrange(4)
        element = plain.removeprefix("[]")
        return _length(count, plain, flexible=flexible) + b"".join(
            self._value(element, field, version, flexible=flexible, given=given) for _ in range(count)
        )


def _length(count: int, kind: str, *, flexible: bool) -> bytes:
    return _varint(count + 1) if flexible else struct.pack(">h" if kind == "string" else ">i", count)


def _varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


if __name__ == "__main__":
    main()
