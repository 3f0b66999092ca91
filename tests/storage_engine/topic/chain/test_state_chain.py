"""The state chain with several processes: races, holes, lost replies, cold starts and list files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    CorruptionError,
    StorageAccessError,
    StorageFullError,
    StorageUnavailableError,
    UnknownTopicError,
)
from storage_engine.log.partition_state import LeaderEpoch, Segment
from storage_engine.storage import Storage
from storage_engine.topic.chain import history_file
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key
from storage_engine.topic.topics import Topics
from tests.storage_engine.topic.chain.signed_documents import signed
from tests.storage_engine.topic.wrapped_storage import (
    BeforeEachCall,
    FailedPuts,
    Interrupting,
    LostReplies,
    PlainStorage,
)
from tests.stores import file_in, files_below, storage_at

CLOCK = ManualClock(1_700_000_000_000)


@pytest.fixture
def storage(tmp_path) -> Storage:
    storage = storage_at(tmp_path)
    Topics(storage, BrokerConfig(), CLOCK).create("t", 1, {})
    return storage


def note(key: str) -> Callable[[TopicState], TopicState]:
    """A change that every state can take: a mark that says who made it."""

    def change(state: TopicState) -> TopicState:
        return state.model_copy(update={"configs": state.configs | {key: "1"}})

    return change


def versions(storage: Storage) -> list[int]:
    return [int(file.key.split("/")[-1][:20]) for file in storage.list("meta/t/") if "/segments/" not in file.key]


def raw(storage: Storage, version: int):
    return json.loads(storage.read(version_key("t", version)))


def test_racing_commits_are_all_there_each_once(storage) -> None:
    threads, commits = 8, 20
    start = threading.Barrier(threads)

    def run(number: int) -> None:
        chain = StateChain(storage, "t", CLOCK)
        start.wait()
        for commit in range(commits):
            chain.commit(note(f"{number}.{commit}"), f"{number}.{commit}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))
    expected = {f"{number}.{commit}" for number in range(threads) for commit in range(commits)}
    assert set(StateChain(storage, "t", CLOCK).newest().configs) == expected
    assert versions(storage) == list(range(threads * commits + 1))
    assert sorted(raw(storage, version)["change"] for version in versions(storage)[1:]) == sorted(expected)


def test_every_version_names_the_one_before(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    for number in range(5):
        chain.commit(note(str(number)), "")
    documents = [raw(storage, version) for version in versions(storage)]
    assert documents[0]["parent"] == ""
    assert [document["parent"] for document in documents[1:]] == [document["id"] for document in documents[:-1]]
    assert len({document["id"] for document in documents}) == 6
    assert list(documents[0])[:2] == ["id", "parent"], "a check reads the first bytes only"


def test_a_version_put_into_a_hole_does_not_count(storage, monkeypatch) -> None:
    """A process was paused. Meanwhile, the version on which its change is based was pruned, and the next version,
    too."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    chain = StateChain(storage, "t", CLOCK)
    chain.commit(note("1"), "")

    def others() -> None:
        other = StateChain(storage, "t", CLOCK)
        for number in range(2, 6):
            other.commit(note(str(number)), "")
        prune(storage, other, keep=2)
        assert list(other.versions()) == [0, 4, 5]

    sleeper = StateChain(Interrupting(storage, others), "t", CLOCK)
    state = sleeper.commit(note("late"), "")
    assert state.version == 6
    assert set(state.configs) == {"1", "2", "3", "4", "5", "late"}
    assert 2 in sleeper.versions(), "what it put into the hole is still there"
    for reader in (StateChain(storage, "t", CLOCK), chain):
        assert reader.newest() == state


