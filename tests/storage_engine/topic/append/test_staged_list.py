"""The list of the files that a micro-batch for several topics has staged: crashes, lost replies, parallel attempts."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    BatchRefusedError,
    CorruptionError,
    FencedError,
    StorageError,
)
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.staged_list import (
    StagedBatch,
    StagedDeadLetters,
    StagedTopic,
    check_list,
    delete_list,
    list_key,
    pending_lists,
    put_list,
    read_list,
    waiting_topics,
)
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import BatchIdentity, TopicWriter, take_over
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.storage_engine.topic.chain.signed_documents import signed
from tests.storage_engine.topic.wrapped_storage import FailedPuts, LostReplies, PlainStorage
from tests.stores import local, storage_at

CLOCK = ManualClock(1_700_000_000_000)
NAMES = ("clicks", "orders")
BATCH = BatchIdentity("query", 7, "0123456789abcdef0123")


class Run:
    """One process of a query that feeds both topics, from its take-over on."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.topics = Topics(storage, BrokerConfig(), CLOCK)
        self.chains = {name: self.topics.chain(name) for name in NAMES}
        self.writers = {}
        for name, chain in self.chains.items():
            state = take_over(chain, BATCH.query)
            config = self.topics.config(state)
            self.writers[name] = TopicWriter(storage, chain, config, CLOCK, state.writer.epoch)

    def stage(self, *values: str) -> StagedBatch:
        """Values that begin with c are for clicks, the others for orders."""
        staged = []
        for name in NAMES:
            state = self.chains[name].newest()
            rows = [Row(b"k", value.encode()) for value in values if value[0] == name[0]]
            with StagingWriter(self.storage, staging_folder(state.topic_id, state.version), durable=True) as writer:
                if rows:
                    encoding = Encoding.of(self.topics.config(state), CLOCK.now_ms())
                    stage_records(writer, to_table(rows), np.zeros(len(rows), np.int32), encoding)
            staged.append(StagedTopic(name, state.topic_id, state.configs, writer.runs))
        letters = StagedDeadLetters(
            None, f"{staging_folder('any', 7)}{secrets.token_hex(8)}.parquet", {"unknown_topic": 1}
        )
        with self.storage.new_file(letters.key) as file:
            file.write(b"PAR1")
        return StagedBatch(BATCH, tuple(staged), (letters,))

    def commit(self, staged: StagedBatch, *names: str) -> None:
        for topic in staged.topics:
            if topic.topic in (names or NAMES):
                self.writers[topic.topic].append(by_partition(topic.runs), staged.batch)

    def states(self) -> dict[str, TopicState]:
        return {name: chain.newest() for name, chain in self.chains.items()}

    def replay(self, *values: str) -> None:
        """Do what an ingest does with the batch after any crash."""
        listed = read_list(self.storage, BATCH) or put_list(self.storage, self.stage(*values))
        check_list(listed, self.topics, NAMES)
        self.commit(listed)
        delete_list(self.storage, listed)

    def values(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in NAMES:
            reader = PartitionReader(self.storage, self.topics.chain(name), 0)
            found[name] = [(row.value or b"").decode() for batch in reader.read(0) for row in to_rows(batch)]
        return found


def with_topics(storage: Storage) -> Storage:
    for name in NAMES:
        Topics(storage, BrokerConfig(), CLOCK).create(name, 1, {})
    return storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return with_topics(storage_at(tmp_path))


def staged_files(storage: Storage) -> list[str]:
    return [file.key for file in storage.list("staging/")]


def test_a_list_comes_back_as_it_was_put(storage: Storage) -> None:
    staged = Run(storage).stage("c1", "o1", "c2")
    assert read_list(storage, BATCH) is None
    assert put_list(storage, staged) is staged

    found = read_list(storage, BATCH)

    assert found is not None
    assert found.key == list_key(BATCH) == "staging/batches/query/7.0123456789abcdef.json"
    assert found.batch == BATCH
    assert [(topic.topic, topic.topic_id, dict(topic.configs)) for topic in found.topics] == [
        (topic.topic, topic.topic_id, dict(topic.configs)) for topic in staged.topics
    ]
    for back, there in zip(found.topics, staged.topics, strict=True):
        assert [run.to_json() for run in back.runs] == [run.to_json() for run in there.runs]
    assert found.dead_letters == staged.dead_letters
    assert [each.key for each in pending_lists(storage, "query")] == [found.key]
    assert not list(pending_lists(storage, "quer"))


@pytest.mark.parametrize("committed", [[], ["clicks"], ["clicks", "orders"]])
def test_a_replay_goes_by_the_list_whatever_its_rows_say_now(storage: Storage, committed: list[str]) -> None:
    died = Run(storage)
    listed = put_list(storage, died.stage("c1", "o1"))
    for name in committed:
        died.commit(listed, name)

    after = Run(storage)
    after.replay("c-from-a-second-look")

    assert after.values() == {"clicks": ["c1"], "orders": ["o1"]}
    assert not staged_files(storage)


class DiedError(Exception):
    pass


class Dying(PlainStorage):
    """Dies with the last of the calls that are left, before or after it has taken place, and is dead from then on."""

    def __init__(self, storage: Storage, *, before: bool) -> None:
        super().__init__(storage)
        self.left = 1_000_000
        self._before = before

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("put_new", "new_file", "read", "list", "delete", "sync_names", "sync_file"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0 or (self.left == 0 and self._before):
                raise DiedError
            done = found(*arguments, **named)
            if self.left == 0:
                raise DiedError
            return done

        return call


@pytest.mark.parametrize("before", [True, False])
def test_whichever_call_is_the_last_each_record_is_in_one_topic_once(tmp_path: Path, before: bool) -> None:
    deaths = 0
    while True:
        whole = with_topics(storage_at(tmp_path / str(deaths)))
        dying = Dying(whole, before=before)
        first = Run(dying)
        dying.left = deaths + 1
        try:
            first.replay("c1", "o2")
        except DiedError:
            deaths += 1
        else:
            break
        second = Run(whole)
        for listed in pending_lists(whole, BATCH.query):
            check_list(listed, second.topics, NAMES)
        done = [BATCH.query in state.queries for state in second.states().values()]
        if not all(done):
            second.replay("o1", "c2")
        values = second.values()
        assert sorted(value[1] for found in values.values() for value in found) == ["1", "2"], (deaths, values)
        assert values in ({"clicks": ["c1"], "orders": ["o2"]}, {"clicks": ["c2"], "orders": ["o1"]})
        assert all(BATCH.query in state.queries for state in second.states().values())
    assert deaths > 50
    assert not staged_files(whole)


def test_a_topic_without_records_has_the_batch_too(storage: Storage) -> None:
    run = Run(storage)
    run.replay("o1")
    assert [state.queries["query"].batch_id for state in run.states().values()] == [7, 7]


def test_of_two_attempts_the_list_that_was_put_first_counts(storage: Storage) -> None:
    slept = Run(storage)
    late = slept.stage("c-late", "o-late")
    runs_on = Run(storage)
    first = put_list(storage, runs_on.stage("c1", "o1"))

    found = put_list(storage, late)

    assert found.files == first.files
    assert sorted(staged_files(storage)) == sorted([first.key, *first.files])
    with pytest.raises(FencedError):
        slept.commit(found)
    runs_on.replay()
    assert runs_on.values() == {"clicks": ["c1"], "orders": ["o1"]}


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_a_put_whose_reply_was_lost_is_found_by_reading_back(storage: Storage, error: type[StorageError]) -> None:
    staged = Run(storage).stage("c1", "o1")
    found = put_list(LostReplies(storage, error), staged)
    assert found.files == staged.files
    assert sorted(staged_files(storage)) == sorted([staged.key, *staged.files])


def test_a_put_that_may_not_have_taken_place_commits_nothing(storage: Storage) -> None:
    staged = Run(storage).stage("c1", "o1")
    with pytest.raises(AmbiguousPutError):
        put_list(FailedPuts(storage, AmbiguousPutError("staging", "nobody knows")), staged)
    assert read_list(storage, BATCH) is None


def test_anothers_list_is_made_durable_before_it_is_gone_by(storage: Storage) -> None:
    synced = []

    class Counting(PlainStorage):
        def sync_names(self, folder: str) -> None:
            synced.append(folder)
            super().sync_names(folder)

    put_list(storage, Run(storage).stage("c1"))
    read_list(Counting(storage), BATCH)
    assert synced == ["staging/batches/query"]


def test_batches_of_one_number_with_other_offsets_have_lists_of_their_own(storage: Storage) -> None:
    put_list(storage, Run(storage).stage("c1"))
    assert read_list(storage, BatchIdentity("query", 7, "f" * 20)) is None
    assert read_list(storage, BatchIdentity("query", 8, BATCH.offsets_hash)) is None
    with pytest.raises(CorruptionError, match="expected batch 7 of query query, found another batch"):
        read_list(storage, BatchIdentity("query", 7, f"{BATCH.offsets_hash[:16]}, and then something else"))


def test_runs_of_a_topic_that_is_fed_no_more_are_refused_until_it_has_the_batch(storage: Storage) -> None:
    run = Run(storage)
    listed = put_list(storage, run.stage("c1", "o1"))
    assert [topic.topic for topic in waiting_topics(listed, run.topics)] == ["clicks", "orders"]
    run.commit(listed, "clicks")

    check_list(listed, run.topics, ["orders"])
    with pytest.raises(
        BatchRefusedError, match=r"topic orders: .* to which this query does not write\. Name the topic in ingest"
    ):
        check_list(listed, run.topics, ["clicks"])
    run.commit(listed, "orders")
    check_list(listed, run.topics, ["clicks"])
    assert not waiting_topics(listed, run.topics)


def test_runs_of_a_topic_that_was_made_anew_are_refused(storage: Storage) -> None:
    run = Run(storage)
    listed = put_list(storage, run.stage("c1", "o1"))
    run.topics.delete("orders")
    run.topics.create("orders", 1, {})
    with pytest.raises(BatchRefusedError, match=rf"{listed.key}, topic orders: .*was deleted and created again"):
        check_list(listed, run.topics, NAMES)


def test_a_staged_file_that_is_gone_is_named_unless_nobody_needs_it(storage: Storage) -> None:
    run = Run(storage)
    listed = put_list(storage, run.stage("c1", "o1"))
    clicks, orders = (topic.runs[0].key for topic in listed.topics)
    run.commit(listed, "clicks")
    storage.delete(clicks)
    check_list(listed, run.topics, NAMES)
    storage.delete(orders)
    problem = f"names the staged file {orders}, which is missing.*To discard these staged records, delete this file"
    with pytest.raises(BatchRefusedError, match=problem):
        check_list(listed, run.topics, NAMES)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format":1,"topics":[]}', b"\xff"])
def test_what_is_no_list_is_corrupt(storage: Storage, content: bytes) -> None:
    storage.put_new(list_key(BATCH), content)
    with pytest.raises(CorruptionError, match="a list of staged records"):
        read_list(storage, BATCH)
    with pytest.raises(CorruptionError, match="a list of staged records"):
        list(pending_lists(storage, "query"))


@pytest.mark.posix("makes a folder")
def test_a_folder_in_the_place_of_a_list_is_corrupt(storage: Storage) -> None:
    local(storage).path(list_key(BATCH)).mkdir(parents=True)
    for query in ("query", None):
        with pytest.raises(CorruptionError, match="expected a list of staged records, found a folder"):
            list(pending_lists(storage, query))
        damaged: list[CorruptionError] = []
        assert list(pending_lists(storage, query, damaged)) == []
        assert [error.file for error in damaged] == [list_key(BATCH)]


def test_a_list_of_another_format_asks_for_a_newer_lakelog(storage: Storage) -> None:
    storage.put_new(list_key(BATCH), signed(list_key(BATCH), {"format": 3}))
    with pytest.raises(CorruptionError, match=r"found format 3\. Use a newer Lakelog"):
        read_list(storage, BATCH)
