"""Writes the segments of one topic from a plain Kafka log directory into a root. Imports use this module.

Each .log is copied, or linked if the import moves the files. During the copy, the indexes of the .log are derived
from the batches, and every CRC is checked. The written files can still be deleted until a version of the state names
them. If the import crashes before this version exists, no version ever names the written files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage_engine.config import LONG_MAX, TopicConfig
from storage_engine.errors import (
    BatchTooLargeError,
    ConflictError,
    CorruptionError,
    StorageError,
    TopicExistsError,
)
from storage_engine.kafka_dir.log_directory import FoundPartition, LogDirectory
from storage_engine.log.filenames import INDEX, TIME_INDEX, data_key, new_segment_name
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.partition_state import Segment
from storage_engine.log.segment_reader import Chunk, SegmentFile, position_of, read_chunks
from storage_engine.progress import Progress
from storage_engine.record.batch_limit import most_batch_bytes
from storage_engine.record.compression import Codec, decompress_bound
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import intact_sections
from storage_engine.record.header import HEADER_BYTES
from storage_engine.record.kernels.decode_kernels import SMALLEST_RECORD
from storage_engine.record.legacy_records import read_messages
from storage_engine.record.sections import ROW_BYTES, Room
from storage_engine.record.stamping import stamp_leader_epoch
from storage_engine.storage import Links, NewFile, needed
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.dropped_files import delete_segment
from storage_engine.topic.imported_ids import release_id, reserve_id
from storage_engine.topic.kafka.snapshots import show_snapshots
from storage_engine.topic.topics import Topics


class ImportedPartition(NamedTuple):
    """The records that an import added to a partition.

    first_offset, end_offset: their offsets, end_offset excluded.
    size: the number of bytes.
    torn: the bytes at the end of the newest .log that are not a complete batch. They were not imported.
    """

    first_offset: int
    end_offset: int
    size: int
    torn: int


@dataclass(frozen=True)
class ImportedTopic:
    """The result of an import for one topic.

    is_new: whether the import created the topic.
    """

    state: TopicState
    is_new: bool
    partitions: tuple[ImportedPartition, ...]


@contextmanager
def remedy(directory: LogDirectory) -> Iterator[None]:
    """Add the remedy for damage in a log directory to the errors of the block."""
    try:
        yield
    except BatchTooLargeError:  # has its own remedy
        raise
    except CorruptionError as error:
        advice = (
            f"Remove the damage with `lakelog verify --repair --kafka-dir {directory.path}`, which stores a copy"
            " of the removed bytes."
        )
        raise error.with_remedy(advice) from error


class SegmentImporter:
    """The import of one topic. Records which files were written, and which of them a state may name."""

    def __init__(self, topics: Topics, directory: LogDirectory, move: bool, progress: Progress) -> None:
        self.topics = topics
        self.directory = directory
        self._progress = progress
        self._written: list[tuple[str, int, str]] = []
        self._committed: list[tuple[str, int, str]] = []
        self._taken_id: str | None = None
        self._links: Links | None = None
        if move:
            self._links = needed(topics.storage.links, topics.storage, "moving files into it", "Import without --move.")

    def forget(self) -> None:
        """Delete the written files that no state will name, and give the topic's id back."""
        for topic_id, number, name in self._written:
            delete_segment(self.topics.storage, data_key(topic_id, number, name, ""))
        if self._taken_id is not None:
            release_id(self.topics.storage, self._taken_id)

    def reserve_id(self, topic_id: str, name: str) -> bool:
        """Reserve a topic's id for this import; return False if another import has reserved it."""
        if not reserve_id(self.topics.storage, topic_id, name):
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
        """Write a segment under data/.

        Args:
            version: the version of the state on which the import was planned; becomes a part of the file's name.
            first_offset: batches that end below this offset are skipped.
            epoch: replaces the leader epoch of each batch, if given.
        """
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
        # Only the records show whether cleaning would still remove something from a batch with a delete horizon.
        return growing.segment(name, segment.modified_ms, horizon_ms=-1 if horizon_ms == LONG_MAX else horizon_ms)

    @contextmanager
    def _linked(self, source: SegmentFile, key: str) -> Iterator[NewFile | None]:
        """The file to copy a whole segment to; None if the segment was linked instead."""
        if self._links is not None:
            self._links.adopt(self.directory.path / source.key, key)
            yield None
        else:
            with self.topics.storage.new_file(key) as log:
                yield log

    def _chunks(self, source: SegmentFile, first_offset: int) -> Iterator[Chunk]:
        storage = self.directory.storage
        with remedy(self.directory):
            for chunk in read_chunks(storage, source, position_of(storage, source, first_offset)):
                check_crcs(chunk.data, chunk.table, source.key, chunk.position)
                _check_unfolding(chunk, source.key)
                self._progress.advance(size=len(chunk.data))
                yield chunk

    def commit(self, commit: Callable[[], TopicState]) -> TopicState:
        """Commit a version that names the written files."""
        # After this point a state may name the files, except after the errors that this block catches.
        self._committed, self._written = self._written, []
        taken_id, self._taken_id = self._taken_id, None
        try:
            return commit()
        except (ConflictError, TopicExistsError):
            self._written, self._taken_id = self._committed, taken_id
            raise

    def show_snapshots(self, state: TopicState, found: Sequence[FoundPartition]) -> None:
        """Write the directory's .snapshot files for the imported segments into the view."""
        came = {(number, name) for _, number, name in self._committed}
        for number, each in enumerate(found):
            segments = state.partitions[number].segments
            bases = {segment.base_offset for segment in segments if (number, segment.name) in came}
            with suppress(StorageError):  # settling reports the error, and derives the snapshots
                show_snapshots(
                    self.topics, state, number, {at: each.snapshots[at] for at in bases & each.snapshots.keys()}
                )


def as_text(path: Path) -> str:
    """A path as text for a state. Bytes that are not UTF-8 are escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def _check_unfolding(chunk: Chunk, file: str) -> None:
    """Check that readers can decompress each batch of a chunk with checked CRCs. Only batches whose bound exceeds the
    memory limit are decompressed.

    Raises:
        BatchTooLargeError, CorruptionError: a batch is too large or damaged. The error names the batch.
    """
    data, table, most = chunk.data, chunk.table, most_batch_bytes()
    for row in np.flatnonzero((table.codecs != Codec.NONE) & (table.codecs <= Codec.ZSTD)).tolist():
        one = table.select(slice(row, row + 1))
        start, end = int(one.positions[0]), int(one.positions[0] + one.sizes[0])
        legacy = bool(one.is_legacy[0])
        try:
            bound = decompress_bound(int(one.codecs[0]), data[start if legacy else start + HEADER_BYTES : end].data)
        except ValueError:
            bound = most
        if bound + ROW_BYTES * (bound // SMALLEST_RECORD if legacy else int(one.records_counts[0])) <= most:
            continue
        if legacy:
            read_messages(data, one, file, chunk.position, Room())
        else:
            intact_sections(data, one, file, chunk.position, Room())
