"""Taking a plain Kafka log directory into a root: what a broker left there, or an export of ours, cleanly closed or not.

A topic that is not there becomes one: with its id where that is free, its log start and first dirty offsets, leader
epochs, producers, and as many segments as lay there. A topic that is there gets what lies behind its end, if up to
there both hold the same batches: so comes back what a broker appended to an export. Those batches are given the leader
epoch of the topic's writer, whatever the broker's was. Else the import is refused.

Of the directory nothing is needed but the .log files: indexes are derived from them on the way, every CRC is checked,
and a torn tail, which a crash leaves, stays behind. Copied or, with `move`, linked: the files of the directory are then
removed once they are the root's.

One version of the state makes a topic visible. A crash before leaves files that nobody names; one between that version
and the removal of what was moved leaves the directory with files that the next import finds to hold nothing new.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage_engine.checkpoint import LEADER_EPOCHS, LOCK, PARTITION_METADATA
from storage_engine.config import LONG_MAX, TopicConfig, normalise_overrides, topic_config
from storage_engine.errors import (
    BatchTooLargeError,
    ConfigError,
    ConflictError,
    CorruptionError,
    LogError,
    StorageError,
    TopicExistsError,
)
from storage_engine.log.filenames import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    data_key,
    is_offset_name,
    new_segment_name,
)
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.log.log_directory import FoundPartition, LogDirectory, partition_of
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment
from storage_engine.log.segment_reader import Chunk, SegmentFile, position_of, read_chunks
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import check_crcs, stamp_leader_epoch
from storage_engine.record.decoding import check_unfolding
from storage_engine.storage import NewFile, Storage
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.imported_ids import give_back_id, take_id
from storage_engine.topic.reader import segment_file
from storage_engine.topic.state import DroppedFile, TopicState, Writer
from storage_engine.topic.topics import Topics, empty_partition, new_topic_id
from storage_engine.topic.view import refuse_view, show_snapshots

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_RESERVED_ID = "A" * 22
"""Kafka's zero UUID, which means that there is none."""
_INTERNAL = "__"
_SEGMENT_FILES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
_OTHER_FILES = (LEADER_EPOCHS, PARTITION_METADATA)


class ImportedPartition(NamedTuple):
    """What came into a partition. torn: bytes at the end of its newest .log that are no whole batch, and did not."""

    first_offset: int
    end_offset: int
    size: int
    torn: int


@dataclass(frozen=True)
class ImportedTopic:
    """What came of a topic, partition by partition. is_new: it was not there before."""

    state: TopicState
    is_new: bool
    partitions: tuple[ImportedPartition, ...]


def topics_in(directory: LogDirectory) -> tuple[str, ...]:
    """The topics to take by default: all but a cluster's own, whose names begin with two underscores."""
    names = dict.fromkeys(each.topic for each in directory.partitions)
    return tuple(name for name in names if not name.startswith(_INTERNAL))


def left_out(directory: LogDirectory) -> tuple[str, ...]:
    """Folders that are no partition of such a topic: a cluster's own, and those that a broker has put aside."""
    folders = sorted(entry.name for entry in directory.storage.entries("") if entry.is_folder)
    wanted = topics_in(directory)
    return tuple(name for name in folders if (found := partition_of(name)) is None or found.topic not in wanted)


