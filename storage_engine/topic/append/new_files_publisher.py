"""Publishes an append on a storage whose files cannot grow: writes only new files.

If each commit wrote new segments, a topic would soon have very many small files. So a publish writes each small active
segment again, under a new name, with the segment's old bytes and the new batches. The commit names the new file in
place of the old file, and lists the old file as dropped. A segment is continued as long as its .log has at most 2 MiB.
So at most 2 MiB are written again for each partition and commit (docs/decisions/0051 has the figures).

The publisher keeps the bytes of the small active segments that it wrote. If another process wrote the active segment,
`prepare` begins to read its bytes (topic.append.active_segments), while the caller does other requests. So these reads
add no request to the longest sequence of requests before a commit.

The files of all partitions are written in parallel, because a request to an object store takes long, and many parallel
requests take hardly longer than one. For the same reason the staged files are read in as few requests as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from storage_engine.config import TopicConfig
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, data_folder, new_segment_name
from storage_engine.log.partition_state import Segment
from storage_engine.phases import Phases
from storage_engine.storage import Storage
from storage_engine.storage.open_files import threads_that_write
from storage_engine.topic.append.active_segments import KeptSegment, read_active
from storage_engine.topic.append.append_plan import (
    AppendPlan,
    OpenSegment,
    PartitionAppend,
    SegmentAppend,
    continues,
)
from storage_engine.topic.append.publishing import COPY, StagedReads, delete_new, run_together, stamped
from storage_engine.topic.chain.topic_state import TopicState

_THREADS = 32
_MOST_CONTINUED = 2 * 1024**2
"""The largest .log, in bytes, that is written again together with new batches."""
_MOST_READ = _MOST_CONTINUED
"""The largest .log of another process, in bytes, that is read so that it can be written again."""
_MOST_KEPT = 64 * 1024**2
"""The bytes of active segments that one publisher keeps in memory."""
_MOST_PREFETCHED = 8 * 1024**2
"""The largest part of a staged file, in bytes, that is read in one request before the segments are written."""


@dataclass(frozen=True)
class NewSegments:
    """The segments of one partition in a plan that writes only new files. This object is small, and can be pickled.

    folder: the folder of the files, with a slash at its end.
    version: the version that the plan was made on.
    leader_epoch: is written into each batch.
    appends: the new segments.
    word: a part of all file names.
    """

    folder: str
    version: int
    leader_epoch: int
    appends: tuple[SegmentAppend, ...]
    word: str = ""

    @classmethod
    def of(cls, plan: AppendPlan, part: PartitionAppend, word: str = "") -> NewSegments:
        """
        Args:
            plan: a plan that was made without open segments.
        """
        folder = data_folder(plan.topic_id, part.partition)
        return cls(folder, plan.version, plan.leader_epoch, part.appends, word)

    def write(self, storage: Storage) -> tuple[str, ...]:
        """Write the complete segments under new random names, and make them durable. The call can be repeated, also by
        another process.

        Returns:
            The names, in the order of the segments.

        Raises:
            StorageError: the storage refused or failed. The files of this call were deleted, if the storage allowed it.
        """
        names: list[str] = []
        try:
            for append in self.appends:
                assert append.is_new, "the plan was made without open segments"
                names.append(new_segment_name(append.after.base_offset, self.version, self.word))
                _write_log(storage, storage, self.folder + names[-1], append, self.leader_epoch)
                for suffix, data in _index_files(append).items():
                    _write_file(storage, self.folder + names[-1] + suffix, data)
        except BaseException:
            delete_new(storage, [self.folder + name for name in names])
            raise
        return tuple(names)

    def delete_all(self, storage: Storage) -> None:
        """Delete the files of all attempts with this word. Call it only if no commit can name these files any more."""
        assert self.word, "without a word the files of other plans would match"
        for file in storage.list(self.folder):
            if f".{self.version}.{self.word}" in file.key:
                storage.delete(file.key)


def with_names(part: PartitionAppend, names: tuple[str, ...]) -> PartitionAppend:
    """The plan with the final names of its new segments."""
    appends = zip(part.appends, names, strict=True)
    return replace(part, appends=tuple(replace(append, name=name) for append, name in appends))


@dataclass(frozen=True)
class _Reading:
    """An active segment that is being read."""

    active: Segment
    found: Future[KeptSegment | None]


class NewFilesPublisher:
    """A Publisher that writes only new files, so that no file is open after a publish."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(threads_that_write(_THREADS))
        self._tails: dict[int, KeptSegment] = {}  # by partition, the longest unused first
        self._reading: dict[int, _Reading] = {}  # by partition
        self._written: dict[int, bytes] = {}  # by partition, the last .log of the publish that is not committed yet

    def prepare(self, state: TopicState, config: TopicConfig, partitions: Iterable[int]) -> None:
        room = _MOST_KEPT - sum(len(tail.log) for tail in self._tails.values())
        room -= sum(each.active.size for each in self._reading.values())
        for partition in partitions:
            active = state.partitions[partition].active_segment
            if active is None or not 0 < active.size <= min(_MOST_READ, room):
                continue
            tail, reading = self._tails.get(partition), self._reading.get(partition)
            if (tail is not None and continues(tail.segment, active)) or (reading and reading.active == active):
                continue
            room -= active.size
            found = self._threads.submit(read_active, self._storage, state, partition, config)
            self._reading[partition] = _Reading(active, found)

    def open_segments(self) -> Mapping[int, OpenSegment]:
        while self._reading:
            partition, reading = self._reading.popitem()
            if (tail := reading.found.result()) is not None:
                self._tails.pop(partition, None)
                self._tails[partition] = tail
        return {partition: tail.segment for partition, tail in self._tails.items()}

    def publish(self, plan: AppendPlan, phases: Phases) -> AppendPlan:
        self._written = {}
        parts = [self._named(plan, part) for part in plan.partitions]
        files: list[str] = []
        try:
            with phases.phase(COPY):
                staged = self._prefetched(parts)
                calls: list[Callable[[], None]] = []
                for part in parts:
                    folder = data_folder(plan.topic_id, part.partition)
                    for append in part.appends:
                        if append.is_new or append.replaces:
                            files.append(folder + append.name)
                            calls += self._writes(staged, part, append, files[-1], plan.leader_epoch)
                run_together(self._threads, calls)
        except BaseException:
            delete_new(self._storage, files)
            raise
        return replace(plan, partitions=tuple(parts))

    def _named(self, plan: AppendPlan, part: PartitionAppend) -> PartitionAppend:
        """The part with new names for all segments that are written."""
        appends = [
            replace(
                append,
                name=new_segment_name(append.after.base_offset, plan.version),
                replaces=None if append.is_new else append.name,
            )
            if append.is_new or append.slices
            else append
            for append in part.appends
        ]
        return replace(part, appends=tuple(appends))

    def _writes(
        self, staged: StagedReads, part: PartitionAppend, append: SegmentAppend, stem: str, leader_epoch: int
    ) -> list[Callable[[], None]]:
        """The calls that write the files of one segment."""
        calls = [
            partial(_write_file, self._storage, stem + suffix, data) for suffix, data in _index_files(append).items()
        ]
        if append.after.size > _MOST_CONTINUED:
            first = self._tails[part.partition].log if append.replaces else b""
            return [partial(_write_log, self._storage, staged, stem, append, leader_epoch, first), *calls]
        return [partial(self._write_small, staged, part, append, stem, leader_epoch), *calls]

    def _write_small(
        self, staged: StagedReads, part: PartitionAppend, append: SegmentAppend, stem: str, leader_epoch: int
    ) -> None:
        found = [self._tails[part.partition].log] if append.replaces else []
        found += [
            b"".join(parts) for batch_slice in append.slices for parts in stamped(staged, batch_slice, leader_epoch)
        ]
        log = b"".join(found)
        _write_file(self._storage, stem + LOG, log)
        if append is part.appends[-1]:
            self._written[part.partition] = log

    def _prefetched(self, parts: Sequence[PartitionAppend]) -> StagedReads:
        """Read the staged files from which several segments are written, each in one request."""
        spans: dict[str, tuple[int, int]] = {}
        for part in parts:
            for batch_slice in (each for append in part.appends for each in append.slices if each.data is None):
                start, end = spans.get(batch_slice.key, (batch_slice.source, 0))
                ends = batch_slice.source + batch_slice.size
                spans[batch_slice.key] = min(start, batch_slice.source), max(end, ends)
        found: dict[str, tuple[int, bytes]] = {}

        def fetch(key: str, start: int, end: int) -> None:
            found[key] = start, self._storage.read(key, start, end - start)

        near = {key: span for key, span in spans.items() if span[1] - span[0] <= _MOST_PREFETCHED}
        run_together(self._threads, [partial(fetch, key, *span) for key, span in near.items()])
        return _Prefetched(self._storage, found)

    def keep(self, plan: AppendPlan) -> None:
        for part in plan.partitions:
            self._tails.pop(part.partition, None)
            last = part.appends[-1]
            if (log := self._written.pop(part.partition, None)) is not None:
                self._tails[part.partition] = KeptSegment(OpenSegment(last.name, last.after), log)
        kept = sum(len(tail.log) for tail in self._tails.values())
        while kept > _MOST_KEPT:
            kept -= len(self._tails.pop(next(iter(self._tails))).log)

    def abandon(self, plan: AppendPlan) -> None:  # noqa: ARG002 - the files of every plan are complete
        """The files of the plan remain without a version that names them. The older active segments may be continued,
        if they are still the partitions' active segments."""
        self._written = {}

    def close(self) -> None:
        self._tails.clear()
        self._threads.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Prefetched:
    """Staged files of which some parts are in memory.

    parts: by key, the position of the part, and its bytes.
    """

    storage: Storage
    parts: Mapping[str, tuple[int, bytes]]

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key not in self.parts or length is None:
            return self.storage.read(key, start, length)
        first, data = self.parts[key]
        return data[start - first : start - first + length]


def _write_log(
    storage: Storage, staged: StagedReads, stem: str, append: SegmentAppend, leader_epoch: int, first: bytes = b""
) -> None:
    """Write a .log.

    Args:
        first: the bytes before the new batches.
    """
    with storage.new_file(stem + LOG) as log:
        if first:
            log.write(first)
        for batch_slice in append.slices:
            for parts in stamped(staged, batch_slice, leader_epoch):
                log.write(b"".join(parts))


def _index_files(append: SegmentAppend) -> dict[str, bytes]:
    """The index files of a segment by suffix. They are complete: this file is not appended to."""
    sealed = append.after.copy()
    sealed.seal()
    return {INDEX: sealed.offset_index_bytes(), TIME_INDEX: sealed.time_index_bytes()}


def _write_file(storage: Storage, key: str, data: bytes) -> None:
    with storage.new_file(key) as file:
        file.write(data)
