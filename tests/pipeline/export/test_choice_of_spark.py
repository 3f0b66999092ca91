"""The choice between Spark and an export without a JVM, by the offsets that a run reads."""

from __future__ import annotations

import pytest

from pipeline.delta.export_plan import ExportPlan, PartitionOffsets
from pipeline.export.one_export import _offsets_above_compaction


@pytest.mark.parametrize(("compacted_end", "expected"), [(0, 90), (10, 90), (40, 60), (100, 0), (120, 0)])
def test_offsets_below_the_end_of_a_compaction_do_not_count(compacted_end: int, expected: int) -> None:
    ranges = {
        0: PartitionOffsets(0, 100, compacted_end=compacted_end),
        1: PartitionOffsets(0, 7),
        2: PartitionOffsets(3, 5),
    }
    plan = ExportPlan(None, {}, start={0: 10, 1: 7, 2: 3}, end={0: 100, 1: 7, 2: 5}, ranges=ranges)

    assert _offsets_above_compaction(plan) == expected + 2
