"""Which neighbouring segments are merged, how often a byte is copied, and the contents of the new segments."""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cleaner.segment_merging import MergeTask, merge_segments, plan_merges
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig, TopicConfig
from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, SegmentFolder, data_folder
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_merging import merge_topic
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.kafka.view import settle
from storage_engine.topic.topics import Topics
from storage_engine.verify.root.root_check import check_root
from storage_engine.verify.segment_check import Options

GOLDEN = Path(__file__).parents[2] / "golden"
NOW = 1_700_000_000_000
DAY_MS = 24 * 3_600_000


def partition(*sizes: int, ages: list[int] | None = None, **fields: int) -> PartitionState:
    """Segments of these sizes with ten offsets each, the last one active; ages in milliseconds, none by default."""
    segments = tuple(
        Segment(10 * number, f"s{number}", size, 10 * number + 10, NOW - age, 10 * number + 9, NOW)
        for number, (size, age) in enumerate(zip(sizes, ages or [0] * len(sizes), strict=True))
    )
    return PartitionState.model_validate({"high_watermark": 10 * len(sizes), "segments": segments} | fields)


def merged(part: PartitionState, **settings: object) -> list[list[int]]:
    """The base offsets of each run."""
    config = TopicConfig(**({"segment_bytes": 1000} | settings))  # type: ignore[arg-type]
    return [[each.base_offset for each in run] for run in plan_merges(part, config)]


def test_small_neighbours_become_one_segment_and_the_active_one_is_left_alone() -> None:
    assert merged(partition(100, 100, 100, 100)) == [[0, 10, 20]]
    assert merged(partition(100, 100)) == []
    assert merged(partition(100)) == merged(PartitionState()) == []


def test_no_run_is_larger_than_segment_bytes() -> None:
    assert merged(partition(400, 400, 400, 400, 400, 1)) == [[0, 10], [20, 30]]
    assert merged(partition(500, 501, 501, 1)) == []
    assert merged(partition(2000, 300, 300, 1)) == [[10, 20]]


def test_a_large_segment_is_not_copied_for_a_small_one() -> None:
    assert merged(partition(600, 100, 100, 1)) == [[10, 20]]
    assert merged(partition(400, 100, 100, 200, 1)) == [[0, 10, 20, 30]]
    assert merged(partition(64, 31, 15, 7, 3, 1, 1)) == []


def test_empty_segments_join_and_are_no_reason_to_copy() -> None:
    assert merged(partition(0, 100, 100, 1)) == [[0, 10, 20]]
    assert merged(partition(0, 100, 1)) == []
    assert merged(partition(0, 0, 100, 1)) == [[0, 10]]


def test_an_index_has_room_for_the_entries_of_a_merged_segment() -> None:
    part = partition(*[300] * 9, 1)
    assert merged(part, segment_bytes=10**6, index_interval_bytes=99, segment_index_bytes=10 * 12) == [
        [0, 10, 20], [30, 40, 50], [60, 70, 80],
    ]  # fmt: skip


def test_relative_offsets_fit_into_an_index_entry() -> None:
    segments = (
        Segment(0, "a", 100, 1, NOW, 0, NOW),
        Segment(1, "b", 100, 2**31, NOW, 2**31 - 1, NOW),
        Segment(2**31, "c", 100, 2**31 + 1, NOW, 2**31, NOW),
        Segment(2**31 + 1, "d", 100, 2**31 + 2, NOW, 2**31 + 1, NOW),
    )
    part = PartitionState(high_watermark=2**31 + 2, segments=segments)
    assert merged(part) == [[0, 1]]


def test_largest_timestamps_lie_within_segment_ms() -> None:
    part = partition(100, 100, 100, 100, 100, ages=[90, 60, 50, 10, 0])
    settings = {"cleanup_policy": frozenset[str]()}
    assert merged(part, segment_ms=40, **settings) == [[0, 10, 20]]
    assert merged(part, segment_ms=39, **settings) == [[0, 10]]


def test_a_timestamp_in_the_future_holds_up_no_retention_of_what_was_beside_it() -> None:
    assert merged(partition(100, 100, 100, 100, 1, ages=[0, 0, -30 * DAY_MS, 0, 0])) == [[0, 10]]


