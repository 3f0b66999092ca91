"""Which records compaction keeps and deletes, compared with a model that works record by record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.log.filenames import data_key
from storage_engine.record.batch import scan_batches
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.clean.topic_compaction import (
    CompactionResult,
    cleaning_tasks,
    compact_topic,
    run_cleaning_task,
    swap_cleaned,
)
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.stores import file_in, storage_at

START = 1_700_000_000_000
HORIZON = 1000


class Log:
    """A compacted topic; each append is one batch in a segment of its own."""

    def __init__(self, root, partitions: int = 1, **configs: str) -> None:
        self.clock = ManualClock(START)
        self.storage = storage_at(root)
        self.broker = BrokerConfig()
        self.topics = Topics(self.storage, self.broker, self.clock)
        wanted = {"cleanup.policy": "compact", "delete.retention.ms": str(HORIZON)}
        self.topics.create("t", partitions, wanted | {key.replace("_", "."): value for key, value in configs.items()})
        self.chain = self.topics.chain("t")

    @property
    def config(self):
        return self.topics.config(self.chain.newest())

    def append(self, *rows: Row, partition: int = 0) -> None:
        append_records(self.storage, self.chain, self.config, self.clock, to_table(rows), partition)

    def compact(self) -> CompactionResult:
        return compact_topic(self.storage, self.chain, self.config, self.broker, self.clock, force=True)

    def records(self, partition: int = 0) -> dict[int, Row]:
        reader = PartitionReader(self.storage, self.chain, partition)
        found: dict[int, Row] = {}
        for records in reader.read(reader.partition.log_start_offset):
            found |= dict(zip(records["offset"].to_pylist(), to_rows(records), strict=True))
        return found

    def first_file(self) -> str:
        state = self.chain.newest()
        return data_key(state.topic_id, 0, state.partitions[0].segments[0].name)


def put(key: str, value: str | None = "value") -> Row:
    return Row(key.encode(), None if value is None else value.encode())


def test_the_newest_record_of_each_key_stays(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a", "1"), put("b", "1"))
    log.append(put("a", "2"), put("c", "1"))
    log.append(put("b", "9"))
    result = log.compact()
    assert log.records() == {1: put("b", "1"), 2: put("a", "2"), 3: put("c", "1"), 4: put("b", "9")}
    (cleaned,) = result.cleaned
    assert (cleaned.records_before, cleaned.records_after, cleaned.first_dirty_offset) == (4, 3, 4)
    assert (len(cleaned.replaced), len(cleaned.segments)) == (2, 1)


def test_a_tombstone_goes_in_the_second_pass_after_its_horizon(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a"), put("b"))
    log.append(put("a", None))
    log.append(put("c"))
    log.compact()
    assert log.records() == {1: put("b"), 2: put("a", None), 3: put("c")}

    log.append(put("d"))
    log.clock.advance(HORIZON - 1)
    log.compact()
    assert 2 in log.records()

    log.append(put("e"))
    log.clock.advance(1)
    log.compact()
    assert 2 not in log.records()


def test_tombstones_of_a_log_that_nobody_writes_to_go_where_that_is_asked_for(tmp_path) -> None:
    log = Log(tmp_path, min_cleanable_dirty_ratio="0")
    log.append(put("a"), put("b"))
    log.append(put("a", None))
    log.append(put("c"))
    log.compact()
    log.clock.advance(HORIZON)
    assert not compact_topic(log.storage, log.chain, log.config, log.broker, log.clock).cleaned
    log.topics.alter("t", configs={"cleaner.clean.expired.horizons": "true"})
    (cleaned,) = compact_topic(log.storage, log.chain, log.config, log.broker, log.clock).cleaned
    assert (cleaned.tombstones, cleaned.keys, cleaned.first_dirty_offset) == (1, 0, 3)
    assert log.records() == {1: put("b"), 3: put("c")}
    assert not compact_topic(log.storage, log.chain, log.config, log.broker, log.clock).cleaned  # once is enough


def test_a_record_after_a_tombstone_brings_the_key_back(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a", "1"), put("a", None), put("a", "2"))
    log.append(put("b"))
    log.compact()
    assert log.records() == {2: put("a", "2"), 3: put("b")}


def test_keyless_records_of_before_compaction_was_turned_on_go(tmp_path) -> None:
    log = Log(tmp_path, cleanup_policy="delete")
    log.append(Row(None, b"keyless"), put("a"))
    log.topics.alter("t", configs={"cleanup.policy": "compact"})
    log.append(put("b"))
    log.compact()
    assert log.records() == {1: put("a"), 2: put("b")}


def test_an_empty_key_is_a_key(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("", "1"), put("", "2"), put("a"))
    log.append(put("b"))
    log.compact()
    assert log.records() == {1: put("", "2"), 2: put("a"), 3: put("b")}


def test_a_partition_where_nothing_is_left_keeps_its_end(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a", None))
    log.append(put("b", None))
    log.append(put("c", None))
    log.compact()
    log.append(put("d"))
    log.clock.advance(HORIZON)
    log.compact()
    assert log.records() == {2: put("c", None), 3: put("d")}  # c was dirty until now
    part = log.chain.newest().partitions[0]
    assert (part.high_watermark, part.first_dirty_offset) == (4, 3)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_keep_their_own_codec(tmp_path, codec: str) -> None:
    log = Log(tmp_path, compression_type=codec)
    log.append(*(put(f"key {number % 10}", "value " * 20 + str(number)) for number in range(100)))
    log.topics.alter("t", configs={"compression.type": "uncompressed"})
    log.append(put("end"))
    before = scan_batches(np.frombuffer(log.storage.read(log.first_file()), np.uint8), "before")
    log.compact()
    after = scan_batches(np.frombuffer(log.storage.read(log.first_file()), np.uint8), "after")
    assert after.codecs.tolist() == before.codecs.tolist() != [0]
    assert list(log.records()) == [*range(90, 101)]


def test_damage_leaves_its_partition_as_it_was_and_stops_no_other(tmp_path) -> None:
    log = Log(tmp_path, partitions=2)
    for partition in range(2):
        log.append(put("a", "1"), put("a", "2"), partition=partition)
        log.append(put("b"), partition=partition)
    path = file_in(log.storage, log.first_file())
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    before = log.chain.newest().partitions[0]

    result = log.compact()

    (failure,) = result.failed
    assert (failure.partition, type(failure.error)) == (0, CorruptionError)
    assert [each.partition for each in result.cleaned] == [1]
    assert log.chain.newest().partitions[0] == before
    assert log.records(1) == {1: put("a", "2"), 2: put("b")}
    names = {segment.name for segment in before.segments}
    there = {key.key.rsplit("/", 1)[1] for key in log.storage.list(f"data/{log.chain.newest().topic_id}/0/")}
    assert {name.rsplit(".", 1)[0] for name in there} == names  # what was begun is gone


def test_tombstones_that_are_held_stay_longer_than_their_horizon(tmp_path) -> None:
    log = Log(tmp_path)
    log.append(put("a", None), put("b", None))
    log.append(put("end"))
    log.compact()
    log.append(put("end"))
    log.clock.advance(HORIZON)

    def compact(hold_offset: int) -> CompactionResult:
        state = log.chain.newest()
        (task,) = cleaning_tasks(log.storage, state, log.config, log.broker, log.clock.now_ms(), force=True)
        held = replace(task, hold_offset=hold_offset, max_hold_ms=10)
        return swap_cleaned(log.storage, log.chain, [run_cleaning_task(log.storage, held)])

    (cleaned,) = compact(hold_offset=1).cleaned
    assert (cleaned.tombstones, [*log.records()]) == (1, [1, 2, 3])
    log.append(put("end"))
    log.clock.advance(9)
    assert compact(hold_offset=1).cleaned[0].tombstones == 0
    log.append(put("end"))
    log.clock.advance(1)
    assert compact(hold_offset=1).cleaned[0].tombstones == 1


_rows = st.builds(
    Row,
    st.integers(0, 6).map(lambda number: b"k%d" % number),
    st.none() | st.binary(max_size=6),
    st.just(()) | st.just((("h", b"1"), ("i", None))),
    st.integers(START, START + 5000),
)
_appends = st.lists(_rows, min_size=1, max_size=8)
_steps = st.lists(
    st.one_of(_appends, st.integers(0, 2 * HORIZON), st.sampled_from(["compact", "zstd", "uncompressed"])),
    min_size=3,
    max_size=14,
)


class Model:
    """What Kafka's cleaner does, record by record, on a list of batches."""

    def __init__(self) -> None:
        self.batches: list[dict[int, Row]] = []
        self.horizons: list[int | None] = []
        self.end = self.dirty = 0

    def append(self, rows: list[Row]) -> None:
        self.batches.append(dict(enumerate(rows, self.end)))
        self.horizons.append(None)
        self.end += len(rows)

    def compact(self, now: int, active_base: int) -> None:
        if self.dirty == active_base:
            return
        newest = {row.key: offset for batch in self.batches for offset, row in batch.items() if offset < active_base}
        newest = {key: offset for key, offset in newest.items() if offset >= self.dirty}
        for number, batch in enumerate(self.batches):
            horizon = self.horizons[number]
            expired = horizon is not None and now >= horizon
            kept = {
                offset: row
                for offset, row in batch.items()
                if offset >= active_base
                or (offset >= newest.get(row.key, -1) and (row.value is not None or not expired))
            }
            self.batches[number] = kept
            below = [row for offset, row in kept.items() if offset < active_base]
            if horizon is None and any(row.value is None for row in below):
                self.horizons[number] = now + HORIZON
        self.dirty = active_base

    @property
    def records(self) -> dict[int, Row]:
        return {offset: row for batch in self.batches for offset, row in batch.items()}


@settings(max_examples=30, deadline=None)
@given(steps=_steps)
def test_any_history_leaves_what_the_model_keeps(tmp_path_factory, steps) -> None:
    log, model = Log(tmp_path_factory.mktemp("log")), Model()
    for step in [*steps, "compact"]:
        match step:
            case list():
                log.append(*step)
                model.append(step)
            case int():
                log.clock.advance(step)
            case "compact":
                segments = log.chain.newest().partitions[0].segments
                assert not log.compact().failed
                if segments:
                    model.compact(log.clock.now_ms(), segments[-1].base_offset)
            case codec:
                log.topics.alter("t", configs={"compression.type": codec})
        assert log.records() == model.records
        assert log.chain.newest().partitions[0].high_watermark == model.end
