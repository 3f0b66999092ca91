"""Lets `lakelog read` read as a group: from the group's positions. With --commit, the command also moves the group's
positions.

    --group G             read from the positions, and change nothing
    --group G --commit    join the group as its member, and record each position after its records were printed

A position is recorded after the records were written to standard output. A commit writes the positions of all
partitions and waits for the disk, so there is at most one commit per second. There is also one commit at the end of the
command, even after an error or Ctrl-C. If the command is killed, the next command prints the records since the last
commit again. If another member joins the group later, this command is fenced (topic.readers.membership). The command's
next commit raises FencedError, and the positions of the later member remain.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.errors import FencedError, LogError, OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from storage_engine.topic.chain.topic_state import TopicState
    from storage_engine.topic.readers.membership import Membership
    from storage_engine.topic.readers.reader import PartitionReader
    from storage_engine.topic.topics import Topics


_COMMIT_MS = 1_000
"""The time between two commits."""


class GroupReading:
    """A group on one topic during one `lakelog read`."""

    def __init__(self, topics: Topics, state: TopicState, group: str, member: Membership | None) -> None:
        """
        Args:
            member: commits the positions; None to leave the group unchanged.

        Raises:
            CorruptionError: the group's file is damaged.
        """
        from storage_engine.topic.readers.membership import find_group

        self.topics = topics
        self.topic = state.topic
        self._state = state
        self._name = group
        self._member = member
        found = find_group(topics.storage, state, group) if member is None else member.consumer
        self._positions = dict(found.positions) if found is not None else {}
        self._committed_ms = 0

    def first_offsets(self, readers: Mapping[tuple[str, int], PartitionReader]) -> dict[tuple[str, int], int]:
        """The offset at which the group continues in each partition. In a partition that the group has not read, this is
        the log start offset, which becomes the group's position.

        Raises:
            OffsetOutOfRangeError: records that the group has not read were deleted.
            FencedError: another member has joined.
        """
        found = {(topic, number): self._first_offset(number, reader) for (topic, number), reader in readers.items()}
        self._positions |= {number: first for (_, number), first in found.items()}
        self.commit()
        return found

    def _first_offset(self, number: int, reader: PartitionReader) -> int:
        start = reader.partition.log_start_offset
        position = self._positions.get(number, start)
        if position < start:
            raise OffsetOutOfRangeError(
                f"group {self._name}, topic {self.topic}, partition {number}",
                f"the next offset to read is {position}, but the log now starts at {start}",
                f"Retention deleted records before the group read them. {self.if_lost(number)}",
            )
        return position

    def if_lost(self, number: int) -> str:
        """What the user can do if records of a partition were deleted before the group read them."""
        reset = f"lakelog groups reset-offsets --group {self._name} --topic {self.topic}:{number} --to-earliest"
        return f"To continue at the log's start: `{reset} --execute`."

    def done(self, number: int, position: int) -> None:
        """Record that everything before a position of a partition was printed. The next commit stores this position.
        If the last commit was a second ago, this call commits.

        Raises:
            FencedError: another member has joined, or the group was deleted.
        """
        self._positions[number] = max(position, self._positions[number])
        # The clock may have been set back since the last commit.
        if not 0 <= self.topics.clock.now_ms() - self._committed_ms < _COMMIT_MS:
            self.commit()

    def commit(self) -> None:
        """Store all positions that were recorded so far, unless the group stays unchanged. Raises the errors of done."""
        if self._member is not None:
            self._committed_ms = self.topics.clock.now_ms()
            self._member.commit(self._state, self._positions, self._committed_ms)


@contextmanager
def group_reading(topics: Topics, topic: str, group: str, *, commits: bool) -> Iterator[GroupReading]:
    """A group for the time of one command. If the command commits, this process becomes the only member of the group. At
    the end, also after an error, the positions that were recorded are committed.

    Raises:
        UnknownTopicError: there is no such topic.
        StateError: the command commits, but an export or a stream decides the positions of the group.
        CorruptionError: the group's file is damaged.
        FencedError: another member has joined, or the group was deleted.
    """
    from storage_engine.topic.readers.membership import join

    state = topics.state(topic)
    if not commits:
        yield GroupReading(topics, state, group, None)
        return
    name, now_ms = f"lakelog-read-{os.getpid()}", topics.clock.now_ms()
    member = join(topics.storage, state, group, name, socket.gethostname(), now_ms)
    try:
        reading = GroupReading(topics, state, group, member)
        try:
            yield reading
        except BaseException:
            with suppress(LogError):  # the first error is the one to report
                reading.commit()
            raise
        reading.commit()
    finally:
        with suppress(FencedError):  # another member has joined the group
            member.leave()


def check_group_options(
    group: str | None, commits: bool, start: str | None, from_timestamp: int | None, kafka_dir: Path | None
) -> None:
    """Check that the options do not contradict one another.

    Raises:
        UsageError: the options contradict one another, or a name is empty.
    """
    if group is None:
        if commits:
            raise UsageError("--commit", "no group is given", "Give --group, or leave out --commit.")
        return
    if not group:
        raise UsageError("--group", "found an empty name", "Name the group.")
    if kafka_dir is not None:
        raise UsageError("--group", "--kafka-dir is given, too", "Only a root has groups: give --root.")
    for option, value in (("--from", start), ("--from-timestamp", from_timestamp)):
        if value is not None:
            raise UsageError(
                option, "--group is given, too, and the group's positions decide where to begin",
                "Leave out one of the two. `lakelog groups reset-offsets` moves a group to other positions.",
            )  # fmt: skip
