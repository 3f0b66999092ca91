"""Transactions over several topics: readers of committed records see the whole transaction or nothing of it, even after
a crash at any call.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    CorruptionError,
    InvalidRecordError,
    NotFoundError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    TransactionError,
)
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import data_key, offset_name
from storage_engine.log.indexes.transaction_index import AbortedTransaction, encode_transaction_index
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import LATEST
from storage_engine.log.producers.producer_snapshot import EMPTY_SNAPSHOT, decode_snapshot, encode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.record.batch import scan_batches
from storage_engine.record.control import ControlType, TransactionMarker
from storage_engine.record.encoding import encode_end
from storage_engine.record.header import CONTROL, TRANSACTIONAL
from storage_engine.storage import NewFile, Storage, StoredFile
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.transaction_writer import (
    TransactionWriter,
    abort_transaction,
    finish_transactions,
    open_transactions,
)
from storage_engine.topic.chain.transaction_files import decide, newest_decided
from storage_engine.topic.clean.topic_retention import retain_topic
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_rows, to_table
from tests.storage_engine.topic.wrapped_storage import BeforeEachCall, Interrupting, LostReplies, PlainStorage
from tests.stores import clear_root, copy_root, storage_at

NOW_MS = 1_700_000_000_000
GOLDEN = Path(__file__).parents[3] / "golden"
TIMEOUT_MS = 1000


class Root:
    """Two topics, `a` with two partitions and `b` with one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW_MS)
        self.storage = storage_at(path)
        self.topics = self.through(self.storage)
        if not list(self.topics.names()):
            self.topics.create("a", 2, {"segment.bytes": "1024"})
            self.topics.create("b", 1, {})

    def through(self, storage: Storage) -> Topics:
        return Topics(storage, BrokerConfig(), self.clock)

    def transaction(self, storage: Storage | None = None) -> TransactionWriter:
        return TransactionWriter(self.through(storage or self.storage), TIMEOUT_MS)

    def append(self, topic: str, *values: int, partition: int = 0) -> None:
        config = self.topics.config(self.topics.state(topic))
        chain = self.topics.chain(topic)
        append_records(self.storage, chain, config, self.clock, rows(*values), partition)

    def read(self, topic: str, partition: int = 0, isolation: Isolation = Isolation.READ_COMMITTED) -> list[int]:
        reader = PartitionReader(self.storage, self.topics.chain(topic), partition)
        start = reader.partition.log_start_offset
        return [
            int(row.value or b"") for records in reader.read(start, isolation=isolation) for row in to_rows(records)
        ]

    def everything(self, isolation: Isolation = Isolation.READ_COMMITTED) -> list[int]:
        return self.read("a", 0, isolation) + self.read("a", 1, isolation) + self.read("b", 0, isolation)

    def records_of_transactions(self) -> list[str]:
        return [file.key for file in self.storage.list("meta/@transactions/")]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def rows(*values: int):
    return to_table([Row(b"k", b"%d" % value, timestamp=NOW_MS + value) for value in values])


def fill(transaction: TransactionWriter, first: int = 1) -> list[int]:
    """Records for all three partitions, one of them twice; returns their values in the order of partitions."""
    transaction.append("a", rows(first), 0)
    transaction.append("b", rows(first + 3, first + 4))
    transaction.append("a", rows(first + 2), 1)
    transaction.append("a", rows(first + 1), 0)
    return list(range(first, first + 5))


def test_all_of_a_transaction_is_seen_once_it_is_committed_and_nothing_before(root: Root) -> None:
    root.append("a", 90)
    with root.transaction() as transaction:
        values = fill(transaction)
        root.append("a", 91)
        assert root.everything() == [90]
        assert root.everything(Isolation.READ_UNCOMMITTED) == [90, 1, 2, 91, 3, 4, 5]
        assert transaction.commit() == ()
        assert root.everything() == [90, 1, 2, 91, 3, 4, 5]
    assert sorted(values) == [1, 2, 3, 4, 5]
    assert root.everything() == root.everything(Isolation.READ_UNCOMMITTED)
    assert root.records_of_transactions() == []
    assert not list(root.storage.list("staging/"))


