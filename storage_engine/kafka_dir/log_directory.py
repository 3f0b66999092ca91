"""Reads a plain Kafka log directory (a folder of a broker's log.dirs), and never changes it.

    <directory>/
      orders-0/                        a partition: segments, leader-epoch-checkpoint, partition.metadata
      log-start-offset-checkpoint      and the three other checkpoints
      .kafka_cleanshutdown             exists only after an orderly stop

This module determines the contents of a partition as Kafka's LogLoader does, but repairs nothing. After an orderly
stop, plausible indexes are trusted: only the end of each segment is read. After a crash, or if an index is missing or not
plausible, the .log files are read, one batch header after another. A torn tail of the newest segment is ignored. Damage
before the torn tail raises an error.

Do not use this module for a directory while a broker or a LogManager uses the directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from storage_engine.config import INT_MAX, LONG_MAX
from storage_engine.errors import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    StorageAccessError,
    UnknownTopicError,
    UsageError,
)
from storage_engine.log.checkpoint import (
    CLEAN_SHUTDOWN,
    FIRST_DIRTY_OFFSETS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    decode_leader_epochs,
    decode_offsets,
    decode_partition_metadata,
)
from storage_engine.log.filenames import (
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    is_offset_name,
    offset_name,
)
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET, GrowingSegment
from storage_engine.log.indexes.offset_index import decode_offset_index
from storage_engine.log.indexes.time_index import decode_time_index
from storage_engine.log.indexes.transaction_index import AbortedTransaction, decode_transaction_index
from storage_engine.log.intact_batches import without_torn_tail
from storage_engine.log.leader_epochs import Epochs, with_batches
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry, decode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.log.segment_reader import SegmentFile, read_chunks
from storage_engine.record.decoding import NO_END
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage.storage_opening import open_directory
from storage_engine.topic_name import is_topic_name

DELETED_FOLDER, FUTURE_FOLDER, STRAY_FOLDER = "-delete", "-future", "-stray"
"""Suffixes of folders that a broker set aside."""
_SET_ASIDE = re.compile(
    rf"(?P<partition>\S+-[0-9]+)\.[^\s.]+(?P<suffix>{DELETED_FOLDER}|{FUTURE_FOLDER}|{STRAY_FOLDER})"
)
_BESIDE_LOG = (INDEX, TIME_INDEX, SNAPSHOT)
_PARTITION_FOLDER = re.compile(r"(?P<topic>.+)-(?P<number>0|[1-9][0-9]*)")


class TopicPartition(NamedTuple):
    """A topic and a partition number. Sorted by topic, then by number."""

    topic: str
    number: int

    @property
    def folder(self) -> str:
        """The name of the partition's folder."""
        return f"{self.topic}-{self.number}"


def refuse_root(directory: Path) -> None:
    """Raise an error if a directory is a root or its view: a .log in the view is a second name of the root's own file.
    Call this before a plain Kafka directory is changed in place, or its files are moved.

    Raises:
        UsageError: the directory is a root or a view.
    """
    real = directory.resolve()
    remedy = "Use --root {} instead, or a copy that `lakelog topics export` makes."
    if (real / "meta").is_dir():
        raise UsageError(str(directory), "is a root of Lakelog, and not a log directory of Kafka", remedy.format(real))
    if real.name == "log" and (real.parent / "meta").is_dir():
        problem = "is the view (log/) of a root: its .log files are the root's own files"
        raise UsageError(str(directory), problem, remedy.format(real.parent))


def partition_of(folder: str) -> TopicPartition | None:
    """The partition of a folder with this name. None if it is no partition's folder, or if a broker set it aside."""
    found = _PARTITION_FOLDER.fullmatch(folder)
    if found and is_topic_name(found["topic"]) and int(found["number"]) <= INT_MAX:
        return TopicPartition(found["topic"], int(found["number"]))
    return None


def set_aside_as(folder: str) -> str | None:
    """The suffix of a folder that a broker set aside: <topic>-<partition>.<id>-delete, -future or -stray. None if the
    folder has another name. A broker refuses to start with any other name that has such a suffix."""
    found = _SET_ASIDE.fullmatch(folder)
    return found["suffix"] if found else None


def future_partition_of(folder: str) -> TopicPartition | None:
    """The partition of a folder that a broker fills, to move the partition to this directory
    (<topic>-<partition>.<id>-future); None if the folder has another name."""
    found = _SET_ASIDE.fullmatch(folder)
    return partition_of(found["partition"]) if found and found["suffix"] == FUTURE_FOLDER else None


