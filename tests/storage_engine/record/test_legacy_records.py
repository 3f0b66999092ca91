"""Messages of magic 0 and 1: the rules for wrapper messages, bytes of other writers, and damaged bytes."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from storage_engine.errors import CorruptionError
from storage_engine.log.segment_reader import SegmentFile, first_batch_timestamp, first_record_at, read_records
from storage_engine.record.batch import UNKNOWN_COUNT, scan_batches, scan_header
from storage_engine.record.compression import Codec, compress
from storage_engine.record.crc import check_crcs
from storage_engine.record.decoding import decode_batches, decode_parts
from storage_engine.record.encoding import encode_records
from storage_engine.record.header import SHORTEST
from storage_engine.record.kernels.crc32 import crc32_all
from storage_engine.record.record_columns import CREATE_TIME, LOG_APPEND_TIME_TYPE, NO_TIMESTAMP_TYPE
from storage_engine.record.stamping import stamp_batches
from storage_engine.storage.posix import PosixStorage
from tests.storage_engine.legacy_logs import LOG_APPEND_TIME, Decoded, Message, decoded, scanned, sealed, wrap
from tests.storage_engine.record_tables import Row, to_table

TIME = 1_700_000_000_000
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
BODIES = [(b"key", b"value"), (None, b""), (b"", None), (b"long", b"ab" * 400)]


def messages(first_offset: int = 0, magic: int = 1) -> list[Message]:
    return [Message(first_offset + i, *body, magic, TIME - i) for i, body in enumerate(BODIES)]


def rows(first_offset: int, magic: int = 1) -> list[Decoded]:
    return [
        (first_offset + i, TIME - i, CREATE_TIME, *body) if magic else (first_offset + i, -1, NO_TIMESTAMP_TYPE, *body)
        for i, body in enumerate(BODIES)
    ]


def batch(first_offset: int) -> bytes:
    """The same records in a batch of magic 2."""
    run = encode_records(to_table([Row(*body, timestamp=TIME - i) for i, body in enumerate(BODIES)]), 2**20, Codec.LZ4)
    stamp_batches(run.data, run.sizes, first_offset, 5)
    return run.data.tobytes()


@pytest.mark.parametrize("magic", [0, 1])
def test_open_messages_are_records(magic) -> None:
    data = b"".join(message.encode() for message in messages(7, magic))
    assert decoded(data) == rows(7, magic)
    assert decoded(data, 8, 10) == rows(7, magic)[1:3]
    records = decode_batches(*scanned(data), "f")
    assert records["leader_epoch"].to_pylist() == [-1] * 4
    assert records["headers"].to_pylist() == [[]] * 4


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_in_a_wrapper_of_magic_1_end_at_its_own(codec) -> None:
    assert decoded(wrap(messages(0), 23, codec)) == rows(20)
    assert decoded(wrap(messages(100), 103, codec)) == rows(100)
    with_a_gap = [Message(0, b"a", b""), Message(5, b"b", b"")]
    assert [row[0] for row in decoded(wrap(with_a_gap, 30, codec))] == [25, 30]


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_in_a_wrapper_of_magic_0_are_those_of_the_log(codec) -> None:
    assert decoded(wrap(messages(20, magic=0), 23, codec, magic=0)) == rows(20, magic=0)


def test_offsets_in_a_wrapper_of_magic_1_with_offset_0_stay_as_they_are() -> None:
    assert decoded(wrap(messages(0), 0)) == rows(0)
    assert decoded(wrap([Message(0, b"k", b"v")], 0)) == [(0, TIME, CREATE_TIME, b"k", b"v")]


def test_log_append_time_of_a_wrapper_counts_for_all_in_it() -> None:
    inner = [Message(0, b"a", b""), Message(1, b"b", b"", magic=0)]
    found = decoded(wrap(inner, 1, timestamp=99, attributes=LOG_APPEND_TIME))
    assert [row[1:3] for row in found] == [(99, LOG_APPEND_TIME_TYPE), (-1, LOG_APPEND_TIME_TYPE)]
    alone = Message(0, b"a", b"", timestamp=98, attributes=LOG_APPEND_TIME).encode()
    assert [row[1:3] for row in decoded(alone)] == [(98, LOG_APPEND_TIME_TYPE)]


def test_the_bit_of_log_append_time_means_nothing_in_magic_0() -> None:
    inner = [Message(0, b"a", b"", magic=0), Message(1, b"b", b"", magic=1)]
    found = decoded(wrap(inner, 1, magic=0, attributes=LOG_APPEND_TIME))
    assert [row[1:3] for row in found] == [(-1, NO_TIMESTAMP_TYPE), (TIME, NO_TIMESTAMP_TYPE)]


def test_all_magics_may_follow_one_another() -> None:
    data = b"".join(
        [
            *(message.encode() for message in messages(0, magic=0)),
            batch(4),
            wrap(messages(0), 11, Codec.SNAPPY),
            *(message.encode() for message in messages(12)),
            wrap(messages(16, magic=0), 19, Codec.LZ4, magic=0),
            batch(20),
        ]
    )
    expected = [row for first in range(0, 24, 4) for row in rows(first, magic=0 if first in (0, 16) else 1)]
    assert decoded(data) == expected
    for first in range(24):
        for end in range(first, 25):
            assert decoded(data, first, end) == expected[first:end]
    for part_bytes in (1, 1000, 10**6):
        parts = list(decode_parts(*scanned(data), "f", part_bytes=part_bytes))
        assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(24))
        epochs = [epoch for part in parts for epoch in part["leader_epoch"].to_pylist()]
        assert epochs == [-1] * 4 + [5] * 4 + [-1] * 12 + [5] * 4


def test_a_table_has_a_row_for_each_entry() -> None:
    data, table = scanned(Message(3, b"k", b"v", 0).encode() + batch(4) + wrap(messages(0), 13, attributes=0xF0))
    assert table.magics.tolist() == [0, 2, 1]
    assert table.is_legacy.tolist() == [True, False, True]
    assert table.last_offsets.tolist() == [3, 7, 13]
    assert table.base_offsets.tolist() == [3, 4, 8], "the wrapper's first message has 10, which only decoding can tell"
    assert table.records_counts.tolist() == [1, 4, UNKNOWN_COUNT]
    assert table.max_timestamps.tolist() == [-1, TIME, TIME]
    assert table.producer_ids.tolist() == [-1] * 3
    assert table.leader_epochs.tolist() == [-1, 5, -1]
    assert table.is_control.tolist() == [False] * 3
    assert table.delete_horizons.tolist() == [-1] * 3
    assert table.end == len(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_entry_that_is_cut_off_is_left_out(magic) -> None:
    data = b"".join(message.encode() for message in messages(0, magic))
    ends = [sum(len(message.encode()) for message in messages(0, magic)[:count]) for count in range(5)]
    for length in range(len(data)):
        assert len(scanned(data[:length])[1]) == sum(end <= length for end in ends) - 1


@pytest.mark.parametrize("magic", [0, 1])
def test_the_smallest_message_is_read_and_a_smaller_one_refused(magic) -> None:
    data = Message(0, None, None, magic).encode()
    assert len(data) == 12 + SHORTEST[magic]
    assert decoded(data) == [(0, TIME if magic else -1, CREATE_TIME if magic else NO_TIMESTAMP_TYPE, None, None)]
    smaller = bytearray(data[:-1])
    smaller[8:12] = (SHORTEST[magic] - 1).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match=f"at least {SHORTEST[magic]}"):
        scanned(sealed(smaller))


@pytest.mark.parametrize("framed", [True, False], ids=["xerial", "raw"])
@pytest.mark.parametrize("magic", [0, 1])
def test_snappy_is_read_with_and_without_its_framing(magic, framed) -> None:
    inner = b"".join(message.encode() for message in messages(0, magic))
    value = compress(Codec.SNAPPY, inner) if framed else bytes(cramjam.snappy.compress_raw(inner))
    assert decoded(Message(3, None, value, magic, TIME, Codec.SNAPPY).encode()) == rows(0, magic)


@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
@pytest.mark.parametrize("store_size", [True, False])
def test_lz4_in_magic_0_may_have_any_checksum_in_its_head_and_no_other_may(block_size, store_size) -> None:
    def wrapper(magic: int) -> bytes:
        inner = b"".join(message.encode() for message in messages(0, magic))
        frame = bytearray(
            lz4.frame.compress(inner, block_size=block_size, block_linked=False, store_size=store_size)
        )  # fmt: skip
        frame[14 if store_size else 6] ^= 0x5A
        return Message(3, None, bytes(frame), magic, TIME, Codec.LZ4).encode()

    assert decoded(wrapper(0)) == rows(0, magic=0)
    with pytest.raises(CorruptionError):
        decoded(wrapper(1))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, Codec.GZIP, Codec.SNAPPY])
def test_what_another_client_writes_is_read(magic, codec) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec, 2**20)
    for message in messages(0, magic):
        builder.append(message.offset, message.timestamp, message.key, message.value)
    data = bytearray(builder.build())
    if codec:
        data[:8] = (3).to_bytes(8, "big")  # where a broker puts the set: at the offset of the last one
    assert decoded(bytes(data)) == rows(0, magic)


def test_crc_32_is_that_of_ieee() -> None:
    data = np.frombuffer(random.Random(0).randbytes(300), np.uint8)
    starts, ends = (np.repeat(np.arange(0, 300, 7), 43), np.tile(np.arange(0, 300, 7), 43))
    starts, ends = np.minimum(starts, ends), np.maximum(starts, ends)
    expected = [zlib.crc32(data[start:end].tobytes()) for start, end in zip(starts, ends, strict=True)]
    assert crc32_all(data, starts, ends).tolist() == expected
    assert crc32_all(np.frombuffer(b"123456789", np.uint8), np.array([0]), np.array([9]))[0] == 0xCBF43926


REFUSED = {
    "a wrapper in a wrapper": wrap([Message(0, None, b"x", attributes=Codec.GZIP)], 0),
    "zstd": wrap(messages(0), 3, Codec.ZSTD),
    "an unknown codec": wrap(messages(0), 3, 7),
    "no value": Message(3, None, None, attributes=Codec.GZIP).encode(),
    "no messages": wrap([], 3),
    "a magic that has no wrapper": wrap([Message(0, b"k", b"v", magic=2)], 0),
    "a message that is cut off": wrap(Message(0, b"k", b"v").encode() + Message(1, b"k", b"v").encode()[:-1], 1),
    "bytes behind the last message": wrap(Message(0, b"k", b"v").encode() + b"\0\0\0", 0),
    "a CRC that does not fit": wrap(Message(0, b"k", b"v").encode()[:-1] + b"x", 0),
    "offsets that go back": wrap([Message(1, b"k", b"v"), Message(0, b"k", b"v")], 5),
    "an offset twice": wrap([Message(1, b"k", b"v"), Message(1, b"k", b"v")], 5),
    "an offset below 0": wrap([Message(-1, b"k", b"v")], 5),
    "offsets above the wrapper's": wrap(messages(0), 2),
    "offsets above the wrapper's in magic 0": wrap(messages(0, magic=0), 2, magic=0),
    "offsets of the entry before": Message(1, b"k", b"v").encode() + wrap(messages(0), 4),
    "offsets of the entry before in magic 0": batch(0) + wrap(messages(3, magic=0), 6, magic=0),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_no_broker_leaves_is_refused(data) -> None:
    with pytest.raises(CorruptionError) as caught:
        decoded(data)
    assert (caught.value.file, caught.value.position) == ("f", int(scanned(data)[1].positions[-1]))


@pytest.mark.parametrize("offset", [-1, 2**63 - 1])
def test_an_offset_that_nothing_can_follow_is_refused(offset) -> None:
    for entry in (Message(offset, b"k", b"v").encode(), wrap(messages(0), offset)):
        with pytest.raises(CorruptionError, match="an offset from 0 to"):
            scanned(entry)


LENGTHS = [-(2**31), -2, 0, 4, 6, 100, 2**31 - 100, 2**31 - 1]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("field", ["size", "key", "value"])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_length_that_the_bytes_do_not_hold_is_refused_behind_a_good_crc(length, field, magic, wrapped) -> None:
    data = bytearray(Message(0, b"key", b"value", magic).encode())
    key_position = 26 if magic else 18
    position = {"size": 8, "key": key_position, "value": key_position + 7}[field]
    struct.pack_into(">i", data, position, length)
    entry = sealed(data)
    if not wrapped and field == "size" and length > len(data):
        assert decoded(entry) == [], "it counts as cut off"
        return
    with pytest.raises(CorruptionError):
        decoded(wrap(entry, 0, magic=magic) if wrapped else entry)


def segment_of(data: bytes, tmp_path, end_offset: int) -> tuple[PosixStorage, SegmentFile]:
    (tmp_path / "segment.log").write_bytes(data)
    return PosixStorage(tmp_path), SegmentFile("segment", 0, len(data), end_offset)


@pytest.mark.parametrize("flip", [0x01, 0x02, 0xFF])
@pytest.mark.parametrize(
    "entry",
    [
        Message(1, b"k", b"value", 0).encode(),
        Message(1, b"k", b"value", 1).encode(),
        wrap(messages(1, magic=0), 4, Codec.LZ4, magic=0),
        wrap(messages(0), 4, Codec.GZIP),
        wrap(messages(0), 4, Codec.SNAPPY),
    ],
    ids=["open-0", "open-1", "lz4-0", "gzip-1", "snappy-1"],
)
def test_any_changed_byte_is_noticed(entry, flip, tmp_path) -> None:
    first = Message(0, b"k", b"value", 1).encode()
    end = int(scanned(entry)[1].last_offsets[0]) + 1
    storage, segment = segment_of(first + entry, tmp_path, end)
    assert sum(records.num_rows for records in read_records(storage, segment)) == end
    for position in range(len(entry)):
        changed = bytearray(entry)
        changed[position] ^= flip
        with pytest.raises(CorruptionError) as caught:
            list(read_records(*segment_of(first + changed, tmp_path, end)))
        assert caught.value.position == len(first)


@pytest.mark.parametrize("codec", [0, *CODECS])
@pytest.mark.parametrize("magic", [0, 1])
@given(seed=st.integers(0, 2**32))
def test_arbitrary_messages_behind_a_good_crc_are_decoded_or_refused(codec, magic, seed) -> None:
    chance = random.Random(seed)
    entries = [bytearray(message.encode()) for message in messages(0, magic)]
    for _ in range(chance.randint(0, 3)):
        entry = chance.choice(entries)
        entry[chance.randrange(len(entry))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    if chance.random() < 0.7:
        entries = [bytearray(sealed(entry)) for entry in entries]
    inner = b"".join(entries)
    data = bytearray(wrap(inner, 3, codec, magic) if codec else inner)
    if codec and chance.random() < 0.5:
        data[chance.randrange(17, len(data))] = chance.randrange(256)
        data = bytearray(sealed(data))
    with contextlib.suppress(CorruptionError):
        decoded(bytes(data))


def test_claims_take_no_memory() -> None:
    entry = bytearray(Message(0, b"k", b"v").encode())
    entry[8:12] = (2**31 - 1).to_bytes(4, "big")
    claims_a_message = wrap(bytes(entry), 0)
    expands = wrap(bytes(32 * 1024**2), 0)
    decoded(wrap(messages(0), 3))
    for data, most in ((claims_a_message, 2**22), (expands, 2**28)):
        tracemalloc.start()
        with pytest.raises(CorruptionError):
            decoded(data)
        assert tracemalloc.get_traced_memory()[1] < most
        tracemalloc.stop()


def test_a_snappy_block_that_claims_four_gibibytes_is_refused() -> None:
    with pytest.raises(CorruptionError, match="are damaged, or that decompress to more than"):
        decoded(Message(0, None, b"\xff\xff\xff\xff\x0f\0", attributes=Codec.SNAPPY).encode())


def test_an_error_shows_no_content() -> None:
    secret = b"\x7a\x7a\x7a\x7a"
    data = bytearray(Message(-1, secret, secret * 9, 0).encode())
    with pytest.raises(CorruptionError) as caught:
        scan_batches(np.frombuffer(data, np.uint8), "f")
    assert str(int.from_bytes(secret, "big")) not in str(caught.value)
    assert caught.value.found == "-1"


def test_crcs_of_a_mixed_log_are_checked() -> None:
    data = batch(0) + Message(4, b"k", b"v", 0).encode() + batch(5) + wrap(messages(0), 12)
    array, table = scanned(data)
    check_crcs(array, table, "f")
    for row, kind in enumerate(["CRC-32C", "CRC-32 ", "CRC-32C", "CRC-32 "]):
        changed = bytearray(data)
        changed[int(table.positions[row] + table.sizes[row]) - 1] ^= 1
        with pytest.raises(CorruptionError) as caught:
            check_crcs(np.frombuffer(changed, np.uint8), table, "f", 1000)
        assert caught.value.position == 1000 + int(table.positions[row])
        assert kind in caught.value.expected


def test_a_header_alone_tells_what_a_whole_batch_does() -> None:
    for data in (batch(3), Message(3, None, None, 0).encode(), Message(3, None, b"v" * 99).encode()):
        alone = scan_header(np.frombuffer(data[:61], np.uint8))
        whole = scanned(data)[1]
        assert [column.tolist() for column in vars(alone).values()] == [
            column.tolist() for column in vars(whole).values()
        ]
    assert len(scan_header(np.zeros(61, np.uint8))) == 0
    assert len(scan_header(np.full(61, 255, np.uint8))) == 0


def test_a_segment_is_searched_by_time_across_wrappers(tmp_path) -> None:
    sets = [
        wrap([Message(i, b"k", b"v", 1, 100 * n + 10 * i) for i in range(4)], 4 * n + 3, timestamp=100 * n + 30)
        for n in range(6)
    ]
    plain = Message(24, b"k", b"v", 1, 1000).encode()
    old = Message(25, b"k", b"v", 0).encode()
    storage, segment = segment_of(b"".join(sets) + plain + old, tmp_path, 26)
    times = [*(100 * n + 10 * i for n in range(6) for i in range(4)), 1000]
    for wanted in range(0, 1010, 5):
        expected = next(((offset, time, -1) for offset, time in enumerate(times) if time >= wanted), None)
        assert first_record_at(storage, segment, wanted) == expected
    assert first_batch_timestamp(storage, segment) == 30
    assert first_batch_timestamp(*segment_of(old, tmp_path, 26)) is None
    assert first_batch_timestamp(*segment_of(plain, tmp_path, 26)) == 1000


def test_reading_part_of_a_segment_of_wrappers_ends_where_it_should(tmp_path) -> None:
    storage, segment = segment_of(b"".join(wrap(messages(0), 4 * n + 3) for n in range(50)), tmp_path, 200)
    for first, end in ((0, 1), (5, 7), (7, 9), (8, 12), (150, 200), (199, 200)):
        found = [
            offset for records in read_records(storage, segment, first, end) for offset in records["offset"].to_pylist()
        ]
        assert found == list(range(first, end))
