"""The entries of queries that write through a sink. The entry of an active query is kept. The entry of an idle query is
deleted, and still no batch is appended twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import BatchRefusedError
from storage_engine.topic.append.appending import Encoding, stage_records
from storage_engine.topic.append.sink_queries import SinkQuery
from storage_engine.topic.append.staged_run import StagingWriter, by_partition, staging_folder
from storage_engine.topic.append.topic_writer import AcceptedCheckpoint, BatchIdentity, TopicWriter, take_over
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

DAY = 24 * 3_600_000
START = 1_700_000_000_000


class Sinks:
    """A topic with one partition, and queries that write to it."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(START)
        self.topics = Topics(storage_at(folder), BrokerConfig(), self.clock)
        self.topics.create("t", 1, {})

    def write(self, query: str, batch_id: int, began_ms: int, offsets: str = "") -> bool:
        """Commit a micro-batch of one record; returns whether it was skipped."""
        state = self.topics.state("t")
        config = self.topics.config(state)
        with StagingWriter(self.topics.storage, staging_folder(state.topic_id, state.version)) as staging:
            records = to_table([Row(b"k", f"{query} {batch_id}".encode(), (), self.clock.now_ms())])
            stage_records(staging, records, np.zeros(1, np.int32), Encoding.of(config, self.clock.now_ms()))
        sink = SinkQuery(began_ms, 30 * DAY)
        chain = self.topics.chain("t")
        writer = TopicWriter(self.topics.storage, chain, config, self.clock, None, state.topic_id, sink)
        try:
            return writer.append(
                by_partition(staging.runs), BatchIdentity(query, batch_id, offsets or "a" * 64)
            ).skipped
        finally:
            writer.close()

    def values(self) -> list[str]:
        reader = PartitionReader(self.topics.storage, self.topics.chain("t"), 0, self.topics.state("t"))
        return [value.decode() for records in reader.read(0) for value in records["value"].to_pylist()]


@pytest.fixture
def sinks(tmp_path: Path) -> Sinks:
    return Sinks(tmp_path)


def test_two_queries_write_to_one_topic_and_each_batch_once(sinks: Sinks) -> None:
    assert [sinks.write(query, number, START) for query, number in [("a", 0), ("b", 0), ("a", 1)]] == [False] * 3
    assert sinks.write("b", 0, START)
    assert sinks.write("a", 1, START)
    with pytest.raises(BatchRefusedError, match=r"found batch 0 .*start the query with a new checkpoint"):
        sinks.write("a", 0, START)
    with pytest.raises(BatchRefusedError, match="found batch 1 "):
        sinks.write("a", 1, START, offsets="b" * 64)
    assert sinks.values() == ["a 0", "b 0", "a 1"]


def test_a_query_that_was_idle_for_long_is_refused_and_a_new_one_is_not(sinks: Sinks) -> None:
    sinks.write("idle", 0, START)
    sinks.clock.advance(20 * DAY)
    sinks.write("busy", 0, START + 20 * DAY)
    sinks.clock.advance(11 * DAY)
    assert sinks.write("busy", 1, START + 20 * DAY) is False
    assert set(sinks.topics.state("t").queries) == {"busy"}
    for batch_id in (0, 1):
        with pytest.raises(BatchRefusedError, match=r"no entry of this query.*2023-11-14"):
            sinks.write("idle", batch_id, START)
    with pytest.raises(BatchRefusedError, match="no entry of this query"):
        sinks.write("of unknown age", 200, -1)
    assert sinks.write("new", 0, START + 31 * DAY) is False
    assert sinks.write("busy", 1, START + 20 * DAY) is True
    assert sinks.values() == ["idle 0", "busy 0", "busy 1", "new 0"]


def test_an_ingest_keeps_its_record_and_leaves_those_of_sinks(sinks: Sinks) -> None:
    chain = sinks.topics.chain("t")
    state = take_over(chain, "ingest")
    writer = TopicWriter(sinks.topics.storage, chain, sinks.topics.config(state), sinks.clock, state.writer.epoch)
    writer.append({}, BatchIdentity("ingest", 4, "c" * 64))
    writer.close()
    sinks.clock.advance(60 * DAY)
    sinks.write("sink", 0, START + 60 * DAY)
    assert sinks.topics.state("t").queries["ingest"].batch_id == 4
    take_over(chain, "later", accepted=AcceptedCheckpoint())
    assert set(sinks.topics.state("t").queries) == {"sink"}
    assert sinks.write("sink", 0, START + 60 * DAY) is True
    assert sinks.values() == ["sink 0"]
