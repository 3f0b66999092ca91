"""Encodes and reads history files. A history file records the change of each version of a topic's state: the process,
the time, the micro-batch, and what was added or removed.

    meta/<topic>/history/00000000000000004200.jsonl     versions 4200 to 4299, one per line

A version is a whole state, and is deleted when a thousand newer versions exist. The version's entry in the history
file remains, and takes a few hundred bytes. A history file contains a hundred versions. Its name is the number of its
first version, which is a multiple of a hundred. So the number of a version determines its file, and no version can be
missing or listed twice. Pruning (topic.chain.pruning) writes the file once, before it deletes the first version that
the file contains. After this write, the history file does not change. If versions were deleted by hand, the file
begins with the first remaining version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from pydantic import Field, ValidationError

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.log.partition_state import Frozen, Int, Long
from storage_engine.storage import Storage, exists
from storage_engine.topic.chain.committing_process import CommittingProcess
from storage_engine.topic.chain.documents import decode_lines, encode_lines
from storage_engine.topic.chain.topic_state import Removal, TopicState, Writer

VERSIONS_PER_FILE = 100
"""This number can never change, because it determines the file of each version."""
_NAME = re.compile(r"([0-9]{20})\.jsonl")


class PartitionChange(Frozen):
    """The change of a partition between two versions. All numbers are differences.

    records: the difference of the high watermarks.
    log_start: the difference of the log start offsets.
    bytes: the difference of the committed sizes.
    segments: the difference of the numbers of segments.
    """

    partition: Int
    records: int = 0
    log_start: int = 0
    bytes: int = 0
    segments: int = 0


class VersionChange(Frozen):
    """The change that one version made.

    change: one line for people, by the process that committed the version.
    committed_by: the process that committed the version; null if an older Lakelog committed it.
    writer: the writer that fed the topic at that time, even if another process committed the version.
    batches: the numbers of the committed micro-batches, by query.
    configs: the overrides that the version set; null for an override that it removed.
    partitions: the partitions that changed; empty if the version's predecessor is unknown.
    removed: the records that the version removed permanently.
    """

    version: Long
    id: str
    parent: str
    written_ms: int
    change: str
    committed_by: CommittingProcess | None = None
    topic_id: str
    deleted: bool = False
    writer: Writer
    batches: dict[str, int] = Field(default_factory=dict)
    configs: dict[str, str | None] = Field(default_factory=dict)
    partitions: tuple[PartitionChange, ...] = ()
    removed: tuple[Removal, ...] = ()


def change_of(before: TopicState | None, state: TopicState) -> VersionChange:
    """The change that a version made.

    Args:
        before: the predecessor of the version; None for version 0, or if the predecessor is unknown. If it has another
            topic id, the topic was deleted and created again, and the change is computed from an empty topic.
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
        committed_by=state.committed_by,
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
    """The number after the last version in the history file that contains this version."""
    return file_start(version) + VERSIONS_PER_FILE


def history_folder(topic: str) -> str:
    """The folder of a topic's history files."""
    return f"meta/{topic}/history"


def history_key(topic: str, version: int) -> str:
    """The key of the history file that contains a version."""
    return f"{history_folder(topic)}/{file_start(version):020d}.jsonl"


def encode_history(key: str, changes: list[VersionChange]) -> bytes:
    """The bytes of the file under this key."""
    return encode_lines(key, [change.model_dump_json(exclude_defaults=True).encode() for change in changes])


def is_rolled_up(storage: Storage, topic: str, version: int) -> bool:
    """Whether the history file that contains a version exists."""
    return exists(storage, history_key(topic, version))


def history_starts(storage: Storage, topic: str) -> Iterator[int]:
    """The first version in each history file, in order. Other files in the folder are left out."""
    folder = f"{history_folder(topic)}/"
    for file in storage.list(folder):
        if found := _NAME.fullmatch(file.key.removeprefix(folder)):
            yield int(found[1])


def missing_starts(storage: Storage, topic: str) -> Iterator[int]:
    """The first version of each history file that is missing between two others. Pruning writes the files in order, so
    such a file was lost."""
    for start, following in pairwise(list(history_starts(storage, topic))):
        while (start := file_end(start)) < following:
            if not is_rolled_up(storage, topic, start):  # a listing may lack a file that was put during the listing
                yield start


def has_other(storage: Storage, state: TopicState) -> bool:
    """Whether an undamaged history file contains another version of this number."""
    try:
        if b'"id":"%b"' % state.id.encode() in storage.read(history_key(state.topic, state.version)):
            return False
        changes = read_history_file(storage, state.topic, state.version)
    except (NotFoundError, CorruptionError):
        return False
    return changes is not None and changes[state.version].id != state.id


def read_history_file(storage: Storage, topic: str, version: int) -> dict[int, VersionChange] | None:
    """The changes in the history file that contains a version, by version, in order; None if the file does not exist.

    Raises:
        CorruptionError: the file is damaged or incomplete.
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
        raise CorruptionError(key, 0, f"a line for each version up to {last}, without gaps", found, _RESTORE)
    return {change.version: change for change in changes}


_WHAT = "the changes of versions, one per line"
_RESTORE = "Restore this file from a backup. No records of the topic depend on this file."