@pytest.mark.parametrize("ends", ["abort", "leaves", "fails"])
def test_nothing_of_an_aborted_transaction_is_seen(root: Root, ends: str) -> None:
    root.append("a", 90)
    try:
        with root.transaction() as transaction:
            fill(transaction)
            if ends == "abort":
                assert transaction.abort() == ()
            if ends == "fails":
                raise KeyError("of the caller's own")
    except KeyError:
        assert ends == "fails"
    root.append("a", 91)
    assert root.everything() == [90, 91]
    assert root.everything(Isolation.READ_UNCOMMITTED) == [90, 1, 2, 91, 3, 4, 5]
    part = root.topics.state("a").partitions[0]
    assert [aborted[1:] for aborted in part.aborted_transactions()] == [(1, 3, 4)]
    assert root.records_of_transactions() == []


def test_batches_and_markers_are_a_brokers(root: Root) -> None:
    with root.transaction() as transaction:
        fill(transaction)
        transaction.commit()
    with root.transaction() as second:
        fill(second)
    state = root.topics.state("a")
    data = b"".join(
        root.storage.read(data_key(state.topic_id, 0, segment.name), 0, segment.size)
        for segment in state.partitions[0].segments
    )
    table = scan_batches(np.frombuffer(data, np.uint8), "")
    assert table.producer_ids.tolist() == [transaction.producer_id] * 3 + [second.producer_id] * 3
    assert table.producer_epochs.tolist() == [0, 0, 1] * 2
    assert table.base_sequences.tolist() == [0, 1, -1] * 2
    assert table.attributes.tolist() == [TRANSACTIONAL, TRANSACTIONAL, TRANSACTIONAL | CONTROL] * 2
    assert table.sizes[[2, 5]].tolist() == [78, 78]
    producers = Producers()
    ended = producers.replay(np.frombuffer(data, np.uint8), table, "")
    assert [each.control_type for each in ended] == [ControlType.COMMIT, ControlType.ABORT]
    assert producers.entries() == state.partitions[0].producers
    assert aborted_among(ended) == tuple(state.partitions[0].aborted_transactions())


def test_a_marker_has_the_bytes_of_the_brokers() -> None:
    (path, *_) = sorted((GOLDEN / "txn/data/txn-0").glob("*33.log"))
    brokers = path.read_bytes()[:78]
    table = scan_batches(np.frombuffer(brokers, np.uint8), path.name)
    assert table.is_control[0]
    for kind in ControlType:
        run = encode_end(3, 0, TransactionMarker(kind, 0), int(table.max_timestamps[0]))
        # The first 16 bytes are the marker's place in the log; the rest, its CRC with it, is what was encoded.
        if run.data.tobytes()[16:] == brokers[16:]:
            return
    pytest.fail("neither marker is the broker's")


def test_a_topic_with_append_time_gives_its_markers_that_too(root: Root) -> None:
    root.topics.alter("b", configs={"message.timestamp.type": "LogAppendTime"})
    with root.transaction() as transaction:
        transaction.append("b", rows(1))
        transaction.commit()
    state = root.topics.state("b")
    data = b"".join(
        root.storage.read(data_key(state.topic_id, 0, segment.name), 0, segment.size)
        for segment in state.partitions[0].segments
    )
    table = scan_batches(np.frombuffer(data, np.uint8), "")
    assert table.is_log_append_time.tolist() == [True, True]
    assert table.max_timestamps.tolist() == [NOW_MS, NOW_MS]


def test_an_empty_transaction_leaves_nothing(root: Root) -> None:
    with root.transaction() as transaction:
        assert transaction.commit() == ()
    assert root.records_of_transactions() == []
    assert root.topics.state("a").version == 0


def test_an_ended_transaction_takes_nothing_more(root: Root) -> None:
    with root.transaction() as transaction:
        fill(transaction)
        transaction.commit()
        with pytest.raises(TransactionError, match="is over"):
            transaction.append("b", rows(1))
        with pytest.raises(TransactionError, match="is over"):
            transaction.commit()


def test_a_refused_record_leaves_only_aborting(root: Root) -> None:
    root.topics.create("compacted", 1, {"cleanup.policy": "compact"})
    with root.transaction() as transaction:
        fill(transaction)
        with pytest.raises(InvalidRecordError, match="record 0"):
            transaction.append("compacted", to_table([Row(None, b"1")]))
        with pytest.raises(TransactionError, match="can only be aborted"):
            transaction.commit()
    assert root.everything() == []


