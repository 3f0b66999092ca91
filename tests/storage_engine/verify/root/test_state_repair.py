"""Which documents of a topic `verify --repair` restores, the sources that it reports, and what it leaves
unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError, FencedError
from storage_engine.storage import Storage
from storage_engine.topic.append.staged_list import StagedBatch, pending_lists, put_list
from storage_engine.topic.append.topic_writer import BatchIdentity
from storage_engine.topic.chain import history_file
from storage_engine.topic.chain.documents import ROOT_RECORD
from storage_engine.topic.chain.history_file import history_key
from storage_engine.topic.chain.pruning import prune
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.version_files import encode_state, version_key
from storage_engine.topic.clean.topic_retention import delete_records
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.topics import Topics
from storage_engine.topic.witnesses import ShownOffsets, shown_offsets
from storage_engine.verify.findings import Restored, problems
from storage_engine.verify.root import lost_versions, proven_state
from storage_engine.verify.root.damaged_documents import damaged_documents
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.root.state_repair import repair_documents
from storage_engine.verify.segment_check import Options
from tests.storage_engine.topic.append.test_appending import CLOCK, Query, append, contents, new_topic, rows
from tests.storage_engine.topic.chain.test_pruning import grow
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall
from tests.stores import file_in, local, storage_at

BY_VIEW = pytest.mark.posix("the view proves what is restored")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A topic with twelve records in three versions after the first, and a settled view, if the storage has a view."""
    storage = storage_at(tmp_path / "root")
    topics = new_topic(storage)
    append(topics, rows(*range(8)))
    append(topics, rows(8, 9))
    append(topics, rows(10, 11))
    settle(topics)
    return storage


def another(storage: Storage) -> Topics:
    return Topics(storage, BrokerConfig(), CLOCK)


def damage(storage: Storage, key: str, change: Callable[[bytes], bytes] = lambda data: data[:90]) -> bytes:
    """Damage a document beyond one byte; returns what it was."""
    data = storage.read(key)
    file_in(storage, key).write_bytes(change(data))
    return data


def problems_of(storage: Storage) -> list[str]:
    return [str(found) for found in problems(check_root(another(storage), None, None, Options(), threads=1).findings)]


def is_whole(storage: Storage, *keys: int) -> None:
    assert [row.key for row in contents(another(storage))] == [b"k%d" % number for number in keys or range(12)]
    settle(another(storage))
    assert problems_of(storage) == []
    append(another(storage), rows(99))
    assert contents(another(storage))[-1].key == b"k99"


def test_a_changed_byte_of_any_document_is_undone(storage: Storage) -> None:
    chance = random.Random(7)
    for version in range(4):
        key = version_key("t", version)
        whole = storage.read(key)
        for _ in range(3):
            position = chance.randrange(len(whole))
            changed = bytearray(whole)
            changed[position] ^= chance.randrange(1, 256)
            file_in(storage, key).write_bytes(changed)
            assert [error.file for error in damaged_documents(storage)] == [key]
            done = repair_documents(another(storage))
            assert done == [Restored(key, f"the byte at position {position}", "the digest of the document")]
            assert storage.read(key) == whole
    is_whole(storage)


@BY_VIEW
def test_a_newest_version_comes_back_from_the_one_before_and_the_view(storage: Storage) -> None:
    key = version_key("t", 3)
    old = damage(storage, key)
    with pytest.raises(CorruptionError, match=key):
        append(another(storage), rows(1))
    (done,) = repair_documents(another(storage))
    assert (done.file, done.is_loss) == (key, True)
    assert done.source == "version 2, and 2 records that log/ shows as committed"
    assert [path.read_bytes() for path in (local(storage).root / "meta/t/damaged").iterdir()] == [old[:90]]
    is_whole(storage)


