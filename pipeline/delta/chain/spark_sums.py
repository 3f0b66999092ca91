"""Sums the digests of rows with Spark: of the rows that an upsert adds to a table, and of those that it removes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.delta.chain.digest_sums import sums_by_partition
from pipeline.delta.chain.stamp_chain import RowSum, added
from pipeline.delta.rows.row_columns import COORDINATES, DIGEST
from pipeline.delta.rows.upserted_rows import DECIDES, WINS

_SUMS = "side INT, partition INT, rows BIGINT, digest STRING"
_SIDES = ("one", "other")


def sums_of(rows: DataFrame) -> dict[int, RowSum]:
    """The rows with the columns `_partition` and `_digest`, by partition."""
    nothing = F.lit(None)
    pairs = rows.select(
        F.col("_partition").alias("one"), F.col(DIGEST.name).alias("one_digest"),
        nothing.cast("int").alias("other"), nothing.cast("binary").alias("other_digest"),
    )  # fmt: skip
    return _summed(pairs)[0]


def sums_of_upsert(
    spark: SparkSession, table: str, version: int, source: DataFrame, began: Mapping[int, int]
) -> tuple[dict[int, RowSum], dict[int, RowSum]]:
    """The rows that an upsert adds to a table, and the rows that it removes or replaces, by partition.

    Args:
        version: the version of the table.
        source: one row for each key (upserted_rows.upsert_source).
        began: as in `pipeline.delta.table_writing.merge_rows`.
    """
    rows = spark.read.format("delta").option("versionAsOf", version).load(table)
    rows = rows.select(*COORDINATES.names, DIGEST.name)
    if not began:  # Spark can broadcast a small source to this join, and then shuffles no row of the table
        rows = rows.join(source.select(F.col("_key").alias("_wanted")), F.expr("_key = _wanted"), "left_semi")
    joined = source.alias("s").join(rows.alias("t"), F.expr("s._key = t._key"), "full_outer" if began else "left")
    has_row = F.col("t._key").isNotNull()
    wins = F.when(has_row, F.coalesce(F.expr(WINS), F.lit(False))).otherwise(F.expr(DECIDES))
    goes = wins & has_row
    for partition, start in began.items():
        is_rebuilt = (F.col("t._partition") == partition) & (F.col("t._offset") >= start)
        goes = goes | (F.col("s._key").isNull() & is_rebuilt)
    comes = wins & ~F.coalesce(F.col("s._tombstone"), F.lit(False))
    pairs = joined.where(wins | goes).select(
        F.when(comes, F.col("s._partition")).alias("one"), F.when(comes, F.col(f"s.{DIGEST.name}")).alias("one_digest"),
        F.when(goes, F.col("t._partition")).alias("other"), F.when(goes, F.col(f"t.{DIGEST.name}")).alias("other_digest"),
    )  # fmt: skip
    return _summed(pairs)


def _summed(pairs: DataFrame) -> tuple[dict[int, RowSum], dict[int, RowSum]]:
    totals: tuple[dict[int, RowSum], dict[int, RowSum]] = ({}, {})
    for side, partition, count, digest in pairs.mapInArrow(_sums, _SUMS).collect():
        total = totals[side]
        total[partition] = total.get(partition, RowSum()) + RowSum(count, int(digest, 16))
    return totals


def _sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sums of one task."""
    totals: list[dict[int, RowSum]] = [{}, {}]
    for batch in batches:
        for side, name in enumerate(_SIDES):
            rows = batch.filter(batch[name].is_valid())
            totals[side] = added(totals[side], sums_by_partition(rows[name], rows[f"{name}_digest"]))
    found = [(side, each, *total.to_pair()) for side in range(2) for each, total in totals[side].items()]
    columns = list(zip(*found, strict=True)) or [()] * 4
    kinds = (pa.int32(), pa.int32(), pa.int64(), pa.string())
    arrays = [pa.array(list(values), kind) for values, kind in zip(columns, kinds, strict=True)]
    yield pa.record_batch(arrays, names=["side", "partition", "rows", "digest"])
