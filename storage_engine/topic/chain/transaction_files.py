"""Writes a file when a transaction has begun, and later a file with the decision: commit or abort.

    meta/@transactions/<producer id, 20 digits>.begun.json   {"format":2,"begun_ms":...,"timeout_ms":...,"host":...,
                                                              "pid":...,"digest":...}
    meta/@transactions/<producer id, 20 digits>.ended.json   {"format":2,"committed":true,"decided_ms":...,"digest":...}

Each transaction has its own producer id, which is also its name. **The put of .ended.json decides**: this file is
stored once and never changed. A process that finds an existing decision makes this decision durable, and follows it.
From this put on, a commit is effective in all topics. Readers treat a transaction as ended if its commit is recorded,
even if a state still lists the transaction as open. Kafka's readers need markers. The markers are written afterwards,
one version per topic. When every topic has its markers, .begun.json is deleted first, and then .ended.json.

A missing .ended.json has two possible meanings: the transaction is not decided yet, or its files are deleted already.
To distinguish these cases, a reader reads the state again. The files are deleted only when the state of every topic
has the markers. So if the files were deleted, the state has the markers. A topic's name cannot contain `@`, so no
topic uses the folder meta/@transactions/.

**The abort of a Lakelog transaction stays recorded**, because the process that began the transaction can be paused,
and can try to commit later. **The abort of an imported transaction is deleted** as soon as the state of every topic
has the markers. No Lakelog process began an imported transaction. So such a transaction has no .begun.json, and no
process can commit it. The deletion is necessary, because brokers count producer ids from 0: a later import can
contain an open transaction with the same id. If a process crashes between the two deletions, only .ended.json
remains. The next `finish_transactions` deletes this file.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from pydantic import ValidationError

from storage_engine.clock import Clock
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConflictError,
    CorruptionError,
    LogError,
    NotFoundError,
    StorageAccessError,
    StorageError,
    TransactionError,
)
from storage_engine.log.partition_state import Frozen, Long, PartitionState
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import (
    FORMAT,
    NewerDocumentError,
    decode_document,
    encode_document,
    set_aside,
    undo_one_byte,
)
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState

TRANSACTIONS = "meta/@transactions"
"""The folder of the records."""
_BEGUN = ".begun.json"
_ENDED = ".ended.json"
_MOST_ATTEMPTS = 1000
_WORDS = {True: "committed", False: "aborted"}
_WHAT = "a record of a transaction"
_REMEDIES = {
    _BEGUN: "If `lakelog transactions list` shows the transaction, end it with `lakelog transactions abort`. Then remove"
    " this file.",
    _ENDED: "`lakelog verify --repair` undoes one changed byte. Otherwise restore this file from a backup. Without a"
    " backup, find out from the transaction's markers in other topics whether the transaction is committed, and record"
    " this decision again with `lakelog transactions decide`.",
}
UNREADABLE = (CorruptionError, StorageAccessError)
"""The errors that a damaged record raises. A second attempt fails in the same way."""


class TransactionBegin(Frozen):
    """The beginning of a transaction.

    begun_ms: the time of the beginning, by the clock of the process that began it.
    timeout_ms: after this time other processes may abort the transaction.
    host, pid: the process that began the transaction.
    """

    format: int = FORMAT
    begun_ms: Long
    timeout_ms: Long
    host: str
    pid: int


class TransactionEnd(Frozen):
    """The decision on a transaction.

    decided_ms: the time of the decision, by the clock of the process that decided.
    """

    format: int = FORMAT
    committed: bool
    decided_ms: Long


_Document = TypeVar("_Document", TransactionBegin, TransactionEnd)


def _key(producer_id: int, suffix: str) -> str:
    return f"{TRANSACTIONS}/{producer_id:020d}{suffix}"


def begin(storage: Storage, clock: Clock, timeout_ms: int) -> int:
    """Record a new transaction, and return its producer id, which no other transaction has.

    Raises:
        StorageError: the storage refused or failed.
    """
    begun = TransactionBegin(begun_ms=clock.now_ms(), timeout_ms=timeout_ms, host=socket.gethostname(), pid=os.getpid())
    for _ in range(_MOST_ATTEMPTS):
        producer_id = secrets.randbelow(2**63 - 1) + 1
        if _put(storage, _key(producer_id, _BEGUN), begun) == begun:
            return producer_id
    raise ConflictError(
        TRANSACTIONS, f"{_MOST_ATTEMPTS} randomly chosen producer ids are all in use", "Check the files in this folder."
    )


def decide(storage: Storage, clock: Clock, producer_id: int, *, committed: bool) -> bool:
    """Decide a transaction, unless another process has decided it; return whether the transaction is committed.

    Raises:
        AmbiguousPutError: it is unknown whether the transaction is decided.
        StorageError: the transaction is not decided.
    """
    ended = TransactionEnd(committed=committed, decided_ms=clock.now_ms())
    return _put(storage, _key(producer_id, _ENDED), ended).committed


def decide_again(
    storage: Storage, clock: Clock, producer_id: int, states: Iterable[TopicState], *, committed: bool
) -> None:
    """Replace a damaged record of a decision by a decision that the operator knows from another source.

    Args:
        states: the newest states of all topics. Their markers are compared with the decision.

    Raises:
        TransactionError: the record is missing, intact or repairable, or a topic has a marker of the other decision.
        NewerDocumentError: newer software wrote the record.
        StorageError: the storage refused or failed.
    """
    place = f"transaction of producer {producer_id}"
    try:
        ended = read_ended(storage, producer_id)
    except NewerDocumentError:
        raise
    except CorruptionError:
        key = _key(producer_id, _ENDED)
        data = storage.read(key)
        if undo_one_byte(key, data) is not None:
            remedy = "`lakelog verify --repair` restores the record. Nothing was changed."
            raise TransactionError(
                place, "the record of its decision is damaged, but can be repaired", remedy
            ) from None
        is_ours = _has_begun(storage, producer_id)
        for state in states:
            marker = _marker(state, producer_id, is_ours)
            if marker is not None and marker != committed:
                found = f"is {_WORDS[marker]}, as its marker in topic {state.topic} says"
                raise TransactionError(place, found, "Record the same decision. Nothing was changed.") from None
        set_aside(storage, key, data)
        ended = TransactionEnd(committed=committed, decided_ms=clock.now_ms())
        storage.replace(key, encode_document(key, ended.model_dump_json().encode()))
        return
    found = "has no recorded decision" if ended is None else f"is {_WORDS[ended.committed]}"
    raise TransactionError(
        place,
        found,
        "Only a damaged record can be replaced. `lakelog transactions abort` ends an open transaction.",
    )


def _has_begun(storage: Storage, producer_id: int) -> bool:
    try:
        return read_begun(storage, producer_id) is not None
    except UNREADABLE:
        return True


def _marker(state: TopicState, producer_id: int, is_ours: bool) -> bool | None:
    """Whether a transaction is committed according to a topic's markers; None if the topic has no marker of it.

    Args:
        is_ours: whether a Lakelog process began the transaction. If so, the producer id has only this transaction. One
            producer id of an import can have several transactions.
    """
    aborted = (each.producer_id for part in state.partitions for each in part.aborted_transactions())
    if producer_id in aborted:
        return False
    ended = (each.producer_id for part in state.partitions for each in part.producers if each.txn_first_offset < 0)
    return True if is_ours and producer_id in ended else None


def _put(storage: Storage, key: str, document: _Document) -> _Document:
    """Put a document if there is none under this key; return the document that is stored there now."""
    try:
        storage.put_new(key, encode_document(key, document.model_dump_json().encode()))
    except (AlreadyExistsError, AmbiguousPutError) as error:
        try:
            standing = _read(storage, key, type(document))
            if standing is not None:
                _make_durable(storage)
        except (StorageError, CorruptionError):
            raise AmbiguousPutError(error.place, error.problem, error.remedy) from None
        if standing is None:
            raise
        return standing
    return document


def read_begun(storage: Storage, producer_id: int) -> TransactionBegin | None:
    """The beginning of a transaction; None if it is not recorded, for example if the transaction was imported."""
    return _read(storage, _key(producer_id, _BEGUN), TransactionBegin)


def read_ended(storage: Storage, producer_id: int) -> TransactionEnd | None:
    """The decision on a transaction, durable on return; None if none is recorded."""
    ended = _read(storage, _key(producer_id, _ENDED), TransactionEnd)
    if ended is not None:
        _make_durable(storage)
    return ended


def _make_durable(storage: Storage) -> None:
    """Sync the folder of the records.

    A put makes a document visible before its name is durable. A process that acts on a decision of another process,
    even a reader, makes the decision durable first. Otherwise a power cut could leave a marker in one topic and no
    record of the decision for the other topics.
    """
    storage.sync_names(TRANSACTIONS)


def _read(storage: Storage, key: str, kind: type[_Document]) -> _Document | None:
    remedy = _REMEDIES[_BEGUN if key.endswith(_BEGUN) else _ENDED]
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    try:
        return kind.model_validate(decode_document(storage, key, data, _WHAT, remedy))
    except ValidationError as error:
        raise CorruptionError(key, 0, _WHAT, f"{error.error_count()} wrong fields", remedy) from error


def passing_decisions(storage: Storage) -> dict[int, bool]:
    """The decisions whose records are deleted as soon as the state of every topic has the markers, by producer id: all
    commits, and the aborts of imported transactions."""
    found = {}
    for file in storage.list(f"{TRANSACTIONS}/"):
        name = file.key.removeprefix(f"{TRANSACTIONS}/")
        producer_id = name.removesuffix(_ENDED)
        if name.endswith(_ENDED) and producer_id.isdecimal():
            with suppress(*UNREADABLE):  # only an error for the topics in which the transaction is open
                ended = read_ended(storage, int(producer_id))
                # A Lakelog transaction has its .begun.json before any process can decide it.
                if ended is not None and (ended.committed or read_begun(storage, int(producer_id)) is None):
                    found[int(producer_id)] = ended.committed
    return found


def damaged_records(storage: Storage) -> Iterator[LogError]:
    """An error for each record that cannot be read."""
    names = {file.key.split("/")[2] for file in storage.list(f"{TRANSACTIONS}/")}
    if storage.folders is not None:
        names |= {entry.name for entry in storage.folders.entries(TRANSACTIONS) if entry.is_folder}
    for name in sorted(names):
        try:
            if name.endswith(_BEGUN):
                _read(storage, f"{TRANSACTIONS}/{name}", TransactionBegin)
            elif name.endswith(_ENDED):
                _read(storage, f"{TRANSACTIONS}/{name}", TransactionEnd)
        except LogError as error:
            yield error


def forget(storage: Storage, producer_id: int) -> None:
    """Delete the records of a transaction that has its markers in all topics and that no process can continue."""
    storage.delete(_key(producer_id, _BEGUN))
    storage.delete(_key(producer_id, _ENDED))


def open_producers(state: TopicState) -> set[int]:
    """The producer ids of the transactions that are open on at least one partition of a topic."""
    return {entry.producer_id for part in state.partitions for entry in part.producers if entry.txn_first_offset >= 0}


def newest_decided(storage: Storage, chain: StateChain) -> TopicState:
    """A topic's newest state for readers of committed records: transactions whose commit is decided count as ended.

    The result is for reading only; do not commit it. If no transaction is open, only the state is read.

    Raises:
        UnknownTopicError: there is no chain.
    """
    committed: dict[int, bool] = {}
    for _ in range(_MOST_ATTEMPTS):
        state = chain.newest()
        unknown = open_producers(state) - committed.keys()
        if not unknown:
            # The decision on each open transaction was looked up before this state was read. If there was no decision
            # then, the transaction was not decided: the records are deleted only after every state has the markers.
            return _without(state, committed)
        for producer_id in unknown:
            ended = read_ended(storage, producer_id)
            committed[producer_id] = ended is not None and ended.committed
    raise ConflictError(
        f"topic {chain.topic}", f"got new transactions during {_MOST_ATTEMPTS} reads in a row", "Read again."
    )


def _without(state: TopicState, committed: Mapping[int, bool]) -> TopicState:
    if not any(committed.values()):
        return state
    return state.model_copy(update={"partitions": tuple(_ended(part, committed) for part in state.partitions)})


def _ended(part: PartitionState, committed: Mapping[int, bool]) -> PartitionState:
    producers = tuple(
        entry._replace(txn_first_offset=-1) if committed.get(entry.producer_id) else entry for entry in part.producers
    )
    return part.model_copy(update={"producers": producers})
