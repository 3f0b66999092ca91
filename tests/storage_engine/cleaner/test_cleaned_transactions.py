"""What compaction does to the batches of transactions, rule by rule, on handmade logs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage_engine.cleaner.cleaner import CleanedPartition
from storage_engine.clock import ManualClock
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.log.filenames import TRANSACTION_INDEX
from storage_engine.log.indexes.transaction_index import decode_transaction_index
from storage_engine.record.batch import scan_batches
from storage_engine.record.control import ControlType, TransactionMarker, encode_marker
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import CONTROL, TRANSACTIONAL
from tests.kafka.random_logs import Record, Sender, encode_batch
from tests.storage_engine.kafka_dir.unreliable_directory import UnreliableDirectory, topic_config

START = 1_700_000_000_000
FOLDER = "t-0"
HORIZON = 1000
DAY_MS = 86_400_000
OVERRIDES = {"cleanup.policy": "compact", "delete.retention.ms": HORIZON, "retention.ms": -1}


class Batch(NamedTuple):
    first: int
    last: int
    records: int
    is_control: bool
    horizon: int


class TransactionalLog:
    """A log to which producers write. Before a compaction, the active segment is closed and one more record is
    appended."""

    def __init__(self) -> None:
        self.storage = UnreliableDirectory()
        self.clock = ManualClock(START)
        self.log = PartitionLog.open(self.storage, FOLDER, topic_config(OVERRIDES), self.clock)
        self._sequences: dict[tuple[int, int], int] = {}
        self._fillers = 0

    def send(
        self, producer: int, *keys: str, epoch: int = 0, transactional: bool = True, value: str | None = "v"
    ) -> int:
        """Returns the first offset."""
        sequence = self._sequences.setdefault((producer, epoch), 0)
        self._sequences[producer, epoch] += len(keys)
        records = [Record(self.clock.now_ms(), key.encode(), value.encode() if value else None) for key in keys]
        attributes = TRANSACTIONAL if transactional else 0
        return self._append(encode_batch(0, records, sender=Sender(producer, epoch, sequence), attributes=attributes))

    def end(self, producer: int, kind: ControlType, epoch: int = 0) -> int:
        key, value = encode_marker(TransactionMarker(kind, 0))
        record = Record(self.clock.now_ms(), key, value)
        return self._append(
            encode_batch(0, [record], sender=Sender(producer, epoch), attributes=TRANSACTIONAL | CONTROL)
        )

    def plain(self, key: str) -> int:
        return self._append(encode_batch(0, [Record(self.clock.now_ms(), key.encode(), b"v")]))

    def _append(self, batch: bytes) -> int:
        data = np.frombuffer(bytearray(batch), np.uint8)
        seal_batches(data, np.array([len(data)]))
        return self.log.append_batches(data, control=True).first_offset

    def compact(self) -> CleanedPartition:
        """The range ends with a batch that stays anyway: a record of a new key."""
        self._fillers += 1
        self.plain(f"filler {self._fillers}")
        self.log.roll()
        cleaned = self.log.compact(force=True)
        assert cleaned is not None
        assert cleaned.records_before - cleaned.records_after == sum(_causes(cleaned))
        return cleaned

    def batches(self) -> list[Batch]:
        found: list[Batch] = []
        for name, data in sorted(self.storage.files().items()):
            if name.endswith(".log"):
                table = scan_batches(np.frombuffer(data, np.uint8), name)
                columns = (
                    table.base_offsets,
                    table.last_offsets,
                    table.records_counts,
                    table.is_control,
                    table.delete_horizons,
                )
                found += (Batch(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
        return found

    def at(self, offset: int) -> Batch | None:
        return next((batch for batch in self.batches() if batch.first <= offset <= batch.last), None)

    def indexed(self) -> list[tuple[int, int, int]]:
        """Producer, first and last offset of each entry of a .txnindex."""
        return [
            entry[:3]
            for name, data in sorted(self.storage.files().items())
            if name.endswith(TRANSACTION_INDEX)
            for entry in decode_transaction_index(bytes(data), name)
        ]


def _causes(cleaned: CleanedPartition) -> tuple[int, ...]:
    return cleaned.outdated, cleaned.tombstones, cleaned.aborted, cleaned.keyless, cleaned.markers


def test_aborted_data_goes_at_once_its_marker_once_nothing_of_it_is_met_and_a_horizon_has_passed() -> None:
    log = TransactionalLog()
    first = log.send(7, "a", "b")
    last = log.send(7, "c")
    marker = log.end(7, ControlType.ABORT)
    log.send(7, "d")
    log.end(7, ControlType.COMMIT)

    assert log.compact().aborted == 3
    assert (log.at(first), log.at(last)) == (None, None)
    assert log.at(marker) == Batch(marker, marker, 1, True, -1)
    assert log.indexed() == [(7, first, marker)]

    assert log.compact().markers == 0
    horizon = log.clock.now_ms() + HORIZON
    assert log.at(marker) == Batch(marker, marker, 1, True, horizon)
    assert log.indexed() == []

    log.clock.advance(HORIZON - 1)
    log.compact()
    assert log.at(marker) == Batch(marker, marker, 1, True, horizon)

    log.clock.advance(1)
    assert log.compact().markers == 1
    assert log.at(marker) is None


def test_the_marker_of_a_commit_stays_as_long_as_a_batch_of_it_does() -> None:
    log = TransactionalLog()
    data = log.send(7, "a")
    marker = log.end(7, ControlType.COMMIT)
    log.send(7, "z")
    log.end(7, ControlType.COMMIT)
    log.compact()
    log.compact()
    assert log.at(marker) == Batch(marker, marker, 1, True, -1)
    log.plain("a")
    assert log.compact().outdated == 1
    assert log.at(data) is None
    assert log.at(marker) == Batch(marker, marker, 1, True, -1)
    log.compact()
    assert log.at(marker) == Batch(marker, marker, 1, True, log.clock.now_ms() + HORIZON)
    log.clock.advance(HORIZON)
    log.compact()
    assert log.at(marker) is None


def test_keys_of_an_aborted_transaction_outdate_nothing() -> None:
    log = TransactionalLog()
    committed = log.plain("a")
    log.send(7, "a")
    log.end(7, ControlType.ABORT)
    log.compact()
    assert log.at(committed) == Batch(committed, committed, 1, False, -1)


def test_the_transactions_of_two_producers_are_told_apart() -> None:
    log = TransactionalLog()
    aborted = log.send(7, "a")
    committed = log.send(8, "b")
    later = log.send(7, "c")
    ends = log.end(8, ControlType.COMMIT), log.end(7, ControlType.ABORT)
    once_more = log.send(7, "d")
    log.end(7, ControlType.COMMIT)
    log.compact()
    there = [log.at(offset) is not None for offset in (aborted, later, committed, once_more, *ends)]
    assert there == [False, False, True, True, True, True]
    assert log.indexed() == [(7, aborted, ends[1])]


def test_a_marker_behind_the_range_lets_the_data_before_it_go() -> None:
    log = TransactionalLog()
    aborted = log.send(7, "a")
    log.plain("filler")
    log.log.roll()
    marker = log.end(7, ControlType.ABORT)
    log.log.compact(force=True)
    assert log.at(aborted) == Batch(aborted, aborted, 0, False, -1)  # the last sequence of a producer that is active
    assert log.indexed() == [(7, aborted, marker)]


def test_the_last_batch_of_an_active_producer_stays_without_its_records() -> None:
    log = TransactionalLog()
    first = log.send(7, "a", transactional=False)
    last = log.send(7, "a", transactional=False)
    log.plain("a")
    log.compact()
    assert log.at(first) is None
    assert log.at(last) == Batch(last, last, 0, False, -1)
    log.clock.advance(DAY_MS)
    log.log.expire_producers(DAY_MS)
    log.compact()
    assert log.at(last) is None


def test_a_producer_without_data_in_its_epoch_is_told_by_a_marker_that_loses_its_record() -> None:
    log = TransactionalLog()
    data = log.send(7, "a", epoch=0)
    fencing = log.end(7, ControlType.ABORT, epoch=1)
    log.compact()
    log.compact()
    log.clock.advance(HORIZON)
    log.compact()
    assert log.at(data) is None
    assert log.at(fencing) == Batch(fencing, fencing, 0, True, -1)


def test_an_open_transaction_ends_the_range_before_its_segment() -> None:
    log = TransactionalLog()
    log.plain("a")
    log.log.roll()
    log.plain("a")
    opened = log.send(7, "b")
    log.plain("a")
    log.log.roll()
    cleaned = log.log.compact(force=True)
    assert cleaned is not None
    assert cleaned.first_dirty_offset == 1 < opened
    log.end(7, ControlType.COMMIT)
    log.log.roll()
    cleaned = log.log.compact(force=True)
    assert cleaned is not None
    assert cleaned.outdated == 2


def test_tombstones_of_a_transaction_get_a_horizon_as_others_do() -> None:
    log = TransactionalLog()
    tombstone = log.send(7, "a", value=None)
    log.end(7, ControlType.COMMIT)
    log.send(7, "b")
    log.end(7, ControlType.COMMIT)
    log.compact()
    horizon = log.clock.now_ms() + HORIZON
    assert log.at(tombstone) == Batch(tombstone, tombstone, 1, False, horizon)
    log.clock.advance(HORIZON)
    assert log.compact().tombstones == 1
    assert log.at(tombstone) is None


def test_a_log_that_was_compacted_reads_the_same_when_it_is_opened_again() -> None:
    log = TransactionalLog()
    log.send(7, "a", "b")
    log.end(7, ControlType.ABORT)
    kept = log.send(8, "c")
    log.end(8, ControlType.COMMIT)
    log.compact()
    entries, producers = log.indexed(), log.log.state().producers
    log.log.close()
    again = PartitionLog.open(log.storage, FOLDER, topic_config(OVERRIDES), log.clock, clean=True)
    assert log.indexed() == entries
    assert again.state().producers == producers
    read = [key for part in again.read(0, again.log_end_offset) for key in part["key"].to_pylist()]
    assert read == [b"c", b"filler 1"]
    assert kept == 3
