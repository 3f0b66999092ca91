"""Runs transactions: appends to several topics that become visible together, to readers of committed records.

    with Transaction(topics) as transaction:
        transaction.append("orders", orders)
        transaction.append("payments", payments)
        transaction.commit()

Each append is a version of its topic's state like any other, with batches that name a producer and are transactional:
read_uncommitted sees the batches immediately, read_committed stops before them. Commit and abort are **one put**
(topic.chain.decisions); the markers, control batches as a broker writes them, follow on every partition.

What a crash leaves:

    before the decision    an open transaction, which keeps readers of committed records from going on; behind its
                           timeout anyone may decide to abort it
    after the decision     partitions without their markers; readers see what was decided, whoever comes next writes them

`finish_transactions` completes them. Settling, maintenance and any other transaction on the same topic call it. It
needs no lock and no list: each topic's state names the open transactions, and the decisions are on record. Two
processes that finish the same transaction do no harm, because a marker is accepted only while the transaction is open.
If another process aborted a transaction of ours, the abort stays on record, so that a paused process can never commit
that transaction; what the process still appends is aborted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from storage_engine.errors import ConflictError, LogError, TransactionError
from storage_engine.record.control import ControlType, TransactionMarker
from storage_engine.record.encoding import encode_end
from storage_engine.topic.append.appending import Append, Encoding, TopicProducer
from storage_engine.topic.append.publishing import Committed, TopicWriter
from storage_engine.topic.append.staging import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.chain.decisions import (
    UNREADABLE,
    Begun,
    begin,
    decide,
    forget,
    open_producers,
    passing_decisions,
    read_begun,
    read_ended,
)
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.topics import Topics

DEFAULT_TIMEOUT_MS = 900_000
"""Kafka's transaction.max.timeout.ms."""
_COORDINATOR_EPOCH = 0
_EPOCH = 0
_PATIENCE = 100

Decision = Callable[[int], bool | None]
"""Whether the transaction of a producer id is committed; None while it is open."""


