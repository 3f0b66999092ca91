"""Runs transactions. A transaction appends to several topics, and readers of committed records see all its appends at
the same moment.

    with TransactionWriter(topics) as transaction:
        transaction.append("orders", orders)
        transaction.append("payments", payments)
        transaction.commit()

Each append of a transaction makes a new version of its topic's state. The appended batches are transactional and name
a producer. Readers with read_uncommitted see the batches immediately; readers with read_committed stop before these
batches. **One put** decides whether the transaction commits or aborts (topic.chain.transaction_files). After the
decision, markers are appended to every partition. Markers are control batches, like those of a broker.

After a crash, one of these remains:

    before the decision    An open transaction. Readers of committed records stop before the transaction. After its
                           timeout, any process may abort it.
    after the decision     Partitions without their markers. Readers follow the decision. Another process appends the
                           markers.

`finish_transactions` appends missing markers and aborts transactions after their timeout. Settling, maintenance and
other transactions on the same topic call this function. `finish_transactions` needs no lock and no list: each topic's
state contains the open transactions, and the decisions are recorded. Two processes can safely finish the same
transaction, because a marker is accepted only while the transaction is open. If another process aborts a transaction,
the abort stays recorded. So a paused process can never commit an aborted transaction. Later appends in an aborted
transaction are aborted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from storage_engine.errors import ConflictError, LogError, TransactionError, UnknownTopicError
from storage_engine.record.control import ControlType, TransactionMarker
from storage_engine.record.encoding import encode_end
from storage_engine.topic.append.appending import Append, Encoding, TopicProducer
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, delete_staged, staging_folder
from storage_engine.topic.append.topic_writer import Committed, TopicWriter
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import (
    UNREADABLE,
    TransactionBegin,
    begin,
    decide,
    forget,
    open_producers,
    passing_decisions,
    read_begun,
    read_ended,
)
from storage_engine.topic.topics import Topics

DEFAULT_TIMEOUT_MS = 900_000
"""Kafka's transaction.max.timeout.ms."""
_COORDINATOR_EPOCH = 0
_EPOCH = 0
_MOST_ATTEMPTS = 100

Decision = Callable[[int], bool | None]
"""Returns whether the transaction of a producer id is committed, or None if it is not decided."""


