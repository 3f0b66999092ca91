"""Compaction of messages of magic 0 and 1: which messages are kept, and in which batches of magic 2.

tests/kafka/judge.py --legacy compares such compactions with Kafka's own cleaner, byte for byte.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.cleaner.legacy_conversion import LegacyChunk, as_modern
from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import CorruptionError
from storage_engine.kafka_dir.log_directory import LogDirectory
from storage_engine.log.checkpoint import CLEAN_SHUTDOWN, FIRST_DIRTY_OFFSETS, encode_offsets
from storage_engine.log.filenames import data_key, offset_name
from storage_engine.log.segment_reader import Chunk
from storage_engine.record.batch import BatchTable
from storage_engine.record.compression import Codec
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_batches
from storage_engine.record.header import MAGIC
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.clean.topic_compaction import CompactionResult, compact_topic
from storage_engine.topic.kafka.kafka_import import import_topic
from storage_engine.topic.topics import Topics
from tests.storage_engine.legacy_logs import LOG_APPEND_TIME, Decoded, Message, decoded, scanned, sealed, wrap

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "legacy" / "data"
NOW = 1_800_000_000_000
TIME = 1_700_000_000_000
RETENTION = 1000
HORIZON = NOW + RETENTION


class Log:
    """A broker's directory, imported and compacted. Its last segment is empty, so all that it holds can be cleaned."""

    def __init__(self, folder: Path) -> None:
        self.parent = folder / "data"
        self.folder = self.parent / "t-0"
        self.folder.mkdir(parents=True)
        (self.parent / CLEAN_SHUTDOWN).touch()
        self.storage = PosixStorage(folder / "root")
        self.topics = Topics(self.storage, BrokerConfig(), ManualClock(NOW))

    def lay(self, *segments: tuple[int, bytes, int]) -> Log:
        """Base offset, bytes and age in milliseconds of each segment."""
        for base, data, age in segments:
            path = self.folder / f"{offset_name(base)}.log"
            path.write_bytes(data)
            os.utime(path, ns=((NOW - age) * 1_000_000,) * 2)
        return self

    def take(self, first_dirty: int = 0) -> None:
        (self.parent / FIRST_DIRTY_OFFSETS).write_bytes(encode_offsets({("t", 0): first_dirty}))
        config = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION), "segment.bytes": "100000"}
        import_topic(self.topics, LogDirectory(self.parent), "t", config)

    def compact(self) -> CompactionResult:
        chain = self.topics.chain("t")
        return compact_topic(
            self.storage, chain, self.topics.config(chain.newest()), self.topics.broker, self.topics.clock, force=True
        )

    def bytes(self) -> bytes:
        """Of all segments, one behind another."""
        state = self.topics.state("t")
        return b"".join(
            self.storage.read(data_key(state.topic_id, 0, segment.name)) for segment in state.partitions[0].segments
        )


def cleaned(folder: Path, *segments: tuple[int, bytes, int], first_dirty: int = 0) -> bytes:
    """What compaction leaves of these segments and an empty one behind them."""
    log = Log(folder).lay(*segments)
    log.take(first_dirty)
    assert not log.compact().failed
    return log.bytes()