def test_nothing_is_kept_longer_by_more_than_a_tenth_of_retention() -> None:
    part = partition(100, 100, 100, 100, 100, ages=[400, 300, 200, 100, 0])
    assert merged(part, retention_ms=2000) == [[0, 10, 20]]
    assert merged(part, retention_ms=999) == []
    assert merged(part, retention_bytes=2000) == [[0, 10], [20, 30]]
    assert merged(part, retention_ms=-1, retention_bytes=-1) == [[0, 10, 20, 30]]
    assert merged(part, retention_ms=0, cleanup_policy=frozenset[str]()) == [[0, 10, 20, 30]]


@pytest.mark.parametrize("policy", [{"compact"}, {"compact", "delete"}])
def test_segments_of_compacted_topics_are_left_to_compaction(policy: set[str]) -> None:
    assert merged(partition(*[100] * 5), cleanup_policy=frozenset(policy)) == []


def test_what_lies_below_the_log_start_is_left_to_retention() -> None:
    assert merged(partition(*[100] * 5, log_start_offset=15)) == [[10, 20, 30]]
    assert merged(partition(*[100] * 5, log_start_offset=20)) == [[20, 30]]


def apply(part: PartitionState, runs: tuple[tuple[Segment, ...], ...]) -> tuple[PartitionState, int]:
    """The partition with its runs merged, and how many bytes that copied."""
    segments = list(part.segments)
    for run in runs:
        first = segments.index(run[0])
        whole = run[0]._replace(size=sum(each.size for each in run), end_offset=run[-1].end_offset)
        segments[first : first + len(run)] = [whole]
    return part.model_copy(update={"segments": tuple(segments)}), sum(each.size for run in runs for each in run)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200), st.integers(1, 10))
def test_however_often_it_runs_a_byte_is_copied_log_many_times_and_few_segments_stay(
    sizes: list[int], every: int
) -> None:
    config = TopicConfig(segment_bytes=100_000)
    part = PartitionState()
    copied = 0
    for number, size in enumerate(sizes):
        new = Segment(10 * number, f"s{number}", size, 10 * number + 10, NOW, 10 * number + 9, NOW)
        part = part.model_copy(update={"high_watermark": 10 * number + 10, "segments": (*part.segments, new)})
        if number % every == 0:
            part, more = apply(part, plan_merges(part, config))
            copied += more
    while runs := plan_merges(part, config):
        part, more = apply(part, runs)
        copied += more
    smallest = max(1, min(size for size in [*sizes, 300] if size))
    assert copied <= sum(sizes) * (1 + math.log2(max(1, sum(sizes)) / smallest))
    sealed = [each.size for each in part.segments[:-1]]
    assert all(one != other for one, other in pairwise(sealed))
    assert len(sealed) <= 2 + 2 * math.isqrt(sum(sizes))


def test_a_steady_stream_leaves_as_many_segments_as_its_length_has_binary_digits() -> None:
    config = TopicConfig(segment_bytes=10**9)
    part, copied = PartitionState(), 0
    for number in range(1001):
        new = Segment(number, f"s{number}", 1000, number + 1, NOW, number, NOW)
        part = part.model_copy(update={"high_watermark": number + 1, "segments": (*part.segments, new)})
        part, more = apply(part, plan_merges(part, config))
        copied += more
    assert len(part.segments) <= 11
    assert copied <= 10 * 1_000_000


# What is written, against a reading of Kafka's rules that shares no code with the engine.


def headers(log: bytes) -> list[tuple[int, int, int]]:
    """Position, last offset and largest timestamp of each batch."""
    found, position = [], 0
    while position < len(log):
        base_offset, length = struct.unpack_from(">qi", log, position)
        (delta,) = struct.unpack_from(">i", log, position + 23)
        (timestamp,) = struct.unpack_from(">q", log, position + 35)
        found.append((position, base_offset + delta, timestamp))
        position += 12 + length
    return found


