"""Pruning that is interrupted at any call, or runs at the same time as other processes. The newest version and the
whole history remain, and no wrong version becomes a parent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    CorruptionError,
    NotFoundError,
    StorageError,
    TopicExistsError,
)
from storage_engine.log.partition_state import LeaderEpoch, Segment
from storage_engine.storage import Storage, exists
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter
from storage_engine.topic.chain import history_file
from storage_engine.topic.chain.history_file import history_key, is_rolled_up
from storage_engine.topic.chain.history_reader import HistoryReader
from storage_engine.topic.chain.pruning import KEPT_VERSIONS, Pruned, PruningShare, prune, pruning_steps
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import encode_state, version_key
from storage_engine.topic.topics import Topics
from tests.storage_engine.topic.chain.signed_documents import signed
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall, Interrupting, LostReplies, PlainStorage
from tests.stores import clear_root, copy_root, storage_at

CLOCK = ManualClock(1_700_000_000_000)
KEEP = 3


@pytest.fixture
def storage(tmp_path) -> Storage:
    storage = storage_at(tmp_path / "root")
    Topics(storage, BrokerConfig(), CLOCK).create("t", 1, {})
    return storage


@pytest.fixture
def small_files(monkeypatch) -> None:
    """Files of history with four versions, so that a few versions make several."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 4)


def chain_of(storage) -> StateChain:
    return StateChain(storage, "t", CLOCK)


def grow(state: TopicState) -> TopicState:
    """This state with one more segment and one more leader epoch, like the state after a take-over and an append."""
    part = state.partitions[0]
    offset = part.high_watermark
    segments = (*part.segments, Segment(offset, f"s{offset}", 10, offset + 1, offset, offset, 0))
    epochs = (*part.leader_epochs, LeaderEpoch(len(part.leader_epochs), offset + 1))
    changed = part.model_copy(update={"segments": segments, "leader_epochs": epochs, "high_watermark": offset + 1})
    return state.with_partitions({0: changed})


def commit(storage, versions: int) -> None:
    chain = chain_of(storage)
    for _ in range(versions):
        chain.commit(grow, "append of 1 records")


def commit_fast(storage: Storage, versions: int) -> None:
    """As commit, without syncing each file."""
    document = json.loads(storage.read(version_key("t", 0)))
    for version in range(1, versions + 1):
        document |= {"id": f"{version:032x}", "parent": document["id"], "version": version, "change": f"c{version}"}
        _overwrite(storage, version_key("t", version), signed(version_key("t", version), document))


def _overwrite(storage: Storage, key: str, data: bytes) -> None:
    if storage.root is None:
        storage.replace(key, data)
    else:
        (storage.root / key).write_bytes(data)


def versions(storage) -> list[int]:
    return list(chain_of(storage).versions())


def told(storage) -> list[tuple[int, str]]:
    chain = chain_of(storage)
    return [(each.version, each.id) for each in HistoryReader(storage, chain).changes(0, chain.newest().version)]


def everything_holds(storage: Storage, ids: dict[int, str]) -> None:
    """The newest version, the whole history, and of the versions a tail without a gap.

    ids: of all versions that counted, as they were put.
    """
    newest = chain_of(storage).newest()
    assert (newest.version, newest.id) == (max(ids), ids[max(ids)])
    assert len(newest.partitions[0].segments) == newest.partitions[0].high_watermark
    assert told(storage) == list(ids.items())
    there = {version for version in ids if id_at(storage, version) == ids[version]} - {0}
    assert there == set(range(min(there, default=1), max(ids) + 1))


def list_files(storage: Storage) -> list[str]:
    return [file.key for file in storage.list("meta/t/segments/")]


def id_at(storage: Storage, version: int) -> str | None:
    try:
        return str(json.loads(storage.read(version_key("t", version)))["id"])
    except NotFoundError:
        return None


def ids_of(storage: Storage) -> dict[int, str]:
    return {version: id_at(storage, version) or "" for version in versions(storage)}


