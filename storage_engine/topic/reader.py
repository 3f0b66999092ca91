"""Reading a topic: records of a partition in order, and Kafka's look-ups by offset and time.

A reader takes what exists from one version of the state. Where a file has gone meanwhile (compacted, merged, dropped),
it takes the newest version and goes on from the offset it had come to: a swap keeps every offset, so no record is seen
twice and none is missed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_engine.errors import ConflictError, NotFoundError, OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.filenames import data_key
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.storage import Storage
from storage_engine.topic.state import PartitionState, Segment, TopicState
from storage_engine.topic.state_chain import StateChain

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

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

    def __init__(self, storage: Storage, chain: StateChain, partition: int) -> None:
        """
        Raises:
            UnknownTopicError: no such topic, or it has no such partition.
        """
        self._storage = storage
        self._chain = chain
        self._partition = partition
        self._state = chain.newest()
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
        self._state = self._chain.newest()
        self._check()
        return self.partition

    @property
    def partition(self) -> PartitionState:
        """The partition as this reader sees it."""
        return self._state.partitions[self._partition]

    def read(self, first_offset: int, end_offset: int | None = None) -> Iterator[pa.RecordBatch]:
        """Records from first_offset up to end_offset or the high watermark, in columns.RECORDS.

        Raises:
            OffsetOutOfRangeError: first_offset lies below the log start offset or above the high watermark. Raised by
                this call; what follows comes with the records.
            CorruptionError: committed bytes have changed.
        """
        part = self.partition
        if not part.log_start_offset <= first_offset <= part.high_watermark:
            raise OffsetOutOfRangeError(
                f"topic {self._state.topic}, partition {self._partition}",
                f"offset {first_offset} lies outside {part.log_start_offset} to {part.high_watermark}",
                "Read from an offset in that range, or from `earliest`.",
            )
        end = part.high_watermark if end_offset is None else min(end_offset, part.high_watermark)
        return self._read(first_offset, end)

    def _read(self, offset: int, end: int) -> Iterator[pa.RecordBatch]:
        for _ in range(_PATIENCE):
            try:
                for segment in segments_in_range(self._state, self._partition, offset, end):
                    for records in read_records(self._storage, segment, offset, end):
                        yield records
                        offset = records["offset"][-1].as_py() + 1
                    offset = max(offset, segment.end_offset)
                return
            except NotFoundError:
                known = self._state.version
                self.refresh()
                if self._state.version == known:
                    raise
                offset = max(offset, self.partition.log_start_offset)
        raise self._too_busy()

    def offset_at(self, time: int) -> tuple[int, int, int] | None:
        """Kafka's ListOffsets: LATEST, EARLIEST, MAX_TIMESTAMP, or the first record not older than a timestamp.

        Returns:
            (offset, timestamp, leader epoch); the timestamp is -1 for LATEST and EARLIEST. None: no such record, or it
            lies at or above the high watermark.
        """
        for _ in range(_PATIENCE):
            try:
                return self._offset_at(time)
            except NotFoundError:
                known = self._state.version
                self.refresh()
                if self._state.version == known:
                    raise
        raise self._too_busy()

    def _offset_at(self, time: int) -> tuple[int, int, int] | None:
        part = self.partition
        if time == LATEST:
            return part.high_watermark, -1, part.epoch_at(part.high_watermark)
        if time == EARLIEST:
            return part.log_start_offset, -1, part.epoch_at(part.log_start_offset)
        segment = _newest_of(part) if time == MAX_TIMESTAMP else _first_reaching(part, time)
        if segment is None:
            return None
        timestamp = segment.largest_timestamp if time == MAX_TIMESTAMP else time
        found = first_record_at(self._storage, segment_file(self._state.topic_id, self._partition, segment), timestamp)
        return found if found and part.log_start_offset <= found[0] < part.high_watermark else None

    def _too_busy(self) -> ConflictError:
        return ConflictError(
            f"topic {self._state.topic}, partition {self._partition}",
            f"lost a file to cleaning {_PATIENCE} times in a row", "Read again when less is going on.",
        )  # fmt: skip


def _newest_of(part: PartitionState) -> Segment | None:
    """The first segment with the strictly greatest timestamp."""
    segments = [segment for segment in part.segments if segment.largest_timestamp >= 0]
    return max(segments, key=lambda segment: segment.largest_timestamp, default=None)


def _first_reaching(part: PartitionState, timestamp: int) -> Segment | None:
    """The first segment whose largest timestamp is at least this one.

    As in Kafka a segment without any timestamp counts with the time of its last change, so that one emptied by
    compaction hides what is behind it.
    """
    for segment in part.segments:
        largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.modified_ms
        if largest >= timestamp:
            return segment
    return None