@dataclass(frozen=True)
class FoundPartition:
    """A partition as found in its folder.

    topic_id: None if there is no partition.metadata.
    torn: the number of bytes at the end of the newest .log that are not a whole, intact batch. The state does not
        include these bytes.
    snapshots: the producers at each roll, by offset, if the log was closed cleanly. After a compaction, only these
        snapshots have the producers at the earlier rolls.
    """

    name: TopicPartition
    state: PartitionState
    topic_id: str | None
    torn: int
    snapshots: Mapping[int, tuple[ProducerEntry, ...]] = field(default_factory=dict)


class LogDirectory:
    """One plain Kafka log directory, open for reading. Checkpoints and listings are read once and cached."""

    def __init__(self, path: Path | str) -> None:
        """
        Raises:
            StorageAccessError: the directory does not exist.
        """
        self.path = Path(path).absolute()
        self.storage = open_directory(self.path)
        if not self.path.is_dir():
            raise StorageAccessError(
                str(self.path), "is not a directory",
                "Give one of the directories in the broker's log.dirs: the directory that contains the topic-partition"
                " folders.",
            )  # fmt: skip

    @cached_property
    def cleanly_closed(self) -> bool:
        """Whether the directory was closed cleanly."""
        return (self.path / CLEAN_SHUTDOWN).exists()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions, sorted."""
        folders = (entry.name for entry in self.storage.entries("") if entry.is_folder)
        return tuple(sorted(found for folder in folders if (found := partition_of(folder)) is not None))

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions of a topic, sorted.

        Raises:
            UnknownTopicError: the topic has no partition in this directory.
        """
        found = tuple(each for each in self.partitions if each.topic == topic)
        if not found:
            raise UnknownTopicError(
                f"topic {topic}", f"no folder {topic}-<partition number> in {self.path}",
                "Give the directory that contains the topic-partition folders.",
            )  # fmt: skip
        return found

    @cached_property
    def log_start_offsets(self) -> dict[tuple[str, int], int]:
        """The contents of the log-start-offset-checkpoint.

        Raises:
            CorruptionError: the file is malformed. A broker would stop, too.
        """
        return self.checkpoint(LOG_STARTS)

    @cached_property
    def first_dirty_offsets(self) -> dict[tuple[str, int], int]:
        """The contents of the cleaner-offset-checkpoint. Raises the errors of log_start_offsets."""
        return self.checkpoint(FIRST_DIRTY_OFFSETS)

    def inspect(self, name: TopicPartition) -> FoundPartition:
        """Determine the contents of a partition.

        Raises:
            CorruptionError: the .log files are damaged before their end, or their offsets overlap.
            ConflictError: a swap of cleaned segments was interrupted and must be finished first.
            StorageError: a file cannot be read.
        """
        return _Inspection(self, name).found()

    def reader(self, found: FoundPartition) -> LogReader:
        """A reader of a partition that `inspect` found."""
        place = f"{self.path}, partition {found.name.folder}"
        return LogReader(self.storage, found.state, lambda segment: f"{found.name.folder}/{segment.name}", place)

    def checkpoint(self, file: str) -> dict[tuple[str, int], int]:
        """The contents of a checkpoint; empty if there is none. Raises the errors of log_start_offsets."""
        try:
            return decode_offsets(self.storage.read(file), str(self.path / file))
        except NotFoundError:
            return {}


