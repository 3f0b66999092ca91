"""CRC-32C and murmur2, compared with published vectors and with another implementation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from storage_engine.record.crc import batch_crcs
from storage_engine.record.header import CRC_START
from storage_engine.record.partitioner import partition_keys

RFC_3720_B_4 = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018")
        + bytes.fromhex("28000000 00000000 02000000 00000000"),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
]


@pytest.mark.parametrize(("data", "crc"), RFC_3720_B_4)
def test_crc_32c_of_rfc_3720(data, crc) -> None:
    batch = np.frombuffer(bytes(CRC_START) + data, np.uint8)
    assert batch_crcs(batch, np.array([len(batch)])).tolist() == [crc]


# From Kafka's UtilsTest.testMurmur2.
KAFKA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 50, 10_000])
def test_partitions_of_kafkas_own_examples(partitions) -> None:
    expected = [(hashed & 0x7FFFFFFF) % partitions for hashed in KAFKA_MURMUR2.values()]
    assert partition_keys(pa.array(list(KAFKA_MURMUR2), pa.binary()), partitions, 0).tolist() == expected


@given(
    keys=st.lists(st.none() | st.binary(max_size=20), max_size=30),
    partitions=st.integers(1, 10_000),
    start=st.integers(0, 9),
)
def test_partitions_equal_those_of_kafka_python(keys, partitions, start) -> None:
    sticky = partitions - 1
    expected = [sticky if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    found = partition_keys(pa.array(keys, pa.binary()).slice(start), partitions, sticky)
    assert found.tolist() == expected[start:]
