"""Implements the state chain: the versions of a topic's state. Processes that share only the storage use the state
chain to agree on the newest version.

    meta/<topic>/00000000000000000042.json     version 42, put once, never changed
    meta/<topic>/segments/<name>.json          older segments of one partition (topic.chain.segment_lists)
    meta/<topic>/history/<version>.jsonl       the changes of versions, including deleted ones (topic.chain.history_file)

A change writes the whole state as the next version by put-if-absent. A writer that loses the race reads the new
version, checks that its own change is still valid, and tries again. No process has a lock, so a crashed process leaves
nothing to release.

Pruning deletes old versions and leaves a hole in the chain. A process that was paused for a long time may put its
version into this hole. The following rule, which needs no clock, makes such a version harmless. **A version counts only
if a later check finds two facts: the version's predecessor still exists, and the field `parent` of the version is the
id of this predecessor.** A writer makes this check after it puts a version, and a reader makes this check after it
reads a version. A process recognises the newest version in two steps. First the process finds that the next version
does not exist. Then the process finds that the version itself exists. A put whose reply was lost looks like a lost
race; the id in the file shows whether the put succeeded. A writer can be paused between its put and its check.
Meanwhile, pruning may have deleted the predecessor of the writer's version, and perhaps the writer's version too. In
this case, the history shows whether the writer's version is part of the chain.

An object store may execute a put a second time, after its version was deleted. The second copy has the id that later
versions name, so the rule above does not detect the copy. But pruning deletes a version only after the next version is
in the history, and then newer versions exist. So processes also check the history. A process that has found the newest
version checks that the history does not contain the next version. A process that has put a version checks that the
history does not contain the number of this version.

If the history has later versions than a listing, versions were lost: an old backup was restored, or files were deleted
by hand. New versions would contradict the history. So a process that looks for the newest version gets an error. The
error ends when the versions are restored, or `lakelog verify --repair` extends the chain and sets the history aside.

Version 0 is never deleted. Without version 0, a process that was paused while it created the topic could begin the
chain a second time. But an unchanged version 0 would still be a valid parent. A paused process could then put a version
1 into the hole, and readers would wrongly accept this version 1. So before version 1 is deleted, version 0 is replaced
by a file without an id. This file is the parent of no version.

Every document ends with a digest of its bytes (topic.chain.documents). If a version matches its digest but does not
contain the expected id, its place in the chain counts as a hole. If a version does not match its digest, it is damaged,
and the process that read it stops with an error.

After a crash a version is complete or absent. A chain object belongs to one thread.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from storage_engine.storage import Storage
from storage_engine.topic.chain.committing_process import this_process
from storage_engine.topic.chain.documents import FORMAT, decode_document
from storage_engine.topic.chain.history_file import file_end, has_other, is_rolled_up, read_history_file
from storage_engine.topic.chain.segment_lists import RESTORE, SegmentLists
from storage_engine.topic.chain.state_checks import contradictions
from storage_engine.topic.chain.topic_state import ChangeNote, TopicState
from storage_engine.topic.chain.version_files import encode_state, retired_version, unclear_put, version_key

_ID_BYTES = 128  # enough to hold `{"id":"...","parent":"..."`
_VERSION = re.compile(r"([0-9]{20})\.json")
_MOST_ATTEMPTS = 1000
"""After this many lost races or holes in a row, the caller gets an error."""
_PUTS = 3
"""How often the same version is put if the outcome is unclear."""
_A_STATE = "a topic's state"
LOST_VERSIONS = (
    "The newest versions of the state are missing. Restore these versions from a backup, or run `lakelog verify"
    " --repair`, which restores everything that the view still proves, and then continues without the others. On a"
    " network file system a stale cache can cause this error for at most a minute."
)


class StateChain:
    """The state chain of one topic. A new object begins with a listing; later reads continue from the version last
    read."""

    def __init__(self, storage: Storage, topic: str, clock: Clock, *, ignores_history: bool = False) -> None:
        """
        Args:
            ignores_history: the chain may be read and extended although its history has outrun it. For repairs only.
        """
        self.storage = storage
        self.clock = clock
        self._seen: TopicState | None = None
        self._was_there = False
        self._ignores_history = ignores_history
        self._lists = SegmentLists(storage, topic)
        self.topic = topic

    def newest(self) -> TopicState:
        """The newest state of the topic, even if the topic is deleted.

        Raises:
            UnknownTopicError: there is no chain.
            CorruptionError: a version does not contain a valid state, or versions were lost.
            StorageUnavailableError: this object has already read the chain once, and now the chain is missing.
        """
        state = self.newest_or_none()
        if state is None:
            raise UnknownTopicError(
                f"topic {self.topic}", f"not found under {self.storage.uri}", "`lakelog topics list` shows all topics."
            )
        return state

    def newest_or_none(self) -> TopicState | None:
        """Like newest(), but None if there is no chain."""
        state = self._seen
        for _ in range(_MOST_ATTEMPTS):
            if state is None:
                self._seen = None
                state = self._cold_start()
                if state is None and self._was_there:
                    raise StorageUnavailableError(
                        f"{self.storage.uri}/meta/{self.topic}", "has no version of the state any more",
                        "Lakelog never deletes all versions of a topic. Check whether the file system is mounted.",
                    )  # fmt: skip
                if state is None:
                    return None
            following = self._read(state.version + 1)
            # These checks must come after the read of `following`: a version whose parent is gone does not count.
            if following is None:
                is_there, is_outrun = self._look_again(state)
                if is_there and not is_outrun:
                    self._seen, self._was_there = state, True
                    return state
                if is_outrun and max(self.versions(), default=-1) == state.version:
                    raise self._lost(state.version)
                state = None
            elif self._has_id(state.version, state.id) and following.parent == state.id:
                self._check_format(state.format, following)
                self._make_durable()
                state = following
            else:
                state = None
        raise self._broken()

    def known(self) -> TopicState:
        """The state that this object has read or committed last, which may be older than the newest state. Nothing is
        read, unless this object knows no state yet.

        A change may be planned on this state: `commit` notices if it is not the newest state.
        """
        return self._seen or self.newest()

    def likely_newest(self) -> TopicState:
        """Like newest(), but with one read if there is no newer version. Pruning may have deleted the versions after the
        returned state; then a commit on it fails.
        """
        if self._seen is not None and self._read(self._seen.version + 1) is None:
            return self._seen
        return self.newest()

    def at(self, version: int) -> TopicState | None:
        """A version, or None if it does not exist or was pruned. This does not check whether the version counts:
        compare its id with the `parent` of the next version.

        Raises:
            CorruptionError: the version does not contain a valid state.
        """
        return self._read(version)

    def commit(
        self,
        change: Callable[[TopicState], TopicState | None],
        what: str | Callable[[], ChangeNote],
        newest: TopicState | None = None,
    ) -> TopicState:
        """Apply a change to the newest state, and put the result as the next version.

        Args:
            change: returns the new state for the newest state; called again after each lost race. It raises an error if
                the change no longer makes sense, and returns None if nothing remains to be done.
            what: one line for the topic's history, or a function that returns this line. The function is called after
                each call of `change` that returned a state.
            newest: the newest version as this chain read it a moment ago. If it is still the newest, nothing has to be
                read before the put. If not, the put fails, because the next version exists.

        Returns:
            The committed state, durable and visible to all processes; the newest state if there was nothing to do.

        Raises:
            AmbiguousPutError: the version was put, and it is unknown whether it counts.
            CorruptionError: as in newest(). Nothing was changed.
        """
        for _ in range(_MOST_ATTEMPTS):
            parent = newest or self.newest()
            newest = None
            changed = change(parent)
            if changed is None:
                return parent
            note = ChangeNote(what) if isinstance(what, str) else what()
            committed = self._put_next(changed, parent, note)
            if committed is not None:
                return committed
        raise ConflictError(
            f"topic {self.topic}",
            f"lost the race for the next version {_MOST_ATTEMPTS} times",
            "Run fewer jobs on this topic at the same time.",
        )

    def create(self, first: TopicState) -> TopicState:
        """Begin a chain.

        Raises:
            AlreadyExistsError: the topic already has a chain. Nothing was written to it.
            AmbiguousPutError: it is unknown whether the chain was begun.
        """
        first = self._version(first, 0, "")
        try:
            self.storage.put_new(version_key(self.topic, 0), encode_state(first))
        except (AlreadyExistsError, AmbiguousPutError) as error:
            try:
                is_ours = self._is_ours(first)
            except (StorageError, CorruptionError) as unread:
                raise unclear_put(self.topic, 0, "may have been put, but cannot be read", unread) from error
            if not is_ours and isinstance(error, AmbiguousPutError):
                raise unclear_put(self.topic, 0, "may have been put", error) from error
            if not is_ours:
                raise
        self._seen = first
        self._was_there = True
        return first

    def _version(self, state: TopicState, version: int, parent: str) -> TopicState:
        """The state as a new version of the chain, by this process."""
        numbers = {"id": uuid.uuid4().hex, "parent": parent, "version": version, "committed_by": this_process()}
        return self._lists.spilled(state, version).model_copy(update=numbers)

    def _put_next(self, changed: TopicState, parent: TopicState, note: ChangeNote) -> TopicState | None:
        """Put a version. None if another process put this version first, or if the version was put into a hole and is
        not valid.
        """
        version = parent.version + 1
        written = {"format": FORMAT, "written_ms": self.clock.now_ms(), **note._asdict()}
        changed = self._version(changed, version, parent.id).model_copy(update=written)
        is_created = self._put(changed)
        try:
            is_there = is_created or self._is_ours(changed)
            has_parent, is_outrun = self._look_again(parent)
            if has_parent and not is_outrun:
                self._seen = changed if is_there else self._seen
                return changed if is_there else None
            self._seen = None
            return changed if self._is_in_history(changed, parent, is_there) else None
        except (StorageError, CorruptionError) as error:
            raise unclear_put(self.topic, version, "was put, but the check after it failed", error) from error

    def _put(self, state: TopicState) -> bool:
        """Put a version. True if it was created; False if there is a version of this number, perhaps this one.

        An object store may execute a put after its caller has given up. So if the outcome is unclear and there is no
        version of this number, the same bytes are put again, with the same id. A version with another id could commit
        the same change a second time.

        Raises:
            AmbiguousPutError: it is still unknown whether the version was created, or will be.
        """
        key, data = version_key(self.topic, state.version), encode_state(state)
        unclear: AmbiguousPutError | None = None
        for _ in range(_PUTS):
            try:
                self.storage.put_new(key, data)
                return True
            except AlreadyExistsError:
                return False
            except AmbiguousPutError as error:
                unclear = error
            except StorageError:
                if unclear is None:
                    raise
                break  # the storage refuses this put, but an earlier put may take effect
            try:
                if self._document(state.version) is not None:
                    return False
            except (StorageError, CorruptionError):
                break
        assert unclear is not None
        raise unclear_put(self.topic, state.version, "may have been put", unclear) from unclear

    def _is_ours(self, state: TopicState) -> bool:
        """Whether a put with an unclear result created this version. If so, the version is durable on return."""
        if not self._has_id(state.version, state.id):
            return False
        self._make_durable()
        return True

    def _is_in_history(self, state: TopicState, parent: TopicState, is_there: bool) -> bool:
        """Whether a version counted. Its writer was paused between the put and this check, and meanwhile the version
        was rolled up into the history.

        Args:
            is_there: whether the version was put. If it was put and did not count, then it is in a hole.

        Raises:
            CorruptionError: versions were lost, or were deleted by hand, so it is unknown whether the version counts.
        """
        changes = read_history_file(self.storage, self.topic, state.version)
        found = changes.get(state.version) if changes else None
        if found is not None and found.id == state.id:
            return True
        if found is None:
            raise self._broken()
        newest = self.newest() if is_there else None
        if found.parent != parent.id or (newest is not None and newest.version <= state.version):
            raise self._lost(parent.version)
        return False

    def _look_again(self, state: TopicState) -> tuple[bool, bool]:
        """Whether a version still exists, and whether the history has outrun it: the history contains the next version,
        or another version of this number. On an object store, both answers take the time of one request."""
        if self.storage.reads_at_once > 1:
            with ThreadPoolExecutor(1) as thread, suppress(RuntimeError):  # no thread can be started
                is_outrun = thread.submit(self._is_outrun, state)
                return self._has_id(state.version, state.id), is_outrun.result()
        return self._has_id(state.version, state.id), self._is_outrun(state)

    def _is_outrun(self, state: TopicState) -> bool:
        if self._ignores_history:
            return False
        if file_end(state.version) == state.version + 1 and has_other(self.storage, state):
            return True
        return is_rolled_up(self.storage, self.topic, state.version + 1)

    def _make_durable(self) -> None:
        # A put makes its version visible before the name is durable. Before a process acts on a version of another
        # process, or on its own version after a lost reply, it makes the name durable.
        self.storage.sync_names(f"meta/{self.topic}")

    def versions(self) -> Iterator[int]:
        """The numbers of all versions in a listing, in order, including versions that do not count."""
        folder = f"meta/{self.topic}/"
        for file in self.storage.list(folder):
            name = file.key.removeprefix(folder)
            if name > ":":  # sorts after all digits: only folders follow, which may be large
                return
            if version := _VERSION.fullmatch(name):
                yield int(version[1])

    def retire_first(self) -> None:
        """Replace version 0 by a file that is the parent of no version. The caller does this before it deletes version
        1. The change is durable on return."""
        first = self._document(0)
        if first is not None and first["id"]:
            self.storage.replace(version_key(self.topic, 0), retired_version(self.topic))

    def _cold_start(self) -> TopicState | None:
        before: int | None = None
        while (newest := max(self.versions(), default=-1)) != before:
            if newest < 0:
                return None
            before = newest
            state = self._read(newest)
            if state is not None and (newest == 0 or self._has_id(newest - 1, state.parent)):
                if state.format < FORMAT and (parent := self._document(newest - 1) if newest else None):
                    self._check_format(parent["format"], state)
                self._make_durable()
                return state
        raise self._broken()

    def _broken(self) -> CorruptionError:
        return CorruptionError(
            f"meta/{self.topic}", 0, "a chain in which each version names its predecessor", "an interrupted chain",
            "Restore the missing versions from a backup, or run `lakelog verify --repair`.",
        )  # fmt: skip

    def _lost(self, version: int) -> CorruptionError:
        return CorruptionError(
            f"meta/{self.topic}", 0, f"version {version + 1}, which is in the topic's history",
            f"version {version} as the newest", LOST_VERSIONS,
        )  # fmt: skip

    def _has_id(self, version: int, wanted: str) -> bool:
        """Whether a version exists and has this id.

        Raises:
            CorruptionError: the file does not begin with this id, and does not match its digest, so the id cannot be
                known.
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
        """The fields of a version in any format; None if there is no such version."""
        key = version_key(self.topic, version)
        try:
            data = self.storage.read(key)
        except NotFoundError:
            return None
        document = decode_document(self.storage, key, data, _A_STATE, RESTORE)
        if not isinstance(document.get("id"), str) or not isinstance(document.get("format"), int):
            raise CorruptionError(key, 0, _A_STATE, "neither id nor format", RESTORE)
        return document

    def _check_format(self, parents: int, state: TopicState) -> None:
        """Raise an error if a version has an older format than its parent. Software that writes the older format
        refuses a chain of the newer format, so it cannot have put such a version."""
        if state.format < parents:
            raise CorruptionError(
                version_key(self.topic, state.version), 0, f"format {parents} or newer, like its predecessor",
                f"format {state.format}, which has no digest", RESTORE,
            )  # fmt: skip

    def _read(self, version: int) -> TopicState | None:
        key = version_key(self.topic, version)
        document = self._document(version)
        if document is None or (version == 0 and document["id"] == ""):
            return None
        try:
            state = TopicState.model_validate(document)
        except ValidationError as error:
            raise CorruptionError(key, 0, _A_STATE, f"{error.error_count()} wrong fields", RESTORE) from error
        if (state.topic, state.version) != (self.topic, version):
            expected, found = f"version {version} of topic {self.topic}", f"version {state.version} of {state.topic!r}"
            raise CorruptionError(key, 0, expected, found, RESTORE)
        try:
            state = state.model_copy(
                update={"partitions": tuple(self._lists.unspill(part, state.format) for part in state.partitions)}
            )
        except NotFoundError:
            if self._has_id(version, state.id) and (not version or self._has_id(version - 1, state.parent)):
                raise
            return None  # the version and its lists were pruned during the read, or the version was put into a hole
        for expected, found in contradictions(state):
            raise CorruptionError(key, 0, expected, found, RESTORE)
        return state
