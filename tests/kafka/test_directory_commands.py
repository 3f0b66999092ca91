"""`lakelog append`, `recover`, `retain` and `plan` on the directory of a real broker, which then starts on it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lakelog import cli
from tests.in_process import Ended, run_in_process
from tests.kafka_broker import KafkaBroker
from tests.lakelog.cli.conftest import line


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    """A broker of its own, because the test stops and kills it."""
    with KafkaBroker(more_properties="log.initial.task.delay.ms=86400000\n") as started:
        yield started


def lakelog(*arguments: str, stdin: bytes = b"") -> Ended:
    return run_in_process(cli.main, ["lakelog", *arguments], stdin)


def consumed(broker: KafkaBroker, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """The partition, offset, key and value of each record of a topic."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    found = []
    while any(consumer.position(each) < ends[each] for each in partitions):
        for records in consumer.poll(timeout_ms=1000).values():
            found += [(each.partition, each.offset, each.key, each.value) for each in records]
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


@pytest.mark.kafka
def test_a_broker_serves_appended_records_and_starts_after_a_recovery(broker: KafkaBroker) -> None:
    broker.create_topic("t", partitions=3, configs={"segment.bytes": "1048576", "retention.ms": "-1"})
    broker.create_topic("keys", partitions=3)
    broker.create_topic("old", configs={"retention.ms": "1000"})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    keys = [b"k%d" % number for number in range(30)]
    for key in keys:
        producer.send("t", key=key, value=b"sent")
        producer.send("keys", key=key, value=b"v")
    producer.send("old", value=b"v", timestamp_ms=1)
    producer.close()
    before = consumed(broker, "t")
    data = str(broker.data)
    running = json.loads(lakelog("plan", "--kafka-dir", data, "--format", "json").out)
    assert (running["locked"], running["closed_cleanly"]) == (True, False)
    assert lakelog("append", "--kafka-dir", data, "--topic", "t").status == 1
    broker.stop()

    lines = "\n".join(line(key, b"v") for key in keys).encode()
    ended = lakelog("append", "--kafka-dir", data, "--topic", "t", stdin=lines)
    assert (ended.status, ended.err) == (0, "")
    ended = lakelog("retain", "--kafka-dir", data)
    assert ended.status == 0
    assert "/old-0: retention deletes segment 0" in ended.out
    broker.start()
    found = consumed(broker, "t")
    appended = [each for each in found if each not in before]
    assert [each for each in found if each in before] == before
    by_producer = {key: number for number, _, key, _ in consumed(broker, "keys")}
    assert sorted((key, value, number) for number, _, key, value in appended) == sorted(
        (key, b"v", by_producer[key]) for key in keys
    )
    assert consumed(broker, "old") == []

    broker.send("t", b"after", key=b"k0")
    whole = consumed(broker, "t")
    broker.kill()
    planned = json.loads(lakelog("plan", "--kafka-dir", data, "--format", "json").out)
    assert {each["topic"] for each in planned["recover"]} == {"t", "keys", "old"}
    ended = lakelog("recover", "--kafka-dir", data)
    assert (ended.status, ended.err) == (0, "")
    broker.start()
    assert not [each for each in broker.said if "Recovering" in each and "/t-" in each]
    assert consumed(broker, "t") == whole
