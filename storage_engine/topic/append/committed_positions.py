"""Computes which rows of a source are committed to a topic, independently of the query's checkpoint and id.

There are two requirements: each row names its partition of the source and its position in this partition, and positions
only increase within a partition. The version that commits the rows stores the highest committed position of each
partition in the topic's state, under the name of the source:

    "positions": {"kafka b1:9092,b2:9092": {"orders/0": 52110, "orders/1": 48007}}

Rows at or below that position are committed already, for any query that reads these rows: the same query with an older
checkpoint, or another query with a new checkpoint.

A micro-batch is compared with the positions of one state, and committed only if the positions are still the same at the
commit. An Advance contains the old and the new positions. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_engine.errors import BatchRefusedError, PositionsError
from storage_engine.quantities import shown_number
from storage_engine.topic.chain.topic_state import TopicState

MOST_SOURCE_PARTITIONS = 4_096
"""The limit for one source. Each of the thousand versions of the state that are stored contains all positions, with
about ten bytes each."""
LONGEST_SOURCE_PARTITION = 400


@dataclass(frozen=True)
class Advance:
    """The change of a source's positions by a micro-batch.

    source: the name of the source.
    compared_with: the committed positions before the micro-batch. Rows at or below them were skipped.
    highest: the highest position in the micro-batch, by source partition, over all its rows, including skipped rows and
        dead letters.
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
            "the source's committed positions changed after the rows of the micro-batch were compared with the"
            " positions",
            "Another ingest committed rows of the same source meanwhile. Nothing of this batch was committed. Start again.",
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
