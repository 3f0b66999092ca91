"""Runs `lakelog log-manager` on the directory of a stopped broker, with the broker's own server.properties, and starts
the broker again. The broker recovers nothing and reports no problem. It serves the records that retention and
compaction keep under the topics' settings.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lakelog import cli
from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, FIRST_DIRTY_OFFSETS, decode_offsets
from tests.in_process import Ended, run_in_process
from tests.kafka_broker import PATIENCE_SECONDS, KafkaBroker

pytestmark = pytest.mark.kafka

SMALL = {"internal.segment.bytes": "4096"}
TOPICS = {
    "kept": {**SMALL, "retention.ms": "-1"},
    "short": {**SMALL, "retention.ms": "3600000"},
    "sized": {**SMALL, "retention.ms": "-1", "retention.bytes": "20000"},
    "compacted": {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
RECORDS = 400
QUIET = "log.cleaner.enable=false\nlog.initial.task.delay.ms=3600000\nlog.retention.check.interval.ms=3600000\n"
"""The broker itself retains and compacts nothing."""


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(more_properties=QUIET) as running:
        fill(running)
        yield running


def fill(broker: KafkaBroker, prefix: str = "") -> None:
    """Create the topics, and send old records to them."""
    for topic, settings in TOPICS.items():
        broker.create_topic(prefix + topic, configs=settings)
    old_ms = time.time_ns() // 1_000_000 - 2 * 3_600_000
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, batch_size=500)
    for topic in TOPICS:
        for number in range(RECORDS):
            key, value = b"k%d" % (number % 7), b"%0100d" % number
            producer.send(prefix + topic, value, key=key, partition=0, timestamp_ms=old_ms + number)
    producer.close()


def served(broker: KafkaBroker, topic: str) -> list[tuple[int, bytes, bytes]]:
    """All records of a topic, as a consumer gets them."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    (end,) = consumer.end_offsets([partition]).values()
    consumer.seek_to_beginning(partition)
    found: list[tuple[int, bytes, bytes]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline
        for records in consumer.poll(timeout_ms=500).values():
            found += [(each.offset, each.key, each.value) for each in records]
    consumer.close()
    return found


def complaints(broker: KafkaBroker) -> list[str]:
    """What the broker has logged as warnings about its logs."""
    known = "QuorumController", "`log.cleaner.enable` is deprecated"
    return [line for line in broker.complaints if not any(words in line for words in known)]


def loadings(broker: KafkaBroker) -> list[str]:
    """What the broker has logged about the recovery of its directory."""
    return [line for line in broker.said if "recovery" in line.lower() and str(broker.data) in line]


def manage(broker: KafkaBroker, tmp_path: Path, more: str = "") -> Ended:
    """Run the command with the broker's file, in which the cleaner is switched on again."""
    file = tmp_path / "server.properties"
    file.write_text(broker.properties.read_text() + f"log.cleaner.enable=true\n{more}")
    return run_in_process(cli.main, ["lakelog", "log-manager", "--config", str(file), "--once"])


def test_a_broker_starts_on_the_directory_without_recovery_and_serves_what_the_settings_keep(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    before = {topic: served(broker, topic) for topic in TOPICS}
    assert {topic: len(records) for topic, records in before.items()} == dict.fromkeys(TOPICS, RECORDS)
    broker.stop()
    stopped = (broker.data / CLEAN_SHUTDOWN).read_bytes()
    ended = manage(broker, tmp_path)
    assert (ended.status, ended.err) == (0, "")
    assert (broker.data / CLEAN_SHUTDOWN).read_bytes() == stopped
    checkpoint = broker.data / FIRST_DIRTY_OFFSETS
    first_dirty = decode_offsets(checkpoint.read_bytes(), checkpoint.name)[("compacted", 0)]
    broker.start()
    after = {topic: served(broker, topic) for topic in TOPICS}
    assert complaints(broker) == []
    (loading,) = loadings(broker)
    assert "Skipping recovery of 4 logs" in loading
    assert after["kept"] == before["kept"]
    assert after["short"] == []
    assert after["sized"] == before["sized"][-len(after["sized"]) :]
    assert 0 < len(after["sized"]) < RECORDS
    newest = {key: offset for offset, key, _ in before["compacted"]}
    expected = [each for each in before["compacted"] if each[0] >= first_dirty or newest[each[1]] == each[0]]
    of_cleaned = {key: offset for offset, key, _ in before["compacted"] if offset < first_dirty}
    kept = [each for each in before["compacted"] if each[0] >= first_dirty or of_cleaned[each[1]] == each[0]]
    assert after["compacted"] == kept
    assert len(expected) <= len(kept) < RECORDS / 4


def test_after_the_broker_was_killed_its_logs_are_recovered_before_it_starts(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    before = served(broker, "kept")
    broker.kill()
    assert not (broker.data / CLEAN_SHUTDOWN).exists()
    ended = manage(broker, tmp_path)
    assert (ended.status, ended.err) == (0, "")
    assert "kept-0: loaded, offsets 0 to 400; read" in ended.out
    assert (broker.data / CLEAN_SHUTDOWN).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    broker.start()
    assert served(broker, "kept") == before
    assert complaints(broker) == []


def segments(data: Path) -> dict[str, bytes]:
    """The files of the segments of all topics, without the preallocated indexes of the newest segments."""
    found = {}
    for folder in data.iterdir():
        if folder.is_dir() and not folder.name.startswith("__"):
            newest = max(path.stem for path in folder.glob("*.log"))
            for path in folder.iterdir():
                if path.suffix == ".log" or (path.suffix in (".index", ".timeindex") and path.stem != newest):
                    found[f"{folder.name}/{path.name}"] = path.read_bytes()
    return found


def test_a_broker_with_the_same_settings_leaves_the_same_files(broker: KafkaBroker, tmp_path: Path) -> None:
    fill(broker, "own-")
    broker.stop()
    copy = tmp_path / "data"
    shutil.copytree(broker.data, copy)
    before = segments(copy)
    ended = manage(broker, tmp_path, f"log.dirs={copy}\n")
    assert (ended.status, ended.err) == (0, "")
    expected = segments(copy)
    changed = {name for name in before.keys() | expected.keys() if before.get(name) != expected.get(name)}
    assert {name.partition("/")[0] for name in changed} == {"own-short-0", "own-sized-0", "own-compacted-0"}
    busy = "log.cleaner.enable=true\nlog.cleaner.backoff.ms=100\n"
    busy += "log.initial.task.delay.ms=0\nlog.retention.check.interval.ms=200\n"
    broker.properties.write_text(broker.properties.read_text() + busy)
    broker.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):  # the broker renames files meanwhile
            if segments(broker.data) == expected:
                break
        time.sleep(0.5)
    broker.stop()
    assert segments(broker.data) == expected
