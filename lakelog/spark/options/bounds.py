"""Reads the options for the start and the end of a read: startingOffsets, endingOffsets, and the options with times.

    earliest, latest                           the same for every partition
    {"orders": {"0": 23, "1": -1, "2": -2}}    an offset for each partition; -1 is the latest, -2 the earliest
    {"orders": {"0": 1700000000000, ...}}      for each partition, the first record at or after a time in milliseconds
    1700000000000                              the same time for every partition

Each of the two bounds (start and end) has three options: offsets, a time for each partition, and one time for all
partitions. If a user gives several of the three options of one bound, one time for all partitions has priority, then
the time for each partition, then the offsets. This module only reads text; read_topics.py finds the offsets in the
topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lakelog.spark.options.partition_json import Where, numbers_in, partitions_in
from lakelog.spark.options.user_options import UserOptions, without_spaces, wrong
from storage_engine.config import shown
from storage_engine.errors import ConfigError

LATEST = -1
EARLIEST = -2
_OFFSETS = '{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
_TIMES = '{"topicA": {"0": 1700000000000, "1": 1700000000000}}'
_PARTITIONS = '{"topicA": [0, 1], "topicB": [0, 1]}'


class Edge(Enum):
    """The earliest, or the latest, offset of every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True)
class Offsets:
    """An offset for each partition. LATEST and EARLIEST mean the two ends of the partition. A lower number is refused when
    the offset is looked up."""

    by_partition: Mapping[Where, int]


@dataclass(frozen=True)
class Times:
    """A time for each partition, in milliseconds."""

    by_partition: Mapping[Where, int]


@dataclass(frozen=True)
class Time:
    """One time for every partition, in milliseconds."""

    ms: int


Bound = Edge | Offsets | Times | Time


def starting_bound(given: UserOptions) -> Bound | None:
    """The start of a read; None if no option gives it.

    Raises:
        ConfigError: the option that is used has a wrong value.
    """
    return _bound(given, "starting")


def ending_bound(given: UserOptions) -> Bound | None:
    """The end of a batch; None if no option gives it. Raises the errors of starting_bound."""
    return _bound(given, "ending")


def check_batch(starting: Bound, ending: Bound) -> None:
    """Check the start and the end of a batch.

    Raises:
        ConfigError: the start is latest, or the end is earliest; or both name different partitions; or the start of a
            partition is after its end.
    """
    if starting is Edge.LATEST or (isinstance(starting, Offsets) and LATEST in starting.by_partition.values()):
        raise wrong("startingOffsets", "a batch can't begin at the latest offset", "Give earliest or offsets.")
    if ending is Edge.EARLIEST or (isinstance(ending, Offsets) and EARLIEST in ending.by_partition.values()):
        raise wrong("endingOffsets", "a batch can't end at the earliest offset", "Give latest or offsets.")
    if isinstance(starting, Offsets) and isinstance(ending, Offsets):
        _check_order("startingOffsets", starting.by_partition, ending.by_partition)
    elif isinstance(starting, Times) and isinstance(ending, Times):
        _check_order("startingOffsetsByTimestamp", starting.by_partition, ending.by_partition)


def assigned_partitions(text: str) -> frozenset[Where]:
    """The partitions that the option `assign` names.

    Raises:
        ConfigError: the text names no partition, or does not have the form of `assign`.
    """
    if not without_spaces(text).startswith("{"):
        raise wrong("assign", f"found {shown(text)}, which is not a list of partitions", f"Write it as {_PARTITIONS}.")
    try:
        return partitions_in(text)
    except (TypeError, ValueError):
        raise _malformed("assign", text, _PARTITIONS) from None


def listed(partitions: Mapping[Where, object] | frozenset[Where]) -> str:
    """At most ten partitions as text, for error messages, and the number of the others."""
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none") + more


def option_of(bound: Bound, end: str) -> str:
    """The option that gives a bound of this kind.

    Args:
        end: the beginning of the option's name: starting or ending.
    """
    match bound:
        case Time():
            return f"{end}Timestamp"
        case Times():
            return f"{end}OffsetsByTimestamp"
    return f"{end}Offsets"


def _bound(given: UserOptions, end: str) -> Bound | None:
    time, times, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if (ms := given.whole_number(time, trimmed=True)) is not None:
        return Time(ms)
    if (text := given.get(times)) is not None:
        return Times(_by_partition(times, text, _TIMES))
    if (text := given.get(offsets)) is None:
        return None
    if (word := without_spaces(text).lower()) in {edge.value for edge in Edge}:
        return Edge(word)
    return Offsets(_by_partition(offsets, text, _OFFSETS))


def _by_partition(option: str, text: str, example: str) -> Mapping[Where, int]:
    try:
        return numbers_in(text)
    except (TypeError, ValueError):
        raise _malformed(option, text, example) from None


def _malformed(option: str, text: str, example: str) -> ConfigError:
    return wrong(option, f"found {shown(text)}", f"Write it as {example}.")


def _check_order(option: str, first: Mapping[Where, int], end: Mapping[Where, int]) -> None:
    if first.keys() != end.keys():
        raise wrong(
            option, f"names the partitions {listed(first)}, but the option for the end names {listed(end)}",
            "Give the same partitions in the options for the start and the end.",
        )  # fmt: skip
    for where in sorted(first):
        if first[where] > end[where] >= 0 and first[where] >= 0:
            raise after_end(option, where, first[where], end[where])


def after_end(option: str, where: Where, first: int, end: int) -> ConfigError:
    """The error if the start of a partition is after its end."""
    return wrong(
        option, f"the start {first} of {where[0]}-{where[1]} is greater than the end {end}", "Begin before the end."
    )
