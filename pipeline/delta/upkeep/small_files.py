"""Decides whether small files of a table are joined, and which files. This module is a pure function: its result
depends only on the sizes of the files.

A table with many files is slow to open and slow to read. But a run must not join all files, because then each run would
copy the rows of all earlier runs again. So a file is joined only if all smaller files together are at least as large as
this file. With this rule, each copy of a row goes into a file that is at least twice as large as the file of the
previous copy. So each row is copied only a few times. The table keeps only a few files, and each file is larger than
all smaller files together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

_ALWAYS_BELOW = 1 << 20
"""Files below this size are joined in any case, because copying them costs almost nothing."""


@dataclass(frozen=True)
class SmallFileRule:
    """When a table's files are joined.

    files: the table has more small files than this number.
    size: a file with fewer bytes than this is small. Joined files have up to twice this size.
    """

    files: int
    size: int


MOST_DELETED = 0.2
"""If a larger share of the rows of a file is deleted, the file is written again without these rows. Until then, readers
read and skip the deleted rows. Writing the file costs as much as the rows that are left."""


def decide_joins(sizes: Mapping[str, int], rule: SmallFileRule) -> list[list[str]]:
    """The files to join: each list becomes one file.

    Args:
        sizes: the bytes of each file of the table, by name.
    """
    small = sorted((size, name) for name, size in sizes.items() if size < rule.size)
    if len(small) <= rule.files:
        return []
    sums = accumulate((size for size, _ in small), initial=0)  # the bytes of the files before each file
    fits = [size <= max(before, _ALWAYS_BELOW) for (size, _), before in zip(small, sums, strict=False)]
    joins: list[list[str]] = [[]]
    filled = 0
    for size, name in small[: max((number for number, fit in enumerate(fits, 1) if fit), default=0)]:
        if filled + size > 2 * rule.size:
            joins.append([])
            filled = 0
        joins[-1].append(name)
        filled += size
    return [each for each in joins if len(each) > 1]
