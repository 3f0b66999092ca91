"""Tests that dead letters are complete and are written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pipeline.delta.dead_letters
from lakelog.dead_letter_tables import export_dead_letters_key, ingest_dead_letters_key
from lakelog.spark.types import spark_struct
from pipeline.delta.dead_letters import (
    EXPORT_DEAD_LETTERS,
    INGEST_DEAD_LETTERS,
    append_dead_letters,
    append_staged_dead_letters,
)
from storage_engine.storage import Storage
from tests.roots.delta_tables import rows_of_table, table_at
from tests.stores import root_at, storage_at

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


UNDECODABLE = ("undecodable", None, "t", 0, 5, None, b"k", b"v", None, None, None)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_at(tmp_path)


def staged(storage: Storage, *letters: dict[str, object]) -> str:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(letters), INGEST_DEAD_LETTERS), buffer)
    key = f"staging/{len(list(storage.list('staging/')))}.parquet"
    storage.put_new(key, buffer.getvalue().to_pybytes())
    return key


def rows(storage: Storage) -> list[Any]:
    return rows_of_table(storage, "table")


def test_staged_rows_of_all_tasks_arrive_whole_and_spark_reads_them(spark: SparkSession, storage: Storage) -> None:
    second = LETTER | {"task": 2}
    append_staged_dead_letters(storage, [staged(storage, LETTER), staged(storage, second)], "table", "q", 3)
    assert sorted(rows(storage), key=lambda row: str(row["task"])) == [LETTER, second]
    found = spark.read.format("delta").load(f"{storage.uri}/table").where("task = 2").collect()
    assert [bytes(row["value"]) for row in found] == [LETTER["value"]]


def test_repeated_batch_finds_its_dead_letters_there(storage: Storage) -> None:
    file = staged(storage, LETTER)
    for batch_id in (3, 3, 4, 3, 4):
        append_staged_dead_letters(storage, [file], "table", "q", batch_id)
    assert len(rows(storage)) == 2
    append_staged_dead_letters(storage, [file], "table", "another query", 3)
    assert len(rows(storage)) == 3


def test_spark_and_the_driver_keep_to_the_same_guard(spark: SparkSession, storage: Storage) -> None:
    append_staged_dead_letters(storage, [staged(storage, LETTER)], "table", "q", 3)
    table = f"{storage.uri}/table"
    same = spark.createDataFrame([tuple(LETTER.values())], spark_struct(INGEST_DEAD_LETTERS))
    append_dead_letters(same, table, "q", 3)
    assert len(rows(storage)) == 1
    append_dead_letters(same, table, "q", 4)
    append_staged_dead_letters(storage, [staged(storage, LETTER)], "table", "q", 4)
    assert len(rows(storage)) == 2


def test_two_drivers_with_one_batch_add_it_once(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    file = staged(storage, LETTER)
    append_staged_dead_letters(storage, [file], "table", "q", 2)
    write = deltalake.write_deltalake

    def while_another_commits(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(pipeline.delta.dead_letters, "write_deltalake", write)
        append_staged_dead_letters(storage, [file], "table", "q", 3)
        write(*arguments, **options)

    monkeypatch.setattr(pipeline.delta.dead_letters, "write_deltalake", while_another_commits)
    append_staged_dead_letters(storage, [file], "table", "q", 3)
    assert len(rows(storage)) == 2


def test_plain_readers_can_read_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = root_at(tmp_path / "table")
    append_dead_letters(
        spark.createDataFrame([UNDECODABLE], spark_struct(EXPORT_DEAD_LETTERS)),
        table,
        "a",
        0,
    )
    protocol = table_at(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_each_topic_has_a_table_of_each_kind() -> None:
    assert ingest_dead_letters_key("flights") == "tables/dead_letters/ingest/flights"
    assert export_dead_letters_key("flights") == "tables/dead_letters/export/flights"
