"""Derives producer snapshots and transaction indexes from .log files, and compares them with a 4.3.1 broker's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage_engine.errors import CorruptionError
from storage_engine.log.indexes.transaction_index import (
    AbortedTransaction,
    decode_transaction_index,
    encode_transaction_index,
)
from storage_engine.log.producers.producer_snapshot import (
    EMPTY_SNAPSHOT,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.record.batch import scan_batches
from storage_engine.record.control import ControlType, TransactionMarker
from storage_engine.record.encoding import seal_batches
from storage_engine.record.header import HEADER_BYTES

GOLDEN = Path(__file__).parents[2] / "golden"
BROKERS_EMPTY_SNAPSHOT = bytes.fromhex("0001 48674bc7 00000000")
WITH_PRODUCERS = ["idem/data/idem-0", "txn/data/txn-0"]


def replayed(folder: Path) -> Iterator[tuple[Path, bytes, bytes]]:
    """Yield each .log with the snapshot at its base offset and its transaction index, derived from the .log files."""
    producers = Producers()
    for log in sorted(folder.glob("*.log")):
        before = encode_snapshot(producers.entries())
        data = np.fromfile(log, np.uint8)
        ended = producers.replay(data, scan_batches(data, log.name), log.name)
        yield log, before, encode_transaction_index(aborted_among(ended))
    yield folder / f"{0:020d}.end", encode_snapshot(producers.entries()), b""


@pytest.mark.parametrize("folder", WITH_PRODUCERS)
def test_snapshots_are_the_brokers_byte_for_byte(folder: str) -> None:
    *segments, (_, at_the_end, _) = replayed(GOLDEN / folder)
    found = {log.with_suffix(".snapshot").name: snapshot for log, snapshot, _ in segments[1:]}
    expected = {path.name: path.read_bytes() for path in sorted((GOLDEN / folder).glob("*.snapshot"))}
    assert len(expected) > 2
    last = max(expected)
    assert found | {last: at_the_end} == expected


def test_transaction_indexes_are_the_brokers_byte_for_byte() -> None:
    folder = GOLDEN / "txn/data/txn-0"
    found = {log.with_suffix(".txnindex").name: index for log, _, index in replayed(folder) if index}
    assert found == {path.name: path.read_bytes() for path in folder.glob("*.txnindex")}
    assert len(found) > 3


def test_what_is_encoded_is_decoded() -> None:
    producers = (ProducerEntry(7, 2, 11, 100, 3, 1_700_000_000_000, 0, 98), ProducerEntry(9, 0, -1, -1, 0, 5, -1, -1))
    assert decode_snapshot(encode_snapshot(producers), "f") == producers
    assert decode_snapshot(BROKERS_EMPTY_SNAPSHOT, "f") == ()
    assert EMPTY_SNAPSHOT == BROKERS_EMPTY_SNAPSHOT
    aborted = (AbortedTransaction(7, 0, 5, 2), AbortedTransaction(9, 2, 8, 9))
    assert decode_transaction_index(encode_transaction_index(aborted), "f") == aborted


def test_entries_come_in_the_order_of_javas_hash_map() -> None:
    # 2**32 has the hash 1, 17 shares a bucket with 1 until there are 32 of them: by age in a bucket, by bucket else.
    ids = [17, 3, 2**32, 1, 0]
    order = [entry.producer_id for entry in Producers(_entry(producer_id) for producer_id in ids).entries()]
    assert order == [0, 17, 2**32, 1, 3]
    many = Producers(_entry(producer_id) for producer_id in [17, 1, *range(2, 14)])
    assert [entry.producer_id for entry in many.entries()] == [*range(1, 14), 17]


def test_buckets_are_never_fewer_than_there_were() -> None:
    producers = Producers(_entry(producer_id, timestamp=producer_id) for producer_id in [17, 1, *range(2, 14)])
    producers.expire(now_ms=1000 + 13, expiration_ms=1000)
    assert [entry.producer_id for entry in producers.entries()] == [17]


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    producers = Producers([_entry(1), _entry(2, txn_first_offset=40)])
    producers.expire(now_ms=10**15, expiration_ms=1)
    assert [entry.producer_id for entry in producers.entries()] == [2]
    assert producers.first_unstable_offset() == 40


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BROKERS_EMPTY_SNAPSHOT[:9],
        b"\0\2" + BROKERS_EMPTY_SNAPSHOT[2:],
        BROKERS_EMPTY_SNAPSHOT[:5] + b"\0" + BROKERS_EMPTY_SNAPSHOT[6:],
        BROKERS_EMPTY_SNAPSHOT + b"\0",
        BROKERS_EMPTY_SNAPSHOT[:9] + b"\1",
    ],
)
def test_a_damaged_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_snapshot(data, "f")


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"\0\1" + bytes(32),
        encode_transaction_index([AbortedTransaction(1, 5, 4, 5)]),
        encode_transaction_index([AbortedTransaction(1, 0, 4, 5), AbortedTransaction(2, 0, 4, 5)]),
    ],
)
def test_a_damaged_transaction_index_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_transaction_index(data, "f")


def _entry(producer_id: int, timestamp: int = 0, txn_first_offset: int = -1) -> ProducerEntry:
    return ProducerEntry(producer_id, 0, 0, 0, 0, timestamp, -1, txn_first_offset)


def test_a_control_batch_whose_record_lies_behind_it_is_refused() -> None:
    log = GOLDEN / "txn/data/txn-0/00000000000000000033.log"
    data = np.fromfile(log, np.uint8)
    table = scan_batches(data, log.name)
    control = table.select(np.flatnonzero(table.is_control)[:1])
    start = int(control.positions[0])
    batch = data[start : start + int(control.sizes[0])].copy()
    record = HEADER_BYTES
    assert batch[record + 3] == 0, "the offset delta of its only record"
    batch[record + 3] = 2  # zig-zag: 1
    seal_batches(batch, control.sizes)
    with pytest.raises(CorruptionError) as caught:
        Producers().replay(batch, scan_batches(batch, log.name), log.name, start)
    assert (caught.value.file, caught.value.position) == (log.name, start)


def test_a_transaction_is_known_by_the_records_that_are_left_of_it() -> None:
    abort = TransactionMarker(ControlType.ABORT, 0)
    producers = Producers()
    producers.append(1, 0, 0, 10, 19, 5, transactional=True)
    producers.append(2, 0, 0, 20, 29, 5, transactional=True, has_records=False)
    # A snapshot knows of a third, whose batches are gone.
    producers = producers.corrected([*producers.entries(), _entry(3, txn_first_offset=7)])
    ended = [each for number in (1, 2, 3) for each in producers.end(number, 0, 29 + number, abort, 6)]
    assert [(each.transaction.producer_id, each.has_records) for each in ended] == [(1, True), (2, False), (3, False)]
    assert aborted_among(ended) == tuple(each.transaction for each in ended)