def test_three_thousand_versions_leave_a_thousand_and_a_whole_history(storage: Storage) -> None:
    commit_fast(storage, 3_050)
    assert prune(storage, chain_of(storage)) == Pruned(rolled_up=3_000, versions=2_050, lists=0)
    assert versions(storage) == [0, *range(3_051 - KEPT_VERSIONS, 3_051)]
    changes = list(HistoryReader(storage, chain_of(storage)).changes(0, 3_050))
    assert [each.version for each in changes] == list(range(3_051))
    assert [each.change for each in changes] == ["created with 1 partitions", *(f"c{n}" for n in range(1, 3_051))]
    assert chain_of(storage).newest().version == 3_050
    assert prune(storage, chain_of(storage)) == Pruned()


def test_few_versions_are_left_alone(storage: Storage) -> None:
    commit(storage, 20)
    assert prune(storage, chain_of(storage)) == Pruned()
    assert versions(storage) == list(range(21))


def test_history_says_what_became_more_and_who_did_it(storage: Storage, small_files) -> None:
    topics = Topics(storage, BrokerConfig(), CLOCK)
    commit(storage, 2)
    topics.alter("t", 2, {"retention.ms": 5})
    topics.alter("t", None, {"retention.ms": None, "segment.bytes": 2048})
    topics.delete("t")
    topics.create("t", 1, {})
    commit(storage, 6)
    before = list(HistoryReader(storage, chain_of(storage)).changes(0, 12))
    prune(storage, chain_of(storage), KEEP)
    after = list(HistoryReader(storage, chain_of(storage)).changes(0, 12))
    assert after == before
    partitions = [tuple(part.model_dump(exclude_defaults=True) for part in each.partitions) for each in after]
    one_more = ({"partition": 0, "records": 1, "bytes": 10, "segments": 1},)
    assert partitions == [
        (), one_more, one_more, (), (), ({"partition": 0, "records": -2, "bytes": -20, "segments": -2},), (),
        *[one_more] * 6,
    ]  # fmt: skip
    assert [each.configs for each in after[3:7]] == [
        {"retention.ms": "5"}, {"retention.ms": None, "segment.bytes": "2048"}, {}, {},
    ]  # fmt: skip
    assert [each.deleted for each in after[4:7]] == [False, True, False]
    assert after[6].topic_id != after[5].topic_id == after[0].topic_id


def test_history_is_read_in_part(storage: Storage, small_files) -> None:
    commit(storage, 14)
    prune(storage, chain_of(storage), KEEP)
    read = [each.version for each in HistoryReader(storage, chain_of(storage)).changes(6, 13)]
    assert read == list(range(6, 14))


def crash_at(call: int) -> Callable[[int, str, str], None]:
    def before(number: int, verb: str, key: str) -> None:
        if number == call:
            raise StorageError(key, f"{verb} failed")

    return before


def test_a_crash_at_any_call_loses_nothing_and_the_next_run_ends_it(tmp_path, small_files) -> None:
    original = storage_at(tmp_path / "original")
    Topics(original, BrokerConfig(), CLOCK).create("t", 1, {})
    commit(original, 14)
    ids = ids_of(original)

    for call in itertools.count():
        storage = storage_at(tmp_path / f"crash-{call}")
        copy_root(original, storage)
        failing = BeforeEachCall(storage, crash_at(call))
        try:
            prune(failing, chain_of(failing), KEEP)
        except StorageError:
            everything_holds(storage, ids)
        prune(storage, chain_of(storage), KEEP)
        everything_holds(storage, ids)
        assert versions(storage) == [0, 11, 12, 13, 14]
        assert not list_files(storage)
        clear_root(storage)
        if failing.calls <= call:
            break
    assert call > 40


def fill_holes(storage: Storage, ids: dict[int, str]) -> None:
    """Processes that slept put their versions wherever one is missing, each behind the version that it had seen."""
    newest = chain_of(storage).newest()
    for version in range(1, newest.version):
        if id_at(storage, version) is None:
            stray = newest.model_copy(update={"id": f"stray{version}", "parent": ids[version - 1], "version": version})
            storage.put_new(version_key("t", version), encode_state(stray))


