"""The backup in docs/OPERATIONS.md: a root is copied beside a running writer, first the states and then their
files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import NotFoundError
from storage_engine.record.record_columns import TO_APPEND
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.stores import storage_at


def topics_of(root: Path) -> Topics:
    return Topics(storage_at(root), BrokerConfig(), SystemClock())


def append(topics: Topics, *values: bytes) -> None:
    """Each append begins a new file, as each writer does that was started anew."""
    now_ms = topics.clock.now_ms()
    rows = [{"key": value, "value": value, "headers": [], "timestamp": now_ms} for value in values]
    records = pa.RecordBatch.from_pylist(rows, schema=TO_APPEND)
    config = topics.config(topics.state("t"))
    append_records(topics.storage, topics.chain("t"), config, topics.clock, records)


def values(topics: Topics) -> list[bytes]:
    reader = PartitionReader(topics.storage, topics.chain("t"), 0)
    return [value for records in reader.read(0) for value in records["value"].to_pylist()]


@pytest.fixture
def original(tmp_path: Path) -> Topics:
    topics = topics_of(tmp_path / "original")
    topics.create("t", 1, {})
    append(topics, b"a", b"b")
    return topics


def copy(name: str, tmp_path: Path) -> None:
    original, restored = storage_at(tmp_path / "original"), storage_at(tmp_path / "copy")
    for file in original.list(f"{name}/"):
        restored.replace(file.key, original.read(file.key))


def test_a_copy_of_the_state_and_then_of_its_files_is_the_topic_as_the_state_has_it(
    original: Topics, tmp_path: Path
) -> None:
    copy("meta", tmp_path)
    append(original, b"later")
    copy("data", tmp_path)
    storage = storage_at(tmp_path / "copy")
    for file in list(storage.list("data/")):
        if file.key.endswith(".log"):
            storage.replace(file.key, storage.read(file.key) + b"a batch that the state does not name")

    restored = topics_of(tmp_path / "copy")
    assert values(restored) == [b"a", b"b"]
    settle(restored)
    append(restored, b"c")
    assert values(restored) == [b"a", b"b", b"c"]
    assert values(original) == [b"a", b"b", b"later"]


def test_a_copy_of_the_files_and_then_of_the_state_lacks_what_came_in_between(original: Topics, tmp_path: Path) -> None:
    copy("data", tmp_path)
    append(original, b"later")
    copy("meta", tmp_path)
    with pytest.raises(NotFoundError):
        values(topics_of(tmp_path / "copy"))