def newest(records: Sequence[Decoded]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Each key's last record, in order; records without a key go."""
    last = {key: offset for offset, _, _, key, _ in records if key is not None}
    return [(offset, time, key, value) for offset, time, _, key, value in records if key and last[key] == offset]


def without_types(records: Sequence[Decoded]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(offset, time, key, value) for offset, time, _, key, value in records]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_logs_of_old_brokers_become_batches_of_magic_2_with_the_newest_of_each_key(tmp_path: Path, name: str) -> None:
    log = Log(tmp_path)
    shutil.copytree(GOLDEN / name, log.folder, dirs_exist_ok=True)
    before = (log.folder / f"{offset_name(0)}.log").read_bytes()
    records = decoded(before)
    log.lay((records[-1][0] + 1, b"", 0)).take()
    (done,) = log.compact().cleaned
    after = log.bytes()
    assert without_types(decoded(after)) == newest(records)
    data, table = scanned(after)
    assert set(table.magics.tolist()) == {MAGIC}
    check_crcs(data, table, "t")
    assert set(table.codecs.tolist()) == set(scanned(before)[1].codecs.tolist())
    assert (done.records_before, done.records_after) == (len(records), len(newest(records)))


def test_what_stays_of_an_entry_spans_its_own_records_only(tmp_path: Path) -> None:
    inner = [Message(number, key, b"v", timestamp=TIME + number) for number, key in enumerate([b"a", b"b", b"c", b"d"])]
    later = [Message(number, key, b"w") for number, key in ((14, b"a"), (15, b"d"))]
    data = cleaned(tmp_path, (10, wrap(inner, 13) + b"".join(each.encode() for each in later), 5000), (16, b"", 0))
    _, table = scanned(data)
    assert table.base_offsets.tolist() == [11, 14, 15]
    assert table.last_offsets.tolist() == [12, 14, 15]
    assert table.base_timestamps.tolist()[0] == TIME + 1
    assert table.max_timestamps.tolist()[0] == TIME + 2
    assert table.records_counts.tolist() == [2, 1, 1]
    assert (set(table.producer_ids.tolist()), set(table.leader_epochs.tolist())) == ({-1}, {-1})
    assert [(each[0], each[3]) for each in decoded(data)] == [(11, b"b"), (12, b"c"), (14, b"a"), (15, b"d")]


def test_times_of_appending_stay_and_magic_0_has_none(tmp_path: Path) -> None:
    appended = wrap([Message(0, b"a", b"1"), Message(1, b"b", b"2")], 1, timestamp=TIME, attributes=LOG_APPEND_TIME)
    old = wrap([Message(2, b"c", b"3", 0), Message(3, b"d", b"4", 0)], 3, magic=0)
    data = cleaned(tmp_path, (0, appended + old + Message(4, b"a", b"5", 0).encode(), 5000), (5, b"", 0))
    assert decoded(data) == [
        (1, TIME, 1, b"b", b"2"), (2, -1, 0, b"c", b"3"), (3, -1, 0, b"d", b"4"), (4, -1, 0, b"a", b"5"),
    ]  # fmt: skip
    _, table = scanned(data)
    assert table.is_log_append_time.tolist() == [True, False, False]
    assert table.max_timestamps.tolist() == [TIME, -1, -1]


def test_a_tombstone_that_stays_gets_a_horizon(tmp_path: Path) -> None:
    messages = [Message(0, b"a", b"1"), Message(1, b"a", None), Message(2, b"b", b"2")]
    log = Log(tmp_path).lay((0, wrap(messages[:2], 1) + messages[2].encode(), 5000), (3, b"", 0))
    log.take()
    log.compact()
    assert [(each[0], each[4]) for each in decoded(log.bytes())] == [(1, None), (2, b"2")]
    assert scanned(log.bytes())[1].delete_horizons.tolist() == [HORIZON, -1]
    assert [each.horizon_ms for each in log.topics.state("t").partitions[0].segments] == [HORIZON, -1]


@pytest.mark.parametrize(("age", "stays"), [(RETENTION + 1, False), (RETENTION, False), (RETENTION - 1, True)])
def test_tombstones_go_by_how_old_their_segment_is_beside_the_newest_clean_one(
    tmp_path: Path, age: int, stays: bool
) -> None:
    clean = Message(0, b"a", None).encode() + Message(1, b"b", b"1").encode()
    data = cleaned(
        tmp_path,
        (0, clean, 7000 + age),
        (2, Message(2, b"c", b"1").encode(), 7000),
        (3, Message(3, b"d", None).encode() + Message(4, b"e", b"1").encode(), 10),  # newer than the clean one: stays
        (5, b"", 0),
        first_dirty=3,
    )
    assert [each[3] for each in decoded(data)] == [*([b"a"] if stays else []), b"b", b"c", b"d", b"e"]


def test_an_entry_with_nothing_left_goes_even_at_the_end_of_what_is_cleaned(tmp_path: Path) -> None:
    keyless = wrap([Message(0, None, b"x"), Message(1, None, b"y")], 3)
    log = Log(tmp_path).lay((0, Message(0, b"a", b"1").encode() + keyless, 5000), (4, b"", 0))
    log.take()
    (done,) = log.compact().cleaned
    assert (done.first_dirty_offset, done.keyless) == (4, 2)
    assert [each[0] for each in decoded(log.bytes())] == [0]
    assert log.topics.state("t").partitions[0].high_watermark == 4


def test_a_damaged_entry_is_named_and_everything_stays(tmp_path: Path) -> None:
    good = Message(0, b"a", b"1").encode()
    damaged = bytearray(Message(0, b"a", b"2").encode())
    damaged[-1] ^= 1  # inside a wrapper whose own CRC is right
    log = Log(tmp_path).lay((0, good + sealed(wrap(bytes(damaged), 1)), 5000), (2, b"", 0))
    log.take()
    before = log.bytes()
    (failure,) = log.compact().failed
    assert isinstance(failure.error, CorruptionError)
    assert failure.error.position == len(good)
    assert log.bytes() == before


def test_offsets_beyond_an_entrys_own_are_refused() -> None:
    data = wrap([Message(0, b"a", b"1"), Message(7, b"b", b"2")], 0)  # as old versions of librdkafka left it
    assert [each[0] for each in decoded(data)] == [0, 7]
    with pytest.raises(CorruptionError, match="offset 7"):
        parts(data)


def parts(data: bytes, horizon_ms: int = HORIZON) -> list[Chunk]:
    return list(as_modern(Chunk(*_from_start(data)), horizon_ms, "f"))


def _from_start(data: bytes) -> tuple[np.ndarray, int, BatchTable]:
    array, table = scanned(data)
    return array, 0, table


_fields = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=140)
_times = st.just(-1) | st.integers(0, 2**62)


