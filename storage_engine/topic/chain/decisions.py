"""Records that a transaction has begun, and whether it was decided to commit or to abort it.

    meta/@transactions/<producer id, 20 digits>.begun.json   {"format":2,"begun_ms":...,"timeout_ms":...,"host":...,
                                                              "pid":...,"digest":...}
    meta/@transactions/<producer id, 20 digits>.ended.json   {"format":2,"committed":true,"decided_ms":...,"digest":...}

A transaction has a producer id of its own, so the id names it. **One put decides**: .ended.json is put once and never
changed. A second process that decides makes the existing decision durable, and follows it. From that moment on, a
commit counts in all topics together: readers treat a transaction that a state calls open as ended if its commit is on
record. Markers, which Kafka's readers need, are written afterwards, one version a topic. Then both files are deleted,
.begun.json first.

So a missing decision can mean that there is none yet, or none any more. A reader tells the two apart by reading the
state again: before the files are deleted, every state has its markers. No topic's name contains `@`.

**An abort is deleted only if no paused process can miss it.** The abort of a transaction of ours stays on record,
because the process that began the transaction may resume and commit. An imported transaction was begun by no process of
ours and has no .begun.json, so its abort is deleted once every state has its markers. It must be: brokers count their
producer ids from 0, and another import may bring an open transaction of the same id, which is not decided yet. A crash
in between leaves .ended.json alone, and the next `finish_transactions` removes it.
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
    TransactionError,
)
from storage_engine.log.partition_state import Frozen, Long, PartitionState
from storage_engine.storage import Storage, ViewableStorage
from storage_engine.topic.chain.documents import (
    FORMAT,
    NewerDocumentError,
    decode_document,
    encode_document,
    set_aside,
    undo_one_byte,
)
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain

TRANSACTIONS = "meta/@transactions"
"""Where they lie."""
_BEGUN = ".begun.json"
_ENDED = ".ended.json"
_PATIENCE = 1000
_WORDS = {True: "committed", False: "aborted"}
_WHAT = "a record of a transaction"
_REMEDIES = {
    _BEGUN: "`lakelog transactions abort` ends the transaction if `lakelog transactions list` shows it; then remove this"
    " file.",
    _ENDED: "`lakelog verify --repair` undoes one changed byte. Else restore this file from a backup. Without one, the"
    " transaction's markers in other topics say whether it is committed: `lakelog transactions decide` puts that on record"
    " again.",
}
UNREADABLE = (CorruptionError, StorageAccessError)
"""What a damaged record raises. Trying again does not help."""


class Begun(Frozen):
    """Who began a transaction and when, by its own clock, and after how long others may abort it."""

    format: int = FORMAT
    begun_ms: Long
    timeout_ms: Long
    host: str
    pid: int


class Ended(Frozen):
    """How a transaction ends, and since when, by the clock of who decided it."""

    format: int = FORMAT
    committed: bool
    decided_ms: Long


_Document = TypeVar("_Document", Begun, Ended)


def _key(producer_id: int, suffix: str) -> str:
    return f"{TRANSACTIONS}/{producer_id:020d}{suffix}"


def begin(storage: Storage, clock: Clock, timeout_ms: int) -> int:
    """Record a new transaction; returns its producer id, which no other has.

    Raises:
        StorageError: the storage refused or failed.
    """
    begun = Begun(begun_ms=clock.now_ms(), timeout_ms=timeout_ms, host=socket.gethostname(), pid=os.getpid())
    for _ in range(_PATIENCE):
        producer_id = secrets.randbelow(2**63 - 1) + 1
        if _put(storage, _key(producer_id, _BEGUN), begun) == begun:
            return producer_id
    raise ConflictError(TRANSACTIONS, f"{_PATIENCE} random producer ids were taken", "Look at what stands there.")


def decide(storage: Storage, clock: Clock, producer_id: int, *, committed: bool) -> bool:
    """Decide how a transaction ends, if nobody has; returns whether it is committed.

    Raises:
        AmbiguousPutError: nobody can tell yet whether it is decided.
        StorageError: it is not decided.
    """
    ended = Ended(committed=committed, decided_ms=clock.now_ms())
    return _put(storage, _key(producer_id, _ENDED), ended).committed


def decide_again(
    storage: Storage, clock: Clock, producer_id: int, states: Iterable[TopicState], *, committed: bool
) -> None:
    """Put a decision in the place of a record that is damaged, as somebody knows it from elsewhere.

    Args:
        states: the newest of all topics, whose markers may say otherwise.

    Raises:
        TransactionError: the record is not there, or not damaged, or can be repaired; or a topic has another marker.
        NewerDocumentError: newer software has written the record.
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
            remedy = "`lakelog verify --repair` brings it back. Nothing was changed."
            raise TransactionError(place, "has a record that can be proven", remedy) from None
        is_ours = _has_begun(storage, producer_id)
        for state in states:
            marker = _marker(state, producer_id, is_ours)
            if marker is not None and marker != committed:
                found = f"is {_WORDS[marker]}, as its marker in topic {state.topic} says"
                raise TransactionError(place, found, "Decide the same. Nothing was changed.") from None
        set_aside(storage, key, data)
        ended = Ended(committed=committed, decided_ms=clock.now_ms())
        storage.replace(key, encode_document(key, ended.model_dump_json().encode()))
        return
    found = "has no decision on record" if ended is None else f"is {_WORDS[ended.committed]}"
    raise TransactionError(
        place, found, "Only the place of a damaged record can be taken. `lakelog transactions abort` ends an open one."
    )


