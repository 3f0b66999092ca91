"""Tests that micro-batches and tasks divide the offsets in the same way as Spark's Kafka source."""

from __future__ import annotations

import itertools

import pytest

from lakelog.spark.shares import OffsetRange, Waiting, divided, limited


@pytest.mark.parametrize(
    ("most", "waiting", "taken"),
    [
        (10, [101, 11, 1], [8, 1, 1]),
        (50, [101, 11, 1], [44, 4, 1]),
        (113, [101, 11, 1], [101, 11, 1]),
        (1000, [101, 11, 1], [101, 11, 1]),
        (1, [5, 5, 5], [1, 1, 1]),
        (0, [5, 5], [0, 0]),
        (4, [0, 8], [0, 4]),
        (4, [-3, 8], [-3, 4]),
        (5, [0, 0], [0, 0]),
    ],
)
def test_a_limit_is_shared_by_what_waits(most: int, waiting: list[int], taken: list[int]) -> None:
    begun = {("t", number): 100 for number in range(len(waiting))}
    end = {("t", number): 100 + offsets for number, offsets in enumerate(waiting)}
    assert [offset - 100 for offset in limited(most, begun, end).values()] == taken


def test_a_partition_that_nobody_knows_the_begin_of_moves_to_its_end() -> None:
    assert limited(1, {("t", 0): 0}, {("t", 0): 9, ("t", 1): 7}) == {("t", 0): 1, ("t", 1): 7}


def test_a_stream_waits_for_more_but_not_at_first_and_not_too_long() -> None:
    waiting = Waiting(least=10, max_delay_ms=500)
    steps = [(1, 1000), (9, 1100), (10, 1200), (9, 1300), (9, 1699), (9, 1700), (0, 1800)]
    assert [waiting.waits(offsets, now_ms) for offsets, now_ms in steps] == [
        False,
        True,
        False,
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("sizes", "least", "most", "parts"),
    [
        ([5, 0, 3], None, None, [5, 3]),
        ([5, 3], 2, None, [5, 3]),
        ([8], 3, None, [2, 3, 3]),
        ([100, 10, 10], 6, None, [25, 25, 25, 25, 10, 10]),
        ([101, 11, 1], 5, None, [33, 34, 34, 11, 1]),
        ([1, 1], 9, None, [1, 1]),
        ([1, 2], 2_000_000_000, None, [1, 1, 1]),
        ([101, 11, 1], None, 20, [16, 17, 17, 17, 17, 17, 11, 1]),
        ([40], 1, 20, [20, 20]),
        ([], 4, 4, []),
    ],
)
def test_ranges_are_divided_for_tasks(sizes: list[int], least: int | None, most: int | None, parts: list[int]) -> None:
    ranges = [OffsetRange("t", number, 1000, 1000 + size) for number, size in enumerate(sizes)]
    found = divided(ranges, least, most)
    assert [each.size for each in found] == parts
    for whole in ranges:
        of_it = [each for each in found if each.partition == whole.partition]
        bounds = [whole.first, *(each.end for each in of_it)]
        assert [(each.first, each.end) for each in of_it] == list(itertools.pairwise(bounds))