@st.composite
def _logs(draw: st.DrawFn) -> bytes:
    """Entries of all magics and codecs, with gaps between their offsets."""
    offset, data = draw(st.integers(0, 2**40)), b""
    for _ in range(draw(st.integers(1, 6))):
        magic = draw(st.integers(0, 1))
        codec = draw(st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, *([Codec.LZ4] if magic else [])]))
        count = 1 if codec is Codec.NONE else draw(st.integers(1, 5))
        offsets = [offset + draw(st.integers(0, 3)) + 4 * number for number in range(count)]
        offset = offsets[-1] + 1
        kind = LOG_APPEND_TIME if magic and draw(st.booleans()) else 0
        fields = [(draw(_fields), draw(_fields), magic, draw(_times)) for _ in offsets]
        if codec is Codec.NONE:
            data += Message(offsets[0], *fields[0], kind).encode()
        else:
            first = offsets[0] if magic else 0
            inner = [Message(at - first, *each) for at, each in zip(offsets, fields, strict=True)]
            data += wrap(inner, offsets[-1], codec, magic, draw(_times), kind)
    return data


@given(data=_logs(), horizon_ms=st.integers(0, 2**62))
def test_every_entry_becomes_a_batch_with_the_same_records(data: bytes, horizon_ms: int) -> None:
    chunks = parts(data, horizon_ms)
    _, table = scanned(data)
    assert sum(len(chunk.table) for chunk in chunks) == len(table)
    found: list[Decoded] = []
    for chunk in chunks:
        assert isinstance(chunk, LegacyChunk)
        assert set(chunk.table.delete_horizons.tolist()) == {horizon_ms}
        check_crcs(chunk.data, chunk.table, "f")
        records = decode_batches(chunk.data, chunk.table, "f", 0)
        names = ("offset", "timestamp", "timestamp_type", "key", "value")
        found += zip(*(records[name].to_pylist() for name in names), strict=True)
    assert without_types(found) == without_types(decoded(data))
    codecs = np.concatenate([chunk.codecs for chunk in chunks if isinstance(chunk, LegacyChunk)])
    assert codecs.tolist() == table.codecs.tolist()