@BY_VIEW
def test_deleted_versions_come_back_from_the_view(storage: Storage) -> None:
    for version in (3, 2):
        storage.delete(version_key("t", version))
    (done,) = repair_documents(another(storage))
    assert done.source == "version 1, and 4 records that log/ shows as committed"
    is_whole(storage)


def test_without_a_view_the_version_before_counts_and_its_lost_bytes_stay_hidden(storage: Storage) -> None:
    if storage.folders is not None:
        storage.folders.remove_folder("log")
    damage(storage, version_key("t", 3))
    (done,) = repair_documents(another(storage))
    assert done.source == "version 2"
    assert "1 file under data/" in done.what
    assert "which no reader uses" in done.what
    is_whole(storage, *range(10))


@BY_VIEW
def test_bytes_beyond_what_the_view_shows_are_never_made_visible(storage: Storage) -> None:
    query = Query(another(storage))
    shown = query.batch(0, rows(12)).state
    settle(another(storage))
    published = query.batch(1, rows(13)).state
    storage.delete(version_key("t", published.version))  # as if it had not committed: its bytes are in the same file
    assert shown.partitions[0].segments[-1].name == published.partitions[0].segments[-1].name
    damage(storage, version_key("t", shown.version))
    (done,) = repair_documents(another(storage))
    assert "1 file under data/" in done.what
    is_whole(storage, *range(13))


@BY_VIEW
def test_records_whose_bytes_are_damaged_do_not_come_back_and_the_view_stays(storage: Storage) -> None:
    log = max(local(storage).root.glob("data/*/0/*.log"))
    with log.open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"\xff")
    before = sorted(path.name for path in local(storage).root.glob("log/**/*"))
    damage(storage, version_key("t", 3))
    assert repair_documents(another(storage)) == []
    with pytest.raises(CorruptionError):
        settle(another(storage))
    assert sorted(path.name for path in local(storage).root.glob("log/**/*")) == before
    with pytest.raises(CorruptionError):
        contents(another(storage))


@BY_VIEW
def test_a_start_offset_that_the_view_shows_comes_back(storage: Storage) -> None:
    delete_records(another(storage).chain("t"), 0, 5)
    settle(another(storage))
    damage(storage, version_key("t", 4))
    repair_documents(another(storage))
    is_whole(storage, *range(5, 12))


@pytest.mark.parametrize(
    "versions", [(1,), (2,), (1, 2), (0,), pytest.param((2, 3), marks=BY_VIEW), pytest.param((1, 2, 3), marks=BY_VIEW)]
)
def test_versions_that_others_follow_and_several_newest_ones_come_back(storage: Storage, versions) -> None:
    for version in versions:
        damage(storage, version_key("t", version))
    assert sorted(done.file for done in repair_documents(another(storage))) == [
        version_key("t", version) for version in versions
    ]
    is_whole(storage)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_missing_version_comes_back_from_the_version_that_follows_it(storage: Storage, version: int) -> None:
    append(another(storage), rows(12))
    newest = another(storage).state("t")
    lost = another(storage).chain("t").at(version)
    storage.delete(version_key("t", version))
    (done,) = repair_documents(another(storage))
    source = f"version {version + 1}"
    assert done == Restored(version_key("t", version), "a version with a follower", source)
    restored = another(storage).chain("t").at(version)
    assert lost is not None
    assert restored is not None
    assert (restored.id, restored.parent, restored.partitions) == (
        lost.id,
        lost.parent,
        another(storage).chain("t").at(version + 1).partitions,  # type: ignore[union-attr]
    )
    assert another(storage).state("t") == newest
    is_whole(storage, *range(13))


