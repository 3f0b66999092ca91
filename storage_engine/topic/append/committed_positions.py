"""Computes which rows of a source are already committed to a topic. The query's checkpoint and id do not affect the
result.

There are two requirements. Each row must name its source partition and its position in this partition. Within a source
partition, positions must only increase. The version that commits the rows also stores the highest committed position of
each source partition. The positions are in the topic's state, under the name of the source:

    "positions": {"kafka b1:9092,b2:9092": {"orders/0": 52110, "orders/1": 48007}}

A row at or below the position of its source partition is committed already. The row counts as committed for any query
that reads the row: the same query with an older checkpoint, or another query with a new checkpoint.

The rows of a micro-batch are compared with the positions in one version of the state. The micro-batch is committed
only if the positions have not changed since this comparison. An Advance contains the old and the new positions. All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_engine.errors import BatchRefusedError, PositionsError
from storage_engine.quantities import shown_number
from storage_engine.topic.chain.topic_state import TopicState

MOST_SOURCE_PARTITIONS = 4_096
"""The most partitions that one source may have. A thousand versions of the state are stored, and each of them contains
all positions. A position takes about ten bytes.
"""
LONGEST_SOURCE_PARTITION = 400


@dataclass(frozen=True)
class Advance:
    """The change of a source's positions by a micro-batch.

    source: the name of the source.
    compared_with: the committed positions before the micro-batch. Rows at or below them were skipped.
    highest: the highest position in the micro-batch, by source partition. All rows of the micro-batch count, also
        skipped rows and dead letters.
    """

    source: str
    compared_with: Mapping[str, int]
    highest: Mapping[str, int]


def positions_of(state: TopicState, source: str) -> Mapping[str, int]:
    """The highest committed position by source partition; empty if no rows of the source are committed yet."""
    return state.positions.get(source, {})


def source_partition(values: Iterable[str]) -> str:
    """The name of a source partition that is identified by several values. Different lists of values have different
    names."""
    return "/".join(value.replace("\\", "\\\\").replace("/", "\\/") for value in values)


def advanced(state: TopicState, advance: Advance) -> dict[str, dict[str, int]]:
    """The positions of all sources after the micro-batch.

    Raises:
        BatchRefusedError: the state's positions are not those with which the rows were compared.
        PositionsError: the source has too many partitions, or too long names of partitions.
    """
    before = positions_of(state, advance.source)
    if before != advance.compared_with:
        raise BatchRefusedError(
            f"topic {state.topic}, source {advance.source}",
            "the committed positions of the source changed after they were compared with the rows of the micro-batch",
            "Another ingest committed rows of the same source meanwhile. No row of this batch was committed. Start"
            " again.",
        )
    after = dict(before)
    for partition, position in advance.highest.items():
        after[partition] = max(position, before.get(partition, position))
    check_kept(f"topic {state.topic}", advance.source, after)
    return {**state.positions, advance.source: after}


def check_kept(place: str, source: str, positions: Mapping[str, int]) -> None:
    """Check the number and the names of a source's partitions against the limits of a state.

    Raises:
        PositionsError: there are too many partitions, or a name is too long.
    """
    remedy = (
        "Positions can be stored only for a source with a fixed set of partitions. Check ingest.position.columns: its"
        " last column is the position, and all other columns together name the partition."
    )
    if len(positions) > MOST_SOURCE_PARTITIONS:
        limit = shown_number(MOST_SOURCE_PARTITIONS)
        raise PositionsError(place, f"source {source} has more than {limit} partitions", remedy)
    longest = max(map(len, positions), default=0)
    if longest > LONGEST_SOURCE_PARTITION:
        problem = f"source {source} has a partition whose name has {longest} characters, more than"
        raise PositionsError(place, f"{problem} {LONGEST_SOURCE_PARTITION}", remedy)
