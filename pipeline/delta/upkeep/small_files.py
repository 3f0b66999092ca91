"""Decides whether the small files of a table are joined, and which of them. This module is a pure function of sizes.

A table with many files is slow to open and slow to read. But if each run joined all files, each run would copy the rows
of all earlier runs again. So a file is joined only if the smaller files together are as large as the file itself. Each
copy of a row then lands in a file that is at least twice as large, so a row is copied a few times at most. What stays
is a short list of files, each larger than all smaller ones together.

deltalake joins every file that is smaller than a target size, into files of about the target size. So the decision is
one number, the target size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

_ALWAYS_BELOW = 1 << 20
"""Files below this size are joined in any case, because their copies cost next to nothing."""


@dataclass(frozen=True)
class SmallFileRule:
    """When a table's files are joined.

    files: the table has more small files than this number.
    size: a file with fewer bytes is small. Joined files have up to twice this size.
    """

    files: int
    size: int


@dataclass(frozen=True)
class Compaction:
    """The files to join.

    files, size: the number of these files, and their bytes.
    target_size: all files with fewer bytes are joined.
    """

    files: int
    size: int
    target_size: int


def decide_compaction(sizes: Iterable[int], rule: SmallFileRule) -> Compaction | None:
    """What to join of a table with files of these sizes; None if nothing is to be joined."""
    ordered = sorted(sizes)
    small = [each for each in ordered if each < rule.size]
    if len(small) <= rule.files:
        return None
    sums = list(accumulate(small, initial=0))  # sums[n]: bytes of the n smallest files
    joined = max((number for number, size in enumerate(small) if size <= sums[number]), default=0)
    target = min(max(sums[joined + 1] + 1, _ALWAYS_BELOW), 2 * rule.size)
    below = [each for each in ordered if each < target]
    return Compaction(len(below), sum(below), target) if len(below) > 1 else None
