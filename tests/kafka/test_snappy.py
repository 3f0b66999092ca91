"""Lakelog's snappy kernel against Kafka's own compression."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from storage_engine.record.compression import Codec, compress
from tests.kafka.kafka_tools import KafkaTools
from tests.storage_engine.snappy_samples import samples

pytestmark = pytest.mark.kafka

_SIZE = struct.Struct(">i")


def _pieces(data: bytes) -> list[bytes]:
    found = []
    position = 0
    while position < len(data):
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size + size
        found.append(data[position - size : position])
    return found


def test_snappy_gives_the_bytes_of_kafka(tmp_path: Path) -> None:
    given = list(samples(1, 700))
    pieces, results = tmp_path / "pieces", tmp_path / "results"
    pieces.write_bytes(b"".join(_SIZE.pack(len(piece)) + piece for piece in given))
    with KafkaTools() as tools:
        ended = tools.run_class("KafkaTools$Snappy", str(pieces), str(results))
    assert (ended.status, ended.err) == (0, "")
    expected = _pieces(results.read_bytes())
    assert len(expected) == len(given) == 5 * 301 + 700
    differing = [
        (number, len(piece))
        for number, (piece, result) in enumerate(zip(given, expected, strict=True))
        if compress(Codec.SNAPPY, piece) != result
    ]
    assert not differing, "the numbers and sizes of the samples"
