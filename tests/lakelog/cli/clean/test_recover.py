"""`lakelog recover`: the records, files and lines after the recovery of whole log directories."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.decoding import NO_END
from storage_engine.storage.storage_opening import open_directory
from tests.in_process import Ended
from tests.lakelog.cli.clean.test_log_manager import untimed
from tests.storage_engine.kafka_dir.upkeep.brokers_directory import config_record, known, make_directory, rows
from tests.storage_engine.verify.directories import contents, copied, flip

CHECKPOINTS = {
    ".kafka_cleanshutdown", ".lock", "cleaner-offset-checkpoint", "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
}  # fmt: skip


def crashed(directory: Path) -> Path:
    """The directory, as after a crash before the first checkpoint."""
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (directory / name).unlink()
    return directory


def records(lakelog, directory: Path) -> list[dict[str, object]]:
    ended: Ended = lakelog("read", "--kafka-dir", str(directory), "--isolation", "read_uncommitted")
    assert (ended.status, ended.err) == (0, "")
    return ended.records


def middle_batch(directory: Path, folder: str) -> tuple[Path, int, int, range]:
    """A batch in the middle of the first .log of a folder: the file, its position, its size and its offsets."""
    log = min((directory / folder).glob("*.log"))
    file = SegmentFile(f"{folder}/{log.stem}", int(log.stem), log.stat().st_size, NO_END)
    (chunk,) = read_chunks(open_directory(directory), file)
    table, row = chunk.table, len(chunk.table) // 2
    offsets = range(int(table.base_offsets[row]), int(table.last_offsets[row]) + 1)
    return log, int(table.positions[row]), int(table.sizes[row]), offsets


def recover(lakelog, *directories: Path, more: tuple[str, ...] = ()) -> Ended:
    ended: Ended = lakelog("recover", *[word for each in directories for word in ("--kafka-dir", str(each))], *more)
    return ended


def test_a_damaged_batch_costs_only_itself(lakelog, tmp_path: Path) -> None:
    data = crashed(copied("multi", tmp_path))
    before, files = records(lakelog, data), contents(data)
    log, position, size, offsets = middle_batch(data, "multi-1")
    damaged = bytearray(log.read_bytes())
    damaged[position + 70] ^= 1
    log.write_bytes(damaged)
    ended = recover(lakelog, data)
    assert ended.status == 4
    assert records(lakelog, data) == [
        each for each in before if each["partition"] != 1 or each["offset"] not in offsets
    ]
    saved = log.with_name(f"{log.stem}.{position}.corrupt")
    assert saved.read_bytes() == damaged[position : position + size]
    assert json.loads((data / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": -1}
    changed = {name for name, content in contents(data).items() if files.get(name) != content}
    assert {name for name in changed if name.endswith(".log")} == {f"multi-1/{log.name}"}
    assert f"{log}" in ended.err
    assert f"The {size} bytes were cut out and saved as multi-1/{saved.name}" in ended.err


@pytest.mark.parametrize("was_closed", [True, False])
def test_zeros_behind_the_records_are_no_loss(lakelog, tmp_path: Path, was_closed: bool) -> None:
    data = copied("multi", tmp_path) if was_closed else crashed(copied("multi", tmp_path))
    before = records(lakelog, data)
    log = max((data / "multi-0").glob("*.log"))
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(bytes(500))
    ended = recover(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    line = f"{data}: multi-0/{log.name} at position {size}: torn tail, 500 bytes, all zero; expected"
    assert len([each for each in ended.out.splitlines() if line in each]) == 1
    assert log.stat().st_size == size
    assert records(lakelog, data) == before


def test_zeros_instead_of_records_are_a_loss(lakelog, tmp_path: Path) -> None:
    data = copied("multi", tmp_path)
    log = max((data / "multi-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-3000] + bytes(3000))
    ended = recover(lakelog, data)
    assert ended.status == 4
    assert re.search(
        r"/multi-0: the recovery point is 300 .* the log ends at offset 274: the records from 274 on", ended.err
    )


@pytest.mark.parametrize("name", ["multi-2147483648", "multi-99999999999"])
def test_a_number_that_is_no_partition_is_refused_and_changes_nothing(lakelog, tmp_path: Path, name: str) -> None:
    data = copied("multi", tmp_path)
    (data / name).mkdir()
    before = contents(data)
    ended = recover(lakelog, data)
    assert ended.status != 0
    assert f"{data}/{name}: is not a partition's folder" in ended.err
    assert {**contents(data), ".lock": b""} == {**before, ".lock": b""}


def test_kafkas_way_ends_the_log_at_the_damage(lakelog, tmp_path: Path) -> None:
    data = crashed(copied("multi", tmp_path))
    before = records(lakelog, data)
    log, position, _, offsets = middle_batch(data, "multi-1")
    flip(log, position + 70)
    assert recover(lakelog, data, more=("--truncate-at-damage",)).status == 4
    assert records(lakelog, data) == [
        each for each in before if each["partition"] != 1 or int(str(each["offset"])) < offsets.start
    ]


def test_the_lines_are_those_of_the_log_manager(lakelog, tmp_path: Path) -> None:
    """Only the lines about loading and closing are printed, and nothing is retained or compacted."""
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "1", "segment.bytes": "1024"}
    make_directory(first, {"a": rows(60, keys=3, age_ms=9_000), "b": rows(3)}, known("a", settings, (1, 2)))
    make_directory(second, {"c": rows(5)})
    (second / "meta.properties").write_bytes((first / "meta.properties").read_bytes())
    (first / "replication-offset-checkpoint").unlink()
    first_records = records(lakelog, first)
    crashed(first)
    with max((first / "a-0").glob("*.log")).open("ab") as log:
        log.write(b"torn")
    tail = log.name
    before = records(lakelog, second)
    files = contents(second)
    ended = recover(lakelog, first, second)
    assert (ended.status, ended.err) == (0, "")
    both = f"{first}, {second}"
    lines = untimed(ended.out)
    assert lines[:3] == [
        f"{first}/__cluster_metadata-0: read up to offset 5",
        f"{both}: topic __cluster_metadata: not opened: KRaft alone opens it",
        f"{first}: opened, was not closed cleanly, has 2 open logs",
    ]
    assert lines[3].startswith(f"{first}/a-0: loaded, offsets 0 to 60; read 9 segments completely")
    assert Path(tail).name in lines[4]
    assert "torn tail, 4 bytes" in lines[4]
    assert lines[5].startswith(f"{first}/b-0: loaded, offsets 0 to 3; read 1 segment completely")
    assert lines[6:] == [
        f"{second}: opened, was closed cleanly, has 1 open log",
        f"{second}/c-0: loaded, offsets 0 to 5",
        f"{first}: closed, wrote .kafka_cleanshutdown",
        f"{second}: closed, wrote .kafka_cleanshutdown",
    ]
    assert records(lakelog, first) == first_records
    assert records(lakelog, second) == before
    assert {name for name, content in contents(second).items() if files.get(name) != content} <= CHECKPOINTS


def test_metadata_and_tiered_topics_are_left_alone(lakelog, tmp_path: Path) -> None:
    data = tmp_path / "data"
    metadata = [*known("a", {"remote.storage.enable": "true"}), *known("b"), config_record(2, "b", "retention.ms", "1")]
    make_directory(data, {"a": rows(20), "b": rows(20)}, metadata)
    crashed(data)
    before = contents(data)
    ended = recover(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    lines = untimed(ended.out)
    assert (
        f"{data}: topic a: not opened: remote.storage.enable is set, so the topic has segments in a remote storage"
        in lines
    )
    assert lines[-1].startswith(
        f"{data}: closed, did not write .kafka_cleanshutdown, because some logs were not opened"
    )
    after = contents(data)
    for folder in ("a-0/", "__cluster_metadata-0/"):
        assert {name: after[name] for name in after if name.startswith(folder)} == {
            name: before[name] for name in before if name.startswith(folder)
        }


def test_a_topic_that_may_be_tiered_is_left_alone(lakelog, tmp_path: Path) -> None:
    """A broker has stored indexes of remote segments in the directory, and nothing is known about the topic."""
    data = tmp_path / "data"
    make_directory(data, {"a": rows(20), "__consumer_offsets": rows(20)})
    (data / "remote-log-index-cache").mkdir()
    crashed(data)
    before = contents(data)
    ended = recover(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    assert f"{data}: topic a: not opened: remote storage is enabled, and its settings are not known" in ended.out
    assert f"{data}/__consumer_offsets-0: loaded, offsets 0 to 20" in ended.out
    after = contents(data)
    assert all(after[name] == before[name] for name in before if name.startswith("a-0/"))
    assert not (data / ".kafka_cleanshutdown").exists()


def test_a_second_recovery_finds_nothing_to_do(lakelog, tmp_path: Path) -> None:
    data = crashed(copied("txn", tmp_path))
    assert recover(lakelog, data).status == 0
    before = contents(data)
    ended = recover(lakelog, data)
    assert (ended.status, ended.err) == (0, "")
    assert contents(data) == before
    assert not [line for line in untimed(ended.out) if "completely" in line or "rebuilt" in line]


def test_directories_that_cannot_be_used_are_named(lakelog, tmp_path: Path) -> None:
    data = crashed(copied("idem", tmp_path))
    ended = recover(lakelog, data, data / "../idem")
    assert (ended.status, ended.out) == (2, "")
    assert f"--kafka-dir: names {data} twice" in ended.err
    assert not (data / ".kafka_cleanshutdown").exists()
    ended = recover(lakelog, tmp_path / "none", data)
    assert ended.status == 4
    assert f"{tmp_path / 'none'}: is not a directory" in ended.err
    assert (data / ".kafka_cleanshutdown").exists()
    ended = recover(lakelog, tmp_path / "none")
    assert (ended.status, ended.out) == (1, "")
    with open_directory(data).hold_exclusive(".lock"):
        before = contents(data)
        ended = recover(lakelog, data)
        assert (ended.status, ended.out, contents(data)) == (1, "", before)
        assert "is already locked" in ended.err
    ended = lakelog("recover")
    assert ended.status == 2


@pytest.mark.posix("looks at the view")
def test_a_root_is_refused(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "t")
    ended = recover(lakelog, tmp_path / "root/log")
    assert ended.status == 2
    assert "is the view (log/) of a root" in ended.err
