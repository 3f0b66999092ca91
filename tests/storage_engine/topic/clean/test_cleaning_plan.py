"""Cleaning plans: the contents of a plan, its exact application, and the changes after which a plan is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import ConfigError, StalePlanError, UnknownTopicError
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.log.producers.producer_snapshot import ProducerEntry
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.chain.topic_state import TopicState, Writer
from storage_engine.topic.clean.applying_plans import (
    check_current,
    cleaning_tasks_of,
    merge_tasks_of,
    retain_as_planned,
)
from storage_engine.topic.clean.cleaning_plan import (
    ALL_WORK,
    Action,
    PartitionPlan,
    Plan,
    Work,
    decode_plan,
    encode_plan,
    plan_topic,
    plan_topics,
)
from storage_engine.topic.clean.topic_compaction import compact_partitions, compact_topic
from storage_engine.topic.clean.topic_merging import merge_runs, merge_topic
from storage_engine.topic.clean.topic_retention import delete_records, retain_topic
from storage_engine.topic.readers.consumer_files import put_positions
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.storage_engine.topic.wrapped_storage import PlainStorage
from tests.stores import storage_at

START = 1_700_000_000_000


class Root:
    """Topics whose appends are segments of a record or more, a millisecond apart."""

    def __init__(self, storage: Storage) -> None:
        self.clock = ManualClock(START)
        self.topics = Topics(storage, BrokerConfig(), self.clock)

    def create(self, *appends: str, name: str = "t", partitions: int = 1, **configs: str) -> None:
        self.topics.create(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
        self.append(*appends, name=name)

    def append(self, *appends: str, name: str = "t", ahead_ms: int = 0) -> None:
        """Each append "a1 b2" has a record per word, whose first letter is the key."""
        for words in appends:
            at_ms = self.clock.now_ms() + ahead_ms
            rows = [Row(word[0].encode(), word.encode(), (), at_ms) for word in words.split()]
            state = self.topics.state(name)
            config = self.topics.config(state)
            append_records(self.topics.storage, self.topics.chain(name), config, self.clock, to_table(rows), 0)
            self.clock.advance(1)

    def part(self, name: str = "t") -> PartitionState:
        return self.topics.state(name).partitions[0]

    def plan(self, *work: Work, force: bool = False) -> Plan:
        return plan_topics(self.topics, [self.topics.state("t")], self.clock.now_ms(), work or ALL_WORK, force=force)

    def apply(self, plan: Plan) -> None:
        check_current(plan, self.topics)
        storage = self.topics.storage
        for each in plan.topics:
            chain = self.topics.chain(each.topic)
            retain_as_planned(chain, self.topics.broker, each)
            compact_partitions(storage, chain, cleaning_tasks_of(each, self.topics, chain.newest()))
            merge_runs(storage, chain, merge_tasks_of(each, self.topics, chain.newest()))

    def maintain(self) -> None:
        """What the maintenance job does to segments, in its order."""
        chain, storage = self.topics.chain("t"), self.topics.storage
        retain_topic(chain, self.topics.broker)
        config = self.topics.config(chain.newest())
        compact_topic(storage, chain, config, self.topics.broker, self.clock)
        if not config.compact:
            merge_topic(storage, chain, config)


@pytest.fixture
def root(tmp_path) -> Root:
    return Root(storage_at(tmp_path))


def only(plan: Plan) -> PartitionPlan:
    return plan.topics[0].partitions[0]


def steps(plan: PartitionPlan) -> list[tuple[int, str, str]]:
    return [(step.base_offset, step.action, step.rule) for step in plan.steps]


def blocks(plan: PartitionPlan) -> list[tuple[str, int, int]]:
    return [(block.kind, block.from_offset, block.segments) for block in plan.blocks]


def test_each_retention_rule_is_a_row_with_its_numbers(root) -> None:
    root.create("a", "b", "c", "d", "e", retention_ms="2")
    delete_records(root.topics.chain("t"), 0, 2)
    plan = only(root.plan(Work.RETENTION))
    assert steps(plan) == [(0, "delete", "start offset"), (1, "delete", "start offset"), (2, "delete", "time")]
    assert [(step.found, step.limit) for step in plan.steps] == [(1, 2), (2, 2), (3, 2)]
    assert (plan.log_start_offset, plan.log_start_offset_after) == (2, 3)
    assert (plan.segments_before, plan.segments_after, plan.exact) == (5, 2, True)
    assert plan.bytes_before - plan.bytes_after == sum(step.bytes for step in plan.steps) > 0
    assert [step.name for step in plan.steps] == [each.name for each in root.part().segments[:3]]


def test_size_is_a_row_with_what_there_was_and_the_limit(root) -> None:
    root.create("a", "b", "c")
    size = root.part().size
    root.topics.alter("t", None, {"retention.bytes": str(size - 1)})
    assert only(root.plan()).steps == ()
    root.topics.alter("t", None, {"retention.bytes": str(size * 2 // 3)})
    assert [(step.rule, step.found, step.limit) for step in only(root.plan()).steps] == [("size", size, size * 2 // 3)]


def test_a_future_timestamp_blocks_until_it_is_old_itself(root) -> None:
    root.create(retention_ms="2")
    root.append("a", ahead_ms=1000)
    root.append("b", "c", "d", "e")
    plan = only(root.plan(Work.RETENTION))
    assert (steps(plan), blocks(plan)) == ([], [("future timestamp", 1, 2)])
    assert (plan.blocks[0].found, plan.blocks[0].limit, plan.blocks[0].until_ms) == (-995, 2, START + 1002)
    assert plan.blocks[0].bytes == sum(each.size for each in root.part().segments[1:3])


def test_a_consumer_blocks_what_it_has_not_read_and_refuses_the_plan_once_it_reads_on(root) -> None:
    root.create("a", "b", "c", "d", retention_ms="1", retention_respect_consumers="true", consumer_max_hold_ms="50")
    reads(root, 1)
    plan = root.plan(Work.RETENTION)
    assert (steps(only(plan)), blocks(only(plan))) == ([(0, "delete", "time")], [("consumer", 1, 2)])
    block = only(plan).blocks[0]
    assert (block.consumers, block.found, block.limit, block.until_ms) == (("export",), 1, 2, START + 1 + 1 + 50)
    check_current(plan, root.topics)
    reads(root, 2)
    with pytest.raises(StalePlanError, match=r"planned: delete the segments at 0; now decided: .* 0, 1\."):
        check_current(plan, root.topics)


def reads(root: Root, position: int) -> None:
    state, now_ms = root.topics.state("t"), root.clock.now_ms()
    put_positions(root.topics.storage, state, "export", "test", {0: position}, now_ms, holds_back=True)


def test_compaction_is_decided_on_what_retention_leaves(root) -> None:
    root.create("a1", "a2", "a3", "a4", cleanup_policy="compact,delete", retention_ms="3")
    plan = only(root.plan())
    assert steps(plan) == [(0, "delete", "time"), (1, "clean", "dirty ratio"), (2, "clean", "dirty ratio")]
    assert (plan.steps[-1].found, plan.steps[-1].limit) == (1.0, 0.5)
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset) == (1, 3)
    assert (plan.segments_after, plan.exact) == (3, False)
    assert blocks(plan) == [("active segment", 3, 1)]


def test_a_clean_ratio_is_what_blocks_and_force_does_not_ask(root) -> None:
    root.create("a1 b1 c1 d1", "e1", "f1", cleanup_policy="compact", min_cleanable_dirty_ratio="0.5")
    chain = root.topics.chain("t")
    compact_topic(
        root.topics.storage, chain, root.topics.config(chain.newest()), root.topics.broker, root.clock, force=True
    )
    root.append("g1")
    plan = only(root.plan())
    assert (steps(plan), blocks(plan)[0]) == ([], ("min.cleanable.dirty.ratio", 5, 1))
    assert 0 < plan.blocks[0].found < plan.blocks[0].limit == 0.5
    forced = only(root.plan(force=True))
    assert {step.rule for step in forced.steps} == {"forced"}


def test_max_compaction_lag_is_a_row_with_the_age(root) -> None:
    root.create("a1", "a2", cleanup_policy="compact", min_cleanable_dirty_ratio="1.0", max_compaction_lag_ms="100")
    root.clock.advance(100)
    plan = only(root.plan())
    assert steps(plan) == [(0, "clean", "max.compaction.lag.ms")]
    assert (plan.steps[0].found, plan.steps[0].limit) == (102, 100)


def test_min_compaction_lag_blocks_until_the_first_is_old_enough(root) -> None:
    root.create("a1", "a2", "a3", "a4", cleanup_policy="compact", min_compaction_lag_ms="4")
    plan = only(root.plan())
    assert steps(plan) == [(0, "clean", "dirty ratio")]
    assert blocks(plan) == [("min.compaction.lag.ms", 1, 2), ("active segment", 3, 1)]
    assert (plan.blocks[0].found, plan.blocks[0].limit, plan.blocks[0].until_ms) == (3, 4, START + 1 + 4)


def test_an_open_transaction_blocks_from_the_segment_in_which_it_begins(root) -> None:
    state = with_segments(root.topics, 5, cleanup_policy="compact")
    begun = ProducerEntry(7, 0, 0, 2500, 1, START, 0, 2400)
    part = state.partitions[0].model_copy(update={"producers": (begun,)})
    plan = plan_topic(root.topics, state.with_partitions({0: part}), START).partitions[0]
    assert [step.base_offset for step in plan.steps] == [0, 1000]
    assert blocks(plan) == [("open transaction", 2000, 2), ("active segment", 4000, 1)]
    assert (plan.blocks[0].found, plan.blocks[0].limit) == (2400, 5000)


def test_expired_delete_horizons_are_a_row_with_the_time_since_the_first(root) -> None:
    state = with_segments(root.topics, 4, cleanup_policy="compact", cleaner_clean_expired_horizons="true")
    part = state.partitions[0]
    first, second, *rest = part.segments
    horizons = (first._replace(horizon_ms=START + 50), second._replace(horizon_ms=START + 20), *rest)
    clean = part.model_copy(update={"segments": horizons, "first_dirty_offset": 3000})
    plan = plan_topic(root.topics, state.with_partitions({0: clean}), START + 60).partitions[0]
    assert {(step.action, step.rule, step.found, step.limit) for step in plan.steps} == {
        ("clean", "expired delete horizons", 40, 0)
    }


def test_merges_say_what_they_become_part_of(root) -> None:
    root.create("a", "b", "c", "d")
    plan = only(root.plan())
    assert steps(plan) == [(base, "merge", "small neighbours") for base in range(3)]
    assert {step.into for step in plan.steps} == {0}
    assert (plan.segments_before, plan.segments_after, plan.bytes_after) == (4, 2, plan.bytes_before)


def test_a_plan_is_whole_again_after_its_document(root) -> None:
    root.create("a1", "a2", "a3", "a4", cleanup_policy="compact,delete", retention_ms="3")
    plan = root.plan()
    assert decode_plan(encode_plan(plan), "p.json") == plan
    for damaged in (b"", b"{}", encode_plan(plan)[:-9], encode_plan(plan).replace(b'"format":1', b'"format":2')):
        with pytest.raises(ConfigError, match=r"^p\.json: expected a plan"):
            decode_plan(damaged, "p.json")


def test_what_was_printed_goes_and_nothing_else(root) -> None:
    root.create("a1", "a2", "b1", "c1", "d1", cleanup_policy="compact,delete", retention_ms="4")
    plan = decode_plan(encode_plan(root.plan()), "p.json")
    gone = {step.name for step in only(plan).steps}
    assert {step.action for step in only(plan).steps} == {Action.DELETE, Action.CLEAN}
    root.clock.advance(1_000_000)  # by now retention would take all
    root.append("e1", "f1")
    kept = {each.name for each in root.part().segments} - gone
    root.apply(plan)
    left = {each.name for each in root.part().segments}
    assert not left & gone
    assert kept <= left
    assert len(kept) == 3
    assert root.part().log_start_offset == only(plan).log_start_offset_after
    assert root.part().first_dirty_offset == only(plan).first_uncleanable_offset


def test_a_grown_active_segment_refuses_only_the_plan_that_deletes_it(root) -> None:
    root.create("a", "b", retention_ms="0")
    spared, taken = root.plan(Work.MERGING), root.plan(Work.RETENTION)
    assert [step.base_offset for step in only(taken).steps] == [0, 1]
    grow(root)
    check_current(spared, root.topics)
    with pytest.raises(StalePlanError, match=r"partition 0: segment .* has grown"):
        check_current(taken, root.topics)


def grow(root: Root) -> None:
    """Let the newest segment have more committed bytes, as a writer that appends to it does."""

    def change(state: TopicState) -> TopicState:
        part = state.partitions[0]
        newest = part.segments[-1]
        grown = newest._replace(size=newest.size + 100, end_offset=newest.end_offset + 1)
        update = {"segments": (*part.segments[:-1], grown), "high_watermark": grown.end_offset}
        return state.with_partitions({0: part.model_copy(update=update)})

    root.topics.chain("t").commit(change, "grown")


def swapped(root: Root) -> None:
    chain = root.topics.chain("t")
    merge_topic(root.topics.storage, chain, root.topics.config(chain.newest()))


def created_again(root: Root) -> None:
    root.topics.delete("t")
    root.create("a", "b", "c", "d", retention_ms="100")


@pytest.mark.parametrize(
    ("moved_on", "said"),
    [
        (swapped, "partition 0: planned: delete the segments at 0, 1; now decided: "),
        (
            lambda root: retain_topic(root.topics.chain("t"), BrokerConfig()),
            "partition 0: planned: .*; now .*: nothing",
        ),
        (lambda root: delete_records(root.topics.chain("t"), 0, 3), "planned: .* now decided: .* 0, 1, 2"),
        (
            lambda root: root.topics.alter("t", None, {"retention.ms": "90"}),
            "t: retention.ms was 100 in the plan, and is now 90",
        ),
        (created_again, "topic t: the topic of the plan was deleted"),
    ],
)
def test_a_plan_is_refused_where_the_log_has_moved_on(root, moved_on, said) -> None:
    root.create("a", "b", retention_ms="100")
    root.clock.advance(1000)
    root.append("c", "d")
    plan = root.plan(Work.RETENTION)
    assert [step.base_offset for step in only(plan).steps] == [0, 1]
    moved_on(root)
    before = root.topics.state("t")
    with pytest.raises(StalePlanError, match=said):
        root.apply(plan)
    with pytest.raises(StalePlanError, match=said):  # by itself, in the commit that would drop them
        retain_as_planned(root.topics.chain("t"), root.topics.broker, plan.topics[0])
    assert root.topics.state("t") == before


def test_a_plan_of_compaction_is_refused_where_its_range_was_compacted(root) -> None:
    root.create("a1", "a2", "a3", cleanup_policy="compact")
    plan = root.plan()
    root.append("a4")
    check_current(plan, root.topics)
    root.maintain()
    with pytest.raises(StalePlanError, match=r"no longer exists|planned: clean the segments at 0, 1"):
        cleaning_tasks_of(plan.topics[0], root.topics, root.topics.state("t"))
    root.topics.delete("t")
    with pytest.raises(UnknownTopicError):
        check_current(plan, root.topics)


@settings(max_examples=10, deadline=None)
@given(
    appends=st.lists(st.sampled_from(["a1", "b1 c1", "a2 b2 c2 d2", "d3"]), max_size=5),
    policy=st.sampled_from(["delete", "compact", "compact,delete"]),
    retention_ms=st.integers(0, 6),
    later=st.integers(0, 3),
)
def test_an_applied_plan_leaves_what_the_jobs_leave(tmp_path_factory, appends, policy, retention_ms, later) -> None:
    left = []
    for applied in (True, False):
        root = Root(storage_at(tmp_path_factory.mktemp("root")))
        root.create(*appends, cleanup_policy=policy, retention_ms=str(retention_ms))
        plan = root.plan()
        if applied:
            root.append(*["z1"] * later)  # is looked past
            root.apply(plan)
        else:
            root.maintain()
            root.append(*["z1"] * later)
        part = root.part()
        segments = [(each.base_offset, each.size, each.end_offset) for each in part.segments]
        left.append((segments, part.log_start_offset, part.first_dirty_offset))
        if only(plan).exact:
            planned = only(plan)
            assert part.size - planned.bytes_after == sum(each.size for each in part.segments[planned.segments_after :])
    assert left[0] == left[1]


class CountingReads(PlainStorage):
    """Counts what is read of the data."""

    reads = 0

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads += key.startswith("data/")
        return super().read(key, start, length)


def with_segments(topics: Topics, count: int, **configs: str) -> TopicState:
    """A topic whose segments exist only in the state, not as files. They have 1 MB and are one minute apart."""
    segments = tuple(
        Segment(
            number * 1000, f"s{number}", 10**6, number * 1000 + 1000, START + number * 60_000, number * 1000 + 999, START,
            first_timestamp=START + number * 60_000,
        )
        for number in range(count)
    )  # fmt: skip
    part = PartitionState(high_watermark=count * 1000, segments=segments)
    overrides = {key.replace("_", "."): value for key, value in configs.items()}
    return topics.begin("many", "id", [part], overrides, Writer(), "made")


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        ({"retention_ms": "18000000"}, {Action.DELETE, Action.MERGE}),
        ({"retention_bytes": "5000000000", "retention_ms": "-1"}, {Action.DELETE, Action.MERGE}),
        (
            {"cleanup_policy": "compact", "max_compaction_lag_ms": "600000000", "min_cleanable_dirty_ratio": "1.0"},
            {Action.CLEAN},
        ),
    ],
)
def test_ten_thousand_segments_are_decided_without_opening_one(tmp_path, configs, found) -> None:
    storage = CountingReads(storage_at(tmp_path))
    topics = Topics(storage, BrokerConfig(), ManualClock(START))
    state = with_segments(topics, 10_000, **configs)
    now_ms = START + 10_001 * 60_000
    plan = plan_topic(topics, state, now_ms)
    assert {step.action for step in plan.partitions[0].steps} == found
    assert storage.reads == 0
