"""The positions of a source in a topic's state: which batches are accepted, which batches are refused, and that two
sources stay separate.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import (
    BatchRefusedError,
    FencedError,
    PositionsError,
    WriterRefusedError,
)
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.committed_positions import (
    LONGEST_SOURCE_PARTITION,
    MOST_SOURCE_PARTITIONS,
    Advance,
    positions_of,
    source_partition,
)
from storage_engine.topic.append.staged_list import StagedBatch, StagedTopic, put_list, read_list, waiting_topics
from storage_engine.topic.append.staged_run import StagingWriter, by_partition
from storage_engine.topic.append.topic_writer import (
    AcceptedCheckpoint,
    BatchIdentity,
    Committed,
    TopicWriter,
    lineage,
    take_over,
)
from storage_engine.topic.chain.topic_state import CommittedBatch, TopicState
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

SOURCE = "kafka b1:9092"


class Query:
    """A query whose batches hold no records: what is looked at is the state."""

    def __init__(
        self,
        topics: Topics,
        name: str,
        source: str | None = SOURCE,
        *,
        reads: str = "",
        take_over_others: bool = False,
        accepted: AcceptedCheckpoint | None = None,
    ) -> None:
        self.chain = topics.chain("t")
        self.name, self.source = name, source
        epoch = take_over(self.chain, name, take_over_others, source, reads, accepted).writer.epoch
        config = topics.config(self.chain.newest())
        self.writer = TopicWriter(topics.storage, self.chain, config, topics.clock, epoch)

    def batch(self, number: int, offsets: str = "h", **highest: int) -> Committed:
        batch = BatchIdentity(self.name, number, f"{offsets}{number}", self.source)
        if self.source is None:
            return self.writer.append({}, batch)
        return self.advance(batch, highest)

    def advance(self, batch: BatchIdentity, highest: Mapping[str, int]) -> Committed:
        assert self.source is not None
        held = dict(positions_of(self.chain.newest(), self.source))
        return self.writer.append({}, batch, Advance(self.source, held, highest))

    @property
    def state(self) -> TopicState:
        return self.chain.newest()


@pytest.fixture
def topics(tmp_path) -> Topics:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(1_700_000_000_000))
    topics.create("t", 1, {})
    return topics


def test_the_highest_position_of_each_source_partition_is_kept(topics) -> None:
    query = Query(topics, "q")
    query.batch(0, a=5, b=7)
    query.batch(1, a=3, c=0)
    query.batch(2)
    assert topics.state("t").positions == {SOURCE: {"a": 5, "b": 7, "c": 0}}


def test_with_positions_a_checkpoint_that_went_back_goes_on_and_the_same_batch_again_is_skipped(topics) -> None:
    query = Query(topics, "q")
    query.batch(0, a=5)
    query.batch(1, a=9)

    assert not query.batch(0, "yesterday", a=6).skipped
    assert query.batch(0, "yesterday", a=6).skipped
    assert not query.batch(1, "yesterday", a=12).skipped

    assert topics.state("t").positions == {SOURCE: {"a": 12}}


def test_a_source_without_recorded_positions_is_no_leave_to_go_back(topics) -> None:
    Query(topics, "q", None).batch(0)
    query = Query(topics, "q")  # its positions are kept from now on
    with pytest.raises(BatchRefusedError, match="--accept-new-checkpoint"):
        query.batch(0, "other", a=1)


def test_a_new_query_of_the_same_source_takes_over_and_fences_the_old_one(topics) -> None:
    old = Query(topics, "old")
    old.batch(0, a=5)
    new = Query(topics, "new")
    with pytest.raises(FencedError, match="query new"):
        old.batch(1, a=6)
    new.batch(0, a=8)
    assert topics.state("t").positions == {SOURCE: {"a": 8}}
    again = Query(topics, "old")
    again.batch(1, a=7)
    assert topics.state("t").positions == {SOURCE: {"a": 8}}


@pytest.mark.parametrize(
    ("recorded", "offered"), [(None, None), (None, SOURCE), (SOURCE, None), (SOURCE, "kafka b2:9092")]
)
def test_a_new_query_that_the_positions_say_nothing_about_is_refused_with_the_choices(
    topics, recorded, offered
) -> None:
    Query(topics, "old", recorded).batch(0, a=5)
    version = topics.state("t").version
    with pytest.raises(WriterRefusedError) as refused:
        Query(topics, "new", offered)
    for choice in ("from its own checkpoint", "--accept-new-checkpoint", "--take-over"):
        assert choice in refused.value.remedy
    assert topics.state("t").version == version


def test_a_new_query_that_reads_something_else_of_the_source_is_another_stream(topics) -> None:
    Query(topics, "old", reads="subscribe orders").batch(0, a=5)
    with pytest.raises(
        WriterRefusedError, match=r"This query reads kafka b1:9092 subscribe clicks; .*positions of .*orders"
    ):
        Query(topics, "new", reads="subscribe clicks")
    Query(topics, "new", reads="subscribe orders")


def test_a_source_that_has_committed_nothing_yet_is_no_leave_to_take_over(topics) -> None:
    Query(topics, "old")
    with pytest.raises(WriterRefusedError, match="the topic stores the positions of no source"):
        Query(topics, "new")


def test_two_sources_keep_positions_of_their_own(topics) -> None:
    Query(topics, "one", "first").batch(0, a=5)
    other = Query(topics, "two", "second", take_over_others=True)
    other.batch(0, a=2)
    assert topics.state("t").positions == {"first": {"a": 5}, "second": {"a": 2}}
    with pytest.raises(WriterRefusedError):
        Query(topics, "three", "first")  # the running writer is of another source


def test_an_accepted_checkpoint_makes_the_topic_forget(topics) -> None:
    Query(topics, "old").batch(7, a=5)
    new = Query(topics, "new", accepted=AcceptedCheckpoint())
    assert (new.state.queries, new.state.positions) == ({}, {})
    new.batch(0, a=1)
    assert topics.state("t").positions == {SOURCE: {"a": 1}}


def test_a_checkpoint_that_is_accepted_as_it_stands_goes_on_from_there(topics) -> None:
    Query(topics, "q", None).batch(9)
    query = Query(topics, "q", None, accepted=AcceptedCheckpoint((4, "h4")))
    assert query.batch(4).skipped
    assert not query.batch(5, "other").skipped
    with pytest.raises(BatchRefusedError):
        query.batch(5, "third")


def test_rows_held_against_other_positions_are_never_committed(topics) -> None:
    query = Query(topics, "q")
    query.batch(0, a=5)
    stale = Advance(SOURCE, {}, {"a": 9})
    with pytest.raises(BatchRefusedError, match="positions of the source changed"):
        query.writer.append({}, BatchIdentity("q", 1, "h1", SOURCE), stale)
    assert topics.state("t").positions == {SOURCE: {"a": 5}}
    query.batch(1, a=9)


@pytest.mark.parametrize(
    "highest",
    [
        {str(number): 1 for number in range(MOST_SOURCE_PARTITIONS + 1)},
        {"x" * (LONGEST_SOURCE_PARTITION + 1): 1},
    ],
)
def test_a_source_without_a_fixed_set_of_partitions_is_refused(topics, highest: Mapping[str, int]) -> None:
    query = Query(topics, "q")
    first = BatchIdentity("q", 0, "h0", SOURCE)
    with pytest.raises(PositionsError, match=r"ingest\.position\.columns"):
        query.advance(first, highest)
    assert topics.state("t").positions == {}
    query.advance(first, {str(number): 1 for number in range(MOST_SOURCE_PARTITIONS)})


def test_positions_go_with_the_topic(topics) -> None:
    Query(topics, "q").batch(0, a=5)
    topics.delete("t")
    topics.create("t", 1, {})
    assert topics.state("t").positions == {}


def test_a_lineage_tells_batches_of_one_number_apart_and_stays_in_a_replay(topics) -> None:
    state = Query(topics, "q").state

    def known(batch_id: int, offsets_hash: str, of: str) -> TopicState:
        done = CommittedBatch(batch_id=batch_id, offsets_hash=offsets_hash, lineage=of)
        return state.model_copy(update={"queries": {"q": done}})

    assert lineage(state, BatchIdentity("q", 0, "a")) == ""
    assert lineage(known(4, "a", "before"), BatchIdentity("q", 5, "b")) == "before"
    gone_back = BatchIdentity("q", 3, "b")
    assert lineage(known(4, "a", "before"), gone_back) not in ("", "before")
    assert lineage(known(4, "a", "before"), gone_back) == lineage(known(4, "a", "before"), gone_back)
    assert lineage(known(4, "a", ""), gone_back) != lineage(known(4, "a", ""), BatchIdentity("q", 3, "c"))


parts = st.lists(st.text(alphabet="ab/\\", max_size=4), min_size=2, max_size=2)


@given(one=parts, other=parts)
def test_no_two_source_partitions_have_one_name(one: list[str], other: list[str]) -> None:
    assert (source_partition(one) == source_partition(other)) == (one == other)


def staged(topics: Topics, batch: BatchIdentity, **highest: int) -> StagedBatch:
    """One record for the topic, held against its positions, in a list as for one topic of several."""
    state = topics.state("t")
    with StagingWriter(topics.storage, f"staging/{state.topic_id}/{batch.batch_id}/") as writer:
        encoding = Encoding.of(topics.config(state), topics.clock.now_ms())
        stage_records(writer, to_table([Row(b"k", b"v")]), np.zeros(1, np.int32), encoding)
    advance = Advance(SOURCE, dict(positions_of(state, SOURCE)), highest)
    topic = StagedTopic("t", state.topic_id, state.configs, writer.runs, lineage(state, batch), advance)
    return put_list(topics.storage, StagedBatch(batch, (topic,)))


def test_a_list_waits_for_its_topic_also_after_the_checkpoint_went_back(topics) -> None:
    query = Query(topics, "q")
    query.batch(9, a=5)
    batch = BatchIdentity("q", 6, "went back", SOURCE)
    listed = staged(topics, batch, a=7)
    (topic,) = listed.topics

    found = read_list(topics.storage, batch)
    assert found is not None
    assert (found.batch, found.topics[0].advance, found.topics[0].lineage) == (batch, topic.advance, topic.lineage)
    assert waiting_topics(listed, topics) == [topic]
    query.writer.append(by_partition(topic.runs), batch, topic.advance)
    assert waiting_topics(listed, topics) == []
    assert topics.state("t").queries["q"].lineage == topic.lineage != ""
    assert lineage(topics.state("t"), batch) == topic.lineage, "a replay is of the same"
    assert lineage(topics.state("t"), BatchIdentity("q", 7, "next", SOURCE)) == topic.lineage


def test_a_list_that_was_overtaken_waits_for_nothing_and_is_never_committed(topics) -> None:
    Query(topics, "q").batch(0, a=5)
    batch = BatchIdentity("q", 1, "h1", SOURCE)
    listed = staged(topics, batch, a=7)
    Query(topics, "new").batch(0, a=6)

    (topic,) = listed.topics
    assert topic.is_outdated(topics.state("t"))
    assert waiting_topics(listed, topics) == []
    with pytest.raises(BatchRefusedError, match="positions of the source changed"):
        Query(topics, "q").writer.append(by_partition(topic.runs), batch, topic.advance)
    assert topics.state("t").partitions[0].high_watermark == 0
