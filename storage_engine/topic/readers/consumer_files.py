"""Stores the consumers of a topic. The position of a consumer shows how far it has read. With these positions, a
reader continues where it stopped, and cleaning keeps unread records.

    meta/<topic>/groups/<name>-<8 hex digits>.json                  a consumer without members, such as an export
    meta/<topic>/groups/<name>-<8 hex digits>.<generation>.json     a group whose member has this generation

    {"format":2,"name":"billing","kind":"group","topic_id":"...","positions":{"0":123},"registered_ms":...,
     "updated_ms":...,"holds_back":false,"generation":4,"joining":false,"member":"...","host":"...",
     "seen_ms":...,"samples":[[<ms>,<position>,<end>],...],"digest":"..."}

A consumer registers before it reads. A consumer raises its positions only after it has safely stored the records that
it has read. Each change replaces the consumer's file. The file of an export is only a report, because the export's
real position is in the exported table. After a crash the file is complete, and the positions in the file are never
higher than the real positions of the consumer. If a table is restored to an earlier state, its consumer lowers its
positions when it registers again. If a group has several files, only one file is used: of the files without
`"joining":true`, the file with the highest generation (topic.readers.membership).

If a consumer has no position for a partition, it has read nothing of this partition. A damaged file counts as a
consumer that has read nothing, so cleaning does not fail. Cleaning keeps records for this consumer for the same time
as for any other consumer (log.holds). Files of a deleted topic of the same name are ignored. If a removed consumer
still runs, it is added again when it registers. If the field holds_back and all later fields are missing in a file,
the file belongs to an export. Cleaning waits for this export.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field, ValidationError

from storage_engine.errors import (
    ConfigError,
    CorruptionError,
    NotFoundError,
    StateError,
    StorageAccessError,
    UnknownConsumerError,
)
from storage_engine.log.holds import Holds
from storage_engine.log.partition_state import Frozen, Int, Long
from storage_engine.storage import Storage, StoredFile
from storage_engine.topic.chain.documents import FORMAT, decode_document, encode_document, folders_for_documents
from storage_engine.topic.chain.topic_state import TopicState

_SETTLED_MS = 10_000
"""If a file's time is at least this old, another change of the file also changes its time. If the time is newer, a change
may leave the time as it is, because some file systems round the times of files to a coarse unit."""
EXPORT_KIND = "delta export"
"""The position is stored in the exported table."""
DATABASE_EXPORT_KIND = "database export"
"""The position is stored in the database of the exported table."""
EXPORT_KINDS = frozenset({EXPORT_KIND, DATABASE_EXPORT_KIND})
GROUP_KIND = "group"
"""The position is stored only in the group's file."""
STREAM_KIND = "stream"
"""The position is stored in a Spark checkpoint."""
ACTIVE_MS = 300_000
"""How long a member that writes nothing counts as active: Kafka's default of max.poll.interval.ms."""
MORE_LISTINGS = 9
"""How often the files are listed again if a member has joined between the listing and the reads."""
_EXPORT = "export "
_MOST_SAMPLES = 10
_SAMPLE_MS = 1_000
_FILE = re.compile(r"(?P<stem>.+-[0-9a-f]{8})(\.(?P<generation>[1-9][0-9]{0,18}))?\.json")


class PositionSample(NamedTuple):
    """How far a consumer had read at one moment.

    ms: the moment.
    position: the sum of the positions of all partitions.
    end: the sum of the log end offsets of all partitions.
    """

    ms: Long
    position: int
    end: int


