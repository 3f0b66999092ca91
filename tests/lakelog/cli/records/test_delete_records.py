"""`lakelog delete-records` on topics of a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.topics import Topics
from tests.lakelog.cli.conftest import line
from tests.stores import storage_at


@pytest.fixture
def written(lakelog):
    """Topic t: records 0 to 2 in one segment, 3 and 4 in the next; compacted, so that retention has no other rule."""
    lakelog("topics", "create", "t", "--partitions", "1", "--config", "cleanup.policy=compact")
    for rows in (range(3), range(3, 5)):
        lakelog("append", "--topic", "t", stdin=[line(b"%d" % number, b"v") for number in rows])
    return lakelog


def offsets(lakelog) -> list[int]:
    return [record["offset"] for record in lakelog("read", "--topic", "t").records]


@pytest.mark.posix("reads the view")
def test_a_log_begins_in_the_middle_of_a_segment(written, tmp_path: Path) -> None:
    ended = written("delete-records", "--topic", "t", "--partition", "0", "--offset", "2")
    assert (ended.status, ended.err) == (0, "")
    assert (
        ended.out
        == "topic t, partition 0: now begins at offset 2, not 0; retention deletes the segments below this offset\n"
    )
    assert offsets(written) == [2, 3, 4]
    assert (tmp_path / "root/log/log-start-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    assert written("verify").status == 0
    assert written("offsets", "--topic", "t", "--time", "earliest").out == "t:0:2\n"
    history = written("state", "history", "--topic", "t").out
    assert "records of partition 0 deleted up to offset 2" in history


def test_retention_takes_what_lies_below_whatever_the_policy(written, tmp_path: Path) -> None:
    written("delete-records", "--topic", "t", "--partition", "0", "--offset", "3")
    topics = Topics(storage_at(tmp_path / "root"), BrokerConfig(), ManualClock(0))
    state = retain_topic(topics.chain("t"), topics.broker).state
    assert [segment.base_offset for segment in state.partitions[0].segments] == [3]
    assert len(state.dropped) == 1
    assert offsets(written) == [3, 4]


def test_all_records_go_and_the_next_one_has_the_next_offset(written) -> None:
    assert written("delete-records", "--topic", "t", "--partition", "0", "--offset", "-1").status == 0
    assert offsets(written) == []
    written("append", "--topic", "t", stdin=[line(b"k", b"v")])
    assert offsets(written) == [5]
    assert written("verify").status == 0


def test_an_offset_that_is_below_already_changes_nothing(written) -> None:
    written("delete-records", "--topic", "t", "--partition", "0", "--offset", "4")
    before = written("state", "history", "--topic", "t").out
    ended = written("delete-records", "--topic", "t", "--partition", "0", "--offset", "2")
    assert ended.out == "topic t, partition 0: already begins at offset 4, nothing was changed\n"
    assert written("state", "history", "--topic", "t").out == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("t", "0", "6"), "topic t, partition 0: expected an offset up to the high watermark 5, found 6."),
        (("t", "1", "0"), "topic t: has no partition 1."),
        (("u", "0", "0"), "topic u"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_is_changed(written, arguments, said) -> None:
    topic, partition, offset = arguments
    ended = written("delete-records", "--topic", topic, "--partition", partition, "--offset", offset)
    assert ended.status == 1
    assert said in ended.err
    assert offsets(written) == [0, 1, 2, 3, 4]


def test_an_offset_below_minus_one_is_no_offset(written) -> None:
    assert written("delete-records", "--topic", "t", "--partition", "0", "--offset", "-2").status == 2
