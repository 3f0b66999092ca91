"""An export, and a read, from a time on: segments without timestamps hide no record."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.job import run_job
from storage_engine.clock import SystemClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.topics import Topics
from tests.roots.delta_tables import rows_of_table
from tests.stores import root_at, storage_at

START_MS = 1_700_000_000_000
SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "1024", "delete.retention.ms": "0", "compression.type": "uncompressed",
}  # fmt: skip


@pytest.mark.parametrize("first", ["emptied by compaction", "without timestamps"])
def test_segments_without_timestamps_hide_no_record_from_a_search_by_time(
    tmp_path: Path, first: str, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = storage_at(tmp_path / "root")
    log = lakelog.open(root_at(tmp_path / "root"), create=True)
    topic = log.create_topic("t", partitions=2, config=SETTINGS)
    if first == "emptied by compaction":
        for number in range(3):
            topic.append([row("k1", START_MS + number)], partition=0)
    else:
        topic.append([row("k0", -1)], partition=0)
        topic.append([row("k1", START_MS + 2)], partition=0)
    topic.append([row("k2", START_MS + 3)], partition=0)
    topic.append([row("k3", START_MS + 3)], partition=1)
    topics = Topics(storage, BrokerConfig(), SystemClock())
    if first == "emptied by compaction":
        compact_topic(
            storage, topics.chain("t"), topics.config(topics.state("t")), BrokerConfig(), SystemClock(), force=True
        )
    partition = topics.state("t").partitions[0]
    assert partition.segments[0].largest_timestamp == -1

    expected = [(b"k1", 0, START_MS + 2), (b"k2", 0, START_MS + 3), (b"k3", 1, START_MS + 3)]
    time = datetime.fromtimestamp(1_600_000_000, UTC)
    found = topic.read(time).to_arrow().to_pylist()
    assert sorted((each["key"], each["partition"], milliseconds(each["timestamp"])) for each in found) == expected
    argv = ["--root", storage.uri, "--set", "export.topic=t", "--from-timestamp", time.isoformat(), "--json"]
    assert run_job("export", "", export, add_export_options, argv, {}) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 3
    rows = rows_of_table(storage, "tables/t")
    assert sorted((each["_key"], each["_partition"], milliseconds(each["_timestamp"])) for each in rows) == expected


def row(key: str, timestamp: int) -> dict[str, Any]:
    """A record that fills a segment."""
    return {"key": key, "value": "v" * 900, "timestamp": timestamp}


def milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
