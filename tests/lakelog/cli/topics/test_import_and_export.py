"""Tests `lakelog topics import` and `lakelog topics export`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lakelog.cli.conftest import line

GOLDEN = Path(__file__).parents[3] / "golden"


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
    assert (nothing_new.status, nothing_new.out) == (0, "imported the new records of topic orders: 2 partitions\n")
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
    (source / ".kafka_cleanshutdown").unlink()
    with max(source.glob("ooo-0/*.log")).open("ab") as log:
        log.write(b"torn")
    imported = lakelog("topics", "import", str(source))
    assert imported.status == 0
    notes = imported.err.splitlines()
    assert len(notes) == 2
    assert "__consumer_offsets-0: not imported" in notes[0]
    assert "ooo-0: the last 4 bytes" in notes[1]


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


def test_moved_files_are_gone_there(lakelog, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    shutil.copytree(GOLDEN / "ooo" / "data", source)
    assert lakelog("topics", "import", str(source), "--move").status == 0
    assert not (source / "ooo-0").exists()
    assert len(lakelog("read", "--topic", "ooo").records) == 600


def test_mistakes_are_told(lakelog, tmp_path: Path) -> None:
    absent = lakelog("topics", "import", str(tmp_path / "absent"))
    assert absent.status == 1
    assert "is not a directory" in absent.err
    bad = lakelog("topics", "import", str(GOLDEN / "ooo" / "data"), "--config", "retention.ms=soon")
    assert bad.status == 2
    assert lakelog("topics", "export", str(tmp_path / "out"), "--topic", "absent").status == 1
    assert not (tmp_path / "out").exists()


def test_nothing_is_exported_into_the_root(lakelog, tmp_path: Path) -> None:
    lakelog("topics", "create", "orders")
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for place in (tmp_path / "root/log/out", tmp_path / "root/out", tmp_path / "link/meta/out"):
        ended = lakelog("topics", "export", str(place))
        assert (ended.status, ended.out) == (2, "")
        assert f"{place}: is inside the root {tmp_path / 'root'}" in ended.err
        assert not place.exists()
    assert lakelog("verify").status == 0
