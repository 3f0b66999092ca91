"""Reads a topic: records of a partition in order, and Kafka's look-ups by offset and time.

A reader takes its list of files from one version of the state. If a file was deleted meanwhile (after compaction,
merging or retention), the reader takes the newest version and continues from its last offset. A swap keeps every
offset, so no record is seen twice, and none is missed but those that retention has deleted. For these the caller
chooses: skip them, or raise an error. A transaction whose commit is decided counts as ended, whether its markers are
written or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_engine.config import LONG_MAX
from storage_engine.errors import ConflictError, NotFoundError, OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.filenames import data_key
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.storage import Storage
from storage_engine.topic.chain.decisions import newest_decided
from storage_engine.topic.chain.state import TopicState
from storage_engine.topic.chain.state_chain import StateChain

_PATIENCE = 100


def segment_file(topic_id: str, partition: int, segment: Segment) -> SegmentFile:
    """What reading a segment needs."""
    return SegmentFile(
        data_key(topic_id, partition, segment.name, ""), segment.base_offset, segment.size, segment.end_offset
    )


def segments_in_range(state: TopicState, partition: int, first_offset: int, end_offset: int) -> list[SegmentFile]:
    """The segments that hold records with first_offset <= offset < end_offset, in order."""
    return [
        segment_file(state.topic_id, partition, segment)
        for segment in state.partitions[partition].segments
        if segment.base_offset < end_offset and segment.end_offset > first_offset and segment.size
    ]


class PartitionReader:
    """One partition of a topic, for one thread."""

    def __init__(self, storage: Storage, chain: StateChain, partition: int, state: TopicState | None = None) -> None:
        """
        Args:
            state: where to begin, as decisions.newest_decided gave it; by default what it gives now. Readers of several
                partitions that begin with one state see a commit on all of them or on none.

        Raises:
            UnknownTopicError: no such topic, or it has no such partition.
        """
        self._storage = storage
        self._chain = chain
        self._partition = partition
        self._state = newest_decided(storage, chain) if state is None else state
        self.topic_id = self._state.topic_id
        self._check()

    def _check(self) -> None:
        state = self._state
        if state.deleted or state.topic_id != self.topic_id:
            raise UnknownTopicError(f"topic {state.topic}", "was deleted", "`lakelog topics list` shows the topics.")
        if not 0 <= self._partition < len(state.partitions):
            raise UnknownTopicError(
                f"topic {state.topic}", f"has partitions 0 to {len(state.partitions) - 1}, found {self._partition}"
            )

    def refresh(self) -> PartitionState:
        """Take the newest version of the state."""
        self._state = newest_decided(self._storage, self._chain)
        self._check()
        return self.partition

    @property
    def partition(self) -> PartitionState:
        """The partition as this reader sees it."""
        return self._state.partitions[self._partition]

    def read(
        self,
        first_offset: int,
        end_offset: int | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        required_from: int = LONG_MAX,
    ) -> Iterator[pa.RecordBatch]:
        """Records from first_offset up to end_offset or what the isolation allows, in columns.RECORDS.

        Args:
            required_from: that retention takes away offsets from this one on meanwhile is an error; lower ones are passed
                over.

        Raises:
            OffsetOutOfRangeError: first_offset lies below the log start offset or above the high watermark. Raised by
                this call; what follows comes with the records. Or offsets were taken away, and that is an error.
            CorruptionError: committed bytes have changed.
        """
        reader = self._reader()
        reader.check_offset(first_offset)
        end = reader.end_offset(isolation)
        end = end if end_offset is None else min(end_offset, end)
        return self._read(first_offset, end, isolation, required_from)

    def _read(self, offset: int, end: int, isolation: Isolation, required_from: int) -> Iterator[pa.RecordBatch]:
        for _ in range(_PATIENCE):
            try:
                for segment, stream in self._reader().read_segments(offset, end, isolation):
                    for records in stream:
                        yield records
                        offset = records["offset"][-1].as_py() + 1
                    offset = max(offset, segment.end_offset)
                return
            except NotFoundError:
                known = self._state.version
                self.refresh()
                if self._state.version == known:
                    raise
                offset = self.first_left(offset, end, required_from)
        raise self._too_busy()

    def first_left(self, offset: int, end: int, required_from: int) -> int:
        """Where to read on, as retention may have taken what lies at an offset.

        Args:
            end: up to where there was something to be read.
            required_from: from which offset on none may be missing.

        Raises:
            OffsetOutOfRangeError: one of them is.
        """
        start = self.partition.log_start_offset
        if max(offset, required_from) < min(start, end):
            raise lost_offsets(self._state.topic, self._partition, offset, start) from None
        return max(offset, start)

    def end_offset(self, isolation: Isolation) -> int:
        """Behind the last record that a reader may be given."""
        return self._reader().end_offset(isolation)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """Kafka's ListOffsets; as LogReader.offset_at."""
        for _ in range(_PATIENCE):
            try:
                return self._reader().offset_at(time, isolation)
            except NotFoundError:
                known = self._state.version
                self.refresh()
                if self._state.version == known:
                    raise
        raise self._too_busy()

    def _reader(self) -> LogReader:
        state = self._state
        return LogReader(
            self._storage, self.partition,
            lambda segment: data_key(state.topic_id, self._partition, segment.name, ""),
            f"topic {state.topic}, partition {self._partition}",
        )  # fmt: skip

    def _too_busy(self) -> ConflictError:
        return ConflictError(
            f"topic {self._state.topic}, partition {self._partition}",
            f"lost a file to cleaning {_PATIENCE} times in a row", "Read again when less is going on.",
        )  # fmt: skip


def lost_offsets(topic: str, partition: int, first_offset: int, log_start_offset: int) -> OffsetOutOfRangeError:
    """What to raise where records were deleted before they were read."""
    return OffsetOutOfRangeError(
        f"topic {topic}, partition {partition}",
        f"offset {first_offset} was to be read next, and the log now starts at {log_start_offset}",
        "Retention, or a deleted and new topic, was faster. A stream goes on at the log's start where failOnDataLoss is"
        " false, an export when it is run again.",
    )
