"""Exported tables with partition columns or clustering columns: both ways of writing, and that every program reads the
same rows.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakelog.delta.rows import open_rows
from pipeline.delta.export_plan import NO_BOUNDS, Export, ExportMode
from pipeline.delta.layout_columns import unfit_cluster, unfit_partition
from pipeline.delta.rebuild.rebuilding import rebuild_table
from pipeline.delta.rows.row_columns import UNDECODABLE
from pipeline.delta.table_history import plan_from_history, read_head
from pipeline.delta.table_layout import TableLayoutError
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.table_upkeep import keep_table
from pipeline.delta.without_spark.small_export import export_without_spark
from schemas.event_schema import EventSchema
from tests.pipeline.delta.order_log import Log, run, run_small
from tests.pipeline.delta.order_models import Order, Trip, schema_of
from tests.pipeline.delta.proof.exported_topic import ExportedTopic
from tests.roots.delta_tables import commit_file, table_at
from tests.roots.duckdb_delta import rows_in_duckdb
from tests.stores import root_at

BY_COLOUR = TableLayout(partition_by=("colour",))
COLOURS = ["red", "dark blue", "a/b=c%", "grün", "", None]
"""Some of them are percent-encoded in the names of folders, and in Delta's log once more."""
Row = dict[str, Any]


def order(number: int, colour: str | None) -> bytes:
    return json.dumps({"number": number, "colour": colour}).encode()


def add_orders(log: Log, chance: random.Random, count: int) -> None:
    """Some keys get another colour, so their rows move to another partition."""
    for _ in range(count):
        value = chance.choice([None, b"bad", *(order(number, chance.choice(COLOURS)) for number in range(6))])
        log.add(b"%d" % chance.randrange(30), value, chance.randrange(2))


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def with_deltalake(table: str) -> list[Row]:
    return in_order(open_rows(table_at(table)).read_all().to_pylist())


def as_partition(rows: list[Row]) -> list[Row]:
    """The rows of a table without partitions, as a table with the partition column `colour` has them."""
    return [row | {"colour": row["colour"] or None} for row in rows]


def folders(table: str) -> set[str | None]:
    """The values of the partition column of the table's files."""
    return set(pa.table(table_at(table).get_add_actions(flatten=True))["partition.colour"].to_pylist())


# --- Both ways of writing -------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.posix("DuckDB and Polars of this test read local tables")
@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_each_reader_sees_the_rows_of_a_table_without_partitions(
    log: Log, upsert: Export, tmp_path: Path, mode: ExportMode
) -> None:
    chance = random.Random(3)
    plain = replace(upsert, mode=mode, table=root_at(tmp_path / "plain"))
    export = replace(upsert, mode=mode, layout=BY_COLOUR)
    for turn in range(4):
        add_orders(log, chance, 20)
        log.with_spark = turn % 2 == 1
        run(log, export)
    assert run_small(log, plain) is not None
    rows = as_partition(with_deltalake(plain.table))
    assert len(rows) > 12
    assert table_at(export.table).metadata().partition_columns == ["colour"]
    assert folders(export.table) == {colour or None for colour in COLOURS}
    assert with_deltalake(export.table) == rows
    with_spark = log.spark.read.format("delta").load(export.table).toArrow()
    assert in_order(with_spark.cast(pa.schema(table_at(export.table).schema().to_arrow())).to_pylist()) == rows
    assert in_order(pl.scan_delta(export.table).collect().to_arrow().to_pylist()) == rows
    assert in_order(rows_in_duckdb(export.table)) == rows


@pytest.mark.spark
def test_the_first_upsert_of_a_partitioned_table_can_need_spark(log: Log, upsert: Export, tmp_path: Path) -> None:
    add_orders(log, random.Random(4), 20)
    plain = replace(upsert, table=root_at(tmp_path / "plain"))
    assert run_small(log, plain) is not None
    log.with_spark = True
    export = replace(upsert, layout=BY_COLOUR)
    run(log, export)
    assert table_at(export.table).metadata().partition_columns == ["colour"]
    assert with_deltalake(export.table) == as_partition(with_deltalake(plain.table))


