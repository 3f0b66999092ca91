"""What does not fit together in the files of a log: told behind the last of them, on standard error.

    Non-consecutive offsets in /logs/orders-0/00000000000000000000.log
      1 is followed by 7

Five kinds, in Kafka's words and in its order: kind by kind, files as its java.util.HashMap has them. None of it stops a
dump, and it need not be damage: compaction leaves gaps, for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from storage_engine.dump.java_text import java_order
from storage_engine.record.batch import Int64Array

Pairs = list[tuple[int, int]]


def _no_pairs() -> defaultdict[str, Pairs]:
    return defaultdict(list)


@dataclass
class Findings:
    """What does not fit together in the files dumped so far, by the absolute name of the file."""

    index_mismatches: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Indexed offset -> last offset of the batch that stands there."""
    time_mismatches: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Indexed timestamp, largest of the batch."""
    out_of_order: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Indexed timestamp, the one before."""
    not_found: defaultdict[str, Pairs] = field(default_factory=_no_pairs)
    """Indexed offset, last offset of the batch that holds it, -1 where none does."""
    gaps: defaultdict[str, list[Int64Array]] = field(default_factory=lambda: defaultdict(list))
    """Offset, the one behind it; shape (2, gaps)."""

    def text(self) -> Iterator[str]:
        """All of it: for each kind and file a heading, with a line for each pair behind it."""
        # Kafka keeps these in a TreeMap with its order turned round.
        index_mismatches = {name: sorted(found.items(), reverse=True) for name, found in self.index_mismatches.items()}
        gaps = {name: _latest(found) for name, found in self.gaps.items()}
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
                yield "\n".join([head + name, *(line % pair for pair in kind[name])])


def _latest(gaps: list[Int64Array]) -> Pairs:
    """One gap for each offset before it, in their order: the last that was found, as a map keeps it."""
    before, after = np.concatenate(gaps, axis=1)
    order = np.argsort(before, kind="stable")
    before, after = before[order], after[order]
    latest = np.append(before[1:] != before[:-1], True)
    return list(zip(before[latest].tolist(), after[latest].tolist(), strict=True))
