"""Segments that a Kafka 4.3.1 broker wrote: records, look-ups and indexes as Kafka has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from storage_engine.cli.record_lines import format_lines
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.record.batch import scan_batches
from storage_engine.storage.posix import PosixStorage

GOLDEN = Path(__file__).parents[2] / "golden"
PARTITIONS = [
    *((name, 0) for name in ("codec_none", "codec_zstd", "codec_gzip", "codec_snappy", "codec_lz4")),
    *((name, 0) for name in ("shapes", "logappend", "ooo")),
    *(("multi", number) for number in range(3)),
]


@pytest.fixture(params=PARTITIONS, ids=lambda partition: "-".join(map(str, partition)))
def partition(request):
    return request.param


def golden_file(name: str, number: int, stem: str, suffix: str) -> Path:
    """Files of partitions other than 0 have its number in their names."""
    return GOLDEN / name / (f"{stem}.{number}{suffix}" if number else f"{stem}{suffix}")


def segment_files(name: str, number: int) -> list[SegmentFile]:
    folder = GOLDEN / name / "data" / f"{name}-{number}"
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    end = json.loads(golden_file(name, number, "offsets", ".json").read_text())["latest"]["offset"]
    sizes = [(folder / f"{base:020d}.log").stat().st_size for base in bases]
    return [
        SegmentFile(f"data/{name}-{number}/{base:020d}", base, size, end_offset)
        for base, size, end_offset in zip(bases, sizes, [*bases[1:], end], strict=True)
    ]


def test_records_are_those_that_a_consumer_was_given(partition) -> None:
    name, number = partition
    storage = PosixStorage(GOLDEN / name)
    lines = b"".join(
        format_lines(name, number, records)
        for segment in segment_files(name, number)
        for records in read_records(storage, segment)
    )
    expected = golden_file(name, number, "records.read_uncommitted", ".jsonl").read_text().splitlines()
    found = lines.decode().splitlines()
    assert len(found) == len(expected) > 100
    head = f'{{"topic":"{name}","partition":{number},'
    assert found == [head + line.removeprefix("{") for line in expected]


def test_indexes_rebuilt_from_the_log_are_the_brokers_bytes(partition) -> None:
    name, number = partition
    config = (GOLDEN / name / "topic.config").read_text()
    interval = int(re.findall(r"index\.interval\.bytes=(\d+)", config)[0])
    for segment in segment_files(name, number):
        log = GOLDEN / name / segment.key
        rebuilt = index_segment(segment.base_offset, scan_batches(np.fromfile(log, np.uint8), segment.key), interval)
        assert rebuilt.offset_index_bytes() == log.with_suffix(".index").read_bytes()
        assert rebuilt.time_index_bytes() == log.with_suffix(".timeindex").read_bytes()
        assert (rebuilt.size, rebuilt.end_offset) == (segment.size, segment.end_offset)


def test_reading_from_any_offset_begins_there(partition) -> None:
    name, number = partition
    storage = PosixStorage(GOLDEN / name)
    for segment in segment_files(name, number):
        for offset in range(segment.base_offset, segment.end_offset):
            records = next(read_records(storage, segment, offset, offset + 1))
            assert records["offset"].to_pylist() == [offset]


def test_look_ups_by_time_answer_as_the_broker_does(partition) -> None:
    name, number = partition
    storage = PosixStorage(GOLDEN / name)
    answers = json.loads(golden_file(name, number, "offsets", ".json").read_text())["for_timestamp"]
    segments = segment_files(name, number)
    largest = [
        max(max(records["timestamp"].to_pylist()) for records in read_records(storage, segment)) for segment in segments
    ]
    assert answers
    for text, answer in answers.items():
        timestamp = int(text)
        reaching = next((each for each, last in zip(segments, largest, strict=True) if last >= timestamp), None)
        found = first_record_at(storage, reaching, timestamp) if reaching else None
        expected = answer["read_uncommitted"]
        if expected["offset"] < 0:
            assert found is None
        else:
            assert found == (expected["offset"], expected["timestamp"], expected["leaderEpoch"])