class Consumer(Frozen):
    """A registered consumer of a topic.

    kind: EXPORT_KIND, DATABASE_EXPORT_KIND, GROUP_KIND or STREAM_KIND.
    positions: by partition, the offset after the last record that the consumer has read.
    registered_ms: the time of the registration.
    updated_ms: the time of the last change of the positions.
    holds_back: whether cleaning waits for this consumer, within limits.
    generation: the number of the member that may commit; 0 for a consumer without members.
    joining: whether the member is still joining. Then this file is not used, but fences the members of lower generations.
    member, host: the name and the machine of this member; empty after the member has left.
    seen_ms: when the member last wrote.
    samples: the last ten samples, oldest first. Two samples are about a second or more apart.
    """

    format: int = FORMAT
    name: str
    kind: str
    topic_id: str
    positions: dict[Int, Long] = Field(default_factory=dict)
    registered_ms: Long
    updated_ms: Long
    holds_back: bool = True
    generation: Long = 0
    joining: bool = False
    member: str = ""
    host: str = ""
    seen_ms: Long = 0
    samples: tuple[PositionSample, ...] = ()

    def is_active(self, now_ms: int) -> bool:
        """Whether a member reads for this group, according to the group's file."""
        return bool(self.member) and now_ms - self.seen_ms < ACTIVE_MS

    def precedes(self, other: Consumer) -> bool:
        """Whether `other`, another file of the same group, is used instead of this file."""
        return (not self.joining, self.generation) < (not other.joining, other.generation)

    def moved(self, state: TopicState, positions: Mapping[int, int], now_ms: int) -> Consumer:
        """A copy of this consumer with other positions."""
        sample = PositionSample(now_ms, sum(positions.values()), sum(part.high_watermark for part in state.partitions))
        older = self.samples
        if len(older) > 1 and max(now_ms - older[-1].ms, older[-1].ms - older[-2].ms) < _SAMPLE_MS:
            older = older[:-1]  # Many quick commits do not fill the list. The last commit before a pause stays.
        return self.model_copy(
            update={
                "positions": dict(sorted(positions.items())),
                "updated_ms": now_ms,
                "samples": (*older, sample)[-_MOST_SAMPLES:],
            }
        )


@dataclass(frozen=True)
class Consumers:
    """The consumers of one topic.

    known: the consumers whose files can be read.
    damaged: an error for each file that cannot be read.
    """

    known: tuple[Consumer, ...] = ()
    damaged: tuple[CorruptionError, ...] = ()

    def holds(self, partition: int) -> Holds:
        """The positions in a partition of the consumers that hold back cleaning."""
        read_up_to = {each.name: each.positions.get(partition, 0) for each in self.known if each.holds_back}
        return Holds(read_up_to | {f"the damaged file {error.file}": 0 for error in self.damaged})


def export_consumer(table: str) -> str:
    """The name of the consumer for the export to a table.

    table: the key of a Delta table below the root; or, for a table of a database, the database and the table.
    """
    return f"{_EXPORT}{table}"


def exported_table(consumer: Consumer) -> str | None:
    """The key of the Delta table that a consumer exports to; None if the consumer is not an export to a Delta table."""
    return consumer.name.removeprefix(_EXPORT) if consumer.kind == EXPORT_KIND else None


def database_table(consumer: Consumer) -> str | None:
    """The database and the table that a consumer exports to; None if the consumer is not an export into a database."""
    return consumer.name.removeprefix(_EXPORT) if consumer.kind == DATABASE_EXPORT_KIND else None


def group_folder(topic: str) -> str:
    """The folder of a topic's consumers, with a slash at its end."""
    return f"meta/{topic}/groups/"


def read_consumers(storage: Storage, state: TopicState) -> Consumers:
    """The consumers of a topic, in the order of their file names."""
    return _consumers(storage, state, lambda file: read_consumer(storage, file.key))