@pytest.mark.parametrize("log", [False, True], indirect=True, ids=["without Spark", "with Spark"])
@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.UPSERT])
def test_a_text_that_is_too_long_for_the_name_of_a_folder_becomes_a_dead_letter(
    log: Log, upsert: Export, mode: ExportMode
) -> None:
    export = replace(upsert, mode=mode, layout=BY_COLOUR)
    longest = 255 - len("colour=")
    fits = ["x" * longest, "ä" * (longest // 6), "x y~" + "-" * (longest - 6)]
    for number, colour in enumerate([*fits, *(f"{each}ä" for each in fits)]):
        log.add(b"%d" % number, order(number, colour))
    log.add(b"0", order(6, fits[0] + "x"))
    done = run(log, export)
    assert (done.written, done.reasons) == (3, {UNDECODABLE: 4})
    assert [row["colour"] for row in with_deltalake(export.table)] == fits
    letters = table_at(export.dead_letters).to_pyarrow_table().sort_by("offset")
    assert letters["offset"].to_pylist() == [3, 4, 5, 6]
    assert {*letters["detail"].to_pylist()} == {"colour: the text is too long for a partition"}


@pytest.mark.parametrize("log", [False, True], indirect=True, ids=["without Spark", "with Spark"])
@pytest.mark.parametrize("mode", [ExportMode.APPEND, ExportMode.UPSERT])
def test_only_u_0000_cannot_be_in_the_name_of_a_partition(log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode, layout=BY_COLOUR)
    fits = [f"{chr(each)}a{chr(each)}b{chr(each)}" for each in (*range(1, 0x21), 0x7F, 0x85, 0x2028, 0xFEFF, 0xFFFF)]
    unfit = ["\0", "a\0b", "x" * 300 + "\0"]
    for number, colour in enumerate([*fits, *unfit]):
        log.add(b"%d" % number, order(number, colour))
    done = run(log, export)
    assert (done.written, done.reasons) == (len(fits), {UNDECODABLE: 3})
    rows = with_deltalake(export.table)
    assert [row["colour"] for row in rows] == fits
    assert in_order(log.spark.read.format("delta").load(export.table).toArrow().to_pylist()) == rows
    letters = table_at(export.dead_letters).to_pyarrow_table().sort_by("offset")
    assert letters["offset"].to_pylist() == [len(fits), len(fits) + 1, len(fits) + 2]
    assert letters["detail"].to_pylist() == [
        "colour: the text contains U+0000, so it cannot be the name of a partition",
        "colour: the text contains U+0000, so it cannot be the name of a partition",
        "colour: the text is too long for a partition",
    ]


@pytest.mark.parametrize("mode", list(ExportMode))
def test_the_settings_need_not_name_the_partitions_of_a_table_that_exists(tmp_path: Path, mode: ExportMode) -> None:
    topic = ExportedTopic(tmp_path, mode, partitions=1, digest=True)
    topic.export = replace(topic.export, layout=BY_COLOUR)
    topic.append((b"1", order(1, "red")))
    topic.run_export()
    topic.export = replace(topic.export, layout=TableLayout())
    topic.append((b"2", order(2, "grün")), (b"3", order(3, "")))
    topic.run_export()
    assert folders(topic.export.table) == {"red", "grün", None}
    assert [(row["number"], row["colour"]) for row in with_deltalake(topic.export.table)] == [
        (1, "red"), (2, "grün"), (3, None)
    ]  # fmt: skip
    assert topic.prove(topic.export).answer == "equal"


@pytest.mark.parametrize("log", [False, True], indirect=True, ids=["without Spark", "with Spark"])
@pytest.mark.parametrize(
    ("mode", "layout"),
    [(ExportMode.UPSERT, TableLayout()), (ExportMode.UPSERT, BY_COLOUR), (ExportMode.APPEND, BY_COLOUR)],
    ids=["upsert", "upsert, partitions", "append, partitions"],
)
def test_the_name_of_a_column_can_have_a_dot_and_a_backtick(
    log: Log, upsert: Export, mode: ExportMode, layout: TableLayout
) -> None:
    schema = EventSchema("number BIGINT, `a``b` STRING, `a.b` STRING, a STRUCT<b STRING>, colour STRING")
    export = replace(upsert, schema=schema, mode=mode, layout=layout)
    expected: list[Row] = []
    for number, colour in enumerate(["red", "red", "blue"]):
        row = {
            "number": number,
            "a`b": f"1 {number}",
            "a.b": f"2 {number}",
            "a": {"b": f"3 {number}"},
            "colour": colour,
        }
        log.add(b"k", json.dumps(row).encode())
        if number:
            log.add(b"k", b"bad")
        run(log, export)
        expected = [*expected, row] if mode is ExportMode.APPEND else [row]
    assert [{name: row[name] for name in expected[0]} for row in with_deltalake(export.table)] == expected


def test_an_upsert_moves_a_row_to_another_partition(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, partitions=1, digest=True)
    topic.export = replace(topic.export, layout=BY_COLOUR)
    topic.append((b"1", order(1, "red")), (b"2", order(2, "")), (b"3", order(3, None)))
    topic.run_export()
    topic.append((b"1", order(4, "dark blue")), (b"2", order(5, "red")), (b"3", None))
    view = topic.topic.table(schema=schema_of(Order).text).to_arrow().to_pylist()
    topic.run_export()
    rows = with_deltalake(topic.export.table)
    assert [(row["_key"], row["number"], row["colour"]) for row in rows] == [(b"1", 4, "dark blue"), (b"2", 5, "red")]
    assert folders(topic.export.table) == {"dark blue", "red"}
    assert in_order(view) == rows


@pytest.mark.posix("renames a folder")
def test_deltalake_removes_no_files_whose_paths_it_would_write_in_another_way(tmp_path: Path) -> None:
    """Spark writes the path of the folder `colour=grün` without encoding it. deltalake would remove the encoded
    path, and the old row would stay beside the new one."""
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.export = replace(topic.export, layout=BY_COLOUR)
    topic.append((b"1", order(1, "grün")))
    topic.run_export()
    table = Path(topic.export.table)
    (table / "colour=gr%C3%BCn").rename(table / "colour=grün")
    commit = commit_file(topic.export.table, 1)
    commit.write_bytes(commit.read_bytes().replace(b"gr%25C3%25BCn", "grün".encode()))
    assert [row["number"] for row in with_deltalake(topic.export.table)] == [1]
    topic.append((b"1", order(2, "red")))
    plan = plan_from_history(topic.export, topic.ranges(), NO_BOUNDS)
    assert plan is not None
    assert export_without_spark(topic.export, plan, topic.reader()) is None, "Spark must merge"


@pytest.mark.posix("renames a file")
@pytest.mark.parametrize("name", ["grün.parquet", "a*b.parquet", "part-1.c000.snappy.parquet"])
def test_deltalake_removes_no_files_whose_names_it_would_write_in_another_way(tmp_path: Path, name: str) -> None:
    topic = ExportedTopic(tmp_path, partitions=1)
    topic.append((b"1", order(1, "red")))
    topic.run_export()
    file = Path(*table_at(topic.export.table).file_uris())
    file.rename(file.with_name(name))
    commit = commit_file(topic.export.table, 1)
    commit.write_bytes(commit.read_bytes().replace(file.name.encode(), name.encode()))
    topic.append((b"1", order(2, "red")))
    plan = plan_from_history(topic.export, topic.ranges(), NO_BOUNDS)
    assert plan is not None
    assert (export_without_spark(topic.export, plan, topic.reader()) is None) == (not name.startswith("part-"))
    assert [row["number"] for row in with_deltalake(topic.export.table)] == [2 if name.startswith("part-") else 1]


@pytest.mark.parametrize("mode", list(ExportMode))
def test_a_partitioned_table_is_proven_with_the_values_that_readers_see(tmp_path: Path, mode: ExportMode) -> None:
    chance = random.Random(4)
    topic = ExportedTopic(tmp_path, mode, digest=True)
    topic.export = replace(topic.export, layout=BY_COLOUR)
    for _ in range(6):
        topic.append(*((b"%d" % chance.randrange(9), order(1, chance.choice(COLOURS))) for _ in range(9)))
        topic.run_export()
    as_in_table = replace(topic.export, layout=TableLayout())  # the table itself says how it is partitioned
    for export in (topic.export, as_in_table):
        proof = topic.prove(export)
        assert (proof.answer, proof.findings.differences) == ("equal", [])
        assert proof.chain is not None


# --- Maintenance ----------------------------------------------------------------------------------------------------


def test_maintenance_joins_the_small_files_of_each_partition(tmp_path: Path) -> None:
    topic = ExportedTopic(tmp_path, ExportMode.APPEND, digest=True)
    topic.export = replace(topic.export, layout=BY_COLOUR)
    for number in range(5):
        topic.append(*((b"k", order(number, colour)) for colour in COLOURS[: 3 + number % 3]))
        topic.run_export()
    rows = with_deltalake(topic.export.table)
    before = len(table_at(topic.export.table).file_uris())
    done = keep_table(topic.export.table, SmallFileRule(2, 32 << 20))
    assert done is not None
    assert (before - done.joined + done.made, done.left_alone) == (len(table_at(topic.export.table).file_uris()), None)
    assert (done.joined, done.made) == (18, 4)  # five files each of three colours, and three files of the fourth
    assert with_deltalake(topic.export.table) == rows
    assert topic.prove().answer == "equal"
    topic.append((b"k", order(9, "red")))
    topic.run_export()
    assert topic.prove().answer == "equal"
    again = keep_table(topic.export.table, SmallFileRule(2, 32 << 20))
    assert again is not None
    assert again.joined == 0


@pytest.mark.spark
def test_maintenance_joins_files_that_spark_has_written(log: Log, append: Export) -> None:
    log.with_spark = True
    export = replace(append, layout=BY_COLOUR)
    for number in range(2):
        for colour in COLOURS:
            log.add(b"k", order(number, colour))
        run(log, export)
    rows = with_deltalake(export.table)
    assert keep_table(export.table, SmallFileRule(1, 32 << 20)) is not None
    assert len(table_at(export.table).file_uris()) == len(COLOURS) - 1  # an empty text is stored as null
    found = log.spark.read.format("delta").load(export.table).toArrow()
    assert in_order(found.cast(pa.schema(table_at(export.table).schema().to_arrow())).to_pylist()) == rows


# --- Changed settings -----------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_another_partitioning_is_refused_until_a_rebuild(log: Log, upsert: Export) -> None:
    for number, colour in enumerate(COLOURS):
        log.add(b"%d" % number, order(number, colour))
    run(log, upsert)
    plain = with_deltalake(upsert.table)
    log.add(b"0", order(9, "green"))
    partitioned = replace(upsert, layout=BY_COLOUR)
    for log.with_spark in (True, False):
        with pytest.raises(
            TableLayoutError, match=r"not partitioned, but export\.partition\.by says colour.*--rebuild"
        ):
            run(log, partitioned)
    assert with_deltalake(upsert.table) == plain

    rebuild(log, partitioned)
    rebuilt = with_deltalake(upsert.table)
    assert [row["number"] for row in rebuilt] == [1, 2, 3, 4, 5, 9]
    assert folders(upsert.table) == {"dark blue", "a/b=c%", "grün", None, "green"}
    log.add(b"1", order(10, "red"))
    for layout in (
        TableLayout(partition_by=()),
        TableLayout(partition_by=("number",)),
        TableLayout(cluster_by=("number",)),
    ):
        with pytest.raises(TableLayoutError, match=r"is partitioned by colour, but export\..*--rebuild"):
            run(log, replace(upsert, layout=layout))
    assert with_deltalake(upsert.table) == rebuilt
    run(log, upsert)  # without the setting, the table stays as it is
    assert folders(upsert.table) == {"red", "a/b=c%", "grün", None, "green"}


def rebuild(log: Log, export: Export) -> None:
    head = read_head(export.table)
    assert head is not None
    rebuild_table(log.spark, export, head, log.ranges(), log.read, log.ranges)


def test_the_columns_of_a_layout_are_checked(upsert: Export) -> None:
    assert [unfit_partition(upsert, name) for name in ("colour", "number", "_partition")] == [None] * 3
    assert unfit_partition(upsert, "Colour") == "is no column of the table; the model has the columns number, colour"
    for name in ("_key", "_offset", "_timestamp", "_stale_since"):
        assert unfit_partition(upsert, name) == "is different in nearly each row"
    trips = replace(upsert, schema=schema_of(Trip))
    assert "only texts, whole numbers, booleans and dates" in (unfit_partition(trips, "price") or "")
    assert [unfit_cluster(trips, name) for name in ("price", "number", "_timestamp", "_offset")] == [None] * 4
    assert "only texts, numbers, dates and timestamps" in (unfit_cluster(trips, "legs") or "")
    assert unfit_cluster(trips, "distance") is not None


# --- Clustering -----------------------------------------------------------------------------------------------------


def clustering(spark: SparkSession, table: str) -> list[str]:
    found = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").first()
    assert found is not None
    return list(found["clusteringColumns"])


@pytest.mark.spark
@pytest.mark.posix("DuckDB and Polars of this test read local tables")
def test_spark_clusters_a_table_and_every_program_reads_it(log: Log, upsert: Export, tmp_path: Path) -> None:
    chance = random.Random(5)
    plain = replace(upsert, table=root_at(tmp_path / "plain"))
    export = replace(upsert, layout=TableLayout(cluster_by=("colour", "number")))
    for _ in range(2):
        add_orders(log, chance, 20)
        assert run_small(log, export) is None, "only Spark writes tables with clustering columns"
        run(log, export)
    assert run_small(log, plain) is not None
    rows = with_deltalake(plain.table)
    assert clustering(log.spark, export.table) == ["colour", "number"]
    optimized = log.spark.sql(f"OPTIMIZE delta.`{export.table}`").select("metrics.clusteringStats").first()
    assert optimized is not None
    assert optimized[0] is not None
    assert with_deltalake(export.table) == rows
    assert in_order(pl.scan_delta(export.table).collect().to_arrow().to_pylist()) == rows
    assert in_order(rows_in_duckdb(export.table)) == rows

    log.add(b"0", order(50, "red"))
    run(log, replace(export, layout=TableLayout(cluster_by=("number",))))
    assert clustering(log.spark, export.table) == ["number"]
    rebuild(log, replace(export, layout=TableLayout(cluster_by=("number",))))
    assert clustering(log.spark, export.table) == ["number"], "a rebuild keeps the clustering columns"
    assert run_small(log, plain) is not None
    assert with_deltalake(export.table) == with_deltalake(plain.table)
