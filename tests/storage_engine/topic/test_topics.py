"""The topics of a root: create, list, find, alter, delete, and use a deleted topic's name again."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    ConfigError,
    InvalidTopicNameError,
    StorageAccessError,
    TopicExistsError,
    UnknownTopicError,
)
from storage_engine.log.partition_state import LeaderEpoch, Segment
from storage_engine.topic.topics import Topics
from storage_engine.topic_id import new_topic_id
from tests.stores import storage_at

CLOCK = ManualClock(1_700_000_000_000)


@pytest.fixture
def topics(tmp_path) -> Topics:
    return Topics(storage_at(tmp_path), BrokerConfig(), CLOCK)


def test_topic_ids_are_kafkas_and_never_look_like_an_option() -> None:
    ids = [new_topic_id() for _ in range(500)]
    assert len(set(ids)) == 500
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", topic_id) for topic_id in ids)


def test_names_are_listed_in_order_and_none_is_missed(topics) -> None:
    names = ["a", "a-b", "a.b", "a0", "A", "_x", "b", "z" * 249, "a~".replace("~", "_")]
    for name in names:
        topics.create(name, 1, {})
    topics.delete("a0")
    assert sorted(topics.names()) == sorted(set(names) - {"a0"})


@pytest.mark.posix("makes a link")
def test_a_topic_that_lies_elsewhere_behind_a_link_is_listed(topics, tmp_path) -> None:
    topics.create("t", 1, {})
    (tmp_path / "meta/t").rename(tmp_path / "elsewhere")
    (tmp_path / "meta/t").symlink_to(tmp_path / "elsewhere")
    assert list(topics.names()) == ["t"]
    assert [state.topic for state in topics.states()[0]] == ["t"]


@pytest.mark.posix("a key of a store may begin with the key of another file")
def test_a_file_in_the_place_of_a_topic_is_named(topics, tmp_path) -> None:
    topics.create("t", 1, {})
    (tmp_path / "meta/u").write_bytes(b"")
    with pytest.raises(StorageAccessError, match="meta/u"):
        list(topics.names())


def test_no_root_has_no_topics(topics) -> None:
    assert list(topics.names()) == []
    assert topics.find("t") is None


def test_a_new_topic_is_empty_and_has_kafkas_first_leader_epoch(topics) -> None:
    state = topics.create("t", 3, {"retention.ms": 5, "internal.segment.bytes": "2048"})
    assert (state.version, state.parent, state.writer.epoch) == (0, "", 0)
    assert state.configs == {"retention.ms": "5", "segment.bytes": "2048"}
    for part in state.partitions:
        assert (part.log_start_offset, part.high_watermark, part.segments) == (0, 0, ())
        assert part.leader_epochs == (LeaderEpoch(0, 0),)
    assert topics.state("t") == state
    assert topics.config(state).segment_bytes == 2048


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "error"),
    [
        ("", 1, {}, InvalidTopicNameError),
        ("..", 1, {}, InvalidTopicNameError),
        ("a/b", 1, {}, InvalidTopicNameError),
        ("t", 0, {}, ConfigError),
        ("t", 10_001, {}, ConfigError),
        ("t", 1, {"segment.bytes": "1"}, ConfigError),
        ("t", 1, {"retention": "1"}, ConfigError),
        ("t", 1, {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, ConfigError),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(topics, name, partitions, configs, error) -> None:
    with pytest.raises(error):
        topics.create(name, partitions, configs)
    assert [*topics.storage.list("meta/"), *topics.storage.list("data/")] == []


def test_a_name_that_is_taken_is_refused(topics) -> None:
    first = topics.create("t", 2, {})
    with pytest.raises(TopicExistsError, match="with 2 partitions"):
        topics.create("t", 5, {})
    assert topics.state("t") == first


def test_one_of_many_creators_wins(tmp_path) -> None:
    def create(number: int) -> str | None:
        try:
            return Topics(storage_at(tmp_path), BrokerConfig(), CLOCK).create("t", number + 1, {}).topic_id
        except TopicExistsError:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [topic_id for topic_id in pool.map(create, range(8)) if topic_id]
    assert won == [Topics(storage_at(tmp_path), BrokerConfig(), CLOCK).state("t").topic_id]


def test_partitions_are_added_in_the_writers_epoch(topics) -> None:
    topics.create("t", 1, {})
    chain = topics.chain("t")
    chain.commit(lambda state: state.model_copy(update={"writer": state.writer.model_copy(update={"epoch": 4})}), "")
    state = topics.alter("t", 3)
    assert [part.leader_epochs for part in state.partitions] == [
        (LeaderEpoch(0, 0),), (LeaderEpoch(4, 0),), (LeaderEpoch(4, 0),),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="but not removed"):
        topics.alter("t", 2)
    assert topics.alter("t", 3).partitions == state.partitions


def test_settings_are_set_and_removed(topics) -> None:
    topics.create("t", 1, {"retention.ms": "5", "segment.bytes": "2048"})
    state = topics.alter("t", configs={"retention.ms": "7", "internal.segment.bytes": None})
    assert state.configs == {"retention.ms": "7"}
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        topics.alter("t", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})
    assert topics.state("t") == state


def test_a_deleted_topic_is_gone_and_its_files_wait(topics) -> None:
    created = topics.create("t", 1, {})
    segment = Segment(0, "s", 10, 5, 1, 4, 0)
    topics.chain("t").commit(
        lambda state: state.with_partitions(
            {0: state.partitions[0].model_copy(update={"segments": (segment,), "high_watermark": 5})}
        ),
        "",
    )
    state = topics.delete("t")
    assert state.deleted
    assert [(file.topic_id, file.partition, file.name) for file in state.dropped] == [(created.topic_id, 0, "s")]
    assert topics.find("t") is None
    assert list(topics.names()) == []
    for use in (topics.state, topics.delete, topics.alter):
        with pytest.raises(UnknownTopicError):
            use("t")


def test_a_name_is_taken_up_again_in_the_same_chain_under_a_new_id(topics) -> None:
    first = topics.create("t", 3, {"retention.ms": "5"})
    deleted = topics.delete("t")
    again = topics.create("t", 1, {})
    assert (again.version, again.parent) == (deleted.version + 1, deleted.id)
    assert again.topic_id != first.topic_id
    assert (len(again.partitions), again.configs, again.deleted) == (1, {}, False)
    assert again.dropped == deleted.dropped
    assert list(topics.names()) == ["t"]
