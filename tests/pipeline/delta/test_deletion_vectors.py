"""Upsert tables with deletion vectors: which exports make them, and that every program reads the same rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import DataFrame, SparkSession

from lakelog.delta.rows import count_rows, open_rows
from lakelog.report.exported_tables import StaleRows, count_stale_rows
from lakelog.spark.splits import RECORDS, RecordTask, read_topic
from pipeline.delta.export_plan import Export
from pipeline.delta.exporting import export_increment
from pipeline.delta.files import upserting
from pipeline.delta.files.upserting import INDEX_BYTES
from pipeline.delta.rebuild.rebuilding import rebuild_table
from pipeline.delta.table_history import read_head
from pipeline.delta.table_layout import TableReadersError
from pipeline.delta.table_properties import TableLayout
from pipeline.delta.upkeep.small_files import SmallFileRule
from pipeline.delta.upkeep.upkeep_run import keep_tables
from storage_engine.progress import NO_PROGRESS
from storage_engine.topic.readers.consumer_files import read_consumers
from tests.pipeline.delta.order_log import Log, run
from tests.pipeline.delta.order_models import Order, schema_of
from tests.pipeline.delta.proof.exported_topic import KEYS, ExportedTopic
from tests.roots.delta_tables import age, table_at
from tests.roots.duckdb_delta import rows_in_duckdb
from tests.stores import root_at

pytestmark = pytest.mark.spark
VECTORS = TableLayout(deletion_vectors=True)
NO_RETENTION = "delta.logRetentionDuration = 'interval 0 days', delta.deletedFileRetentionDuration = 'interval 0 days'"
Row = dict[str, Any]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def with_deltalake(table: str) -> list[Row]:
    return in_order(open_rows(table_at(table)).read_all().to_pylist())


def with_polars(table: str) -> list[Row]:
    return in_order(pl.scan_delta(table).collect().to_arrow().to_pylist())


def with_spark(spark: SparkSession, table: str) -> list[Row]:
    rows = spark.read.format("delta").load(table).toArrow()
    return in_order(rows.cast(pa.schema(table_at(table).schema().to_arrow())).to_pylist())


def vectors(table: DeltaTable) -> int:
    """The number of files with deletion vectors."""
    return len(pa.table(table.deletion_vectors()))


def add_orders(log: Log, chance: random.Random, count: int) -> None:
    for _ in range(count):
        log.add(b"%d" % chance.randrange(60), chance.choice([None, b"bad", *range(9)]), chance.randrange(2))


@pytest.mark.posix("DuckDB and Polars of this test read local tables")
def test_each_reader_sees_the_rows_of_a_table_without_deletion_vectors(
    log: Log, upsert: Export, tmp_path: Path
) -> None:
    chance = random.Random(5)
    for number in range(60):
        log.add(b"%d" % number, number, number % 2)
    export, plain = replace(upsert, layout=VECTORS), replace(upsert, table=root_at(tmp_path / "plain"))
    for turn in range(4):
        add_orders(log, chance, 12 * turn)
        log.with_spark = turn % 2 == 1
        before = vectors(table_at(export.table)) if turn else 0
        run(log, export)
        assert vectors(table_at(export.table)) >= before
    run(log, plain)
    table = table_at(export.table)
    assert vectors(table) > 0
    rows = with_deltalake(plain.table)
    assert 10 < len(rows) < 60
    assert with_spark(log.spark, export.table) == rows
    assert with_polars(export.table) == rows
    assert with_deltalake(export.table) == rows
    assert in_order(rows_in_duckdb(export.table)) == rows
    assert in_order(open_rows(table, ["_partition", "_offset"]).read_all().to_pylist()) == [
        {name: row[name] for name in ("_partition", "_offset")} for row in rows
    ]
    assert count_rows(table) == len(rows)
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        table.to_pyarrow_table()  # why `deltalake` in export.readers means no deletion vectors


# --- Proof, fresh views and upkeep ----------------------------------------------------------------------------------


@pytest.fixture
def topic(tmp_path: Path) -> ExportedTopic:
    """A topic whose table has deletion vectors after an export with Spark."""
    found = ExportedTopic(tmp_path, partitions=2, digest=True)
    found.export = replace(found.export, layout=VECTORS)
    return found


def export_with_spark(spark: SparkSession, topic: ExportedTopic) -> None:
    def read(
        first: Mapping[int, int], end: Mapping[int, int], known: Mapping[int, int], then: RecordTask = RECORDS
    ) -> DataFrame:
        return read_topic(spark, topic.storage, topic.state(), first, end, known, NO_PROGRESS, then)

    result = export_increment(spark, topic.export, topic.ranges(), read, max_share=1)
    topic.register(result.positions_after)


def test_proof_report_and_fresh_views_read_deletion_vectors(spark: SparkSession, topic: ExportedTopic) -> None:
    chance = random.Random(11)
    topic.append(*((key, 1) for key in KEYS))
    for _ in range(4):
        export_with_spark(spark, topic)
        topic.append(*((chance.choice(KEYS), chance.choice([5, 6, 7, None, b"{"])) for _ in range(5)))
    table = table_at(topic.export.table)
    assert vectors(table) > 0
    assert topic.prove().answer == "equal"
    assert topic.prove(since=2).answer == "equal"
    stale = sum(row["_stale_since"] is not None for row in with_deltalake(topic.export.table))
    assert stale > 0
    consumers = read_consumers(topic.storage, topic.state()).known
    assert count_stale_rows(topic.storage, consumers) == (StaleRows("tables/orders", stale),)
    fresh = in_order(topic.topic.table(schema=schema_of(Order).text).to_arrow().to_pylist())
    export_with_spark(spark, topic)
    assert fresh == with_deltalake(topic.export.table)

    spark.sql(f"DELETE FROM delta.`{topic.export.table}` WHERE _key = '{fresh[0]['_key'].decode()}'")
    differences = topic.prove().findings.differences
    assert (fresh[0]["_partition"], fresh[0]["_offset"], "the record has no row") in map(tuple, differences)


@pytest.mark.posix("DuckDB and Polars of this test read local tables")
def test_maintenance_keeps_a_table_with_deletion_vectors_small(
    spark: SparkSession, topic: ExportedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MERGE of Spark and Lakelog's own upserts write vectors into the same table, before and after the maintenance."""

    def export_twice() -> None:
        for most_bytes in (0, INDEX_BYTES):
            monkeypatch.setattr(upserting, "INDEX_BYTES", most_bytes)
            topic.append(*((chance.choice(KEYS), chance.choice([5, 6, None, b"{"])) for _ in range(5)))
            export_with_spark(spark, topic)

    chance = random.Random(3)
    topic.append(*((key, 1) for key in KEYS))
    export_with_spark(spark, topic)
    spark.sql(f"ALTER TABLE delta.`{topic.export.table}` SET TBLPROPERTIES ({NO_RETENTION})")
    table = topic.export.table
    for _ in range(2):
        export_twice()
        assert vectors(table_at(table)) > 0
        operations = [each["operation"] for each in table_at(table).history(2)]
        assert operations == ["WRITE", "MERGE"]
        rows = with_deltalake(table)
        for _ in range(2):  # the second run deletes the files that the first run joined
            age(table)  # no younger file that the log does not name is deleted
            report = keep_tables(topic.topics, ["orders"], SmallFileRule(1, 32 << 20))
            assert (report.warnings, report.failures) == ([], [])
        assert vectors(table_at(table)) == 0
        names = [each.name for each in Path(table).iterdir() if not each.name.startswith((".", "_"))]
        assert names == [Path(each).name for each in table_at(table).file_uris()]
        found = with_spark(spark, table), with_polars(table), with_deltalake(table), in_order(rows_in_duckdb(table))
        assert found == (rows, rows, rows, rows)
        proof = topic.prove(since=1)
        assert (proof.answer, proof.findings.differences) == ("equal", [])
        topic.append((KEYS[0], 7), (KEYS[1], None))
        fresh = in_order(topic.topic.table(schema=schema_of(Order).text).to_arrow().to_pylist())
        export_with_spark(spark, topic)
        assert fresh == with_deltalake(table) == with_spark(spark, table)


