"""Compares encoded batches with those of two other implementations of Kafka's format."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from storage_engine.errors import InvalidRecordError
from storage_engine.record.batch import scan_batches
from storage_engine.record.compression import Codec, compress
from storage_engine.record.crc import check_crcs
from storage_engine.record.encoding import (
    BatchProducer,
    compress_again,
    encode_records,
    encode_rows,
    seal_chosen_batches,
)
from storage_engine.record.header import BATCH_HEADER, CRC_START, HEADER_BYTES
from storage_engine.record.record_columns import record_buffers
from tests.storage_engine.record_tables import Row, row_lists, to_table

NO_LIMIT = 2**31 - 1
NULLABLE_NAMES = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
BUILDERS = [KafkaPythonBuilder, AiokafkaBuilder]


def built(builder_class, rows, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    producer_id, epoch, sequence = producer
    builder = builder_class(
        magic=2, compression_type=0, is_transactional=producer_id >= 0, producer_id=producer_id, producer_epoch=epoch,
        base_sequence=sequence, batch_size=NO_LIMIT,
    )  # fmt: skip
    for number, row in enumerate(rows):
        headers = list(row.headers)
        builder.append(number, timestamp=row.timestamp, key=row.key, value=row.value, headers=headers)
    return bytes(builder.build())


def assert_same_batch(ours: bytes, theirs: bytes) -> None:
    """Return all fields except the leader epoch, which the log stamps."""
    assert (ours[:12], ours[16:]) == (theirs[:12], theirs[16:])


@pytest.mark.parametrize("builder_class", BUILDERS)
@given(rows=row_lists)
def test_a_batch_has_the_bytes_that_other_clients_write(builder_class, rows) -> None:
    run = encode_records(to_table(rows), NO_LIMIT)
    assert len(run.sizes) == 1
    assert_same_batch(run.data.tobytes(), built(builder_class, rows))


@pytest.mark.parametrize("builder_class", BUILDERS)
@given(
    rows=row_lists,
    producer=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
)
def test_a_batch_of_a_transaction_has_the_bytes_that_other_clients_write(builder_class, rows, producer) -> None:
    run = encode_records(to_table(rows), NO_LIMIT, producer=BatchProducer(*producer))
    assert_same_batch(run.data.tobytes(), built(builder_class, rows, producer))


def test_sequences_go_on_from_batch_to_batch_and_begin_again_behind_the_largest() -> None:
    rows = [Row(None, bytes(100)) for _ in range(6)]
    for codec in (Codec.NONE, Codec.LZ4):
        run = encode_records(to_table(rows), 350, codec, producer=BatchProducer(7, 0, 2**31 - 3))
        table = scan_batches(run.data, "")
        assert table.records_counts.tolist() == [2, 2, 2]
        assert table.base_sequences.tolist() == [2**31 - 3, 2**31 - 1, 1]
        check_crcs(run.data, table, "")


@pytest.mark.parametrize("builder_class", BUILDERS)
def test_a_value_of_a_mebibyte_has_the_bytes_that_other_clients_write(builder_class) -> None:
    rows = [Row(b"k", bytes(range(256)) * 4096), Row(None, b"")]
    assert_same_batch(encode_records(to_table(rows), NO_LIMIT).data.tobytes(), built(builder_class, rows))


@given(rows=row_lists, batch_bytes=st.integers(0, 600))
def test_batches_are_cut_before_the_record_that_would_pass_the_limit(rows, batch_bytes) -> None:
    run = encode_records(to_table(rows), batch_bytes)
    assert run.records.sum() == len(rows)
    assert run.sizes.sum() == len(run.data)
    first = 0
    for batch, count in enumerate(run.records.tolist()):
        assert run.sizes[batch] <= batch_bytes or count == 1
        part = rows[first : first + count]
        start = int(run.sizes[:batch].sum())
        ours = run.data[start : start + int(run.sizes[batch])].tobytes()
        assert_same_batch(ours, first.to_bytes(8, "big") + built(AiokafkaBuilder, part)[8:])
        times = [row.timestamp for row in part]
        assert (run.min_timestamps[batch], run.max_timestamps[batch]) == (min(times), max(times))
        first += count
        if first < len(rows):
            grown = encode_records(to_table([*part, rows[first]]), NO_LIMIT)
            assert len(grown.data) > batch_bytes, "the next record would have fitted"


@given(rows=row_lists, data=st.data())
def test_chosen_rows_are_encoded_in_the_order_asked_for(rows, data) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1))
    run = encode_rows(record_buffers(to_table(rows)), np.array(chosen, np.int64), NO_LIMIT)
    expected = encode_records(to_table([rows[number] for number in chosen]), NO_LIMIT)
    assert run.data.tobytes() == expected.data.tobytes()


@given(rows=row_lists, start=st.integers(0, 25))
def test_a_slice_of_columns_is_encoded_like_its_rows(rows, start) -> None:
    records = to_table(rows).slice(start)
    if start >= len(rows):
        assert len(encode_records(records, NO_LIMIT).sizes) == 0
    else:
        expected = encode_records(to_table(rows[start:]), NO_LIMIT).data.tobytes()
        assert encode_records(records, NO_LIMIT).data.tobytes() == expected


def test_append_time_stands_in_the_header_only() -> None:
    rows = [Row(b"k", b"v", timestamp=5), Row(b"k", b"v", timestamp=9)]
    create, append = (encode_records(to_table(rows), NO_LIMIT, append_time=time).data for time in (None, 1000))
    header = np.frombuffer(append[:HEADER_BYTES].tobytes(), BATCH_HEADER)[0]
    assert (header["attributes"], header["base_timestamp"], header["max_timestamp"]) == (8, 5, 1000)
    assert append[HEADER_BYTES:].tobytes() == create[HEADER_BYTES:].tobytes()


def test_no_producer_is_named() -> None:
    header = np.frombuffer(encode_records(to_table([Row(b"k", b"v")]), 0).data[:HEADER_BYTES].tobytes(), BATCH_HEADER)
    assert header[["producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"]][0].tolist() == (-1,) * 4


def test_no_records_give_no_batch() -> None:
    run = encode_records(to_table([]), NO_LIMIT)
    assert len(run.data) == len(run.sizes) == len(scan_batches(run.data, "f")) == 0


def test_a_null_list_of_headers_is_an_empty_one() -> None:
    table = to_table([Row(b"k", b"v", (("a", b"1"),)), Row(b"k", b"v")])
    nulled = table.set_column(2, "headers", pa.array([[{"key": "a", "value": b"1"}], None], table["headers"].type))
    assert encode_records(nulled, NO_LIMIT).data.tobytes() == encode_records(table, NO_LIMIT).data.tobytes()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("timestamp", pa.array([None], pa.int64())),
        ("timestamp", pa.array([1], pa.timestamp("ms"))),
        ("value", pa.array(["text"])),
        ("headers", pa.array([["text"]])),
        ("headers", pa.array([[{"key": None, "value": b"1"}]], NULLABLE_NAMES)),
    ],
)
def test_a_column_of_another_shape_is_refused(column, values) -> None:
    table = to_table([Row(b"k", b"v")])
    columns = {name: values if name == column else table[name] for name in table.schema.names}
    with pytest.raises(InvalidRecordError, match=f"column `{column}`"):
        encode_records(pa.RecordBatch.from_pydict(columns), NO_LIMIT)


@pytest.mark.parametrize("codecs", [list(Codec), [Codec.LZ4, Codec.LZ4], [Codec.NONE, Codec.ZSTD, Codec.NONE]])
def test_batches_are_compressed_again_each_by_its_own_codec(codecs) -> None:
    runs = [
        encode_records(to_table([Row(b"key", bytes(1000 + codec))]), NO_LIMIT, codec=Codec.NONE) for codec in codecs
    ]
    for run, codec in zip(runs, codecs, strict=True):
        run.data[:HEADER_BYTES].view(BATCH_HEADER)["attributes"] |= codec
    data, sizes = (np.concatenate([getattr(run, name) for run in runs]) for name in ("data", "sizes"))
    out, new_sizes = compress_again(data, sizes, np.array(codecs, np.int64))
    seal_chosen_batches(out, new_sizes, np.ones(len(codecs), np.bool_))
    table = scan_batches(out, "batches")
    check_crcs(out, table, "batches")
    assert (table.end, table.sizes.tolist(), table.codecs.tolist()) == (len(out), new_sizes.tolist(), codecs)
    for run, codec, start, size in zip(runs, codecs, table.positions.tolist(), new_sizes.tolist(), strict=True):
        batch, before = out[start : start + size].tobytes(), run.data.tobytes()
        assert batch[CRC_START:HEADER_BYTES] == before[CRC_START:HEADER_BYTES]
        assert batch[HEADER_BYTES:] == compress(codec, before[HEADER_BYTES:])