def test_transactions_that_overlap_hold_each_other_back(root: Root) -> None:
    with root.transaction() as first, root.transaction() as second:
        first.append("b", rows(1))
        second.append("b", rows(2))
        second.commit()
        assert root.read("b") == []
        first.abort()
    assert root.read("b") == [2]


def test_an_open_transaction_that_timed_out_is_aborted_and_its_owner_is_reported(root: Root) -> None:
    with root.transaction() as transaction:
        fill(transaction)
        assert finish_transactions(root.topics) == 0
        root.clock.advance(TIMEOUT_MS)
        assert finish_transactions(root.topics) == 3
        root.append("b", 90)
        assert root.everything() == [90]
        with pytest.raises(TransactionError, match="is not open, or its epoch"):
            transaction.append("b", rows(6))
        with pytest.raises(TransactionError):
            transaction.commit()
    assert root.everything() == [90]


def test_what_a_sleeper_appends_elsewhere_after_its_abort_is_aborted_too(root: Root) -> None:
    with root.transaction() as transaction:
        transaction.append("a", rows(1), 0)
        root.clock.advance(TIMEOUT_MS)
        finish_transactions(root.topics)
        transaction.append("a", rows(2), 1)
        with pytest.raises(TransactionError, match="was aborted by another process"):
            transaction.commit()
        assert finish_transactions(root.topics) == 1
    assert root.everything() == []
    assert open_transactions(root.topics) == []


def test_open_transactions_are_listed_and_can_be_aborted_by_hand(root: Root) -> None:
    with root.transaction() as transaction:
        fill(transaction)
        (found,) = open_transactions(root.topics)
        assert (found.producer_id, found.committed) == (transaction.producer_id, None)
        assert found.places == (("a", 0, 0), ("a", 1, 0), ("b", 0, 0))
        assert found.begun is not None
        assert (found.begun.begun_ms, found.begun.timeout_ms) == (NOW_MS, TIMEOUT_MS)
        assert abort_transaction(root.topics, found.producer_id) == 3
        with pytest.raises(TransactionError, match="not open on any partition"):
            abort_transaction(root.topics, found.producer_id)
    assert open_transactions(root.topics) == []
    assert root.everything() == []


def import_open(root: Root, path: Path, name: str) -> None:
    """Take in a broker's log in which producer 2 and others have transactions open, under some name."""
    shutil.copytree(GOLDEN / "txn/data/txn-0", path / f"{name}-0")
    for file in (path / f"{name}-0").iterdir():
        if file.name != f"{0:020d}.log":
            file.unlink()
    import_topic(root.topics, LogDirectory(path), name)


def open_of_2(root: Root) -> list[tuple[str, bool | None]]:
    """Where producer 2 has a transaction open, and what is decided about it."""
    found = [each for each in open_transactions(root.topics) if each.producer_id == 2]
    return [(topic, each.committed) for each in found for topic, _, _ in each.places]


def test_the_abort_of_a_brokers_transaction_says_nothing_about_a_later_one_of_its_producer_id(
    root: Root, tmp_path: Path
) -> None:
    import_open(root, tmp_path / "one", "orders")
    assert open_of_2(root) == [("orders", None)]
    assert abort_transaction(root.topics, 2) == 1
    import_open(root, tmp_path / "two", "payments")
    assert open_of_2(root) == [("payments", None)]
    assert finish_transactions(root.topics) == 0
    assert open_of_2(root) == [("payments", None)]
    assert abort_transaction(root.topics, 2) == 1
    assert open_of_2(root) == []
    assert root.records_of_transactions() == []


def test_an_abort_of_a_brokers_transaction_that_dies_anywhere_is_finished(root: Root, tmp_path: Path) -> None:
    import_open(root, tmp_path / "broker", "orders")

    class Killed(BaseException):
        pass

    for call in itertools.count(1):
        path = tmp_path / f"crash-{call}"
        copy_root(root.storage, storage_at(path))
        copied = Root(path)

        def die(number: int, verb: str, key: str, call=call) -> None:
            if number >= call:
                raise Killed

        dying = BeforeEachCall(copied.storage, die)
        try:
            abort_transaction(copied.through(dying), 2)
        except Killed:
            finish_transactions(copied.topics)
            if open_of_2(copied):
                assert open_of_2(copied) == [("orders", None)]
                abort_transaction(copied.topics, 2)
        assert open_of_2(copied) == []
        assert copied.records_of_transactions() == []
        clear_root(copied.storage)
        if dying.calls < call:
            break
    assert call > 20


