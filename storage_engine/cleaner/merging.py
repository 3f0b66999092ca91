"""Merges small neighbouring segments: copies the batches of sealed segments unchanged, one after another, into a new
segment.

Short micro-batches, restarts and storages that cannot append leave many small segments. Batches concatenate, so merging
decodes nothing: it copies bytes whose CRCs it has checked, and derives the indexes that a broker would have written for
such a segment. Offsets, timestamps, epochs and every byte of the batches stay.

What is merged is a pure decision. A run of neighbours becomes one segment if nothing that acts on whole segments gets
coarser by it than a topic's settings allow:

    segment.bytes, segment.index.bytes, relative offsets    what a segment may hold at all
    segment.ms                                              the largest timestamps lie no further apart
    retention.ms, retention.bytes                           nor further apart, nor together larger, than a tenth of them

and if the result is at least twice as large as the largest of them. So a byte is copied at most log2(segment.bytes / size
of its first segment) times however long the topic lives, and what stays unmerged beside each other differs in size. The
active segment and what lies below the log start offset are left alone, and so are compacted topics: compaction makes
few of many there, and a merged segment would be copied once more by it.

New files are durable when `merge_segments` returns, and mean nothing until a version of the state names them in place of
the old (topic.clean.swapping). A process that dies leaves files that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf

from storage_engine.cleaner.replacement import Replacement, file_of, finish_segment
from storage_engine.cleaner.throttle import Throttle
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET, GrowingSegment
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.retention import newest_time
from storage_engine.log.segment_reader import read_chunks
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.crc import check_crcs
from storage_engine.storage import Storage

_GAIN = 2
"""A merged segment is at least so many times as large as the largest of those that it was made of."""
_RETENTION_SHARE = 10
"""Retention, which drops whole segments, keeps no record longer by more than this part of what it promises."""


def plan_merges(part: PartitionState, config: TopicConfig) -> tuple[tuple[Segment, ...], ...]:
    """The runs of neighbours, two or more each, that are to become one segment; the oldest first."""
    if config.compact:
        return ()
    limits = _Limits.of(config)
    sealed = part.segments[:-1]
    first = max(0, bisect_right(sealed, part.log_start_offset, key=lambda each: each.base_offset) - 1)
    runs = []
    while first < len(sealed) - 1:
        stop = limits.end_of_run(sealed, first)
        if stop > first + 1:
            runs.append(sealed[first:stop])
        first = stop
    return tuple(runs)


@dataclass(frozen=True)
class _Limits:
    """What bounds a run. span_ms: between the largest timestamps of its segments."""

    size: int
    span_ms: int

    @classmethod
    def of(cls, config: TopicConfig) -> _Limits:
        # Between two entries lie more than index.interval.bytes, and an index counts as full one entry early.
        index_entries = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
        size = min(config.segment_bytes, index_entries * (config.index_interval_bytes + 1))
        span_ms = config.segment_ms
        if config.delete and config.retention_bytes >= 0:
            size = min(size, config.retention_bytes // _RETENTION_SHARE)
        if config.delete and config.retention_ms >= 0:
            span_ms = min(span_ms, config.retention_ms // _RETENTION_SHARE)
        return cls(size, span_ms)

    def end_of_run(self, segments: tuple[Segment, ...], first: int) -> int:
        """Behind the longest run from a segment on that is worth its copying; behind that segment where there is none."""
        base_offset = segments[first].base_offset
        size = largest = 0
        oldest_ms = newest_ms = None
        best = first + 1
        for number in range(first, len(segments)):
            segment = segments[number]
            size += segment.size
            largest = max(largest, segment.size)
            if segment.size:  # an empty one has no record that could be kept for too long
                time_ms = newest_time(segment)
                oldest_ms = time_ms if oldest_ms is None else min(oldest_ms, time_ms)
                newest_ms = time_ms if newest_ms is None else max(newest_ms, time_ms)
            if (
                size > self.size
                or segment.end_offset - 1 - base_offset > MOST_RELATIVE_OFFSET
                or (oldest_ms is not None and newest_ms is not None and newest_ms - oldest_ms > self.span_ms)
            ):
                break
            if size >= _GAIN * largest:
                best = number + 1
        return best


@dataclass(frozen=True)
class MergeTask:
    """One run to merge, with all that it takes; small, and can be pickled.

    files: where the partition's segments lie. bytes_per_second: how fast to read and write at most.
    """

    topic: str
    topic_id: str
    partition: int
    files: SegmentFolder
    run: tuple[Segment, ...]
    index_interval_bytes: int
    bytes_per_second: float = inf

    @property
    def bytes_to_read(self) -> int:
        return sum(segment.size for segment in self.run)


def merge_segments(storage: Storage, task: MergeTask, progress: Progress = NO_PROGRESS) -> Replacement:
    """Make one new segment of a run.

    Args:
        progress: is told the bytes as they are copied, bytes_to_read in all.

    Raises:
        CorruptionError: a batch is not what its CRC says.
        StorageError: the storage refused or failed. In both cases no file is left.
    """
    files, base_offset = task.files, task.run[0].base_offset
    name = files.new_name(base_offset)
    growing = GrowingSegment(base_offset, 0, task.index_interval_bytes)
    throttle = Throttle(task.bytes_per_second)
    with storage.new_file(files.new_key(name)) as log:
        for segment in task.run:
            file = file_of(files, segment)
            for chunk in read_chunks(storage, file):
                check_crcs(chunk.data, chunk.table, file.key, chunk.position)
                log.write(chunk.data.data)
                growing.append_all(chunk.table)
                throttle.observe(2 * len(chunk.data))
                progress.advance(size=len(chunk.data))
    throttle.settle()
    aborted = tuple(each for segment in task.run for each in segment.aborted)
    horizon_ms = min((each.horizon_ms for each in task.run if each.horizon_ms >= 0), default=-1)
    merged = finish_segment(storage, files, name, growing, task.run, aborted, horizon_ms)
    return Replacement(task.topic_id, task.partition, files, task.run, (merged,))
