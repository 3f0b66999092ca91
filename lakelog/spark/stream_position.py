"""Defines the position of a stream: for each topic, its id and its offsets. Spark stores the position in the checkpoint
as JSON.

    {"flights": {"topic_id": "3Yc...", "offsets": {"0": 52110, "1": 48007}}}

An offset is the next offset to read. The id distinguishes a topic from a later topic of the same name. The first
position of a stream also contains the offsets at which the stream began:

    {"flights": {"topic_id": "3Yc...", "offsets": {"0": 52110}, "begun": {"0": 48007}}}

Spark stores the end of the first micro-batch, but not its start. If Spark repeats this micro-batch, it asks again where
the stream begins. By then, the latest offset may be another one, and there may be more partitions and topics. So the
stored start (`begun`) is used, not the new answer. Spark compares positions as text, so topics and partitions are
sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NotRequired, TypedDict, cast

from lakelog.spark.options.partition_json import Where
from lakelog.spark.options.user_options import wrong
from lakelog.spark.read_topics import States


class TopicPosition(TypedDict):
    """The position of a stream in one topic.

    topic_id: the topic's id.
    offsets: the next offset, by the partition's number as text, because JSON has only text as keys.
    begun: only in the first position: the offsets at which the stream began, in the same form. A partition that appeared
        after that has no entry.
    """

    topic_id: str
    offsets: dict[str, int]
    begun: NotRequired[dict[str, int]]


Position = dict[str, TopicPosition]
"""The position of a stream, by topic."""


def position_at(offsets: Mapping[Where, int], states: States) -> Position:
    """The position at some offsets."""
    position: Position = {}
    for topic, number in sorted(offsets):
        entry = position.setdefault(topic, {"topic_id": states[topic].topic_id, "offsets": {}})
        entry["offsets"][str(number)] = offsets[topic, number]
    return position


def with_begin(position: Position, begun: Position) -> Position:
    """The end of a stream's first micro-batch, together with `begun`, the position at which the stream began."""
    marked: Position = {}
    for topic, entry in position.items():
        is_known = topic in begun and begun[topic]["topic_id"] == entry["topic_id"]
        marked[topic] = {**entry, "begun": begun[topic]["offsets"] if is_known else {}}
    return marked


def start_of(start: Position, end: Position) -> Position:
    """The start of a micro-batch: of a stream's first micro-batch, the position at which the stream began.

    Args:
        start: the start that Spark passes with `end`.
    """
    if any("begun" in entry for entry in end.values()) or not end:
        return {
            topic: {"topic_id": entry["topic_id"], "offsets": entry.get("begun", {})} for topic, entry in end.items()
        }
    return start


def checked(given: Any) -> Position:
    """A position that Spark passes, after a check that this source wrote it.

    Raises:
        ConfigError: another source wrote the position.
    """
    entries = given.values() if isinstance(given, dict) else [None]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("offsets"), dict) or "topic_id" not in entry:
            raise wrong(
                "checkpointLocation", "the checkpoint contains positions of another source",
                "Give the query a new checkpoint; in an ingest, set ingest.checkpoint. startingOffsets accepts the offsets"
                " of a checkpoint of Kafka's source, if the topics of Lakelog have the same offsets.",
            )  # fmt: skip
    return cast("Position", given)


def is_same(one: Position, other: Position) -> bool:
    """Whether two positions are at the same offsets of the same topics."""
    return _places(one) == _places(other)


def offsets_of(position: Position) -> dict[Where, int]:
    """The next offset of each partition."""
    return {
        (topic, number): offset for topic, entry in position.items() for number, offset in _numbered(entry["offsets"])
    }


def begins_of(start: Position, end: Position) -> dict[Where, int]:
    """For each partition that was read before this micro-batch, the micro-batch's first offset."""
    return {
        (topic, number): offset
        for topic, entry in start.items()
        if topic in end and entry["topic_id"] == end[topic]["topic_id"]
        for number, offset in _numbered(entry["offsets"])
    }


def _numbered(offsets: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    return ((int(number), offset) for number, offset in offsets.items())


def _places(position: Position) -> dict[tuple[str, str, str], int]:
    return {
        (topic, entry["topic_id"], number): offset
        for topic, entry in position.items()
        for number, offset in entry["offsets"].items()
    }