def test_the_abort_of_our_own_transaction_stays_for_whoever_slept_through_it(root: Root) -> None:
    transaction = root.transaction()
    fill(transaction)
    assert transaction.producer_id is not None
    abort_transaction(root.topics, transaction.producer_id)
    finish_transactions(root.topics)
    with pytest.raises(TransactionError, match="aborted by another"):
        transaction.commit()
    assert root.everything() == []


def test_a_decided_commit_cannot_be_aborted(root: Root) -> None:
    transaction = root.transaction()
    fill(transaction)
    assert transaction.producer_id is not None
    assert decide(root.storage, root.clock, transaction.producer_id, committed=True)
    assert root.everything() == [1, 2, 3, 4, 5], "no marker is there, but readers see what is decided"
    with pytest.raises(TransactionError, match="is committed"):
        abort_transaction(root.topics, transaction.producer_id)
    (found,) = open_transactions(root.topics)
    assert found.committed
    assert finish_transactions(root.topics) == 3
    assert root.everything() == [1, 2, 3, 4, 5]
    assert root.records_of_transactions() == []


@pytest.mark.parametrize("error", [AlreadyExistsError, AmbiguousPutError])
def test_lost_replies_change_nothing(root: Root, error: type[StorageError]) -> None:
    with root.transaction(LostReplies(root.storage, error)) as transaction:
        fill(transaction)
        assert transaction.commit() == ()
    assert root.everything() == [1, 2, 3, 4, 5]
    assert root.records_of_transactions() == []


@pytest.mark.parametrize("verb", ["read", "sync_names"])
@pytest.mark.parametrize("reply", [AmbiguousPutError, AlreadyExistsError])
def test_a_decision_that_cannot_be_confirmed_is_not_told_as_failed(
    root: Root, reply: type[StorageError], verb: str
) -> None:
    class Unavailable(LostReplies):
        """The decision is put without a reply, and then it cannot be read, or not be made durable."""

        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if verb == "read" and key.endswith(".ended.json") and self.lost:
                raise StorageUnavailableError(key, "no connection")
            return super().read(key, start, length)

        def sync_names(self, folder: str) -> None:
            if verb == "sync_names" and self.lost:
                raise StorageUnavailableError(folder, "no connection")
            super().sync_names(folder)

    transaction = root.transaction()
    fill(transaction)
    assert transaction.producer_id is not None
    with pytest.raises(AmbiguousPutError, match="the reply was lost"):
        decide(Unavailable(root.storage, reply), root.clock, transaction.producer_id, committed=True)
    assert finish_transactions(root.topics) == 3
    assert root.everything() == [1, 2, 3, 4, 5]


def test_a_decision_of_another_process_is_made_durable_before_anything_follows_from_it(root: Root) -> None:
    """Else a power cut could take the decision back from under markers, or from under records that were shown."""
    transaction = root.transaction()
    fill(transaction)
    assert transaction.producer_id is not None
    decide(root.storage, root.clock, transaction.producer_id, committed=True)
    calls: list[tuple[str, str]] = []
    watched = root.through(BeforeEachCall(root.storage, lambda _number, verb, key: calls.append((verb, key))))
    newest_decided(watched.storage, watched.chain("b"))
    (read,) = [number for number, (verb, key) in enumerate(calls) if verb == "read" and key.endswith(".ended.json")]
    assert calls[read + 1] == ("sync_names", "meta/@transactions")
    calls.clear()
    assert finish_transactions(watched) == 3
    synced = calls.index(("sync_names", "meta/@transactions"))
    assert synced < min(number for number, (verb, key) in enumerate(calls) if verb == "put_new")


def test_markers_that_cannot_be_written_now_are_written_later(root: Root) -> None:
    class Full(PlainStorage):
        full = False

        def put_new(self, key: str, data) -> None:
            if self.full and key.startswith("meta/b/"):
                raise StorageFullError(key, "no space")
            super().put_new(key, data)

    storage = Full(root.storage)
    with root.transaction(storage) as transaction:
        fill(transaction)
        storage.full = True
        (problem,) = transaction.commit()
    assert isinstance(problem, StorageFullError)
    assert root.everything() == [1, 2, 3, 4, 5]
    assert root.topics.state("b").partitions[0].last_stable_offset == 0
    assert finish_transactions(root.topics) == 1
    assert root.everything() == [1, 2, 3, 4, 5]
    assert root.topics.state("b").partitions[0].last_stable_offset == 3
    assert root.records_of_transactions() == []


