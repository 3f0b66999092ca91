"""Which offsets of a broker's groups become positions of a topic, and the file with which a broker gets these positions
back.
"""

from __future__ import annotations

from pathlib import Path

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.kafka.broker_groups import offsets_file, take_groups
from storage_engine.topic.readers.consumer_files import EXPORT_KIND, STREAM_KIND, put_positions, read_consumers
from storage_engine.topic.readers.membership import set_positions
from storage_engine.topic.topics import Topics
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

START = 1_700_000_000_000


def test_positions_are_in_the_topic_and_only_those_of_groups_are_given_back(tmp_path: Path) -> None:
    topics = Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(START))
    state = topics.create("t", 2, {})
    rows = [Row(b"k", b"v", (), START) for _ in range(5)]
    append_records(topics.storage, topics.chain("t"), topics.config(state), topics.clock, to_table(rows), 0)
    state = topics.state("t")
    set_positions(topics.storage, state, "read on", {0: 4}, START)
    put_positions(topics.storage, state, "s", STREAM_KIND, {0: 3}, START)
    put_positions(topics.storage, state, "e", EXPORT_KIND, {0: 3}, START)
    groups = {
        "read on": {0: 1},
        "s": {0: 1},
        'a "b",c': {0: 5, 1: 0},
        "beyond": {-1: 1, 0: 99, 1: -1, 2: 0},
        "elsewhere": {2: 0},
    }
    assert take_groups(topics, state, groups) == 2
    known = read_consumers(topics.storage, state).known
    assert {each.name: each.positions for each in known} == {
        "read on": {0: 4}, "s": {0: 3}, "e": {0: 3}, 'a "b",c': {0: 5, 1: 0}, "beyond": {0: 5},
    }  # fmt: skip
    assert offsets_file(("t", each) for each in known).decode().splitlines() == [
        '"a ""b"",c",t,0,5', '"a ""b"",c",t,1,0', "beyond,t,0,5", "read on,t,0,4",
    ]  # fmt: skip
