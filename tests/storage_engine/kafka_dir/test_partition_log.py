"""The files that appends write, with different topic settings."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config.kafka_dir_keys import LogManagerConfig
from storage_engine.errors import CorruptionError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.log.isolation import Isolation
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.control import ControlType, TransactionMarker, encode_marker
from storage_engine.record.encoding import encode_records
from storage_engine.record.header import CONTROL, TRANSACTIONAL
from storage_engine.storage.posix import PosixStorage
from tests.kafka.random_logs import Record, Sender, encode_batch
from tests.storage_engine.kafka_dir.unreliable_directory import UnreliableDirectory
from tests.storage_engine.record_tables import Row, to_rows, to_table

GOLDEN = Path(__file__).parents[2] / "golden"
NOW_MS = 1_700_000_000_000
ROWS = [Row(b"key %d" % number, b"value " * 20, (("h", None),), NOW_MS + number) for number in range(20)]


def open_log(root: Path, folder: str = "orders-0", *, clean: bool = False, **overrides: object) -> PartitionLog:
    config = LogManagerConfig().topic({key.replace("_", "."): value for key, value in overrides.items()})
    return PartitionLog.open(PosixStorage(root), folder, config, ManualClock(NOW_MS), clean=clean)


def read(log: PartitionLog) -> list[Row]:
    return [row for part in log.read(log.log_start_offset, log.log_end_offset) for row in to_rows(part)]


@pytest.mark.parametrize("name", ["multi", "idem", "txn", "codec_lz4", "ooo"])
def test_the_batches_of_a_broker_give_the_files_of_a_broker(tmp_path: Path, name: str) -> None:
    """Segments roll where they did; indexes, snapshots, transaction indexes and epochs have the same bytes."""
    source = GOLDEN / name / "data" / f"{name}-0"
    log = open_log(
        tmp_path, f"{name}-0", segment_bytes=16384, index_interval_bytes=512, message_timestamp_after_max_ms=2**62
    )
    for path in sorted(source.glob("*.log")):
        data = np.fromfile(path, np.uint8)
        table = scan_batches(data, path.name)
        for position, size, control in zip(table.positions, table.sizes, table.is_control, strict=True):
            log.append_batches(data[position : position + size], control=bool(control))
    log.close()
    found = {path.name: path.read_bytes() for path in (tmp_path / f"{name}-0").iterdir()}
    expected = {path.name: path.read_bytes() for path in source.iterdir() if path.name != "partition.metadata"}
    assert found == expected


def test_an_open_transaction_holds_readers_of_committed_records_back(tmp_path: Path) -> None:
    data = np.concatenate(
        [np.fromfile(path, np.uint8) for path in sorted((GOLDEN / "txn/data/txn-0").glob("*.log"))[:2]]
    )
    table = scan_batches(data, "txn")
    log = open_log(tmp_path, message_timestamp_after_max_ms=2**62)
    row = int(np.flatnonzero(table.is_control & (table.producer_ids == table.producer_ids[0]))[0])
    log.append_batches(data[: int(table.positions[row])], control=True)
    assert log.offset_at(-1, Isolation.READ_COMMITTED) == (0, -1, 0)
    assert log.offset_at(-1) == (log.log_end_offset, -1, 0)
    log.append_batches(data[int(table.positions[row]) : int(table.positions[row] + table.sizes[row])], control=True)
    found = log.offset_at(-1, Isolation.READ_COMMITTED)
    assert found is not None
    assert found[0] > 0
    with pytest.raises(InvalidRecordError, match="control batch, which a producer may not write"):
        log.append_batches(data[int(table.positions[row]) : int(table.positions[row] + table.sizes[row])])


def test_a_transaction_is_open_while_its_marker_is_above_the_high_watermark(tmp_path: Path) -> None:
    """Another leader can replace the marker. So the records are not committed, and compaction leaves them alone."""
    sender = Sender(7, 0, 0)
    records = encode_batch(3, [Record(NOW_MS, b"k", b"open")], sender=sender, attributes=TRANSACTIONAL)
    marker = encode_batch(
        4, [Record(NOW_MS, *encode_marker(TransactionMarker(ControlType.ABORT, 0)))],
        sender=sender._replace(sequence=-1), attributes=TRANSACTIONAL | CONTROL,
    )  # fmt: skip
    log = open_log(tmp_path, cleanup_policy="compact")
    for data in (*(encode_batch(0, [Record(NOW_MS, b"k", b"%d" % number)]) for number in range(3)), records, marker):
        log.append_batches(np.frombuffer(bytearray(data), np.uint8), control=data is marker)
        log.roll()
    log.append_records(to_table(ROWS[:1]))
    log.close()
    config = LogManagerConfig().topic({"cleanup.policy": "compact"})
    for clean in (True, False):
        for high_watermark, stable in ((4, 3), (5, 5), (6, 6), (7, 6)):
            log = PartitionLog.open(
                PosixStorage(tmp_path),
                "orders-0",
                config,
                ManualClock(NOW_MS),
                clean=clean,
                high_watermark=high_watermark,
            )
            assert log.state().last_stable_offset == stable
            log.abandon()
    log = PartitionLog.open(PosixStorage(tmp_path), "orders-0", config, ManualClock(NOW_MS), high_watermark=4)
    cleaned = log.compact(force=True)
    assert cleaned is not None
    assert (cleaned.first_dirty_offset, cleaned.aborted) == (3, 0)
    log.abandon()


def test_indexes_have_their_full_size_while_a_segment_is_active(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_index_bytes=1003, segment_bytes=4096, preallocate="true")
    stem = tmp_path / "orders-0" / f"{0:020d}"
    log.append_records(to_table(ROWS))
    sizes = [stem.with_suffix(suffix).stat().st_size for suffix in (".index", ".timeindex", ".log")]
    assert sizes == [1000, 996, 4096]
    log.roll()
    assert stem.with_suffix(".timeindex").stat().st_size == 12
    assert stem.with_suffix(".log").stat().st_size == log.state().segments[0].size
    assert read(log) == ROWS


def test_log_append_time_is_the_clocks(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    log.append_records(to_table(ROWS))
    log.append_batches(encode_records(to_table(ROWS), 500, Codec.ZSTD).data)
    assert [row.timestamp for row in read(log)] == [NOW_MS] * 40
    log.close()
    assert read(open_log(tmp_path, clean=True)) == [row._replace(timestamp=NOW_MS) for row in ROWS] * 2


@pytest.mark.parametrize("given", list(Codec))
@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_compressed_anew_only_where_the_topic_wants_another_codec(
    tmp_path: Path, given: Codec, wanted: str
) -> None:
    log = open_log(tmp_path, compression_type=wanted)
    run = encode_records(to_table(ROWS), 1_000_000, given)
    log.append_batches(run.data)
    data = np.fromfile(tmp_path / "orders-0" / f"{0:020d}.log", np.uint8)
    codec = given if wanted == "producer" else Codec.of(wanted)
    assert scan_batches(data, "log").codecs.tolist() == [codec]
    assert read(log) == ROWS
    if codec is given:
        assert data[21:].tobytes() == run.data[21:].tobytes()


def test_what_a_topic_may_not_hold_is_refused_as_a_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact", max_message_bytes=1000)
    good = encode_records(to_table(ROWS[:1]), 1000).data

    def refused(kind: type[Exception], rows: list[Row], message: str) -> None:
        run = encode_records(to_table(rows), 1_000_000).data
        with pytest.raises(kind, match=message) as error:
            log.append_batches(np.concatenate([good, run]))
        assert "secret" not in str(error.value)
        assert log.log_end_offset == 0

    refused(InvalidRecordError, [Row(b"k", b"v"), Row(None, b"secret")], "orders-0, record 2: has no key")
    refused(InvalidTimestampError, [Row(b"secret", b"", (), NOW_MS + 3_600_001)], "record 1: has a timestamp")
    refused(RecordTooLargeError, [Row(b"k", b"secret" * 200)], "batch 1: found .* above the limit of 1000")
    with pytest.raises(CorruptionError, match="CRC-32C"):
        log.append_batches(np.concatenate([good, good[:-1], np.zeros(1, np.uint8)]))
    with pytest.raises(InvalidRecordError, match="is incomplete"):
        log.append_batches(np.concatenate([good, good[:-1]]))
    with pytest.raises(InvalidRecordError, match="record 1: has no key"):
        log.append_records(to_table([Row(b"k", b"v"), Row(None, b"secret")]))
    assert log.append_batches(good) == (0, 1)


def test_segments_roll_by_event_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=1000)
    for ahead in (0, 1000, 1001, 1500, 2002):
        log.append_records(to_table([Row(b"k", b"v", (), NOW_MS + ahead)]))
    assert [segment.base_offset for segment in log.state().segments] == [0, 2, 4]


def test_a_log_that_nothing_was_appended_to_keeps_its_time_of_change(tmp_path: Path) -> None:
    """Records without timestamps are as old as their file."""
    log = open_log(tmp_path)
    log.append_records(to_table(ROWS))
    log.close()
    file = tmp_path / "orders-0" / "00000000000000000000.log"
    os.utime(file, ns=(NOW_MS, NOW_MS))
    open_log(tmp_path, clean=True).close()
    assert file.stat().st_mtime_ns == NOW_MS


def reopened(storage: UnreliableDirectory, now_ms: int = NOW_MS, first_dirty_offset: int | None = None) -> PartitionLog:
    """The log after a crash."""
    config, clock = LogManagerConfig().topic({"segment.bytes": 1024, "retention.bytes": 2000}), ManualClock(now_ms)
    return PartitionLog.open(storage, "t-0", config, clock, first_dirty_offset=first_dirty_offset)


def test_a_first_dirty_offset_beyond_the_logs_end_is_ignored() -> None:
    storage = UnreliableDirectory()
    log = reopened(storage)
    log.append_records(to_table([Row(b"k", b"v", (), NOW_MS)] * 5))
    log.abandon()
    assert reopened(storage, first_dirty_offset=5).first_dirty_offset == 5
    assert reopened(storage, first_dirty_offset=6).first_dirty_offset is None


def test_the_recovery_point_is_never_below_the_first_segment() -> None:
    storage = UnreliableDirectory()
    log = reopened(storage)
    for number in range(40):
        log.append_records(to_table([Row(b"k%d" % number, bytes(100), (), NOW_MS)]))
    log.abandon()
    log = reopened(storage)
    assert log.recovery_point == 0
    log.apply_retention()
    assert log.recovery_point == log.first_base_offset > 0


def test_a_roll_of_durable_records_does_not_delay_the_next_flush(tmp_path: Path) -> None:
    """As in Kafka's LocalLog.markFlushed: only a flush that makes records durable begins flush.ms again."""
    clock = ManualClock(NOW_MS)
    log = PartitionLog.open(PosixStorage(tmp_path), "t-0", LogManagerConfig().topic({"flush.ms": 1000}), clock)
    log.append_records(to_table(ROWS[:1]))
    log.flush()
    clock.advance(900)
    log.roll()
    log.append_records(to_table(ROWS[1:2]))
    clock.advance(99)
    assert not log.flush_if_due()
    clock.advance(1)
    assert log.flush_if_due()
    assert log.recovery_point == log.log_end_offset == 2


