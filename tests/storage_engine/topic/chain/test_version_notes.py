"""Tests that the notes about versions have the same facts as the versions, before and after pruning, and that damage is
reported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.storage import Storage
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.chain.version_notes import VersionNote, note_of, notes_before
from storage_engine.topic.topics import Topics
from tests.stores import storage_at

NOW_MS = 1_700_000_000_000


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_at(tmp_path / "root")


def committed(storage: Storage, versions: int) -> tuple[StateChain, TopicState]:
    """A topic with this many versions after its creation, a second apart."""
    clock = ManualClock(NOW_MS)
    topics = Topics(storage, BrokerConfig(), clock)
    topics.create("t", 1, {})
    chain = topics.chain("t")
    for number in range(1, versions + 1):
        clock.advance(1000)
        chain.commit(lambda state: state, f"change {number}")
    return chain, chain.newest()


def expected(chain: StateChain, first: int, last: int) -> list[VersionNote]:
    changes = HistoryReader(chain.storage, chain).changes(first, last)
    return [VersionNote(each.version, each.parent, each.written_ms, each.change, each.topic_id) for each in changes]


def test_notes_go_back_from_a_version(storage: Storage) -> None:
    chain, newest = committed(storage, 5)
    assert note_of(newest) == VersionNote(5, newest.parent, NOW_MS + 5000, "change 5", newest.topic_id)
    notes = list(notes_before(storage, newest, 3))
    assert notes == expected(chain, 2, 4)[::-1]
    assert list(notes_before(storage, newest, 99)) == expected(chain, 0, 4)[::-1]
    first = chain.at(0)
    assert first is not None
    assert list(notes_before(storage, first, 99)) == []


def test_notes_of_pruned_versions_come_from_history(storage: Storage) -> None:
    chain, newest = committed(storage, 250)
    assert prune(storage, chain, keep=20).versions == 198
    notes = list(notes_before(storage, newest, 2000))
    assert [note.version for note in notes] == list(range(249, -1, -1))
    assert notes == expected(chain, 0, 249)[::-1]


def test_notes_end_where_versions_were_deleted_by_hand(storage: Storage) -> None:
    _, newest = committed(storage, 5)
    storage.delete(version_key("t", 2))
    assert [note.version for note in notes_before(storage, newest, 99)] == [4, 3]


def test_a_damaged_version_is_named_after_the_notes_before_it(storage: Storage) -> None:
    _, newest = committed(storage, 5)
    storage.replace(version_key("t", 3), b'{"id":"x"}')
    notes = notes_before(storage, newest, 99)
    assert next(notes).version == 4
    with pytest.raises(CorruptionError, match=r"meta/t/00000000000000000003\.json at position "):
        next(notes)


def test_a_version_of_another_chain_is_named(storage: Storage, tmp_path: Path) -> None:
    _, newest = committed(storage, 3)
    _, other = committed(storage_at(tmp_path / "other"), 3)
    key = version_key("t", 2)
    storage.replace(key, storage_at(tmp_path / "other").read(key))
    with pytest.raises(CorruptionError, match=f"expected id {newest.parent}, which version 3 names, found id "):
        list(notes_before(storage, newest, 99))
    assert other.version == newest.version
