"""Which offsets a read takes of each partition, and what is lost of them.

Offsets that retention deleted before they were read are lost data, and so are topics and partitions that are gone. Other
gaps are none: offsets that compaction removed, markers of transactions and aborted records are passed over. If losses
end the read (failOnDataLoss, the default), they are errors here. Else the read goes on with what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakelog.spark.offsets import Found, States
from lakelog.spark.options.bounds import Where, after_end, listed
from lakelog.spark.position import Position, begins_of, offsets_of
from lakelog.spark.shares import OffsetRange
from storage_engine.errors import LogError, OffsetOutOfRangeError
from storage_engine.topic.readers.reader import lost_offsets

_GO_ON = "To go on with what there is, set failOnDataLoss to false."


@dataclass(frozen=True)
class BatchRanges:
    """What a batch reads.

    from_earliest, to_latest: the partitions that are read from their start, or up to their end, wherever this is when the
        batch runs.
    required_from: by partition, from which offset on records may not be missing. The earliest offset may move meanwhile:
        no partition that begins with it has an entry.
    """

    ranges: tuple[OffsetRange, ...]
    from_earliest: frozenset[Where]
    to_latest: frozenset[Where]
    required_from: Mapping[Where, int]


def batch_ranges(
    states: States,
    first: Mapping[Where, Found],
    end: Mapping[Where, Found],
    latest: Mapping[Where, int],
    *,
    fail_on_loss: bool,
) -> BatchRanges:
    """What a batch reads between two bounds.

    Args:
        latest: where the partitions end now.

    Raises:
        ConfigError: a partition would be read from after its end.
        OffsetOutOfRangeError: a bound is outside the log, and losses are errors.
    """
    ranges, required = [], {}
    for where in sorted(first):
        topic, number = where
        begin, until = first[where].offset, end[where].offset
        if begin > until:
            raise after_end("startingOffsets", where, begin, until)
        if until > latest[where]:
            if fail_on_loss:
                raise _beyond(where, until, latest[where])
            until = latest[where]
        start = states[topic].partitions[number].log_start_offset
        if begin < min(start, until):
            if fail_on_loss:
                raise lost_offsets(topic, number, begin, start)
            begin = start
        ranges.append(OffsetRange(topic, number, begin, until))
        if fail_on_loss and not first[where].at_edge:
            required[where] = begin
    from_earliest, to_latest = (
        frozenset(where for where, found in each.items() if found.at_edge) for each in (first, end)
    )
    return BatchRanges(tuple(ranges), from_earliest, to_latest, required)


def stream_ranges(states: States, start: Position, end: Position, *, fail_on_loss: bool) -> list[OffsetRange]:
    """What a micro-batch reads between two positions, in order.

    Raises:
        OffsetOutOfRangeError: some of it is lost, and losses are errors.
    """
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
                raise lost_offsets(topic, number, begin, log_start)
            begin = log_start
        ranges.append(OffsetRange(topic, number, begin, until))
    return ranges


def check_topics(states: States, start: Position, end: Position) -> None:
    """Check that no topic of a position was deleted and created again.

    Args:
        end: another position; its topics are those that count.

    Raises:
        OffsetOutOfRangeError: one was.
    """
    for topic in start.keys() & end.keys():
        for entry in (end[topic]["topic_id"], states[topic].topic_id if topic in states else end[topic]["topic_id"]):
            if start[topic]["topic_id"] != entry:
                raise another_topic(topic)


def check_prepared(latest: Mapping[Where, int], prepared: Mapping[Where, int], end: Mapping[Where, int]) -> None:
    """Check that a stream that reads what is available can still get there.

    Args:
        latest: where the partitions end now. prepared: where the stream is to end. end: where a micro-batch ends.

    Raises:
        OffsetOutOfRangeError: a partition is gone or ends earlier, or the micro-batch is of other partitions.
    """
    if prepared.keys() != end.keys():
        raise _lost(f"partitions {listed(frozenset(prepared.keys() ^ end.keys()))}", "came or went while the query ran")
    for where, offset in sorted(end.items()):
        if where not in latest:
            raise _lost(f"topic {where[0]}, partition {where[1]}", "was deleted while the query ran")
        if offset > latest[where]:
            raise _beyond(where, offset, latest[where])


def another_topic(topic: str) -> OffsetOutOfRangeError:
    """What to raise where a topic is not the one that was read before."""
    return OffsetOutOfRangeError(
        f"topic {topic}", "is not the one that this stream has read: it was deleted and created again",
        "Begin a new checkpoint, or set failOnDataLoss to false to read the new topic from its start.",
    )  # fmt: skip


def _beyond(where: Where, offset: int, end: int) -> LogError:
    return OffsetOutOfRangeError(
        f"topic {where[0]}, partition {where[1]}", f"offset {offset} was to be read, and the log ends at {end}",
        f"An offset that was given is too high, or the log has lost records. {_GO_ON}",
    )  # fmt: skip


def _lost(place: str, problem: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(place, problem, f"Records may be lost that were not read. {_GO_ON}")