class TransactionWriter:
    """A transaction. Only one thread may use it. If it is not committed at the end of its `with` block, it is aborted."""

    def __init__(self, topics: Topics, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        """
        Args:
            timeout_ms: this long after the first append, any process may abort the transaction.
        """
        self._topics = topics
        self._timeout_ms = timeout_ms
        self._producers: dict[str, tuple[StateChain, TopicProducer]] = {}
        self._failed = False
        self._over = False
        self.producer_id: int | None = None
        """None before the first append."""

    def append(
        self,
        topic: str,
        records: pa.RecordBatch,
        partition: int | None = None,
        name_row: Callable[[int], str] | None = None,
    ) -> Committed:
        """Append records to a topic in the transaction. After an error the transaction can only be aborted.

        Args:
            records, partition, name_row: as in topic.append.appending.Append.

        Raises:
            UnknownTopicError: no such topic.
            RecordError: the topic's settings refuse a record. The error names the first such record.
            TransactionError: the transaction is over, one of its appends has failed, or another process has aborted it.
            StorageError: the storage refused or failed.
        """
        with self._appending(topic, partition) as append:
            append.stage(records, name_row)
            return append.commit()

    def append_batches(
        self, topic: str, batches: Iterable[pa.RecordBatch], partition: int | None = None
    ) -> dict[int, range]:
        """Append several record batches to a topic as one version of its state.

        Returns:
            The offsets of the new records, by partition.

        Raises:
            The errors of append, and whatever the iteration of `batches` raises. After each of these errors the
            transaction can only be aborted.
        """
        with self._appending(topic, partition) as append:
            for batch in batches:
                append.stage(batch)
            return append.offsets(append.commit())

    @contextmanager
    def _appending(self, topic: str, partition: int | None) -> Iterator[Append]:
        self._check_usable()
        try:
            chain, producer = self._producer(topic)
            config = producer.writer.config
            with Append(self._topics.storage, chain, config, self._topics.clock, partition, producer) as append:
                yield append
        except BaseException:
            self._failed = True
            raise

    def commit(self) -> tuple[LogError, ...]:
        """Make all appends of the transaction visible together.

        Returns:
            The errors of topics whose markers could not be appended. The transaction is committed nevertheless:
            Lakelog's readers see it, and finish_transactions appends the markers later.

        Raises:
            TransactionError: the transaction is over, one of its appends has failed, or another process has aborted it.
            StorageError: it is unknown whether the transaction is committed. Then call abort. It raises
                TransactionError if the transaction is committed.
        """
        self._check_usable()
        storage, clock = self._topics.storage, self._topics.clock
        if self.producer_id is not None and not decide(storage, clock, self.producer_id, committed=True):
            raise self._refused("was aborted by another process, because of its timeout or by a command")
        return self._end(committed=True)

    def abort(self) -> tuple[LogError, ...]:
        """Abort the transaction, so that readers of committed records never see its records. If it is over, do nothing.

        Returns:
            The errors of topics whose markers could not be appended, as in commit.

        Raises:
            TransactionError: the transaction is committed: commit raised a StorageError nevertheless, or another process
                has committed it.
            StorageError: the storage refused or failed. The transaction is aborted after its timeout.
        """
        if self._over:
            return ()
        storage, clock = self._topics.storage, self._topics.clock
        if self.producer_id is not None and decide(storage, clock, self.producer_id, committed=False):
            self._end(committed=True)
            problem = "is committed: by another process, or although the storage reported an error for the commit"
            raise TransactionError(self._place, problem, "Do not append the records again.")
        return self._end(committed=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.abort()
        except TransactionError:
            raise  # the first error would say that nothing is committed
        except LogError:
            # The first error is the more useful one. The transaction is aborted after its timeout.
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
            except UnknownTopicError:
                pass  # the topic was deleted, and needs no marker
            except LogError as error:
                problems.append(error)
        # A failed append may still become visible later. So the abort is recorded, and other processes follow this
        # decision.
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
            raise self._refused("has a failed append, so it can only be aborted")

    def _refused(self, problem: str) -> TransactionError:
        return TransactionError(self._place, problem, "Begin a new transaction.")

    @property
    def _place(self) -> str:
        return f"transaction of producer {self.producer_id}"


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction without its marker on at least one partition.

    begun: the record of its beginning; None if the record cannot be read or does not exist (an imported transaction).
    committed: the decision; None if there is none yet.
    places: topic, partition and first offset of each partition without a marker.
    """

    producer_id: int
    begun: TransactionBegin | None
    committed: bool | None
    places: tuple[tuple[str, int, int], ...]


def open_transactions(topics: Topics, states: Iterable[TopicState] | None = None) -> list[OpenTransaction]:
    """The open transactions of some topics, in the order of their beginning.

    Args:
        states: the states of these topics; by default of all topics that can be read.
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
    """Abort all transactions that are past their timeout, and append the missing markers of all decided transactions.
    Calling this twice does no harm.

    Args:
        names: the topics; all by default.

    Returns:
        The number of partitions on which a transaction was ended.

    Raises:
        LogError: a topic could not be finished. This is the first such error; all other topics were finished.
    """
    # This must be read before the states of the topics: a transaction that is decided now cannot become open later.
    passing = passing_decisions(topics.storage) if names is None else {}
    decision = _on_record(topics, passing)
    ended = 0
    problems: list[LogError] = []
    for name in topics.names(with_deleted=True) if names is None else names:
        try:
            if names is not None or topics.find(name) is not None:
                ended += _end_on(topics, topics.chain(name), decision)
        except UnknownTopicError as error:
            if names is not None:  # otherwise another process has deleted the topic meanwhile
                problems.append(error)
        except LogError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    for producer_id in passing:
        forget(topics.storage, producer_id)
    return ended


def abort_transaction(topics: Topics, producer_id: int) -> int:
    """Abort an open transaction, even if a process is working on it or a broker began it.

    Returns:
        The number of partitions on which a transaction was ended.

    Raises:
        TransactionError: the transaction is not open on any partition, or it is committed.
    """
    place = f"transaction of producer {producer_id}"
    if not any(producer_id in open_producers(state) for state in topics.states()[0]):
        raise TransactionError(
            place, "is not open on any partition", "`lakelog transactions list` shows open transactions."
        )
    if decide(topics.storage, topics.clock, producer_id, committed=False):
        raise TransactionError(place, "is committed", "`lakelog transactions finish` appends its missing markers.")
    return finish_transactions(topics)


def _on_record(topics: Topics, known: Mapping[int, bool] = {}) -> Decision:
    """A function that looks up decisions. This function also aborts a transaction that is past its timeout.

    Args:
        known: decisions that were read before and are not looked up again. Their records are deleted as soon as all
            topics have the markers. If a look-up missed such a record, a topic would remain without its marker.
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


def _begun(topics: Topics, producer_id: int) -> TransactionBegin | None:
    """Like read_begun, but None for a damaged record, so that one damaged record does not block other transactions."""
    try:
        return read_begun(topics.storage, producer_id)
    except UNREADABLE:
        return None


def _end_on(topics: Topics, chain: StateChain, decision: Decision, writer: TopicWriter | None = None) -> int:
    """Append the markers of all decided transactions that are open on a topic's partitions, in one version."""
    storage, clock = topics.storage, topics.clock
    for _ in range(_MOST_ATTEMPTS):
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
        folder = staging_folder(state.topic_id, state.version)
        staging = StagingWriter(storage, folder, inline=storage.growing is None)
        try:
            with staging:
                for number, entry, committed in found:
                    kind = ControlType.COMMIT if committed else ControlType.ABORT
                    marker = TransactionMarker(kind, _COORDINATOR_EPOCH)
                    run = encode_end(entry.producer_id, entry.producer_epoch, marker, now_ms, append_time)
                    staging.stage(number, run)
            used.prepare({number for number, _, _ in found}, state)
            used.append(by_partition(staging.runs))
        except TransactionError:
            continue  # another process has ended one of these transactions meanwhile
        finally:
            if writer is None:
                used.close()
            delete_staged(storage, staging.runs)
        return len(found)
    raise ConflictError(
        f"topic {chain.topic}",
        f"other processes ended open transactions of the topic first, {_MOST_ATTEMPTS} times in a row",
        "Run fewer jobs on this topic at the same time.",
    )
