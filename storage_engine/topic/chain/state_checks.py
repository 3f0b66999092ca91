"""Checks the content of a state: the numbers must agree with one another, and times and names must be possible.

The digest of a state shows only that the state was not changed after its put. But a defect, a manual edit or old
software can have written a state that was wrong from the beginning. These checks reject such a state before a reader, a
writer or a cleaner uses it. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from storage_engine.config import INT_MAX
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.topic.chain.topic_state import TopicState

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999. A later time is taken for damage."""
_SEGMENT_NAME = re.compile(r"([0-9]{20})(\.[0-9A-Za-z_-]+)*")
_ID = re.compile(r"[0-9a-f]{32}")
_HASH = re.compile(r"([0-9a-f]{64})?")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def contradictions(state: TopicState) -> Iterator[tuple[str, str]]:
    """Return the contradictions in a state: for each, what was expected and what was found. A state with a
    contradiction is refused.
    """
    if state.written_ms > LAST_MS:
        yield "a time up to the year 9999", f"written_ms {state.written_ms}"
    if state.sweep_floor > state.version:
        yield f"a sweep floor up to version {state.version}", str(state.sweep_floor)
    for number, part in enumerate(state.partitions):
        for expected, found in _of_partition(part):
            yield f"{expected} in partition {number}", found


def _of_partition(part: PartitionState) -> Iterator[tuple[str, str]]:
    end = part.segments[-1].end_offset if part.segments else part.log_start_offset
    if part.high_watermark != end:
        yield f"high watermark {end}, the end of the last segment", str(part.high_watermark)
    first = part.segments[0].base_offset if part.segments else part.log_start_offset
    if not first <= part.log_start_offset <= part.high_watermark:
        yield f"a log start offset from {first} to {part.high_watermark}", str(part.log_start_offset)
    for what, offset in (("first dirty offset", part.first_dirty_offset), ("tombstones_end", part.tombstones_end)):
        if offset is not None and offset > part.high_watermark:
            yield f"a {what} up to {part.high_watermark}", str(offset)
    lowest = 0
    for segment in part.segments:
        if not lowest <= segment.base_offset <= segment.end_offset:
            yield f"a segment that begins at {lowest} or later", f"{segment.base_offset} to {segment.end_offset}"
        lowest = segment.end_offset
        yield from _of_segment(segment)
    for before, entry in pairwise(part.leader_epochs):
        if entry.epoch <= before.epoch or entry.start_offset <= before.start_offset:
            yield f"leader epochs that rise after {before.epoch} at {before.start_offset}", str(tuple(entry))


def _of_segment(segment: Segment) -> Iterator[tuple[str, str]]:
    if segment.size > INT_MAX:
        yield f"a size up to {INT_MAX} of segment {segment.base_offset}", str(segment.size)
    if segment.end_offset - 1 - segment.base_offset > INT_MAX:
        yield f"offsets up to {segment.base_offset + INT_MAX} in that segment", str(segment.end_offset - 1)
    if not segment.base_offset <= segment.largest_timestamp_offset <= max(segment.base_offset, segment.end_offset - 1):
        yield (
            f"an offset of segment {segment.base_offset} for its largest timestamp",
            str(segment.largest_timestamp_offset),
        )
    if segment.modified_ms > LAST_MS:
        yield f"a time of segment {segment.base_offset} up to the year 9999", f"modified_ms {segment.modified_ms}"


def oddities(state: TopicState) -> Iterator[tuple[str, str]]:
    """Return the values that no version of Lakelog writes: for each, what was expected and what was found. No reader
    depends on these values, so a state with such values is used, and only verification reports them.
    """
    if not _ID.fullmatch(state.id):
        yield "an id of 32 hex digits", "another text"
    if not _TOPIC_ID.fullmatch(state.topic_id):
        yield "a topic id of 22 characters", "another text"
    for query, batch in state.queries.items():
        if batch.batch_id < -1:
            yield f"a batch id of at least -1 for query {query}", str(batch.batch_id)
        if not _HASH.fullmatch(batch.offsets_hash):
            yield f"64 hex digits, or none, for the offsets of query {query}", "another text"
    for number, part in enumerate(state.partitions):
        if part.leader_epochs and part.leader_epochs[-1].epoch > state.writer.epoch:
            expected = f"leader epochs up to the writer's, {state.writer.epoch}, in partition {number}"
            yield expected, str(part.leader_epochs[-1].epoch)
        for segment in part.segments:
            name = _SEGMENT_NAME.fullmatch(segment.name)
            if name is None or int(name[1]) != segment.base_offset:
                yield (
                    f"a file name for the segment that begins at {segment.base_offset} in partition {number}",
                    "another name",
                )
    times = [state.writer.since_ms, *(file.dropped_ms for file in state.dropped)]
    if max(times) > LAST_MS or min(times) < 0:
        yield "times from 1970 to 9999", "a time outside of this range in `writer` or `dropped`"
