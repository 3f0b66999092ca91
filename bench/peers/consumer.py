"""One peer of the consumer benchmark: `python -m bench.peers.consumer lakelog|messages|arrow`, in a separate process.

A case names a root, the address of a Kafka broker with the same topic, and the number of records. For the case "read",
the answer is the time in seconds to read all records, on one thread of Python. The time begins when the root is opened,
or when the consumer is created. For the case "digest", the answer is the number of records, and a hash of all columns
of all records.

    lakelog     Topic.read, into one Arrow table
    messages    confluent-kafka's consumer; the program gets the messages, and does nothing with them
    arrow       confluent-kafka's consumer; the program puts the messages into an Arrow table with the same columns
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

import lakelog
from bench.reading.filled_topic import PARTITIONS, TOPIC
from bench.turns import answer
from lakelog.rows import ROWS

AT_ONCE = 10_000
CONFIG = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
"""With 1000, the default of fetch.queue.backoff.ms, the consumer pauses for a second whenever its queue was full."""


def table(case: dict[str, Any]) -> pa.Table:
    return lakelog.open(case["root"]).topic(TOPIC).read().to_arrow()


def messages(case: dict[str, Any]) -> None:
    for _ in consumed(case):
        pass


def arrow(case: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([as_rows(found) for found in consumed(case)], ROWS)


def consumed(case: dict[str, Any]) -> Iterator[list[Message]]:
    """All records of the topic, as lists of messages."""
    left = case["records"]
    with closing(Consumer({**CONFIG, "bootstrap.servers": case["bootstrap_servers"]})) as consumer:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while left:
            found = consumer.consume(min(AT_ONCE, left), timeout=1)
            left -= len(found)
            if found:
                yield found


def as_rows(found: list[Message]) -> pa.RecordBatch:
    """Messages as rows with the columns of Topic.read."""
    times = [message.timestamp() for message in found]
    columns = [
        pa.array([message.key() for message in found], pa.binary()),
        pa.array([message.value() for message in found], pa.binary()),
        pa.array([message.topic() for message in found], pa.string()),
        pa.array([message.partition() for message in found], pa.int32()),
        pa.array([message.offset() for message in found], pa.int64()),
        pa.array([1000 * milliseconds for _, milliseconds in times], ROWS.field("timestamp").type),
        pa.array([kind - 1 for kind, _ in times], pa.int32()),
        pa.array([message.headers() or [] for message in found], ROWS.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


PEERS: dict[str, Callable[[dict[str, Any]], pa.Table | None]] = {
    "lakelog": table,
    "messages": messages,
    "arrow": arrow,
}


def measure(case: dict[str, Any]) -> float | list[int]:
    started = time.perf_counter()
    rows = PEERS[sys.argv[1]](case)
    seconds = time.perf_counter() - started
    if case["what"] == "digest":
        hashed = ", ".join(f'"{name}"' for name in ROWS.names)
        with duckdb.connect() as database:
            database.register("rows", rows)
            found = database.execute(f"SELECT count(*), bit_xor(hash({hashed})) FROM rows").fetchone()
        assert found is not None, "an aggregate has one row"
        return list(found)
    return seconds


if __name__ == "__main__":
    answer(measure)
