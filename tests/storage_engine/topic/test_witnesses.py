"""Tests that every command refuses a topic whose newest versions were deleted, if another file of the root shows that
these versions existed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain import history_file
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import forget, group_folder, put_positions
from storage_engine.topic.topics import Topics
from tests.storage_engine.topic.append.test_appending import CLOCK, append, contents, new_topic, rows
from tests.storage_engine.verify.directories import contents as files_of


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    storage = PosixStorage(tmp_path / "root")
    topics = new_topic(storage)
    settle(topics)
    append(topics, rows(*range(10)))
    append(topics, rows(10, 11))
    return storage


def another(storage: PosixStorage) -> Topics:
    """The topics as another process sees them."""
    return Topics(storage, BrokerConfig(), CLOCK)


def refused_by_all(storage: PosixStorage, witness: str) -> None:
    before = files_of(storage.root / "meta"), files_of(storage.root / "data")
    actions: list[Callable[[Topics], object]] = [
        lambda topics: topics.state("t"),
        lambda topics: append(topics, rows(12)),
        settle,
    ]
    for action in actions:
        with pytest.raises(CorruptionError, match=witness):
            action(another(storage))
    assert (files_of(storage.root / "meta"), files_of(storage.root / "data")) == before


def test_the_view_knows_of_a_deleted_version(storage: PosixStorage) -> None:
    settle(another(storage))
    storage.delete(version_key("t", 2))
    before = files_of(storage.root / "log")
    refused_by_all(
        storage, "partition 0 ends at offset 12 or later, because the view's log/replication-offset-checkpoint has"
    )
    assert files_of(storage.root / "log") == before
    storage.remove_folder("log")  # what the error says: to go on without what is lost
    topics = another(storage)
    append(topics, rows(20))
    assert contents(topics) == contents(another(storage))
    assert [row.key for row in contents(topics)] == [b"k%d" % number for number in (*range(10), 20)]


@pytest.mark.parametrize("file", ["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_one_damaged_checkpoint_of_the_view_accuses_nobody(storage: PosixStorage, file: str) -> None:
    settle(another(storage))
    path = storage.root / "log" / file
    path.write_bytes(path.read_bytes().replace(b"t 0 12", b"t 0 92"))
    topics = another(storage)
    assert len(contents(topics)) == 12
    append(topics, rows(12))
    settle(another(storage))
    assert path.read_bytes() == b"0\n1\nt 0 13\n"


def test_a_consumer_knows_of_a_deleted_version(storage: PosixStorage) -> None:
    state = another(storage).state("t")
    put_positions(storage, state, "export x", "delta export", {0: 12}, CLOCK.now_ms(), holds_back=True)
    storage.delete(version_key("t", 2))
    refused_by_all(storage, "partition 0 ends at offset 12 or later, because consumer 'export x' has this offset")
    forget(storage, "t", "export x")
    assert len(contents(another(storage))) == 10


def test_history_knows_of_deleted_versions(storage: PosixStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 4)
    topics = another(storage)
    append(topics, rows(12))
    prune(storage, topics.chain("t"))
    storage.delete(version_key("t", 3))
    refused_by_all(storage, "version 3, which is in the topic's history")


def test_the_view_of_a_topic_without_a_chain_stays(storage: PosixStorage) -> None:
    settle(another(storage))
    before = files_of(storage.root / "log")
    storage.remove_folder("meta/t")
    with pytest.raises(CorruptionError, match="the state chain of the topic that log/t-0 shows, found no version"):
        settle(another(storage))
    with pytest.raises(CorruptionError, match="the state chain of the topic that log/t-0 shows, found no version"):
        another(storage).create("t", 1, {})
    assert files_of(storage.root / "log") == before


@pytest.mark.parametrize("lost", ["meta/t", "versions"])
def test_a_topic_that_only_the_view_shows_is_an_error_for_every_command(storage: PosixStorage, lost: str) -> None:
    topics = another(storage)
    put_positions(storage, topics.state("t"), "g", "group", {0: 3}, CLOCK.now_ms())
    topics.create("u", 1, {})
    settle(topics)
    if lost == "versions":
        for version in range(3):
            storage.delete(version_key("t", version))
    else:
        storage.remove_folder(lost)

    states, unreadable = another(storage).states()

    assert [state.topic for state in states] == ["u"]
    assert {name: str(error).partition(". ")[0] for name, error in unreadable.items()} == {
        "t": "meta/t at position 0: expected the state chain of the topic that log/t-0 shows, found no version"
    }
    assert list(another(storage).names(with_deleted=True)) == ["t", "u"]
    with pytest.raises(CorruptionError, match="found no version"):
        another(storage).state("t")


def test_a_topic_that_only_a_consumer_or_history_shows_is_an_error(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    topics = another(storage)
    state = topics.state("t")
    put_positions(storage, state, "g", "group", {0: 3}, CLOCK.now_ms())
    prune(storage, topics.chain("t"))
    storage.remove_folder("log")
    for version in range(state.version + 1):
        storage.delete(version_key("t", version))

    for witness in ("meta/t/groups/g-", "meta/t/history/0"):
        with pytest.raises(CorruptionError, match=f"the state chain of the topic that {witness}.* shows, found no ver"):
            another(storage).create("t", 1, {})
        assert another(storage).states()[1].keys() == {"t"}
        with pytest.raises(CorruptionError, match=f"the state chain of the topic that {witness}.* shows, found no ver"):
            settle(another(storage))
        for file in list(storage.list(group_folder("t"))):
            storage.delete(file.key)
    storage.remove_folder("meta/t")  # what the error says: to go on without the topic
    another(storage).create("t", 1, {})


def test_a_topic_that_takes_up_the_name_of_a_longer_one_is_not_accused(storage: PosixStorage) -> None:
    settle(another(storage))
    topics = another(storage)
    assert topics.state("t").partitions[0].high_watermark == 12
    topics.delete("t")
    topics.create("t", 1, {})
    for each in (topics, another(storage)):  # before and after the view shows the new one
        append(each, rows(1))
        settle(each)
    assert [row.key for row in contents(topics)] == [b"k1", b"k1"]


def test_a_settle_that_slept_does_not_accuse_a_topic_that_took_up_the_name(storage: PosixStorage) -> None:
    settle(another(storage))
    offsets = {path: path.read_bytes() for path in (storage.root / "log").glob("re*-offset-checkpoint")}
    topics = another(storage)
    topics.delete("t")
    topics.create("t", 1, {})
    append(topics, rows(1))
    settle(topics)
    for path, data in offsets.items():  # as the other settle wrote them, of a state that it had read before
        path.write_bytes(data)
    append(another(storage), rows(2))
    settle(another(storage))
    assert [row.key for row in contents(another(storage))] == [b"k1", b"k2"]
    assert {path.read_bytes() for path in offsets} == {b"0\n1\nt 0 2\n"}
