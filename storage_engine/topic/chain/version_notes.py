"""Reads three fields of the versions of a topic's state, from the newest version back to older versions: the time, the
change in words, and the writer's epoch.

If a version still exists, one small read is enough. The partitions of the version are not read, and the lists of its
older segments are not read. A pruned version is one of the hundred lines of a history file
(topic.chain.history_file). Reading may run during commits and pruning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from storage_engine.errors import CorruptionError, NotFoundError
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import decode_document
from storage_engine.topic.chain.history_file import VersionChange, file_start, read_history_file
from storage_engine.topic.chain.segment_lists import RESTORE
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.version_files import version_key

_WHAT = "a topic's state"


class VersionNote(NamedTuple):
    """What one version says about itself.

    written_ms: the time at which the version was written, by its writer's clock.
    change: what the version did, in one line for people.
    topic_id: the id of the topic at this version. A topic that was deleted and created again has another id in older
        versions.
    """

    version: int
    parent: str
    written_ms: int
    change: str
    topic_id: str


def note_of(state: TopicState) -> VersionNote:
    """The note of a version that was read as a whole."""
    return VersionNote(state.version, state.parent, state.written_ms, state.change, state.topic_id)


def notes_before(storage: Storage, state: TopicState, most: int) -> Iterator[VersionNote]:
    """The notes of the versions before a version, the newest first, and at most `most` notes. The notes end where versions
    were deleted by hand.

    Raises:
        CorruptionError: a version or a history file is damaged, or a version does not have the id that the next version
            names.
    """
    parent = state.parent
    pruned: dict[int, VersionChange] = {}
    for version in range(state.version - 1, max(-1, state.version - 1 - most), -1):
        found = pruned.get(version) or _read_note(storage, state.topic, version)
        if found is None:
            pruned = _read_pruned(storage, state.topic, version)
            found = pruned.get(version)
        if found is None:
            return
        if found.id != parent:
            key = version_key(state.topic, version)
            raise CorruptionError(key, 0, f"id {parent}, which version {version + 1} names", f"id {found.id}", RESTORE)
        parent = found.parent
        yield VersionNote(version, found.parent, found.written_ms, found.change, found.topic_id)


class _Identified(NamedTuple):
    id: str
    parent: str
    written_ms: int
    change: str
    topic_id: str


def _read_note(storage: Storage, topic: str, version: int) -> _Identified | None:
    """The note of a version that exists; None if there is no such version, or if it is the file that replaces version 0."""
    key = version_key(topic, version)
    try:
        data = storage.read(key)
    except NotFoundError:
        return None
    document = decode_document(storage, key, data, _WHAT, RESTORE)
    if document.get("id") == "":
        return None
    texts = [document.get(name) for name in ("id", "parent", "change", "topic_id")]
    written_ms = document.get("written_ms")
    if not all(isinstance(each, str) for each in texts) or not isinstance(written_ms, int):
        raise CorruptionError(key, 0, _WHAT, "wrong fields", RESTORE)
    found_id, parent, change, topic_id = map(str, texts)
    return _Identified(found_id, parent, written_ms, change, topic_id)


def _read_pruned(storage: Storage, topic: str, version: int) -> dict[int, VersionChange]:
    """The changes in the history file of a version; none if the file does not exist."""
    return read_history_file(storage, topic, file_start(version)) or {}
