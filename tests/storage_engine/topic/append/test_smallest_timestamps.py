"""Tests that the state has the smallest timestamp and the largest lateness of each segment, for each kind of writer.
The lateness of a record says how far its timestamp is behind the largest timestamp before it.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import InvalidTimestampError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.segment_reader import SegmentFile, read_chunks, read_records
from storage_engine.storage import Storage
from storage_engine.topic.append.appending import append_records
from storage_engine.topic.append.staged_run import StagedRun
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.clean.topic_compaction import compact_topic
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.readers.reader import segment_file
from storage_engine.topic.topics import Topics
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options
from tests.storage_engine.record_tables import Row, to_table
from tests.stores import storage_at

GOLDEN = Path(__file__).parents[3] / "golden"
NOW = 1_700_000_000_000
Known = tuple[int | None, int | None]
LONG_AGO = {"retention.ms": "-1", "segment.ms": str(2**62)}
ROLLS_OFTEN = {"segment.bytes": "4000", "max.message.bytes": "700"}


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(storage_at(tmp_path), BrokerConfig(), ManualClock(NOW))


def append(topics: Topics, name: str, times: list[int], keys: int = 10**9) -> None:
    """One commit, cut into batches of a few records."""
    config = topics.config(topics.state(name))
    rows = [Row(f"k{number % keys}".encode(), b"v" * 50, (), time) for number, time in enumerate(times)]
    append_records(topics.storage, topics.chain(name), config, topics.clock, to_table(rows), 0)


def recorded(topics: Topics, name: str) -> list[Known]:
    segments = topics.state(name).partitions[0].segments
    return [(segment.smallest_timestamp, segment.largest_lateness_ms) for segment in segments]


def true_ones(topics: Topics, name: str) -> list[Known]:
    state = topics.state(name)
    files = [segment_file(state.topic_id, 0, segment) for segment in state.partitions[0].segments]
    return [true_one(topics.storage, file) for file in files]


def true_one(storage: Storage, file: SegmentFile) -> Known:
    """As it is defined in log.partition_state.Segment, counted record by record."""
    records = [(part["offset"].to_numpy(), part["timestamp"].to_numpy()) for part in read_records(storage, file)]
    if not records:
        return None, 0
    offsets, times = (np.concatenate(parts) for parts in zip(*records, strict=True))
    lateness, largest = 0, -1
    for chunk in read_chunks(storage, file):
        table = chunk.table
        for first, last, newest in zip(table.base_offsets, table.last_offsets, table.max_timestamps, strict=True):
            largest = max(largest, int(newest))
            of_batch = times[(offsets >= first) & (offsets <= last)]
            lateness = max(lateness, largest - int(of_batch.min(initial=largest)))
    return int(times.min()), lateness if times.min() >= 0 else None


def shuffled_times(seed: int, count: int) -> list[int]:
    """Times that rise by trends, and go back within batches and across them; some records have none."""
    chosen = random.Random(seed)
    times = [NOW + number * 1000 + chosen.randrange(-60_000, 60_000) for number in range(count)]
    return [-1 if chosen.randrange(200) == 0 else time for time in times]


def test_it_is_the_smallest_of_the_segments_records_after_append_roll_and_merge(topics: Topics) -> None:
    topics.create("t", 1, LONG_AGO | ROLLS_OFTEN)
    for seed in range(6):
        append(topics, "t", shuffled_times(seed, 120))
    appended = recorded(topics, "t")
    assert len(appended) > 12, "segments rolled within a commit"
    assert appended == true_ones(topics, "t")
    assert (-1, None) in appended, "a segment has a record without a timestamp"
    assert [smallest for smallest, _ in appended] != sorted(smallest or 0 for smallest, _ in appended), "out of order"
    assert max(lateness or 0 for _, lateness in appended) > 60_000

    topics.alter("t", configs={"segment.bytes": "20000"})
    assert merge_topic(topics.storage, topics.chain("t"), topics.config(topics.state("t"))).cleaned
    assert len(recorded(topics, "t")) < len(appended)
    assert recorded(topics, "t") == true_ones(topics, "t")
    assert StateChain(topics.storage, "t", topics.clock).newest() == topics.state("t"), "as it is read from storage"
    settle(topics)
    assert check_root(topics, None, None, Options(deep=True), 1).findings == []


def test_compaction_gives_the_smallest_of_what_stays(topics: Topics) -> None:
    topics.create("c", 1, LONG_AGO | ROLLS_OFTEN | {"cleanup.policy": "compact", "compression.type": "lz4"})
    for seed in range(4):
        append(topics, "c", shuffled_times(seed, 100), keys=70)
    before = recorded(topics, "c")
    config = topics.config(topics.state("c"))
    assert compact_topic(topics.storage, topics.chain("c"), config, topics.broker, topics.clock, force=True).cleaned

    assert recorded(topics, "c") == true_ones(topics, "c") != before


def test_append_time_is_the_smallest_whatever_times_the_records_bring(topics: Topics) -> None:
    topics.create("a", 1, LONG_AGO | ROLLS_OFTEN | {"message.timestamp.type": "LogAppendTime"})
    for later in range(3):
        topics.clock = ManualClock(NOW + later)
        append(topics, "a", shuffled_times(1, 40))
    assert recorded(topics, "a") == true_ones(topics, "a")
    assert true_ones(topics, "a")[0] == (NOW, 0)


def test_a_negative_time_is_refused_and_leaves_no_segment(topics: Topics) -> None:
    topics.create("n", 1, {})
    with pytest.raises(InvalidTimestampError, match="negative"):
        append(topics, "n", [NOW, -2])
    assert recorded(topics, "n") == []


@pytest.mark.parametrize("name", ["logappend", "ooo", "codec_none"])
def test_an_import_records_it_only_if_the_headers_tell_it(topics: Topics, name: str) -> None:
    directory = LogDirectory(GOLDEN / name / "data")
    import_topic(topics, directory, name, LONG_AGO)
    known, true = recorded(topics, name), true_ones(topics, name)
    assert known == (true if name == "logappend" else [(None, None)] * len(true))


def test_a_staged_run_of_an_earlier_version_has_none() -> None:
    old = StagedRun.from_json('[0,"staging/x/1/a.batches",0,[100,100],[2,2],[5,6]]')
    new = StagedRun.from_json('[0,"staging/x/1/a.batches",0,[100,100],[2,2],[5,6],[4,6]]')
    assert (old.min_timestamps.tolist(), new.min_timestamps.tolist()) == ([-(2**63)] * 2, [4, 6])
    assert StagedRun.from_json(new.to_json()).min_timestamps.tolist() == [4, 6]