@pytest.mark.parametrize("sleepers", [False, True])
def test_another_pruner_commits_and_sleepers_may_come_at_any_call(tmp_path, small_files, sleepers) -> None:
    original = storage_at(tmp_path / "original")
    Topics(original, BrokerConfig(), CLOCK).create("t", 1, {})
    commit(original, 10)
    first_ids = ids_of(original)

    for call in itertools.count():
        storage = storage_at(tmp_path / f"run-{call}")
        copy_root(original, storage)
        ids = dict(first_ids)

        def others(number: int, verb: str, key: str, storage=storage, ids=ids, call=call) -> None:
            if number == call:
                commit(storage, 4)
                ids |= {version: id_at(storage, version) or "" for version in range(11, 15)}
                prune(storage, chain_of(storage), KEEP)
                if sleepers:
                    fill_holes(storage, ids)
                everything_holds(storage, ids)

        disturbed = BeforeEachCall(storage, others)
        for step, _ in enumerate(pruning_steps(disturbed, chain_of(disturbed), Pruned(), KEEP)):
            if step % 10 == 0:
                everything_holds(storage, ids)
        everything_holds(storage, ids)
        prune(storage, chain_of(storage), KEEP)
        everything_holds(storage, ids)
        assert len(versions(storage)) == 5, "what sleepers left goes, too"
        clear_root(storage)
        if disturbed.calls <= call:
            break
    assert call > 25


@pytest.mark.parametrize(
    ("before", "warm", "sleepers", "loses_replies"),
    [
        (0, True, False, False), (0, True, True, False), (0, False, True, False),
        (14, True, True, False), (14, True, True, True), (14, False, False, False), (14, False, True, False),
    ],
)  # fmt: skip
def test_a_writer_or_reader_may_sleep_at_any_call_while_its_version_is_pruned(
    tmp_path, small_files, before, warm, sleepers, loses_replies
) -> None:
    original = storage_at(tmp_path / "original")
    Topics(original, BrokerConfig(), CLOCK).create("t", 1, {})
    commit(original, before)

    for call in itertools.count():
        storage = storage_at(tmp_path / f"run-{call}")
        copy_root(original, storage)
        slept_at: list[str] = []

        def others(number: int, verb: str, key: str, storage=storage, call=call, slept_at=slept_at) -> None:
            if number == call:
                ids = ids_of(storage)
                commit(storage, 14)
                ids |= ids_of(storage)
                prune(storage, chain_of(storage), KEEP)
                if sleepers:
                    fill_holes(storage, ids)
                slept_at.append(verb)

        slow = BeforeEachCall(LostReplies(storage, AlreadyExistsError) if loses_replies else storage, others)
        chain = chain_of(slow)
        if warm:
            slow.calls = -(2**31)
            chain.newest()
            slow.calls = 0
        committed = chain.commit(grow, "late")
        calls = slow.calls
        count = before + 1 + 14 * len(slept_at)
        state = chain_of(storage).newest()
        assert (state.version, state.partitions[0].high_watermark) == (count, count)
        slow.before = lambda number, verb, key: None
        assert chain.newest() == state
        assert [version for version, _ in told(storage)] == list(range(count + 1))
        assert (committed.version, committed.id) in told(storage)
        clear_root(storage)
        if calls <= call:
            break
    assert call > 3


def test_pruners_and_writers_in_any_order(storage: Storage, small_files) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    ids = ids_of(storage)
    running: list[Iterator[None]] = []
    for _ in range(2_000):
        match chance.randrange(40):
            case 0:
                commit(storage, 1)
                newest = max(ids) + 1
                ids[newest] = id_at(storage, newest) or ""
            case 1 if len(running) < 4:
                running.append(pruning_steps(storage, chain_of(storage), Pruned(), KEEP))
            case 2 if ids:
                fill_holes(storage, ids)
            case 3:
                everything_holds(storage, ids)
            case _ if running:
                steps = chance.choice(running)
                if next(steps, "done") == "done" or not chance.randrange(200):
                    running.remove(steps)
    everything_holds(storage, ids)
    prune(storage, chain_of(storage), KEEP)
    everything_holds(storage, ids)
    assert len(versions(storage)) <= KEEP + 6


