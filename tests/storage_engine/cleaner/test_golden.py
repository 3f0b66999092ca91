"""Tests that compaction writes the same bytes as Kafka's own cleaner for the same directory, clock and settings.

Two versions of the zstd library can choose different Huffman codes for the same records. So compressed batches are
compared by their size, their header without the CRC, and their records. The positions in the .index show whether all
sizes are equal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig, TopicConfig, topic_config
from storage_engine.log.filenames import INDEX, LOG, TIME_INDEX, data_key, offset_name
from storage_engine.log.growing_segment import index_segment
from storage_engine.log.partition_state import PartitionState, Segment
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.header import CRC_POSITION, CRC_START, HEADER_BYTES
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.chain.state_chain import StateChain
from storage_engine.topic.chain.topic_state import TopicState
from storage_engine.topic.clean.topic_compaction import compact_topic
from tests.storage_engine.record_tables import decompress

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SUFFIXES = (LOG, INDEX, TIME_INDEX)
TOPIC_ID = "golden-topic-id"


@pytest.mark.parametrize("topic", ["compact", "compact_delete"])
@pytest.mark.parametrize(("before", "after"), [("before", "after1"), ("before2", "after2h")])
def test_compaction_gives_the_bytes_of_kafka(tmp_path: Path, topic: str, before: str, after: str) -> None:
    source, expected = GOLDEN / f"{topic}.{before}" / "data", GOLDEN / f"{topic}.{after}" / "data"
    config = settings(GOLDEN / f"{topic}.{before}" / "topic.config")
    clock = ManualClock(int((GOLDEN / f"{topic}.{after}" / "clock").read_text().split("=")[1]))
    storage = PosixStorage(tmp_path)
    chain = StateChain(storage, topic, clock)
    chain.create(state_of(storage, source, topic, config))

    result = compact_topic(storage, chain, config, BrokerConfig(), clock)

    assert not result.failed
    part = result.state.partitions[0]
    files = {
        f"{offset_name(segment.base_offset)}{suffix}": storage.read(data_key(TOPIC_ID, 0, segment.name, suffix))
        for segment in part.segments
        for suffix in SUFFIXES
    }
    kafka = {path.name: path.read_bytes() for path in (expected / f"{topic}-0").iterdir() if path.suffix in SUFFIXES}
    assert files.keys() == kafka.keys()
    for name, data in files.items():
        if name.endswith(LOG):
            assert batches(data) == batches(kafka[name]), name
        else:
            assert data == kafka[name], name
    assert part.first_dirty_offset == checkpointed(expected, "cleaner-offset-checkpoint", topic)


def batches(log: bytes) -> list[bytes]:
    """The batches of a .log. An uncompressed batch is returned unchanged. For a compressed batch, the header without
    its CRC and the records are returned."""
    table = scan_batches(np.frombuffer(log, np.uint8), "a log")
    assert table.end == len(log)
    found = []
    for position, size, codec in zip(
        table.positions.tolist(), table.sizes.tolist(), table.codecs.tolist(), strict=True
    ):
        batch = log[position : position + size]
        if codec:
            records = decompress(Codec(codec), batch[HEADER_BYTES:])
            batch = batch[:CRC_POSITION] + batch[CRC_START:HEADER_BYTES] + records
        found.append(batch)
    return found


def words_of(file: Path) -> list[str]:
    """A topic.config: {key=value, key=value}, where a value may hold a comma."""
    words: list[str] = []
    for part in file.read_text().strip().strip("{}").split(","):
        if "=" in part:
            words.append(part.strip())
        else:
            words[-1] += f",{part}"
    return words


def settings(file: Path) -> TopicConfig:
    return topic_config(BrokerConfig(), dict(word.split("=", 1) for word in words_of(file)))


def checkpointed(directory: Path, checkpoint: str, topic: str) -> int | None:
    """A topic's offset in one of Kafka's checkpoint files."""
    file = directory / checkpoint
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    return next((int(offset) for name, _, offset in map(str.split, lines) if name == topic), None)


def state_of(storage: PosixStorage, directory: Path, topic: str, config: TopicConfig) -> TopicState:
    """Put a copy of a Kafka directory under data/ and give the state that names it."""
    segments = []
    for log in sorted((directory / f"{topic}-0").glob("*.log")):
        data = np.frombuffer(log.read_bytes(), np.uint8)
        name = f"{log.stem}.0.golden"
        for suffix in SUFFIXES:
            storage.put_new(data_key(TOPIC_ID, 0, name, suffix), log.with_suffix(suffix).read_bytes())
        grown = index_segment(int(log.stem), scan_batches(data, log.name), config.index_interval_bytes)
        segments.append(
            Segment(
                grown.base_offset,
                name,
                grown.size,
                grown.end_offset,
                grown.largest_timestamp,
                grown.largest_timestamp_offset,
                0,
            )
        )
    part = PartitionState(
        high_watermark=segments[-1].end_offset,
        first_dirty_offset=checkpointed(directory, "cleaner-offset-checkpoint", topic),
        segments=tuple(segments),
    )
    return TopicState(
        id="", parent="", version=0, written_ms=0, change="", topic=topic, topic_id=TOPIC_ID, configs={},
        partitions=(part,),
    )  # fmt: skip