class Transaction:
    """One transaction, for one thread. As a context it aborts what is not committed at its end."""

    def __init__(self, topics: Topics, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        """
        Args:
            timeout_ms: so long after its first append anybody may abort it.
        """
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._producers: dict[str, tuple[StateChain, TopicProducer]] = {}
        self._failed = False
        self._over = False
        self.producer_id: int | None = None
        """Given with the first append."""

    def append(
        self,
        topic: str,
        records: pa.RecordBatch,
        partition: int | None = None,
        name_row: Callable[[int], str] | None = None,
    ) -> Committed:
        """Append records to a topic as a part of the transaction. After an error it can only be aborted.

        Args:
            records, partition, name_row: as for topic.append.appending.Append.

        Raises:
            UnknownTopicError: no such topic.
            RecordError: names the first record that the topic may not hold.
            TransactionError: it is over, an append of it has failed, or another process has aborted it.
            StorageError: the storage refused or failed.
        """
        self._check_usable()
        try:
            chain, producer = self._producer(topic)
            config = producer.writer.config
            storage, clock = self._topics.storage, self._topics.clock
            with Append(storage, chain, config, clock, partition, producer) as append:
                append.stage(records, name_row)
                return append.commit()
        except BaseException:
            self._failed = True
            raise

    def commit(self) -> tuple[LogError, ...]:
        """Make all appends of the transaction visible together.

        Returns:
            Why a topic has not got its markers yet. The transaction is committed all the same: readers of a root see
            it, and finishing makes up for the markers.

        Raises:
            TransactionError: it is over, an append of it has failed, or another process has aborted it.
            StorageError: it is not known to be committed; aborting tells.
        """
        self._check_usable()
        storage, clock = self._topics.storage, self._topics.clock
        if self.producer_id is not None and not decide(storage, clock, self.producer_id, committed=True):
            raise self._refused("was aborted by another process, because it had timed out or somebody asked for it")
        return self._end(committed=True)

    def abort(self) -> tuple[LogError, ...]:
        """Let none of it become visible to readers of committed records; nothing happens if it is over.

        Returns:
            Why a topic has not got its markers yet; as for commit.

        Raises:
            TransactionError: it is committed, though commit could not tell.
            StorageError: the storage refused or failed. It is aborted when it has timed out.
        """
        if self._over:
            return ()
        storage, clock = self._topics.storage, self._topics.clock
        if self.producer_id is not None and decide(storage, clock, self.producer_id, committed=False):
            self._end(committed=True)
            raise self._refused("is committed, though the reply to that was lost")
        return self._end(committed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.abort()
        except LogError:
            # What went wrong first says more than why it could not be aborted, which its timeout will do.
            if error is None:
                raise
        finally:
            for _, producer in self._producers.values():
                producer.writer.close()

    def _producer(self, topic: str) -> tuple[StateChain, TopicProducer]:
        if topic not in self._producers:
            state = self._topics.state(topic)
            config = self._topics.config(state)
            storage, clock = self._topics.storage, self._topics.clock
            if self.producer_id is None:
                self.producer_id = begin(storage, clock, self._timeout_ms)
            chain = self._topics.chain(topic)
            writer = TopicWriter(storage, chain, config, clock, None, state.topic_id)
            self._producers[topic] = chain, TopicProducer(self.producer_id, _EPOCH, writer)
        return self._producers[topic]

    def _end(self, *, committed: bool) -> tuple[LogError, ...]:
        self._over = True
        decision = _on_record(self._topics, {} if self.producer_id is None else {self.producer_id: committed})
        problems = []
        for chain, producer in self._producers.values():
            try:
                _end_on(self._topics, chain, decision, producer.writer)
            except LogError as error:
                problems.append(error)
        # An append that failed may still arrive: what is decided about it has to be there then.
        if self.producer_id is not None and not problems and (committed or not self._failed):
            try:
                forget(self._topics.storage, self.producer_id)
            except LogError as error:
                problems.append(error)
        return tuple(problems)

    def _check_usable(self) -> None:
        if self._over:
            raise self._refused("is over")
        if self._failed:
            raise self._refused("had an append that failed, and can only be aborted")

    def _refused(self, problem: str) -> TransactionError:
        return TransactionError(f"transaction of producer {self.producer_id}", problem, "Begin a new one.")


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has no marker on some partition.

    begun: None where that is not on record, as of one that a broker left, or cannot be read. committed: what is decided,
    None for nothing yet. places: topic, partition and first offset.
    """

    producer_id: int
    begun: Begun | None
    committed: bool | None
    places: tuple[tuple[str, int, int], ...]


def open_transactions(topics: Topics, states: Iterable[TopicState] | None = None) -> list[OpenTransaction]:
    """Every open transaction of some topics, the ones that began first before the others.

    Args:
        states: of these topics; by default of all that can be read.
    """
    places: dict[int, list[tuple[str, int, int]]] = {}
    for state in topics.states()[0] if states is None else states:
        for number, part in enumerate(state.partitions):
            for entry in part.producers:
                if entry.txn_first_offset >= 0:
                    places.setdefault(entry.producer_id, []).append((state.topic, number, entry.txn_first_offset))
    found = []
    for producer_id, where in places.items():
        ended = read_ended(topics.storage, producer_id)
        begun = _begun(topics, producer_id)
        found.append(OpenTransaction(producer_id, begun, None if ended is None else ended.committed, tuple(where)))
    return sorted(found, key=lambda each: (each.begun.begun_ms if each.begun else -1, each.producer_id))


def finish_transactions(topics: Topics, names: Iterable[str] | None = None) -> int:
    """Write the markers of every transaction that is decided, and abort those that have timed out. Idempotent.

    Args:
        names: the topics, all by default.

    Returns:
        On how many partitions a transaction was ended.

    Raises:
        LogError: the first topic's that could not be finished; all others were.
    """
    # Before the topics: none of these can come to be open anywhere any more.
    passing = passing_decisions(topics.storage) if names is None else {}
    decision = _on_record(topics, passing)
    ended = 0
    problems: list[LogError] = []
    for name in topics.names(with_deleted=True) if names is None else names:
        try:
            if names is not None or topics.find(name) is not None:
                ended += _end_on(topics, topics.chain(name), decision)
        except LogError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    for producer_id in passing:
        forget(topics.storage, producer_id)
    return ended


def abort_transaction(topics: Topics, producer_id: int) -> int:
    """Abort a transaction, whoever works on it; also one that a broker left open.

    Returns:
        On how many partitions it was ended.

    Raises:
        TransactionError: it is not open anywhere, or its commit is decided.
    """
    place = f"transaction of producer {producer_id}"
    if not any(producer_id in open_producers(state) for state in topics.states()[0]):
        raise TransactionError(
            place, "is not open on any partition", "`lakelog transactions list` shows those that are."
        )
    if decide(topics.storage, topics.clock, producer_id, committed=False):
        raise TransactionError(place, "is committed", "`lakelog transactions finish` writes the markers that it lacks.")
    return finish_transactions(topics)


def _on_record(topics: Topics, known: Mapping[int, bool] = {}) -> Decision:
    """What is decided; of what has timed out it is decided now.

    Args:
        known: decisions that are not looked up, because their records go once all topics have their markers: one look
            that missed a record would leave a topic without its marker, and nothing to tell that it lacks it.
    """
    known = dict(known)

    def decision(producer_id: int) -> bool | None:
        if producer_id not in known:
            ended = read_ended(topics.storage, producer_id)
            if ended is not None:
                known[producer_id] = ended.committed
            elif _timed_out(topics, producer_id):
                known[producer_id] = decide(topics.storage, topics.clock, producer_id, committed=False)
        return known.get(producer_id)

    return decision


def _timed_out(topics: Topics, producer_id: int) -> bool:
    begun = _begun(topics, producer_id)
    return begun is not None and topics.clock.now_ms() >= begun.begun_ms + begun.timeout_ms


def _begun(topics: Topics, producer_id: int) -> Begun | None:
    """As read_begun; a record that is damaged counts as none, so that one transaction holds up no other."""
    try:
        return read_begun(topics.storage, producer_id)
    except UNREADABLE:
        return None


def _end_on(topics: Topics, chain: StateChain, decision: Decision, writer: TopicWriter | None = None) -> int:
    """Write the markers of all decided transactions that are open on a topic's partitions, as one version."""
    storage, clock = topics.storage, topics.clock
    for _ in range(_PATIENCE):
        state = chain.newest()
        found = [
            (number, entry, committed)
            for number, part in enumerate(state.partitions)
            for entry in part.producers
            if entry.txn_first_offset >= 0 and (committed := decision(entry.producer_id)) is not None
        ]
        if not found:
            return 0
        config = topics.config(state)
        used = writer or TopicWriter(storage, chain, config, clock, None, state.topic_id)
        now_ms = clock.now_ms()
        append_time = Encoding.of(config, now_ms).append_time
        staging = StagingWriter(storage, staging_folder(state.topic_id, state.version))
        try:
            with staging:
                for number, entry, committed in found:
                    kind = ControlType.COMMIT if committed else ControlType.ABORT
                    marker = TransactionMarker(kind, _COORDINATOR_EPOCH)
                    run = encode_end(entry.producer_id, entry.producer_epoch, marker, now_ms, append_time)
                    staging.stage(number, run)
            used.append(by_partition(staging.runs))
        except TransactionError:
            continue  # another process has ended one of them meanwhile
        finally:
            if writer is None:
                used.close()
            delete_staged(storage, staging.runs)
        return len(found)
    raise ConflictError(
        f"topic {chain.topic}", f"its transactions were ended by others {_PATIENCE} times", "Run fewer jobs at once."
    )
