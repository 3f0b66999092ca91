"""Tests that records are decoded unchanged: Lakelog and other implementations decode Lakelog's records, and Lakelog
decodes the records of other implementations.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from storage_engine.record.batch import BatchTable, scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.decoding import NO_END, decode_batches
from storage_engine.record.encoding import encode_records
from storage_engine.record.record_columns import view_lengths
from storage_engine.record.stamping import stamp_batches
from tests.storage_engine.record_tables import Row, decompress, row_lists, to_rows, to_table

NO_LIMIT = 2**31 - 1
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
PLENTY = [Row(f"key-{n % 7}".encode(), b"some text that repeats itself " * 8, (("n", b"%d" % n),)) for n in range(400)]


def decode(data: bytes, first_offset: int = 0, end_offset: int = NO_END) -> pa.RecordBatch:
    array = np.frombuffer(data, np.uint8)
    records = decode_batches(array, scan_batches(array, "f"), "f", 0, first_offset, end_offset)
    records.validate(full=True)
    return records


@pytest.mark.parametrize("codec", Codec)
@given(rows=row_lists, batch_bytes=st.sampled_from([0, 300, NO_LIMIT]))
def test_records_come_back_as_they_went_in(codec, rows, batch_bytes) -> None:
    records = decode(encode_records(to_table(rows), batch_bytes, codec).data.tobytes())
    assert to_rows(records) == rows
    assert records["offset"].to_pylist() == list(range(len(rows)))
    assert set(records["timestamp_type"].to_pylist()) == {0}


@pytest.mark.parametrize("codec", Codec)
def test_values_of_a_mebibyte_come_back(codec) -> None:
    rows = [Row(b"k", np.random.default_rng(7).bytes(2**20)), Row(None, bytes(2**20)), Row(b"", None)]
    assert to_rows(decode(encode_records(to_table(rows), 1000, codec).data.tobytes())) == rows


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("level", [1, 5, 9])
def test_every_level_can_be_read(codec, level) -> None:
    run = encode_records(to_table(PLENTY), NO_LIMIT, codec, level=level)
    assert len(run.data) < 40_000
    assert to_rows(decode(run.data.tobytes())) == PLENTY


def test_a_batch_that_does_not_shrink_stays_below_the_limit() -> None:
    rows = [Row(None, np.random.default_rng(7).bytes(500))]
    for codec in Codec:
        run = encode_records(to_table(rows), 600, codec)
        assert run.sizes[0] <= 600
        assert to_rows(decode(run.data.tobytes())) == rows


def foreign(builder_class, codec: Codec, rows) -> bytes:
    builder = builder_class(
        magic=2, compression_type=int(codec), is_transactional=False, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=NO_LIMIT,
    )  # fmt: skip
    for number, row in enumerate(rows):
        builder.append(number, timestamp=row.timestamp, key=row.key, value=row.value, headers=list(row.headers))
    data = bytes(builder.build())
    assert data[22] & 7 == codec
    return data


# kafka-python compresses by libraries that are not installed here, but for gzip; aiokafka has all four.
FOREIGN = [(KafkaPythonBuilder, Codec.GZIP), *((AiokafkaBuilder, codec) for codec in COMPRESSING)]


@pytest.mark.parametrize(("builder_class", "codec"), FOREIGN)
def test_batches_that_other_clients_compressed_can_be_read(builder_class, codec) -> None:
    assert to_rows(decode(foreign(builder_class, codec, PLENTY))) == PLENTY


READERS = [(KafkaPythonBatch, Codec.NONE), (KafkaPythonBatch, Codec.GZIP), *((AiokafkaBatch, codec) for codec in Codec)]


@pytest.mark.parametrize(("batch_class", "codec"), READERS)
def test_other_clients_can_read_our_batches(batch_class, codec) -> None:
    run = encode_records(to_table(PLENTY), NO_LIMIT, codec)
    batch = batch_class(run.data.tobytes())
    assert batch.validate_crc()
    read = [Row(record.key, record.value, tuple(record.headers), record.timestamp) for record in batch]
    assert read == PLENTY


def test_codecs_agree_with_arrows() -> None:
    text = b"some text that repeats itself " * 9000  # several blocks of snappy and LZ4
    for codec, name in ((Codec.GZIP, "gzip"), (Codec.LZ4, "lz4"), (Codec.ZSTD, "zstd")):
        theirs = pa.Codec(name)
        assert theirs.decompress(compress(codec, text), len(text)).to_pybytes() == text
        assert decompress(codec, theirs.compress(text).to_pybytes()) == text
    raw = pa.Codec("snappy").compress(text).to_pybytes()
    assert decompress(Codec.SNAPPY, raw) == text, "old clients wrote snappy without a frame"


@given(rows=row_lists, first=st.integers(0, 30), end=st.integers(0, 30), codec=st.sampled_from(list(Codec)))
def test_a_range_of_offsets_gives_its_records_only(rows, first, end, codec) -> None:
    data = encode_records(to_table(rows), 200, codec).data.tobytes()
    records = decode(data, first_offset=first, end_offset=end)
    assert records["offset"].to_pylist() == list(range(first, min(end, len(rows))))
    assert to_rows(records) == rows[first:end]


def test_batches_of_several_codecs_may_be_neighbours() -> None:
    data = np.concatenate([encode_records(to_table(PLENTY[:9]), NO_LIMIT, codec).data for codec in Codec])
    table = scan_batches(data, "f")
    assert table.codecs.tolist() == [0, 1, 2, 3, 4]
    stamp_batches(data, table.sizes, 100, 3)
    records = decode(data.tobytes())
    assert records["offset"].to_pylist() == list(range(100, 145))
    assert set(records["leader_epoch"].to_pylist()) == {3}
    assert to_rows(records) == PLENTY[:9] * 5


def test_append_time_is_every_records_time() -> None:
    records = decode(encode_records(to_table(PLENTY[:3]), NO_LIMIT, append_time=42).data.tobytes())
    assert records["timestamp"].to_pylist() == [42] * 3
    assert records["timestamp_type"].to_pylist() == [1] * 3


@pytest.mark.parametrize("control", [False, True])
def test_control_records_are_given_to_nobody_who_does_not_ask(control) -> None:
    data = foreign_transaction_marker()
    table = scan_batches(data, "f")
    assert table.is_control.all()
    assert decode_batches(data, table, "f", control=control).num_rows == int(control)


def foreign_transaction_marker() -> np.ndarray:
    run = encode_records(to_table([Row(b"\0\0\0\1", bytes(6))]), NO_LIMIT)
    batch = bytearray(run.data.tobytes())
    batch[22] |= 0x30  # transactional and control
    import crc32c

    batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return np.frombuffer(bytes(batch), np.uint8)


def test_a_batch_that_is_cut_off_is_left_out_of_the_table() -> None:
    data = encode_records(to_table(PLENTY[:4]), 0).data
    ends = np.cumsum(scan_batches(data, "f").sizes).tolist()
    for length in range(len(data)):
        found: BatchTable = scan_batches(data[:length], "f")
        assert len(found) == sum(end <= length for end in ends)


def test_stamping_changes_nothing_that_the_crc_covers() -> None:
    data = encode_records(to_table(PLENTY), 5000).data
    table = scan_batches(data, "f")
    before = data.copy()
    assert stamp_batches(data, table.sizes, 10**12, 2**31 - 1) == 10**12 + len(PLENTY)
    stamped = scan_batches(data, "f")
    assert stamped.base_offsets.tolist() == (table.base_offsets + 10**12).tolist()
    for position, size in zip(table.positions.tolist(), table.sizes.tolist(), strict=True):
        assert (data[position + 16 : position + size] == before[position + 16 : position + size]).all()
    assert to_rows(decode(data.tobytes())) == PLENTY


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.integers(0, 5))
def test_the_lengths_of_a_view_array_are_those_of_its_values(values: list[bytes | None], first: int) -> None:
    array = pa.array(values, pa.binary_view()).slice(first)

    assert view_lengths(array).tolist() == [len(value or b"") for value in values[first:]]
