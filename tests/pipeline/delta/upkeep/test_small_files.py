"""Which small files of a Delta table are joined."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.delta.upkeep.small_files import SmallFileRule, decide_joins

KIB, MIB = 1 << 10, 1 << 20
RULE = SmallFileRule(files=4, size=32 * MIB)


def joined(sizes: Sequence[int], rule: SmallFileRule = RULE) -> list[list[int]]:
    """The sizes of the files that are joined."""
    found = decide_joins({f"{number:05d}": size for number, size in enumerate(sizes)}, rule)
    return [[sizes[int(name)] for name in names] for names in found]


def test_few_small_files_stay() -> None:
    assert joined([]) == []
    assert joined([KIB] * 4 + [100 * MIB] * 9) == []


def test_small_files_are_joined() -> None:
    assert joined([KIB] * 5) == [[KIB] * 5]
    assert joined([100 * MIB] + [3 * MIB] * 5) == [[3 * MIB] * 5]
    assert joined([KIB, 900 * KIB, 2 * KIB, KIB, KIB]) == [[KIB, KIB, KIB, 2 * KIB, 900 * KIB]]


def test_a_file_that_is_larger_than_all_smaller_ones_together_is_not_copied() -> None:
    assert joined([20 * MIB] + [KIB] * 5) == [[KIB] * 5]
    assert joined([20 * MIB] + [5 * MIB] * 4) == [[5 * MIB] * 4 + [20 * MIB]]
    assert joined([20 * MIB] + [5 * MIB - 1] * 4, SmallFileRule(3, 32 * MIB)) == [[5 * MIB - 1] * 4]
    assert joined([2 * MIB, 6 * MIB, 18 * MIB], SmallFileRule(2, 32 * MIB)) == []


def test_joined_files_have_at_most_twice_the_size_of_a_small_one() -> None:
    assert joined([30 * MIB] * 9 + [29 * MIB] * 2, SmallFileRule(4, 31 * MIB)) == [
        [29 * MIB] * 2,
        *[[30 * MIB] * 2] * 4,
    ]


def test_few_files_stay_and_each_byte_is_copied_a_few_times() -> None:
    chance = random.Random(1)
    rule = SmallFileRule(files=15, size=32 * MIB)
    files: list[int] = []
    written = copied = 0
    for _ in range(20_000):
        files.append(chance.randrange(KIB, 500 * KIB))
        written += files[-1]
        for sizes in joined(files, rule):
            copied += sum(sizes)
            for size in sizes:
                files.remove(size)
            files.append(sum(sizes))
        assert sum(size < rule.size for size in files) <= rule.files
    assert copied < 5 * written
