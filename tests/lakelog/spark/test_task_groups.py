"""How the tasks of an export share the segments of a topic."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from lakelog.spark.splits import Split, task_groups
from storage_engine.log.isolation import Isolation
from storage_engine.log.segment_reader import SegmentFile

MIB = 1 << 20


def split(partition: int, base: int, mib: int, offsets: int = 1000) -> Split:
    segment = SegmentFile(f"{partition}/{base}", base, mib * MIB, base + offsets)
    return Split("t", "id", partition, segment, base, base + offsets, Isolation.READ_COMMITTED)


def partitions_of(groups: list[list[Split]]) -> list[list[int]]:
    return [[number for number, _ in groupby(each.partition for each in group)] for group in groups]


@pytest.mark.parametrize(
    ("sizes", "by_key", "expected"),
    [
        # Large partitions are divided.
        ([640], False, [[0]] * 8),
        ([640], True, [[0]] * 2),
        ([300, 340], False, [[0]] * 4 + [[1]] * 4),
        ([300, 340], True, [[0], [1]]),
        # Partitions of about the size of a task are whole.
        ([80, 90, 70, 80, 80, 80, 80, 80], False, [[each] for each in range(8)]),
        ([80, 90, 70, 80, 80, 80, 80, 80], True, [[each] for each in range(8)]),
        # Small partitions share a task.
        ([10] * 16, False, [[each, each + 1] for each in range(0, 16, 2)]),
        # A small topic has a task for each core.
        ([2, 2, 2, 2], False, [[0, 1], [2, 3]]),
        ([6], False, [[0]] * 2),
        ([], False, []),
    ],
)
def test_tasks_have_about_the_same_size(sizes: list[int], expected: list[list[int]], *, by_key: bool) -> None:
    groups = task_groups([split(number, 0, mib) for number, mib in enumerate(sizes)], 2, by_key=by_key)
    assert partitions_of(groups) == expected
    if sizes:
        of_groups = [sum(each.size for each in group) for group in groups]
        assert max(of_groups) < 1.5 * min(of_groups)


@pytest.mark.parametrize("by_key", [False, True])
def test_each_offset_is_read_once_and_in_order(*, by_key: bool) -> None:
    segments = [split(0, 0, 100), split(0, 1000, 3, 7), split(0, 1007, 500), split(1, 0, 1), split(2, 0, 300, 5)]
    found = [each for group in task_groups(segments, 3, by_key=by_key) for each in group]
    assert [name for name, _ in groupby(each.segment.stem for each in found)] == [
        each.segment.stem for each in segments
    ]
    for stem, pieces in groupby(found, key=lambda each: each.segment.stem):
        of_segment = list(pieces)
        whole = next(each for each in segments if each.segment.stem == stem)
        assert (of_segment[0].first_offset, of_segment[-1].end_offset) == (whole.first_offset, whole.end_offset)
        assert all(one.end_offset == other.first_offset for one, other in pairwise(of_segment))
        assert all(each.first_offset < each.end_offset for each in of_segment)


def test_a_topic_without_bytes_has_one_task() -> None:
    assert partitions_of(task_groups([split(0, 0, 0), split(1, 0, 0)], 2)) == [[0, 1]]