def test_whoever_slept_behind_version_0_neither_commits_nor_reads_there(storage: Storage, small_files) -> None:
    """Version 0 is never deleted: looked at afterwards it would still be there, for a version 1 that does not count."""
    reader, idle_writer = chain_of(storage), chain_of(storage)
    reader.newest(), idle_writer.newest()

    def meanwhile() -> None:
        commit(storage, 14)
        prune(storage, chain_of(storage), KEEP)

    sleeper = chain_of(Interrupting(storage, meanwhile))
    committed = sleeper.commit(grow, "late")
    assert committed.version == 15
    assert committed.partitions[0].high_watermark == 15
    assert id_at(storage, 1) not in (None, committed.id), "what it put into the hole is there, and does not count"
    assert reader.newest().version == 15
    assert idle_writer.commit(grow, "later").version == 16
    assert chain_of(storage).newest().version == 16


def test_a_pruned_chain_cannot_be_begun_again(storage: Storage, small_files) -> None:
    commit(storage, 14)
    prune(storage, chain_of(storage), KEEP)
    topics = Topics(storage, BrokerConfig(), CLOCK)
    with pytest.raises(TopicExistsError):
        topics.create("t", 1, {})
    assert topics.state("t").version == 14


def test_a_chain_object_from_any_time_finds_the_newest_version(storage: Storage, small_files) -> None:
    chains = []
    for _ in range(14):
        commit(storage, 1)
        chains.append(chain_of(storage))
        chains[-1].newest()
    steps = pruning_steps(storage, chain_of(storage), Pruned(), KEEP)
    for chain in chains:
        for _ in itertools.islice(steps, 4):
            pass
        assert chain.newest().version == 14
    assert next(steps, None) is None


def test_a_version_is_deleted_only_when_what_is_missing_already_is_durably_missing(
    storage: Storage, small_files
) -> None:
    commit(storage, 14)
    calls: list[tuple[str, str]] = []
    recording = BeforeEachCall(storage, lambda number, verb, key: calls.append((verb, key)))
    prune(recording, chain_of(recording), KEEP)
    deletions = [number for number, (verb, _) in enumerate(calls) if verb == "delete"]
    assert [calls[number][1] for number in deletions] == [version_key("t", version) for version in range(1, 11)]
    assert {calls[number - 1] for number in deletions} == {("sync_names", "meta/t")}
    first = deletions[0]
    assert ("replace", version_key("t", 0)) in calls[:first]
    assert [key for verb, key in calls[:first] if verb == "put_new"] == [history_key("t", at) for at in (0, 4, 8)]


def test_history_that_another_pruner_put_is_made_durable_before_versions_go(storage: Storage, small_files) -> None:
    commit(storage, 14)
    calls: list[tuple[str, str]] = []

    def before(number: int, verb: str, key: str) -> None:
        if (verb, key) == ("put_new", history_key("t", 4)):
            other = pruning_steps(storage, chain_of(storage), Pruned(), KEEP)
            while not is_rolled_up(storage, "t", 8):
                next(other)
        calls.append((verb, key))

    slower = BeforeEachCall(storage, before)
    prune(slower, chain_of(slower), KEEP)
    refused = calls.index(("put_new", history_key("t", 4)))
    assert ("sync_names", "meta/t/history") in calls[refused : calls.index(("delete", version_key("t", 1)))]


def spill(chain: StateChain, segments: int) -> None:
    """A version with so many more segments that the older ones move to a list file."""

    def change(state: TopicState) -> TopicState:
        for _ in range(segments):
            state = grow(state)
        return state

    chain.commit(change, "many appends")


