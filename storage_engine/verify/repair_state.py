"""Bringing back documents under meta/ and lists under staging/ that do not fit their digest any more, and lost versions.

What may be brought back is what something that fits its digest still proves, in this order:

    the document itself     one changed byte: the digest proves the change that makes it fit
    a list of segments      the version before the list's first, which has the same segments: the digest proves them
    a file of history       its versions, while all of them are there
    a version that another  follows: what the follower says, under the id that the follower names as its parent. The
                            follower is a whole state, so no reader, writer or cleaner finds anything else than before
    the newest version      the version before it, and what the view proves beyond: high watermarks that both of its
                            checkpoints have, over whole batches in the files that it shows; and log start offsets

The writer's epoch rises with a newest version that was made anew: a writer that read it is fenced, and does not go on after
a micro-batch that is lost. Where records came back from the view, nobody knows which micro-batch had brought them. So the
queries are told that their last batch is not known: an ingest that starts again is refused with the choices, and neither
loses nor doubles a row by itself. Where none came back, the state knows each query's last batch, as before it.

Bytes that no document names are never made visible, as they may be uncommitted; they are named in what is reported. What
is replaced stays as meta/<topic>/damaged/<file name>.<random>. After a crash each document is whole, old or new, and
repairing again goes on.

A writer that read the newest version before it was damaged looks only at its id, and may put a version after it: a whole
state, with all that the damaged one had. So a version that is made anew keeps its id where that can be read, and is made once
more, of its follower, if one has come. Where the id is lost, the writer meets the damage, or the new epoch, and stops.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage_engine.checkpoint import LOG_STARTS, decode_offsets
from storage_engine.config import LONG_MAX
from storage_engine.errors import ConflictError, CorruptionError, LogError, NotFoundError
from storage_engine.log.filenames import LOG, data_folder, is_offset_name, offset_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.intact_batches import DamagedLog
from storage_engine.log.leader_epochs import begin_epoch, cut_start, with_batches
from storage_engine.log.partition_state import PartitionState, SegmentList
from storage_engine.log.producer_state import Producers, aborted_among
from storage_engine.quantities import counted, shown_size
from storage_engine.storage import FolderEntry, Storage, ViewableStorage
from storage_engine.topic.documents import FORMAT, decode_document, decode_lines, digest_of, undo_one_byte
from storage_engine.topic.history_file import history_folder, history_key
from storage_engine.topic.pruning import derived_history
from storage_engine.topic.staged_list import STAGED_LISTS
from storage_engine.topic.state import RESTORED, TopicState
from storage_engine.topic.state_chain import (
    drop_unproven_list,
    encode_list,
    encode_state,
    list_folder,
    list_version,
    retired_version,
    version_key,
)
from storage_engine.topic.topics import Topics, empty_partition
from storage_engine.topic.view import view_folder
from storage_engine.topic.view_record import VIEW
from storage_engine.topic.witnesses import shown_offsets, shown_start, shown_topic_id
from storage_engine.verify.findings import Restored

_A_DOCUMENT = "a document"
_ASIDE = "damaged"
"""The folder under meta/<topic>/ that keeps what was replaced."""
_HEAD = re.compile(rb'\{"id":"([0-9a-f]{32})","parent":"([0-9a-f]{32}|)",')


def damaged_documents(storage: Storage, topic: str | None = None) -> Iterator[CorruptionError]:
    """Every document under meta/, or of one topic, and every list under staging/, that does not fit its digest."""
    for key in _document_keys(storage, topic):
        try:
            data = storage.read(key)
        except NotFoundError:
            continue  # a commit, a pruning or a consumer has removed it since
        try:
            _check(storage, key, data)
        except CorruptionError as error:
            yield error


def _document_keys(storage: Storage, topic: str | None) -> list[str]:
    prefixes = (f"meta/{topic}/",) if topic else ("meta/", f"{STAGED_LISTS}/")
    keys = (file.key for prefix in prefixes for file in storage.list(prefix))
    return [key for key in keys if key.endswith((".json", ".jsonl")) and key.split("/")[2:3] != [_ASIDE]]


def _check(storage: Storage, key: str, data: bytes) -> None:
    if key.endswith(".jsonl"):
        decode_lines(storage, key, data, _A_DOCUMENT, "")
    else:
        decode_document(storage, key, data, _A_DOCUMENT, "")


def repair_documents(topics: Topics, topic: str | None = None) -> list[Restored]:
    """Bring back what can be proven, of one topic or of all; returns what was brought back, and from where.

    Raises:
        StorageError: the storage refused. What was brought back until then stays.
    """
    storage = topics.storage
    done: list[Restored] = []
    left: dict[str, list[str]] = {}
    for error in list(damaged_documents(storage, topic)):
        try:
            data = storage.read(error.file)
        except NotFoundError:
            continue  # a consumer that was forgotten meanwhile
        fitting = undo_one_byte(error.file, data)
        if fitting is not None:
            position = next(at for at, (one, other) in enumerate(zip(data, fitting, strict=True)) if one != other)
            _replace(storage, error.file, data, fitting)
            done.append(Restored(error.file, f"the byte at position {position}", "the digest of the document"))
        else:
            left.setdefault(error.file.split("/")[1], []).append(error.file)
    for name in [topic] if topic is not None else list(topics.names(with_deleted=True)):
        done += _Chain(topics, name, left.get(name, ())).repair()
    return done


def _replace(storage: Storage, key: str, old: bytes, new: bytes) -> None:
    """Put a document in the place of a damaged one, which stays beside."""
    _set_aside(storage, key, old)
    storage.replace(key, new)


def _set_aside(storage: Storage, key: str, data: bytes) -> None:
    folders = key.split("/")
    aside = "/".join((*folders[:2], _ASIDE, folders[-1]))
    storage.put_new(f"{aside}.{uuid.uuid4().hex}", data)


@dataclass
class _Proven:
    """A state made of an intact one and of what the view proves beyond it. records: how many came back."""

    state: TopicState
    records: int
    sources: str

    def goes_beyond(self, last: TopicState) -> bool:
        """Whether the view proves more than this state."""
        starts = [part.log_start_offset for part in last.partitions]
        return self.records > 0 or [part.log_start_offset for part in self.state.partitions] != starts


class _Chain:
    """The repair of one topic's chain. damaged: the keys of its documents that do not fit their digests."""

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

    # Lists of segments.

    def _lists(self) -> Iterator[Restored]:
        named: dict[str, tuple[int, SegmentList]] = {}
        for key in self._damaged:
            if key.startswith(list_folder(self._name)) and list_version(key) is not None:
                named = named or self._named_lists()
                name = key.removeprefix(list_folder(self._name)).removesuffix(".json")
                if name in named and (data := self._list_as_before(key, *named[name])) is not None:
                    _replace(self._storage, key, self._storage.read(key), data)
                    source = f"version {(list_version(key) or 0) - 1} of the state; the digest proves it"
                    yield Restored(key, "the list of segments", source)

    def _named_lists(self) -> dict[str, tuple[int, SegmentList]]:
        """The lists that versions name, with the partition of each."""
        named: dict[str, tuple[int, SegmentList]] = {}
        for version in self._chain.versions():
            key = version_key(self._name, version)
            with suppress(CorruptionError, NotFoundError, TypeError, KeyError):
                parts = decode_document(self._storage, key, self._storage.read(key), _A_DOCUMENT, "")["partitions"]
                listed = ((number, part["listed"]) for number, part in enumerate(parts))
                named |= {each[0]: (number, SegmentList(*each)) for number, each in listed if each}
        return named

    def _list_as_before(self, key: str, number: int, listed: SegmentList) -> bytes | None:
        """The list's bytes, made of the segments that the version before its first one had."""
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

    # Versions.

    def _versions(self) -> Iterator[Restored]:
        numbers = list(self._chain.versions())
        damaged = [version for version in numbers if self._is_damaged(version)]
        if numbers and damaged[:1] == [0] and 1 not in numbers and len(numbers) > 1:
            key = version_key(self._name, 0)
            _replace(self._storage, key, self._storage.read(key), retired_version(self._name))
            yield Restored(key, "the version that keeps the first name taken", "nothing: all of them are alike")
            damaged = damaged[1:]
        for version in reversed(damaged):
            key = version_key(self._name, version)
            data = self._storage.read(key)
            before = self._state(version - 1)
            head = _HEAD.match(data)
            parent = (
                before.id if before is not None else head[2].decode() if head else uuid.uuid4().hex if version else ""
            )
            done = self._as_followed(key, data, version, parent) or self._as_proven(
                key, data, version, parent, head[1].decode() if head else uuid.uuid4().hex, set(damaged)
            )
            if done is not None:
                yield done

    def _as_followed(self, key: str, data: bytes, version: int, parent: str) -> Restored | None:
        """Make a version of the one that follows it; None where none does."""
        after = self._state(version + 1)
        if after is None:
            return None
        what = f"{RESTORED} {version + 1}: what this version did is not known apart from that one"
        update = {"id": after.parent, "parent": parent, "version": version, "change": what, "removed": ()}
        _replace(self._storage, key, data, encode_state(after.model_copy(update=update)))
        return Restored(key, "a version that another one follows", f"version {version + 1}")

    def _as_proven(
        self, key: str, data: bytes, version: int, parent: str, version_id: str, damaged: set[int]
    ) -> Restored | None:
        """Make the newest version of the one before it and of what the view proves; None where that cannot be done."""
        last = self._last_intact(version, damaged)
        if last is None:
            return None
        try:
            proven = self._proven(last)
        except CorruptionError:  # the view shows more than its files prove: the finding stays
            return None
        update = {
            "id": version_id, "parent": parent, "version": version, "change": _told(last, proven), "format": FORMAT,
            "written_ms": self._topics.clock.now_ms(), "removed": (),
        }  # fmt: skip
        _replace(self._storage, key, data, encode_state(proven.state.model_copy(update=update)))
        # A writer that had read this version may have put the next one meanwhile.
        return self._as_followed(key, data, version, parent) or self._restored(key, proven)

    def _is_damaged(self, version: int) -> bool:
        try:
            self._chain.at(version)
        except CorruptionError:
            return True
        except NotFoundError:  # pruned meanwhile
            pass
        return False

    def _state(self, version: int) -> TopicState | None:
        with suppress(CorruptionError, NotFoundError):
            return self._chain.at(version) if version >= 0 else None
        return None

    def _last_intact(self, version: int, damaged: set[int]) -> TopicState | None:
        """The newest version before this one that counts, where nothing but damaged versions lies between."""
        while version - 1 in damaged:
            version -= 1
        last = self._state(version - 1)
        if last is None or not last.version:
            return last
        before = self._state(last.version - 1)
        return last if before is not None and before.id == last.parent else None

    # History.

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
                    yield Restored(key, "what a hundred versions did", "these versions")

    # What the view proves.

    def _lost_versions(self) -> Iterator[Restored]:
        """Commit what the view proves beyond the newest version: the versions that did it were deleted."""
        chain = self._topics.chain(self._name)
        try:
            state = chain.newest_or_none()
            proven = None if state is None or state.deleted else self._proven(state)
        except CorruptionError:  # the finding stays
            return
        if state is None or proven is None or not proven.goes_beyond(state):
            return

        def change(newest: TopicState) -> TopicState:
            if newest.id != state.id:
                raise ConflictError(f"topic {chain.topic}", "was written to meanwhile", "Repair it again.")
            return proven.state

        committed = chain.commit(change, _told(state, proven))
        for file in list(self._storage.list(f"{history_folder(self._name)}/")):
            if file.key >= history_key(self._name, committed.version):  # it tells of the versions that are lost
                _set_aside(self._storage, file.key, self._storage.read(file.key))
                self._storage.delete(file.key)
        yield self._restored(version_key(self._name, committed.version), proven)

    def _restored(self, key: str, proven: _Proven) -> Restored:
        unnamed = _unnamed_bytes(self._storage, proven.state)
        what = f"the newest version; {unnamed}" if unnamed else "the newest version"
        return Restored(key, what, proven.sources, is_loss=True)

    def _proven(self, last: TopicState) -> _Proven:
        """An intact state with what the view proves beyond it.

        Raises:
            CorruptionError: the view shows more than the files hold.
        """
        storage = self._storage
        if last.deleted:
            return _Proven(last, 0, f"version {last.version}")
        parts, records = [drop_unproven_list(part) for part in last.partitions], 0
        if isinstance(storage, ViewableStorage) and shown_topic_id(storage, last.topic) == last.topic_id:
            ends, starts = shown_offsets(storage).ends.get(last.topic, {}), _shown_starts(storage, last)
            while shown_topic_id(storage, last.topic, len(parts)) == last.topic_id and len(parts) in ends:
                parts.append(empty_partition(last.writer.epoch))  # one that a lost version had added
            for number, part in enumerate(parts):
                end = ends.get(number, 0)
                more = self._with_batches(storage, last, number, part, end) if end > part.high_watermark else part
                records += more.high_watermark - part.high_watermark
                start = min(starts.get(number, 0), more.high_watermark)
                if start > more.log_start_offset:
                    epochs = cut_start(more.leader_epochs, start)
                    more = more.model_copy(update={"log_start_offset": start, "leader_epochs": epochs, "listed": None})
                parts[number] = more
        newest_epochs = (part.leader_epochs[-1].epoch for part in parts if part.leader_epochs)
        epoch = max(last.writer.epoch, *newest_epochs) + 1
        update: dict[str, Any] = {
            "partitions": tuple(
                part.model_copy(update={"leader_epochs": begin_epoch(part.leader_epochs, epoch, part.high_watermark)})
                for part in parts
            ),
            "writer": last.writer.model_copy(update={"epoch": epoch}),
        }
        sources = f"version {last.version}"
        if records:
            unknown = {query: batch.model_copy(update={"offsets_hash": ""}) for query, batch in last.queries.items()}
            update |= {"queries": unknown, "positions": {}}
            sources += f", and {counted(records, 'record')} that {VIEW}/ shows as committed"
        return _Proven(last.model_copy(update=update), records, sources)

    def _with_batches(
        self, storage: ViewableStorage, last: TopicState, number: int, part: PartitionState, end: int
    ) -> PartitionState:
        """The partition up to an offset, with batches from the files that the view shows."""
        folder = data_folder(last.topic_id, number)
        shown = {
            int(entry.name.removesuffix(LOG)): entry
            for entry in storage.entries(view_folder(last.topic, number))
            if entry.name.endswith(LOG) and is_offset_name(entry.name.removesuffix(LOG))
        }
        active = part.active_segment
        first = active.base_offset if active is not None else part.high_watermark
        bases = sorted(base for base in shown if first <= base < end)
        segments = list(part.segments[:-1])
        producers = Producers(part.producers)
        epochs = part.leader_epochs
        for base, following in zip(bases, [*bases[1:], end], strict=True):
            known = active if active is not None and active.base_offset == base else None
            name = known.name if known else _name_of(storage, folder, base, shown[base])
            size = next((entry.size for entry in storage.entries(folder) if entry.name == name + LOG), 0)
            log = DamagedLog(storage, f"{folder}{name}{LOG}", base, size, following)
            growing = GrowingSegment(base, 0, self._topics.config(last).index_interval_bytes)
            aborted = known.aborted if known else ()
            horizon_ms = LONG_MAX
            for chunk in log.chunks():
                if log.damages:
                    break
                table = chunk.table.select(chunk.table.last_offsets < following)
                new = table.select(table.base_offsets >= part.high_watermark)
                growing.append_all(table)
                aborted += aborted_among(producers.replay(chunk.data, new, log.key, chunk.position))
                epochs = with_batches(epochs, new)
                horizons = table.delete_horizons
                horizon_ms = min(horizon_ms, int(horizons[horizons >= 0].min(initial=LONG_MAX)))
            if growing.end_offset != following:
                raise CorruptionError(log.key, growing.size, f"batches up to offset {following}", "none that is intact")
            horizon_ms = -1 if horizon_ms == LONG_MAX else horizon_ms
            segments.append(growing.segment(name, shown[base].modified_ms, aborted, horizon_ms))
        if not segments or segments[-1].end_offset != end:
            raise CorruptionError(view_folder(last.topic, number), 0, f"files with offsets up to {end}", "none")
        update = {
            "segments": tuple(segments), "high_watermark": end, "producers": producers.entries(),
            "leader_epochs": epochs, "listed": None,
        }  # fmt: skip
        return part.model_copy(update=update)


