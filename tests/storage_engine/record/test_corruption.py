"""Tests that every changed byte of a batch raises a CorruptionError with file and position, and no other error."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.errors import CorruptionError
from storage_engine.log.segment_reader import SegmentFile, read_records
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec
from storage_engine.record.decoding import decode_batches
from storage_engine.record.encoding import encode_records, seal_batches
from storage_engine.record.header import CRC_POSITION, EPOCH_POSITION, HEADER_BYTES, MAGIC_POSITION
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.record_tables import Row, to_rows, to_table

ROWS = [
    Row(b"key", b"value", (("name", b"x"), ("other", None))),
    Row(None, b"", timestamp=1_700_000_000_005),
    Row(b"", None, (("", b""),), timestamp=1_699_999_999_000),
    Row(b"long", b"ab" * 40),
]


def two_batches(codec: Codec = Codec.NONE) -> bytes:
    run = encode_records(to_table(ROWS), 2**31 - 1, codec)
    second = run.data.copy()
    second[:8] = np.frombuffer(len(ROWS).to_bytes(8, "big"), np.uint8)
    return run.data.tobytes() + second.tobytes()


def read_segment(data: bytes, tmp_path) -> list[Row]:
    """Read a committed segment with these bytes."""
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    segment = SegmentFile("segment", 0, len(data), 2 * len(ROWS))
    return [row for records in read_records(PosixStorage(tmp_path), segment) for row in to_rows(records)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.SNAPPY])
@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_any_changed_byte_is_noticed(codec, flip, tmp_path) -> None:
    data = two_batches(codec)
    assert read_segment(data, tmp_path) == ROWS * 2
    start = len(data) // 2
    for position in range(start, len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        if EPOCH_POSITION <= position - start < MAGIC_POSITION:
            assert read_segment(bytes(changed), tmp_path) == ROWS * 2, "the leader epoch stands outside the CRC"
            continue
        with pytest.raises(CorruptionError) as caught:
            read_segment(bytes(changed), tmp_path)
        assert caught.value.file == "segment.log"
        assert caught.value.position == start


def test_a_segment_that_ends_too_early_is_noticed(tmp_path) -> None:
    data = two_batches()
    for length in range(1, len(data)):
        if length != len(data) // 2:
            with pytest.raises(CorruptionError):
                read_segment(data[:length], tmp_path)


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 13, -1, -(2**31), 0, 48])
def test_a_length_that_no_batch_has_is_noticed(length, tmp_path) -> None:
    data = bytearray(two_batches())
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptionError) as caught:
        read_segment(bytes(data), tmp_path)
    assert caught.value.position == 0


@pytest.mark.parametrize("count", [2**31 - 1, 5, 3, -1])
def test_a_count_that_the_bytes_do_not_hold_is_noticed(count) -> None:
    data = np.frombuffer(bytearray(two_batches()[: len(two_batches()) // 2]), np.uint8)
    data[57:61] = np.frombuffer(count.to_bytes(4, "big", signed=True), np.uint8)
    seal_batches(data, np.array([len(data)]))
    with pytest.raises(CorruptionError):
        decode_batches(data, scan_batches(data, "f"), "f")


@pytest.mark.parametrize("base_offset", [2**63 - 1, 2**63 - 4, -1])
def test_offsets_that_64_bits_do_not_hold_are_noticed(base_offset) -> None:
    data = np.frombuffer(bytearray(two_batches()[: len(two_batches()) // 2]), np.uint8)
    data[:8] = np.frombuffer(base_offset.to_bytes(8, "big", signed=True), np.uint8)
    with pytest.raises(CorruptionError):
        scan_batches(data, "f")


VARINTS_OF_THE_FIRST_RECORD = (
    "record", "timestamp", "offset", "key", "value", "headers", "header name", "header value",
)  # fmt: skip
HUGE = bytes.fromhex("feffffff0f")  # the varint of 2 GiB - 1


@pytest.mark.parametrize("byte", [0, 2, 3, 4, 8, 14, 15, 20], ids=VARINTS_OF_THE_FIRST_RECORD)
def test_a_varint_that_claims_two_gibibytes_is_noticed_behind_a_good_crc(byte) -> None:
    data = np.frombuffer(bytearray(two_batches()[: len(two_batches()) // 2]), np.uint8)
    position = HEADER_BYTES + byte
    data[position : position + len(HUGE)] = np.frombuffer(HUGE, np.uint8)
    seal_batches(data, np.array([len(data)]))
    with pytest.raises(CorruptionError):
        decode_batches(data, scan_batches(data, "f"), "f")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_compressed_batch_of_no_bytes_is_refused(codec) -> None:
    data = np.frombuffer(bytearray(two_batches()[:HEADER_BYTES]), np.uint8)
    data[22] = codec
    data[8:12] = np.frombuffer((HEADER_BYTES - 12).to_bytes(4, "big"), np.uint8)
    seal_batches(data, np.array([len(data)]))
    with pytest.raises(CorruptionError):
        decode_batches(data, scan_batches(data, "f"), "f")


@pytest.mark.parametrize("codec", list(Codec))
@given(seed=st.integers(0, 2**32))
def test_arbitrary_records_behind_a_good_crc_are_decoded_or_refused(codec, seed) -> None:
    chance = random.Random(seed)
    data = np.frombuffer(bytearray(encode_records(to_table(ROWS), 2**31 - 1, codec).data.tobytes()), np.uint8)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(HEADER_BYTES, len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        data[22] = chance.randrange(8)  # another codec, or one that does not exist
    seal_batches(data, np.array([len(data)]))
    try:
        records = decode_batches(data, scan_batches(data, "f"), "f")
    except CorruptionError:
        pass
    else:
        records.select(["offset", "timestamp", "key", "value"]).validate(full=True)


def test_an_error_names_file_position_expected_and_found() -> None:
    data = np.frombuffer(bytearray(two_batches()), np.uint8)
    data[len(data) // 2 + CRC_POSITION] ^= 1
    with pytest.raises(CorruptionError) as caught:
        decode_batches(data, scan_batches(data, "orders.log", 1000), "orders.log", 1000)
    error = caught.value
    assert (error.file, error.position) == ("orders.log", 1000 + len(data) // 2)
    assert "CRC-32C" in error.expected
    assert error.found in str(error)
