"""Merges small neighbouring segments: copies the batches of sealed segments unchanged, one after another, into a new
segment.

Many small segments come from short micro-batches, from restarts, and from storages that cannot append to a file.
Batches can be concatenated, so merging decodes no batch. Merging checks the CRCs, copies the bytes, and derives the
indexes that a broker would have written for the new segment. Offsets, timestamps, epochs and every byte of the
batches stay the same.

A pure function selects the segments to merge. Some settings act on whole segments, for example retention.ms. So
neighbouring segments become one segment only if the merged segment stays within these bounds:

    segment.bytes, segment.index.bytes, relative offsets    the merged segment stays within these limits
    segment.ms                                              the largest timestamps of its parts differ by at most this
    retention.ms                                            the largest timestamps of its parts differ by at most a
                                                            tenth of this
    retention.bytes                                         its size is at most a tenth of this

The merged segment must also be at least twice as large as the largest of the segments that it replaces. So during the
life of the topic, a byte is copied at most log2(segment.bytes / size of the byte's first segment) times. The active
segment and segments below the log start offset are not merged. Segments of compacted topics are not merged:
compaction already joins small segments, and would copy a merged segment once more.

New files are durable when `merge_segments` returns. Readers use the new files only after a new version of the topic's
state names them in place of the old files (topic.clean.state_swap). If the process dies before that version is
committed, the new files are never read.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf

from storage_engine.cleaner.replacement import Replacement, file_of, finish_segment
from storage_engine.cleaner.throttle import Throttle
from storage_engine.config import TopicConfig
from storage_engine.log.filenames import SegmentFolder
from storage_engine.log.growing_segment import MOST_RELATIVE_OFFSET, UNKNOWN_LATENESS, GrowingSegment
from storage_engine.log.indexes.time_index import TIME_ENTRY
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.segment_reader import read_chunks
from storage_engine.log.segment_retention import newest_time
from storage_engine.progress import NO_PROGRESS, Progress
from storage_engine.record.batch import NO_SMALLEST, UNKNOWN_SMALLEST
from storage_engine.record.crc import check_crcs
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage import Storage
from storage_engine.storage.read_ahead import read_ahead

_GAIN = 2
"""A merged segment is at least this many times as large as the largest of the segments that were merged."""
_RETENTION_SHARE = 10
"""Retention deletes whole segments. Merging delays the deletion of a record by at most the retention divided by this
number.
"""


def plan_merges(part: PartitionState, config: TopicConfig) -> tuple[tuple[Segment, ...], ...]:
    """The runs of two or more neighbouring segments to merge, oldest first."""
    if config.compact:
        return ()
    limits = _MergeLimits.of(config)
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
class _MergeLimits:
    """The bounds of a run. span_ms: the largest allowed difference between the largest timestamps of its segments."""

    size: int
    span_ms: int

    @classmethod
    def of(cls, config: TopicConfig) -> _MergeLimits:
        # Two index entries are more than index.interval.bytes apart, and an index counts as full one entry early.
        index_entries = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
        size = min(config.segment_bytes, index_entries * (config.index_interval_bytes + 1))
        span_ms = config.segment_ms
        if config.delete and config.retention_bytes >= 0:
            size = min(size, config.retention_bytes // _RETENTION_SHARE)
        if config.delete and config.retention_ms >= 0:
            span_ms = min(span_ms, config.retention_ms // _RETENTION_SHARE)
        return cls(size, span_ms)

    def end_of_run(self, segments: tuple[Segment, ...], first: int) -> int:
        """The end (exclusive) of the longest run from `first` that is worth merging. If there is none: `first` + 1."""
        base_offset = segments[first].base_offset
        size = largest = 0
        oldest_ms = newest_ms = None
        best = first + 1
        for number in range(first, len(segments)):
            segment = segments[number]
            size += segment.size
            largest = max(largest, segment.size)
            if segment.size:  # an empty segment has no record whose deletion could be delayed
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
    """One run to merge, with every value that the merge needs. Small and picklable.

    files: the folder of the partition's segments.
    bytes_per_second: the highest rate of reading and writing together.
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
    """Write a run as one new segment.

    Args:
        progress: receives the number of bytes that were copied, bytes_to_read in total.

    Raises:
        CorruptionError: a batch does not match its CRC.
        StorageError: the storage refused a call, or failed. After either error, no new file remains.
    """
    files, base_offset = task.files, task.run[0].base_offset
    name = files.new_name(base_offset)
    growing = GrowingSegment(base_offset, 0, task.index_interval_bytes)
    throttle = Throttle(task.bytes_per_second)
    run = [file_of(files, segment) for segment in task.run]
    reads = read_ahead(storage, [(file.key, file.size) for file in run])
    with storage.new_file(files.new_key(name)) as log:
        for file in run:
            for chunk in read_chunks(reads, file):
                check_crcs(chunk.data, chunk.table, file.key, chunk.position)
                log.write(chunk.data.data)
                growing.append_all(chunk.table)
                throttle.observe(2 * len(chunk.data))
                progress.advance(size=len(chunk.data))
    throttle.settle()
    _take_over(growing, task.run)
    aborted = tuple(each for segment in task.run for each in segment.aborted)
    horizon_ms = min((each.horizon_ms for each in task.run if each.horizon_ms >= 0), default=-1)
    merged = finish_segment(storage, files, name, growing, task.run, aborted, horizon_ms)
    return Replacement(task.topic_id, task.partition, files, task.run, (merged,))


def _take_over(growing: GrowingSegment, run: tuple[Segment, ...]) -> None:
    """Compute the smallest timestamp and the largest lateness of a merged segment from those of its run. The headers of
    batches do not contain these two values.
    """
    smallest, largest, lateness = NO_SMALLEST, NO_TIMESTAMP, 0
    for segment in run:
        if segment.size:
            low = UNKNOWN_SMALLEST if segment.smallest_timestamp is None else segment.smallest_timestamp
            own = UNKNOWN_LATENESS if segment.largest_lateness_ms is None else segment.largest_lateness_ms
            smallest, lateness = min(smallest, low), max(lateness, own, largest - low)
            largest = max(largest, segment.largest_timestamp)
    growing.smallest_timestamp = smallest
    growing.largest_lateness_ms = min(lateness, UNKNOWN_LATENESS)
