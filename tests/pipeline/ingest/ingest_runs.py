"""Runs ingests in this process for tests, and reads the resulting records and dead letters.

A test names a root by a local path, as in tests.stores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakelog.dead_letter_tables import ingest_dead_letters_key
from pipeline.ingest.ingesting import Ingest
from pipeline.ingest.micro_batch import IngestResult
from pipeline.settings import load_settings
from storage_engine.clock import ManualClock, SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at


def topics_of(root: Path) -> Topics:
    return Topics(storage_at(root), BrokerConfig(), SystemClock())


def append_values(root: Path, topic: str, *values: str | None, partition: int | None = None, age_ms: int = 0) -> None:
    """One commit; a value `a1` has the key `a`, and None is a tombstone of `a`."""
    topics = topics_of(root)
    clock = ManualClock(topics.clock.now_ms() - age_ms)
    written = [None if value is None else value.encode() for value in values]
    keys = [(value or b"a")[:1] for value in written]
    records = pa.RecordBatch.from_pylist(
        [
            {"key": key, "value": value, "headers": [], "timestamp": clock.now_ms()}
            for key, value in zip(keys, written, strict=True)
        ],
        schema=TO_APPEND,
    )
    append_records(topics.storage, topics.chain(topic), topics.config(topics.state(topic)), clock, records, partition)


def run_ingest(spark: SparkSession, conf: Path, root: Path, *overrides: str) -> IngestResult:
    settings = load_settings(conf, overrides, root_at(root))
    return Ingest(spark, settings, topics_of(root), report=lambda _: None).run()


def records_of(root: Path, topic: str) -> list[dict[str, Any]]:
    """All records, partition after partition."""
    topics = topics_of(root)
    found: list[dict[str, Any]] = []
    for partition in range(len(topics.state(topic).partitions)):
        reader = PartitionReader(topics.storage, topics.chain(topic), partition)
        for batch in reader.read(reader.partition.log_start_offset):
            found += [row | {"partition": partition} for row in batch.to_pylist()]
    return found


def dead_letters_of(root: Path, topic: str) -> list[dict[str, Any]]:
    """In the order in which the rows came."""
    letters = rows_of_table(storage_at(root), ingest_dead_letters_key(topic))
    return sorted(letters, key=lambda letter: (letter["batch_id"], letter["task"], letter["row"]))


class PowerCutError(Exception):
    pass


def cut(patched: pytest.MonkeyPatch, place: object, name: str, call: int, *, before: bool) -> None:
    """Let a function's call of this number, from 1 on, end the run before or after it did its work."""
    real = getattr(place, name)
    calls = 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and before:
            raise PowerCutError
        done = real(*args, **options)
        if calls == call:
            raise PowerCutError
        return done

    patched.setattr(place, name, failing)
