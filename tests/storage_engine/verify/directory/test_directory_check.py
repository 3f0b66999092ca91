"""Tests that the check reports no problem in a broker's directories. Also tests that the check finds each damage at its
place, and reports no other place.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.log.filenames import offset_name
from storage_engine.record.batch import scan_batches
from storage_engine.record.crc import batch_crcs, write_crcs
from storage_engine.record.header import BATCH_HEADER, HEADER_BYTES, LOG_OVERHEAD, MAGIC
from storage_engine.verify.directory.directory_check import check_together
from storage_engine.verify.findings import Kind, problems
from storage_engine.verify.segment_check import Options
from tests.storage_engine.verify.directories import ALL, checked, copied, flip, overwrite, problems_of

FIRST, SECOND, LAST = offset_name(0), offset_name(33), offset_name(786)


@pytest.fixture
def txn(tmp_path: Path) -> Path:
    """A cleanly closed directory with transactions, 12 segments of one partition."""
    return copied("txn", tmp_path)


@pytest.fixture
def folder(txn: Path) -> Path:
    return txn / "txn-0"


def batch_at(log: Path, row: int) -> int:
    """Where a batch begins in a .log, counted from the end where row is negative."""
    return int(scan_batches(np.fromfile(log, np.uint8), log.name).positions[row])


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_what_a_broker_wrote_has_no_problem(name: str, deep: bool, tmp_path) -> None:
    found = checked(copied(name, tmp_path), Options(deep=deep))
    assert problems(found.all_findings()) == []
    assert all(part.segments for part in found.partitions.values())


@pytest.mark.parametrize("name", ["txn", "compact.before2", "delrec", "multi"])
def test_after_a_crash_only_what_a_broker_then_derives_may_be_missing(name: str, tmp_path) -> None:
    path = copied(name, tmp_path)
    (path / ".kafka_cleanshutdown").unlink()
    for file in [*path.rglob("*index"), *path.rglob("*.snapshot"), *path.rglob("leader-epoch-checkpoint")]:
        if file.suffix != ".txnindex":
            file.unlink()
    assert problems_of(path) == []


@pytest.mark.parametrize(
    ("field", "bit", "expected"),
    [
        ("base_offset", 1 << 40, "offsets"),
        ("batch_length", 1, "CRC"),
        ("batch_length", 1 << 30, ""),
        ("partition_leader_epoch", 1, "leader epoch 0"),
        ("magic", 1, "magic"),
        ("crc", 1, "CRC"),
        ("attributes", 8, "CRC"),
        ("last_offset_delta", 1, ""),
        ("base_timestamp", 1, "CRC"),
        ("max_timestamp", 1, "CRC"),
        ("producer_id", 1, "CRC"),
        ("producer_epoch", 1, "CRC"),
        ("base_sequence", 1, "CRC"),
        ("records_count", 1, "CRC"),
        ("records_count", 1 << 31, "record count"),
    ],
)
def test_a_bit_of_a_header_is_found_at_its_batch_and_nowhere_else(folder, field: str, bit: int, expected: str) -> None:
    log = folder / f"{SECOND}.log"
    position = batch_at(log, 3)
    assert BATCH_HEADER.fields
    dtype, offset = BATCH_HEADER.fields[field][:2]
    changed = int.from_bytes(log.read_bytes()[position + offset :][: dtype.itemsize], "big") ^ bit
    overwrite(log, position + offset, changed.to_bytes(dtype.itemsize, "big"))
    (problem,) = problems_of(folder.parent)
    assert (problem.kind, problem.file, problem.position) == (Kind.CORRUPT, str(log), position)
    assert expected in problem.expected


def test_several_damages_of_a_log_are_all_found_and_what_lies_between_them_is_not_lost(folder) -> None:
    log = folder / f"{SECOND}.log"
    whole = checked(folder.parent).partitions[TopicPartition("txn", 0)].segments[1]
    positions = [batch_at(log, row) for row in (2, 5, 9)]
    for position in positions:
        flip(log, position + 70)
    found = checked(folder.parent)
    assert [each.position for each in problems(found.all_findings())] == positions
    segment = found.partitions[TopicPartition("txn", 0)].segments[1]
    assert (segment.batches, segment.end_offset) == (whole.batches - 3, whole.end_offset)


def test_an_end_that_is_cut_off_is_torn_and_a_changed_last_batch_of_a_closed_log_is_corrupt(txn, folder) -> None:
    log = max(folder.glob("*.log"))
    position, size = batch_at(log, -1), log.stat().st_size
    flip(log, size - 1)
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.CORRUPT, position)]
    (txn / ".kafka_cleanshutdown").unlink()
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TORN, position)]
    for cut in (size - 1, position + 61, position + 5):
        os.truncate(log, cut)
        assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TORN, position)]
    os.truncate(log, size)  # with zeros, as a file system may leave them
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TORN, position)]


def test_a_torn_tail_in_the_middle_of_a_log_is_corruption(txn, folder) -> None:
    log = folder / f"{SECOND}.log"
    position = batch_at(log, -1)
    os.truncate(log, log.stat().st_size - 1)
    assert [(each.kind, each.file, each.position) for each in problems_of(txn) if each.file == str(log)] == [
        (Kind.CORRUPT, str(log), position)
    ]


def test_a_log_that_lost_whole_batches_at_its_end_shows_in_what_is_known_of_them(txn, folder) -> None:
    log = max(folder.glob("*.log"))
    os.truncate(log, batch_at(log, -2))
    found = {(each.kind, Path(each.file).name) for each in problems_of(txn)}
    assert {
        (Kind.CHECKPOINT, "recovery-point-offset-checkpoint"),
        (Kind.CHECKPOINT, "replication-offset-checkpoint"),
    } <= found


def test_what_a_crc_covers_and_no_writer_leaves_is_found(txn, folder) -> None:
    log = folder / f"{FIRST}.log"
    data = np.fromfile(log, np.uint8)
    table = scan_batches(data, log.name)
    data[table.positions[1] + 60] += 1  # one record more than offsets
    data[table.positions[2] + 22] |= 7  # a codec that there is not
    write_crcs(data, table.sizes, batch_crcs(data, table.sizes))
    data.tofile(log)
    assert sorted(each.position for each in problems_of(txn)) == table.positions[1:3].tolist()


def test_records_that_do_not_decode_are_found_by_decoding_them(txn, folder) -> None:
    log = folder / f"{FIRST}.log"
    data = np.fromfile(log, np.uint8)
    table = scan_batches(data, log.name)
    data[table.positions[0] + 61] ^= 4  # the length of the first record
    write_crcs(data, table.sizes, batch_crcs(data, table.sizes))
    data.tofile(log)
    assert problems_of(txn) == []
    assert [each.position for each in problems_of(txn, Options(deep=True))] == [0]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_each_wrong_entry_of_an_index_is_found(txn, folder, suffix: str) -> None:
    index = folder / f"{SECOND}{suffix}"
    entry = {".index": 8, ".timeindex": 12}[suffix]
    entries = index.stat().st_size // entry
    assert entries > 4
    flip(index, 2 * entry + entry - 1, 1 << 6)
    flip(index, 4 * entry + 1)
    assert [(each.kind, each.file, each.position) for each in problems_of(txn)] == [
        (Kind.INDEX, str(index), 2 * entry), (Kind.INDEX, str(index), 4 * entry)
    ]  # fmt: skip


def test_indexes_of_other_sizes_are_found(txn, folder) -> None:
    offsets, times = folder / f"{FIRST}.index", folder / f"{SECOND}.timeindex"
    size = offsets.stat().st_size
    offsets.write_bytes(offsets.read_bytes() + b"abc")
    os.truncate(times, times.stat().st_size - 12)
    (folder / f"{LAST}.index").unlink()
    found = [(Path(each.file).name, each.position) for each in problems_of(txn)]
    assert found == [(offsets.name, size), (times.name, times.stat().st_size), (f"{LAST}.index", 0)]


def test_an_entry_of_timestamp_0_at_the_base_offset_is_no_preallocated_zero(tmp_path) -> None:
    path = copied("empty", tmp_path)
    data = np.zeros(1, BATCH_HEADER)
    data["batch_length"], data["magic"], data["producer_id"] = HEADER_BYTES - LOG_OVERHEAD, MAGIC, -1
    batch = data.view(np.uint8)
    write_crcs(batch, np.array([HEADER_BYTES]), batch_crcs(batch, np.array([HEADER_BYTES])))
    batch.tofile(path / f"empty-0/{FIRST}.log")
    times = path / f"empty-0/{FIRST}.timeindex"
    times.write_bytes(bytes(12))
    assert problems_of(path) == []
    times.write_bytes(bytes(24))
    assert [(each.kind, each.position) for each in problems_of(path)] == [(Kind.INDEX, 0), (Kind.INDEX, 0)]


def test_zeros_behind_the_entries_are_fine_only_where_a_log_was_not_closed(txn, folder) -> None:
    newest = max(folder.glob("*.log"))
    for log in (folder / f"{FIRST}.log", newest):
        for suffix in (".index", ".timeindex"):
            file = log.with_suffix(suffix)
            file.write_bytes(file.read_bytes() + bytes(240))
    assert {Path(each.file).stem for each in problems_of(txn)} == {FIRST, newest.stem}
    (txn / ".kafka_cleanshutdown").unlink()
    assert {Path(each.file).stem for each in problems_of(txn)} == {FIRST}


def test_entries_of_transactions_that_no_marker_ended_and_missing_ones_are_found(txn, folder) -> None:
    index = folder / f"{SECOND}.txnindex"
    whole = index.read_bytes()
    overwrite(index, 34 + 2, struct.pack(">q", 77))
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TRANSACTION_INDEX, 34)]
    index.write_bytes(whole[:-34])
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TRANSACTION_INDEX, len(whole) - 34)]
    index.write_bytes(whole[:-1])
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.TRANSACTION_INDEX, len(whole) - 34)]
    index.unlink()
    assert [(each.kind, each.position, each.found) for each in problems_of(txn)] == [
        (Kind.TRANSACTION_INDEX, 0, "none")
    ]


def test_snapshots_that_the_batches_contradict_are_found(txn, folder) -> None:
    snapshot, other = folder / f"{offset_name(180)}.snapshot", folder / f"{offset_name(323)}.snapshot"
    assert snapshot.read_bytes() != other.read_bytes()
    shutil.copy(other, snapshot)
    assert {(each.kind, each.file) for each in problems_of(txn)} == {(Kind.SNAPSHOT, str(snapshot))}
    flip(snapshot, 20)
    assert [(each.kind, each.position) for each in problems_of(txn)] == [(Kind.SNAPSHOT, 2)]
    snapshot.unlink()
    assert [(each.kind, each.file) for each in problems_of(txn)] == [(Kind.SNAPSHOT, str(snapshot))]


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (b"1\n1\n0 0\n", 0),
        (b"0\n2\n0 0\n", 2),
        (b"0\n1\n0 x\n", 4),
        (b"0\n1\n5 0\n", 4),
        (b"0\n2\n0 0\n1 500\n", 8),
        (b"0\n2\n0 0\n0 500\n", 8),
        (b"0\n2\n0 0\n1 90000\n", 8),
        (b"0\n1\n0 7\n", 4),
        (b"0\n0\n", 4),
    ],
)
def test_leader_epochs_that_are_malformed_or_not_those_of_the_batches_are_found(
    txn, folder, content: bytes, position: int
) -> None:
    checkpoint = folder / "leader-epoch-checkpoint"
    checkpoint.write_bytes(content)
    found = [(each.kind, each.file, each.position) for each in problems_of(txn)]
    assert found == [(Kind.CHECKPOINT, str(checkpoint), position)]


@pytest.mark.parametrize(
    ("file", "content", "position"),
    [
        ("recovery-point-offset-checkpoint", b"0\n2\ntxn 0 5\n", 2),
        ("recovery-point-offset-checkpoint", b"0\n2\nother 0 5\ntxn 0 5000\n", 14),
        ("replication-offset-checkpoint", b"0\n1\ntxn 0 -5\n", 4),
        ("log-start-offset-checkpoint", b"0\n1\ntxn 0 5000\n", 4),
        ("cleaner-offset-checkpoint", b"0\n1\ntxn 0 1000\n", 4),
        ("cleaner-offset-checkpoint", b"zero\n", 0),
    ],
)
def test_checkpoints_that_are_malformed_or_out_of_the_log_are_found(
    txn, file: str, content: bytes, position: int
) -> None:
    (txn / file).write_bytes(content)
    found = [(each.kind, each.file, each.position) for each in problems_of(txn)]
    assert found == [(Kind.CHECKPOINT, str(txn / file), position)]


def test_files_that_should_not_be_there_are_found(txn, folder) -> None:
    left_over = [f"{FIRST}.log.deleted", f"{SECOND}.index.swap", f"{SECOND}.log.cleaned", f"{offset_name(7)}.index"]
    noted = ["notes.txt", f"{offset_name(8)}.snapshot", f"{FIRST}.17.corrupt"]
    for name in (*left_over, *noted, "x.log"):
        (folder / name).write_bytes(b"\0\1" + bytes.fromhex("48674bc700000000") if name.endswith("snapshot") else b"")
    (txn / "txn-1.0123-delete").mkdir()
    refused = {"something else", "backup-delete"}
    for name in refused:
        (txn / name).mkdir()
    found = checked(txn).all_findings()
    assert {Path(each.file).name for each in problems(found)} == {*left_over, "x.log", *refused}
    assert {*noted, "txn-1.0123-delete"} <= {Path(each.file).name for each in found if each.is_note}


def test_ids_that_are_malformed_or_differ_are_found(tmp_path) -> None:
    path = copied("multi", tmp_path)
    (path / "multi-1/partition.metadata").write_bytes(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    (path / "multi-2/partition.metadata").write_bytes(b"version: 0\ntopic_id: AAA")
    (path / "meta.properties").write_bytes(b"version=1\n")
    found = {(each.kind, Path(each.file).parent.name) for each in problems_of(path)}
    assert found == {(Kind.METADATA, "multi-1"), (Kind.METADATA, "multi-2"), (Kind.METADATA, "multi")}


def test_a_partition_in_two_directories_and_directories_of_two_brokers_are_found(tmp_path) -> None:
    one, two = copied("txn", tmp_path), tmp_path / "two"
    shutil.copytree(one, two)
    found = check_together([checked(one), checked(two)])
    assert {Path(each.file).name for each in found} == {"txn-0", "meta.properties"}
    shutil.rmtree(two / "txn-0")
    meta = two / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    (problem,) = check_together([checked(one), checked(two)])
    assert "node 2" in problem.found


@pytest.mark.parametrize("name", ["txn", "multi", "compact.before", "idem"])
def test_bits_flipped_anywhere_are_found_in_their_file_or_are_known_to_harm_nobody(name: str, tmp_path) -> None:
    path = copied(name, tmp_path)
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)
    files = sorted(file for file in path.glob("*/*") if file.stat().st_size and file.name != "partition.metadata")
    for _ in range(60):
        file = source.choice(files)
        whole = file.read_bytes()
        position, bit = source.randrange(len(whole)), 1 << source.randrange(8)
        flip(file, position, bit)
        found = problems_of(path)
        # A time entry that tells another offset of the same batch leads readers to that same batch; and another white
        # space behind a checkpoint's last number is one to Kafka, too.
        harmless = (file.suffix == ".timeindex" and position % 12 >= 8) or whole[position:] == b"\n"
        assert found or harmless, (file, position, bit)
        # Of a last batch's offset, which no CRC covers, only the indexes can tell that it is another.
        told = {str(file)} | (
            {str(file.with_suffix(suffix)) for suffix in (".index", ".timeindex")} if file.suffix == ".log" else set()
        )
        assert {each.file for each in found} <= told, (file, position, bit)
        file.write_bytes(whole)