def test_of_several_missing_versions_only_the_last_is_proven(storage: Storage) -> None:
    append(another(storage), rows(12))
    for version in (2, 3):
        storage.delete(version_key("t", version))
    with pytest.raises(CorruptionError, match="run `lakelog verify --repair`"):
        append(another(storage), rows(13))
    assert [done.file for done in repair_documents(another(storage))] == [version_key("t", 3)]
    assert repair_documents(another(storage)) == []
    settle(another(storage))
    (left,) = problems_of(storage)
    assert "expected version 2 before it, found none (state: the topic can be read and written" in left
    append(another(storage), rows(13))
    assert [row.key for row in contents(another(storage))] == [b"k%d" % number for number in range(14)]


def test_a_version_that_was_put_into_a_hole_brings_no_version_back(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    monkeypatch.setattr(lost_versions, "KEPT_VERSIONS", 2)
    for number in range(12, 18):
        append(another(storage), rows(number))
    late = storage.read(version_key("t", 3))
    prune(storage, another(storage).chain("t"), keep=2)
    storage.put_new(version_key("t", 3), late)
    before = list(another(storage).chain("t").versions())
    assert before == [0, 3, 8, 9]
    assert repair_documents(another(storage)) == []
    storage.delete(version_key("t", 8))  # now the late version is the newest version before the gap
    storage.delete(version_key("t", 9))
    assert repair_documents(another(storage)) == []
    assert list(another(storage).chain("t").versions()) == [0, 3]


def test_a_damaged_version_before_a_gap_is_not_taken_for_the_newest(storage: Storage) -> None:
    append(another(storage), rows(12))
    append(another(storage), rows(13))
    damaged = damage(storage, version_key("t", 2))[:90]
    for version in (3, 4):
        storage.delete(version_key("t", version))
    assert [done.file for done in repair_documents(another(storage))] == [version_key("t", 4)]
    assert storage.read(version_key("t", 2)) == damaged
    assert [row.key for row in contents(another(storage))] == [b"k%d" % number for number in range(14)]


@BY_VIEW
def test_a_query_is_told_that_nobody_knows_its_last_batch(storage: Storage) -> None:
    query = Query(another(storage))
    query.batch(0, rows(12, 13), "0" * 63)
    query.batch(1, rows(14), "0" * 63)
    settle(another(storage))
    newest = another(storage).state("t")
    damage(storage, version_key("t", newest.version))
    repair_documents(another(storage))
    restored = another(storage).state("t")
    assert (restored.queries["q"].batch_id, restored.queries["q"].offsets_hash) == (0, "")
    assert restored.writer.epoch == newest.writer.epoch + 1
    is_whole(storage, *range(15))


def test_a_writer_that_still_runs_is_fenced_where_its_last_batch_is_lost(storage: Storage) -> None:
    query = Query(another(storage))
    query.batch(0, rows(12), "0" * 63)
    settle(another(storage))
    lost = query.batch(1, rows(13), "0" * 63).state
    damage(storage, version_key("t", lost.version), lambda data: data[:40])
    repair_documents(another(storage))
    with pytest.raises(FencedError):
        query.batch(2, rows(14), "0" * 63)
    restored = another(storage).state("t")
    assert (restored.queries["q"].batch_id, restored.queries["q"].offsets_hash) == (0, "0" * 64)
    is_whole(storage, *range(13))


def test_a_writer_that_still_knows_the_lost_version_brings_all_of_it_back(storage: Storage) -> None:
    """The version keeps its id where that can be read, so what the writer puts next follows it."""
    query = Query(another(storage))
    query.batch(0, rows(12), "0" * 63)
    settle(another(storage))
    lost = query.batch(1, rows(13), "0" * 63).state
    damage(storage, version_key("t", lost.version))
    repair_documents(another(storage))
    query.batch(2, rows(14), "0" * 63)
    is_whole(storage, *range(15))


@pytest.mark.posix("acts when the view is read")
def test_a_writer_that_puts_the_next_version_while_a_repair_is_under_way_is_followed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(another(storage))
    query.batch(0, rows(12), "0" * 63)
    settle(another(storage))
    newest = query.batch(1, rows(13), "0" * 63).state
    damage(storage, version_key("t", newest.version), lambda data: data[:-200])

    def meanwhile(storage: Storage) -> ShownOffsets:
        monkeypatch.setattr(proven_state, "shown_offsets", shown_offsets)
        chain = another(storage).chain("t")
        chain._seen = newest  # as a process has it that read the version before it was damaged
        chain.commit(lambda state: state.model_copy(update={"configs": {"retention.ms": "1"}}), "altered", newest)
        return shown_offsets(storage)

    monkeypatch.setattr(proven_state, "shown_offsets", meanwhile)
    (done,) = repair_documents(another(storage))
    assert done.source == f"version {newest.version + 1}"
    assert another(storage).state("t").configs == {"retention.ms": "1"}
    is_whole(storage, *range(14))


@BY_VIEW
def test_versions_that_history_knows_come_back_and_the_topic_goes_on(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    prune(storage, another(storage).chain("t"))
    for version in (3, 2):
        storage.delete(version_key("t", version))
    (done,) = repair_documents(another(storage))
    assert done.source == "version 1, and 4 records that log/ shows as committed"
    is_whole(storage)


@pytest.mark.parametrize("version", [0, 1, 2, pytest.param(3, marks=BY_VIEW)])
def test_a_root_of_format_1_is_repaired_in_its_own_format(tmp_path: Path, version: int) -> None:
    storage = storage_at(tmp_path / "root")
    topics = new_topic(storage)
    for number in range(3):
        append(topics, rows(number))
    settle(topics)
    for each in range(4):
        state = topics.chain("t").at(each)
        assert state is not None
        storage.replace(version_key("t", each), encode_state(state.model_copy(update={"format": 1})))
    storage.delete("meta/@root/format.json")  # which such a root does not have
    is_whole_before = [row.key for row in contents(another(storage))]
    assert is_whole_before == [b"k0", b"k1", b"k2"]
    damage(storage, version_key("t", version))
    (done,) = repair_documents(another(storage))
    assert done.file == version_key("t", version)
    is_whole(storage, 0, 1, 2)


def test_a_list_of_segments_comes_back_from_the_version_before_it(tmp_path: Path) -> None:
    storage = storage_at(tmp_path / "root")
    chain = StateChain(storage, "t", CLOCK)
    new_topic(storage)
    for _ in range(80):
        chain.commit(grow, "append of 1 records")
    (key,) = (file.key for file in storage.list("meta/t/segments/"))
    whole = damage(storage, key)
    with pytest.raises(CorruptionError, match=key):
        StateChain(storage, "t", CLOCK).newest()
    (done,) = repair_documents(another(storage), "t")
    assert (done.file, storage.read(key), done.is_loss) == (key, whole, False)
    assert StateChain(storage, "t", CLOCK).newest() == chain.newest()


def test_history_comes_back_from_its_versions(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    prune(storage, another(storage).chain("t"))
    key = history_key("t", 2)
    whole = damage(storage, key)
    assert [(done.file, done.source) for done in repair_documents(another(storage))] == [(key, "these versions")]
    assert storage.read(key) == whole
    is_whole(storage)


def test_the_retired_first_version_comes_back(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    append(another(storage), rows(12, 13))
    prune(storage, another(storage).chain("t"), keep=2)
    key = version_key("t", 0)
    assert list(another(storage).chain("t").versions()) == [0, 3, 4]
    monkeypatch.setattr(lost_versions, "KEPT_VERSIONS", 2)
    whole = damage(storage, key, lambda data: data[:40])
    assert [done.file for done in repair_documents(another(storage))] == [key]
    assert storage.read(key) == whole
    settle(another(storage))
    storage.delete(key)
    assert ["version 0 before it" in each for each in problems_of(storage)] == [True]
    assert [done.file for done in repair_documents(another(storage))] == [key]
    assert storage.read(key) == whole
    is_whole(storage, *range(14))


def root_that_history_has_outrun(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, show: Callable[[Topics], object] = lambda topics: None
) -> list[str]:
    """Versions 4 to 9 are in the history, but an old copy of the topic's folder with versions 0 to 3 was restored.
    Returns the later history files."""
    monkeypatch.setattr(history_file, "VERSIONS_PER_FILE", 2)
    for number in range(12, 18):
        append(another(storage), rows(number))
    show(another(storage))
    prune(storage, another(storage).chain("t"))
    for version in range(4, 10):
        storage.delete(version_key("t", version))
    return [history_key("t", version) for version in (4, 6, 8)]


def test_history_of_lost_versions_is_set_aside(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    later = root_that_history_has_outrun(storage, monkeypatch)
    whole = [storage.read(key) for key in later]
    foreign = "meta/t/history/00000000000000000008.jsonl.old"
    storage.put_new(foreign, b"kept by an operator")
    (finding,) = problems(check_root(another(storage), None, None, Options(), 1).findings)
    expected = "version 4, which is in the topic's history"
    assert (finding.expected, finding.found) == (expected, "version 3 as the newest")
    before = another(storage).chain("t").at(3)
    (done,) = repair_documents(another(storage))
    assert (done.file, done.source, done.is_loss) == (version_key("t", 4), "version 3", True)
    left = [file.key for file in storage.list("meta/t/history/")]
    assert left == [*(history_key("t", version) for version in (0, 2)), foreign]
    assert sorted(storage.read(file.key) for file in storage.list("meta/t/damaged/")) == sorted(whole)
    assert before is not None
    epoch = another(storage).state("t").writer.epoch
    assert epoch > before.writer.epoch, "a writer that knows lost versions is fenced"
    assert [row.key for row in contents(another(storage))] == [b"k%d" % number for number in range(12)]
    append(another(storage), rows(50))
    prune(storage, another(storage).chain("t"))
    assert [row.key for row in contents(another(storage))] == [*(b"k%d" % number for number in range(12)), b"k50"]
    assert repair_documents(another(storage)) == []


def test_history_is_kept_if_the_state_cannot_be_repaired(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    later = root_that_history_has_outrun(storage, monkeypatch)
    lost = storage.read(version_key("t", 2))
    storage.delete(version_key("t", 2))
    assert repair_documents(another(storage)) == []
    assert {*later} <= {file.key for file in storage.list("meta/t/history/")}
    storage.put_new(version_key("t", 2), lost)
    with pytest.raises(CorruptionError, match="version 4, which is in the topic's history"):
        append(another(storage), rows(50))


@BY_VIEW
def test_records_of_lost_versions_come_back_after_their_history_was_set_aside(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = root_that_history_has_outrun(storage, monkeypatch, show=settle)
    (done,) = repair_documents(another(storage))
    assert done.source == "version 3, and 6 records that log/ shows as committed"
    assert not {file.key for file in storage.list("meta/t/history/")} & {*later}
    is_whole(storage, *range(18))


@pytest.mark.parametrize("is_shown", [False, pytest.param(True, marks=BY_VIEW)])
def test_a_repair_that_is_killed_at_any_call_leaves_a_chain_that_nobody_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    for last in count():
        storage = storage_at(tmp_path / str(last))
        append(new_topic(storage), rows(0, 1))
        for number in range(2, 4):
            append(another(storage), rows(number))
        later = root_that_history_has_outrun(storage, monkeypatch, show=settle if is_shown else lambda topics: None)

        writes = count()

        def die(_: int, verb: str, key: str, last: int = last, writes: Iterator[int] = writes) -> None:
            if verb not in ("read", "list") and next(writes) == last:
                raise KeyboardInterrupt

        topics = Topics(BeforeEachCall(storage, die), BrokerConfig(), CLOCK)
        try:
            found = repair_documents(topics)
        except KeyboardInterrupt:
            if later[0] in {file.key for file in storage.list("meta/t/history/")}:
                with pytest.raises(CorruptionError, match=r"which is in the topic's history|in which partition 0 ends"):
                    append(another(storage), rows(50))
            repair_documents(another(storage))
        else:
            assert [each.is_loss for each in found] == [True]
            assert last > 6
            break
        restored = [row.key for row in contents(another(storage))]
        assert restored == [b"k%d" % number for number in (range(4), [*range(4), *range(12, 18)])[is_shown]]
        append(another(storage), rows(99))


@BY_VIEW
def test_partitions_that_lost_versions_had_added_come_back(storage: Storage) -> None:
    topics = another(storage)
    topics.alter("t", partitions=3)
    append(topics, rows(50, 51), partition=2)
    settle(topics)
    for version in (5, 4):
        storage.delete(version_key("t", version))
    with pytest.raises(CorruptionError, match="found version 3 as the newest, which has 1 partition"):
        append(another(storage), rows(1))
    (done,) = repair_documents(another(storage))
    assert done.source == "version 3, and 2 records that log/ shows as committed"
    settle(another(storage))
    assert [len(contents(another(storage), number)) for number in range(3)] == [12, 0, 2]
    assert problems_of(storage) == []


@BY_VIEW
def test_deleted_records_stay_deleted_where_the_version_that_did_it_is_lost(storage: Storage) -> None:
    delete_records(another(storage).chain("t"), 0, 5)
    settle(another(storage))
    storage.delete(version_key("t", 4))
    with pytest.raises(CorruptionError, match="found version 3 as the newest, in which it begins at 0"):
        settle(another(storage))
    (done,) = repair_documents(another(storage))
    assert done.is_loss
    is_whole(storage, *range(5, 12))


def test_the_roots_own_record_comes_back_before_what_is_judged_by_it(storage: Storage) -> None:
    put_positions(storage, another(storage).state("t"), "audit", "reader", {0: 0}, 7, holds_back=True)
    (consumer,) = [file.key for file in storage.list("meta/t/groups/")]
    for key in (ROOT_RECORD, consumer):
        damage(storage, key, lambda data: data.replace(b'"format":2', b'"format":3', 1))
    restored = repair_documents(another(storage))
    assert [each.file for each in restored] == [ROOT_RECORD, consumer]
    is_whole(storage)


@pytest.mark.parametrize("content", [b"", b'{"format":1}', b'{"format":2,"first":2,"digest":"'])
def test_the_roots_own_record_comes_back_if_all_documents_have_digests(storage: Storage, content: bytes) -> None:
    whole = damage(storage, ROOT_RECORD, lambda data: content)
    without = f"meta/t/groups/{'0' * 20}.json"
    storage.put_new(without, b'{"format":1}')
    assert repair_documents(another(storage)) == []
    assert storage.read(ROOT_RECORD) == content
    storage.delete(without)
    assert [done.file for done in repair_documents(another(storage), "t")] == [ROOT_RECORD]
    assert storage.read(ROOT_RECORD) == whole
    is_whole(storage)


def test_the_record_of_a_newer_lakelog_is_left(storage: Storage) -> None:
    damage(storage, ROOT_RECORD, lambda data: b'{"format":3}')
    assert repair_documents(another(storage)) == []
    assert storage.read(ROOT_RECORD) == b'{"format":3}'


def test_a_repaired_list_stops_no_sweep(storage: Storage) -> None:
    put_list(storage, StagedBatch(BatchIdentity("q", 0, "0" * 64), ()))
    (listed,) = [file.key for file in storage.list("staging/batches/")]
    before = damage(storage, listed, lambda data: data.replace(b'"', b"?", 1))
    assert [each.file for each in repair_documents(another(storage))] == [listed]
    assert storage.read(listed) == before
    assert [each.batch.query for each in pending_lists(storage)] == ["q"]
    assert problems_of(storage) == []
