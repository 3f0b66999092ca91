"""Restores lost versions. The repair also restores documents under meta/, and lists under staging/, whose digests no
longer match.

A damaged document is restored only if its content is proved. The proof is the digest in the damaged document itself,
or an undamaged document. Documents are restored in this order:

    document with one wrong byte   The digest proves which byte restores the document.
    record of the root's format    The content is the same in every root whose documents all have digests.
    list of segments               The version before the first version that names the list has the same segments. The
                                   digest proves this.
    history file                   The file is derived from its versions, if all of them still exist.
    version with a follower        The follower is the next version. The follower's state is stored again, under the id
                                   of the follower's parent. A version is a whole state, so all processes find the same
                                   data as before. A lost version is restored in the same way, but only if its
                                   follower is part of the chain up to the newest version.
    newest version                 The state is derived from the version before it. Facts that only the view proves are
                                   added (proven_state.py).

If the newest version is restored, the epoch of the writer is raised. So a writer that read the damaged version is
fenced, and cannot continue after a lost micro-batch. Sometimes the view proves that additional records were
committed. No file says which micro-batch appended these records. So if the view proves additional records, the state
marks the last batch of each query as unknown. An ingest that starts again is then refused, and the error lists the
choices. So the ingest cannot lose or repeat a row without an error. If there are no additional records, the last
batch of each query is taken from the version before the restored version.

If the history names later versions than the chain has, these versions were lost. The chain is then extended as after
the loss of the newest version, and the history files of the lost versions are moved to `damaged/`.

A file can contain bytes that no document names. Nothing shows whether these bytes were committed. The repair never
makes these bytes visible, but the report lists them. A damaged report of an ingest is removed, because a running ingest
writes it again. Each replaced document is kept as `meta/<topic>/damaged/<file
name>.<random>`. After a crash, each document is the complete old or the complete new document. A second repair
finishes the work.

A writer that read the newest version before the damage checks only the version's id. This writer can still commit the
next version, which is a whole state with everything that the damaged version contained. So the restored version keeps
the old id if the id can be read. If the writer has committed the next version, the damaged version is restored a
second time, from this next version. If the id is lost, the writer detects the damage or the new epoch, and stops.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

from storage_engine.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from storage_engine.log.filenames import LOG, data_folder, is_offset_name
from storage_engine.log.partition_state import SegmentList
from storage_engine.quantities import counted, shown_size
from storage_engine.storage import Storage
from storage_engine.topic.chain.documents import (
    FORMAT,
    ROOT_RECORD,
    NewerDocumentError,
    decode_document,
    digest_of,
    root_record,
    set_aside,
    undo_one_byte,
)
from storage_engine.topic.chain.history_file import (
    file_end,
    has_other,
    history_folder,
    history_key,
    history_starts,
    is_rolled_up,
    read_history_file,
)
from storage_engine.topic.chain.pruning import derived_history
from storage_engine.topic.chain.segment_lists import encode_list, list_folder, list_version
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import RESTORED, TopicState
from storage_engine.topic.chain.version_files import encode_state, retired_version, version_key
from storage_engine.topic.ingest_reports import is_report
from storage_engine.topic.topics import Topics
from storage_engine.verify.findings import Restored
from storage_engine.verify.root.damaged_documents import A_DOCUMENT, all_have_digests, damaged_documents
from storage_engine.verify.root.lost_versions import lost_versions
from storage_engine.verify.root.proven_state import ProvenState, prove_state

_HEAD = re.compile(rb'\{"id":"([0-9a-f]{32})","parent":"([0-9a-f]{32}|)",')


def repair_documents(topics: Topics, topic: str | None = None) -> list[Restored]:
    """Restore what can be proven, for one topic or all. Returns the restored documents and their sources.

    Raises:
        StorageError: the storage refused. Documents that were restored before stay restored.
    """
    storage = topics.storage
    done: list[Restored] = []
    left: dict[str, list[str]] = {}
    for error in damaged_documents(storage, topic):
        try:
            data = storage.read(error.file)
        except NotFoundError:
            continue  # a consumer that was removed meanwhile
        fitting = undo_one_byte(error.file, data)
        if fitting is not None:
            position = next(at for at, (one, other) in enumerate(zip(data, fitting, strict=True)) if one != other)
            _replace(storage, error.file, data, fitting)
            done.append(Restored(error.file, f"the byte at position {position}", "the digest of the document"))
        elif error.file == ROOT_RECORD and not isinstance(error, NewerDocumentError) and all_have_digests(storage):
            _replace(storage, error.file, data, root_record())
            source = "the constant content of this file; all other documents have digests"
            done.append(Restored(error.file, "the format of the root's documents", source))
        elif is_report(error.file) and not isinstance(error, NewerDocumentError):
            set_aside(storage, error.file, data)
            storage.delete(error.file)
        else:
            left.setdefault(error.file.split("/")[1], []).append(error.file)
    for name in [topic] if topic is not None else list(topics.names(with_deleted=True)):
        done += _Chain(topics, name, left.get(name, ())).repair()
    return done


def _replace(storage: Storage, key: str, old: bytes, new: bytes) -> None:
    """Replace a damaged document. The damaged document is saved first."""
    set_aside(storage, key, old)
    storage.replace(key, new)


class _Chain:
    """The repair of one topic's chain. damaged: the keys of its documents that do not match their digests."""

    def __init__(self, topics: Topics, name: str, damaged: Sequence[str]) -> None:
        self._damaged = damaged
        self._topics = topics
        self._storage = topics.storage
        self._name = name
        self._chain = topics.chain(name)

    def repair(self) -> Iterator[Restored]:
        yield from self._lists()
        yield from self._versions()
        yield from self._history()
        yield from self._lost_versions()

    # Lists of segments

    def _lists(self) -> Iterator[Restored]:
        named: dict[str, tuple[int, SegmentList]] = {}
        for key in self._damaged:
            if key.startswith(list_folder(self._name)) and list_version(key) is not None:
                named = named or self._named_lists()
                name = key.removeprefix(list_folder(self._name)).removesuffix(".json")
                if name in named and (data := self._list_as_before(key, *named[name])) is not None:
                    _replace(self._storage, key, self._storage.read(key), data)
                    source = f"version {(list_version(key) or 0) - 1} of the state; the digest proves this"
                    yield Restored(key, "the list of segments", source)

    def _named_lists(self) -> dict[str, tuple[int, SegmentList]]:
        """The lists that versions name, each with its partition."""
        named: dict[str, tuple[int, SegmentList]] = {}
        for version in self._chain.versions():
            key = version_key(self._name, version)
            with suppress(CorruptionError, NotFoundError, TypeError, KeyError):
                parts = decode_document(self._storage, key, self._storage.read(key), A_DOCUMENT, "")["partitions"]
                listed = ((number, part["listed"]) for number, part in enumerate(parts))
                named |= {each[0]: (number, SegmentList(*each)) for number, each in listed if each}
        return named

    def _list_as_before(self, key: str, number: int, listed: SegmentList) -> bytes | None:
        """The list's bytes, made of the segments in the version before the first version that names the list."""
        before = self._state((list_version(key) or 0) - 1)
        if before is None or number >= len(before.partitions):
            return None
        part = before.partitions[number]
        for first_epoch in range(len(part.leader_epochs) - listed.leader_epochs + 1):
            for first in range(len(part.segments) - listed.segments + 1):
                segments = part.segments[first : first + listed.segments]
                data = encode_list(key, segments, part.leader_epochs[first_epoch : first_epoch + listed.leader_epochs])
                if digest_of(data) == listed.digest:
                    return data
        return None

    # Versions

    def _versions(self) -> Iterator[Restored]:
        numbers = list(self._chain.versions())
        damaged = {version for version in numbers if self._is_damaged(version)}
        lost = {each for _, gap in lost_versions(self._storage, self._chain, numbers) for each in gap}
        if 0 in damaged | lost and 1 not in {*numbers, *lost} and numbers[-1:] > [0]:
            yield from self._retired_first(0 in lost)
            damaged, lost = damaged - {0}, lost - {0}
        for version in sorted(damaged | lost, reverse=True):
            if version in lost:
                yield from self._as_named_by_its_follower(version, numbers[-1])
                continue
            key = version_key(self._name, version)
            data = self._storage.read(key)
            before = self._state(version - 1)
            head = _HEAD.match(data)
            parent = (
                before.id if before is not None else head[2].decode() if head else uuid.uuid4().hex if version else ""
            )
            done = self._as_followed(key, data, version, parent)
            if done is None and version == numbers[-1]:
                version_id = head[1].decode() if head else uuid.uuid4().hex
                done = self._as_proven(key, data, version, parent, version_id, damaged)
            if done is not None:
                yield done

    def _retired_first(self, is_lost: bool) -> Iterator[Restored]:
        """Restore version 0 of a chain whose version 1 was pruned."""
        key = version_key(self._name, 0)
        if is_lost:
            self._storage.put_new(key, retired_version(self._name))
        else:
            _replace(self._storage, key, self._storage.read(key), retired_version(self._name))
        yield Restored(key, "version 0, which marks the topic's name as used", "the constant content of this file")

    def _as_named_by_its_follower(self, version: int, newest: int) -> Iterator[Restored]:
        """Restore a lost version from the version that follows it, and that names it as its parent.

        A process may have put the follower into a hole of the chain, or after versions that are lost now. So each
        version after the lost version must name the version before it, up to the newest version, and the history must
        neither contradict these versions nor contain later ones. If several versions in a row are lost, only the last
        of them is restored: nothing proves the ids of the others.
        """
        after = self._state(version + 1)
        if after is None or after.change.startswith(_restored_from(version + 2)):
            return
        if has_other(self._storage, after) or is_rolled_up(self._storage, self._name, newest + 1):
            return
        with suppress(CorruptionError):
            rolled_up = read_history_file(self._storage, self._name, version) or {}
            if version in rolled_up and rolled_up[version].id != after.parent:
                return
        last = after
        while last.version < newest:
            state = self._state(last.version + 1)
            if state is None or state.parent != last.id:
                return
            last = state
        if has_other(self._storage, last):
            return
        before = self._state(version - 1)
        parent = before.id if before is not None else uuid.uuid4().hex if version else ""
        key = version_key(self._name, version)
        with suppress(AlreadyExistsError):  # a listing on a network file system may have lacked the version
            self._storage.put_new(key, _copied_from(after, parent))
            yield Restored(key, "a version with a follower", f"version {version + 1}")

    def _as_followed(self, key: str, data: bytes, version: int, parent: str) -> Restored | None:
        """Restore a version from the version that follows it. None: there is no follower."""
        after = self._state(version + 1)
        if after is None:
            return None
        _replace(self._storage, key, data, _copied_from(after, parent))
        return Restored(key, "a version with a follower", f"version {version + 1}")

    def _as_proven(
        self, key: str, data: bytes, version: int, parent: str, version_id: str, damaged: set[int]
    ) -> Restored | None:
        """Restore the newest version from the version before it and the facts that the view proves. None: impossible."""
        last = self._last_intact(version, damaged)
        if last is None:
            return None
        try:
            proven = prove_state(self._topics, last)
        except CorruptionError:  # the view shows more than its files prove, so the finding is kept
            return None
        update = {
            "id": version_id, "parent": parent, "version": version, "change": _repair_text(last, proven), "format": FORMAT,
            "written_ms": self._topics.clock.now_ms(), "removed": (),
        }  # fmt: skip
        _replace(self._storage, key, data, encode_state(proven.state.model_copy(update=update)))
        # A writer that had read this version may have written the next version meanwhile.
        return self._as_followed(key, data, version, parent) or self._restored(key, proven)

    def _is_damaged(self, version: int) -> bool:
        try:
            self._chain.at(version)
        except CorruptionError:
            return True
        except NotFoundError:  # the version was pruned meanwhile
            pass
        return False

    def _state(self, version: int) -> TopicState | None:
        with suppress(CorruptionError, NotFoundError):
            return self._chain.at(version) if version >= 0 else None
        return None

    def _last_intact(self, version: int, damaged: set[int]) -> TopicState | None:
        """The newest earlier version that is intact and valid, if only damaged versions are between it and this
        version.
        """
        while version - 1 in damaged:
            version -= 1
        last = self._state(version - 1)
        if last is None or not last.version:
            return last
        before = self._state(last.version - 1)
        return last if before is not None and before.id == last.parent else None

    # History

    def _history(self) -> Iterator[Restored]:
        folder = f"{history_folder(self._name)}/"
        for key in self._damaged:
            stem = key.removeprefix(folder).removesuffix(".jsonl")
            if not key.startswith(folder) or not is_offset_name(stem):
                continue
            with suppress(CorruptionError):
                data = derived_history(self._storage, self._chain, int(stem))
                if data is not None:
                    _replace(self._storage, key, self._storage.read(key), data)
                    yield Restored(key, "the changes of a hundred versions", "these versions")

    # Facts that the view proves

    def _lost_versions(self) -> Iterator[Restored]:
        """Extend the chain if its newest versions were deleted. The new version has what the view proves.

        The history of the lost versions is set aside after this. Until the last of its files is set aside, no process
        uses the chain (state_chain). So a repair that is killed leaves a chain that the next repair continues.
        """
        # Listed before the state, so that each version in these files is older, or was lost.
        starts = list(history_starts(self._storage, self._name))
        chain = StateChain(self._storage, self._name, self._topics.clock, ignores_history=True)
        try:
            state = chain.newest_or_none()
            proven = None if state is None else prove_state(self._topics, state)
        except CorruptionError:  # the finding is kept
            return
        if state is None or proven is None:
            return
        first_lost = state.version if has_other(self._storage, state) else state.version + 1
        later = [history_key(self._name, start) for start in starts[::-1] if file_end(start) > first_lost]
        is_repaired = state.change.startswith(RESTORED)  # and then killed
        if not proven.goes_beyond(state) and (not later or is_repaired):
            committed = state
        else:

            def change(newest: TopicState) -> TopicState:
                if newest.id != state.id:
                    raise ConflictError(
                        f"topic {chain.topic}",
                        "was changed by another process during the repair",
                        "Repair the topic again.",
                    )
                return proven.state

            committed = chain.commit(change, _repair_text(state, proven))
        for key in later:
            set_aside(self._storage, key, self._storage.read(key))
            self._storage.delete(key)
        if later or committed is not state:
            yield self._restored(version_key(self._name, committed.version), proven)

    def _restored(self, key: str, proven: ProvenState) -> Restored:
        unnamed = _unnamed_bytes(self._storage, proven.state)
        what = f"the newest version; {unnamed}" if unnamed else "the newest version"
        return Restored(key, what, proven.sources, is_loss=True)


