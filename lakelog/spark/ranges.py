"""Decides which offsets of each partition a read includes, and which of these offsets are lost.

Offsets are lost if retention deleted them before they were read. If a topic or partition was deleted, its unread
offsets are lost, too. Other gaps are not losses. The read skips offsets that compaction removed, markers of
transactions, and aborted records. A loss is an error if failOnDataLoss is true (the default). Otherwise the read
continues with the remaining records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakelog.spark.options.bounds import after_end, listed
from lakelog.spark.options.partition_json import Where
from lakelog.spark.read_topics import FoundOffset, States
from lakelog.spark.shares import OffsetRange
from lakelog.spark.stream_position import Position, begins_of, offsets_of, start_of
from storage_engine.errors import LogError, OffsetOutOfRangeError
from storage_engine.topic.readers.reader import lost_offsets

GO_ON = "To continue with the remaining records, set failOnDataLoss to false."
"""What the user of a read or of a stream can do after a loss."""


@dataclass(frozen=True)
class BatchRanges:
    """The offsets that a batch reads.

    from_earliest, to_latest: the partitions that are read from their start, or up to their end, at the time when the
        batch runs.
    required_from: by partition, an offset. No record at or above this offset is allowed to be missing. Partitions that
        are read from their start have no entry, because their start may move before the batch runs.
    """

    ranges: tuple[OffsetRange, ...]
    from_earliest: frozenset[Where]
    to_latest: frozenset[Where]
    required_from: Mapping[Where, int]


def batch_ranges(
    states: States,
    first: Mapping[Where, FoundOffset],
    end: Mapping[Where, FoundOffset],
    latest: Mapping[Where, int],
    *,
    starting: str,
    fail_on_loss: bool,
) -> BatchRanges:
    """The offsets that a batch reads between two bounds.

    Args:
        latest: the current ends of the partitions.
        starting: the option that gives the start.

    Raises:
        ConfigError: the start of a partition is after its end.
        OffsetOutOfRangeError: a bound is outside the log, and losses are errors.
    """
    ranges, required = [], {}
    for where in sorted(first):
        topic, number = where
        begin, until = first[where].offset, end[where].offset
        if begin > until:
            raise after_end(starting, where, begin, until)
        if begin == until and not end[where].at_edge:
            continue  # nothing is read, so nothing is lost
        if until > latest[where]:
            if fail_on_loss:
                raise _beyond(where, until, latest[where])
            until = latest[where]
        start = states[topic].partitions[number].log_start_offset
        if begin < min(start, until):
            if fail_on_loss:
                raise lost_offsets(topic, number, begin, start, GO_ON)
            begin = start
        ranges.append(OffsetRange(topic, number, begin, until))
        if fail_on_loss and not first[where].at_edge:
            required[where] = begin
    from_earliest, to_latest = (
        frozenset(where for where, found in each.items() if found.at_edge) for each in (first, end)
    )
    return BatchRanges(tuple(ranges), from_earliest, to_latest, required)


def stream_ranges(states: States, start: Position, end: Position, *, fail_on_loss: bool) -> list[OffsetRange]:
    """The offsets that a micro-batch reads between two positions, in order.

    Raises:
        OffsetOutOfRangeError: some of these offsets are lost, and losses are errors.
    """
    start = start_of(start, end)
    begins, ends = begins_of(start, end), offsets_of(end)
    if fail_on_loss:
        check_topics(states, start, end)
        if gone := offsets_of(start).keys() - ends.keys():
            raise _lost(f"partitions {listed(frozenset(gone))}", "have been deleted")
    ranges = []
    for where, until in sorted(ends.items()):
        topic, number = where
        state = states.get(topic)
        if state is None or state.topic_id != end[topic]["topic_id"] or number >= len(state.partitions):
            if fail_on_loss:
                raise _lost(f"topic {topic}, partition {number}", "has been deleted")
            continue
        log_start = state.partitions[number].log_start_offset
        replaced = topic in start and start[topic]["topic_id"] != state.topic_id
        begin = begins.get(where, log_start if replaced else 0)
        if until < begin:
            if fail_on_loss:
                raise _beyond(where, begin, until)
            continue
        if begin < min(log_start, until):
            if fail_on_loss:
                raise lost_offsets(topic, number, begin, log_start, GO_ON)
            begin = log_start
        ranges.append(OffsetRange(topic, number, begin, until))
    return ranges


def check_topics(states: States, start: Position, end: Position) -> None:
    """Check that no topic of a position was deleted and created again.

    Args:
        end: another position. Only topics that are in both positions are checked.

    Raises:
        OffsetOutOfRangeError: a topic was deleted and created again.
    """
    for topic in start.keys() & end.keys():
        for entry in (end[topic]["topic_id"], states[topic].topic_id if topic in states else end[topic]["topic_id"]):
            if start[topic]["topic_id"] != entry:
                raise another_topic(topic)


def check_prepared(latest: Mapping[Where, int], prepared: Mapping[Where, int], end: Mapping[Where, int]) -> None:
    """Check that a stream with the trigger available-now can still reach the end that was fixed at its start.

    Args:
        latest: the current ends of the partitions.
        prepared: the ends that were fixed at the stream's start.
        end: the ends of a micro-batch.

    Raises:
        OffsetOutOfRangeError: a partition was deleted or now ends at a lower offset, or the micro-batch has other
            partitions.
    """
    if prepared.keys() != end.keys():
        raise _lost(
            f"partitions {listed(frozenset(prepared.keys() ^ end.keys()))}",
            "were created or deleted while the query ran",
        )
    for where, offset in sorted(end.items()):
        if where not in latest:
            raise _lost(f"topic {where[0]}, partition {where[1]}", "was deleted while the query ran")
        if offset > latest[where]:
            raise _beyond(where, offset, latest[where])


def another_topic(topic: str) -> OffsetOutOfRangeError:
    """The error if a topic was deleted and created again after it was read."""
    return OffsetOutOfRangeError(
        f"topic {topic}", "was deleted and created again after this stream read it",
        "Begin a new checkpoint, or set failOnDataLoss to false to read the new topic from its start.",
    )  # fmt: skip


def _beyond(where: Where, offset: int, end: int) -> LogError:
    return OffsetOutOfRangeError(
        f"topic {where[0]}, partition {where[1]}", f"the query should read offset {offset}, but the log ends at {end}",
        f"An option gives an offset that is too high, or the log has lost records. {GO_ON}",
    )  # fmt: skip


def _lost(place: str, problem: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(place, problem, f"Records may have been lost before the query read them. {GO_ON}")