def test_a_put_that_the_store_executes_again_after_pruning_misleads_nobody(storage, monkeypatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    reader, writer, other = (StateChain(storage, "t", CLOCK) for _ in range(3))
    for number in range(1, 4):
        other.commit(note(f"early-{number}"), "early")
    paused = reader.newest(), writer.newest()
    puts = {version: storage.read(version_key("t", version)) for version in (2, 3)}
    for number in range(6):
        other.commit(note(f"meanwhile-{number}"), "meanwhile")
    prune(storage, other, keep=2)
    assert list(other.versions()) == [0, 8, 9]
    for version, data in puts.items():
        storage.put_new(version_key("t", version), data)

    assert paused[0].version == 3
    assert reader.newest() == other.newest()
    committed = writer.commit(note("late"), "late", paused[1])
    assert committed.version == 10
    assert set(committed.configs) == {*other.newest().configs} >= {"early-3", "meanwhile-5", "late"}
    assert StateChain(storage, "t", CLOCK).newest() == committed


def chain_that_history_has_outrun(storage, monkeypatch) -> tuple[StateChain, TopicState]:
    """The newest of six versions are deleted by hand. The chain object has read version 3, the last that is left."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    chain, other = (StateChain(storage, "t", CLOCK) for _ in range(2))
    for number in range(1, 4):
        other.commit(note(f"kept-{number}"), "")
    newest = chain.newest()
    for number in range(4, 6):
        other.commit(note(f"lost-{number}"), "")
    prune(storage, other)
    for version in (4, 5):
        storage.delete(version_key("t", version))
    return chain, newest


LOST = "expected version {}, which is in the topic's history, found version {} as the newest"


def test_nobody_builds_on_a_chain_that_history_has_outrun(storage, monkeypatch) -> None:
    chain, _ = chain_that_history_has_outrun(storage, monkeypatch)
    for reader in (chain, StateChain(storage, "t", CLOCK)):
        for action in (reader.newest, lambda reader=reader: reader.commit(note("x"), "")):
            with pytest.raises(CorruptionError, match=LOST.format(4, 3)):
                action()
    assert list(chain.versions()) == [0, 1, 2, 3]


def test_a_commit_on_a_chain_that_history_has_outrun_is_never_told_as_failed(storage, monkeypatch) -> None:
    """Two writers have the topic open while an old copy of its folder is restored."""
    chain, newest = chain_that_history_has_outrun(storage, monkeypatch)
    second = StateChain(storage, "t", CLOCK)

    class ThenAnother(PlainStorage):
        def put_new(self, key: str, data) -> None:
            super().put_new(key, data)
            with pytest.raises(CorruptionError, match=LOST.format(5, 4)):
                second.commit(note("second"), "")

    chain.storage = ThenAnother(storage)
    with pytest.raises(AmbiguousPutError, match="version 4 of topic t was put, but the check after it failed"):
        chain.commit(note("first"), "", newest)
    assert list(chain.versions()) == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptionError, match=LOST.format(5, 4)):
        StateChain(storage, "t", CLOCK).newest()


def test_a_lost_version_at_the_end_of_a_history_file_is_found_too(storage, monkeypatch) -> None:
    """The history ends with version 3. Version 3 is lost, and a writer that knows version 2 puts another version 3."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    first, second, other = (StateChain(storage, "t", CLOCK) for _ in range(3))
    for number in range(1, 3):
        other.commit(note(str(number)), "")
    newest = first.newest()
    other.commit(note("lost"), "")
    prune(storage, other)
    storage.delete(version_key("t", 3))

    class ThenAnother(PlainStorage):
        def put_new(self, key: str, data) -> None:
            super().put_new(key, data)
            with pytest.raises(CorruptionError, match=LOST.format(4, 3)):
                second.commit(note("second"), "")

    first.storage = ThenAnother(storage)
    with pytest.raises(AmbiguousPutError, match="the check after it failed"):
        first.commit(note("first"), "", newest)
    with pytest.raises(CorruptionError, match=LOST.format(4, 3)):
        StateChain(storage, "t", CLOCK).newest()


def test_two_writers_that_know_lost_versions_are_both_told_that_the_outcome_is_unknown(storage, monkeypatch) -> None:
    first, newest = chain_that_history_has_outrun(storage, monkeypatch)
    for version in (4, 5):
        StateChain(storage, "t", CLOCK, ignores_history=True).commit(note(str(version)), "")
    second = StateChain(storage, "t", CLOCK, ignores_history=True)
    lost = second.newest().model_copy(update={"version": 4, "id": "0" * 32})
    for version in (4, 5):
        storage.delete(version_key("t", version))

    class ThenAnother(PlainStorage):
        def put_new(self, key: str, data) -> None:
            super().put_new(key, data)
            with pytest.raises(AmbiguousPutError):
                StateChain(storage, "t", CLOCK).commit(note("second"), "", lost)

    first.storage = ThenAnother(storage)
    with pytest.raises(AmbiguousPutError):
        first.commit(note("first"), "", newest)


def test_a_damaged_history_file_stops_neither_readers_nor_writers(storage, monkeypatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    chain = StateChain(storage, "t", CLOCK)
    for number in range(1, 4):
        chain.commit(note(str(number)), "")
    prune(storage, chain)
    storage.replace(history_file.history_key("t", 3), b"damaged")
    assert StateChain(storage, "t", CLOCK).commit(note("4"), "").version == 4


def test_only_versions_that_count_are_remembered(storage, monkeypatch) -> None:
    """A reader follows a version in a hole, and is interrupted before it finds out."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    reader, other = (StateChain(storage, "t", CLOCK) for _ in range(2))
    for number in range(1, 4):
        other.commit(note(str(number)), "")
    seen = reader.newest()
    late = storage.read(version_key("t", 3))
    for number in range(4, 10):
        other.commit(note(str(number)), "")
    prune(storage, other, keep=2)
    storage.put_new(version_key("t", 3), late)
    stray = raw(storage, 9) | {"id": "stray", "parent": seen.id, "version": 4}
    storage.put_new(version_key("t", 4), signed(version_key("t", 4), stray))

    class Fails(PlainStorage):
        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if key == version_key("t", 5):
                raise StorageUnavailableError(key, "no connection")
            return super().read(key, start, length)

    reader.storage = Fails(storage)
    with pytest.raises(StorageUnavailableError):
        reader.newest()
    assert reader.known() == seen
    reader.storage = storage
    assert reader.newest() == other.newest()


def test_catching_up_reads_the_history_once(storage) -> None:
    chain, other = (StateChain(storage, "t", CLOCK) for _ in range(2))
    chain.newest()
    for number in range(30):
        other.commit(note(str(number)), "")
    read = []
    chain.storage = BeforeEachCall(storage, lambda number, verb, key: read.append(key) if verb == "read" else None)
    assert chain.newest() == other.newest()
    assert sum("/history/" in key for key in read) == 1


def test_a_put_whose_predecessor_is_gone_without_a_history_is_not_told_as_failed(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    newest = chain.commit(note("1"), "")
    storage.delete(version_key("t", 1))
    with pytest.raises(AmbiguousPutError, match="found an interrupted chain"):
        chain.commit(note("2"), "", newest)


def test_an_interrupted_chain_is_found_with_two_listings(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    for number in range(3):
        chain.commit(note(str(number)), "")
    storage.delete(version_key("t", 2))
    listings = []
    watched = BeforeEachCall(storage, lambda number, verb, key: listings.append(key) if verb == "list" else None)
    with pytest.raises(CorruptionError, match="interrupted"):
        StateChain(watched, "t", CLOCK).newest()
    assert listings == ["meta/t/"] * 2


@pytest.mark.posix("the client of HDFS starts threads of its own")
def test_a_commit_without_a_second_thread_is_told(storage, monkeypatch) -> None:
    class ManyReads(PlainStorage):
        reads_at_once = 8

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    chain = StateChain(ManyReads(storage), "t", CLOCK)
    chain.newest()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert chain.commit(note("1"), "").version == 1
    assert chain.newest().version == 1


def test_a_reader_does_not_follow_a_version_with_another_parent(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    first = chain.commit(note("1"), "")
    stray = raw(storage, 1) | {"id": "stray", "parent": "someone else", "version": 2}
    storage.put_new(version_key("t", 2), signed(version_key("t", 2), stray))
    with pytest.raises(CorruptionError, match="interrupted"):
        chain.newest()
    storage.delete(version_key("t", 2))
    assert chain.newest() == first


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_put_whose_reply_was_lost_has_taken_place_once(storage, error) -> None:
    losing = LostReplies(storage, error)
    chain = StateChain(losing, "t", CLOCK)
    for number in range(5):
        assert chain.commit(note(str(number)), "").version == number + 1
    assert losing.lost == 5
    assert versions(storage) == list(range(6))


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_put_whose_reply_was_lost_is_made_durable_before_anybody_is_told(storage, error) -> None:
    losing = LostReplies(storage, error)
    topics = Topics(losing, BrokerConfig(), CLOCK)
    topics.create("u", 1, {})
    assert losing.names_synced == ["meta/u"]
    topics.chain("u").commit(note("1"), "")
    assert losing.names_synced == ["meta/u"] * 3  # once for the version that was read


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_list_file_whose_reply_was_lost_is_there(storage, error) -> None:
    def grow(state: TopicState) -> TopicState:
        offset = len(state.partitions[0].segments)
        segments = (*state.partitions[0].segments, Segment(offset, f"s{offset}", 10, offset + 1, -1, offset, 0))
        part = state.partitions[0].model_copy(update={"segments": segments, "high_watermark": offset + 1})
        return state.with_partitions({0: part})

    chain = StateChain(LostReplies(storage, error), "t", CLOCK)
    for _ in range(80):
        chain.commit(grow, "")
    state = StateChain(storage, "t", CLOCK).newest()
    assert state.partitions[0].listed is not None
    assert [segment.base_offset for segment in state.partitions[0].segments] == list(range(80))


def test_a_chain_that_was_begun_without_a_reply_and_cannot_be_read_is_not_told_as_failed(tmp_path) -> None:
    class Unavailable(LostReplies):
        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if self.lost:
                raise StorageUnavailableError(key, "no connection")
            return super().read(key, start, length)

    first = Topics(storage_at(tmp_path), BrokerConfig(), CLOCK).create("u", 1, {})
    chain = StateChain(Unavailable(storage_at(tmp_path / "other"), AmbiguousPutError), "u", CLOCK)
    with pytest.raises(
        AmbiguousPutError, match="version 0 of topic u may have been put, but cannot be read: no connection"
    ):
        chain.create(first)


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_chain_begun_with_a_lost_reply_is_ours(tmp_path, error) -> None:
    topics = Topics(LostReplies(storage_at(tmp_path), error), BrokerConfig(), CLOCK)
    created = topics.create("t", 2, {})
    assert topics.state("t").id == created.id


def test_a_put_without_an_answer_is_repeated_with_the_same_bytes(storage) -> None:
    class Unanswered(PlainStorage):
        """The first two puts of a version get no answer. The first arrives after the second was given up."""

        puts: ClassVar[list[bytes]] = []

        def put_new(self, key: str, data) -> None:
            self.puts.append(bytes(data))
            if len(self.puts) == 3:
                super().put_new(key, self.puts[0])
            if len(self.puts) < 3:
                raise AmbiguousPutError(key, "no answer")
            super().put_new(key, data)

    chain = StateChain(Unanswered(storage), "t", CLOCK)
    committed = chain.commit(note("1"), "")
    assert len(set(Unanswered.puts)) == 1
    assert (committed.version, versions(storage)) == (1, [0, 1])
    assert chain.newest().id == committed.id


def test_if_no_put_is_answered_the_outcome_is_unknown(storage) -> None:
    chain = StateChain(FailedPuts(storage, AmbiguousPutError("k", "no answer")), "t", CLOCK)
    with pytest.raises(
        AmbiguousPutError, match=r"version 1 of topic t may have been put: no answer.*`lakelog topics describe`"
    ):
        chain.commit(note("1"), "")
    assert versions(storage) == [0]


def test_if_the_put_of_a_first_version_is_not_answered_the_outcome_is_unknown(storage) -> None:
    chain = StateChain(FailedPuts(storage, AmbiguousPutError("k", "no answer")), "u", CLOCK)
    with pytest.raises(
        AmbiguousPutError, match=r"version 0 of topic u may have been put: no answer.*`lakelog topics describe`"
    ):
        chain.create(StateChain(storage, "t", CLOCK).newest().model_copy(update={"topic": "u"}))


@pytest.mark.parametrize(
    "refusal", [StorageAccessError("k", "no permission"), StorageUnavailableError("k", "the store answered 409")]
)
def test_after_a_put_without_an_answer_a_refusal_does_not_mean_that_nothing_was_committed(storage, refusal) -> None:
    """The first put is executed after the second was refused."""

    class Late(PlainStorage):
        first = b""

        def put_new(self, key: str, data) -> None:
            if self.first:
                super().put_new(key, self.first)
                raise refusal
            self.first = bytes(data)
            raise AmbiguousPutError(key, "no answer")

    chain = StateChain(Late(storage), "t", CLOCK)
    with pytest.raises(AmbiguousPutError, match="no answer"):
        chain.commit(note("1"), "")
    assert set(StateChain(storage, "t", CLOCK).newest().configs) == {"1"}


def test_a_put_that_failed_for_good_changes_nothing(storage) -> None:
    chain = StateChain(FailedPuts(storage, StorageFullError("k", "no space")), "t", CLOCK)
    with pytest.raises(StorageFullError):
        chain.commit(note("1"), "")
    assert versions(storage) == [0]
    assert chain.newest().version == 0


def test_a_change_is_made_again_for_the_state_that_won_the_race(storage) -> None:
    other = StateChain(storage, "t", CLOCK)
    chain = StateChain(Interrupting(storage, lambda: other.commit(note("theirs"), "")), "t", CLOCK)
    seen = []

    def change(state: TopicState) -> TopicState:
        seen.append(set(state.configs))
        return note("ours")(state)

    state = chain.commit(change, "")
    assert seen == [set(), {"theirs"}]
    assert (state.version, set(state.configs)) == (2, {"ours", "theirs"})


def test_a_change_that_has_nothing_to_do_makes_no_version(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    assert chain.commit(lambda state: None, "").version == 0
    assert versions(storage) == [0]


def test_a_cold_start_finds_the_newest_version(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    for number in range(12):
        chain.commit(note(str(number)), "")
    for version in range(1, 9):
        storage.delete(version_key("t", version))
    file_in(storage, "meta/t/.tmp-1234").write_bytes(b"left by a crash")
    assert StateChain(storage, "t", CLOCK).newest() == chain.newest()
    assert chain.newest().version == 12


def test_no_chain_is_no_topic(storage) -> None:
    chain = StateChain(storage, "other", CLOCK)
    assert chain.newest_or_none() is None
    with pytest.raises(UnknownTopicError, match="topic other"):
        chain.newest()
    with pytest.raises(UnknownTopicError):
        chain.commit(note("1"), "")


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"id":"x","parent":"","format":1}', b'{"format":2}']
)
def test_a_damaged_version_is_named(storage, damage) -> None:
    file_in(storage, version_key("t", 0)).write_bytes(damage)
    with pytest.raises(CorruptionError) as caught:
        StateChain(storage, "t", CLOCK).newest()
    assert caught.value.file == version_key("t", 0)


def segments_of(count: int, first: int = 0):
    return tuple(
        Segment(offset, f"s{offset}", 10, offset + 1, offset, offset, 0) for offset in range(first, first + count)
    )


def grow(count: int):
    """A change that adds segments and a leader epoch, as rolls and take-overs do."""

    def change(state: TopicState) -> TopicState:
        part = state.partitions[0]
        segments = part.segments + segments_of(count, len(part.segments))
        epochs = (*part.leader_epochs, LeaderEpoch(len(part.leader_epochs), len(segments)))
        part = part.model_copy(update={"segments": segments, "leader_epochs": epochs, "high_watermark": len(segments)})
        return state.with_partitions({0: part})

    return change


def test_many_segments_move_to_list_files_and_are_all_there(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    for _ in range(60):
        chain.commit(grow(5), "")
    assert len(storage.read(version_key("t", 60))) < 20_000
    assert 2 <= len(files_below(storage, "meta/t/segments/")) < 12
    for reader in (chain, StateChain(storage, "t", CLOCK)):
        part = reader.newest().partitions[0]
        assert part.segments == segments_of(300)
        assert [entry.epoch for entry in part.leader_epochs] == list(range(61))


def test_a_list_file_that_lost_segments_is_noticed(storage) -> None:
    chain = StateChain(storage, "t", CLOCK)
    chain.commit(grow(100), "")
    (key,) = files_below(storage, "meta/t/segments/")
    document = json.loads(storage.read(key))
    document["segments"].pop()
    file_in(storage, key).write_bytes(json.dumps(document).encode())
    with pytest.raises(CorruptionError) as caught:
        StateChain(storage, "t", CLOCK).newest()
    assert caught.value.file == key
