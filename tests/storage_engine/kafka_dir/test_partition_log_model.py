"""Compares random histories of a partition's log with a naive model, a list of records.

Each history appends, rolls, flushes, deletes, reads and looks up at random. Some histories kill the log, even in the
middle of an operation. Some histories cut the power, so that unsynced data is lost. A log that is opened again must
have all durable records and no gap. Each record must have been appended, and must be at its offset.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import OffsetOutOfRangeError
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.log.log_reader import EARLIEST, LATEST, MAX_TIMESTAMP
from storage_engine.record.compression import Codec
from storage_engine.record.encoding import encode_records
from tests.storage_engine.kafka_dir.unreliable_directory import StoppedError, UnreliableDirectory
from tests.storage_engine.record_tables import Row, to_table

HISTORIES = int(os.environ.get("LAKELOG_HISTORIES", "1000"))
PARTS = 4
FOLDER = "t-0"
NOW_MS = 1_700_000_000_000


class Record(NamedTuple):
    """One record as the model knows it."""

    timestamp: int
    key: bytes


class Batch(NamedTuple):
    """A batch that a history may append."""

    data: np.ndarray[tuple[int], np.dtype[np.uint8]]
    records: tuple[Record, ...]


def _batches() -> list[Batch]:
    chance = random.Random(1)
    made = []
    for number in range(96):
        count = chance.choice([1, 1, 2, 3, 8])
        rows = [
            Row(
                b"%d.%d" % (number, row),
                chance.randbytes(chance.choice([0, 20, 150])),
                (),
                NOW_MS + chance.randint(0, 9),
            )
            for row in range(count)
        ]
        run = encode_records(to_table(rows), 1_000_000, chance.choice([Codec.NONE, Codec.NONE, Codec.LZ4]))
        made.append(Batch(run.data, tuple(Record(row.timestamp, row.key or b"") for row in rows)))
    return made


BATCHES = _batches()


@dataclass
class Model:
    """What the log should be: records by offset from `first` on, as far as `durable` for certain."""

    records: list[Record]
    start: int = 0
    durable: int = 0


class History:
    """One log and its model."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.storage = UnreliableDirectory()
        self.clock = ManualClock(NOW_MS)
        overrides = {
            "segment.bytes": self.chance.choice([1024, 2500, 6000]),
            "segment.index.bytes": self.chance.choice([24, 1024]),
            "segment.ms": self.chance.choice([4, 10_000]),
            "index.interval.bytes": self.chance.choice([0, 200]),
            "max.message.bytes": 1024 * 1024,
            "retention.bytes": self.chance.choice([-1, 3000]),
            "retention.ms": self.chance.choice([-1, 50]),
            "file.delete.delay.ms": 20,
            "flush.messages": self.chance.choice([7, 2**62]),
            "flush.ms": 15,
            "preallocate": self.chance.choice(["false", "false", "true"]),
        }
        self.config = LogManagerConfig().topic(overrides)
        self.model = Model([])
        self.checkpoint = 0
        self.log = self.open(clean=True)

    def open(self, *, clean: bool) -> PartitionLog:
        return PartitionLog.open(
            self.storage, FOLDER, self.config, self.clock, clean=clean, recovery_point=self.checkpoint,
            log_start_offset=self.model.start,
        )  # fmt: skip

    def run(self) -> None:
        steps = [
            (8, self.append), (1, self.log_roll), (2, self.flush), (1, self.retention),
            (1, self.delete_records), (1, self.write_checkpoint), (2, self.read), (2, self.look_up_time),
            (1, self.reopen), (1, self.kill), (1, self.cut_power), (1, self.wait),
        ]  # fmt: skip
        weights, actions = zip(*steps, strict=True)
        for action in self.chance.choices(actions, weights, k=11):
            if action in (self.append, self.log_roll, self.flush, self.retention, self.delete_records):
                self.storage.steps_left = self.chance.randint(0, 12) if self.chance.random() < 0.05 else None
            end = self.log.log_end_offset
            try:
                action()
            except StoppedError:
                self.storage.steps_left = None
                self.recover_from_the_middle_of(action.__name__, end)
            self.storage.steps_left = None
            self.check_ends()
        self.kill()
        self.read_all()

    def check_ends(self) -> None:
        assert self.log.log_end_offset == len(self.model.records)
        assert self.log.log_start_offset == self.model.start
        assert self.log.recovery_point <= len(self.model.records)
        self.model.durable = self.log.recovery_point

    def append(self) -> None:
        chosen = self.chance.choices(BATCHES, k=self.chance.choice([1, 1, 2, 5]))
        first = len(self.model.records)
        self.attempted = [record for batch in chosen for record in batch.records]
        where = self.log.append_batches(np.concatenate([batch.data for batch in chosen]))
        self.model.records += self.attempted
        assert where == (first, len(self.model.records))

    def log_roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        if self.chance.random() < 0.5:
            assert self.log.flush() == len(self.model.records)
        else:
            self.log.flush_if_due()

    def retention(self) -> None:
        self.model.start = self.log.apply_retention().log_start_offset

    def delete_records(self) -> None:
        if self.chance.random() < 0.4:
            offset = self.chance.randint(self.model.start, len(self.model.records))
            assert self.log.delete_records(offset) == offset
            self.model.start = offset

    def write_checkpoint(self) -> None:
        self.checkpoint = self.log.recovery_point

    def wait(self) -> None:
        self.clock.advance(self.chance.randint(0, 40))
        self.storage.now_ns = self.clock.now_ms() * 1_000_000
        self.log.delete_due_files()

    def reopen(self) -> None:
        self.log.close()
        self.checkpoint = self.log.recovery_point
        before = self.storage.files()
        self.log = self.open(clean=True)
        assert not self.log.report.cuts
        # A segment that was taken up again and again can have an index without an entry, which looks like a lost one.
        assert all(before[f"{FOLDER}/{name}"] == b"" for name in self.log.report.rebuilt if name.endswith(".index"))
        assert not any(name.endswith((".snapshot", ".txnindex")) for name in self.log.report.rebuilt)
        rebuilt = {f"{FOLDER}/{name}" for name in self.log.report.rebuilt}
        self.log.close()
        after = self.storage.files()
        gone = before.keys() - after.keys()
        assert all(name.endswith((".deleted", ".snapshot")) for name in gone), "strays go when a log is loaded"
        assert all(before[name] == data for name, data in after.items() if name not in rebuilt)
        self.log = self.open(clean=True)

    def kill(self) -> None:
        self.log.abandon()
        self.log = self.open(clean=False)
        assert not self.log.report.losses

    def cut_power(self) -> None:
        self.log.abandon()
        self.storage.cut_power(self.chance)
        self.log = self.open(clean=False)
        self.settle_for(self.model.records, self.model.durable)

    def recover_from_the_middle_of(self, action: str, end: int) -> None:
        """An action was interrupted. It is allowed to have had an effect or no effect, but it must not have destroyed
        anything."""
        self.log.abandon()
        durable = self.model.durable
        if self.chance.random() < 0.5:
            self.storage.cut_power(self.chance)
        elif action in ("append", "log_roll", "flush"):
            durable = end
        self.log = self.open(clean=False)
        known = self.model.records + (self.attempted if action == "append" else [])
        if action in ("retention", "delete_records"):
            self.model.start = max(self.model.start, self.log.log_start_offset)
        self.settle_for(known, durable)

    def settle_for(self, known: list[Record], durable: int) -> None:
        """Check that the reopened log has all durable records and only appended records, and make the model equal to
        the log."""
        assert not self.log.report.losses, self.log.report.losses
        end = self.log.log_end_offset
        assert min(durable, len(known)) <= end <= len(known)
        self.model.records = known[:end]
        self.model.start = self.log.log_start_offset
        self.checkpoint = min(self.checkpoint, end)
        self.read_all()

    def read_all(self) -> None:
        self.check_range(self.model.start, len(self.model.records))

    def read(self) -> None:
        first = self.chance.randint(self.model.start, len(self.model.records))
        self.check_range(first, self.chance.randint(first, len(self.model.records)))
        place = self.log.locate(first)
        assert (place is None) == (first == len(self.model.records))
        with pytest.raises(OffsetOutOfRangeError):
            self.log.locate(len(self.model.records) + 1)

    def check_range(self, first: int, end: int) -> None:
        found = pa.Table.from_batches(list(self.log.read(first, end)), None if first < end else SCHEMA)
        assert found["offset"].to_pylist() == list(range(first, end))
        assert found["key"].to_pylist() == [record.key for record in self.model.records[first:end]]
        assert found["timestamp"].to_pylist() == [record.timestamp for record in self.model.records[first:end]]

    def look_up_time(self) -> None:
        records, start = self.model.records, self.model.start
        assert self.log.offset_at(EARLIEST) == (start, -1, 0)
        assert self.log.offset_at(LATEST) == (len(records), -1, 0)
        base = self.log.first_base_offset
        below = [record.timestamp for record in records[base:start]]
        newest = self.log.offset_at(MAX_TIMESTAMP)
        if start == len(records):
            assert newest is None
        elif not below:
            largest = max(record.timestamp for record in records[start:])
            first = next(n for n in range(start, len(records)) if records[n].timestamp == largest)
            assert newest == (first, largest, 0)
        time = NOW_MS + self.chance.randint(-2, 11)
        expected = next((n for n in range(start, len(records)) if records[n].timestamp >= time), None)
        found = self.log.offset_at(time)
        # As in Kafka, a segment whose only such record lies below the log start hides what is behind it.
        if found is not None or not any(timestamp >= time for timestamp in below):
            assert (found and found[0]) == expected


SCHEMA = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("timestamp", pa.int64())])


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_agree_with_a_list_of_records(part: int) -> None:
    first = int(os.environ.get("LAKELOG_SEED", "1"))
    for seed in range(first + part, first + HISTORIES, PARTS):
        try:
            History(seed).run()
        except BaseException as error:
            error.add_note(f"the history with LAKELOG_SEED={seed} LAKELOG_HISTORIES=1")
            raise