def _has_begun(storage: Storage, producer_id: int) -> bool:
    try:
        return read_begun(storage, producer_id) is not None
    except UNREADABLE:
        return True


def _marker(state: TopicState, producer_id: int, is_ours: bool) -> bool | None:
    """Whether a transaction is committed, as a marker in a topic says; None where no marker does.

    Args:
        is_ours: whether the producer id has this one transaction. A broker's producers have several.
    """
    aborted = (each.producer_id for part in state.partitions for each in part.aborted_transactions())
    if producer_id in aborted:
        return False
    ended = (each.producer_id for part in state.partitions for each in part.producers if each.txn_first_offset < 0)
    return True if is_ours and producer_id in ended else None


def _put(storage: Storage, key: str, document: _Document) -> _Document:
    """Put a document where there is none; returns the one that stands there now."""
    try:
        storage.put_new(key, encode_document(key, document.model_dump_json().encode()))
    except (AlreadyExistsError, AmbiguousPutError):
        standing = _read(storage, key, type(document))
        if standing is None:
            raise
        _make_durable(storage)
        return standing
    return document


def read_begun(storage: Storage, producer_id: int) -> Begun | None:
    """Who began a transaction; None where that is not on record, as of one that a broker left."""
    return _read(storage, _key(producer_id, _BEGUN), Begun)


def read_ended(storage: Storage, producer_id: int) -> Ended | None:
    """How a transaction ends, durably; None where that is not on record."""
    ended = _read(storage, _key(producer_id, _ENDED), Ended)
    if ended is not None:
        _make_durable(storage)
    return ended


def _make_durable(storage: Storage) -> None:
    """Another process's put shows a document before its name is durable. Whoever acts on it, a reader too, makes sure
    first: a power cut must not leave one topic with its marker, and another with nothing that says how it was decided."""
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
    """The decisions that go once every state has its markers, by producer id: commits, and aborts of transactions that no
    process of ours began."""
    found = {}
    for file in storage.list(f"{TRANSACTIONS}/"):
        name = file.key.removeprefix(f"{TRANSACTIONS}/")
        producer_id = name.removesuffix(_ENDED)
        if name.endswith(_ENDED) and producer_id.isdecimal():
            with suppress(*UNREADABLE):  # an error for the topics that depend on it, and for no other
                ended = read_ended(storage, int(producer_id))
                # Who began one of ours said so before anybody could decide.
                if ended is not None and (ended.committed or read_begun(storage, int(producer_id)) is None):
                    found[int(producer_id)] = ended.committed
    return found


def damaged_records(storage: Storage) -> Iterator[LogError]:
    """What is wrong with each record that cannot be read."""
    names = {file.key.split("/")[2] for file in storage.list(f"{TRANSACTIONS}/")}
    if isinstance(storage, ViewableStorage):
        names |= {entry.name for entry in storage.entries(TRANSACTIONS) if entry.is_folder}
    for name in sorted(names):
        try:
            if name.endswith(_BEGUN):
                _read(storage, f"{TRANSACTIONS}/{name}", Begun)
            elif name.endswith(_ENDED):
                _read(storage, f"{TRANSACTIONS}/{name}", Ended)
        except LogError as error:
            yield error


def forget(storage: Storage, producer_id: int) -> None:
    """Remove the records of a transaction that has its markers everywhere, and that nobody can go on with."""
    storage.delete(_key(producer_id, _BEGUN))
    storage.delete(_key(producer_id, _ENDED))


def open_producers(state: TopicState) -> set[int]:
    """The producer ids of transactions that have no marker on some partition of a topic."""
    return {entry.producer_id for part in state.partitions for entry in part.producers if entry.txn_first_offset >= 0}


def newest_decided(storage: Storage, chain: StateChain) -> TopicState:
    """A topic's newest state as readers of committed records take it: what is decided to be committed is not open.

    It is for reading only. Without open transactions it costs nothing more than the state.

    Raises:
        UnknownTopicError: there is no chain.
    """
    committed: dict[int, bool] = {}
    for _ in range(_PATIENCE):
        state = chain.newest()
        unknown = open_producers(state) - committed.keys()
        if not unknown:
            # Each that is open in this state was looked up before it was read: no decision means that there is none.
            return _without(state, committed)
        for producer_id in unknown:
            ended = read_ended(storage, producer_id)
            committed[producer_id] = ended is not None and ended.committed
    raise ConflictError(f"topic {chain.topic}", f"had new transactions {_PATIENCE} times in a row", "Read again.")


def _without(state: TopicState, committed: Mapping[int, bool]) -> TopicState:
    if not any(committed.values()):
        return state
    return state.model_copy(update={"partitions": tuple(_ended(part, committed) for part in state.partitions)})


def _ended(part: PartitionState, committed: Mapping[int, bool]) -> PartitionState:
    producers = tuple(
        entry._replace(txn_first_offset=-1) if committed.get(entry.producer_id) else entry for entry in part.producers
    )
    return part.model_copy(update={"producers": producers})