class KeptConsumers:
    """Reads the consumers of one topic repeatedly. A file is read again only if a listing shows that it has changed."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[StoredFile, Consumer | None]] = {}

    def read(
        self, storage: Storage, state: TopicState, now_ms: int, listed: Iterable[StoredFile] | None = None
    ) -> Consumers:
        """The consumers of the topic, as from read_consumers.

        Args:
            now_ms: the wall clock time in milliseconds.
            listed: the files of the topic's consumers, if the caller has just listed them.
        """
        files: dict[str, tuple[StoredFile, Consumer | None]] = {}

        def read(file: StoredFile) -> Consumer | None:
            kept = self._files.get(file.key)
            found = kept[1] if kept is not None and kept[0] == file else read_consumer(storage, file.key)
            if found is not None and now_ms - file.modified_ms > _SETTLED_MS:
                files[file.key] = file, found
            return found

        consumers = _consumers(storage, state, read, listed)
        self._files = files
        return consumers


def _consumers(
    storage: Storage,
    state: TopicState,
    read: Callable[[StoredFile], Consumer | None],
    listed: Iterable[StoredFile] | None = None,
) -> Consumers:
    folder = group_folder(state.topic)
    known, damaged, is_whole = _read_all(state, read, storage.list(folder) if listed is None else listed)
    for _ in range(MORE_LISTINGS):
        if is_whole:
            break
        known, damaged, is_whole = _read_all(state, read, storage.list(folder))
    damaged += folders_for_documents(storage.folders, folder.rstrip("/"), _WHAT, _REMOVE)
    return Consumers(tuple(known.values()), tuple(damaged))


def _read_all(
    state: TopicState, read: Callable[[StoredFile], Consumer | None], files: Iterable[StoredFile]
) -> tuple[dict[str, Consumer], list[CorruptionError], bool]:
    """The consumers by name, an error for each damaged file, and whether the files show one moment: every listed file was
    still there, and each consumer has a file that is not joining."""
    known: dict[str, Consumer] = {}
    damaged: list[CorruptionError] = []
    is_whole = True
    # Lower generations first: topic.readers.membership has the reason.
    for file in sorted(files, key=lambda file: _stem_and_generation(file.key)):
        try:
            found = read(file)
        except CorruptionError as error:
            damaged.append(error)
            continue
        if found is None:
            is_whole = False
        elif found.topic_id == state.topic_id:
            other = known.get(found.name)
            known[found.name] = found if other is None or other.precedes(found) else other
    return known, damaged, is_whole and not any(each.joining for each in known.values())


def all_consumers(storage: Storage, topic: str) -> tuple[Consumer, ...]:
    """The consumers of the topic and of deleted topics of this name. Files that cannot be read are ignored."""
    found = []
    for file in storage.list(group_folder(topic)):
        with suppress(CorruptionError):  # read_consumers reports the damage
            found += [consumer] if (consumer := read_consumer(storage, file.key)) else []
    return tuple(found)


def put_positions(
    storage: Storage,
    state: TopicState,
    name: str,
    kind: str,
    positions: Mapping[int, int],
    now_ms: int,
    *,
    holds_back: bool | None = None,
) -> None:
    """Register a consumer without members, or replace its positions by higher or lower positions. If nothing changes,
    nothing is written.

    A change is one read and one write. The folder is listed only when the consumer is registered: after that, no member can
    join under this name, because its join finds the file of this consumer.

    Args:
        holds_back: whether cleaning waits for the consumer; None leaves this unchanged. Cleaning does not wait for a new
            consumer.

    Raises:
        StateError: a consumer of another kind has this name.
    """
    key = consumer_key(state.topic, name)
    try:
        found = read_consumer(storage, key)
    except CorruptionError:
        found = None  # the damaged file is replaced below
    if found is not None and found.topic_id != state.topic_id:
        found = None
    waits = found is not None and found.holds_back if holds_back is None else holds_back
    if found is not None and found.kind == kind and (found.positions, found.holds_back) == (positions, waits):
        return
    is_registered = found is not None and found.kind == kind
    if not is_registered:
        _check_kind_free(storage, state, name, kind, found)
    consumer = found or Consumer(name=name, kind=kind, topic_id=state.topic_id, registered_ms=now_ms, updated_ms=now_ms)
    consumer = consumer.model_copy(update={"holds_back": waits})
    put_consumer(storage, state.topic, consumer.moved(state, positions, now_ms))
    if not is_registered:
        try:
            _check_kind_free(storage, state, name, kind, None)  # a member may have joined since the first check
        except StateError:
            storage.delete(key)
            raise


def _check_kind_free(storage: Storage, state: TopicState, name: str, kind: str, found: Consumer | None) -> None:
    """Check that no consumer of another kind has this name. Files with generations belong to groups with members; such
    files of a deleted topic are deleted.

    Args:
        found: the consumer without members that has this name.
    """
    others = [found] if found is not None and found.kind != kind else []
    for generation, key in generations(storage, state.topic, name).items():
        member = read_consumer(storage, key) if generation else None
        if member is not None and member.topic_id == state.topic_id:
            others.append(member)
        elif generation:
            storage.delete(key)
    for other in others:
        raise StateError(
            f"group {name}, topic {state.topic}", f"is of kind {other.kind!r}, not {kind!r}",
            "Choose another name, or delete the group: `lakelog groups delete`.",
        )  # fmt: skip


def put_consumer(storage: Storage, topic: str, consumer: Consumer) -> None:
    """Create or replace a consumer's file."""
    key = consumer_key(topic, consumer.name, consumer.generation)
    storage.replace(key, encode_consumer(key, consumer))