def test_a_rebuild_replaces_rows_with_deletion_vectors(log: Log, upsert: Export, tmp_path: Path) -> None:
    for number in range(30):
        log.add(b"%d" % number, number)
    export = replace(upsert, layout=VECTORS)
    run(log, export)
    for number in range(5):
        log.add(b"%d" % number, None if number % 2 else 100 + number)
    run(log, export)
    assert vectors(table_at(export.table)) > 0
    before = with_deltalake(export.table)
    head = read_head(export.table)
    assert head is not None
    result = rebuild_table(log.spark, export, head, log.ranges(), log.read, log.ranges)
    assert (result.before, result.exported.written, result.lost.total) == (28, 28, 0)
    assert vectors(table_at(export.table)) == 0
    assert with_deltalake(export.table) == with_spark(log.spark, export.table) == before
    log.add(b"9", 200)
    run(log, export)
    assert vectors(table_at(export.table)) == 1
    assert [row["number"] for row in with_deltalake(export.table)][-2:] == [104, 200]


# --- Which tables have deletion vectors -----------------------------------------------------------------------------


def test_a_table_that_exists_gets_deletion_vectors_when_the_settings_ask_for_them(log: Log, upsert: Export) -> None:
    for number in range(30):
        log.add(b"%d" % number, number)
    run(log, upsert)
    log.add(b"1", 100)
    wanted = replace(upsert, layout=VECTORS)
    run(log, wanted)
    assert vectors(table_at(upsert.table)) == 1
    log.add(b"2", None)
    run(log, upsert)  # without the setting, the table stays as it is
    assert vectors(table_at(upsert.table)) > 0
    assert [row["number"] for row in with_deltalake(upsert.table)] == [0, *range(3, 30), 100]


def test_an_export_is_refused_if_a_named_reader_cannot_read_the_table(log: Log, upsert: Export) -> None:
    log.add(b"1", 1)
    run(log, replace(upsert, layout=VECTORS))
    log.add(b"1", 2)
    version = table_at(upsert.table).version()
    with pytest.raises(TableReadersError, match=r"export\.readers names a program"):
        run(log, replace(upsert, layout=TableLayout(deletion_vectors=False)))
    assert table_at(upsert.table).version() == version
