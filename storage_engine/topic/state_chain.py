"""The state chain: how processes that share nothing but the storage agree on a topic's state.

    meta/<topic>/00000000000000000042.json     version 42, put once, never changed
    meta/<topic>/segments/<name>.json          older segments of one partition, named by versions that include them
    meta/<topic>/history/<version>.jsonl       what versions did that may be gone by now (topic.history)

A change writes the whole state as the next version by put-if-absent. Who loses the race reads the new version, checks
that the change still makes sense, and tries again. Nobody holds a lock; a process that dies leaves nothing to release.

A process that slept for long may put its version into a hole that pruning has left. One rule without a clock makes that
harmless: **a version counts only if, looked at afterwards, the one before it is still there and has the id that it
names as parent.** A writer looks after its put, a reader after its read. The newest version is the one whose next name
is absent and which, looked at afterwards, is still there. A put whose reply was lost looks like a lost race; ids tell.
A writer that slept between its put and its look may find both versions pruned, or only the one before: history tells
then whether its own has counted.

Version 0 is never deleted, or a process that slept while the topic was created could begin its chain once more. But if
it stayed as it was, it would still be there for whoever slept behind it, and by the rule version 1 in its hole would
count. So before version 1 goes, version 0 gives way to a file without an id, which is nobody's parent.

A list file's name has the version that names it first. One partition's list is named by versions that follow one
another without a gap: a later one has it from the version before.

Every document ends with a digest of its bytes (topic.documents). A version whose head does not show the id that is
looked for is a hole only if its whole document fits its digest; else it is damage, which stops whoever met it.

After a crash there is a version or there is none. A chain object belongs to one thread.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from storage_engine.clock import Clock
from storage_engine.errors import (
    AlreadyExistsError,
    AmbiguousPutError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    StorageError,
    StorageUnavailableError,
    UnknownTopicError,
)
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment, SegmentList
from storage_engine.storage import Storage
from storage_engine.topic.documents import FORMAT, decode_document, digest_of, encode_document
from storage_engine.topic.history_file import read_history_file
from storage_engine.topic.state import ListedSegments, Told, TopicState
from storage_engine.topic.state_checks import contradictions

_ID_BYTES = 128  # enough to hold `{"id":"...","parent":"..."`
_NEWEST_SEGMENTS = 32
"""How many segments and leader epochs stay in the document when older ones move to a list file."""
_MOST_SEGMENTS = 2 * _NEWEST_SEGMENTS
_VERSION = re.compile(r"([0-9]{20})\.json")
_PATIENCE = 1000
"""How many lost races or holes in a row are taken for a defect and not for bad luck."""


_A_STATE = "a topic's state"
_A_LIST = "a list of segments"
_RESTORE = "`lakelog verify --repair` brings back what can be proven; else restore this file from a backup."
_RETIRED = b'{"id":"","parent":"","version":0,"format":%d,"change":"rolled up into history/"}' % FORMAT
_LIST = re.compile(r"[^./]+\.[0-9]+\.([0-9]+)\.[0-9a-f]{32}\.json")


def version_key(topic: str, version: int) -> str:
    """Where a version of a topic's state lies."""
    return f"meta/{topic}/{version:020d}.json"


def list_folder(topic: str) -> str:
    """Where a topic's list files lie, ending in a slash."""
    return f"meta/{topic}/segments/"


def list_version(key: str) -> int | None:
    """The version that names a list file first; None where this is the key of something else."""
    found = _LIST.fullmatch(key.rpartition("/")[2])
    return int(found[1]) if found else None


