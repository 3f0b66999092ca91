"""Makes the topic of the benchmarks that read: the same records in a root, and in a Kafka broker.

Each record has a key of 10 digits and a value of 100 incompressible bytes. The keys are rising numbers. The key decides
the partition. The timestamps rise by one millisecond from record to record. The records are uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakelog
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.storage.storage_opening import new_directory, open_storage
from storage_engine.topic.kafka.kafka_export import export_topics
from storage_engine.topic.topics import Topics
from tests.kafka_broker import KafkaBroker

TOPIC = "values"
PARTITIONS = 8
RECORDS = 5_000_000
VALUE_BYTES = 100
START_MS = 1_760_000_000_000
_KEY_DIGITS = 10
_ROWS = 100_000


def fill_topic(
    root: Path | str, records: int, batch_bytes: int | None = None, name: str = TOPIC, keys: int | None = None
) -> None:
    """Create the topic, and append all records as one commit. If there is no root, it is created.

    Args:
        batch_bytes: the largest size of a batch; by default 1 MB, as Lakelog writes batches.
        name: the name of the topic.
        keys: the number of different keys, which repeat in the same order; by default each record has its own key.
    """
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64()})
    config = {} if batch_bytes is None else {"max.message.bytes": batch_bytes}
    topic = lakelog.open(root, create=True).create_topic(name, PARTITIONS, config)
    offsets = topic.append(pa.RecordBatchReader.from_batches(schema, _batches(schema, records, keys or records)))
    assert sum(map(len, offsets.values())) == records


def _batches(schema: pa.Schema, records: int, key_count: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for first in range(0, records, _ROWS):
        numbers = np.arange(first, min(first + _ROWS, records), dtype=np.int64)
        digits = numbers[:, None] % key_count // 10 ** np.arange(_KEY_DIGITS - 1, -1, -1) % 10 + ord("0")
        keys = _binary(digits.astype(np.uint8).tobytes(), _KEY_DIGITS)
        values = _binary(random.bytes(len(numbers) * VALUE_BYTES), VALUE_BYTES)
        yield pa.RecordBatch.from_arrays([keys, values, pa.array(START_MS + numbers)], schema=schema)


def _binary(data: bytes, length: int) -> pa.Array:
    """Values that all have the same length."""
    offsets = np.arange(0, len(data) + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def serve_topic(broker: KafkaBroker, root: Path, folder: Path, names: Sequence[str] = (TOPIC,)) -> None:
    """Export the topics, and let the broker serve the exported files.

    Args:
        folder: the directory for the export; it does not exist yet.
    """
    topics = Topics(open_storage(str(root)), BrokerConfig(), SystemClock())
    with new_directory(folder) as directory:
        export_topics(topics, names, directory)
    for name in names:
        broker.create_topic(name, PARTITIONS, {"retention.ms": "-1"})  # the timestamps are in the past
    broker.stop()
    broker.put(folder, cleanly_closed=True)
    broker.start()
