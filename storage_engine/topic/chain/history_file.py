"""Encodes what each version of a topic's state did (who, when, which micro-batch, what was added or removed), and reads
and writes the history files.

    meta/<topic>/history/00000000000000004200.jsonl     versions 4200 to 4299, one a line

A version is a whole state, and is deleted when a thousand newer versions exist. A history file still says what the
version did, in a few hundred bytes. A file holds a hundred versions, the first of which is a multiple of a hundred and
gives the file its name. So a version's number alone determines its file, and no version can be missing or listed twice.
The process that prunes first (topic.chain.pruning) puts the file once, before it deletes the first of the file's
versions; the file never changes. If versions were deleted by hand, a file begins with the first version that was left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field, ValidationError

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.partition_state import Frozen, Int, Long
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import decode_lines, encode_lines
from storage_engine.topic.chain.state import Removal, TopicState, Writer

VERSIONS_PER_FILE = 100
"""Can never change: it says in which file a version stands."""


class PartitionChange(Frozen):
    """What became of a partition: by how much its high watermark and its log start offset moved, and by how much there
    are more or less committed bytes and segments."""

    partition: Int
    records: int = 0
    log_start: int = 0
    bytes: int = 0
    segments: int = 0


class VersionChange(Frozen):
    """What one version did.

    change: in its writer's words. writer: who fed the topic then, which for cleaning is not who made the change.
    batches: the micro-batches that it committed, by query. configs: the overrides that it set, null for those that it
    removed. partitions: those that changed; none where the version before is not known. removed: what it took for good.
    """

    version: Long
    id: str
    parent: str
    written_ms: int
    change: str
    topic_id: str
    deleted: bool = False
    writer: Writer
    batches: dict[str, int] = Field(default_factory=dict)
    configs: dict[str, str | None] = Field(default_factory=dict)
    partitions: tuple[PartitionChange, ...] = ()
    removed: tuple[Removal, ...] = ()


def change_of(before: TopicState | None, state: TopicState) -> VersionChange:
    """What a version did.

    Args:
        before: the version before; None for version 0, and where it is not known. A topic that was deleted and created
            again begins from nothing.
    """
    old = before if before is not None and before.topic_id == state.topic_id else None
    known = before is not None or not state.version
    queries = old.queries if old else {}
    configs = old.configs if old else {}
    return VersionChange(
        version=state.version,
        id=state.id,
        parent=state.parent,
        written_ms=state.written_ms,
        change=state.change,
        topic_id=state.topic_id,
        deleted=state.deleted,
        writer=state.writer,
        batches={query: batch.batch_id for query, batch in state.queries.items() if queries.get(query) != batch},
        configs={
            key: state.configs.get(key)
            for key in sorted(configs.keys() | state.configs.keys())
            if configs.get(key) != state.configs.get(key)
        },
        partitions=tuple(_partition_changes(old, state)) if known else (),
        removed=state.removed,
    )


def _partition_changes(old: TopicState | None, state: TopicState) -> Iterator[PartitionChange]:
    for number, part in enumerate(state.partitions):
        before = old.partitions[number] if old and number < len(old.partitions) else None
        if before is part:
            continue
        change = PartitionChange(
            partition=number,
            records=part.high_watermark - (before.high_watermark if before else part.log_start_offset),
            log_start=part.log_start_offset - (before.log_start_offset if before else 0),
            bytes=part.size - (before.size if before else 0),
            segments=len(part.segments) - (len(before.segments) if before else 0),
        )
        if change != PartitionChange(partition=number):
            yield change


def file_start(version: int) -> int:
    """The first version of the history file that contains this version."""
    return version - version % VERSIONS_PER_FILE


def file_end(version: int) -> int:
    """The version after the last of the history file that contains this version."""
    return file_start(version) + VERSIONS_PER_FILE


def history_folder(topic: str) -> str:
    """Where the files of a topic's history lie."""
    return f"meta/{topic}/history"


def history_key(topic: str, version: int) -> str:
    """The key of the history file that contains a version."""
    return f"{history_folder(topic)}/{file_start(version):020d}.jsonl"


def encode_history(key: str, changes: list[VersionChange]) -> bytes:
    """The bytes of the file under this key."""
    return encode_lines(key, [change.model_dump_json(exclude_defaults=True).encode() for change in changes])


def is_rolled_up(storage: Storage, topic: str, version: int) -> bool:
    """Whether the history file that contains a version exists."""
    try:
        storage.read(history_key(topic, version), 0, 1)
    except NotFoundError:
        return False
    return True


def read_history_file(storage: Storage, topic: str, version: int) -> dict[int, VersionChange] | None:
    """The changes in the history file that contains a version, by version, in order; None if there is no file yet.

    Raises:
        CorruptionError: it does not hold what it must.
    """
    key = history_key(topic, version)
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    try:
        changes = [
            VersionChange.model_validate_json(line) for line in decode_lines(storage, key, data, _WHAT, _RESTORE)
        ]
    except ValidationError as error:
        raise CorruptionError(key, 0, _WHAT, f"{error.error_count()} wrong fields", _RESTORE) from error
    last = file_end(version) - 1
    if not changes or changes[-1].version != last or any(b.version != a.version + 1 for a, b in pairwise(changes)):
        found = f"{len(changes)} lines" + (f", the last of version {changes[-1].version}" if changes else "")
        raise CorruptionError(key, 0, f"versions that follow one another up to {last}", found, _RESTORE)
    return {change.version: change for change in changes}


_WHAT = "what versions did, one a line"
_RESTORE = "Restore this file from a backup. What was ingested does not depend on it."