def test_a_transaction_goes_in_between_other_appends(root: Root) -> None:
    racing = Interrupting(root.storage, lambda: None)
    with root.transaction(racing) as transaction:
        for number in range(3):
            racing.before_put = lambda number=number: root.append("b", 90 + number)
            transaction.append("b", rows(number))
        racing.before_put = None
        transaction.commit()
    assert sorted(root.read("b")) == [0, 1, 2, 90, 91, 92]
    assert root.topics.state("b").partitions[0].last_stable_offset == 7


def test_a_topic_that_is_deleted_or_created_again_keeps_no_commit_from_the_others(root: Root) -> None:
    with root.transaction() as transaction:
        fill(transaction)
        root.topics.delete("b")
        root.topics.create("b", 1, {})
        assert transaction.commit() == ()
    assert root.everything() == [1, 2, 3]


def test_offsets_end_where_the_isolation_ends(root: Root) -> None:
    root.append("b", 90)
    with root.transaction() as transaction:
        transaction.append("b", rows(1))
        reader = PartitionReader(root.storage, root.topics.chain("b"), 0)
        assert reader.offset_at(LATEST, Isolation.READ_COMMITTED) == (1, -1, 0)
        assert reader.offset_at(LATEST) == (2, -1, 0)
        assert reader.offset_at(NOW_MS + 1, Isolation.READ_COMMITTED) is not None
        assert list(reader.read(2, isolation=Isolation.READ_COMMITTED)) == []


def test_retention_forgets_silent_producers_and_what_was_aborted_in_what_it_drops(root: Root) -> None:
    root.topics.alter("b", configs={"retention.ms": "1000"})
    with root.transaction() as transaction:
        transaction.append("b", rows(1))
    assert retain_topic(root.topics.chain("b"), BrokerConfig()).state.partitions[0].producers
    root.clock.advance(BrokerConfig().producer_id_expiration_ms)
    with root.transaction() as transaction:
        transaction.append("b", rows(2))
        part = retain_topic(root.topics.chain("b"), BrokerConfig()).state.partitions[0]
        assert [entry.producer_id for entry in part.producers] == [transaction.producer_id]
        assert list(part.aborted_transactions()) == []
        transaction.commit()
    assert root.read("b") == []


def test_a_damaged_decision_is_named_and_no_decision_is_guessed(root: Root) -> None:
    transaction = root.transaction()
    fill(transaction)
    key = f"meta/@transactions/{transaction.producer_id:020d}.ended.json"
    for damage in (b"", b"{}", b'{"committed":"perhaps","decided_ms":1}', b"\xff"):
        root.storage.replace(key, damage)
        with pytest.raises(CorruptionError) as caught:
            root.everything()
        assert caught.value.file == key
        with pytest.raises(CorruptionError):
            finish_transactions(root.topics)
    root.storage.delete(key)
    transaction.commit()
    assert root.everything() == [1, 2, 3, 4, 5]


def test_a_decision_that_is_missed_at_one_look_leaves_no_topic_without_its_marker(root: Root) -> None:
    class Forgetful(PlainStorage):
        """Does not find the decision when it looks for the first time, as a stale NFS handle."""

        missed = False

        def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if key.endswith(".ended.json") and not self.missed:
                self.missed = True
                raise NotFoundError(key, "stale file handle")
            return super().read(key, start, length)

    with root.transaction(Forgetful(root.storage)) as transaction:
        fill(transaction)
        transaction.commit()
    finish_transactions(root.topics)
    assert root.everything() == [1, 2, 3, 4, 5]
    assert not [
        entry for part in root.topics.state("a").partitions for entry in part.producers if entry.txn_first_offset >= 0
    ]


class Died(BaseException):
    """A process is killed: nothing of it runs any more."""


