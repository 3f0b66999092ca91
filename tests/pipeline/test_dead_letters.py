"""Dead letters arrive whole and once."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pipeline.dead_letters import (
    EXPORT_DEAD_LETTERS,
    INGEST_DEAD_LETTERS,
    append_dead_letters,
    export_dead_letters_key,
    ingest_dead_letters_key,
)
from pipeline.spark_types import spark_struct

LETTER: dict[str, object] = {
    "reason": "no key",
    "detail": None,
    "topic": "flights",
    "query_id": "q",
    "batch_id": 3,
    "task": 1,
    "row": 17,
    "source": "flights-2013-01.json",
    "key": None,
    "value": b"\x00\xff",
    "headers": [{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}],
}


def staged(directory: Path, *letters: dict[str, object]) -> str:
    file = directory / "staged.parquet"
    pq.write_table(pa.Table.from_pylist(list(letters), INGEST_DEAD_LETTERS), file)
    return str(file)


def test_staged_rows_arrive_whole(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = spark.read.schema(spark_struct(INGEST_DEAD_LETTERS)).parquet(staged(tmp_path, LETTER))
    append_dead_letters(rows, table, "q", 3)
    assert deltalake.DeltaTable(table).to_pyarrow_table().to_pylist() == [LETTER]


def test_repeated_batch_finds_its_dead_letters_there(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = spark.read.schema(spark_struct(INGEST_DEAD_LETTERS)).parquet(staged(tmp_path, LETTER))
    for batch_id in (3, 3, 4, 3, 4):
        append_dead_letters(rows, table, "q", batch_id)
    assert deltalake.DeltaTable(table).version() == 1
    append_dead_letters(rows, table, "another query", 3)
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 3


def test_nothing_to_write_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.read.schema(spark_struct(INGEST_DEAD_LETTERS)).parquet(staged(tmp_path))
    append_dead_letters(rows, str(tmp_path / "table"), "q", 0)
    assert not (tmp_path / "table").exists()


def test_plain_readers_can_read_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    append_dead_letters(
        spark.createDataFrame(
            [("undecodable", None, "t", 0, 5, None, b"k", b"v", None)], spark_struct(EXPORT_DEAD_LETTERS)
        ),
        table,
        "a",
        0,
    )
    protocol = deltalake.DeltaTable(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_each_topic_has_a_table_of_each_kind() -> None:
    assert ingest_dead_letters_key("flights") == "tables/dead_letters/ingest/flights"
    assert export_dead_letters_key("flights") == "tables/dead_letters/export/flights"
