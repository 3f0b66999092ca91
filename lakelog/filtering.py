"""Filters rows by an expression of pyarrow.compute, and finds a range of offsets that contains all rows that can match.

Arrow itself decides which rows can match. Each segment becomes a fragment of an Arrow dataset. The fragment contains
what the state says about the segment's rows: the topic, the partition, the offsets, the largest timestamp and the
smallest timestamp. Arrow returns the fragments that the expression does not contradict. To decide this, Arrow opens no
file.

For each segment, a bisection finds the earliest and the latest time at which a row can match. The bisection asks Arrow
about fragments, too. If the first segment begins with batches whose rows are all before this earliest time, these
batches are skipped. If the last segment ends with batches whose rows are all after this latest time, these batches are
skipped, too. topic.readers.time_bounds finds the first and the last batch to read. To find the last batch,
topic.readers.time_bounds uses a number in the state: the largest lateness of the segment's records. A record is late if
an earlier record has a larger timestamp. The lateness of a record is the difference between the largest timestamp of
the earlier records and the record's own timestamp. If an earlier release of Lakelog wrote the segment, the state lacks
this number and the smallest timestamp. In such a segment, fewer rows can be skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from lakelog.rows import LAST_MS, ROWS
from storage_engine.errors import ConfigError, NotFoundError
from storage_engine.log.segment_reader import SegmentFile
from storage_engine.record.header import NO_TIMESTAMP
from storage_engine.storage import Storage
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.readers.time_bounds import first_offset_beyond, first_offset_reaching

_EXACT_ENOUGH = 1_000
"""The search for a bound by offset stops at this precision. So at most this many offsets before the first offset that
can match are read, too."""
_TIME = ROWS.field("timestamp").type
_NO_ROWS = pa.schema([field.with_nullable(True) for field in ROWS])
_FORMAT = ds.IpcFileFormat()
_FILES = pyarrow.fs.LocalFileSystem()
_REMEDY = f"Give an expression of pyarrow.compute on the columns {', '.join(ROWS.names)}."


class OffsetSpan(NamedTuple):
    """A first offset, the offset after the last one, and what is known about the timestamps of the rows between them.

    smallest_ms: no row has a smaller timestamp, in milliseconds; None if this is not known.
    largest_ms: no row has a larger timestamp, in milliseconds.
    """

    first: int
    end: int
    smallest_ms: int | None
    largest_ms: int


def check_filter(where: object) -> None:
    """Check that an expression can be evaluated on the columns of ROWS, and is true or false.

    Raises:
        ConfigError: the argument is not an expression, cannot be evaluated on these columns, or is not true or false.
    """
    if not isinstance(where, pc.Expression):
        raise ConfigError("where", f"found {type(where).__name__}", _REMEDY)
    empty = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in _NO_ROWS], schema=_NO_ROWS)
    try:
        empty.filter(where)
    except pa.ArrowException as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError("where", f"cannot be evaluated on rows: {problem}", _REMEDY) from None


def filtered(rows: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    """The rows that match.

    Raises:
        ConfigError: the expression cannot be evaluated on one of the rows.
    """
    try:
        return rows.filter(where)
    except pa.ArrowException:  # not chained, because the original message may show the content of a record
        first, last, number = rows["offset"][0], rows["offset"][-1], rows["partition"][0]
        place = f"topic {rows['topic'][0]}, partition {number}, offsets {first} to {last}"
        remedy = "Change the expression so that it accepts every row, or read other offsets."
        raise ConfigError("where", f"cannot be evaluated on a row of {place}", remedy) from None


def offsets_that_can_match(
    where: pc.Expression, storage: Storage, state: TopicState, partition: int, offsets: range
) -> range:
    """A part of a range of offsets that contains all matching rows of the partition. The part may also contain rows
    that do not match.

    Args:
        offsets: a range of offsets of the partition.

    Raises:
        StorageError: the storage failed. A missing or damaged file raises no error here: its rows are not skipped.
    """
    segments = [
        segment
        for segment in state.partitions[partition].segments
        if segment.base_offset < offsets.stop and segment.end_offset > offsets.start
    ]
    stretches = [
        OffsetSpan(
            max(segment.base_offset, offsets.start),
            min(segment.end_offset, offsets.stop),
            segment.smallest_timestamp,
            segment.largest_timestamp,
        )
        for segment in segments
    ]
    matching = _MatchingOffsets(where, state.topic, partition)
    found = matching.among(stretches)
    if not found:
        return range(offsets.start, offsets.start)

    first, last = found[0], found[-1]
    files = [segment_file(state.topic_id, partition, segments[index]) for index in (first, last)]
    start = max(matching.first(stretches[first]), _first_in_time(matching, stretches[first], storage, files[0]))
    lateness_ms = segments[last].largest_lateness_ms
    stop = min(matching.end(stretches[last]), _end_in_time(matching, stretches[last], lateness_ms, storage, files[1]))
    return range(start, max(start, stop))


def _first_in_time(matching: _MatchingOffsets, stretch: OffsetSpan, storage: Storage, file: SegmentFile) -> int:
    """An offset before which all timestamps of a segment are too early to match."""
    earliest_ms = matching.earliest_ms(stretch)
    if earliest_ms is not None:
        with suppress(NotFoundError):  # the file was replaced; a later read finds the new file
            return first_offset_reaching(storage, file, earliest_ms)
    return stretch.first


def _end_in_time(
    matching: _MatchingOffsets, stretch: OffsetSpan, lateness_ms: int | None, storage: Storage, file: SegmentFile
) -> int:
    """An offset. At and after this offset, all timestamps of a segment are too late to match.

    Args:
        lateness_ms: the largest lateness in the segment; None if it is not known.
    """
    if lateness_ms is not None:
        latest_ms = matching.latest_ms(stretch)
        if latest_ms is not None:
            with suppress(NotFoundError):  # as above
                return first_offset_beyond(storage, file, latest_ms + lateness_ms + 1)
    return stretch.end


@dataclass(frozen=True)
class _MatchingOffsets:
    """Decides whether an expression can be true for rows of a partition."""

    where: pc.Expression
    topic: str
    partition: int

    def among(self, stretches: Sequence[OffsetSpan]) -> list[int]:
        """The indexes of the spans with rows for which the expression may be true, in order."""
        fragments = [
            _FORMAT.make_fragment(str(index), _FILES, self._known(stretch)) for index, stretch in enumerate(stretches)
        ]
        dataset = ds.FileSystemDataset(fragments, ROWS, _FORMAT, _FILES)
        try:
            return sorted(int(each.path) for each in dataset.get_fragments(self.where))
        except pa.ArrowException:  # for example a division by the number of the partition, which is 0
            return list(range(len(stretches)))

    def first(self, stretch: OffsetSpan) -> int:
        """An offset of a span before which no row can match."""

        def can_match(middle: int, impossible: int) -> bool:
            return bool(self.among([stretch._replace(first=impossible, end=middle)]))

        return _bisected(stretch.first, stretch.end, can_match, _EXACT_ENOUGH)[0]

    def end(self, stretch: OffsetSpan) -> int:
        """An offset in a span. At and after this offset, no row of the span can match."""

        def can_match(middle: int, impossible: int) -> bool:
            return bool(self.among([stretch._replace(first=middle, end=impossible)]))

        return _bisected(stretch.end, stretch.first, can_match, _EXACT_ENOUGH)[0]

    def earliest_ms(self, stretch: OffsetSpan) -> int | None:
        """The earliest timestamp of a row of a span that can match; None if it may be the smallest timestamp."""

        def can_match(largest_ms: int, _: int) -> bool:
            return bool(self.among([stretch._replace(largest_ms=largest_ms)]))

        smallest_ms = NO_TIMESTAMP if stretch.smallest_ms is None else stretch.smallest_ms
        if stretch.largest_ms > LAST_MS or can_match(smallest_ms, smallest_ms):
            return None
        return _bisected(smallest_ms, stretch.largest_ms, can_match)[1]

    def latest_ms(self, stretch: OffsetSpan) -> int | None:
        """The latest timestamp of a row of a span that can match; None if it may be the largest timestamp."""

        def can_match(smallest_ms: int, _: int) -> bool:
            return bool(self.among([stretch._replace(smallest_ms=smallest_ms)]))

        largest_ms = stretch.largest_ms
        if largest_ms > LAST_MS or can_match(largest_ms, largest_ms):
            return None
        return _bisected(largest_ms, NO_TIMESTAMP if stretch.smallest_ms is None else stretch.smallest_ms, can_match)[1]

    def _known(self, stretch: OffsetSpan) -> pc.Expression:
        """An expression that is true for every row of a span."""
        known = (
            (pc.field("topic") == pa.scalar(self.topic))
            & (pc.field("partition") == pa.scalar(self.partition, pa.int32()))
            & (pc.field("offset") >= pa.scalar(stretch.first, pa.int64()))
            & (pc.field("offset") < pa.scalar(stretch.end, pa.int64()))
        )
        if stretch.largest_ms > LAST_MS:
            return known
        known &= pc.field("timestamp") <= pa.scalar(stretch.largest_ms * 1_000, _TIME)
        if stretch.smallest_ms is None:
            return known
        return known & (pc.field("timestamp") >= pa.scalar(stretch.smallest_ms * 1_000, _TIME))


def _bisected(
    impossible: int, possible: int, can_match: Callable[[int, int], bool], exact_enough: int = 1
) -> tuple[int, int]:
    """Bisect between a bound at which no row can match and a bound at which a row can match. Either of them may be the
    larger one.

    Args:
        can_match: whether a row can match at its first argument. At its second argument, no row can match.
        exact_enough: the search ends when the bounds are at most this far apart.

    Returns:
        The last bound at which no row can match, and the first bound at which a row can match.
    """
    while abs(possible - impossible) > exact_enough:
        middle = (impossible + possible) // 2
        if can_match(middle, impossible):
            possible = middle
        else:
            impossible = middle
    return impossible, possible