class Mortal(PlainStorage):
    """Dies at its n-th call, which is right after the one before took place, and does nothing afterwards."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.calls_left = -1
        self.calls = 0
        self.before_call: Callable[[], None] = lambda: None

    def _reached(self) -> None:
        self.calls += 1
        if self.calls_left == 0:
            raise Died
        self.calls_left -= 1
        self.before_call()

    def put_new(self, key: str, data) -> None:
        self._reached()
        super().put_new(key, data)

    def new_file(self, key: str, *, durable: bool = True) -> NewFile:
        self._reached()
        return super().new_file(key, durable=durable)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._reached()
        return super().read(key, start, length)

    def list(self, prefix: str, after: str = "") -> Iterator[StoredFile]:
        self._reached()
        return super().list(prefix, after)

    def folder_names(self, folder: str) -> Sequence[str]:
        self._reached()
        return super().folder_names(folder)

    def delete(self, key: str) -> None:
        self._reached()
        super().delete(key)


def died_at(root: Root, call: int, *, commits: bool) -> bool:
    """Let a process die at this call of a transaction; returns whether it got there."""
    storage = Mortal(root.storage)
    storage.calls_left = call
    try:
        transaction = root.transaction(storage)
        transaction.append("a", rows(1), 0)
        transaction.append("b", rows(1))
        if commits:
            transaction.commit()
        else:
            transaction.abort()
    except Died:
        return True
    return False


@pytest.mark.parametrize("commits", [True, False])
def test_whoever_dies_at_whatever_call_leaves_a_whole_transaction_or_none(
    root: Root, tmp_path_factory: pytest.TempPathFactory, commits: bool
) -> None:
    outcomes = []
    for call in range(1000):
        path = tmp_path_factory.mktemp("copies") / "root"
        copy_root(root.storage, storage_at(path))
        copied = Root(path)
        died = died_at(copied, call, commits=commits)
        seen = copied.read("a")
        assert seen in ([], [1])
        assert copied.read("b") == seen
        copied.clock.advance(TIMEOUT_MS)
        finish_transactions(copied.topics)
        assert (copied.read("a"), copied.read("b")) == (seen, seen)
        assert open_transactions(copied.topics) == []
        outcomes.append(seen)
        if not died:
            break
    assert outcomes == sorted(outcomes), "dead before the decision, whole after it"
    assert outcomes[-1] == ([1] if commits else [])
    assert len(outcomes) > 30


def test_at_no_call_of_a_commit_one_topic_shows_it_and_another_does_not(root: Root) -> None:
    storage = Mortal(root.storage)
    seen = []
    with root.transaction(storage) as transaction:
        fill(transaction)
        storage.before_call = lambda: seen.append(root.everything())
        transaction.commit()
    assert {tuple(values) for values in seen} == {(), (1, 2, 3, 4, 5)}
    assert seen == sorted(seen), "once it is seen it stays"


def test_readers_that_follow_a_commit_never_see_half_of_it(root: Root) -> None:
    """Reads are interrupted, too: between a reader's looks at state and decisions a whole transaction may pass."""
    for call in range(30):
        storage = Mortal(root.storage)
        transaction = root.transaction()
        transaction.append("a", rows(call), 0)
        transaction.append("b", rows(call))

        def commit_at(at: int = call, storage: Mortal = storage, transaction: TransactionWriter = transaction) -> None:
            if storage.calls == at + 1:
                transaction.commit()

        storage.before_call = commit_at
        found = []
        for topic in ("a", "b"):
            reader = PartitionReader(storage, root.through(storage).chain(topic), 0)
            last = [
                row.value for records in reader.read(0, isolation=Isolation.READ_COMMITTED) for row in to_rows(records)
            ]
            found.append(b"%d" % call in last)
        assert found != [True, False], "what was read first was seen, so what is read later is"
        if storage.calls <= call:
            assert found == [False, False]
            transaction.abort()
            break


@pytest.mark.parametrize("seed", range(12))
def test_random_interleavings_show_whole_transactions_or_nothing(root: Root, seed: int) -> None:
    """Transactions, plain appends and finishing at random, against a plain list of what was committed."""
    random_ = random.Random(seed)
    open_: list[tuple[TransactionWriter, dict[str, list[int]]]] = []
    committed: dict[str, set[int]] = {"a": set(), "b": set()}
    value = 0
    for _ in range(60):
        match random_.randrange(7):
            case 0:
                open_.append((root.transaction(), {"a": [], "b": []}))
            case 1 | 2 if open_:
                transaction, values = random_.choice(open_)
                topic = random_.choice("ab")
                transaction.append(topic, rows(value), random_.randrange(2) if topic == "a" else 0)
                values[topic].append(value)
                value += 1
            case 3:
                topic = random_.choice("ab")
                root.append(topic, value)
                committed[topic].add(value)
                value += 1
            case 4 if open_:
                transaction, values = open_.pop(random_.randrange(len(open_)))
                transaction.commit()
                for topic in "ab":
                    committed[topic].update(values[topic])
            case 5 if open_:
                open_.pop(random_.randrange(len(open_)))[0].abort()
            case 6:
                finish_transactions(root.topics)
        seen = {"a": set(root.read("a", 0) + root.read("a", 1)), "b": set(root.read("b"))}
        assert seen["a"] <= committed["a"]
        assert seen["b"] <= committed["b"]
        if not open_:
            assert seen == committed
    root.clock.advance(TIMEOUT_MS)
    finish_transactions(root.topics)
    assert {"a": set(root.read("a", 0) + root.read("a", 1)), "b": set(root.read("b"))} == committed
    check_view(root)