def encode_consumer(key: str, consumer: Consumer) -> bytes:
    """The bytes of a consumer's file."""
    return encode_document(key, consumer.model_dump_json().encode())


def forget(storage: Storage, topic: str, name: str) -> None:
    """Remove a consumer, so that cleaning no longer keeps records for it.

    Args:
        name: the consumer's name, or the key of a damaged file.

    Raises:
        UnknownConsumerError: there is no consumer of this name.
    """
    there = {file.key for file in storage.list(group_folder(topic))}
    keys = [name] if name in there else list(generations(storage, topic, name).values())
    if not keys:
        raise UnknownConsumerError(
            f"topic {topic}",
            f"has no consumer {name!r}",
            "`lakelog consumers list` shows all consumers. Nothing was changed.",
        )
    for key in keys:  # the highest generation last, so that no older generation is used again after a crash
        storage.delete(key)


def generations(storage: Storage, topic: str, name: str) -> dict[int, str]:
    """The keys of a consumer's files by generation, the lowest first. After a crash there may be more than one file."""
    stem = _stem(topic, name)
    found = {}
    for file in storage.list(group_folder(topic)):
        there, generation = _stem_and_generation(file.key)
        if there == stem:
            found[generation] = file.key
    return dict(sorted(found.items()))


def check_no_folder(storage: Storage, topic: str, name: str) -> None:
    """Check that no folder is in the place of a consumer's file. Without this check, the consumer would count as new.

    Raises:
        CorruptionError: there is such a folder.
    """
    for wrong in folders_for_documents(storage.folders, group_folder(topic).rstrip("/"), _WHAT, _REMOVE):
        match = _FILE.fullmatch(wrong.file)
        if match is not None and match["stem"] == _stem(topic, name):
            raise wrong


def consumer_key(topic: str, name: str, generation: int = 0) -> str:
    """The key of a consumer's file. It is readable, and different for each name and each generation."""
    return f"{_stem(topic, name)}{f'.{generation}' if generation else ''}.json"


def _stem_and_generation(key: str) -> tuple[str, int]:
    match = _FILE.fullmatch(key)
    return (match["stem"], int(match["generation"] or 0)) if match is not None else (key, 0)


def encoded_group(name: str) -> bytes:
    """The name of a group in UTF-8.

    Raises:
        ConfigError: UTF-8 cannot encode the name.
    """
    try:
        return name.encode()
    except UnicodeEncodeError:
        problem = f"found half a surrogate pair in {name!r:.60}, which UTF-8 cannot encode"
        raise ConfigError("group", problem, "Choose another name.") from None


def _stem(topic: str, name: str) -> str:
    digest = hashlib.sha256(encoded_group(name)).hexdigest()[:8]
    return f"{group_folder(topic)}{re.sub('[^a-zA-Z0-9._-]', '-', name)[:200]}-{digest}"


def read_consumer(storage: Storage, key: str) -> Consumer | None:
    """A consumer by the key of its file; None if there is no such file.

    Raises:
        CorruptionError: the file is damaged.
    """
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
