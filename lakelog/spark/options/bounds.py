"""Where a read begins and ends, as options say it: startingOffsets, endingOffsets and their kin by time.

    earliest, latest                           of every partition
    {"orders": {"0": 23, "1": -1, "2": -2}}    an offset of each partition; -1 is the latest, -2 the earliest
    {"orders": {"0": 1700000000000, ...}}      of each partition, the first record at or after a time in milliseconds
    1700000000000                              the same time for every partition

Three options may say where a read begins, and three where it ends. The first of the three that is given counts, in this
order: a time for all, a time for each partition, offsets. Everything here only reads text; offsets.py looks up what it
means in a topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lakelog.spark.options.given import Given, wrong
from storage_engine.config import shown
from storage_engine.errors import ConfigError

Where = tuple[str, int]
"""A topic and a partition."""

LATEST = -1
EARLIEST = -2
_LONG = range(-(1 << 63), 1 << 63)
_INT = range(-(1 << 31), 1 << 31)
_OFFSETS = '{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
_TIMES = '{"topicA": {"0": 1700000000000, "1": 1700000000000}}'
_PARTITIONS = '{"topicA": [0, 1], "topicB": [0, 1]}'


class Edge(Enum):
    """Every partition at one of its ends."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True)
class Offsets:
    """An offset of each partition; LATEST and EARLIEST stand for the ends."""

    by_partition: Mapping[Where, int]


@dataclass(frozen=True)
class Times:
    """A time of each partition, in milliseconds."""

    by_partition: Mapping[Where, int]


@dataclass(frozen=True)
class Time:
    """One time for every partition, in milliseconds."""

    ms: int


Bound = Edge | Offsets | Times | Time


def starting_bound(given: Given) -> Bound | None:
    """Where a read begins; None where no option says it.

    Raises:
        ConfigError: the option that counts has a value that it may not have.
    """
    return _bound(given, "starting")


def ending_bound(given: Given) -> Bound | None:
    """Where a batch ends; None where no option says it. Raises as starting_bound does."""
    return _bound(given, "ending")


def check_batch(starting: Bound, ending: Bound) -> None:
    """Check that a batch may begin and end so.

    Raises:
        ConfigError: it would begin at the latest or end at the earliest; or the partitions of both differ, or one begins
            after its end.
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
        ConfigError: it names none, or is not what `assign` is written as.
    """
    if not text.strip().startswith("{"):
        raise wrong("assign", f"found {shown(text)}, which assigns no partitions", f"Write it as {_PARTITIONS}.")
    return frozenset(
        _parsed(
            "assign", text, _PARTITIONS,
            lambda topics: [(topic, _number(number, _INT)) for topic, numbers in topics.items() for number in numbers],
        )
    )  # fmt: skip


def listed(partitions: Mapping[Where, object] | frozenset[Where]) -> str:
    """Partitions as error messages name them: at most ten."""
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "none") + more


def option_of(bound: Bound, end: str) -> str:
    """The option that gives such a bound.

    Args:
        end: starting or ending.
    """
    match bound:
        case Time():
            return f"{end}Timestamp"
        case Times():
            return f"{end}OffsetsByTimestamp"
    return f"{end}Offsets"


def _bound(given: Given, end: str) -> Bound | None:
    time, times, offsets = f"{end}Timestamp", f"{end}OffsetsByTimestamp", f"{end}Offsets"
    if (ms := given.whole_number(time)) is not None:
        return Time(ms)
    if (text := given.get(times)) is not None:
        return Times(_by_partition(times, text, _TIMES, _LONG))
    if (text := given.get(offsets)) is None:
        return None
    if text.strip().lower() in {edge.value for edge in Edge}:
        return Edge(text.strip().lower())
    return Offsets(_by_partition(offsets, text, _OFFSETS, range(EARLIEST, 1 << 63)))


def _by_partition(option: str, text: str, example: str, bounds: range) -> Mapping[Where, int]:
    return dict(
        _parsed(
            option, text, example,
            lambda topics: [
                ((topic, _number(int(number), _INT)), _number(value, bounds))
                for topic, partitions in topics.items()
                for number, value in partitions.items()
            ],
        )
    )  # fmt: skip


def _parsed(option: str, text: str, example: str, meant: Callable[[Any], list[Any]]) -> list[Any]:
    try:
        return meant(json.loads(text))
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise wrong(option, f"found {shown(text)}", f"Write it as {example}.") from None


def _number(value: object, bounds: range) -> int:
    """A number of JSON; what is behind its point is dropped, as Kafka's source does.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(value)
    if int(value) not in bounds:
        raise ValueError(value)
    return int(value)


def _check_order(option: str, first: Mapping[Where, int], end: Mapping[Where, int]) -> None:
    if first.keys() != end.keys():
        raise wrong(
            option, f"names the partitions {listed(first)}, but the end names {listed(end)}",
            "Name the same partitions in the start and the end.",
        )  # fmt: skip
    for where in sorted(first):
        if first[where] > end[where] >= 0 and first[where] >= 0:
            raise after_end(option, where, first[where], end[where])


def after_end(option: str, where: Where, first: int, end: int) -> ConfigError:
    """What to raise where a partition would be read from after its end."""
    return wrong(
        option, f"the start {first} of {where[0]}-{where[1]} is greater than the end {end}", "Begin before the end."
    )
