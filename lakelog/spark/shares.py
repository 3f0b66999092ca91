"""How much a micro-batch takes and how tasks divide it: numbers of offsets alone, rounded as Spark's Kafka source rounds.

Offsets are counted, not records: what compaction removed, markers and aborted records count too, because nobody knows
before a read how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakelog.spark.options.bounds import Where


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
    """Where a micro-batch of about `most` offsets ends.

    Each partition moves by its share of what waits, rounded down; a share below one becomes one, so that no partition
    waits for ever. So the sum may differ from `most` a little.

    Args:
        begun: where it begins, by partition; a partition without an entry moves to its end.
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
    """Whether a stream waits for more records: it does for as long as few wait, and not for too long.

    last_ms: when it last did not wait. At first it does not, whatever waits.
    """

    least: int
    max_delay_ms: int
    last_ms: int = 0

    def waits(self, waiting: int, now_ms: int) -> bool:
        """
        Args:
            waiting: how many offsets wait.
        """
        if now_ms - self.last_ms < self.max_delay_ms and waiting < self.least:
            return True
        self.last_ms = now_ms
        return False


def divided(ranges: Iterable[OffsetRange], least: int | None, most: int | None) -> list[OffsetRange]:
    """Ranges for tasks, in order; empty ones are left out.

    Args:
        least: the fewest ranges. Large partitions are divided, in proportion to their offsets; a little fewer or more come
            of rounding.
        most: the most offsets of a range.
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
    """In how many parts a range goes; halves are rounded up."""
    return max(math.floor(size / total * wanted + 0.5), 1)


def _parts(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    """A range in parts of about one size. The last ones take what rounding leaves."""
    parts, first, left = [], whole.first, whole.size
    for number in range(count):
        size = left // (count - number)
        left -= size
        if size:
            parts.append(OffsetRange(whole.topic, whole.partition, first, first + size))
        first += size
    return parts