def import_topic(
    topics: Topics,
    directory: LogDirectory,
    name: str,
    configs: Mapping[str, object] = {},
    *,
    move: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ImportedTopic:
    """Take in one topic, or what lies behind its end.

    Args:
        configs: overrides of a topic that is made, which do not stand in a log directory.
        move: let the files become the root's instead of copying them; both must lie on the same file system.
        progress: is told the bytes of the segments that are read.

    Raises:
        UnknownTopicError: the directory has no such topic.
        CorruptionError: a partition is missing, or a log is damaged otherwise than at its end.
        TopicExistsError: the topic is there, and this log does not continue it.
        ConfigError: overrides for a topic that is there, bad ones, or a root that files cannot be moved into.
        ConflictError: the topic has changed meanwhile; nothing was imported.
        UsageError: the directory is the view of a root, and its files would be moved.
        StorageError: the directory or the root refused, or a broker runs on the directory. Nothing was imported.
    """
    if move:
        refuse_view(directory.storage.root)
    with _hold_off_brokers(directory):
        state = topics.find(name)
        found = _all_partitions(directory, name, len(state.partitions) if state else 0)
        progress.expect(size=sum(each.state.size for each in found))
        intake = _Intake(topics, directory, move, progress)
        try:
            imported = intake.make(name, found, configs) if state is None else intake.go_on(state, found, configs)
        except BaseException:
            with suppress(LogError):  # what went wrong first says more
                intake.forget()
            raise
        if move:
            _remove(directory, found)
        return imported


def _hold_off_brokers(directory: LogDirectory) -> AbstractContextManager[None]:
    """A broker makes the lock's file before anything else: where there is none, none runs."""
    there = any(entry.name == LOCK for entry in directory.storage.entries(""))
    return directory.storage.hold_shared(LOCK) if there else nullcontext()


def _all_partitions(directory: LogDirectory, name: str, least: int) -> tuple[FoundPartition, ...]:
    """Every partition from 0 on, and at least so many."""
    there = {each.number: each for each in directory.partitions_of(name)}
    for number in range(max(least, max(there) + 1)):
        if number not in there:
            raise CorruptionError(
                str(directory.storage.root), 0, f"a folder for each partition of topic {name}",
                f"no {name}-{number}, and {len(there)} others",
                "Other log.dirs of the broker, or other brokers, have it: put that folder here, too.",
            )  # fmt: skip
    with _remedy(directory):
        return tuple(directory.inspect(there[number]) for number in range(len(there)))


@contextmanager
def _remedy(directory: LogDirectory) -> Iterator[None]:
    """Say what helps against damage in a directory."""
    try:
        yield
    except BatchTooLargeError:  # whose remedy is another
        raise
    except CorruptionError as error:
        remedy = (
            f"Cut it out with `lakelog verify --repair --kafka-dir {directory.storage.root}`, which keeps it beside."
        )
        raise error.with_remedy(remedy) from error


class _Intake:
    """One topic on its way in; remembers which files it has written, and which of them a state may name."""

    def __init__(self, topics: Topics, directory: LogDirectory, move: bool, progress: Progress) -> None:
        self._topics = topics
        self._directory = directory
        self._progress = progress
        self._written: list[tuple[str, int, str]] = []
        self._committed: list[tuple[str, int, str]] = []
        self._taken_id: str | None = None
        self._linking: PosixStorage | None = None
        if move:
            if not isinstance(topics.storage, PosixStorage):
                raise ConfigError(f"root {topics.storage.uri}", "is no directory", "Import without moving.")
            self._linking = topics.storage

    def forget(self) -> None:
        """Delete what was written and will not be named."""
        for topic_id, number, name in self._written:
            for suffix in SEGMENT_SUFFIXES:
                self._topics.storage.delete(data_key(topic_id, number, name, suffix))
        if self._taken_id is not None:
            give_back_id(self._topics.storage, self._taken_id)

    def make(self, name: str, found: Sequence[FoundPartition], configs: Mapping[str, object]) -> ImportedTopic:
        """Make a topic of what was found."""
        config = topic_config(self._topics.broker, normalise_overrides(configs), f"topic {name}")
        deleted = self._topics.chain(name).newest_or_none()
        version = deleted.version if deleted else 0
        topic_id = self._take_topic_id(name, found)
        parts = []
        for each in found:
            segments = tuple(
                self._take(topic_id, version, each, segment, config)._replace(aborted=segment.aborted)
                for segment in _worth_taking(each.state)
            )
            epochs = each.state.leader_epochs or (LeaderEpoch(0, each.state.log_start_offset),)
            parts.append(each.state.model_copy(update={"segments": segments, "leader_epochs": epochs}))
        # Appends are given the writer's epoch, which no epoch in the log may exceed.
        writer = Writer(epoch=max(part.leader_epochs[-1].epoch for part in parts))
        what = f"imported from {_as_text(self._directory.storage.root)}"
        state = self._commit(lambda: self._topics.begin(name, topic_id, parts, configs, writer, what, version))
        self._show_snapshots(state, found)
        came = (
            ImportedPartition(part.log_start_offset, part.high_watermark, part.size, each.torn)
            for part, each in zip(parts, found, strict=True)
        )
        return ImportedTopic(state, True, tuple(came))

    def go_on(self, state: TopicState, found: Sequence[FoundPartition], configs: Mapping[str, object]) -> ImportedTopic:
        """Take in what lies behind the end of a topic that is there."""
        if configs:
            raise ConfigError(
                f"topic {state.topic}", f"is there, and found settings for it: {', '.join(configs)}",
                "`lakelog topics alter` changes the settings of a topic.",
            )  # fmt: skip
        epoch = state.writer.epoch
        config = self._topics.config(state)
        more = tuple(empty_partition(epoch) for _ in found[len(state.partitions) :])
        parts = state.partitions + more
        additions: dict[int, tuple[Segment, ...]] = {}
        came = []
        for number, (part, each) in enumerate(zip(parts, found, strict=True)):
            self._check_continues(state, part, each)
            end = part.high_watermark
            segments = tuple(
                self._take(state.topic_id, state.version, each, segment, config, end, epoch)._replace(
                    aborted=tuple(entry for entry in segment.aborted if entry.last_offset >= end)
                )
                for segment in each.state.segments
                if segment.end_offset > end or segment.base_offset >= end
            )
            has_rolled = bool(segments and part.segments) and part.empty_end is None
            if each.state.high_watermark > end or has_rolled:
                additions[number] = segments
            size = sum(segment.size for segment in segments)
            came.append(ImportedPartition(end, each.state.high_watermark, size, each.torn))
        if not additions and not more:
            return ImportedTopic(state, False, tuple(came))

        def change(current: TopicState) -> TopicState:
            now = current.partitions + more
            ends = [part.high_watermark for part in now]
            if (
                (current.topic_id, current.deleted, current.writer.epoch) != (state.topic_id, False, epoch)
                or ends != [part.high_watermark for part in parts]
                or current.bars(state.version)
            ):  # fmt: skip
                raise ConflictError(
                    f"topic {state.topic}", "was written to since the import began, or swept", "Import it again."
                )
            longer = {
                number: _appended(now[number], segments, found[number].state, epoch)
                for number, segments in additions.items()
            }
            now_ms = self._topics.clock.now_ms()
            dropped = tuple(
                DroppedFile(current.topic_id, number, empty.name, now_ms)
                for number in additions
                if (empty := now[number].empty_end) is not None
            )
            return current.model_copy(update={"partitions": now, "dropped": current.dropped + dropped}).with_partitions(
                longer
            )

        chain = self._topics.chain(state.topic)
        what = f"imported what follows in {_as_text(self._directory.storage.root)}"
        state = self._commit(lambda: chain.commit(change, what))
        self._show_snapshots(state, found)
        return ImportedTopic(state, False, tuple(came))

    def _check_continues(self, state: TopicState, part: PartitionState, found: FoundPartition) -> None:
        """Check that up to the topic's end this log holds the same batches.

        Raises:
            TopicExistsError: it does not, or ends before, or nothing shows that it does.
        """

        def refused(problem: str) -> TopicExistsError:
            return TopicExistsError(
                f"topic {state.topic}, partition {found.name.number}",
                f"is there, and what lies in {self._directory.storage.root} does not continue it: {problem}",
                "Delete the topic first, import into another root, or leave it out by naming the others with --topic.",
            )

        end, theirs = part.high_watermark, found.state
        start = max(part.log_start_offset, theirs.log_start_offset)
        if theirs.high_watermark < end:
            raise refused(f"it ends at offset {theirs.high_watermark}, the topic at {end}")
        if not end:
            return  # nothing was ever appended
        if start > end or (start == end and found.topic_id != state.topic_id):
            raise refused(f"it begins at offset {theirs.log_start_offset}, the topic ends at {end}")
        reader = self._directory.reader(found)
        ours = [segment_file(state.topic_id, found.name.number, segment) for segment in part.segments]
        batches = _batches(self._topics.storage, ours, start, end)
        others = _batches(self._directory.storage, map(reader.segment_file, theirs.segments), start, end)
        for one, other in itertools.zip_longest(batches, others):
            if one != other:
                offset = min(batch.last_offset for batch in (one, other) if batch is not None)
                raise refused(f"the batches up to offset {offset} differ")

    def _show_snapshots(self, state: TopicState, found: Sequence[FoundPartition]) -> None:
        """Those of the segments that came, which the state names by now."""
        came = {(number, name) for _, number, name in self._committed}
        for number, each in enumerate(found):
            segments = state.partitions[number].segments
            bases = {segment.base_offset for segment in segments if (number, segment.name) in came}
            with suppress(StorageError):  # settling says it, and derives them
                show_snapshots(
                    self._topics, state, number, {at: each.snapshots[at] for at in bases & each.snapshots.keys()}
                )

    def _commit(self, commit: Callable[[], TopicState]) -> TopicState:
        # From here on they may be named, unless it is known that they are not.
        self._committed, self._written = self._written, []
        taken_id, self._taken_id = self._taken_id, None
        try:
            return commit()
        except (ConflictError, TopicExistsError):
            self._written, self._taken_id = self._committed, taken_id
            raise

    def _take_topic_id(self, name: str, found: Sequence[FoundPartition]) -> str:
        """The id that all partitions name, where it is free and no other import is faster; else a new one."""
        topic_id = _free_topic_id(self._topics, found)
        if topic_id is None or not take_id(self._topics.storage, topic_id, name):
            return new_topic_id()
        self._taken_id = topic_id
        return topic_id

    def _take(
        self,
        topic_id: str,
        version: int,
        found: FoundPartition,
        segment: Segment,
        config: TopicConfig,
        first_offset: int = 0,
        epoch: int | None = None,
    ) -> Segment:
        """Write a segment under data/, from an offset on and with an epoch in place of its own, if one is given."""
        number = found.name.number
        source = self._directory.reader(found).segment_file(segment)
        growing = GrowingSegment(max(segment.base_offset, first_offset), 0, config.index_interval_bytes)
        name = new_segment_name(growing.base_offset, version)
        horizon_ms = LONG_MAX
        self._written.append((topic_id, number, name))
        log_key = data_key(topic_id, number, name)
        storage = self._topics.storage
        with self._linked(source, log_key) if epoch is None else storage.new_file(log_key) as log:
            for chunk in self._chunks(source, first_offset):
                theirs = chunk.table.select(chunk.table.last_offsets >= first_offset)
                data = chunk.data
                if epoch is not None:
                    data = data.copy()
                    stamp_leader_epoch(data, theirs, epoch)
                if log is not None and len(theirs):
                    log.write(data[int(theirs.positions[0]) :].data)
                growing.append_all(theirs)
                horizons = theirs.delete_horizons
                horizon_ms = min(horizon_ms, int(horizons[horizons >= 0].min(initial=LONG_MAX)))
        growing.seal()
        for suffix, entries in ((INDEX, growing.offset_index_bytes()), (TIME_INDEX, growing.time_index_bytes())):
            with storage.new_file(data_key(topic_id, number, name, suffix)) as index:
                index.write(entries)
        # Whether a batch with a horizon still has something to lose only its records tell.
        return growing.segment(name, segment.modified_ms, horizon_ms=-1 if horizon_ms == LONG_MAX else horizon_ms)

    @contextmanager
    def _linked(self, source: SegmentFile, key: str) -> Iterator[NewFile | None]:
        """The file to copy a whole segment to; none where linking it was enough."""
        if self._linking is not None:
            self._linking.adopt(self._directory.storage.path(source.key), key)
            yield None
        else:
            with self._topics.storage.new_file(key) as log:
                yield log

    def _chunks(self, source: SegmentFile, first_offset: int) -> Iterator[Chunk]:
        storage = self._directory.storage
        with _remedy(self._directory):
            for chunk in read_chunks(storage, source, position_of(storage, source, first_offset)):
                check_crcs(chunk.data, chunk.table, source.key, chunk.position)
                check_unfolding(chunk.data, chunk.table, source.key, chunk.position)
                self._progress.advance(size=len(chunk.data))
                yield chunk


class _Batch(NamedTuple):
    """What tells batches apart that have the same records; the leader epoch may differ."""

    last_offset: int
    size: int
    crc: int


def _batches(storage: Storage, files: Iterable[SegmentFile], first_offset: int, end_offset: int) -> Iterator[_Batch]:
    """The batches that end in this range, in order."""
    for file in files:
        if file.end_offset <= first_offset or file.base_offset >= end_offset:
            continue
        for chunk in read_chunks(storage, file, position_of(storage, file, first_offset)):
            ends = chunk.table.last_offsets
            table = chunk.table.select((ends >= first_offset) & (ends < end_offset))
            yield from map(_Batch, table.last_offsets.tolist(), table.sizes.tolist(), table.crcs.tolist())


def _appended(part: PartitionState, segments: Sequence[Segment], found: PartitionState, epoch: int) -> PartitionState:
    """The partition with these segments behind its end."""
    end = part.high_watermark
    before = part.segments if part.empty_end is None else part.segments[:-1]
    return part.model_copy(
        update={
            "log_start_offset": part.log_start_offset if end else found.log_start_offset,
            "high_watermark": found.high_watermark,
            "segments": before + tuple(segments),
            "leader_epochs": begin_epoch(part.leader_epochs, epoch, end),
            "producers": found.producers,
        }
    )


def _worth_taking(part: PartitionState) -> Sequence[Segment]:
    """All segments but a first and only one that is empty, without which a partition is as empty.

    Empty ones between others matter to look-ups by time; one at the end is the active one, and so the full one before it
    may be compacted.
    """
    is_empty = len(part.segments) == 1 and not part.segments[0].size
    return () if is_empty else part.segments


def _as_text(path: Path) -> str:
    """A path as a state can hold it; one need not be UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


def _free_topic_id(topics: Topics, found: Sequence[FoundPartition]) -> str | None:
    """The id that all partitions name, where no topic of this root has it or had it, and no files lie under it."""
    named = {each.topic_id for each in found}
    topic_id = named.pop()
    if named or topic_id is None or not _TOPIC_ID.fullmatch(topic_id) or topic_id == _RESERVED_ID:
        return None
    chains = (topics.chain(name).newest_or_none() for name in topics.names(with_deleted=True))
    known = (state for state in chains if state is not None)
    if any(topic_id in (state.topic_id, *(former.topic_id for former in state.former)) for state in known):
        return None
    return None if next(topics.storage.list(f"data/{topic_id}/"), None) else topic_id


def _remove(directory: LogDirectory, found: Sequence[FoundPartition]) -> None:
    """Delete the files of these partitions, oldest first, and the folders that are empty then."""
    for each in found:
        folder = each.name.folder
        for entry in sorted(directory.storage.entries(folder), key=lambda entry: entry.name):
            stem, dot, suffix = entry.name.partition(".")
            if entry.name in _OTHER_FILES or (is_offset_name(stem) and dot + suffix in _SEGMENT_FILES):
                directory.storage.delete(f"{folder}/{entry.name}")
        with suppress(OSError):  # what else lies there stays, and its folder with it
            directory.storage.path(folder).rmdir()
