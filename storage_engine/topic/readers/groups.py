"""Stores the registered consumers of a topic and their positions, so that cleaning can spare unread records.

    meta/<topic>/groups/<name>-<8 hex digits>.json     {"format":2,"name":"export tables/t","kind":"delta export",
                                                        "topic_id":"...","positions":{"0":123},
                                                        "registered_ms":...,"updated_ms":...,
                                                        "digest":"..."}

A consumer registers before it reads, and moves its positions after the records that it read are safe. Each change
replaces the consumer's file. The file is only a report: the position of an export, for example, is in its table. After
a crash the file is complete, and its positions are at most as high as those of the consumer. If a table is restored to
an earlier state, its consumer lowers its positions when it registers again.

A consumer has read nothing of a partition without a position. A damaged file counts as a consumer that has read
nothing: cleaning spares records for it as long as for any consumer (log.holds), and no cleaning fails. Files of a
deleted topic of the same name are ignored. A consumer that is removed but still runs is added again when it registers.
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
    """A registered consumer of a topic.

    positions: by partition, the offset after the last record that the consumer has read.
    registered_ms: the time of the registration.
    updated_ms: the time of the last change of the positions.
    """

    format: int = FORMAT
    name: str
    kind: str
    topic_id: str
    positions: dict[Int, Long] = Field(default_factory=dict)
    registered_ms: Long
    updated_ms: Long


@dataclass(frozen=True)
class Consumers:
    """The consumers of one topic.

    known: the consumers whose files can be read.
    damaged: an error for each file that cannot be read.
    """

    known: tuple[Consumer, ...] = ()
    damaged: tuple[CorruptionError, ...] = ()

    def holds(self, partition: int) -> Holds:
        """The positions of the consumers in a partition."""
        read_up_to = {each.name: each.positions.get(partition, 0) for each in self.known}
        return Holds(read_up_to | {f"the damaged file {error.file}": 0 for error in self.damaged})


def export_consumer(table: str) -> str:
    """The name of the consumer for the export to a table.

    table: the key of the table below the root.
    """
    return f"{_EXPORT}{table}"


def exported_table(consumer: Consumer) -> str | None:
    """The table that a consumer exports to; None if the consumer is not an export."""
    return consumer.name.removeprefix(_EXPORT) if consumer.kind == EXPORT_KIND else None


def group_folder(topic: str) -> str:
    """The folder of a topic's consumers, with a slash at its end."""
    return f"meta/{topic}/groups/"


def read_consumers(storage: Storage, state: TopicState) -> Consumers:
    """The consumers of a topic, in the order of their file names."""
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
    damaged += folders_for_documents(storage.folders, group_folder(state.topic).rstrip("/"), _WHAT, _REMOVE)
    return Consumers(tuple(known), tuple(damaged))


def all_consumers(storage: Storage, topic: str) -> tuple[Consumer, ...]:
    """The consumers of the topic and of deleted topics of this name. Files that cannot be read are left out."""
    found = []
    for file in storage.list(group_folder(topic)):
        with suppress(CorruptionError):  # read_consumers reports the damage
            found += [consumer] if (consumer := _read(storage, file.key)) else []
    return tuple(found)


def put_positions(
    storage: Storage, state: TopicState, name: str, kind: str, positions: Mapping[int, int], now_ms: int
) -> None:
    """Register a consumer, or replace its positions by higher or lower ones. If the positions are unchanged, nothing is
    written."""
    key = consumer_key(state.topic, name)
    try:
        found = _read(storage, key)
    except CorruptionError:
        found = None  # the damaged file is replaced below
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
    """Remove a consumer, so that cleaning no longer spares records for it.

    Args:
        name: the consumer's name, or the key of a damaged file.

    Raises:
        UnknownConsumerError: there is no consumer of this name.
    """
    there = {file.key for file in storage.list(group_folder(topic))}
    key = name if name in there else consumer_key(topic, name)
    if key not in there:
        raise UnknownConsumerError(
            f"topic {topic}",
            f"has no consumer {name!r}",
            "`lakelog consumers list` shows all consumers. Nothing was changed.",
        )
    storage.delete(key)


def consumer_key(topic: str, name: str) -> str:
    """The key of a consumer's file. It contains a readable form of the name, and a hash that is different for each
    name."""
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
_REMOVE = "Remove the folder. The consumer's next run writes the file again."
_WRITE_ANEW = (
    "The consumer's next run writes the file again. If the consumer no longer runs, remove the file with `lakelog"
    " consumers forget` and this path."
)
