"""Lists all functions that read bytes from a disk, by the kind of file. A reader must return or raise a LogError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lakelog.cli.records.json_lines import format_lines
from storage_engine.clock import ManualClock
from storage_engine.errors import LogError
from storage_engine.kafka_dir.log_directory import LogDirectory, TopicPartition
from storage_engine.log.checkpoint import (
    decode_leader_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
)
from storage_engine.log.indexes.offset_index import decode_offset_index, position_before
from storage_engine.log.indexes.time_index import decode_time_index, hint_before
from storage_engine.log.indexes.transaction_index import decode_transaction_index, encode_transaction_index
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import MAX_TIMESTAMP
from storage_engine.log.producers.producer_snapshot import decode_snapshot, encode_snapshot
from storage_engine.log.producers.producer_state import Producers
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.record.batch import BatchTable, ByteArray, scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_parts, intact_sections
from storage_engine.record.encoding import encode_records
from storage_engine.record.sections import Room
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.version_files import version_key
from tests.storage_engine.fuzz.corpus import NOW_MS
from tests.storage_engine.record_tables import Row, to_rows, to_table

PART_BYTES = 8 * 1024**2
_FILE = "mutated"


class Readers:
    """The readers, with a folder for those that read more than one file."""

    def __init__(self, folder: Path) -> None:
        self._storage = PosixStorage(folder)
        self._folder = folder
        self._intact = _IntactSegment(folder)
        (folder / "logs" / "t-0").mkdir(parents=True)
        (folder / "meta" / "t").mkdir(parents=True)
        self.of_kind: dict[str, Callable[[bytes], object]] = {
            "log": read_log,
            "folder log": self.read_folder,
            "index": self.read_offset_index,
            "timeindex": self.read_time_index,
            "txnindex": read_transaction_index,
            "snapshot": read_snapshot,
            "epochs": lambda data: decode_leader_epochs(data, _FILE),
            "checkpoint": lambda data: decode_offsets(data, _FILE),
            "partition.metadata": lambda data: decode_partition_metadata(data, _FILE),
            "meta.properties": lambda data: decode_meta_properties(data, _FILE),
            "state": self.read_state,
        }

    def read_offset_index(self, data: bytes) -> None:
        entries = decode_offset_index(data)
        position_before(entries, 2**31 - 1)
        self._intact.read_with(".index", data)

    def read_time_index(self, data: bytes) -> None:
        entries = decode_time_index(data)
        hint_before(entries, NOW_MS)
        self._intact.read_with(".timeindex", data)

    def read_folder(self, data: bytes) -> None:
        """Read a partition's folder that has only this .log, after a crash, like a command with --kafka-dir."""
        (self._folder / "logs" / "t-0" / f"{0:020d}.log").write_bytes(data)
        directory = LogDirectory(self._folder / "logs")
        reader = directory.reader(directory.inspect(TopicPartition("t", 0)))
        for time in (MAX_TIMESTAMP, NOW_MS):
            reader.offset_at(time, Isolation.READ_UNCOMMITTED)
        for records in reader.read(reader.partition.log_start_offset, 2**63 - 1, Isolation.READ_COMMITTED):
            format_lines("t", 0, records)

    def read_state(self, data: bytes) -> None:
        path = self._folder / version_key("t", 1)
        path.write_bytes(data)
        try:
            StateChain(self._storage, "t", ManualClock(NOW_MS)).at(1)
        finally:
            path.unlink()


def read_log(data: bytes) -> None:
    """Run each step, even if an earlier step has failed. Different commands also run different steps."""
    array = np.frombuffer(data, np.uint8)
    table = scan_batches(array, _FILE)
    for step in (_check, _decode, _decode_some, _replay, _uncompress):
        try:
            step(array, table)
        except LogError:
            continue


def _check(data: ByteArray, table: BatchTable) -> None:
    check_crcs(data, table, _FILE)


def _decode(data: ByteArray, table: BatchTable) -> None:
    for records in decode_parts(data, table, _FILE, control=True, part_bytes=PART_BYTES):
        records.select(["offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value"]).validate(full=True)
        names, values = records["headers"].flatten().flatten()
        names.cast("binary").validate(full=True)
        values.validate(full=True)
        format_lines("t", 0, records)


def _decode_some(data: ByteArray, table: BatchTable) -> None:
    if len(table):
        middle = int(table.last_offsets[len(table) // 2])
        for _ in decode_parts(data, table, _FILE, 0, middle, middle + 1, part_bytes=PART_BYTES):
            pass


def _replay(data: ByteArray, table: BatchTable) -> None:
    producers = Producers()
    try:
        producers.replay(data, table, _FILE)
    finally:
        encode_snapshot(producers.entries())


def _uncompress(data: ByteArray, table: BatchTable) -> None:
    intact_sections(data, table, _FILE, 0, Room())


def read_transaction_index(data: bytes) -> None:
    assert encode_transaction_index(decode_transaction_index(data, _FILE)) == data


def read_snapshot(data: bytes) -> None:
    entries = decode_snapshot(data, _FILE)
    producers = Producers(entries)
    producers.first_unstable_offset()
    producers.expire(NOW_MS, 1)
    encode_snapshot(producers.entries())


class _IntactSegment:
    """A good segment whose indexes are replaced: they may cost a reader time, never change what it finds."""

    def __init__(self, folder: Path) -> None:
        self._stem = folder / "intact"
        self._storage = PosixStorage(folder)
        rows = [Row(b"%d" % number, b"v" * 20, timestamp=NOW_MS + number // 3) for number in range(40)]
        data = encode_records(to_table(rows), 200, Codec.NONE).data.tobytes()
        self._stem.with_suffix(".log").write_bytes(data)
        self._file = SegmentFile("intact", 0, len(data), len(rows))
        self._rows = rows

    def read_with(self, suffix: str, data: bytes) -> None:
        path = self._stem.with_suffix(suffix)
        path.write_bytes(data)
        try:
            self._read(suffix)
        except LogError as error:
            raise AssertionError(f"a {suffix} file makes a good segment unreadable") from error
        finally:
            path.unlink()

    def _read(self, suffix: str) -> None:
        for first in (17, 39):
            read = [row for records in read_records(self._storage, self._file, first) for row in to_rows(records)]
            assert read == self._rows[first:], f"reading from {first} on gives other records"
            found = first_record_at(self._storage, self._file, NOW_MS + first // 3)
            assert found is not None, f"no record is found at {first // 3}"
            assert found[0] == first // 3 * 3, f"offset {found[0]} is found at {first // 3}"