def test_lists_of_segments_go_with_the_last_version_that_names_them(storage: Storage, small_files) -> None:
    chain = chain_of(storage)
    for _ in range(6):
        spill(chain, 70)
    assert len(list_files(storage)) == 6
    orphan = "meta/t/segments/" + f"{chain.newest().topic_id}.0.3.{'0' * 32}.json"
    future = "meta/t/segments/" + f"{chain.newest().topic_id}.0.30.{'0' * 32}.json"
    foreign = "meta/t/segments/notes.json"
    for key in (orphan, future, foreign):
        storage.put_new(key, b"{}")
    commit(storage, 9)
    assert prune(storage, chain_of(storage), KEEP) == Pruned(rolled_up=16, versions=12, lists=6)
    left = list_files(storage)
    assert sorted(set(left) - {future, foreign}) == [
        f"meta/t/segments/{part.listed.name}.json" for part in chain.newest().partitions if part.listed
    ]
    assert {future, foreign} <= set(left)
    assert len(chain_of(storage).newest().partitions[0].segments) == 6 * 70 + 9


def test_a_reader_whose_version_goes_while_it_reads_its_list_takes_the_newest(storage: Storage, small_files) -> None:
    chain = chain_of(storage)
    for _ in range(6):
        spill(chain, 70)

    def meanwhile(number: int, verb: str, key: str) -> None:
        if verb == "read" and "/segments/" in key and not pruned:
            pruned.append(key)
            spill(chain, 70)
            commit(storage, 9)
            prune(storage, chain_of(storage), KEEP)

    pruned: list[str] = []
    slow = BeforeEachCall(storage, meanwhile)
    state = chain_of(slow).newest()
    assert not exists(storage, pruned[0])
    assert (state.version, len(state.partitions[0].segments)) == (16, 7 * 70 + 9)


def test_a_list_that_is_missing_from_a_version_that_counts_is_said(storage: Storage, small_files) -> None:
    spill(chain_of(storage), 70)
    storage.delete(list_files(storage)[0])
    with pytest.raises(NotFoundError):
        chain_of(storage).newest()


def test_versions_that_were_deleted_by_hand_do_not_keep_others_from_being_pruned(storage: Storage, small_files) -> None:
    """As an earlier release advised: all but version 0 and the newest ones."""
    commit(storage, 14)
    for version in range(1, 6):
        storage.delete(version_key("t", version))
    prune(storage, chain_of(storage), KEEP)
    assert [version for version, _ in told(storage)] == list(range(6, 15))
    assert versions(storage) == [0, 11, 12, 13, 14]
    commit(storage, 10)
    prune(storage, chain_of(storage), KEEP)
    assert [version for version, _ in told(storage)] == list(range(6, 25))


def test_a_version_that_is_missing_ends_pruning_and_is_named(storage: Storage, small_files) -> None:
    commit(storage, 14)
    storage.delete(version_key("t", 6))
    with pytest.raises(CorruptionError) as caught:
        prune(storage, chain_of(storage), KEEP)
    assert caught.value.file == version_key("t", 6)
    assert versions(storage) == [0, *range(1, 6), *range(7, 15)]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"no json"])
def test_damaged_history_is_named(storage: Storage, small_files, damage) -> None:
    commit(storage, 14)
    prune(storage, chain_of(storage), KEEP)
    storage.replace(history_key("t", 4), damage)
    with pytest.raises(CorruptionError) as caught:
        told(storage)
    assert caught.value.file == history_key("t", 4)
    assert chain_of(storage).newest().version == 14


def test_a_lost_reply_to_the_put_of_history_is_no_error(storage: Storage, small_files) -> None:
    commit(storage, 14)
    ids = ids_of(storage)
    losing = LostReplies(storage, AmbiguousPutError)
    prune(losing, chain_of(losing), KEEP)
    assert losing.lost == 3
    everything_holds(storage, ids)


class DistantStorage(PlainStorage):
    """A storage in which requests take long, so that a writer's share of the pruning runs in a thread."""

    reads_at_once = 8


@pytest.mark.parametrize("kind", [PlainStorage, DistantStorage])
def test_a_writers_share_keeps_versions_few_from_the_beginning(storage: Storage, kind: type[PlainStorage]) -> None:
    chain = chain_of(storage)
    share = PruningShare(kind(storage), chain, keep=100)
    most = 0
    for _ in range(420):
        share.committed(chain.commit(grow, "append of 1 records").version)
        most = max(most, len(versions(storage)))
    share.close()
    assert most < 200
    assert [version for version, _ in told(storage)] == list(range(421))