def _restored_from(version: int) -> str:
    return (
        f"{RESTORED} {version}: the change of this version cannot be distinguished from the change of the next version"
    )


def _copied_from(after: TopicState, parent: str) -> bytes:
    """The bytes of the version before a version: the same state, under the id that its follower names."""
    what = _restored_from(after.version)
    update = {"id": after.parent, "parent": parent, "version": after.version - 1, "change": what, "removed": ()}
    return encode_state(after.model_copy(update=update))


def _repair_text(last: TopicState, proven: ProvenState) -> str:
    more = f", and {counted(proven.records, 'record')} that the view proves" if proven.records else ""
    return f"{RESTORED} {last.version}{more}"


def _unnamed_bytes(storage: Storage, state: TopicState) -> str:
    """Describe the bytes under data/ that a state does not name, in words. Empty if there are none."""
    files, size = 0, 0
    for number, part in enumerate(state.partitions):
        folder = data_folder(state.topic_id, number)
        named = {f"{segment.name}{LOG}": segment.size for segment in part.segments}
        dropped = {f"{each.name}{LOG}" for each in state.dropped if each.partition == number}
        for file in storage.list(folder):
            name = file.key.removeprefix(folder)
            if name.endswith(LOG) and name not in dropped and file.size > named.get(name, 0):
                files, size = files + 1, size + file.size - named.get(name, 0)
    if not files:
        return ""
    where = f"{counted(files, 'file')} under data/{state.topic_id}/"
    return f"{shown_size(size)} more in {where}, which may or may not have been committed, and which no reader uses"
