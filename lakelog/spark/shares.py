"""Decides how many offsets a micro-batch reads, and how tasks share them. Numbers are rounded as in Spark's Kafka
source.

The limits count offsets, not records. So they also count the offsets of markers, of aborted records, and of records
that compaction removed. The number of such offsets is unknown before the read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakelog.spark.options.partition_json import Where


@dataclass(frozen=True)
class OffsetRange:
    """Some offsets of one partition: first <= offset < end."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


def limited(most: int, begun: Mapping[Where, int], end: Mapping[Where, int]) -> dict[Where, int]:
    """The end of a micro-batch of about `most` offsets, by partition.

    Each partition advances by its share of the unread offsets, rounded down. A share below one becomes one, so that every
    partition advances. So the sum can differ slightly from `most`.

    Args:
        begun: by partition, the start of the micro-batch. A partition without an entry advances to its end.
    """
    waiting = {where: offset - begun[where] for where, offset in end.items() if where in begun}
    waiting = {where: offsets for where, offsets in waiting.items() if offsets > 0}
    total = float(sum(waiting.values()))
    if total < 1:
        return dict(end)
    moved = dict(end)
    for where, offsets in waiting.items():
        share = most * (offsets / total)
        moved[where] = min(end[where], begun[where] + (math.ceil(share) if share < 1 else math.floor(share)))
    return moved


@dataclass
class Waiting:
    """Decides whether a stream waits for more records. The stream waits while fewer than `least` offsets are unread,
    but at most for max_delay_ms.

    last_ms: the time of the last decision not to wait. The first decision is always not to wait.
    """

    least: int
    max_delay_ms: int
    last_ms: int = 0

    def waits(self, waiting: int, now_ms: int) -> bool:
        """
        Args:
            waiting: the number of unread offsets.
        """
        if now_ms - self.last_ms < self.max_delay_ms and waiting < self.least:
            return True
        self.last_ms = now_ms
        return False


def divided(ranges: Iterable[OffsetRange], least: int | None, most: int | None) -> list[OffsetRange]:
    """Ranges for tasks, in order, without empty ranges.

    Args:
        least: the smallest number of ranges. Large partitions are divided in proportion to their offsets. Because of
            rounding, there can be slightly fewer or more ranges.
        most: the largest number of offsets in a range.
    """
    found = [each for each in ranges if each.size > 0]
    if most is not None:
        found = [part for each in found for part in _parts(each, math.ceil(each.size / most))]
    if least is None or len(found) >= least:
        return found
    total = sum(each.size for each in found)
    whole = {each for each in found if _count(each.size, total, least) == 1}
    kept = {(each.topic, each.partition) for each in whole}
    rest = total - sum(each.size for each in whole)
    wanted = max(least - len(whole), 1)
    counts = [1 if (each.topic, each.partition) in kept else _count(each.size, rest, wanted) for each in found]
    return [part for each, count in zip(found, counts, strict=True) for part in _parts(each, count)]


def _count(size: int, total: int, wanted: int) -> int:
    """The number of parts into which a range is divided. A half is rounded up."""
    return max(math.floor(size / total * wanted + 0.5), 1)


def _parts(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    """A range, divided into parts whose sizes differ by at most one offset. The last parts are the larger ones.

    Args:
        count: the number of parts. A range with fewer offsets is divided into single offsets.
    """
    parts, first, left = [], whole.first, whole.size
    count = min(count, whole.size)
    for number in range(count):
        size = left // (count - number)
        left -= size
        parts.append(OffsetRange(whole.topic, whole.partition, first, first + size))
        first += size
    return parts
