"""Tests that appends over time are grouped in intervals, and that no append is lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakelog.report.throughput import MOST_INTERVALS, batch_sizes, rates
from lakelog.report.topic_changes import Change
from storage_engine.topic.chain.topic_state import Writer
from tests.lakelog.report.roots import NOW


def change(written_ms: int, records: int) -> Change:
    return Change(1, written_ms, 1000, "append", records, records * 100, 0, {}, Writer())


CHANGES = st.lists(st.builds(change, st.integers(0, 2**62), st.integers(0, 10**9)), max_size=60)


@given(CHANGES)
def test_no_record_is_lost_and_intervals_follow_one_another(changes: list[Change]) -> None:
    for shown in (rates(changes), batch_sizes(changes)):
        assert len(shown) <= MOST_INTERVALS
        assert sum(each.records for each in shown) == sum(each.records for each in changes)
        assert sum(each.appends for each in shown) == sum(each.records > 0 for each in changes)
        assert max((each.largest for each in shown), default=0) == max((each.records for each in changes), default=0)
        assert all(each.end_ms == after.start_ms for each, after in pairwise(shown))
        if shown:
            assert shown[0].appends
            assert shown[-1].appends


def test_a_steady_stream_has_a_steady_rate() -> None:
    stream = [change(NOW + number * 2000, 500) for number in range(30)]
    shown = rates(stream)
    assert all(each.records_per_second == 250 for each in shown[1:-1])
    assert max(each.appends for each in batch_sizes(stream)) == 1


def test_one_append_is_reported_over_a_second() -> None:
    (shown,) = rates([change(NOW + 700, 42)])
    assert (shown.end_ms - shown.start_ms, shown.records_per_second, shown.mean) == (1000, 42, 42)


def test_what_appends_nothing_is_no_append() -> None:
    assert rates([change(NOW, 0)]) == ()
