"""A few bytes that claim to contain gibibytes of data. Lakelog must raise a typed error or process the data in pieces,
and in both cases with bounded memory.
"""

from __future__ import annotations

import base64
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import cramjam
import numpy as np
import pytest

from storage_engine.clock import ManualClock
from storage_engine.config import BrokerConfig
from storage_engine.errors import BatchTooLargeError, CorruptionError
from storage_engine.log.segment_reader import SegmentFile, read_records
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records, seal_batches
from storage_engine.record.header import BATCH_HEADER, HEADER_BYTES, LENGTH_POSITION, LOG_OVERHEAD
from storage_engine.storage.posix import PosixStorage
from storage_engine.topic.append.appending import Append
from storage_engine.topic.readers.reader import PartitionReader
from storage_engine.topic.topics import Topics
from tests.bad_input.conftest import Lakelog, said
from tests.lakelog.cli.conftest import line
from tests.storage_engine.record_tables import Row, decompress, to_table
from tests.stores import root_at

MIB = 1024**2


def batch_with(codec: Codec, records: bytes) -> bytes:
    """A batch of one record with a good CRC whose compressed records are these bytes."""
    header = encode_records(to_table([Row(b"k", b"v")]), 2**20, codec).data[:HEADER_BYTES].copy()
    data = np.concatenate([header, np.frombuffer(records, np.uint8)])
    data[LENGTH_POSITION:LOG_OVERHEAD] = np.frombuffer((len(data) - LOG_OVERHEAD).to_bytes(4, "big"), np.uint8)
    seal_batches(data, np.array([len(data)]))
    assert data[:HEADER_BYTES].view(BATCH_HEADER)["records_count"][0] == 1
    return data.tobytes()


def zstd_bomb(size: int) -> bytes:
    stream = cramjam.zstd.Compressor(level=1)
    bomb = b""
    for _ in range(size // (32 * MIB)):
        stream.compress(bytes(32 * MIB))
        bomb += bytes(stream.flush())
    return bomb + bytes(stream.finish())


def test_a_batch_that_expands_beyond_what_kafka_can_hold_is_refused(tmp_path: Path) -> None:
    data = batch_with(Codec.ZSTD, zstd_bomb(2048 * MIB))
    assert len(data) < MIB
    (tmp_path / "segment.log").write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        list(read_records(PosixStorage(tmp_path), SegmentFile("segment", 0, len(data), 1)))
    assert (caught.value.file, caught.value.position) == ("segment.log", 0)
    assert isinstance(caught.value, BatchTooLargeError)
    assert caught.value.expected == "a batch of at most 268435456 bytes after decompression"


@pytest.mark.parametrize(
    ("codec", "records"),
    [
        (Codec.GZIP, compress(Codec.GZIP, bytes(1000))[:-20] + b"damaged"),
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\0"),
        (Codec.LZ4, b"\x04\x22\x4d\x18 damaged"),
        (Codec.ZSTD, compress(Codec.ZSTD, random.Random(1).randbytes(60))[:-9]),
        (Codec.ZSTD, bytes.fromhex("28b52ffd e0 ffffff7f00000000 010000")),  # claims 2 GiB - 1, and holds nothing
    ],
    ids=["gzip", "snappy", "lz4", "zstd", "zstd that claims much"],
)
def test_few_damaged_bytes_are_given_little_room(codec: Codec, records: bytes) -> None:
    data = np.frombuffer(batch_with(codec, records), np.uint8)
    with pytest.raises(CorruptionError) as caught:
        decode_batches(data, scan_batches(data, "f"), "f")
    assert all(int(room) < MIB for room in re.findall(r"decompress to more than (\d+)", caught.value.found))


@pytest.mark.parametrize("framed", [True, False])
def test_a_snappy_block_that_claims_four_gibibytes_is_refused(tmp_path: Path, framed: bool) -> None:
    block = b"\xff\xff\xff\xff\x0f\0"
    frame = compress(Codec.SNAPPY, b"")[:16] + len(block).to_bytes(4, "big") if framed else b""
    data = batch_with(Codec.SNAPPY, frame + block)
    (tmp_path / "segment.log").write_bytes(data)
    with pytest.raises(CorruptionError, match="are damaged, or that decompress to more than"):
        list(read_records(PosixStorage(tmp_path), SegmentFile("segment", 0, len(data), 1)))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 100_000, 20 * MIB])
def test_what_shrinks_a_thousandfold_comes_back(codec: Codec, size: int) -> None:
    assert decompress(codec, compress(codec, bytes(size))) == bytes(size)


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_large_values_are_read_in_pieces_however_well_they_are_compressed(tmp_path: Path, codec: str) -> None:
    topics = Topics(PosixStorage(tmp_path), BrokerConfig(), ManualClock(1_700_000_000_000))
    size, count = (16 * MIB, 36) if codec == "zstd" else (MIB, 48)
    topics.create("t", 1, {"max.message.bytes": str(17 * MIB), "compression.type": codec})
    with Append(topics.storage, topics.chain("t"), topics.config(topics.state("t")), topics.clock) as append:
        for number in range(count):
            append.stage(to_table([Row(b"%d" % number, bytes(size))]))
        append.commit()
    found: list[bytes] = []
    for records in PartitionReader(topics.storage, topics.chain("t"), 0).read(0):
        assert records.nbytes <= 300 * MIB
        views = np.frombuffer(records["value"].buffers()[1], np.int32).reshape(-1, 4)[: records.num_rows]
        assert set(views[:, 0].tolist()) == {size}  # Arrow's binary_view begins with the length
        found += records["key"].to_pylist()
    assert found == [b"%d" % number for number in range(count)]


def test_a_huge_value_in_a_line_is_refused_by_the_topics_limit(lakelog: Lakelog) -> None:
    lakelog("topics", "create", "t")
    huge = base64.b64encode(bytes(5 * MIB)).decode()
    message = said(lakelog("append", "--topic", "t", stdin=[line(b"k", b"v"), f'{{"key": null, "value": "{huge}"}}']))
    assert "standard input, line 2: needs a batch of more than 1048588 bytes" in message
    assert lakelog("offsets", "--topic", "t").out == "t:0:0\n"


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(lakelog: Lakelog, root: Path) -> None:
    lakelog("topics", "create", "t")
    with Path("/dev/zero").open("rb") as endless:
        ended = subprocess.run(
            [sys.executable, "-m", "lakelog.cli", "append", "--topic", "t", "--root", root_at(root)],
            stdin=endless, capture_output=True, check=False, timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (2 * 1024 * MIB, 2 * 1024 * MIB)),
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"lakelog: standard input, line 1: is longer than ")
    assert lakelog("offsets", "--topic", "t").out == "t:0:0\n"