class _Inspection:
    """Determines the PartitionState of one partition from its folder."""

    def __init__(self, directory: LogDirectory, name: TopicPartition) -> None:
        self._directory = directory
        self._storage = directory.storage
        self._name = name
        self._entries = {entry.name: entry for entry in directory.storage.entries(name.folder)}
        self._torn = 0

    def found(self) -> FoundPartition:
        bases = self._base_offsets()
        contents = (self._believed(bases) if self._directory.cleanly_closed else None) or self._read_through(bases)
        end = contents.segments[-1].end_offset if bases else 0
        start = max(self._directory.log_start_offsets.get(self._name, 0), bases[0] if bases else 0)
        start = min(start, end) if bases else start
        end = max(start, end)
        state = PartitionState(
            log_start_offset=start,
            high_watermark=end,
            first_dirty_offset=self._directory.first_dirty_offsets.get(self._name),
            segments=contents.segments,
            leader_epochs=tuple(each for each in contents.leader_epochs if each.start_offset <= end),
            producers=contents.producers,
        )
        snapshots = self._snapshots(state.segments) if self._directory.cleanly_closed else {}
        return FoundPartition(self._name, state, self._topic_id(), self._torn, snapshots)

    def _base_offsets(self) -> list[int]:
        bases = []
        for name in sorted(self._entries):
            if name.endswith(LOG + SWAP):
                raise ConflictError(
                    self._place(name), "an interrupted swap of cleaned segments",
                    "`lakelog verify --repair` finishes the swap, as a broker does at its start.",
                )  # fmt: skip
            if name.endswith(LOG):
                if not is_offset_name(name.removesuffix(LOG)):
                    raise CorruptionError(
                        self._place(name), 0, "a name of 20 digits: the base offset", repr(name),
                        "Move the file away. A broker also refuses this file.",
                    )  # fmt: skip
                bases.append(int(name.removesuffix(LOG)))
        if not bases and (left := next((name for name in sorted(self._entries) if name.endswith(_BESIDE_LOG)), None)):
            raise CorruptionError(
                self._place(left), 0, f"a file {left.partition('.')[0]}{LOG} beside it", "no .log file in this folder",
                "Copy the folder again.",
            )  # fmt: skip
        return bases

    def _believed(self, bases: Sequence[int]) -> _Contents | None:
        """The contents according to indexes and snapshots. None if an index or a snapshot is missing or not
        plausible.
        """
        epochs = self._checkpointed_epochs()
        segments = []
        for base, following in zip(bases, _following(bases), strict=True):
            segment = self._believed_segment(base, following)
            if segment is None:
                return None
            segments.append(segment)
        producers = self._snapshot(segments[-1].end_offset) if segments else ()
        if epochs is None or producers is None:
            return None
        # A segment needs no .txnindex if no producer is known at its start, and none at its end.
        known = [self._snapshot(base) if number else () for number, base in enumerate(bases)]
        for segment, before, after in zip(segments, known, [*known, producers][1:], strict=True):
            if (before or after or before is None or after is None) and not self._has(
                segment.base_offset, TRANSACTION_INDEX
            ):
                return None
        return _Contents(tuple(segments), tuple(epochs), producers)

    def _believed_segment(self, base: int, following: int) -> Segment | None:
        file = self._segment_file(base, following)
        try:
            offset_bytes, time_bytes = (self._storage.read(file.stem + suffix) for suffix in (INDEX, TIME_INDEX))
            aborted = self._aborted(base)
        except (NotFoundError, CorruptionError):
            return None
        offsets, times = decode_offset_index(offset_bytes), decode_time_index(time_bytes)
        if (offsets.nbytes, times.nbytes) != (len(offset_bytes), len(time_bytes)):
            return None
        largest, largest_at = times[-1].tolist() if len(times) else (NO_TIMESTAMP, 0)
        relative_offset, position = offsets[-1].tolist() if len(offsets) else (0, 0)
        end = base
        try:
            for chunk in read_chunks(self._storage, file, position):
                table = chunk.table
                if position and end == base and int(table.last_offsets[0]) != base + relative_offset:
                    return None
                if int(table.max_timestamps.max()) > largest:
                    return None
                end = int(table.last_offsets[-1]) + 1
        except CorruptionError:
            return None
        if end == base and file.size:
            return None
        return Segment(
            base, offset_name(base), file.size, end, largest, base + largest_at, self._modified_ms(base), aborted
        )

    def _read_through(self, bases: Sequence[int]) -> _Contents:
        """The contents according to the .log files, read from the first batch header to the last."""
        segments = []
        derived: Epochs = ()
        producers = Producers(self._snapshot(bases[0]) or () if bases else ())
        for base, following in zip(bases, _following(bases), strict=True):
            file = self._segment_file(base, following)
            if following == NO_END and not self._directory.cleanly_closed:
                whole = without_torn_tail(self._storage, file)
                self._torn, file = file.size - whole.size, whole
            growing = GrowingSegment(base, 0, LONG_MAX)
            aborted: list[AbortedTransaction] = []
            for chunk in read_chunks(self._storage, file):
                growing.append_all(chunk.table)
                aborted += aborted_among(producers.replay(chunk.data, chunk.table, file.key, chunk.position))
                derived = with_batches(derived, chunk.table)
            all_aborted = self._with_indexed(base, growing, aborted)
            segments.append(growing.segment(offset_name(base), self._modified_ms(base), all_aborted))
        epochs = self._checkpointed_epochs()
        known = self._known_producers(segments)
        return _Contents(
            tuple(segments),
            derived if epochs is None else tuple(epochs),
            producers.entries() if known is None else known,
        )

    def _known_producers(self, segments: Sequence[Segment]) -> tuple[ProducerEntry, ...] | None:
        """The producers from the newest .snapshot of a log that was closed cleanly, and from the batches after it. A
        snapshot includes batches that compaction has deleted. None if there is no snapshot.
        """
        ends = [segment.end_offset for segment in segments]
        if not self._directory.cleanly_closed or not ends:
            return None
        for number in range(len(segments), 0, -1):
            entries = self._snapshot(ends[-1] if number == len(segments) else segments[number].base_offset)
            if entries is None:
                continue
            producers = Producers(entries)
            for segment, end in zip(segments[number:], ends[number:], strict=True):
                file = self._segment_file(segment.base_offset, end)
                for chunk in read_chunks(self._storage, file):
                    producers.replay(chunk.data, chunk.table, file.key, chunk.position)
            return producers.entries()
        return None

    def _snapshots(self, segments: Sequence[Segment]) -> dict[int, tuple[ProducerEntry, ...]]:
        """The producers at each roll, by offset, for each valid .snapshot."""
        found = {segment.base_offset: self._snapshot(segment.base_offset) for segment in segments[1:]}
        return {offset: entries for offset, entries in found.items() if entries is not None}

    def _with_indexed(
        self, base: int, growing: GrowingSegment, aborted: list[AbortedTransaction]
    ) -> tuple[AbortedTransaction, ...]:
        """Add transactions that only the .txnindex has, because compaction deleted their batches. The first offsets of
        these transactions are also taken from the .txnindex. In a log that was closed cleanly, the .txnindex has all
        transactions."""
        try:
            indexed = self._aborted(base)
        except CorruptionError:
            indexed = ()
        if indexed and self._directory.cleanly_closed and indexed[-1].last_offset < growing.end_offset:
            return indexed
        known = {
            (each.producer_id, each.last_offset): each for each in indexed if each.last_offset < growing.end_offset
        }
        start = self._directory.log_start_offsets.get(self._name, 0)
        known |= {(each.producer_id, each.last_offset): each for each in aborted if each.last_offset >= start}
        return tuple(sorted(known.values(), key=lambda each: each.last_offset))

    def _segment_file(self, base: int, following: int) -> SegmentFile:
        size, end = self._entries[offset_name(base) + LOG].size, min(following, base + MOST_RELATIVE_OFFSET + 1)
        return SegmentFile(f"{self._name.folder}/{offset_name(base)}", base, size, end)

    def _modified_ms(self, base: int) -> int:
        return self._entries[offset_name(base) + LOG].modified_ms

    def _has(self, base: int, suffix: str) -> bool:
        return offset_name(base) + suffix in self._entries

    def _aborted(self, base: int) -> tuple[AbortedTransaction, ...]:
        name = offset_name(base) + TRANSACTION_INDEX
        return decode_transaction_index(self._read(name), self._place(name)) if name in self._entries else ()

    def _snapshot(self, offset: int) -> tuple[ProducerEntry, ...] | None:
        """The producers at an offset; None if there is no valid .snapshot."""
        name = offset_name(offset) + SNAPSHOT
        if name not in self._entries:
            return None
        try:
            return decode_snapshot(self._read(name), self._place(name))
        except CorruptionError:
            return None

    def _checkpointed_epochs(self) -> list[LeaderEpoch] | None:
        if LEADER_EPOCHS not in self._entries:
            return None
        try:
            epochs = decode_leader_epochs(self._read(LEADER_EPOCHS), self._place(LEADER_EPOCHS))
        except CorruptionError:
            return None
        return [LeaderEpoch(*entry) for entry in epochs]

    def _topic_id(self) -> str | None:
        if PARTITION_METADATA not in self._entries:
            return None
        return decode_partition_metadata(self._read(PARTITION_METADATA), self._place(PARTITION_METADATA))

    def _read(self, name: str) -> bytes:
        return self._storage.read(f"{self._name.folder}/{name}")

    def _place(self, name: str) -> str:
        return str(self._directory.path / self._name.folder / name)


class _Contents(NamedTuple):
    segments: tuple[Segment, ...]
    leader_epochs: tuple[LeaderEpoch, ...]
    producers: tuple[ProducerEntry, ...]


def _following(bases: Sequence[int]) -> list[int]:
    """The base offset of the next segment, for each segment. A folder may have no segment."""
    return [*bases[1:], NO_END] if bases else []