def test_a_flush_of_an_empty_log_does_not_delay_the_next_flush() -> None:
    """As in Kafka's UnifiedLog: the recovery point begins at the log start, so nothing was flushed."""
    storage, clock = UnreliableDirectory(), ManualClock(NOW_MS)
    config = LogManagerConfig().topic({"flush.ms": 1000})
    storage.make_folder("t-0")
    storage.replace("t-0/00000000000000000100.log", b"")
    log = PartitionLog.open(storage, "t-0", config, clock)
    clock.advance(1000)
    assert not log.flush_if_due()
    log.append_records(to_table(ROWS[:1]))
    assert log.flush_if_due()
    assert log.recovery_point == log.log_end_offset == 101


def test_the_retention_of_a_whole_log_does_not_delay_the_next_flush(tmp_path: Path) -> None:
    """As in Kafka's UnifiedLog.updateLogStartOffset: the recovery point follows the log start, and nothing is flushed."""
    clock = ManualClock(NOW_MS)
    config = LogManagerConfig().topic({"flush.ms": 1000, "retention.ms": 900, "cleanup.policy": "delete"})
    log = PartitionLog.open(PosixStorage(tmp_path), "t-0", config, clock)
    log.append_records(to_table([Row(b"k", b"v", (), NOW_MS)]))
    clock.advance(901)
    assert log.apply_retention().log_start_offset == log.recovery_point == 1
    log.append_records(to_table([Row(b"k", b"v", (), NOW_MS + 901)]))
    clock.advance(98)
    assert not log.flush_if_due()
    clock.advance(1)
    assert log.flush_if_due()


def test_a_producer_that_has_expired_does_not_return_by_a_recovery() -> None:
    batch = encode_batch(0, [Record(NOW_MS, b"k", b"v")], sender=Sender(7, 0, 0))
    storage = UnreliableDirectory()
    log = reopened(storage)
    log.append_batches(np.frombuffer(bytearray(batch), np.uint8))
    log.abandon()
    day_ms = 86_400_000
    assert [each.producer_id for each in reopened(storage, NOW_MS + day_ms - 1).state().producers] == [7]
    assert reopened(storage, NOW_MS + day_ms).state().producers == ()
