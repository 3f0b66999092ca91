"""Reads a plain Kafka log directory (a folder of a broker's log.dirs) as it is, and never changes it.

    <directory>/
      orders-0/                        a partition: segments, leader-epoch-checkpoint, partition.metadata
      log-start-offset-checkpoint      and the three other checkpoints
      .kafka_cleanshutdown             there only after an orderly stop

What a partition consists of is found as Kafka's LogLoader would, but nothing is repaired on the way. After an orderly
stop, indexes that check out are believed about the segments that they belong to, so that only their ends are read;
whatever is missing or does not check out, and everything after a crash, is read from the .log files, batch header by
batch header. A torn tail of the newest segment, which a crash leaves, is left out. Damage before it raises.

Not for a directory in which a broker, or a LogManager of ours, is at work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from storage_engine.config import LONG_MAX
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
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.offset_index import decode_offset_index
from storage_engine.log.indexes.time_index import decode_time_index
from storage_engine.log.indexes.transaction_index import AbortedTransaction, decode_transaction_index
from storage_engine.log.leader_epochs import Epochs, with_batches
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry, decode_snapshot
from storage_engine.log.producers.producer_state import Producers, aborted_among
from storage_engine.log.segment_reader import Chunk, SegmentFile, read_chunks
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import NO_END
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage.opening import open_directory
from storage_engine.topic_name import is_topic_name

DELETED_FOLDER, FUTURE_FOLDER, STRAY_FOLDER = "-delete", "-future", "-stray"
"""How the names of folders end that a broker puts aside."""
_PARTITION_FOLDER = re.compile(r"(?P<topic>.+)-(?P<number>0|[1-9][0-9]*)")


class TopicPartition(NamedTuple):
    """Which partition of which topic; sorted by topic, then by number."""

    topic: str
    number: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.topic}-{self.number}"


def refuse_view(directory: Path) -> None:
    """Keep work that changes a plain Kafka directory in place, or takes its files away, off the view of a root: a .log
    there is a second name of the root's own file.

    Raises:
        UsageError: the directory is a view.
    """
    real = directory.resolve()
    if real.name == "log" and (real.parent / "meta").is_dir():
        raise UsageError(
            str(directory), "is the view of a root, whose files are the root's own",
            f"Use --root {real.parent} instead, or a copy that `lakelog topics export` makes.",
        )  # fmt: skip


def partition_of(folder: str) -> TopicPartition | None:
    """Which partition a folder's name means; None for those that a broker puts aside (-delete, -future, -stray) and
    for names that are none of a partition."""
    found = _PARTITION_FOLDER.fullmatch(folder)
    return TopicPartition(found["topic"], int(found["number"])) if found and is_topic_name(found["topic"]) else None


@dataclass(frozen=True)
class FoundPartition:
    """A partition as its folder shows it.

    topic_id: None where there is no partition.metadata. torn: bytes at the end of the newest .log that are no whole,
    intact batch; they are not part of the state. snapshots: the producers at the rolls, by offset, as a log that was
    closed tells them; a compaction leaves none other to tell.
    """

    name: TopicPartition
    state: PartitionState
    topic_id: str | None
    torn: int
    snapshots: Mapping[int, tuple[ProducerEntry, ...]] = field(default_factory=dict)


class LogDirectory:
    """One plain Kafka log directory, to be read. Checkpoints and listings that were read once are cached."""

    def __init__(self, path: Path | str) -> None:
        """
        Raises:
            StorageAccessError: there is no such directory.
        """
        self.path = Path(path).absolute()
        self.storage = open_directory(self.path)
        if not self.path.is_dir():
            raise StorageAccessError(
                str(self.path), "is no directory",
                "Name a folder of a broker's log.dirs, the one that holds the topic-partition folders.",
            )  # fmt: skip

    @cached_property
    def cleanly_closed(self) -> bool:
        """Whether it was left by an orderly stop."""
        return (self.path / CLEAN_SHUTDOWN).exists()

    @cached_property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """All partitions, sorted."""
        folders = (entry.name for entry in self.storage.entries("") if entry.is_folder)
        return tuple(sorted(found for folder in folders if (found := partition_of(folder)) is not None))

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """A topic's partitions, sorted.

        Raises:
            UnknownTopicError: there is none.
        """
        found = tuple(each for each in self.partitions if each.topic == topic)
        if not found:
            raise UnknownTopicError(
                f"topic {topic}", f"no folder {topic}-0, or another number, in {self.path}",
                "Name the folder that holds the topic-partition folders.",
            )  # fmt: skip
        return found

    @cached_property
    def log_start_offsets(self) -> dict[tuple[str, int], int]:
        """What the log-start-offset-checkpoint says.

        Raises:
            CorruptionError: it is malformed, over which a broker stops.
        """
        return self._checkpoint(LOG_STARTS)

    @cached_property
    def first_dirty_offsets(self) -> dict[tuple[str, int], int]:
        """What the cleaner-offset-checkpoint says; raises as log_start_offsets."""
        return self._checkpoint(FIRST_DIRTY_OFFSETS)

    def inspect(self, name: TopicPartition) -> FoundPartition:
        """What a partition consists of.

        Raises:
            CorruptionError: the .log files are damaged otherwise than at their end, or do not follow one another.
            ConflictError: a swap of cleaned segments was interrupted and has to be finished first.
            StorageError: it cannot be read.
        """
        return _Inspection(self, name).found()

    def reader(self, found: FoundPartition) -> LogReader:
        """A reader of a partition as it was found."""
        return LogReader(
            self.storage, found.state, lambda segment: f"{found.name.folder}/{segment.name}",
            f"{self.path}, partition {found.name.folder}",
        )  # fmt: skip

    def _checkpoint(self, file: str) -> dict[tuple[str, int], int]:
        try:
            return decode_offsets(self.storage.read(file), str(self.path / file))
        except NotFoundError:
            return {}


class _Inspection:
    """One partition's folder on its way to a PartitionState."""

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
                    "`lakelog verify --repair` finishes it, as a broker does when it starts.",
                )  # fmt: skip
            if name.endswith(LOG):
                if not is_offset_name(name.removesuffix(LOG)):
                    raise CorruptionError(
                        self._place(name), 0, "a name of 20 digits, the base offset", repr(name),
                        "Move it away: a broker refuses it, too.",
                    )  # fmt: skip
                bases.append(int(name.removesuffix(LOG)))
        return bases

    def _believed(self, bases: Sequence[int]) -> _Contents | None:
        """What indexes and snapshots say; None where something is missing or does not check out."""
        epochs = self._checkpointed_epochs()
        segments = []
        for base, following in zip(bases, [*bases[1:], NO_END], strict=True):
            segment = self._believed_segment(base, following)
            if segment is None:
                return None
            segments.append(segment)
        producers = self._snapshot(segments[-1].end_offset) if segments else ()
        if epochs is None or producers is None:
            return None
        # A segment without a .txnindex has none to have where no producer is known on either of its sides.
        known = [self._snapshot(base) if number else () for number, base in enumerate(bases)]
        for segment, before, after in zip(segments, known, [*known[1:], producers], strict=True):
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
        """What the .log files say, read from the first batch header to the last."""
        segments = []
        derived: Epochs = ()
        producers = Producers(self._snapshot(bases[0]) or () if bases else ())
        for base, following in zip(bases, [*bases[1:], NO_END], strict=True):
            file = self._segment_file(base, following)
            if following == NO_END and not self._directory.cleanly_closed:
                file = self._without_torn_tail(file)
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
        """What the newest .snapshot of a log that was closed tells, which knows of batches that compaction took away, and
        the batches behind it; None where there is none."""
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
        """The producers at the rolls, by offset, where a sane .snapshot tells them."""
        found = {segment.base_offset: self._snapshot(segment.base_offset) for segment in segments[1:]}
        return {offset: entries for offset, entries in found.items() if entries is not None}

    def _with_indexed(
        self, base: int, growing: GrowingSegment, aborted: list[AbortedTransaction]
    ) -> tuple[AbortedTransaction, ...]:
        """What was derived, and what the .txnindex knows of transactions whose batches went to compaction: more of them,
        and where they began. In a log that was closed a .txnindex knows all."""
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

    def _without_torn_tail(self, file: SegmentFile) -> SegmentFile:
        """The file up to its last whole, intact batch, if what follows is no batch."""
        size = file.size
        while True:
            last: Chunk | None = None
            try:
                for chunk in read_chunks(self._storage, replace(file, size=size)):
                    last = chunk
            except CorruptionError as error:
                size = error.position
                continue
            if last is None or self._last_batch_is_intact(last, file.key):
                break
            size = last.position + int(last.table.positions[-1])
        self._torn = file.size - size
        return replace(file, size=size)

    @staticmethod
    def _last_batch_is_intact(chunk: Chunk, file: str) -> bool:
        try:
            check_crcs(chunk.data, chunk.table.select(slice(len(chunk.table) - 1, None)), file)
        except CorruptionError:
            return False
        return True

    def _segment_file(self, base: int, following: int) -> SegmentFile:
        size = self._entries[offset_name(base) + LOG].size
        return SegmentFile(f"{self._name.folder}/{offset_name(base)}", base, size, following)

    def _modified_ms(self, base: int) -> int:
        return self._entries[offset_name(base) + LOG].modified_ms

    def _has(self, base: int, suffix: str) -> bool:
        return offset_name(base) + suffix in self._entries

    def _aborted(self, base: int) -> tuple[AbortedTransaction, ...]:
        name = offset_name(base) + TRANSACTION_INDEX
        return decode_transaction_index(self._read(name), self._place(name)) if name in self._entries else ()

    def _snapshot(self, offset: int) -> tuple[ProducerEntry, ...] | None:
        """The producers at an offset; None where there is no sane .snapshot."""
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
