"""The chain of digests in tables that Spark writes: the same as without Spark, and unbroken by each kind of commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.delta import table_schema
from pipeline.delta.export_plan import Export, ExportBounds, ExportMode
from pipeline.delta.fresh.snapshot import exported_head
from pipeline.delta.proof.chain_proof import ChainProof, prove_chain
from pipeline.delta.proof.exported_table import open_exported_table
from pipeline.delta.rebuild.rebuilding import RebuildOptions, rebuild_table
from pipeline.delta.replaying import replay
from pipeline.delta.table_history import ForeignCommitError, read_head
from pipeline.delta.table_stamp import Stamp
from tests.pipeline.delta.order_log import Log, rows, run
from tests.pipeline.delta.order_models import MendedOrder, MendedOrderWithPrice, Trip, WideTrip, schema_of
from tests.roots.delta_tables import table_at
from tests.stores import root_at

pytestmark = pytest.mark.spark


def add_some(log: Log, *, first: int = 0) -> None:
    """Two records of each of six keys, in two partitions; some are tombstones or cannot be decoded."""
    for number in range(12):
        key = b"key-%d" % ((number + first) % 6)
        value: int | bytes | None = {3: None, 8: None, 5: b"{", 7: b'{"nummer": 70}', 11: b"x"}.get(
            number, number + first
        )
        log.add(key, value, partition=number % 2)
    log.add(b"key-1", 1000 + first, partition=1)


def stamp_of(export: Export) -> Stamp:
    return exported_head(export.table).stamp


def proved(export: Export) -> ChainProof:
    """The proof of the chain. There is no difference."""
    proof = prove_chain(open_exported_table(export, None), None)
    assert proof is not None
    assert proof.findings.differences == []
    assert proof.rows == len(rows(export.table))
    return proof


def by_offset(export: Export) -> list[dict[str, Any]]:
    return sorted(rows(export.table), key=lambda row: (row["_partition"], row["_offset"]))


@pytest.mark.parametrize(("mode", "has_schema"), [*((mode, True) for mode in ExportMode), (ExportMode.UPSERT, False)])
def test_spark_makes_the_same_chain(
    log: Log, upsert: Export, tmp_path: Path, mode: ExportMode, *, has_schema: bool
) -> None:
    export = replace(upsert, mode=mode, digest=True, schema=upsert.schema if has_schema else None)
    other = replace(export, table=root_at(tmp_path / "by Spark"), dead_letters=root_at(tmp_path / "their dead letters"))
    for round_number in range(2):
        add_some(log, first=100 * round_number)
        for each, with_spark in ((export, False), (other, True)):
            log.with_spark = with_spark
            run(log, each)
        one, by_spark = (stamp_of(each).chain for each in (export, other))
        assert one is not None
        assert by_spark is not None
        assert one.partitions == by_spark.partitions
    assert by_offset(export) == by_offset(other)
    assert [proved(each).stamps for each in (export, other)] == [2, 2]


@pytest.mark.parametrize("mode", [ExportMode.UPSERT, ExportMode.APPEND])
def test_no_kind_of_commit_breaks_the_chain(spark: SparkSession, log: Log, upsert: Export, mode: ExportMode) -> None:
    export = replace(upsert, mode=mode, digest=True)
    add_some(log)
    run(log, export)
    log.with_spark = True
    add_some(log, first=3)
    run(log, export, ExportBounds(from_offsets={0: 2}))  # rows are replaced
    assert proved(export).stamps == 2
    wider = replace(export, schema=schema_of(MendedOrderWithPrice))
    add_some(log, first=100)
    run(log, wider)  # a column is added
    assert proved(wider).stamps == 3
    mended = replace(wider, schema=schema_of(MendedOrder))
    result = replay(spark, mended, log.ranges(), log.read, log.ranges)
    assert result.replayed + result.superseded > 0
    assert proved(wider).stamps == 4
    head = read_head(export.table)
    assert head is not None
    rebuild_table(
        spark,
        mended,
        head,
        log.ranges(),
        log.read,
        log.ranges,
        options=RebuildOptions(max_share=1),
    )
    assert proved(mended).stamps == 1
    table_at(export.table).restore(2)
    assert proved(export).stamps == 2
    add_some(log, first=200)
    run(log, wider)
    assert proved(wider).stamps == 3


def test_wider_numbers_change_no_digest(log: Log, append: Export) -> None:
    export = replace(append, digest=True, schema=schema_of(Trip))
    trip = b'{"number": %d, "count": 7, "price": "1.50", "marks": [1, null], "legs": [{"distance": 3}]}'
    log.add(b"a", trip % 1)
    run(log, export)
    before = by_offset(export)[0]["_digest"]
    log.add(b"b", trip % 2)
    wide = replace(export, schema=schema_of(WideTrip))
    run(log, wide)
    assert by_offset(wide)[0]["_digest"] == before
    assert table_at(export.table).version() == 4
    assert proved(wide).stamps == 3  # the rewrite has a stamp, too


def test_a_commit_just_before_the_rewrite_stops_the_export(
    log: Log, append: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = replace(append, digest=True, schema=schema_of(Trip))
    trip = b'{"number": %d, "count": 7, "price": "1.50", "marks": [1, null], "legs": [{"distance": 3}]}'
    log.add(b"a", trip % 1)
    log.add(b"b", trip % 2)
    run(log, export)
    log.add(b"c", trip % 3)
    wide = replace(export, schema=schema_of(WideTrip))
    rewrite = table_schema._rewrite

    def after_another_writer(*arguments: Any, **named: Any) -> int:
        monkeypatch.undo()
        table_at(export.table).delete("_offset = 0")
        return rewrite(*arguments, **named)

    monkeypatch.setattr(table_schema, "_rewrite", after_another_writer)
    with pytest.raises(
        ForeignCommitError, match=r"version 3 was committed by another writer.*RESTORE the table to version 2"
    ):
        run(log, wide)
    assert [row["_offset"] for row in by_offset(export)] == [1]  # the export itself was not made
    table_at(export.table).restore(2)
    run(log, wide)
    assert [row["_offset"] for row in by_offset(export)] == [0, 1, 2]
    assert proved(wide).stamps == 3


CHANGES: list[Callable[[SparkSession, str], object]] = [
    lambda spark, path: spark.sql(f"DELETE FROM delta.`{path}` WHERE _offset = 0"),
    lambda spark, path: spark.sql(f"INSERT INTO delta.`{path}` SELECT * FROM delta.`{path}` LIMIT 1"),
]


def test_only_commits_that_change_rows_stop_an_export(spark: SparkSession, log: Log, append: Export) -> None:
    export = replace(append, digest=True)
    log.add(b"a", 1)
    run(log, export)
    log.add(b"b", 2)
    run(log, export)
    spark.sql(f"OPTIMIZE delta.`{export.table}`")
    spark.sql(f"ALTER TABLE delta.`{export.table}` SET TBLPROPERTIES (delta.logRetentionDuration = 'interval 9 days')")
    spark.sql(f"ALTER TABLE delta.`{export.table}` ADD COLUMNS (note STRING)")
    spark.sql(f"VACUUM delta.`{export.table}`")
    log.add(b"c", 3)
    run(log, export)
    version = table_at(export.table).version()
    for change in CHANGES:
        change(spark, export.table)
        log.add(b"d", 4)
        for log.with_spark in (False, True):
            with pytest.raises(
                ForeignCommitError, match=f"RESTORE the table to version {table_at(export.table).version() - 1}"
            ):
                run(log, export)
        table_at(export.table).restore(version)
        run(log, export)
        version = table_at(export.table).version()
    assert proved(export).rows == 5


def test_the_setting_ends_the_chain(log: Log, upsert: Export) -> None:
    export = replace(upsert, digest=True)
    log.add(b"a", 1)
    log.add(b"b", 2)
    run(log, export)
    table_at(export.table).update(predicate="_offset = 0", updates={"number": "8"})
    log.add(b"b", 3)
    run(log, replace(export, digest=False))
    log.add(b"c", 4)
    run(log, export)
    digests = [row["_digest"] is None for row in by_offset(export)]
    assert digests == [False, True, True]
    assert stamp_of(export).chain is None
    assert prove_chain(open_exported_table(export, None), None) is None
