"""Stores the registered consumers of a topic, and how far each has read, so that cleaning spares unread records.

    meta/<topic>/groups/<name>-<8 hex digits>.json     {"format":2,"name":"export tables/t","kind":"delta export",
                                                        "topic_id":"...","positions":{"0":123},
                                                        "registered_ms":...,"updated_ms":...,
                                                        "digest":"..."}

A consumer registers before it reads, and advances after the records that it read are safe. Each step replaces its file
as a whole. The file is not the authority on what was read: for an export that is the table. After a crash the file is
whole, and at most as far as the consumer. A consumer whose table was restored to an earlier state moves its file back
when it registers again.

A partition without a position has not been read. A damaged file counts as a consumer that has read nothing: it holds
records back for as long as a consumer can (log.holds), and stops no cleaning. A file of a former topic of this name is
ignored. If a consumer is removed but still runs, it appears again when it registers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import Field, ValidationError

from storage_engine.errors import CorruptionError, NotFoundError, StorageAccessError, UnknownConsumerError
from storage_engine.log.holds import Holds
from storage_engine.log.partition_state import Frozen, Int, Long
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import FORMAT, decode_document, encode_document, folders_for_documents
from storage_engine.topic.chain.state import TopicState

EXPORT_KIND = "delta export"
_EXPORT = "export "


class Consumer(Frozen):
    """Who reads a topic. positions: by partition, the offset up to which it has read, excluded. updated_ms: since when
    they are so."""

    format: int = FORMAT
    name: str
    kind: str
    topic_id: str
    positions: dict[Int, Long] = Field(default_factory=dict)
    registered_ms: Long
    updated_ms: Long


@dataclass(frozen=True)
class Consumers:
    """Those of one topic. damaged: files of which nobody knows whose they are."""

    known: tuple[Consumer, ...] = ()
    damaged: tuple[CorruptionError, ...] = ()

    def holds(self, partition: int) -> Holds:
        """How far they have read a partition."""
        read_up_to = {each.name: each.positions.get(partition, 0) for each in self.known}
        return Holds(read_up_to | {f"the damaged file {error.file}": 0 for error in self.damaged})


def export_consumer(table: str) -> str:
    """The name of the consumer that exports to a table. table: its key below the root."""
    return f"{_EXPORT}{table}"


def exported_table(consumer: Consumer) -> str | None:
    """The table that a consumer exports to; None of any other consumer."""
    return consumer.name.removeprefix(_EXPORT) if consumer.kind == EXPORT_KIND else None


def group_folder(topic: str) -> str:
    """Where a topic's consumers lie, ending in a slash."""
    return f"meta/{topic}/groups/"


def read_consumers(storage: Storage, state: TopicState) -> Consumers:
    """The consumers of a topic, in the order of their files' names."""
    known: list[Consumer] = []
    damaged: list[CorruptionError] = []
    for file in storage.list(group_folder(state.topic)):
        try:
            found = _read(storage, file.key)
        except CorruptionError as error:
            damaged.append(error)
        else:
            if found is not None and found.topic_id == state.topic_id:
                known.append(found)
    damaged += folders_for_documents(storage, group_folder(state.topic).rstrip("/"), _WHAT, _REMOVE)
    return Consumers(tuple(known), tuple(damaged))


def all_consumers(storage: Storage, topic: str) -> tuple[Consumer, ...]:
    """Those of every topic that had this name, as far as their files can be read."""
    found = []
    for file in storage.list(group_folder(topic)):
        with suppress(CorruptionError):  # read_consumers names it
            found += [consumer] if (consumer := _read(storage, file.key)) else []
    return tuple(found)


def put_positions(
    storage: Storage, state: TopicState, name: str, kind: str, positions: Mapping[int, int], now_ms: int
) -> None:
    """Register a consumer, advance it, or take it back: these are its positions now.

    Nothing is written where they are on record already.
    """
    key = consumer_key(state.topic, name)
    try:
        found = _read(storage, key)
    except CorruptionError:
        found = None  # and is whole again after this
    if found is not None and found.topic_id != state.topic_id:
        found = None
    if found is not None and found.positions == positions:
        return
    consumer = Consumer(
        name=name,
        kind=kind,
        topic_id=state.topic_id,
        positions=dict(sorted(positions.items())),
        registered_ms=found.registered_ms if found else now_ms,
        updated_ms=now_ms,
    )
    storage.replace(key, encode_document(key, consumer.model_dump_json().encode()))


def forget(storage: Storage, topic: str, name: str) -> None:
    """Let a consumer hold nothing back any more.

    Args:
        name: or the key of a damaged file.

    Raises:
        UnknownConsumerError: there is none of this name.
    """
    there = {file.key for file in storage.list(group_folder(topic))}
    key = name if name in there else consumer_key(topic, name)
    if key not in there:
        raise UnknownConsumerError(
            f"topic {topic}", f"has no consumer {name!r}", "`lakelog consumers list` shows them. Nothing was changed."
        )
    storage.delete(key)


def consumer_key(topic: str, name: str) -> str:
    """Where a consumer's file lies: readable, and another for each name."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{group_folder(topic)}{re.sub('[^a-zA-Z0-9._-]', '-', name)[:200]}-{digest}.json"


def _read(storage: Storage, key: str) -> Consumer | None:
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    except StorageAccessError as error:
        raise CorruptionError(key, 0, _WHAT, error.problem, error.remedy) from error
    try:
        return Consumer.model_validate(decode_document(storage, key, data, _WHAT, _WRITE_ANEW))
    except ValidationError as error:
        raise CorruptionError(key, 0, _WHAT, f"{error.error_count()} wrong fields", _WRITE_ANEW) from error


_WHAT = "a registered consumer"
_REMOVE = "Remove the folder: the consumer's next run writes the file anew."
_WRITE_ANEW = "Its next run writes it anew. If there is none, `lakelog consumers forget` with this path."
