"""Logs of magic 0 and 1, and a log that also has magic 2. Kafka's own classes wrote these logs, and a 4.3.1 broker
served and indexed them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakelog.cli.records.json_lines import format_lines
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.log_reader import EARLIEST, LATEST, MAX_TIMESTAMP, LogReader
from storage_engine.log.producers.producer_snapshot import encode_snapshot
from storage_engine.log.producers.producer_state import Producers
from storage_engine.record.batch import scan_batches

GOLDEN = Path(__file__).parents[2] / "golden" / "legacy"
TOPICS = sorted(path.name.removesuffix("-0") for path in (GOLDEN / "data").iterdir())
SEGMENT = f"{0:020d}"
RECORDS = 192
INDEX_INTERVAL_BYTES = 512
"""The broker's index.interval.bytes."""


@pytest.fixture(params=TOPICS)
def topic(request) -> str:
    return str(request.param)


@pytest.fixture(params=["without indexes", "with the broker's indexes"])
def reader(request, topic, tmp_path) -> LogReader:
    folder = shutil.copytree(GOLDEN / "data" / f"{topic}-0", tmp_path / f"{topic}-0")
    if request.param == "with the broker's indexes":
        shutil.copytree(GOLDEN / "rebuilt_by_broker" / folder.name, folder, dirs_exist_ok=True)
        (tmp_path / ".kafka_cleanshutdown").touch()
    directory = LogDirectory(tmp_path)
    return directory.reader(directory.inspect(TopicPartition(topic, 0)))


def given(topic: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records that a consumer was given, and the broker's answers about offsets."""
    *records, answers = map(json.loads, (GOLDEN / f"{topic}.records_and_offsets.jsonl").read_bytes().splitlines())
    return records, answers


def test_all_combinations_are_there() -> None:
    plain = [f"legacy_v{magic}_{codec}" for magic in (0, 1) for codec in ("gzip", "lz4", "none", "snappy")]
    assert ["legacy_mixed", *plain] == TOPICS


def test_records_are_those_that_a_consumer_was_given(topic, reader) -> None:
    expected, _ = given(topic)
    lines = b"".join(format_lines(topic, 0, records) for records in reader.read(0, None))
    assert [json.loads(line) for line in lines.splitlines()] == expected
    assert len(expected) == RECORDS


def test_reading_from_any_offset_begins_there(topic, reader) -> None:
    for offset in range(RECORDS):
        (records,) = reader.read(offset, offset + 1)
        assert records["offset"].to_pylist() == [offset]


def test_offsets_are_those_that_the_broker_answered(topic, reader) -> None:
    _, answers = given(topic)
    for time, name in ((EARLIEST, "earliest"), (LATEST, "latest")):
        found = reader.offset_at(time)
        assert found is not None
        assert found[:2] == (answers[name]["offset"], answers[name]["timestamp"])
    newest = answers["max_timestamp"]
    expected = (newest["offset"], newest["timestamp"], -1 if newest["leaderEpoch"] is None else newest["leaderEpoch"])
    assert reader.offset_at(MAX_TIMESTAMP) == (None if newest["offset"] < 0 else expected)


def test_look_ups_by_time_find_the_first_record_that_is_not_older(topic, reader) -> None:
    records, _ = given(topic)
    for wanted in {record["timestamp"] for record in records if record["timestamp"] >= 0}:
        first = next(record for record in records if record["timestamp"] >= wanted)
        found = reader.offset_at(wanted)
        assert found is not None
        assert found[:2] == (first["offset"], first["timestamp"])


def test_indexes_and_snapshots_rebuilt_from_the_log_are_the_brokers_bytes(topic) -> None:
    data = np.fromfile(GOLDEN / "data" / f"{topic}-0" / f"{SEGMENT}.log", np.uint8)
    table = scan_batches(data, topic)
    rebuilt = index_segment(0, table, INDEX_INTERVAL_BYTES)
    producers = Producers()
    assert producers.replay(data, table, topic) == []
    brokers = GOLDEN / "rebuilt_by_broker" / f"{topic}-0"
    assert rebuilt.offset_index_bytes() == (brokers / f"{SEGMENT}.index").read_bytes()
    assert rebuilt.time_index_bytes() == (brokers / f"{SEGMENT}.timeindex").read_bytes()
    assert encode_snapshot(producers.entries()) == (brokers / f"{RECORDS:020d}.snapshot").read_bytes()
    assert (rebuilt.size, rebuilt.end_offset) == (len(data), RECORDS)
