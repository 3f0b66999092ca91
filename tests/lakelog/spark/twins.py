"""Makes each topic twice, in a Kafka broker and in a root, and reads both in the same way: with format("kafka") and
format("lakelog").
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.transaction_writer import TransactionWriter
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.topics import Topics
from tests.kafka_broker import KafkaBroker
from tests.stores import root_at, storage_at

KAFKA, LAKELOG = "kafka", "lakelog"
FORMATS = (KAFKA, LAKELOG)
TIME = 1_700_000_000_000
PATIENCE = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1", "kafkaConsumer.pollTimeoutMs": "700"}
"""These options limit how long Kafka's source asks a broker for records that do not exist."""
BIG, SMALL, EMPTY, CUT, TRANSACTED = (f"twin-{kind}" for kind in ("big", "small", "empty", "cut", "transacted"))

Record = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What came of a read.

    rows: of a batch, in order of topic, partition and offset; of a stream, those of each micro-batch.
    refusal: why there are none.
    """

    schema: str = ""
    rows: Sequence[Any] = ()
    tasks: int | None = None
    refusal: str = ""


@dataclass
class Twins:
    """Topics of a broker and of a root, with the same records at the same offsets."""

    spark: SparkSession
    broker: KafkaBroker
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topics = Topics(storage_at(self.folder / "root"), BrokerConfig(), SystemClock())
        self.admin = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
        self._producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers)

    def close(self) -> None:
        self._producer.close()
        self.admin.close()

    def name(self, kind: str) -> str:
        """A name that no other topic has."""
        return f"{kind}-{next(self._numbers)}"

    def create(self, topic: str, *counts: int) -> str:
        """A topic with a partition of so many records for each number."""
        self.broker.create_topic(topic, len(counts), {"retention.ms": "-1"})  # times are long ago
        self.topics.create(topic, len(counts), {})
        for partition, count in enumerate(counts):
            self.append(topic, partition, *(record(partition, number) for number in range(count)))
        return topic

    def append(self, topic: str, partition: int, *records: Record) -> None:
        sent = [_sent(self._producer, topic, partition, each) for each in records]
        for each in sent:
            each.get(20)
        if records:
            config = self.topics.config(self.topics.state(topic))
            append_records(
                self.topics.storage, self.topics.chain(topic), config, self.topics.clock, _columns(records), partition
            )

    def transact(self, topic: str, *ends: bool) -> None:
        """A record in partition 0 for each transaction, which is committed if `ends` says so."""
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap_servers, transactional_id=topic)
        producer.init_transactions()
        for number, committed in enumerate(ends):
            producer.begin_transaction()
            _sent(producer, topic, 0, record(0, number)).get(20)
            transaction = TransactionWriter(self.topics)
            transaction.append(topic, _columns([record(0, number)]))
            if committed:
                producer.commit_transaction()
                transaction.commit()
            else:
                producer.abort_transaction()
                transaction.abort()
        producer.close()

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.admin.delete_records({TopicPartition(topic, partition): offset})
        delete_records(self.topics.chain(topic), partition, offset)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions({topic: NewPartitions(partitions)})
        self.topics.alter(topic, partitions=partitions)
        self._producer.close()
        self._producer = KafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers
        )  # the old one knows the old number

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])
        self.topics.delete(topic)

    def options(self, kind: str) -> dict[str, str]:
        if kind == KAFKA:
            return {"kafka.bootstrap.servers": self.broker.bootstrap_servers} | PATIENCE
        return {"kafka.bootstrap.servers": "localhost:1", "root": self.topics.storage.uri} | PATIENCE

    def frame(self, kind: str, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
        reader = self.spark.read.format(kind).options(**self.options(kind)).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def batch(self, kind: str, options: Mapping[str, str], schema: str | None = None) -> Outcome:
        try:
            frame = self.frame(kind, options, schema)
            rows = rows_of(frame)
            counted = {"minpartitions", "maxrecordsperpartition"} & {name.lower() for name in options}
            return Outcome(frame.schema.json(), rows, frame.rdd.getNumPartitions() if counted else None)
        except (PySparkException, Py4JError) as error:
            return Outcome(refusal=str(error))

    def stream(self, kind: str, options: Mapping[str, str], place: str) -> Outcome:
        """The rows of a query that ends when it has read all present records.

        Args:
            place: the folder of the query's checkpoint. A query with the folder of an earlier query continues where
            that query ended.
        """
        batches: list[Any] = []
        try:
            frame = self.spark.readStream.format(kind).options(**self.options(kind)).options(**options).load()
            writer = frame.writeStream.option("checkpointLocation", root_at(self.folder / kind / place))
            query = (
                writer.foreachBatch(lambda rows, _: batches.append(rows_of(rows))).trigger(availableNow=True).start()
            )
            query.awaitTermination()
            return Outcome(frame.schema.json(), batches)
        except (PySparkException, Py4JError) as error:
            return Outcome(refusal=str(error))

    def batches(self, **options: str) -> tuple[Outcome, Outcome]:
        """What a batch gives of both."""
        return _of_both(lambda kind: self.batch(kind, options))

    def streams(self, place: str, **options: str) -> tuple[Outcome, Outcome]:
        """What a stream gives of both."""
        return _of_both(lambda kind: self.stream(kind, options, place))


def record(partition: int, number: int) -> Record:
    """A record of a topic; every kind of key, value, header and time comes up."""
    late = 500_000 if number == 50 else 0
    return {
        "key": None if number % 3 == 0 else b"k%d" % number,
        "value": None if number % 30 == 7 else b"%d:%d" % (partition, number),
        "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": b""}] if number % 4 == 0 else [],
        "timestamp": TIME + 1000 * number + late,
    }


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def at(topic: str, *offsets: int) -> str:
    """Offsets of a topic's partitions, as options have them."""
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


def _of_both(read: Any) -> tuple[Outcome, Outcome]:
    found: dict[str, Outcome] = {}
    threads = [threading.Thread(target=lambda kind=kind: found.update({kind: read(kind)})) for kind in FORMATS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[KAFKA], found[LAKELOG]


def _sent(producer: KafkaProducer, topic: str, partition: int, each: Record) -> Any:
    headers = [(header["key"], header["value"]) for header in each["headers"]]
    return producer.send(
        topic, each["value"], each["key"], headers, partition=partition, timestamp_ms=each["timestamp"]
    )


def _columns(records: Sequence[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), schema=TO_APPEND)
