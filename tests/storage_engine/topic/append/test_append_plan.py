"""The plans of appends: the segments and positions of batches, and Kafka's conditions for a segment roll."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.config import TopicConfig
from storage_engine.errors import RecordTooLargeError, TransactionError
from storage_engine.log.growing_segment import GrowingSegment
from storage_engine.log.indexes.transaction_index import AbortedTransaction
from storage_engine.log.leader_epochs import begin_epoch
from storage_engine.log.partition_state import LeaderEpoch, PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.record.control import ControlType, TransactionMarker
from storage_engine.record.encoding import BatchProducer
from storage_engine.topic.append.append_plan import OpenSegment, appended, plan_append
from storage_engine.topic.append.staged_run import StagedRun
from storage_engine.topic.chain.topic_state import TopicState

NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100)


EMPTY = PartitionState()


def a_state(partition: PartitionState = EMPTY) -> TopicState:
    return TopicState(
        id="b", parent="a", version=7, written_ms=0, change="", topic="t", topic_id="T", configs={},
        partitions=(partition,),
    )  # fmt: skip


def a_run(*batches: tuple[int, int, int], key: str = "staged", position: int = 0) -> StagedRun:
    """Batches as (bytes, records, largest timestamp)."""
    sizes, records, timestamps = (np.array(column, np.int64) for column in zip(*batches, strict=True))
    return StagedRun(0, key, position, sizes, records, timestamps, timestamps)


def planned(config: TopicConfig, *runs: StagedRun, state: TopicState | None = None, open_segment=None, seed=0):
    opened = {0: open_segment} if open_segment else {}
    plan = plan_append(state or a_state(), config, {0: runs}, opened, NOW_MS, random.Random(seed))
    return plan.partitions[0]


def base_offsets(plan) -> list[int]:
    return [append.before.base_offset for append in plan.appends]


def test_a_segment_is_filled_to_the_last_byte_and_not_beyond() -> None:
    exact = planned(CONFIG, a_run((400, 1, 1), (600, 1, 1), (1, 1, 1)))
    assert base_offsets(exact) == [0, 2]
    assert exact.appends[0].after.size == 1000
    assert base_offsets(planned(CONFIG, a_run((400, 1, 1), (601, 1, 1)))) == [0, 1]


def test_time_is_event_time_from_the_first_batchs_largest_timestamp() -> None:
    config = replace(CONFIG, segment_ms=10)
    assert base_offsets(planned(config, a_run((1, 1, 100), (1, 1, 110), (1, 1, 111), (1, 1, 100)))) == [0, 2]
    assert base_offsets(planned(config, a_run((1, 1, 100), (1, 1, 5), (1, 1, 112)))) == [0, 2]


def test_without_timestamps_the_wall_clock_counts_since_the_segment_began() -> None:
    config = replace(CONFIG, segment_ms=10)
    for waited, bases in ((10, []), (11, [5])):
        growing = GrowingSegment(0, NOW_MS - waited, 100)
        growing.append(50, 4, -1, -1)
        state = a_state(PartitionState(high_watermark=5, segments=(Segment(0, "s", 50, 5, -1, 0, 0),)))
        plan = planned(config, a_run((1, 1, -1)), state=state, open_segment=OpenSegment("s", growing))
        assert [append.before.base_offset for append in plan.appends if append.is_new] == bases


def test_jitter_is_taken_off_the_time_once_a_segment() -> None:
    config = replace(CONFIG, segment_ms=1000, segment_jitter_ms=900)
    plan = planned(config, a_run((1, 1, 0), *((1, 1, time) for time in range(0, 3000, 10))), seed=3)
    spans = [append.after.largest_timestamp - append.after.first_timestamp for append in plan.appends]
    assert len(set(spans[:-1])) > 1
    assert all(100 <= span <= 1000 for span in spans[:-1])


def test_a_full_offset_index_rolls() -> None:
    config = replace(CONFIG, segment_bytes=10**6, segment_index_bytes=39)  # four entries of 8 bytes
    plan = planned(config, a_run(*((101, 1, 1),) * 12))
    assert base_offsets(plan) == [0, 5, 10]
    assert [len(append.after.offset_entries) for append in plan.appends] == [4, 4, 1]


def test_a_full_time_index_rolls_one_entry_early() -> None:
    config = replace(CONFIG, segment_bytes=10**6, segment_index_bytes=39)  # three entries of 12 bytes
    plan = planned(config, a_run(*((101, 1, time) for time in range(1, 9))))
    assert base_offsets(plan) == [0, 3, 6]
    assert [len(append.after.time_entries) for append in plan.appends] == [2, 2, 1]


def test_an_offset_that_four_bytes_do_not_hold_rolls() -> None:
    growing = GrowingSegment(0, NOW_MS, 100)
    growing.append(50, 2**31 - 3, 1, 1)
    part = PartitionState(high_watermark=2**31 - 2, segments=(Segment(0, "s", 50, 2**31 - 2, 1, 0, 0),))
    plan = planned(CONFIG, a_run((1, 2, 1), (1, 1, 1)), state=a_state(part), open_segment=OpenSegment("s", growing))
    assert [(append.is_new, append.before.base_offset) for append in plan.appends] == [(False, 0), (True, 2**31)]


def test_compacted_topics_roll_in_time_for_their_lag() -> None:
    config = replace(CONFIG, segment_ms=1000, max_compaction_lag_ms=10)
    run = a_run((1, 1, 100), (1, 1, 111))
    assert base_offsets(planned(config, run)) == [0]
    assert base_offsets(planned(replace(config, cleanup_policy=frozenset({"compact"})), run)) == [0, 1]


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, segment_bytes=10**6, max_message_bytes=1000)])
def test_a_batch_that_nothing_may_hold_is_refused(config) -> None:
    planned(config, a_run((1000, 1, 1)))
    with pytest.raises(RecordTooLargeError, match="a batch has 1001 bytes"):
        planned(config, a_run((1001, 1, 1)))


def test_an_open_segment_is_continued_only_where_it_is_the_active_one_with_all_its_bytes() -> None:
    growing = GrowingSegment(0, NOW_MS, 100)
    growing.append(50, 4, 1, 1)
    active = Segment(0, "s", 50, 5, 1, 4, 0)
    state = a_state(PartitionState(high_watermark=5, segments=(active,)))
    for name, size, is_new in (("s", 50, False), ("s", 49, True), ("other", 50, True)):
        grown = growing.copy()
        grown.size = size
        plan = planned(CONFIG, a_run((1, 1, 1)), state=state, open_segment=OpenSegment(name, grown))
        assert [append.is_new for append in plan.appends] == [is_new]


@given(
    runs=st.lists(
        st.lists(st.tuples(st.integers(70, 500), st.integers(1, 9), st.integers(-1, 50)), min_size=1, max_size=8),
        max_size=5,
    )
)
def test_every_batch_gets_one_place_in_the_order_given(runs) -> None:
    staged = [a_run(*batches, key=f"run{number}", position=1000 * number) for number, batches in enumerate(runs)]
    if not staged:
        assert plan_append(a_state(), CONFIG, {0: []}, {}, NOW_MS, random.Random()).partitions == ()
        return
    plan = planned(replace(CONFIG, segment_ms=40), *staged)
    offset = 0
    copied = []
    for append in plan.appends:
        position = 0
        assert append.is_new
        assert append.before.base_offset == offset
        for batch_slice in append.slices:
            assert (batch_slice.position, int(batch_slice.base_offsets[0])) == (position, offset)
            source = batch_slice.source
            batches = runs[int(batch_slice.key[3:])]
            starts = np.cumsum([0, *(size for size, _, _ in batches)]) + 1000 * int(batch_slice.key[3:])
            for size in batch_slice.sizes.tolist():
                batch = int(np.flatnonzero(starts == source)[0])
                assert batches[batch][0] == size
                copied.append((batch_slice.key, batch))
                offset += batches[batch][1]
                source += size
            position += batch_slice.size
        assert append.after.size == position <= CONFIG.segment_bytes
        assert append.after.end_offset == offset
    assert copied == [(run.key, batch) for run in staged for batch in range(len(run.sizes))]
    assert plan.high_watermark == offset == plan.records


def test_the_committed_partition_is_what_the_plan_says() -> None:
    plan = planned(CONFIG, a_run((600, 3, 9), (600, 2, 7)))
    after = appended(plan, PartitionState(), 4, NOW_MS)
    assert after.high_watermark == 5
    assert [tuple(segment)[0:1] + tuple(segment)[2:] for segment in after.segments] == [
        (0, 600, 3, 9, 2, NOW_MS, (), 9, -1, 9, 0),
        (3, 600, 5, 7, 4, NOW_MS, (), 7, -1, 7, 0),
    ]
    assert after.leader_epochs == (LeaderEpoch(4, 0),)
    assert len({segment.name for segment in after.segments}) == 2


def test_names_are_never_given_twice() -> None:
    names = {planned(CONFIG, a_run((1, 1, 1))).appends[0].name for _ in range(200)}
    assert len(names) == 200


@pytest.mark.parametrize(
    ("epochs", "new", "expected"),
    [
        ([], (0, 0), [(0, 0)]),
        ([(0, 0)], (0, 9), [(0, 0)]),
        ([(0, 0)], (1, 9), [(0, 0), (1, 9)]),
        ([(0, 0), (1, 9)], (2, 9), [(0, 0), (2, 9)]),
        ([(0, 0)], (1, 0), [(1, 0)]),
    ],
)
def test_a_new_leader_epoch_replaces_those_that_wrote_nothing(epochs, new, expected) -> None:
    entries = tuple(LeaderEpoch(*entry) for entry in epochs)
    assert begin_epoch(entries, *new) == tuple(LeaderEpoch(*entry) for entry in expected)


def of_producer(run: StagedRun, sequence: int, marker: TransactionMarker | None = None, epoch: int = 0) -> StagedRun:
    return replace(run, producer=BatchProducer(9, epoch, sequence, marker))


ABORT = TransactionMarker(ControlType.ABORT, 0)


def test_a_transactions_batches_and_its_end_are_counted_where_they_lie() -> None:
    data = of_producer(a_run((600, 3, 5), (600, 2, 4)), 0)
    marker = of_producer(a_run((78, 1, 8)), -1, ABORT, epoch=1)
    plan = planned(CONFIG, a_run((10, 1, 1)), data, a_run((200, 1, 2)), marker)
    assert [append.aborted for append in plan.appends] == [(), (AbortedTransaction(9, 1, 7, 8),)]
    assert plan.producers == (ProducerEntry(9, 1, -1, -1, 0, 8, 0, -1),)
    after = appended(plan, PartitionState(), 0, NOW_MS)
    assert after.producers == plan.producers
    assert after.last_stable_offset == after.high_watermark == 8
    (aborted,) = after.aborted_transactions()
    behind = appended(planned(CONFIG, a_run((10, 1, 1)), state=a_state(after)), after, 0, NOW_MS)
    assert tuple(behind.aborted_transactions()) == (aborted,)
    assert behind.producers == after.producers, "other appends leave them alone"


def test_an_open_transaction_holds_the_last_stable_offset_back() -> None:
    plan = planned(CONFIG, a_run((10, 4, 1)), of_producer(a_run((10, 3, 5), (10, 2, 9)), 0))
    assert plan.producers == (ProducerEntry(9, 0, 4, 8, 1, 9, -1, 4),)
    assert appended(plan, PartitionState(), 0, NOW_MS).last_stable_offset == 4


@pytest.mark.parametrize(
    ("known", "run"),
    [
        (None, of_producer(a_run((10, 1, 1)), 1)),  # its first batches are not there
        (None, of_producer(a_run((78, 1, 1)), -1, ABORT, epoch=1)),
        (ProducerEntry(9, 0, 4, 8, 1, 9, -1, 4), of_producer(a_run((10, 1, 1)), 4)),  # come before
        (ProducerEntry(9, 0, 4, 8, 1, 9, -1, 4), of_producer(a_run((10, 1, 1)), 6)),  # one is missing
        (ProducerEntry(9, 0, 4, 8, 1, 9, -1, 4), of_producer(a_run((78, 1, 1)), -1, ABORT, epoch=0)),
        (ProducerEntry(9, 1, -1, -1, 0, 9, 0, -1), of_producer(a_run((10, 1, 1)), 5)),  # ended
        (ProducerEntry(9, 1, -1, -1, 0, 9, 0, -1), of_producer(a_run((10, 1, 1)), 0)),
        (ProducerEntry(9, 1, -1, -1, 0, 9, 0, -1), of_producer(a_run((78, 1, 1)), -1, ABORT, epoch=1)),
    ],
)
def test_what_does_not_follow_what_is_known_of_the_producer_is_refused(
    known: ProducerEntry | None, run: StagedRun
) -> None:
    part = PartitionState(
        high_watermark=9, segments=(Segment(0, "s", 50, 9, 9, 8, 0),), producers=(known,) if known else ()
    )
    with pytest.raises(TransactionError, match="topic t, partition 0: the transaction of producer 9 is not open"):
        planned(CONFIG, run, state=a_state(part))