def _told(last: TopicState, proven: _Proven) -> str:
    more = f", and {counted(proven.records, 'record')} that the view proves" if proven.records else ""
    return f"{RESTORED} {last.version}{more}"


def _name_of(storage: ViewableStorage, folder: str, base: int, shown: FolderEntry) -> str:
    """The file under data/ that the view shows as the segment with this base offset.

    Raises:
        CorruptionError: none is.
    """
    for entry in storage.entries(folder):
        if (
            entry.name.startswith(f"{offset_name(base)}.")
            and entry.name.endswith(LOG)
            and entry.file_id == shown.file_id
        ):
            return entry.name.removesuffix(LOG)
    raise CorruptionError(f"{folder}{offset_name(base)}", 0, "the file that the view shows", "none")


def _shown_starts(storage: ViewableStorage, state: TopicState) -> dict[int, int]:
    """Log start offsets that two files of the view confirm, by partition."""
    starts: dict[int, int] = {}
    checkpoint: Mapping[tuple[str, int], int] = {}
    with suppress(LogError):
        checkpoint = decode_offsets(storage.read(f"{VIEW}/{LOG_STARTS}"), LOG_STARTS)
    for number in range(len(state.partitions)):
        folder = view_folder(state.topic, number)
        with suppress(LogError):
            names = (entry.name.removesuffix(LOG) for entry in storage.entries(folder) if entry.name.endswith(LOG))
            first = min((int(name) for name in names if is_offset_name(name)), default=0)
            where = state.topic, number
            starts[number] = min(checkpoint.get(where, first), shown_start(storage, *where))
    return starts


def _unnamed_bytes(storage: Storage, state: TopicState) -> str:
    """What lies under data/ beyond what a state names, in words; empty where nothing does."""
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
    return f"{where} hold {shown_size(size)} more, which may or may not have been committed, and which nobody reads"
