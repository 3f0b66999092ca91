"""`lakelog topics import` and `lakelog topics export`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from storage_engine.record.batch import scan_batches
from tests.lakelog.cli.conftest import line

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.posix("reads the view")
def test_topics_go_out_and_come_back(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "orders", "--partitions", "2")
    lakelog("topics", "create", "others")
    lakelog("append", "--topic", "orders", "--partition", "1", stdin=[line(b"k", b"v", timestamp=n) for n in range(5)])
    exported = lakelog("topics", "export", str(tmp_path / "out"), "--topic", "orders")
    assert exported.status == 0
    assert exported.out == "exported topic orders: 2 partitions, 106 B\n"
    assert not (tmp_path / "out" / "others-0").exists()
    again = lakelog("topics", "export", str(tmp_path / "out"))
    assert again.status == 1
    assert "already exists and is not an empty directory" in again.err

    nothing_new = lakelog("topics", "import", str(tmp_path / "out"))
    assert (nothing_new.status, nothing_new.out) == (0, "found no new records of topic orders: 2 partitions\n")
    before = lakelog("read", "--topic", "orders").out
    lakelog("topics", "delete", "orders")
    imported = lakelog("topics", "import", str(tmp_path / "out"), "--config", "retention.ms=-1")
    assert imported.status == 0
    assert imported.out == "partition 1: offsets 0 to 4, 106 B\nimported topic orders: 2 partitions\n"
    assert lakelog("read", "--topic", "orders").out == before
    assert (tmp_path / "root" / "log" / "orders-1" / "00000000000000000000.log").stat().st_size == 106
    assert "retention.ms" in lakelog("topics", "describe", "orders").out


def test_what_is_left_out_is_named(lakelog, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "ooo" / "data", source)
    (source / "__consumer_offsets-0").mkdir()
    (source / "__transaction_state-0").mkdir()
    (source / ".kafka_cleanshutdown").unlink()
    with max(source.glob("ooo-0/*.log")).open("ab") as log:
        log.write(b"torn")
    imported = lakelog("topics", "import", str(source))
    assert imported.status == 0
    notes = imported.err.splitlines()
    assert len(notes) == 2
    assert "__transaction_state-0: not imported" in notes[0]
    assert "ooo-0: the last 4 bytes" in notes[1]


def without_the_end(folder: Path) -> str:
    for file in folder.glob(f"{254:020}.*"):
        file.unlink()
    return (
        f"{folder}: the recovery point is 300 (recovery-point-offset-checkpoint), but the log ends at offset 254: the records"
        " from 254 on are lost"
    )


def without_the_middle(folder: Path) -> str:
    emptied = folder / f"{127:020}.log"
    emptied.write_bytes(b"")
    return f"{emptied}: is empty, but its indexes have entries: the records from offset 127 to 253 are lost"


def without_logs(folder: Path) -> str:
    for file in folder.glob("0*"):
        file.unlink()
    return f"{folder}: the recovery point is 300 (recovery-point-offset-checkpoint), but the log ends at offset 0"


@pytest.mark.parametrize("damage", [without_the_end, without_the_middle, without_logs])
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_has_lost_records_is_not_imported_but_can_be_read(
    lakelog, tmp_path: Path, damage: Callable[[Path], str], clean: bool
) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "multi" / "data", source)
    if not clean:
        (source / ".kafka_cleanshutdown").unlink()
    problem = damage(source / "multi-0")
    imported = lakelog("topics", "import", str(source))
    assert (imported.status, imported.out) == (1, "")
    assert problem in imported.err
    read = lakelog("read", "--kafka-dir", str(source), "--topic", "multi")
    assert read.status == 0
    assert problem in read.err


@pytest.mark.parametrize("damage", [without_the_end, without_the_middle, without_logs])
def test_offsets_of_a_log_that_has_lost_records_end_with_status_4(
    lakelog, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "multi" / "data", source)
    (source / ".kafka_cleanshutdown").touch()
    problem = damage(source / "multi-0")
    ended = lakelog("offsets", "--kafka-dir", str(source))
    whole = problem if problem.endswith("are lost") else f"{problem}: the records from 0 on are lost"
    of_what = "file" if damage is without_the_middle else "log"
    remedy = f"Restore the {of_what} from a backup or a replica."
    assert (ended.status, ended.err) == (4, f"lakelog: {whole}. {remedy}\n")


def test_a_log_without_a_middle_segment_is_not_imported_but_can_be_read(lakelog, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "multi" / "data", source)
    (source / ".kafka_cleanshutdown").touch()
    whole = lakelog("read", "--kafka-dir", str(source), "--topic", "multi", "--partition", "0").out.splitlines()
    missing = source / f"multi-0/{127:020}.log"
    missing.unlink()
    problem = (
        f"lakelog: {missing} at position 0: expected a segment, because it had an index, found no such file. The offsets 127 to"
        " 253 are missing. Restore the file from a backup or a replica.\n"
    )
    imported = lakelog("topics", "import", str(source))
    assert (imported.status, imported.out, imported.err) == (1, "", problem)
    assert lakelog("topics", "list").out == ""
    read = lakelog("read", "--kafka-dir", str(source), "--topic", "multi", "--partition", "0")
    assert (read.status, read.out.splitlines(), read.err) == (0, whole[:127] + whole[254:], problem)
    offsets = lakelog("offsets", "--kafka-dir", str(source))
    assert (offsets.status, offsets.out, offsets.err) == (4, "multi:0:300\nmulti:1:300\nmulti:2:300\n", problem)
    compacted = lakelog("compact", "--kafka-dir", str(source), "--topic", "multi", "--force")
    assert (compacted.status, compacted.err) == (4, problem)


@pytest.mark.parametrize(
    ("data", "file", "position", "bit", "expected", "found"),
    [
        (
            "codec_snappy/data", f"codec_snappy-0/{552:020}.log", 5619, 4, "599 to 2147484199",
            "17592186045015 to 17592186045015",
        ),
        (
            "legacy/data", f"legacy_v0_gzip-0/{0:020}.log", 12298, 0, "189 to 2147483647", "189 to 1099511627967",
        ),
    ],
)  # fmt: skip
def test_offsets_that_a_segment_cannot_have_are_damage(
    lakelog, tmp_path: Path, data: str, file: str, position: int, bit: int, expected: str, found: str
) -> None:
    """Offsets are outside the CRC."""
    source = tmp_path / "kafka"
    name = file.partition("-")[0]
    shutil.copytree(GOLDEN / data / f"{name}-0", source / f"{name}-0")
    (source / ".kafka_cleanshutdown").touch()
    log = source / file
    changed = bytearray(log.read_bytes())
    changed[position + 2] ^= 1 << bit
    log.write_bytes(changed)
    problem = f"at position {position}: expected offsets from {expected}, found a batch with offsets {found}."
    imported = lakelog("topics", "import", str(source))
    repair = f"Remove the damage with `lakelog verify --repair --kafka-dir {source}`, which stores a copy of the removed bytes."
    assert (imported.status, imported.out, imported.err) == (1, "", f"lakelog: {file} {problem} {repair}\n")
    assert lakelog("topics", "list").out == ""
    for command in ("read", "offsets"):
        ended = lakelog(command, "--kafka-dir", str(source))
        assert (ended.status, ended.out, ended.err) == (1, "", f"lakelog: {file} {problem}\n")

    lakelog("verify", "--repair", "--kafka-dir", str(source))
    assert lakelog("topics", "import", str(source)).status == 0
    assert lakelog("read", "--topic", name).out == lakelog("read", "--kafka-dir", str(source)).out


def test_the_groups_of_a_broker_come_along_and_are_given_back(lakelog, tmp_path: Path) -> None:
    """tests/golden/groups/described.txt is what kafka-consumer-groups described while the broker ran. One group committed in
    transactions, of which one was aborted; one in a transaction that is still open, and one after this transaction began."""
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "groups", source)
    imported = lakelog("topics", "import", str(source), "--topic", "orders")
    of_broker = sorted(
        (group, int(partition), int(offset), int(lag))
        for group, _, partition, offset, _, lag in re.findall(
            r"^(\S.*?\S) +(orders) +(\d+) +(\d+) +(\d+) +(\d+) ", (source / "described.txt").read_text(), re.MULTILINE
        )
    )
    names = sorted({group for group, *_ in of_broker})
    assert names == ["assigned é", "billing", "exactly-once", "expiring", "modern"]
    assert (imported.status, imported.err) == (0, "")
    assert imported.out.splitlines()[-2:] == [
        "imported topic orders: 4 partitions", "imported 5 groups of topic orders",
    ]  # fmt: skip

    def described() -> list[tuple[str, int, int, int]]:
        found = lakelog("groups", "describe", "--all-groups", "--json").records
        return [(each["group"], each["partition"], each["current_offset"], each["lag"]) for each in found]

    assert described() == of_broker
    assert len(lakelog("read", "--topic", "orders", "--group", "modern", "--commit").records) == 1
    moved = [("modern", 0, 9, 1) if each[:2] == ("modern", 0) else each for each in of_broker]
    again = lakelog("topics", "import", str(source), "--topic", "orders")
    assert (again.status, "group" in again.out, described()) == (0, False, moved)

    assert lakelog("topics", "export", str(tmp_path / "out")).status == 0
    assert lakelog("groups", "delete", "--group", "modern").status == 0
    assert "imported 1 group of topic orders" in lakelog("topics", "import", str(source), "--topic", "orders").out
    assert described() == of_broker
    given = (tmp_path / "out" / "consumer-offsets.csv").read_text().splitlines()
    assert given == [f"{group},orders,{partition},{offset}" for group, partition, offset, _ in moved]


def test_an_offset_counts_only_for_its_topic_and_damage_leaves_the_topics(lakelog, tmp_path: Path) -> None:
    """All batches of __consumer_offsets but one of group expiring have the topic's id."""
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "groups", source)
    for number in range(4):
        (source / f"orders-{number}" / "partition.metadata").write_text("version: 0\ntopic_id: Yhcev0_wR0KO9Ow48j-3EQ")
    imported = lakelog("topics", "import", str(source), "--topic", "orders")
    assert imported.out.splitlines()[-1] == "imported 2 groups of topic orders"
    found = lakelog("groups", "describe", "--all-groups", "--json").records
    assert [each["group"] for each in found] == ["exactly-once", "expiring"]

    log = source / "__consumer_offsets-0" / f"{0:020d}.log"
    content = log.read_bytes()
    table = scan_batches(np.frombuffer(content, np.uint8), str(log))
    value = content.index(b"\x00\x00\x00\x00\x00\x00\x00\x02\x00\x07expires") - 2
    row = int(np.searchsorted(table.positions, value)) - 1
    first = int(table.positions[row])
    last = first + int(table.sizes[row])
    for changed, seal, place, told in (
        (value + 1, False, first, "CRC"),
        (value + 1, True, first, f"a record at offset {table.base_offsets[row]} that cannot be decoded: version 9"),
    ):
        damaged = bytearray(content)
        damaged[changed] = 9
        if seal:
            damaged[first + 17 : first + 21] = crc32c(damaged[first + 21 : last]).to_bytes(4)
        log.write_bytes(damaged)
        lakelog("topics", "delete", "orders")
        again = lakelog("topics", "import", str(source), "--topic", "orders")
        assert (again.status, "imported topic orders: 4 partitions" in again.out) == (4, True)
        assert f"__consumer_offsets-0/{log.name} at position {place}: " in again.err
        assert told in again.err
        assert lakelog("groups", "describe", "--all-groups", "--json").records == []


