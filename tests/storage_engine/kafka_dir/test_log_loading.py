"""Loading a log after a crash and after damage: which bytes are kept, which bytes are cut out and saved, and which
files are derived from the log again.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.errors import CorruptionError, ExitStatus, StorageFullError
from storage_engine.kafka_dir.partition_log import PartitionLog
from storage_engine.kafka_dir.recovery_report import CutReason
from storage_engine.log.isolation import Isolation
from storage_engine.record.batch import scan_batches
from storage_engine.record.encoding import encode_records
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.kafka_dir.unreliable_directory import StoppedError, UnreliableDirectory, topic_config
from tests.storage_engine.record_tables import Row, to_rows, to_table

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDER = "orders-0"
NOW_MS = 1_700_000_000_000
END = 28
CONFIG = topic_config({"segment.bytes": 1024, "index.interval.bytes": 100, "retention.ms": -1})


def open_log(
    storage: UnreliableDirectory | PosixStorage, *, clean: bool = False, recovery_point: int = 0
) -> PartitionLog:
    return PartitionLog.open(storage, FOLDER, CONFIG, ManualClock(NOW_MS), clean=clean, recovery_point=recovery_point)


@cache
def _filled() -> UnreliableDirectory:
    storage = UnreliableDirectory()
    log = open_log(storage)
    for number in range(END // 2):
        table = to_table([Row(b"%d" % (2 * number + row), b"v" * 40, (), NOW_MS + number) for row in range(2)])
        log.append_batches(encode_records(table, 10_000).data)
    log.close()
    assert len(log.state().segments) == 3
    return storage


def filled() -> UnreliableDirectory:
    """A log of batches with two records each, closed in order."""
    return copy.deepcopy(_filled())


def logs(storage: UnreliableDirectory) -> list[str]:
    return sorted(name for name in storage.files() if name.endswith(".log"))


def read_offsets(log: PartitionLog) -> list[int]:
    parts = log.read(log.log_start_offset, log.log_end_offset)
    return [offset for part in parts for offset in part["offset"].to_pylist()]


def test_what_a_broker_derives_is_derived_byte_for_byte(tmp_path: Path) -> None:
    for name in ("multi", "idem", "txn", "codec_lz4", "ooo", "shapes", "logappend"):
        folder = f"{name}-0"
        shutil.copytree(GOLDEN / name / "data" / folder, tmp_path / folder)
        expected = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for path in (tmp_path / folder).iterdir():
            if path.suffix not in (".log", ".metadata"):
                path.unlink()
        config = topic_config({"index.interval.bytes": 512, "segment.bytes": 16384})
        PartitionLog.open(PosixStorage(tmp_path), folder, config, ManualClock(NOW_MS)).close()
        assert {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} == expected, name


def test_a_torn_tail_is_cut_kept_and_named() -> None:
    storage = filled()
    last = logs(storage)[-1]
    whole = storage.files()[last]
    storage.damage(last, len(whole), whole[:100])
    log = open_log(storage)
    (cut,) = log.report.cuts
    assert (cut.file, cut.position, cut.size, cut.fate) == (last, len(whole), 100, CutReason.TORN_TAIL)
    assert cut.kept_as == f"{last.removesuffix('.log')}.{len(whole)}.corrupt"
    assert storage.files()[cut.kept_as] == whole[:100]
    assert storage.files()[last] == whole
    assert log.report.exit_status is ExitStatus.DONE
    assert f"{last} at position {len(whole)}: torn tail, 100 bytes, saved as {cut.kept_as}" in str(cut)
    assert read_offsets(log) == list(range(END))


def test_zeros_behind_a_log_are_cut_without_a_copy() -> None:
    storage = filled()
    last = logs(storage)[-1]
    storage.damage(last, len(storage.files()[last]), bytes(500))
    log = open_log(storage)
    assert [(cut.size, cut.kept_as, cut.fate) for cut in log.report.cuts] == [(500, "", CutReason.TORN_TAIL)]
    assert not [name for name in storage.files() if name.endswith(".corrupt")]


DAMAGES = {
    "a record": (70, b"\xff"),
    "the crc": (17, b"\xff\xff\xff\xff"),
    "the magic": (16, b"\x09"),
    "a length too long": (8, b"\x00\x01\x00\x00"),
    "a length too short": (8, b"\x00\x00\x00\x00"),
    "a negative length": (8, b"\xff\x00\x00\x00"),
    "a length of gibibytes": (8, b"\x7f\xff\xff\x00"),
    "an offset ahead": (0, (10_000).to_bytes(8, "big")),
    "a little ahead": (0, (12).to_bytes(8, "big")),
    "an offset behind": (0, bytes(8)),
    "a negative offset": (0, b"\xff"),
    "all of it": (0, b"\xaa" * 61),
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("place", ["middle of a segment", "end of a segment", "start of a segment"])
def test_a_damaged_batch_is_taken_out_alone(what: str, place: str) -> None:
    storage = filled()
    second = logs(storage)[1]
    before = storage.files()[second]
    table = scan_batches(np.frombuffer(before, np.uint8), second)
    row = {"middle of a segment": 2, "end of a segment": len(table) - 1, "start of a segment": 0}[place]
    position, size = int(table.positions[row]), int(table.sizes[row])
    at, damage = DAMAGES[what]
    damage = damage if what != "a little ahead" else int(table.base_offsets[row] + 1).to_bytes(8, "big")
    storage.damage(second, position + at, damage)
    damaged = storage.files()[second][position : position + size]
    log = open_log(storage)
    (cut,) = log.report.cuts
    assert (cut.file, cut.position, cut.size, cut.fate) == (second, position, size, CutReason.QUARANTINED)
    assert storage.files()[cut.kept_as] == damaged
    assert storage.files()[second] == before[:position] + before[position + size :]
    assert log.report.exit_status is ExitStatus.PARTIAL
    lost = {int(table.base_offsets[row]), int(table.last_offsets[row])}
    assert read_offsets(log) == [offset for offset in range(END) if offset not in lost]
    assert log.log_end_offset == END
    with pytest.raises(CorruptionError, match=f"{second} at position {position}: expected"):
        raise cut.error_in("/logs")
    log.close()
    assert not open_log(storage, clean=True).report.cuts
    again = open_log(storage)
    assert not again.report.cuts
    assert not [name for name in storage.files() if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_two_damaged_batches_side_by_side_are_one_cut() -> None:
    storage = filled()
    second = logs(storage)[1]
    table = scan_batches(np.frombuffer(storage.files()[second], np.uint8), second)
    for row in (1, 2):
        storage.damage(second, int(table.positions[row]) + 80, b"\x00\x01\x02")
    log = open_log(storage)
    assert [(cut.position, cut.size) for cut in log.report.cuts] == [
        (int(table.positions[1]), int(table.sizes[1:3].sum()))
    ]
    assert len(read_offsets(log)) == END - 4


def test_bytes_that_were_durable_are_a_loss_at_the_end_too() -> None:
    storage = filled()
    last = logs(storage)[-1]
    table = scan_batches(np.frombuffer(storage.files()[last], np.uint8), last)
    storage.damage(last, int(table.positions[-1]) + 70, b"\xff")
    log = open_log(storage, recovery_point=END)
    assert [cut.fate for cut in log.report.cuts] == [CutReason.QUARANTINED]
    assert log.log_end_offset == END - 2


def test_a_torn_batch_before_an_empty_segment_takes_it_along() -> None:
    storage = UnreliableDirectory()
    log = open_log(storage)
    log.append_records(to_table([Row(b"k", b"v")]))
    log.roll()
    log.abandon()
    storage.damage(f"{FOLDER}/{0:020d}.log", 65, b"\xff")
    log = open_log(storage)
    assert [cut.fate for cut in log.report.cuts] == [CutReason.TORN_TAIL]
    assert log.log_end_offset == 0
    assert len(log.state().segments) == 1


INDEX_DAMAGES = {
    "missing": None,
    "of a part of an entry": lambda data: data[:-3],
    "empty": lambda _: b"",
    "garbage": lambda data: b"\x5a" * len(data),
    "that was not trimmed": lambda data: data + bytes(240),
}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("what", INDEX_DAMAGES)
def test_an_index_that_cannot_be_right_is_derived_again_after_an_orderly_stop(suffix: str, what: str) -> None:
    storage = filled()
    expected = storage.files()
    spoil = INDEX_DAMAGES[what]
    for log_file in logs(storage):
        key = log_file.removesuffix(".log") + suffix
        storage.delete(key)
        if spoil is not None:
            storage.replace(key, spoil(expected[key]))
    log = open_log(storage, clean=True)
    log.close()
    assert {name: data for name, data in storage.files().items() if name.endswith(suffix)} == {
        name: data for name, data in expected.items() if name.endswith(suffix)
    }
    assert not log.report.cuts


def test_indexes_without_a_log_and_stray_snapshots_go() -> None:
    storage = filled()
    expected = storage.files()
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        storage.replace(f"{FOLDER}/{17:020d}{suffix}", b"stray")
    log = open_log(storage, clean=True)
    log.close()
    assert storage.files() == expected
    assert len(log.report.removed) == 4


def test_the_newest_producers_move_to_the_snapshot_of_an_empty_segment_that_was_added(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "idem/data/idem-0", tmp_path / "idem-0")
    newest = max((tmp_path / "idem-0").glob("*.snapshot"))
    expected = newest.read_bytes()
    added = newest.with_name(f"{int(newest.stem) + 20:020d}.snapshot")
    added.with_suffix(".log").touch()
    config = topic_config({"index.interval.bytes": 512})
    PartitionLog.open(PosixStorage(tmp_path), "idem-0", config, ManualClock(NOW_MS), clean=True).close()
    assert not newest.exists()
    assert added.read_bytes() == expected


def test_after_a_cut_the_age_of_records_without_timestamps_begins_again(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path)
    config = topic_config({"retention.ms": 1000})
    file = tmp_path / FOLDER / f"{0:020d}.log"
    log = PartitionLog.open(storage, FOLDER, config, ManualClock(NOW_MS))
    log.append_batches(encode_records(to_table([Row(b"k", b"v", (), -1)]), 1000).data)
    log.abandon()
    with file.open("ab") as torn:
        torn.write(b"torn")
    os.utime(file, ns=(0, 0))
    clock = ManualClock(NOW_MS)
    log = PartitionLog.open(storage, FOLDER, config, clock)
    clock.advance(1000)
    assert not log.apply_retention().deletions
    clock.advance(1)
    assert log.apply_retention().deletions


def test_aborted_records_stay_hidden_when_a_transaction_index_is_lost(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "txn/data/txn-0", tmp_path / "txn-0")
    config = topic_config({"index.interval.bytes": 512})

    def committed() -> list[int]:
        log = PartitionLog.open(PosixStorage(tmp_path), "txn-0", config, ManualClock(NOW_MS), clean=True)
        parts = log.read(0, log.log_end_offset, Isolation.READ_COMMITTED)
        log.close()
        return [offset for part in parts for offset in part["offset"].to_pylist()]

    expected = committed()
    indexes = {path: path.read_bytes() for path in (tmp_path / "txn-0").glob("*.txnindex")}
    for number, path in enumerate(sorted(indexes)):
        path.unlink() if number % 2 else path.write_bytes(path.read_bytes()[:-1])
    assert committed() == expected
    assert {path: path.read_bytes() for path in indexes} == indexes


def test_a_snapshot_with_a_wrong_crc_is_not_believed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "idem/data/idem-0", tmp_path / "idem-0")
    newest = max((tmp_path / "idem-0").glob("*.snapshot"))
    expected = newest.read_bytes()
    newest.write_bytes(expected[:-1] + bytes([expected[-1] ^ 1]))
    config = topic_config({"index.interval.bytes": 512})
    log = PartitionLog.open(PosixStorage(tmp_path), "idem-0", config, ManualClock(NOW_MS), clean=True)
    assert newest.name in log.report.removed
    log.close()
    assert newest.read_bytes() == expected


def test_a_log_that_was_last_written_before_1970_is_loaded() -> None:
    storage = filled()
    for name in logs(storage):
        storage.set_modified(name, -1_000_000_000)
    log = open_log(storage)
    assert read_offsets(log) == list(range(END))
    assert {segment.modified_ms for segment in log.state().segments} == {0}


def test_a_log_whose_name_is_no_offset_is_refused() -> None:
    storage = filled()
    storage.replace(f"{FOLDER}/12.log", b"")
    with pytest.raises(CorruptionError, match="a name of 20 digits"):
        open_log(storage)


def test_random_damage_loses_no_intact_batch_and_shows_no_damaged_one() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        storage = filled()
        records = {}
        for name in logs(storage):
            data = storage.files()[name]
            table = scan_batches(np.frombuffer(data, np.uint8), name)
            hit = set()
            for _ in range(chance.choice([1, 2, 3])):
                at = chance.randrange(len(data))
                storage.damage(name, at, chance.randbytes(chance.choice([1, 1, 8, 30])))
            after = storage.files()[name]
            for row in range(len(table)):
                start, end = int(table.positions[row]), int(table.positions[row] + table.sizes[row])
                # A leader epoch has no CRC, and no other field that would tell.
                if (
                    after[start : start + 12] + after[start + 16 : end]
                    != data[start : start + 12] + data[start + 16 : end]
                ):
                    hit.add(row)
            for row in set(range(len(table))) - hit:
                records.update(dict.fromkeys(range(int(table.base_offsets[row]), int(table.last_offsets[row]) + 1)))
        log = open_log(storage)
        found = read_offsets(log)
        assert set(found) >= records.keys(), f"seed {seed}"
        # Offsets that moved up into a gap that other damage made cannot be told from right ones.
        assert len(found) - len(records) <= 2, f"seed {seed}"
        log.close()
        assert read_offsets(open_log(storage)) == found


@pytest.mark.parametrize("action", ["roll", "retention", "close", "recover"])
def test_a_kill_between_any_two_changes_of_files_loses_nothing(action: str) -> None:
    """The same action, killed before its first, second... change of a file; every other time the power is cut, too."""
    stops = 0
    while True:
        storage = filled()
        log = open_log(storage, clean=True)
        log.append_records(to_table([Row(b"more", b"v")] * 2))
        log.flush()
        if action == "retention":
            log.config = topic_config({"segment.bytes": 1024, "retention.bytes": 0, "retention.ms": -1})
        if action == "recover":
            log.abandon()
            storage.damage(logs(storage)[0], 300, b"\xff\xff")
        storage.steps_left = stops
        actions: dict[str, Callable[[], object]] = {
            "roll": log.roll,
            "retention": log.apply_retention,
            "close": log.close,
            "recover": partial(open_log, storage),
        }
        try:
            actions[action]()
            finished = True
        except StoppedError:
            finished = False
        storage.steps_left = None
        log.abandon()
        if stops % 2:
            storage.cut_power(random.Random(stops))
        again = open_log(storage)
        found = read_offsets(again)
        everything = list(range(END + 2))
        match action:
            case "retention":
                assert everything[len(everything) - len(found) :] == found
                assert again.log_end_offset == END + 2
            case "recover":
                assert END - 2 <= len(found) < END + 2
                assert set(found) < set(everything)
                kept = [data for name, data in storage.files().items() if name.endswith(".corrupt")]
                assert kept
            case _:
                assert found == everything
        again.append_records(to_table([Row(b"more", b"v")]))
        again.close()
        assert read_offsets(open_log(storage, clean=True))[:-1] == found
        stops += 1
        if finished:
            break
    assert stops > 1


def test_an_error_of_the_storage_ends_the_writing_until_the_log_is_loaded_again() -> None:
    storage = UnreliableDirectory()
    log = open_log(storage)
    log.append_records(to_table([Row(b"k", b"v")]))
    storage.failure = StorageFullError("disk", "no space left")
    with pytest.raises(StorageFullError):
        log.append_records(to_table([Row(b"k", b"v")]))
    storage.failure = None
    with pytest.raises(StorageFullError):
        log.append_records(to_table([Row(b"k", b"v")]))
    assert read_offsets(log) == [0]
    log.abandon()
    log = open_log(storage)
    assert log.append_records(to_table([Row(b"k", b"v")])) == (1, 2)


def test_a_full_disk_before_anything_has_changed_leaves_the_log_as_it_was() -> None:
    storage = UnreliableDirectory()
    log = open_log(storage)
    log.append_records(to_table([Row(b"k", b"v")]))
    storage.failure = StorageFullError("disk", "no space left")
    for change in (log.roll, partial(log.become_leader, 4)):
        with pytest.raises(StorageFullError):
            change()
    storage.failure = None
    assert log.append_records(to_table([Row(b"k", b"v")])) == (1, 2)
    assert (log.roll(), log.leader_epoch) == (2, 0)
    log.append_records(to_table([Row(b"k", b"v")]))
    storage.failure = StorageFullError("disk", "no space left")
    with pytest.raises(StorageFullError):
        log.flush()
    storage.failure = None
    with pytest.raises(StorageFullError):
        log.roll()
    assert not log.is_writable
    log.abandon()
    assert read_offsets(open_log(storage)) == [0, 1, 2]


def test_leader_epochs_follow_the_log() -> None:
    storage = UnreliableDirectory()
    log = open_log(storage)
    checkpoint = f"{FOLDER}/leader-epoch-checkpoint"
    assert storage.files()[checkpoint] == b"0\n1\n0 0\n"
    log.append_records(to_table([Row(b"k", b"v")] * 3))
    log.become_leader(4)
    log.append_records(to_table([Row(b"k", b"v")] * 3))
    log.become_leader(7)
    assert storage.files()[checkpoint] == b"0\n3\n0 0\n4 3\n7 6\n"
    log.append_records(to_table([Row(b"k", b"v")] * 3))
    log.delete_records(4)
    assert storage.files()[checkpoint] == b"0\n2\n4 4\n7 6\n"
    log.abandon()
    storage.delete(checkpoint)
    open_log(storage)
    assert storage.files()[checkpoint] == b"0\n3\n0 0\n4 3\n7 6\n"


def test_a_batch_with_stamped_garbage_offsets_is_stamped_anew() -> None:
    storage = UnreliableDirectory()
    log = open_log(storage)
    run = encode_records(to_table([Row(b"k", b"v")] * 3), 10_000)
    stamp_batches(run.data, run.sizes, 2**40, 99)
    assert log.append_batches(run.data) == (0, 3)


def two_segments_of_another_program(storage: UnreliableDirectory) -> bytes:
    """Write a log of two segments whose bytes are not synced, as a killed broker can leave it. Returns the first .log."""
    source = UnreliableDirectory()
    log = open_log(source)
    for number in range(2):
        log.roll()
        log.append_records(to_table([Row(b"k", b"%064d" % number, (), NOW_MS)]))
    log.close()
    contents = source.files()
    storage.make_folder(FOLDER)
    for key in sorted(key for key in contents if key.endswith(".log")):
        file = storage.open(key)
        file.write_at(0, [contents[key]])
        file.close()
    return contents[f"{FOLDER}/{0:020d}.log"]


def test_a_flush_makes_closed_segments_durable_that_another_program_had_not_synced() -> None:
    for ends_by in ("flush", "roll", "close"):
        for seed in range(20):
            storage = UnreliableDirectory()
            first = two_segments_of_another_program(storage)
            log = open_log(storage)
            assert log.recovery_point == 0
            getattr(log, ends_by)()
            assert log.recovery_point == 2
            storage.cut_power(random.Random(seed))
            assert storage.files()[f"{FOLDER}/{0:020d}.log"] == first, (ends_by, seed)


def test_with_the_option_a_log_ends_at_its_damage_as_in_kafka(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path)
    log = open_log(storage)
    for number in range(12):
        log.append_records(to_table([Row(b"k", b"%064d" % number, (), NOW_MS)]))
        if number % 4 == 3:
            log.roll()
    log.close()
    path = tmp_path / FOLDER / f"{4:020d}.log"
    data = bytearray(path.read_bytes())
    batch = len(data) // 4
    data[batch + 80] ^= 1
    path.write_bytes(data)
    log = PartitionLog.open(storage, FOLDER, CONFIG, ManualClock(NOW_MS), truncates=True)
    assert (log.log_end_offset, len(log.state().segments)) == (5, 2)
    (cut,) = log.report.cuts
    assert (cut.position, cut.size, cut.fate) == (batch, 3 * batch, CutReason.TRUNCATED)
    assert (tmp_path / cut.kept_as).read_bytes() == data[batch:]
    assert [row.value for part in log.read(0, 5) for row in to_rows(part)] == [b"%064d" % number for number in range(5)]
    assert log.append_records(to_table([Row(b"k", b"new", (), NOW_MS)])).first_offset == 5
    log.close()
    assert PartitionLog.open(storage, FOLDER, CONFIG, ManualClock(NOW_MS), clean=True).report.cuts == []


def test_with_the_option_a_torn_tail_stays_a_torn_tail(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path)
    log = open_log(storage)
    log.append_records(to_table([Row(b"k", b"v", (), NOW_MS)]))
    log.close()
    with (tmp_path / FOLDER / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    log = PartitionLog.open(storage, FOLDER, CONFIG, ManualClock(NOW_MS), truncates=True)
    assert [cut.fate for cut in log.report.cuts] == [CutReason.TORN_TAIL]
    assert log.log_end_offset == 1
