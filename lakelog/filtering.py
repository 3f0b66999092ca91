"""Filters rows by an expression of pyarrow.compute, and finds the offsets outside of which no row can match.

Arrow itself decides which rows can match. Each segment becomes a fragment of an Arrow dataset, together with what the
state knows about its rows: the topic, the partition, the offsets and the largest timestamp. Arrow returns the fragments
that the expression does not contradict. Arrow opens no file for this. The state does not contain the smallest timestamp
of a segment. So an upper bound on the timestamp skips no segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from lakelog.rows import ROWS
from storage_engine.errors import ConfigError
from storage_engine.topic.chain.state import TopicState

_EXACT_ENOUGH = 1_000
"""The search for a bound ends when at most this many offsets are between it and the first offset that can match."""
_LARGEST_MS = (2**63 - 1) // 1_000
"""The largest time, in milliseconds, that the column timestamp can contain. The column has microseconds."""
_NO_ROWS = pa.schema([field.with_nullable(True) for field in ROWS])
_FORMAT = ds.IpcFileFormat()
_FILES = pyarrow.fs.LocalFileSystem()
_REMEDY = f"Give an expression of pyarrow.compute on the columns {', '.join(ROWS.names)}."

Stretch = tuple[int, int, int]
"""A first offset, the offset after the last one, and the largest timestamp of the rows between them in milliseconds."""


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


def offsets_that_can_match(where: pc.Expression, state: TopicState, partition: int, offsets: range) -> range:
    """The part of a range of offsets outside of which no row of the partition matches. The result may include some
    other rows.

    Args:
        offsets: a range of offsets of the partition.
    """
    stretches = [
        (
            max(segment.base_offset, offsets.start),
            min(segment.end_offset, offsets.stop),
            segment.largest_timestamp,
        )
        for segment in state.partitions[partition].segments
        if segment.base_offset < offsets.stop and segment.end_offset > offsets.start
    ]
    found = _that_can_match(where, state.topic, partition, stretches)
    if not found:
        return range(offsets.start, offsets.start)
    first, end, largest = found[0]
    while end - first > _EXACT_ENOUGH:
        middle = (first + end) // 2
        if _that_can_match(where, state.topic, partition, [(first, middle, largest)]):
            end = middle
        else:
            first = middle
    start, stop, largest = found[-1]
    while stop - start > _EXACT_ENOUGH:
        middle = (start + stop) // 2
        if _that_can_match(where, state.topic, partition, [(middle, stop, largest)]):
            start = middle
        else:
            stop = middle
    return range(first, stop)


def _that_can_match(where: pc.Expression, topic: str, partition: int, stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches of offsets that have rows for which the expression may be true, in order."""
    fragments = [
        _FORMAT.make_fragment(str(index), _FILES, _known(topic, partition, stretch))
        for index, stretch in enumerate(stretches)
    ]
    dataset = ds.FileSystemDataset(fragments, ROWS, _FORMAT, _FILES)
    try:
        found = sorted(int(each.path) for each in dataset.get_fragments(where))
    except pa.ArrowException:  # for example a division by the number of the partition, which is 0
        return list(stretches)
    return [stretches[index] for index in found]


def _known(topic: str, partition: int, stretch: Stretch) -> pc.Expression:
    """An expression that is true for every row of a stretch."""
    first, end, largest_ms = stretch
    known = (
        (pc.field("topic") == pa.scalar(topic))
        & (pc.field("partition") == pa.scalar(partition, pa.int32()))
        & (pc.field("offset") >= pa.scalar(first, pa.int64()))
        & (pc.field("offset") < pa.scalar(end, pa.int64()))
    )
    if largest_ms > _LARGEST_MS:
        return known
    return known & (pc.field("timestamp") <= pa.scalar(largest_ms * 1_000, pa.timestamp("us", tz="UTC")))
