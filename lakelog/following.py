"""Reads a topic as a member of a group, for Topic.follow, and stores how far the program has read.

When the loop asks for the next record, Lakelog considers the current record processed, even if there is no next record:

    for record in topic.follow("billing"):    record n is committed before record n + 1 is returned
        ...                                   if this fails, or the program dies, the record is returned again later

A commit replaces the group's file, and waits until the file is durable (topic.readers.membership). So a commit takes as
long as a write to the disk. Topic.follow commits after each record, and follow_batches commits once for thousands of
records. A commit also lists the topic's groups twice. A loop that ends by `break` has not asked for the next record, so
the last record is returned again later.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pyarrow as pa

from lakelog.rows import FIRST_MS, LAST_MS, as_rows
from storage_engine.config import LONG_MAX
from storage_engine.errors import FencedError, UnknownTopicError
from storage_engine.log.isolation import Isolation
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.chain.transaction_files import newest_decided
from storage_engine.topic.readers.membership import Membership, join
from storage_engine.topic.readers.reader import PartitionReader, lost_offsets
from storage_engine.topic.topics import Topics

_RECORDS_AT_ONCE = 1_000
_IF_LOST = (
    "To continue at the log's start, pass skip_deleted=True to follow. To move the group to other offsets, use"
    " `lakelog groups reset-offsets`."
)
_EPOCH = datetime.fromtimestamp(0, UTC)
_Item = TypeVar("_Item")
Pieces = Callable[[pa.RecordBatch, str, int], Iterator[tuple[_Item, int]]]
"""Divides records of a topic and a partition into pieces. The records have the columns of
record.record_columns.RECORDS. Each piece comes with the offset after its last record."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that `Topic.follow` returns.

    key: None if the record has no key.
    value: None in a tombstone.
    timestamp: if it is outside the years 1 to 9999, the first or the last millisecond of these years.
    headers: the names and values of the headers, in the order of the record.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Following:
    """How to follow a topic.

    first_offset: where to begin in a partition that the group has not read.
    stop_at_end: end when all committed records are read and no new version of the state exists. If false: wait for more
        records.
    poll_seconds: how long to wait before looking for more records.
    skip_deleted: what to do if records were deleted before they were read. True: continue after these records. False:
        raise an error.
    """

    isolation: Isolation
    first_offset: Callable[[PartitionReader, int], int]
    stop_at_end: bool
    poll_seconds: float
    skip_deleted: bool


class Follower:
    """One member of a group, until its iterator ends. For one thread."""

    def __init__(self, topics: Topics, topic: str, topic_id: str, following: Following) -> None:
        self._topics = topics
        self._chain = topics.chain(topic)
        self._id = topic_id
        self._how = following
        self._positions: dict[int, int] = {}

    def read(self, group: str, holds_back: bool | None, pieces: Pieces[_Item]) -> Iterator[_Item]:
        """Everything from the group's positions on, in pieces.

        Args:
            holds_back: whether cleaning waits for the group; None: no change.
            pieces: divides records of one partition into the pieces that the loop gets.
        """
        state = self._newest()
        now_ms = self._topics.clock.now_ms()
        name = f"lakelog-{uuid.uuid4()}"
        member = join(self._topics.storage, state, group, name, socket.gethostname(), now_ms, holds_back=holds_back)
        self._positions = dict(member.consumer.positions)
        try:
            if not self._positions:
                self._positions = self._begin(state)
                self._commit(member, state)
            while True:
                yield from self._round(member, state, pieces)
                self._commit(member, state)  # also the offsets that no reader gets: gaps, markers, aborted records
                seen, state = state.version, self._newest()
                if state.version != seen:
                    continue
                if self._how.stop_at_end:
                    return
                member.stay(self._topics.clock.now_ms())
                time.sleep(self._how.poll_seconds)
        finally:
            with suppress(FencedError):  # another member has joined the group
                member.leave()

    def _begin(self, state: TopicState) -> dict[int, int]:
        """The first offset in each partition of a group that has no positions.

        Raises:
            OffsetOutOfRangeError: the partition does not have this offset.
        """
        positions = {}
        for number, part in enumerate(state.partitions):
            reader = PartitionReader(self._topics.storage, self._chain, number, state)
            first = self._how.first_offset(reader, number)
            if self._how.skip_deleted and first >= 0:
                first = max(first, part.log_start_offset)
            reader.read(first)  # checks the offset, and reads nothing yet
            positions[number] = first
        return positions

    def _round(self, member: Membership, state: TopicState, pieces: Pieces[_Item]) -> Iterator[_Item]:
        """The records that are committed in this state and not read yet, partition after partition."""
        for number, part in enumerate(state.partitions):
            start, end = part.log_start_offset, part.end_offset(self._how.isolation)
            first = self._positions.get(number, 0)
            if first < start:
                if not self._how.skip_deleted and number in self._positions:
                    raise lost_offsets(state.topic, number, first, start, _IF_LOST)
                first = start
            required = LONG_MAX if self._how.skip_deleted else 0
            if first < end:
                reader = PartitionReader(self._topics.storage, self._chain, number, state)
                unread = reader.read(first, end, self._how.isolation, required_from=required, if_lost=_IF_LOST)
                for records in unread:
                    for piece, end_offset in pieces(records, state.topic, number):
                        yield piece
                        self._positions[number] = end_offset
                        self._commit(member, state)
            self._positions[number] = max(first, end)

    def _commit(self, member: Membership, state: TopicState) -> None:
        member.commit(state, self._positions, self._topics.clock.now_ms())

    def _newest(self) -> TopicState:
        state = newest_decided(self._topics.storage, self._chain)
        check_id(state, self._id)
        return state


def check_id(state: TopicState, topic_id: str) -> None:
    """Check that a state is of this topic, and not of a later topic of the same name.

    Raises:
        UnknownTopicError: the topic was deleted.
    """
    if state.deleted or state.topic_id != topic_id:
        raise UnknownTopicError(f"topic {state.topic}", "was deleted", "Root.topics() lists the topics.")


def in_batches(records: pa.RecordBatch, topic: str, partition: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """All records as one piece, with the columns of lakelog.rows."""
    yield as_rows(records, topic, partition), records["offset"][-1].as_py() + 1


def in_records(records: pa.RecordBatch, topic: str, partition: int) -> Iterator[tuple[Record, int]]:
    """Each record as a piece. The columns are read directly: the conversion to rows takes longer than the rest of the
    work for a single record."""
    for first in range(0, records.num_rows, _RECORDS_AT_ONCE):
        columns = records.slice(first, _RECORDS_AT_ONCE)
        names = ("key", "value", "offset", "timestamp", "headers")
        for key, value, offset, timestamp, headers in zip(*(columns[name].to_pylist() for name in names), strict=True):
            named = tuple((header["key"], header["value"]) for header in headers)
            moment = _EPOCH + timedelta(milliseconds=min(max(timestamp, FIRST_MS), LAST_MS))
            yield Record(key, value, topic, partition, offset, moment, named), offset + 1
