"""`lakelog read` and `lakelog offsets` on a plain Kafka log directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.lakelog.cli.conftest import line
from tests.storage_engine.verify.directories import contents

GOLDEN = Path(__file__).parents[2] / "golden"


def test_read_prints_committed_records_unless_told_otherwise(lakelog) -> None:
    for arguments, isolation in (([], "read_committed"), (["--isolation", "read_uncommitted"], "read_uncommitted")):
        ended = lakelog("read", "--kafka-dir", str(GOLDEN / "txn/data"), "--topic", "txn", *arguments)
        expected = (GOLDEN / f"txn/records.{isolation}.jsonl").read_bytes().splitlines()
        found = [json.loads(line) for line in ended.out.splitlines()]
        assert ended.status == 0
        assert [record["offset"] for record in found] == [json.loads(line)["offset"] for line in expected]


def test_without_a_topic_all_partitions_of_the_directory_are_read(lakelog) -> None:
    data = str(GOLDEN / "multi/data")
    assert lakelog("offsets", "--kafka-dir", data).out == "multi:0:300\nmulti:1:300\nmulti:2:300\n"
    read = lakelog("read", "--kafka-dir", data)
    assert [json.loads(line)["partition"] for line in read.out.splitlines()] == [0] * 300 + [1] * 300 + [2] * 300
    one = lakelog("read", "--kafka-dir", data, "--partition", "1", "--from", "299")
    assert [json.loads(line)["offset"] for line in one.out.splitlines()] == [299]


def test_what_is_left_out_is_named(lakelog, tmp_path) -> None:
    shutil.copytree(GOLDEN / "codec_none/data", tmp_path / "data")
    (tmp_path / "data/.kafka_cleanshutdown").unlink()
    with max((tmp_path / "data/codec_none-0").glob("*.log")).open("ab") as log:
        log.write(bytes(7))
    ended = lakelog("offsets", "--kafka-dir", str(tmp_path / "data"))
    assert (ended.status, ended.out) == (0, "codec_none:0:600\n")
    assert "the last 7 bytes" in ended.err


def test_mistakes_are_named(lakelog, tmp_path) -> None:
    data = str(GOLDEN / "multi/data")
    assert lakelog("read", "--kafka-dir", data, "--root", "r").status == 2
    for arguments, problem in (
        (["--kafka-dir", str(tmp_path / "no")], "is not a directory"),
        (["--kafka-dir", data, "--topic", "mult"], "topic mult"),
        (["--kafka-dir", data, "--partition", "3"], "but --partition is 3"),
    ):
        ended = lakelog("offsets", *arguments)
        assert (ended.status, ended.out) == (1, "")
        assert problem in ended.err


@pytest.mark.posix("changes the view")
@pytest.mark.parametrize(
    "arguments",
    [
        ("compact", "--force", "--config", "segment.bytes=1024", "--kafka-dir"),
        ("retain", "--topic", "t", "--config", "retention.ms=1", "--kafka-dir"),
        ("append", "--topic", "t", "--kafka-dir"),
        ("recover", "--kafka-dir"),
        ("verify", "--repair", "--kafka-dir"),
        ("topics", "import", "--move"),
    ],
)
def test_the_view_of_a_root_is_changed_by_way_of_the_root_alone(lakelog, tmp_path, arguments: tuple[str, ...]) -> None:
    lakelog("topics", "create", "t", "--config", "segment.bytes=1024", "--partitions", "1")
    for value in range(20):
        lakelog("append", "--topic", "t", stdin=[line(b"k", b"%0200d" % value)])
    whole = contents(tmp_path / "root")
    view = tmp_path / "elsewhere"
    view.symlink_to(tmp_path / "root/log")
    for place in (tmp_path / "root/log", view):
        ended = lakelog(*arguments, str(place))
        assert (ended.status, ended.out) == (2, "")
        assert f"{place}: is the view (log/) of a root" in ended.err
        assert f"Use --root {tmp_path / 'root'}" in ended.err
        assert contents(tmp_path / "root") == whole
