"""Decides how far a source is committed to a topic, independently of the query's checkpoint and id.

Positions can be used if each row names its partition of the source and its position there, and if positions only grow
within a partition. The version that commits the rows then stores the highest committed position of each partition in
the topic's state:

    "positions": {"kafka b1:9092,b2:9092": {"orders/0": 52110, "orders/1": 48007}}

Rows at or below that position are committed already, whichever query brings them: the same query with a checkpoint that
was restored from yesterday, or another query with a new checkpoint. A position belongs to a source by name, so
positions of two sources never mix.

A micro-batch is compared with the positions of one state, and committed only if the positions are still the same. An
Advance carries the old and the new positions. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_engine.errors import BatchRefusedError, PositionsError
from storage_engine.quantities import shown_number
from storage_engine.topic.chain.state import TopicState

MOST_SOURCE_PARTITIONS = 4_096
"""Of one source. Each version of the state holds all of them: some ten bytes each, a thousand versions."""
LONGEST_SOURCE_PARTITION = 400


@dataclass(frozen=True)
class Advance:
    """What a micro-batch does to the positions of a source.

    source: its name. held_against: the positions below which rows were left out. highest: of the micro-batch, by source
    partition, over all of its rows, those included that were left out or became dead letters.
    """

    source: str
    held_against: Mapping[str, int]
    highest: Mapping[str, int]


def positions_of(state: TopicState, source: str) -> Mapping[str, int]:
    """The highest committed position by source partition; none where the source has brought nothing yet."""
    return state.positions.get(source, {})


def source_partition(values: Iterable[str]) -> str:
    """The name of a source partition, told by several values: no two lists of values have the same."""
    return "/".join(value.replace("\\", "\\\\").replace("/", "\\/") for value in values)


def advanced(state: TopicState, advance: Advance) -> dict[str, dict[str, int]]:
    """The positions of all sources behind the micro-batch.

    Raises:
        BatchRefusedError: the state's positions are not those that its rows were held against.
        PositionsError: the source has no fixed set of partitions.
    """
    before = positions_of(state, advance.source)
    if before != advance.held_against:
        raise BatchRefusedError(
            f"topic {state.topic}, source {advance.source}",
            "its committed positions have changed since the rows of the micro-batch were held against them",
            "Another ingest of the same source came in between. Nothing of the batch was committed; start again.",
        )
    after = dict(before)
    for partition, position in advance.highest.items():
        after[partition] = max(position, before.get(partition, position))
    check_kept(f"topic {state.topic}", advance.source, after)
    return {**state.positions, advance.source: after}


def check_kept(place: str, source: str, positions: Mapping[str, int]) -> None:
    """Check that a source's partitions are so few and short that each version of the state can hold them.

    Raises:
        PositionsError: they are not.
    """
    remedy = (
        "Only sources with a fixed set of partitions have positions to keep: look at ingest.position.columns, of which all"
        " but the last name the partition."
    )
    if len(positions) > MOST_SOURCE_PARTITIONS:
        limit = shown_number(MOST_SOURCE_PARTITIONS)
        raise PositionsError(place, f"source {source} has more than {limit} partitions", remedy)
    longest = max(map(len, positions), default=0)
    if longest > LONGEST_SOURCE_PARTITION:
        problem = f"source {source} has a partition whose name has {longest} characters, more than"
        raise PositionsError(place, f"{problem} {LONGEST_SOURCE_PARTITION}", remedy)
