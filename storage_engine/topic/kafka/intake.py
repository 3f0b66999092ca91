"""Brings the segments of one topic from a plain Kafka log directory into a root, for an import.

Each .log is copied, or linked if the root may take the directory's files over. Its indexes are derived on the way, and
every CRC is checked. Until a version of the state names the written files, they can be deleted; after a crash no
version names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import (
    BatchTooLargeError,
    ConfigError,
    ConflictError,
    CorruptionError,
    StorageError,
    TopicExistsError,
)
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory
from storage_engine.log.filenames import INDEX, SEGMENT_SUFFIXES, TIME_INDEX, data_key, new_segment_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import Chunk, SegmentFile, position_of, read_chunks
from storage_engine.progress import Progress
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import check_unfolding
from storage_engine.record.stamping import stamp_leader_epoch
from storage_engine.storage import NewFile
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.imported_ids import give_back_id, take_id
from storage_engine.topic.kafka.snapshots import show_snapshots
from storage_engine.topic.topics import Topics


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


@contextmanager
def remedy(directory: LogDirectory) -> Iterator[None]:
    """Say what helps against damage in a directory."""
    try:
        yield
    except BatchTooLargeError:  # whose remedy is another
        raise
    except CorruptionError as error:
        advice = (
            f"Cut it out with `lakelog verify --repair --kafka-dir {directory.storage.root}`, which keeps it beside."
        )
        raise error.with_remedy(advice) from error


class Intake:
    """One topic on its way in; remembers which files it has written, and which of them a state may name."""

    def __init__(self, topics: Topics, directory: LogDirectory, move: bool, progress: Progress) -> None:
        self.topics = topics
        self.directory = directory
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
                self.topics.storage.delete(data_key(topic_id, number, name, suffix))
        if self._taken_id is not None:
            give_back_id(self.topics.storage, self._taken_id)

    def take_id(self, topic_id: str, name: str) -> bool:
        """Take a topic's id, unless another import is faster; returns whether it is ours."""
        if not take_id(self.topics.storage, topic_id, name):
            return False
        self._taken_id = topic_id
        return True

    def take(
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
        source = self.directory.reader(found).segment_file(segment)
        growing = GrowingSegment(max(segment.base_offset, first_offset), 0, config.index_interval_bytes)
        name = new_segment_name(growing.base_offset, version)
        horizon_ms = LONG_MAX
        self._written.append((topic_id, number, name))
        log_key = data_key(topic_id, number, name)
        storage = self.topics.storage
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
            self._linking.adopt(self.directory.storage.path(source.key), key)
            yield None
        else:
            with self.topics.storage.new_file(key) as log:
                yield log

    def _chunks(self, source: SegmentFile, first_offset: int) -> Iterator[Chunk]:
        storage = self.directory.storage
        with remedy(self.directory):
            for chunk in read_chunks(storage, source, position_of(storage, source, first_offset)):
                check_crcs(chunk.data, chunk.table, source.key, chunk.position)
                check_unfolding(chunk.data, chunk.table, source.key, chunk.position)
                self._progress.advance(size=len(chunk.data))
                yield chunk

    def commit(self, commit: Callable[[], TopicState]) -> TopicState:
        """Make a version that names what was written."""
        # From here on they may be named, unless it is known that they are not.
        self._committed, self._written = self._written, []
        taken_id, self._taken_id = self._taken_id, None
        try:
            return commit()
        except (ConflictError, TopicExistsError):
            self._written, self._taken_id = self._committed, taken_id
            raise

    def show_snapshots(self, state: TopicState, found: Sequence[FoundPartition]) -> None:
        """Those of the segments that came, which the state names by now."""
        came = {(number, name) for _, number, name in self._committed}
        for number, each in enumerate(found):
            segments = state.partitions[number].segments
            bases = {segment.base_offset for segment in segments if (number, segment.name) in came}
            with suppress(StorageError):  # settling says it, and derives them
                show_snapshots(
                    self.topics, state, number, {at: each.snapshots[at] for at in bases & each.snapshots.keys()}
                )


def as_text(path: Path) -> str:
    """A path as a state can hold it; one need not be UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()