def indexes(log: bytes, base_offset: int, interval: int) -> tuple[bytes, bytes]:
    """The .index and .timeindex that a broker leaves beside a .log which it wrote and rolled."""
    offset_index, time_index = b"", b""
    since_entry, largest, largest_at, last_time = 0, -1, base_offset, -1
    batches = headers(log)
    ends = [position for position, _, _ in batches[1:]] + [len(log)]
    for (position, last_offset, timestamp), end in zip(batches, ends, strict=True):
        if timestamp > largest:
            largest, largest_at = timestamp, last_offset
        if since_entry > interval:
            offset_index += struct.pack(">ii", last_offset - base_offset, position)
            if largest > last_time:
                time_index += struct.pack(">qi", largest, largest_at - base_offset)
                last_time = largest
            since_entry = 0
        since_entry += end - position
    if largest > last_time:
        time_index += struct.pack(">qi", largest, largest_at - base_offset)
    return offset_index, time_index


def named(topics: Topics, name: str) -> tuple[tuple[Segment, ...], SegmentFolder]:
    """The segments of partition 0, and where they lie."""
    state = topics.state(name)
    return state.partitions[0].segments, SegmentFolder(data_folder(state.topic_id, 0), state.version)


def log_of(topics: Topics, files: SegmentFolder, segment: Segment) -> bytes:
    return topics.storage.read(files.key(segment.name, LOG), 0, segment.size)


# With a broker's own segments, as it rolled them; compact.after1 has gaps, and batches that were emptied.
BROKERS = ["codec_none", "codec_lz4", "logappend", "ooo", "txn", "compact.after1"]


@pytest.fixture(params=BROKERS)
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Topics:
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), ManualClock(NOW))
    settings = {"index.interval.bytes": "512", "retention.ms": "-1", "segment.ms": str(2**62)}
    import_topic(topics, LogDirectory(GOLDEN / request.param / "data"), request.param.split(".")[0], settings)
    return topics


def test_the_rules_for_indexes_that_these_tests_go_by_are_a_brokers(brokers: Topics) -> None:
    (name,) = brokers.names()
    (folder,) = (each for each in GOLDEN.glob(f"*/data/{name}-0") if each.parents[1].name in BROKERS)
    for log in sorted(folder.glob("*.log")):
        expected = indexes(log.read_bytes(), int(log.stem), 512)
        found = (log.with_suffix(INDEX).read_bytes(), log.with_suffix(TIME_INDEX).read_bytes())
        assert found == expected, log


def test_a_merged_segment_is_the_concatenation_with_the_indexes_of_a_broker(brokers: Topics) -> None:
    (name,) = brokers.names()
    before, files = named(brokers, name)
    logs = [log_of(brokers, files, each) for each in before[:-1]]
    producers = brokers.state(name).partitions[0].producers

    result = merge_topic(brokers.storage, brokers.chain(name), brokers.config(brokers.state(name)))

    assert len(result.cleaned) == 1
    (merged, active), files = named(brokers, name)
    assert active == before[-1]
    log = log_of(brokers, files, merged)
    assert log == b"".join(logs)
    assert brokers.storage.read(files.key(merged.name, INDEX)) == indexes(log, merged.base_offset, 512)[0]
    assert brokers.storage.read(files.key(merged.name, TIME_INDEX)) == indexes(log, merged.base_offset, 512)[1]
    assert (merged.base_offset, merged.size, merged.end_offset) == (
        before[0].base_offset, sum(each.size for each in before[:-1]), before[-2].end_offset,
    )  # fmt: skip
    largest = max(before[:-1], key=lambda each: each.largest_timestamp)  # the first of several
    assert (merged.largest_timestamp, merged.largest_timestamp_offset) == largest[4:6]
    assert merged.aborted == tuple(aborted for each in before[:-1] for aborted in each.aborted)
    assert brokers.state(name).partitions[0].producers == producers
    settle(brokers)
    assert check_root(brokers, None, None, Options(), 1).findings == []


def test_bytes_that_have_changed_are_not_merged_and_leave_no_file(tmp_path: Path) -> None:
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), ManualClock(NOW))
    import_topic(topics, LogDirectory(GOLDEN / "codec_none" / "data"), "codec_none", {"retention.ms": "-1"})
    segments, files = named(topics, "codec_none")
    damaged = tmp_path / files.key(segments[2].name)
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    there = sorted(tmp_path.rglob("*"))

    task = MergeTask("codec_none", topics.state("codec_none").topic_id, 0, files, segments[:4], 512)
    with pytest.raises(CorruptionError, match=segments[2].name):
        merge_segments(topics.storage, task)

    assert sorted(tmp_path.rglob("*")) == there
