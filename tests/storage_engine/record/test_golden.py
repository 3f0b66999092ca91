"""Reads records, looks up offsets and checks indexes in segments that a Kafka 4.3.1 broker wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lakelog.cli.records.json_lines import format_lines
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.segment_reader import SegmentFile, first_record_at, read_records
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.header import HEADER_BYTES
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.record_tables import decompress

GOLDEN = Path(__file__).parents[2] / "golden"
APPENDED = [
    *((name, 0) for name in ("codec_none", "codec_zstd", "codec_gzip", "codec_snappy", "codec_lz4")),
    *((name, 0) for name in ("shapes", "logappend", "ooo", "idem", "retention_bytes")),
    *(("multi", number) for number in range(3)),
]
"""Folders of tests/golden and partitions with logs as producers wrote them, perhaps without their first segments."""
CLEANED = [(f"{name}.{when}", 0) for name in ("compact", "compact_delete") for when in ("before", "after1", "after2")]
"""Logs with gaps left by the broker's cleaner, and the logs before cleaning."""
SHORT = [("delrec", 0), ("empty", 0)]
"""A log whose start offset is inside a segment, and a log without records."""


@pytest.fixture(params=APPENDED, ids=lambda partition: "-".join(map(str, partition)))
def appended(request):
    return request.param


@pytest.fixture(params=[*APPENDED, *CLEANED, *SHORT], ids=lambda partition: "-".join(map(str, partition)))
def partition(request):
    return request.param


def golden_file(name: str, number: int, stem: str, suffix: str) -> Path:
    """Return the name of a file. For partitions other than 0 it has the partition's number."""
    return GOLDEN / name / (f"{stem}.{number}{suffix}" if number else f"{stem}{suffix}")


def topic_of(name: str) -> str:
    return name.partition(".")[0]


def bounds(name: str, number: int) -> tuple[int, int]:
    """Return the earliest offset and the end offset, as the broker reported them."""
    answers = json.loads(golden_file(name, number, "offsets", ".json").read_text())
    return answers["earliest"]["offset"], answers["latest"]["offset"]


def segment_files(name: str, number: int) -> list[SegmentFile]:
    folder = GOLDEN / name / "data" / f"{topic_of(name)}-{number}"
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    _, end = bounds(name, number)
    sizes = [(folder / f"{base:020d}.log").stat().st_size for base in bases]
    return [
        SegmentFile(f"data/{folder.name}/{base:020d}", base, size, end_offset)
        for base, size, end_offset in zip(bases, sizes, [*bases[1:], end], strict=True)
    ]


def offsets_of(name: str, number: int) -> list[int]:
    lines = golden_file(name, number, "records.read_uncommitted", ".jsonl").read_text().splitlines()
    return [json.loads(line)["offset"] for line in lines]


def test_records_are_those_that_a_consumer_was_given(partition) -> None:
    name, number = partition
    storage = PosixStorage(GOLDEN / name)
    earliest, _ = bounds(name, number)
    lines = b"".join(
        format_lines(topic_of(name), number, records)
        for segment in segment_files(name, number)
        for records in read_records(storage, segment, earliest)
    )
    expected = golden_file(name, number, "records.read_uncommitted", ".jsonl").read_text().splitlines()
    found = lines.decode().splitlines()
    assert len(found) == len(expected)
    assert len(found) > 50 or name == "empty"
    head = f'{{"topic":"{topic_of(name)}","partition":{number},'
    assert found == [head + line.removeprefix("{") for line in expected]


def test_indexes_rebuilt_from_the_log_are_the_brokers_bytes(appended) -> None:
    name, number = appended
    config = (GOLDEN / name / "topic.config").read_text()
    interval = int(re.findall(r"index\.interval\.bytes=(\d+)", config)[0])
    for segment in segment_files(name, number):
        log = GOLDEN / name / segment.key
        rebuilt = index_segment(segment.base_offset, scan_batches(np.fromfile(log, np.uint8), segment.key), interval)
        assert rebuilt.offset_index_bytes() == log.with_suffix(".index").read_bytes()
        assert rebuilt.time_index_bytes() == log.with_suffix(".timeindex").read_bytes()
        assert (rebuilt.size, rebuilt.end_offset) == (segment.size, segment.end_offset)


def test_reading_from_every_fifth_offset_begins_there(partition) -> None:
    name, number = partition
    storage = PosixStorage(GOLDEN / name)
    present = offsets_of(name, number)
    earliest, _ = bounds(name, number)
    for segment in segment_files(name, number):
        for offset in range(max(segment.base_offset, earliest), segment.end_offset, 5):
            following = next((at for at in present if at >= offset), None)
            if following is None or following >= segment.end_offset:
                assert not list(read_records(storage, segment, offset))
                continue
            records = next(read_records(storage, segment, offset, following + 1))
            assert records["offset"].to_pylist() == [following]


def test_look_ups_by_time_answer_as_the_broker_does(appended) -> None:
    # Not where the cleaner has been: it can leave an empty segment, whose mtime Kafka takes for its largest timestamp, so
    # that the broker finds nothing where there are records.
    name, number = appended
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


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_records_are_compressed_to_the_bytes_of_kafkas_producer(codec) -> None:
    name = f"codec_{codec.name.lower()}"
    log = (GOLDEN / name / "data" / f"{name}-0" / f"{0:020d}.log").read_bytes()
    table = scan_batches(np.frombuffer(log, np.uint8), name)
    assert (table.codecs == codec).all()
    for position, size in zip(table.positions.tolist(), table.sizes.tolist(), strict=True):
        records = log[position + HEADER_BYTES : position + size]
        assert compress(codec, decompress(codec, records)) == records