def test_a_writers_share_works_off_what_others_have_left(storage: Storage) -> None:
    commit_fast(storage, 1_150)
    chain = chain_of(storage)
    for _ in range(60):  # as processes that append once
        share = PruningShare(storage, chain)
        share.committed(chain.commit(grow, "append of 1 records").version)
        share.close()
    assert is_rolled_up(storage, "t", 399)
    share = PruningShare(storage, chain)
    for _ in range(400):
        share.committed(chain.commit(grow, "append of 1 records").version)
    assert versions(storage)[1] > 200
    assert [version for version, _ in told(storage)] == list(range(1_611))


def test_appends_prune(storage: Storage) -> None:
    commit_fast(storage, 1_149)
    topics = Topics(storage, BrokerConfig(), CLOCK)
    chain = topics.chain("t")
    writer = TopicWriter(storage, chain, topics.config(chain.newest()), CLOCK, epoch=None)
    for batch in range(3):
        writer.append({}, BatchIdentity("q", batch, f"{batch:064d}"))
    writer.close()
    assert is_rolled_up(storage, "t", 99)
    assert chain_of(storage).newest().version == 1_152


def test_a_writers_commit_does_not_wait_for_its_share_in_a_distant_store(storage: Storage) -> None:
    commit_fast(storage, 1_149)
    proceed = threading.Event()
    calls: list[str] = []

    class Held(BeforeEachCall):
        reads_at_once = 8

    def hold(number: int, verb: str, key: str) -> None:
        assert proceed.wait(60)
        calls.append(verb)

    share = PruningShare(Held(storage, hold), chain_of(storage))
    share.committed(1_150)
    assert not calls
    proceed.set()
    share.close()
    assert is_rolled_up(storage, "t", 99)


@pytest.mark.parametrize("reads_at_once", [1, 8])
def test_a_writers_share_never_fails(storage: Storage, reads_at_once: int) -> None:
    commit_fast(storage, 1_149)
    calls: list[str] = []

    def fail(number: int, verb: str, key: str) -> None:
        calls.append(verb)
        raise StorageError(key, f"{verb} failed")

    failing = type("Failing", (BeforeEachCall,), {"reads_at_once": reads_at_once})(storage, fail)
    share = PruningShare(failing, chain_of(failing))
    for version in range(1_150, 1_250):
        share.committed(version)
    share.close()
    assert 4 <= len(calls) <= 5, "once each so many versions"


def test_when_a_version_was_written_is_found_in_history_and_in_the_chain(storage: Storage, small_files) -> None:
    clock = ManualClock(CLOCK.now_ms())
    chain = StateChain(storage, "t", clock)
    for _ in range(14):
        clock.advance(1000)
        chain.commit(grow, "append of 1 records")
    prune(storage, chain, KEEP)
    found = HistoryReader(storage, chain)
    start = CLOCK.now_ms()
    assert [found.written_before(start + at) for at in (-1, 0, 999, 1000, 7500, 13_999, 14_000, 99_000)] == [
        0, 0, 0, 1, 7, 13, 14, 14,
    ]  # fmt: skip


@pytest.mark.parametrize("lost_reply", [None, AlreadyExistsError, AmbiguousPutError])
def test_a_writer_that_slept_behind_its_put_learns_that_its_version_counted(storage, small_files, lost_reply) -> None:
    others = chain_of(storage)

    class Sleeping(PlainStorage):
        """A storage whose put of a version succeeds, but returns only after that version was pruned."""

        slept = False

        def put_new(self, key: str, data) -> None:
            super().put_new(key, data)
            if not self.slept:
                self.slept = True
                for _ in range(2 * KEEP + 4):
                    others.commit(grow, "append of 1 records")
                prune(storage, others, KEEP)
                assert id_at(storage, 1) is None
                if lost_reply is not None:
                    raise lost_reply(key, "the reply was lost")

    sleeping = Sleeping(storage)
    committed = chain_of(sleeping).commit(grow, "append of 1 records")
    newest = others.newest()
    assert sleeping.slept
    assert committed.version == 1
    assert newest.partitions[0].high_watermark == 2 * KEEP + 5  # once, and not once more
    assert [change.id for change in HistoryReader(storage, others).changes(1, 1)] == [committed.id]


