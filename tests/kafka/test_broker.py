"""Tests that the broker which the tests start is a real one: it returns the records that were sent to it."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.kafka_broker import KafkaBroker


@pytest.mark.kafka
def test_the_broker_gives_back_what_it_was_given(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("given", partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    for number in range(10):
        producer.send("given", key=b"k", value=b"%d" % number, partition=1)
    producer.close()

    consumer = KafkaConsumer(bootstrap_servers=kafka_broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition("given", 1)])
    found = [next(consumer).value for _ in range(10)]
    consumer.close()

    assert found == [b"%d" % number for number in range(10)]
    assert (kafka_broker.data / "given-1").is_dir()
