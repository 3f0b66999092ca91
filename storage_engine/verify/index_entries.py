"""Defines the entries of an .index or a .timeindex for a check, and the findings about these entries.

Entries are not trusted here: a file can end within an entry, or with zeros. index_check compares the entries with the
batches of the .log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_engine.verify.findings import Finding, Kind

DERIVABLE = "this file can be rebuilt from the .log: by --repair, or by a broker after you remove the file"


@dataclass(frozen=True)
class IndexRules:
    """The rules that an index must follow.

    closed: the segment gets no more batches, so the index is trimmed and the .timeindex has its closing entry.
    ahead: the index is under data/ of a root. It may have entries for bytes after the end of the log, which were written
        but never committed. It must have all entries for the bytes before this end, and no zeros after its entries.
    """

    closed: bool
    ahead: bool = False


class IndexEntries:
    """The entries of an index file, without the zeros after them.

    incomplete: the bytes of an incomplete entry at the end, if the rules allow such an entry.
    """

    def __init__(self, data: bytes, file: str, dtype: np.dtype[Any], rules: IndexRules) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.size = dtype.itemsize
        self._whole = whole = len(data) // self.size * self.size
        self.incomplete = data[whole:]
        zeros_end = whole
        if rules.ahead and not any(self.incomplete):
            self.incomplete, zeros_end = b"", len(data)
        if not rules.ahead:
            self.refuse_incomplete()
        rows = np.frombuffer(data[:whole], dtype)
        first, second = (rows[name].astype(np.int64) for name in dtype.names or ())
        used = np.flatnonzero((first != 0) | (second != 0))
        # A single entry of zeros is a real entry: timestamp 0 at the base offset.
        kept = int(used[-1]) + 1 if len(used) else int(len(rows) == 1)
        if kept * self.size < zeros_end and (rules.closed or rules.ahead):
            self.problem(
                kept * self.size, "no zeros after the last entry", f"{zeros_end - kept * self.size} bytes of zeros"
            )
        self.first, self.second = first[:kept], second[:kept]

    def __len__(self) -> int:
        return len(self.first)

    def problem(self, position: int, expected: str, found: str) -> None:
        self.findings.append(Finding(Kind.INDEX, self.file, position, expected, found, DERIVABLE))

    def refuse_incomplete(self, lowest: bytes = b"") -> None:
        """Report an incomplete entry.

        Args:
            lowest: the lowest value that the first field of a further entry can have. If an incomplete entry can be the
                beginning of such an entry, it is allowed. If `lowest` is empty, no incomplete entry is allowed.
        """
        begun = self.incomplete[: len(lowest)]
        if self.incomplete and (not lowest or begun < lowest[: len(begun)]):
            self.problem(
                self._whole, f"entries of {self.size} bytes", f"{len(self.incomplete)} bytes of an incomplete entry"
            )

    def wrong(self, rows: npt.NDArray[np.bool_], expected: str, of: str) -> None:
        """Add one finding for each run of wrong entries."""
        for start, end in _runs(rows):
            found = f"{of} {self.first[start]} and {self.second[start]}"
            more = f", and {end - start - 1} wrong entries after it" if end - start > 1 else ""
            self.problem(start * self.size, expected, found + more)

    def first_difference(self, others: npt.NDArray[np.int64]) -> int | None:
        """The first row of other ascending entries, shape (entries, 2), that differs from, or is missing in, this index."""
        both = min(len(others), len(self))
        differs = (self.first[:both] != others[:both, 0]) | (self.second[:both] != others[:both, 1])
        if differs.any():
            return int(differs.argmax())
        return both if both < len(others) else None


def _runs(rows: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], rows.astype(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