def check_view(root: Root) -> None:
    """Everything that a broker derives from .log files is what log/ shows beside them."""
    settle(root.topics)
    if root.storage.view is None:
        return
    for folder in ("a-0", "a-1", "b-0"):
        topic, number = folder.split("-")
        part = root.topics.state(topic).partitions[int(number)]
        shown = root.path / "log" / folder
        producers = Producers()
        expected: dict[str, bytes] = {}
        for place, log in enumerate(sorted(shown.glob("*.log"))):
            if place:
                expected[f"{log.stem}.snapshot"] = encode_snapshot(producers.entries())
            data = np.fromfile(log, np.uint8)
            aborted = aborted_among(producers.replay(data, scan_batches(data, log.name), log.name))
            if aborted:
                expected[f"{log.stem}.txnindex"] = encode_transaction_index(aborted)
        if part.segments:
            expected[f"{offset_name(part.high_watermark)}.snapshot"] = encode_snapshot(producers.entries())
        found = {path.name: path.read_bytes() for path in shown.iterdir() if path.suffix in (".snapshot", ".txnindex")}
        assert found == expected
        assert producers.entries() == part.producers


@pytest.mark.posix("reads the view")
def test_the_view_shows_producers_and_aborted_transactions_as_a_broker_leaves_them(root: Root) -> None:
    root.append("a", *range(100))
    settle(root.topics)
    snapshots = list((root.path / "log/a-0").glob("*.snapshot"))
    assert snapshots
    assert {path.read_bytes() for path in snapshots} == {EMPTY_SNAPSHOT}
    for first in range(100, 400, 100):
        with root.transaction() as transaction:
            transaction.append("a", rows(*range(first, first + 100)), 0)
            check_view(root)
            if first == 200:
                transaction.commit()
    check_view(root)
    with root.transaction() as transaction:
        transaction.append("a", rows(200), 0)
        check_view(root)
    check_view(root)
    assert len(list((root.path / "log/a-0").glob("*.txnindex"))) == 3


@pytest.mark.posix("reads the view")
def test_a_settled_partition_with_producers_is_not_read_again(root: Root) -> None:
    with root.transaction() as transaction:
        for first in range(0, 400, 80):
            transaction.append("a", rows(*range(first, first + 80)), 0)
        transaction.commit()
    settle(root.topics)
    times = {path: path.stat().st_mtime_ns for path in (root.path / "log").rglob("*.snapshot")}
    inodes = {path: path.stat().st_ino for path in times}
    settle(root.topics)
    assert {path: path.stat().st_ino for path in times} == inodes
    assert len(times) > 3
    damaged = sorted((root.path / "log/a-0").glob("*.snapshot"))[1]
    damaged.write_bytes(b"no snapshot")
    check_view(root)


@pytest.mark.posix("reads the view")
def test_what_the_view_shows_of_a_partition_whose_start_was_deleted_ends_with_the_states_producers(root: Root) -> None:
    root.topics.alter("a", configs={"retention.bytes": "2000"})
    with root.transaction() as transaction:
        transaction.append("a", rows(*range(300)), 0)
    retain_topic(root.topics.chain("a"), BrokerConfig())
    settle(root.topics)
    part = root.topics.state("a").partitions[0]
    assert part.segments[0].base_offset > 0
    last = root.path / "log/a-0" / f"{offset_name(part.high_watermark)}.snapshot"
    assert decode_snapshot(last.read_bytes(), "") == part.producers
    (aborted,) = part.aborted_transactions()
    assert aborted == AbortedTransaction(transaction.producer_id or 0, 0, 300, 301)
    assert root.read("a") == []
