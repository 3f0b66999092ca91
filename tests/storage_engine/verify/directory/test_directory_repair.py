"""Tests that a repair restores the bytes that a broker had written, and changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from storage_engine.errors import StorageError
from storage_engine.kafka_dir.log_directory import TopicPartition
from storage_engine.log.filenames import offset_name
from storage_engine.record.batch import scan_batches
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.verify.directories import ALL, checked, contents, copied, flip, overwrite, repaired

ONE_RUN = [name for name in ALL if not name.endswith("before2")]
"""Directories whose indexes were not written by several runs of a broker, which count anew at each start."""


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("name", ONE_RUN)
def test_a_damaged_file_of_each_kind_is_as_the_broker_wrote_it_again(name: str, suffix: str, tmp_path) -> None:
    path = copied(name, tmp_path)
    whole = contents(path)
    files = [file for file in path.glob(f"*/*{suffix}") if file.stat().st_size and not name.startswith("compact")]
    if suffix == "leader-epoch-checkpoint" and name == "empty":
        files = []  # what no batch tells
    for file in files[::2]:
        flip(file, 4, 1 << 6)
    assert repaired(path) == []
    assert contents(path) == whole


@pytest.mark.parametrize("name", ["txn", "idem"])
def test_snapshots_and_missing_files_are_derived(name: str, tmp_path) -> None:
    path = copied(name, tmp_path)
    whole = contents(path)
    for number, file in enumerate(sorted(path.glob("*/*.snapshot"))):
        if number % 2:
            file.unlink()
        else:
            flip(file, file.stat().st_size - 1)
    for file in sorted(path.glob("*/*index"))[::3]:
        file.unlink()  # the others tell index.interval.bytes
    assert repaired(path) == []
    assert contents(path) == whole


def test_checkpoints_keep_the_lines_that_are_right(tmp_path) -> None:
    path = copied("delrec", tmp_path)
    (path / "log-start-offset-checkpoint").write_bytes(b"0\n3\ndelrec 0 450\nelsewhere 0 7\ndelr")
    (path / "recovery-point-offset-checkpoint").write_bytes(b"1\n0\n")
    (path / "replication-offset-checkpoint").write_bytes(b"0\n1\ndelrec 0 9999\n")
    (path / "cleaner-offset-checkpoint").write_bytes(b"0\n1\ndelrec 0 9999\n")
    end = checked(path).partitions[TopicPartition("delrec", 0)].end_offset
    assert repaired(path) == []
    assert (path / "log-start-offset-checkpoint").read_bytes() == b"0\n2\ndelrec 0 450\nelsewhere 0 7\n"
    assert (path / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\ndelrec 0 %d\n" % end
    assert (path / "replication-offset-checkpoint").read_bytes() == b"0\n1\ndelrec 0 %d\n" % end
    assert (path / "cleaner-offset-checkpoint").read_bytes() == b"0\n0\n"


def test_a_topic_id_is_taken_from_another_partition(tmp_path) -> None:
    path = copied("multi", tmp_path)
    whole = contents(path)
    overwrite(path / "multi-1/partition.metadata", 0, b"?")
    assert repaired(path) == []
    assert contents(path) == whole


def test_an_interrupted_swap_is_finished_and_a_half_made_segment_thrown_away(tmp_path) -> None:
    path = copied("compact.after1", tmp_path)
    whole = contents(path)
    folder = path / "compact-0"
    first, second = sorted(folder.glob("*.log"))[:2]
    for suffix in (".log", ".index", ".timeindex"):
        file = first.with_suffix(suffix)
        file.rename(file.with_name(f"{file.name}.swap"))
    (folder / f"{offset_name(1)}.log.deleted").write_bytes(b"old")
    second.with_name(f"{second.name}.cleaned").write_bytes(b"half")
    assert repaired(path) == []
    assert contents(path) == whole


def test_a_directory_that_another_program_works_in_is_left_alone(tmp_path) -> None:
    path = copied("txn", tmp_path)
    with (
        PosixStorage(path).hold_exclusive(".lock"),
        pytest.raises(StorageError),
        PosixStorage(path).hold_exclusive(".lock"),
    ):
        pass


def test_nothing_is_written_where_nothing_is_wrong(tmp_path) -> None:
    path = copied("txn", tmp_path)
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert repaired(path) == []
    assert times == {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_files_of_other_segments_are_not_touched(tmp_path) -> None:
    path = copied("txn", tmp_path)
    index = min(path.glob("*/*.index"))
    flip(index, 4)
    times = {file: file.stat().st_mtime_ns for file in path.rglob("*.*") if file != index and file.is_file()}
    assert repaired(path) == []
    assert times == {file: file.stat().st_mtime_ns for file in times}


def test_a_bad_batch_is_cut_out_and_kept_and_all_others_stay(tmp_path) -> None:
    path = copied("txn", tmp_path)
    log = path / "txn-0" / f"{offset_name(33)}.log"
    whole = log.read_bytes()
    table = scan_batches(np.frombuffer(whole, np.uint8), log.name)
    start = int(table.positions[4])
    end = start + int(table.sizes[4])
    before = checked(path).partitions[TopicPartition("txn", 0)]
    flip(log, start + 70)
    bad = log.read_bytes()[start:end]
    assert repaired(path) == []
    after = checked(path).partitions[TopicPartition("txn", 0)]
    assert log.read_bytes() == whole[:start] + whole[end:]
    assert (log.parent / f"{log.stem}.{start}.corrupt").read_bytes() == bad
    assert sum(each.batches for each in after.segments) == sum(each.batches for each in before.segments) - 1
    assert after.end_offset == before.end_offset


def test_a_torn_tail_is_cut_off_and_checkpoints_follow(tmp_path) -> None:
    path = copied("codec_none", tmp_path)
    log = max(path.glob("*/*.log"))
    whole = log.read_bytes()
    position = int(scan_batches(np.frombuffer(whole, np.uint8), log.name).positions[-1])
    log.write_bytes(whole[:-3])
    assert repaired(path) == []
    assert log.read_bytes() == whole[:position]
    assert (log.parent / f"{log.stem}.{position}.corrupt").read_bytes() == whole[position:-3]