def test_a_topic_that_cannot_come_in_stops_no_other(lakelog, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "ooo" / "data", source)
    shutil.copytree(source / "ooo-0", source / "gone-1")
    imported = lakelog("topics", "import", str(source))
    assert imported.status == 4
    assert "no folder gone-0" in imported.err
    assert "imported topic ooo" in imported.out
    alone = lakelog("topics", "import", str(source), "--topic", "gone")
    assert alone.status == 1
    assert "no folder gone-0" in alone.err


@pytest.mark.posix("moves files, by links")
def test_moved_files_are_gone_there(lakelog, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "ooo" / "data", source)
    assert lakelog("topics", "import", str(source), "--move").status == 0
    assert not (source / "ooo-0").exists()
    assert len(lakelog("read", "--topic", "ooo").records) == 600


def test_mistakes_are_reported(lakelog, tmp_path: Path) -> None:
    absent = lakelog("topics", "import", str(tmp_path / "absent"))
    assert absent.status == 1
    assert "is not a directory" in absent.err
    bad = lakelog("topics", "import", str(GOLDEN / "ooo" / "data"), "--config", "retention.ms=soon")
    assert bad.status == 2
    assert lakelog("topics", "export", str(tmp_path / "out"), "--topic", "absent").status == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.posix("the root is inside a local folder")
def test_nothing_is_exported_into_the_root(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "orders")
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for place in (tmp_path / "root/log/out", tmp_path / "root/out", tmp_path / "link/meta/out"):
        ended = lakelog("topics", "export", str(place))
        assert (ended.status, ended.out) == (2, "")
        assert f"{place}: is inside the root {tmp_path / 'root'}" in ended.err
        assert not place.exists()
    assert lakelog("verify").status == 0