def test_a_writer_that_slept_before_its_put_commits_behind_the_others(storage, small_files) -> None:
    others = chain_of(storage)

    def sleep() -> None:
        for _ in range(2 * KEEP + 4):
            others.commit(grow, "append of 1 records")
        prune(storage, others, KEEP)

    committed = chain_of(Interrupting(storage, sleep)).commit(grow, "append of 1 records")
    assert (committed.version, committed.partitions[0].high_watermark) == (2 * KEEP + 5, 2 * KEEP + 5)
    assert others.newest().id == committed.id


DAMAGES = [pytest.param(lambda data: b"", id="emptied"), pytest.param(lambda data: data[:-20], id="cut")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_history_that_is_damaged_is_made_anew_before_its_versions_go(storage: Storage, small_files, damage) -> None:
    commit(storage, 14)
    before = list(HistoryReader(storage, chain_of(storage)).changes(0, 14))
    prune(storage, chain_of(storage), keep=14)  # rolls up, and deletes nothing yet
    for start in (0, 4, 8):
        storage.replace(history_key("t", start), damage(storage.read(history_key("t", start))))
    prune(storage, chain_of(storage), KEEP)
    assert versions(storage) == [0, 11, 12, 13, 14]
    assert list(HistoryReader(storage, chain_of(storage)).changes(0, 14)) == before


def test_versions_whose_damaged_history_cannot_be_made_anew_are_kept(storage: Storage, small_files) -> None:
    commit(storage, 14)
    prune(storage, chain_of(storage), keep=9)
    whole = storage.read(history_key("t", 4))
    storage.replace(history_key("t", 4), b"")
    assert versions(storage) == [0, *range(6, 15)]
    with pytest.raises(CorruptionError, match="from a backup") as caught:
        prune(storage, chain_of(storage), KEEP)
    assert caught.value.file == history_key("t", 4)
    assert versions(storage) == [0, *range(6, 15)]
    storage.replace(history_key("t", 4), whole)
    prune(storage, chain_of(storage), KEEP)
    assert versions(storage) == [0, 11, 12, 13, 14]


def with_damaged_history(path: Path, *starts: int) -> Storage:
    """Fourteen versions. All of them exist and are rolled up, but the history files with these starts are empty."""
    storage = storage_at(path)
    Topics(storage, BrokerConfig(), CLOCK).create("t", 1, {})
    commit(storage, 14)
    prune(storage, chain_of(storage), keep=14)
    for start in starts:
        storage.replace(history_key("t", start), b"")
    return storage


def test_a_crash_while_damaged_history_is_made_anew_loses_nothing(tmp_path, small_files) -> None:
    original = with_damaged_history(tmp_path / "original", 4)
    ids = ids_of(original)

    for call in itertools.count():
        storage = storage_at(tmp_path / f"crash-{call}")
        copy_root(original, storage)
        failing = BeforeEachCall(storage, crash_at(call))
        with contextlib.suppress(StorageError):
            prune(failing, chain_of(failing), KEEP)
        prune(storage, chain_of(storage), KEEP)
        everything_holds(storage, ids)
        if failing.calls <= call:
            break
    assert call > 40


def test_pruners_that_make_the_same_history_anew_and_sleepers_do_not_spoil_it(tmp_path, small_files) -> None:
    original = with_damaged_history(tmp_path / "original", 0, 4)
    ids = ids_of(original)

    for call in itertools.count():
        storage = storage_at(tmp_path / f"run-{call}")
        copy_root(original, storage)

        def others(number: int, verb: str, key: str, storage=storage, call=call) -> None:
            if number == call:
                prune(storage, chain_of(storage), KEEP)
                fill_holes(storage, ids)

        disturbed = BeforeEachCall(storage, others)
        prune(disturbed, chain_of(disturbed), KEEP)
        everything_holds(storage, ids)
        if disturbed.calls <= call:
            break
    assert call > 40
