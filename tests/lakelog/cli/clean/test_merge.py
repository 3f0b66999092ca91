"""`lakelog merge` on topics of a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakelog.cli.conftest import line


@pytest.fixture
def scattered(lakelog):
    """Topics t and u with five records each, every one in a segment of its own."""
    for topic in ("t", "u"):
        lakelog("topics", "create", topic, "--partitions", "1")
        for number in range(5):
            lakelog("append", "--topic", topic, stdin=[line(b"k", b"%d" % number)])
    return lakelog


def shown(tmp_path: Path, topic: str) -> list[str]:
    return sorted(path.stem.lstrip("0") or "0" for path in (tmp_path / "root/log" / f"{topic}-0").glob("*.log"))


@pytest.mark.posix("looks at the view")
def test_small_segments_become_one_and_the_records_stay(scattered, tmp_path: Path) -> None:
    before = scattered("read", "--topic", "t").records
    assert shown(tmp_path, "t") == ["0", "1", "2", "3", "4"]
    ended = scattered("merge", "--topic", "t")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("topic t, partition 0: merged 4 segments, beginning at offset 0, into one segment of ")
    assert (shown(tmp_path, "t"), len(shown(tmp_path, "u"))) == (["0", "4"], 5)
    assert scattered("read", "--topic", "t").records == before
    assert scattered("verify").status == 0
    assert scattered("merge", "--topic", "t").out == "merge: there is nothing to merge in 1 topic\n"


@pytest.mark.posix("looks at the view")
def test_a_damaged_segment_is_named_and_the_other_topic_is_merged(scattered, tmp_path: Path) -> None:
    damaged = tmp_path / "root/log/t-0/00000000000000000001.log"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    ended = scattered("merge")
    assert ended.status == 4
    assert "topic t, partition 0: " in ended.err
    assert (len(shown(tmp_path, "t")), shown(tmp_path, "u")) == (5, ["0", "4"])
    assert scattered("merge", "--topic", "nothing").status == 1
