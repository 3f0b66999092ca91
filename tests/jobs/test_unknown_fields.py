"""The column `_extra` of exported tables: both ways of writing, each mode, and each reader show the same unknown fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import lakelog
from jobs.export import export
from pipeline.export.export_request import add_export_options
from pipeline.export.proof_run import add_proof_options, prove_exports
from pipeline.job import run_job
from tests.roots.delta_tables import table_at
from tests.roots.duckdb_delta import rows_in_duckdb
from tests.schemas.avro.avro_values import encoded, record, with_id

MODES = pytest.mark.parametrize("mode", ["upsert", "append", "changelog"])
READER = record(("id", "long"))
WRITER = record(("id", "long"), ("colour", "string"), ("at", {"type": "int", "logicalType": "date"}))
Row = dict[str, Any]


class Place:
    """A root with the topic orders, and its export."""

    def __init__(
        self, folder: Path, schema: str = "id BIGINT NOT NULL", *, digest: bool = True, registry: str = ""
    ) -> None:
        self.folder = folder
        self.digest = digest
        self.schema, self.registry = schema, registry
        self.root = folder / "lake"
        self.topic = lakelog.open(self.root, create=True).create_topic("orders", partitions=1)
        self.table = str(self.root / "tables/orders")

    def append(self, *records: tuple[str, bytes | str | None]) -> None:
        """Append records: keys, and values or tombstones."""
        values = [(key, value.encode() if isinstance(value, str) else value) for key, value in records]
        self.topic.append([{"key": key.encode(), "value": value} for key, value in values])

    def run(self, *arguments: str, mode: str = "upsert", extra: bool = True, spark: bool = False) -> int:
        topic = {"partitions": 1, "cleanup.policy": "compact", "schema": self.schema}
        topic |= {"schema.registry": self.registry} if self.registry else {}
        wanted = {"topic": "orders", "mode": mode, "extra": extra, "digest": self.digest, "max.dead.letter.share": 1}
        settings = {"topics": {"orders": topic}, "export": wanted | ({"spark.records": 0} if spark else {})}
        (self.folder / "conf.yaml").write_text(json.dumps(settings))
        return run_job("export", "", export, add_export_options, [*self.options, *arguments], {})

    def prove(self) -> int:
        return run_job("prove", "", prove_exports, add_proof_options, self.options, {})

    @property
    def options(self) -> list[str]:
        return ["--conf", f"{self.folder}/conf.yaml", "--root", str(self.root)]

    def extras(self) -> list[tuple[int, int | None, str | None]]:
        rows = table_at(self.table).to_pyarrow_table().to_pylist()
        return sorted((row["_offset"], row["id"], row["_extra"]) for row in rows)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["_offset"])


@pytest.mark.spark
@MODES
def test_each_way_and_each_reader_have_the_same_unknown_fields(
    spark: SparkSession, tmp_path: Path, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, "id BIGINT NOT NULL, stops ARRAY<STRUCT<city: STRING>>")
    price = '{"price":0.12345678901234567890}'
    stops = '{"stops":[null,{"zip":"56"}]}'
    place.append(("a", '{"id": 1, "price": 0.12345678901234567890}'), ("b", '{"id": 2}'), ("c", '{"id": 3, "x": 1}'))
    assert place.run(mode=mode) == 0
    place.append(("c", '{"id": 4, "stops": [{"city": "Rome"}, {"city": "Pisa", "zip": "56"}]}'), ("d", '{"x": 1}'))
    assert place.run(mode=mode, spark=True) == 0
    place.append(("b", '{"id": 5, "x": {"é\\n": [true, null]}}'), ("c", '{"id": "x", "y": 1}'), ("e", None))
    fresh = place.topic.table(schema=place.schema)
    fresh_rows = in_order(fresh.to_arrow().to_pylist())
    assert place.run(mode=mode) == 0

    newest = [(0, 1, price), (3, 4, stops), (5, 5, '{"x":{"é\\n":[true,null]}}')]
    tombstone: list[tuple[int, int | None, str | None]] = [(7, None, None)] if mode == "changelog" else []
    all_rows = sorted([*newest, (1, 2, None), (2, 3, '{"x":1}'), *tombstone])
    assert place.extras() == (newest if mode == "upsert" else all_rows)
    rows = in_order(table_at(place.table).to_pyarrow_table().to_pylist())
    assert fresh_rows == rows
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    of_spark = spark.read.format("delta").load(place.table).toArrow().to_pylist()
    of_polars = pl.scan_delta(place.table).collect().to_arrow().to_pylist()
    assert in_order(of_spark) == rows
    assert in_order(of_polars) == rows
    assert in_order(rows_in_duckdb(place.table)) == rows
    assert place.prove() == 0
    capfd.readouterr()

    # A change of the column is found, and so is a row without it.
    table_at(place.table).update(predicate="_offset = 0", updates={"_extra": "'{\"price\":0.1}'"})
    assert place.prove() == 1
    assert "another value in _extra" in capfd.readouterr().out


def test_the_column_can_be_added_and_left_out_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    for number, extra in enumerate((False, True, False, True)):
        place.append((f"k{number}", f'{{"id": {number}, "x": {number}}}'))
        assert place.run(extra=extra) == 0
    assert place.extras() == [(0, 0, None), (1, 1, '{"x":1}'), (2, 2, None), (3, 3, '{"x":3}')]
    assert place.prove() == 0
    assert "equal as far as the log can tell" in capsys.readouterr().out
    place.append(("k0", '{"id": 9, "x": 9}'))
    assert place.run(extra=False) == 0
    assert place.extras()[-1] == (4, 9, None)
    assert place.prove() == 0


@pytest.mark.spark
def test_a_rebuild_fills_the_column(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    place.append(("a", '{"id": 1, "x": 1}'))
    assert place.run(extra=False) == 0
    assert place.run("--rebuild") == 0
    assert place.extras() == [(0, 1, '{"x":1}')]
    capsys.readouterr()
    assert place.prove() == 0
    assert "answer equal," in capsys.readouterr().out
    assert place.run("--rebuild", extra=False) == 0
    assert "_extra" not in table_at(place.table).to_pyarrow_table().column_names


def test_a_replay_keeps_unknown_fields(tmp_path: Path) -> None:
    place = Place(tmp_path, "id BIGINT NOT NULL, n BIGINT NOT NULL")
    place.append(("a", '{"id": 1, "x": 1}'), ("b", '{"id": 2, "n": 3, "x": 2}'))
    assert place.run() == 0
    assert place.extras() == [(1, 2, '{"x":2}')]
    place.schema = "id BIGINT NOT NULL, n BIGINT"
    assert place.run("--replay", "--accept-schema") == 0
    assert place.extras() == [(0, 1, '{"x":1}'), (1, 2, '{"x":2}')]
    assert place.prove() == 0


def test_fields_of_the_writers_schema_are_kept(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "1.avsc").write_text(json.dumps(WRITER))
    (tmp_path / "order.avsc").write_text(json.dumps(READER))
    place = Place(tmp_path, f"{tmp_path}/order.avsc", registry=f"{tmp_path}/schemas")
    place.append(("a", with_id(1, encoded(WRITER, {"id": 1, "colour": "red", "at": 0}))))
    assert place.run() == 0
    assert place.extras() == [(0, 1, '{"at":"1970-01-01","colour":"red"}')]
    assert place.prove() == 0


@pytest.mark.parametrize("digest", [True, False])
def test_a_field_that_was_unknown_can_get_a_column(
    tmp_path: Path, digest: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older rows keep it in the column. They are honest, with and without digests; a change of another column is found."""
    place = Place(tmp_path, digest=digest)
    place.append(("a", '{"id": 1, "price": 5}'), ("b", '{"id": 2, "price": 6}'))
    assert place.run() == 0
    place.schema = "id BIGINT NOT NULL, price BIGINT"
    place.append(("c", '{"id": 3, "price": 7}'))
    assert place.run() == 0
    rows = in_order(table_at(place.table).to_pyarrow_table().to_pylist())
    assert [(row["id"], row["price"], row["_extra"]) for row in rows] == [
        (1, None, '{"price":5}'), (2, None, '{"price":6}'), (3, 7, None),
    ]  # fmt: skip
    assert place.prove() == 0
    assert "answer equal as far as the log can tell" in capsys.readouterr().out
    table_at(place.table).update(predicate="id = 1", updates={"id": "9"})
    assert place.prove() == 1
    assert "another value in id" in capsys.readouterr().out


def test_the_column_cannot_partition_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    place.append(("a", '{"id": 1, "x": 1}'))
    assert place.run("--set", "export.partition.by=_extra") == 1
    assert "the column _extra has texts of any length" in capsys.readouterr().err


def test_without_a_schema_no_field_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    settings = {"topics": {"orders": {"partitions": 1}}, "export": {"topic": "orders", "extra": True}}
    (tmp_path / "conf.yaml").write_text(json.dumps(settings))
    assert run_job("export", "", export, add_export_options, place.options, {}) == 1
    told = capsys.readouterr().err
    assert "export.extra" in told
    assert "topic orders has no schema" in told
    assert not Path(place.table).exists()