class StateChain:
    """One topic's chain. Reading follows it from the version last seen; a fresh object begins with a listing."""

    def __init__(self, storage: Storage, topic: str, clock: Clock) -> None:
        self.storage = storage
        self.clock = clock
        self._seen: TopicState | None = None
        self._was_there = False
        self._lists: dict[str, dict[str, tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]]] = {}
        """By partition, and by name: what was read last, and what was put since."""
        self.topic = topic

    def newest(self) -> TopicState:
        """The topic's state now, whether it says that the topic was deleted or not.

        Raises:
            UnknownTopicError: there is no chain.
            CorruptionError: a version does not hold a state.
            StorageUnavailableError: the chain was there before, and is not.
        """
        state = self.newest_or_none()
        if state is None:
            raise UnknownTopicError(
                f"topic {self.topic}", f"not found under {self.storage.uri}", "`lakelog topics list` shows all topics."
            )
        return state

    def newest_or_none(self) -> TopicState | None:
        """As newest(), None where there is no chain."""
        for _ in range(_PATIENCE):
            if self._seen is None:
                self._seen = self._cold_start()
                if self._seen is None and self._was_there:
                    raise StorageUnavailableError(
                        f"{self.storage.uri}/meta/{self.topic}", "holds no version of the state any more",
                        "Chains do not vanish: see whether the file system is mounted.",
                    )  # fmt: skip
                if self._seen is None:
                    return None
            following = self._read(self._seen.version + 1)
            # Looked at after that read: only now does `following`, or its absence, mean anything.
            still_there = self._has_id(self._seen.version, self._seen.id)
            if still_there and following is None:
                return self._seen
            if still_there and following is not None and following.parent == self._seen.id:
                self._check_format(self._seen.format, following)
                self._accept(following)
            else:
                self._seen = None
        raise self._broken()

    def at(self, version: int) -> TopicState | None:
        """A version as it was put; None where there is none, or none any more. Whether it counts, the `parent` of the
        version behind it tells.

        Raises:
            CorruptionError: it does not hold a state.
        """
        return self._read(version)

    def commit(
        self,
        change: Callable[[TopicState], TopicState | None],
        what: str | Callable[[], Told],
        newest: TopicState | None = None,
    ) -> TopicState:
        """Make a change the next version.

        Args:
            change: gives the new state for the newest one; called again after each lost race. It raises where the
                change no longer makes sense, and returns None where nothing is left to do.
            what: one line for the topic's history; a function is asked after each change that is to be put.
            newest: the newest version when this chain last looked, a moment ago. Where it still is, nothing needs to be
                read before the put; where not, the put finds the next version taken.

        Returns:
            The committed state, durable and visible to all; the newest one where there was nothing to do.
        """
        for _ in range(_PATIENCE):
            parent = newest or self.newest()
            newest = None
            changed = change(parent)
            if changed is None:
                return parent
            told = Told(what) if isinstance(what, str) else what()
            committed = self._put_next(changed, parent, told)
            if committed is not None:
                return committed
        raise ConflictError(
            f"topic {self.topic}", f"lost the race for the next version {_PATIENCE} times", "Run fewer jobs at once."
        )

    def create(self, first: TopicState) -> TopicState:
        """Begin a chain.

        Raises:
            AlreadyExistsError: there is one; this state is not in it.
        """
        first = self._spilled(first, 0).model_copy(update={"version": 0, "parent": "", "id": uuid.uuid4().hex})
        try:
            self.storage.put_new(version_key(self.topic, 0), encode_state(first))
        except (AlreadyExistsError, AmbiguousPutError):
            if not self._is_ours(first):
                raise
        self._seen = first
        self._was_there = True
        return first

    def _put_next(self, changed: TopicState, parent: TopicState, told: Told) -> TopicState | None:
        """Put a version; None where another came first, or where it went into a hole and does not count."""
        version = parent.version + 1
        changed = self._spilled(changed, version).model_copy(
            update={
                "id": uuid.uuid4().hex,
                "parent": parent.id,
                "version": version,
                "format": FORMAT,
                "written_ms": self.clock.now_ms(),
                "change": told.change,
                "removed": told.removed,
            }
        )
        try:
            self.storage.put_new(version_key(self.topic, version), encode_state(changed))
            is_clear = True
        except (AlreadyExistsError, AmbiguousPutError):
            is_clear = False
        try:
            is_there = is_clear or self._is_ours(changed)
            if self._has_id(parent.version, parent.id):
                if not is_there:
                    return None
                self._seen = changed
                return changed
            self._seen = None
            return changed if self._is_rolled_up(changed) else None
        except (StorageError, CorruptionError) as error:
            raise AmbiguousPutError(
                error.place, f"version {version} of topic {self.topic} was put, and then {error.problem}",
                "It may be committed: see `lakelog topics describe` before the same is done again.",
            ) from error  # fmt: skip

    def _is_ours(self, state: TopicState) -> bool:
        """Whether a put whose end is unclear has made this version, which is durable then."""
        if not self._has_id(state.version, state.id):
            return False
        self._make_durable()
        return True

    def _is_rolled_up(self, state: TopicState) -> bool:
        """Whether a version counted although the one before it is gone, because its writer slept between put and look.

        Then it is rolled up: a version goes only after the one behind it has been.
        """
        changes = read_history_file(self.storage, self.topic, state.version)
        found = changes.get(state.version) if changes else None
        return found is not None and found.id == state.id

    def _accept(self, state: TopicState) -> None:
        self._make_durable()
        self._seen = state
        self._was_there = True

    def _make_durable(self) -> None:
        # A put shows its version before the name is durable. Whoever acts on another's, or on one of its own whose
        # reply was lost, makes sure first.
        self.storage.sync_names(f"meta/{self.topic}")

    def versions(self) -> Iterator[int]:
        """The numbers of all versions that a listing shows, in order, whether they count or not."""
        folder = f"meta/{self.topic}/"
        for file in self.storage.list(folder):
            name = file.key.removeprefix(folder)
            if name > ":":  # which follows the digits: what is left are folders, and may be large
                return
            if version := _VERSION.fullmatch(name):
                yield int(version[1])

    def retire_first(self) -> None:
        """Let version 0 be nobody's parent any more. To be done before version 1 is deleted, and durable on return."""
        first = self._document(0)
        if first is not None and first["id"]:
            self.storage.replace(version_key(self.topic, 0), retired_version(self.topic))

    def _cold_start(self) -> TopicState | None:
        for _ in range(_PATIENCE):
            newest = max(self.versions(), default=-1)
            if newest < 0:
                return None
            state = self._read(newest)
            if state is not None and (newest == 0 or self._has_id(newest - 1, state.parent)):
                if state.format < FORMAT and (before := self._document(newest - 1) if newest else None):
                    self._check_format(before["format"], state)
                self._accept(state)
                return state
        raise self._broken()

    def _broken(self) -> CorruptionError:
        return CorruptionError(
            f"meta/{self.topic}", 0, "a chain of versions, each naming the one before", "a chain that is interrupted",
            "Restore the missing versions; nothing was changed.",
        )  # fmt: skip

    def _has_id(self, version: int, wanted: str) -> bool:
        """Whether a version is there and has this id.

        Raises:
            CorruptionError: it does not show this id, and does not fit its digest either: nobody can tell.
        """
        try:
            head = self.storage.read(version_key(self.topic, version), 0, _ID_BYTES)
        except NotFoundError:
            return False
        if head.startswith(b'{"id":"%b","' % wanted.encode()):
            return True
        document = self._document(version)
        return document is not None and document["id"] == wanted

    def _document(self, version: int) -> dict[str, Any] | None:
        """A version's fields, as far as every format has them; None where there is no such version."""
        key = version_key(self.topic, version)
        try:
            data = self.storage.read(key)
        except NotFoundError:
            return None
        document = decode_document(self.storage, key, data, _A_STATE, _RESTORE)
        if not isinstance(document.get("id"), str) or not isinstance(document.get("format"), int):
            raise CorruptionError(key, 0, _A_STATE, "neither id nor format", _RESTORE)
        return document

    def _check_format(self, parents: int, state: TopicState) -> None:
        """Software of an old format refuses a chain of a new one, so it has put no version there."""
        if state.format < parents:
            raise CorruptionError(
                version_key(self.topic, state.version), 0, f"format {parents}, as in the version before",
                f"format {state.format}, which has no digest", _RESTORE,
            )  # fmt: skip

    def _read(self, version: int) -> TopicState | None:
        key = version_key(self.topic, version)
        document = self._document(version)
        if document is None or (version == 0 and document["id"] == ""):
            return None
        try:
            state = TopicState.model_validate(document)
        except ValidationError as error:
            raise CorruptionError(key, 0, _A_STATE, f"{error.error_count()} wrong fields", _RESTORE) from error
        if (state.topic, state.version) != (self.topic, version):
            expected, found = f"version {version} of topic {self.topic}", f"version {state.version} of {state.topic!r}"
            raise CorruptionError(key, 0, expected, found, _RESTORE)
        try:
            state = state.model_copy(
                update={"partitions": tuple(self._unspill(part, state.format) for part in state.partitions)}
            )
        except NotFoundError:
            if self._has_id(version, state.id) and (not version or self._has_id(version - 1, state.parent)):
                raise
            return None  # pruned while it was being read, its lists with it; or put into a hole
        for expected, found in contradictions(state):
            raise CorruptionError(key, 0, expected, found, _RESTORE)
        return state

    def _spilled(self, state: TopicState, version: int) -> TopicState:
        parts = tuple(
            self._spill(f"{state.topic_id}.{number}.{version}", part) for number, part in enumerate(state.partitions)
        )
        return state.model_copy(update={"partitions": parts})

    def _spill(self, stem: str, part: PartitionState) -> PartitionState:
        """Move all but the newest segments and epochs to a list file, once there are many."""
        part = drop_unproven_list(part)
        listed = part.listed or SegmentList("", 0, 0)
        if max(len(part.segments) - listed.segments, len(part.leader_epochs) - listed.leader_epochs) <= _MOST_SEGMENTS:
            return part
        segments = part.segments[:-_NEWEST_SEGMENTS]
        epochs = part.leader_epochs[:-_NEWEST_SEGMENTS]
        name = f"{stem}.{uuid.uuid4().hex}"
        key = self._list_key(name)
        data = encode_list(key, segments, epochs)
        self._put_list(key, data)
        self._lists.setdefault(_partition_of(name), {})[name] = segments, epochs
        listed = SegmentList(name, len(segments), len(epochs), digest_of(data) or "")
        return part.model_copy(update={"listed": listed})

    def _put_list(self, key: str, data: bytes) -> None:
        try:
            self.storage.put_new(key, data)
        except (AlreadyExistsError, AmbiguousPutError) as error:
            # Nobody else uses this name: what stands there is this list, and only the reply was lost.
            try:
                self.storage.read(key, 0, 1)
            except NotFoundError:
                raise error from None
            self.storage.sync_names(list_folder(self.topic))

    def _unspill(self, part: PartitionState, state_format: int) -> PartitionState:
        if part.listed is None:
            return part
        segments, epochs = self._list(part.listed, state_format)
        return part.model_copy(
            update={"segments": segments + part.segments, "leader_epochs": epochs + part.leader_epochs}
        )

    def _list(self, listed: SegmentList, state_format: int) -> tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]:
        known = self._lists.get(_partition_of(listed.name), {})
        if listed.name not in known:
            key = self._list_key(listed.name)
            segments, epochs = decode_list(self.storage, key, listed, state_format)
            known = self._lists[_partition_of(listed.name)] = {listed.name: (segments, epochs)}
        return known[listed.name]

    def _list_key(self, name: str) -> str:
        return f"{list_folder(self.topic)}{name}.json"


