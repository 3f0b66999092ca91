"""Collects contradictions in the files of a log. The contradictions are printed after the last file, on standard error.

    Non-consecutive offsets in /logs/orders-0/00000000000000000000.log
      1 is followed by 7

The five kinds of findings are printed one kind after another, in Kafka's words and in Kafka's order. Findings of one
kind are sorted by file, in the order that Kafka's java.util.HashMap gives. A finding does not stop the dump, and is not
always damage: compaction, for example, leaves gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lakelog.dump.java_text import java_order
from storage_engine.record.batch import Int64Array

Pairs = list[tuple[int, int]]
_GAPS_AT_ONCE = 10_000
"""A log can have millions of gaps. So arrays contain the gaps, and at most this many gaps are Python objects at the
same time."""


def _no_pairs() -> defaultdict[str, Pairs]:
    return defaultdict(list)


@dataclass
class Mismatches:
    """The contradictions in the files dumped so far, by the absolute name of the file."""

    index_mismatches: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Indexed offset -> last offset of the batch at the indexed position."""
    time_mismatches: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Pairs of an indexed timestamp and the largest timestamp of the batch."""
    out_of_order: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Pairs of an indexed timestamp and the indexed timestamp before it."""
    not_found: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Pairs of an indexed offset and the last offset of the batch that contains it, or -1 if no batch contains it."""
    gaps: defaultdict[str, list[Int64Array]] = field(default_factory=lambda: defaultdict(list))
    """Each offset before a gap and the offset after that gap; shape (2, gaps)."""

    def text(self) -> Iterator[str]:
        """All findings as text, line by line. Each kind and file has a heading, followed by a line for each pair."""
        # Kafka stores the index mismatches in a TreeMap in descending order.
        index_mismatches = {name: sorted(found.items(), reverse=True) for name, found in self.index_mismatches.items()}
        gaps = {name: _Gaps(found) for name, found in self.gaps.items()}
        for head, line, kind in (
            ("Mismatches in :", "  Index offset: %d, log offset: %d", index_mismatches),
            ("Found timestamp mismatch in :", "  Index timestamp: %d, log timestamp: %d", self.time_mismatches),
            (
                "Found out of order timestamp in :",
                "  Index timestamp: %d, Previously indexed timestamp: %d",
                self.out_of_order,
            ),
            (
                "The following indexed offsets are not found in :",
                "Indexed offset: %d, found log offset: %d",
                self.not_found,
            ),
            ("Non-consecutive offsets in ", "  %d is followed by %d", gaps),
        ):
            for name in java_order(kind):
                yield head + name
                for pair in kind[name]:
                    yield line % pair


class _Gaps:
    """For each offset before a gap, the gap that was found last, as in Kafka's map. The gaps are sorted by the offset
    before the gap.
    """

    def __init__(self, found: list[Int64Array]) -> None:
        before, after = np.concatenate(found, axis=1)
        order = np.argsort(before, kind="stable")
        before, after = before[order], after[order]
        latest = np.append(before[1:] != before[:-1], True)
        self._before, self._after = before[latest], after[latest]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for first in range(0, len(self._before), _GAPS_AT_ONCE):
            part = slice(first, first + _GAPS_AT_ONCE)
            yield from zip(self._before[part].tolist(), self._after[part].tolist(), strict=True)
