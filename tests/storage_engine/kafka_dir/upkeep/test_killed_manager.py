"""Kills a log manager before each of its changes of files, and starts it again: nothing is lost that was flushed."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Mapping
from functools import cache

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.kafka_dir.log_manager import Choices, LogManager
from storage_engine.kafka_dir.upkeep.cleaning import Cleaning
from storage_engine.kafka_dir.upkeep.running import run_once
from storage_engine.kafka_dir.upkeep.tasks import Tasks
from tests.storage_engine.kafka_dir.unreliable_directory import StoppedError, UnreliableDirectory
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import NOW_MS, rows
from tests.storage_engine.record_tables import Row, to_rows, to_table

COUNT = 30
TOPICS = {
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "kept": {"retention.ms": "-1", "flush.ms": "0"},
    "short": {"retention.ms": "5000"},
    "sized": {"retention.ms": "-1", "retention.bytes": "2000"},
}
COMMON = {"segment.bytes": "1024", "segment.index.bytes": "64", "file.delete.delay.ms": "0"}
EVERY = int(os.environ.get("LAKELOG_KILL_EVERY", "5"))
"""The manager is killed before every n-th change of a file; LAKELOG_KILL_EVERY=1 kills it before each."""
CONFIG = LogManagerConfig(recovery_threads=1)


@cache
def crashed(*, mid_write: bool) -> UnreliableDirectory:
    """The directory of a broker that crashed: all records are flushed, and one more may be torn."""
    storage = UnreliableDirectory()
    topics = dict.fromkeys(TOPICS, COMMON)
    logs = LogManager([storage], CONFIG, topics, ManualClock(NOW_MS))
    for topic in TOPICS:
        log = logs.create(topic, 0)
        records = rows(COUNT, keys=5, age_ms=10_000)
        for first in range(0, COUNT, 2):
            log.append_records(to_table(records[first : first + 2]))
        log.flush()
    if mid_write:
        logs.log("kept", 0).append_records(to_table([Row(b"more", b"v")]))
    for directory in logs.open_directories:
        directory.write_recovery_points()
    logs.abandon()
    return storage


def run(storage: UnreliableDirectory) -> None:
    """What `lakelog log-manager --once` does."""
    clock = ManualClock(NOW_MS)
    settings = {topic: {**COMMON, **own} for topic, own in TOPICS.items()}
    choices = Choices(CONFIG, settings, one_copy=frozenset(TopicPartition(topic, 0) for topic in TOPICS))
    logs = LogManager([storage], clock=clock, choose=lambda _: choices)
    try:
        tasks = Tasks(logs, clock)
        run_once(lambda _: False, tasks, Cleaning(logs, tasks, clock), cleans=True)
        logs.close()
    except BaseException:
        logs.abandon()
        raise


def found(storage: UnreliableDirectory) -> Mapping[str, list[tuple[bytes | None, bytes | None]]]:
    """All records, by topic."""
    with LogManager([storage], CONFIG, dict.fromkeys(TOPICS, COMMON), ManualClock(NOW_MS)) as logs:
        return {topic: _records(logs, topic) for topic in TOPICS}


def _records(logs: LogManager, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    log = logs.log(*TopicPartition(topic, 0))
    assert not log.report.losses
    parts = log.read(log.log_start_offset, log.log_end_offset)
    return [(row.key, row.value) for part in parts for row in to_rows(part)]


def batches(storage: UnreliableDirectory) -> dict[str, bytes]:
    """All batches of each topic. A second compaction can merge segments that are empty, and changes no batch."""
    logs = {name: data for name, data in sorted(storage.files().items()) if name.endswith(".log")}
    return {topic: b"".join(data for name, data in logs.items() if name.startswith(f"{topic}-0/")) for topic in TOPICS}


@pytest.mark.parametrize("cuts_power", [False, True])
def test_a_kill_before_a_change_of_a_file_loses_nothing_that_was_flushed(cuts_power: bool) -> None:
    first = crashed(mid_write=cuts_power)
    whole = copy.deepcopy(first)
    run(whole)
    expected = batches(whole)
    all_records = [(row.key, row.value) for row in rows(COUNT, keys=5)]
    stops = 0
    while True:
        storage = copy.deepcopy(first)
        storage.steps_left = stops
        try:
            run(storage)
            finished = True
        except StoppedError:
            finished = False
        storage.steps_left = None
        if cuts_power:
            storage.cut_power(random.Random(stops))
        records = found(copy.deepcopy(storage))
        assert records["kept"][:COUNT] == all_records, stops
        assert dict(records["compacted"]) == dict(all_records), stops
        for topic in ("short", "sized"):
            kept = records[topic]
            assert kept == all_records[COUNT - len(kept) :], stops
        assert len(records["sized"]) > 5, stops
        run(storage)
        if not cuts_power:
            assert batches(storage) == expected, stops
        if finished:
            break
        stops += EVERY
    assert stops > 100
