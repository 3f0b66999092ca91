"""Lakelog's peer in the compaction benchmark: `python -m bench.peers.compaction`. Kafka's peer is
KafkaCleanerPeer.java.

A case gives the path of a log directory with one partition. The peer compacts this directory in place. The answer is
the elapsed time and the processor time in seconds. Both times begin with the decision about what to compact. They end
after the last rename, when all written files are durable.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.peers.codec import START_MS, values
from bench.turns import answer
from storage_engine.kafka_dir.log_manager import LogManager
from storage_engine.record.compression import Codec
from storage_engine.record.record_columns import TO_APPEND, no_headers

TOPIC = "values"
RECORDS = 4_000_000
KEYS = 500_000
VALUE_BYTES = 100
BATCH_BYTES = 16 * 1024
MAP_BYTES = 128 * 1024**2
CONFIG = {
    "cleanup.policy": "compact", "segment.bytes": str(64 * 1024**2), "min.cleanable.dirty.ratio": "0",
    "segment.ms": str(10**12), "file.delete.delay.ms": "0",
}  # fmt: skip
_CHUNK = 50_000


def write_log(parent: Path, codec: Codec, records: int = RECORDS, partitions: int = 1) -> None:
    """Write a log directory as a broker leaves it after an orderly stop. All keys have about the same number of
    records, in random order."""
    keys = pa.array([b"key-%06d" % number for number in range(KEYS)])
    texts = pa.array(values(VALUE_BYTES), pa.binary())
    parent.mkdir()
    with LogManager([parent], topics={TOPIC: CONFIG}) as logs:
        for partition in range(partitions):
            log, source = logs.create(TOPIC, partition), random.Random(partition)
            for first in range(0, records, _CHUNK):
                columns = [
                    keys.take(pa.array(source.choices(range(KEYS), k=_CHUNK))),
                    texts.slice(first % len(texts), _CHUNK),
                    no_headers(_CHUNK),
                    pa.array(range(START_MS + first, START_MS + first + _CHUNK)),
                ]
                log.append_records(pa.RecordBatch.from_arrays(columns, schema=TO_APPEND), codec, BATCH_BYTES)


def copy_log(parent: Path, copy: Path) -> None:
    """Copy the directory for cleaning. The .log files are hard links, because cleaning renames them but never changes
    them."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(parent, copy, copy_function=_copied)


def _copied(source: str, target: str) -> None:
    if source.endswith(".log"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def measure(case: dict[str, Any]) -> tuple[float, float]:
    with LogManager([case["parent"]], topics={TOPIC: CONFIG}) as logs:
        log = logs.log(TOPIC, 0)
        started, used = time.perf_counter(), time.process_time()
        log.compact(memory_bytes=MAP_BYTES)
        return time.perf_counter() - started, time.process_time() - used


if __name__ == "__main__":
    answer(measure)
