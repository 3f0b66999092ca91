"""Starts an unmodified Kafka broker on an export of the topics that the ingests have written."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from kafka import KafkaConsumer, TopicPartition

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage import Storage
from storage_engine.storage.storage_opening import new_directory
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.topics import Topics
from tests.faults.processes.source import PARTITIONS, TOPIC
from tests.kafka_broker import PATIENCE_SECONDS, KafkaBroker


def ids_by_broker(storage: Storage, exported: Path) -> npt.NDArray[np.int64]:
    """The ids of all records as a consumer is given them, in order; asserts that the broker complains of nothing."""
    topics = Topics(storage, BrokerConfig(), SystemClock())
    with new_directory(exported) as directory:
        export_topics(topics, [TOPIC], directory)
    found: list[int] = []
    with KafkaBroker() as broker:
        broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})
        broker.stop()
        broker.put(exported, cleanly_closed=False)
        broker.start()
        consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="none")
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(part) < ends[part] for part in partitions):
            assert time.monotonic() < deadline, broker.complaints
            for records in consumer.poll(100, max_records=5000).values():
                found += [int(record.value[:12]) for record in records]
        consumer.close()
        assert [line for line in broker.complaints if "QuorumController" not in line] == []
    return np.sort(np.array(found, np.int64))
