"""`lakelog compact` on topics of a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage_engine.cli.conftest import line, text

SETTINGS = ["--config", "cleanup.policy=compact", "--config", "segment.bytes=1024"]


@pytest.fixture
def compacted(lakelog):
    """A topic with 40 records of 4 keys in several segments."""
    lakelog("topics", "create", "t", "--partitions", "1", *SETTINGS)
    for number in range(40):
        lakelog("append", "--topic", "t", stdin=[line(b"k%d" % (number % 4), b"%050d" % number, timestamp=1000)])
    return lakelog


def values(lakelog) -> list[str]:
    return [record["value"] for record in lakelog("read", "--topic", "t").records]


def test_each_key_keeps_its_newest_record_below_the_active_segment(compacted) -> None:
    ended = compacted("compact", "--topic", "t", "--now", "2000")
    assert ended.status == 0
    assert ended.out.startswith("topic t, partition 0: compacted up to offset ")
    left = values(compacted)
    assert left[-4:] == [text(b"%050d" % number) for number in range(36, 40)]
    assert len(left) < 20


def test_what_is_not_due_is_left_unless_forced(compacted) -> None:
    compacted("topics", "alter", "t", "--config", "min.cleanable.dirty.ratio=1")
    before = values(compacted)
    assert compacted("compact", "--topic", "t").out == ""
    assert values(compacted) == before
    assert "compacted" in compacted("compact", "--force").out
    assert len(values(compacted)) < len(before)


def test_a_partition_that_cannot_be_compacted_is_named_and_the_others_are_compacted(compacted, tmp_path: Path) -> None:
    compacted("topics", "create", "u", "--partitions", "1", *SETTINGS)
    for number in range(40):
        compacted("append", "--topic", "u", stdin=[line(b"k%d" % (number % 4), b"%050d" % number)])
    damaged = min(path for path in (tmp_path / "root/data").glob("*/0/*.log") if path.stat().st_nlink > 1)
    topic = "t" if "t-0" in _folder_of(damaged, tmp_path) else "u"
    data = bytearray(damaged.read_bytes())
    data[70] ^= 1
    damaged.write_bytes(data)
    ended = compacted("compact")
    assert ended.status == 4
    assert f"topic {topic}, partition 0" in ended.err
    assert f"topic {'u' if topic == 't' else 't'}, partition 0: compacted" in ended.out


def _folder_of(file: Path, tmp_path: Path) -> str:
    shown = (path for path in (tmp_path / "root/log").glob("*/*.log") if path.samefile(file))
    return next(shown).parent.name


def test_an_unknown_topic_is_an_error(lakelog) -> None:
    ended = lakelog("compact", "--topic", "nothing")
    assert (ended.status, ended.out) == (1, "")
    assert "topic nothing" in ended.err