def encode_state(state: TopicState) -> bytes:
    """A version's bytes, with its digest, which format 1 has not. What its list files hold is left out."""
    partitions = tuple(_without_listed(part) for part in state.partitions)
    body = state.model_copy(update={"partitions": partitions}).model_dump_json().encode()
    if state.format < FORMAT:
        return body
    return encode_document(version_key(state.topic, state.version), body)


def retired_version(topic: str) -> bytes:
    """What stands in place of version 0 once later versions are deleted: nobody's parent."""
    return encode_document(version_key(topic, 0), _RETIRED)


def encode_list(key: str, segments: Sequence[Segment], epochs: Sequence[LeaderEpoch]) -> bytes:
    """A list file's bytes, with its digest."""
    document = {"format": FORMAT, "segments": segments, "leader_epochs": epochs}
    return encode_document(key, json.dumps(document, separators=(",", ":")).encode())


def decode_list(
    storage: Storage, key: str, listed: SegmentList, state_format: int
) -> tuple[tuple[Segment, ...], tuple[LeaderEpoch, ...]]:
    """What a list file holds.

    Args:
        listed: as the state names the list.
        state_format: of that state. From format 2 on it has the list's digest.

    Raises:
        CorruptionError: these are not the bytes that were put.
        NotFoundError: there is no such list.
    """
    data = storage.read(key)
    if digest_of(data) != (listed.digest or None) or (state_format == FORMAT and not listed.digest):
        raise CorruptionError(key, 0, f"{_A_LIST} with the digest that the state names", "another digest", _RESTORE)
    try:
        found = ListedSegments.model_validate(decode_document(storage, key, data, _A_LIST, _RESTORE))
    except ValidationError as error:
        raise CorruptionError(key, 0, _A_LIST, f"{error.error_count()} wrong fields", _RESTORE) from error
    if (len(found.segments), len(found.leader_epochs)) != (listed.segments, listed.leader_epochs):
        raise CorruptionError(
            key, 0, f"{listed.segments} segments and {listed.leader_epochs} epochs",
            f"{len(found.segments)} and {len(found.leader_epochs)}", _RESTORE,
        )  # fmt: skip
    return found.segments, found.leader_epochs


def _without_listed(part: PartitionState) -> PartitionState:
    """The partition as it stands in the document: without what its list file holds."""
    if part.listed is None:
        return part
    segments, epochs = part.segments[part.listed.segments :], part.leader_epochs[part.listed.leader_epochs :]
    return part.model_copy(update={"segments": segments, "leader_epochs": epochs})


def _partition_of(name: str) -> str:
    """Topic id and partition of a list file."""
    return ".".join(name.split(".")[:2])


def drop_listing(part: PartitionState) -> PartitionState:
    """Forget the list file after a change to a segment or epoch that may stand in it."""
    return part.model_copy(update={"listed": None})


def drop_unproven_list(part: PartitionState) -> PartitionState:
    """Forget a list file of format 1, which has no digest: one that has takes its place."""
    return part if part.listed is None or part.listed.digest else drop_listing(part)
