"""Reads the records of a topic's partition in order, and finds offsets by time, as Kafka's ListOffsets does.

A reader gets its list of files from one version of the state. If cleaning has deleted a file of the list, the reader
reads the newest version, and continues after the last offset that it has read. Compaction and merging do not change
offsets. So no record is returned twice, and only records that were deleted are missing. If retention has deleted
unread records, the caller chooses whether the reader skips these records or raises an error. A transaction whose
commit is decided counts as ended, even if its markers are not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from storage_engine.config import LONG_MAX
from storage_engine.errors import ConflictError, NotFoundError, OffsetOutOfRangeError, UnknownTopicError
from storage_engine.log.filenames import data_key
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.isolation import Isolation
from storage_engine.log.log_reader import LogReader
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.storage import Storage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.unread import Unread, count_unread, oldest_unread

_MOST_ATTEMPTS = 100
_Found = TypeVar("_Found")


def segment_file(topic_id: str, partition: int, segment: Segment) -> SegmentFile:
    """The segment in the form that segment_reader requires."""
    return SegmentFile(
        data_key(topic_id, partition, segment.name, ""), segment.base_offset, segment.size, segment.end_offset
    )


def segments_in_range(state: TopicState, partition: int, first_offset: int, end_offset: int) -> list[SegmentFile]:
    """The segments with offsets from first_offset to end_offset, end_offset excluded, in order."""
    return [
        segment_file(state.topic_id, partition, segment)
        for segment in state.partitions[partition].segments
        if segment.base_offset < end_offset and segment.end_offset > first_offset and segment.size
    ]


class PartitionReader:
    """A reader of one partition. Only one thread may use it."""

    def __init__(self, storage: Storage, chain: StateChain, partition: int, state: TopicState | None = None) -> None:
        """
        Args:
            state: the state to begin with, from transaction_files.newest_decided; by default the newest state. If the
                readers of several partitions begin with the same state, they see each commit in all of these partitions
                or in none.

        Raises:
            UnknownTopicError: there is no such topic or partition.
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
                f"topic {state.topic}",
                f"has partitions 0 to {len(state.partitions) - 1}, but no partition {self._partition}",
            )

    def refresh(self) -> PartitionState:
        """Continue with the newest version of the state."""
        self._state = newest_decided(self._storage, self._chain)
        self._check()
        return self.partition

    @property
    def partition(self) -> PartitionState:
        """The partition in the reader's version of the state."""
        return self._state.partitions[self._partition]

    def read(
        self,
        first_offset: int,
        end_offset: int | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        required_from: int = LONG_MAX,
        if_lost: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """The records at and after first_offset, with the columns columns.RECORDS.

        Args:
            end_offset: the offset after the last record; by default, and at most, the end that the isolation allows.
            required_from: an error is raised if retention deletes unread records at or above this offset during the
                read. Deleted records below it are skipped. By default no record is required.
            if_lost: what the user of the calling program can do after this error.

        Raises:
            OffsetOutOfRangeError: first_offset is below the log start offset or above the high watermark. The call
                itself raises this error. The iteration raises the error if required records were deleted.
            CorruptionError: committed bytes have changed. The iteration raises this error.
        """
        reader = self._reader()
        reader.check_offset(first_offset)
        end = reader.end_offset(isolation)
        end = end if end_offset is None else min(end_offset, end)
        return self._read(first_offset, end, isolation, required_from, if_lost)

    def _read(
        self, offset: int, end: int, isolation: Isolation, required_from: int, if_lost: str
    ) -> Iterator[pa.RecordBatch]:
        for _ in range(_MOST_ATTEMPTS):
            try:
                for segment, stream in self._reader().read_segments(offset, end, isolation):
                    for records in stream:
                        yield records
                        offset = records["offset"][-1].as_py() + 1
                    offset = max(offset, segment.end_offset)
                return
            except NotFoundError as error:
                self._refresh_after(error)
                offset = self.first_left(offset, end, required_from, if_lost)
        raise self._too_busy()

    def first_left(self, offset: int, end: int, required_from: int, if_lost: str) -> int:
        """The offset from which to continue, because retention may have deleted the record at an offset.

        Args:
            end: the end of the range to read.
            required_from: records at or above this offset are required.
            if_lost: as in `read`.

        Raises:
            OffsetOutOfRangeError: a required record was deleted.
        """
        start = self.partition.log_start_offset
        if max(offset, required_from) < min(start, end):
            raise lost_offsets(self._state.topic, self._partition, offset, start, if_lost) from None
        return max(offset, start)

    def end_offset(self, isolation: Isolation) -> int:
        """The offset after the last record that the isolation allows to read."""
        return self._reader().end_offset(isolation)

    def offset_at(self, time: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> tuple[int, int, int] | None:
        """The offset for a time, as in LogReader.offset_at, but for a timestamp as in LogReader.first_at. For the largest
        timestamp, segments below the log start do not count: a broker would soon delete them, and here they stay until
        the next retention."""

        def look() -> tuple[int, int, int] | None:
            if time >= 0:
                return self._reader().first_at(time, isolation)
            part = self.partition
            kept = tuple(each for each in part.segments if each.end_offset > part.log_start_offset)
            return self._reader(part.model_copy(update={"segments": kept})).offset_at(time, isolation)

        return self._looked_up(look)

    def unread(self, position: int) -> Unread:
        """The records that a reader of committed records at this position has not read yet.

        Raises:
            CorruptionError: committed bytes have changed.
        """
        return self._looked_up(lambda: count_unread(self._storage, *self._unread_range(position)))

    def oldest_unread(self, position: int) -> int | None:
        """The timestamp of the first record that `unread` counts; -1 if this record has no timestamp, and None if there is
        no such record. The log is read only up to this record.

        Raises:
            CorruptionError: committed bytes have changed.
        """
        return self._looked_up(lambda: oldest_unread(self._storage, *self._unread_range(position)))

    def _unread_range(self, position: int) -> tuple[list[SegmentFile], int, int, tuple[AbortedTransaction, ...]]:
        """The segments with unread records, the first offset and the end offset of these records, and the aborted
        transactions between the two offsets."""
        part, end = self.partition, self.partition.last_stable_offset
        first = max(position, part.log_start_offset)
        segments = segments_in_range(self._state, self._partition, first, end) if first < end else []
        aborted = tuple(each for each in part.aborted_transactions() if each.last_offset >= first)
        return segments, first, end, aborted

    def _looked_up(self, look: Callable[[], _Found]) -> _Found:
        """The result of a function that reads the log in the reader's version of the state, or in a newer version if a
        file of that version was deleted."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                return look()
            except NotFoundError as error:
                self._refresh_after(error)
        raise self._too_busy()

    def _refresh_after(self, missing: NotFoundError) -> None:
        """Continue with the newest version of the state after a file was missing. If there is no newer version, the file
        should exist, and the error is raised."""
        known = self._state.version
        self.refresh()
        if self._state.version == known:
            raise missing

    def _reader(self, partition: PartitionState | None = None) -> LogReader:
        state = self._state
        return LogReader(
            self._storage, partition or self.partition,
            lambda segment: data_key(state.topic_id, self._partition, segment.name, ""),
            f"topic {state.topic}, partition {self._partition}",
        )  # fmt: skip

    def _too_busy(self) -> ConflictError:
        return ConflictError(
            f"topic {self._state.topic}, partition {self._partition}",
            f"cleaning deleted needed files {_MOST_ATTEMPTS} times in a row", "Read again when no cleaning is running.",
        )  # fmt: skip


def lost_offsets(
    topic: str, partition: int, first_offset: int, log_start_offset: int, if_lost: str
) -> OffsetOutOfRangeError:
    """The error for records that were deleted before they were read.

    Args:
        if_lost: what the user of the calling program can do.
    """
    return OffsetOutOfRangeError(
        f"topic {topic}, partition {partition}",
        f"the next offset to read is {first_offset}, but the log now starts at {log_start_offset}",
        f"Retention or delete-records deleted the records before they were read. {if_lost}".rstrip(),
    )
