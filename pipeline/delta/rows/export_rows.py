"""Turns records into rows of an exported table: decodes the records. For an upsert, it also finds the record that
decides the row of each key.

Every record is decoded, even if a newer record of its key follows. So the export finds every record that cannot be
decoded. For each key of an upsert:

    the newest record that can be decoded or is a tombstone decides the row
    a record that cannot be decoded is a dead letter, and does not change the values of the row

So the result does not depend on the increments in which the log was exported (decision 0037). Within a partition, the
record with the higher offset is newer. Between partitions, the record with the higher timestamp is newer. If the
timestamps are equal, the record in the partition with the higher number is newer.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakelog.spark.splits import RecordTask
from lakelog.spark.types import quoted
from pipeline.delta.export_plan import Export, ExportMode
from pipeline.delta.rows.newer_sql import is_newer, of_place
from pipeline.delta.rows.row_columns import COUNTS, DIGEST
from pipeline.delta.rows.row_decoding import counted, counted_columns, newest_of_keys


def decoding(export: Export) -> RecordTask:
    """Turns records into rows of the table, with the additional columns of `row_columns.HANDLING` and of
    `row_columns.COUNTS`. For an upsert, most of the records that have a newer record of their key are left out
    (`row_decoding.newest_of_keys`)."""
    function = newest_of_keys if export.mode is ExportMode.UPSERT else counted
    return RecordTask(partial(function, export=export), counted_columns(export))


def decode(records: DataFrame, export: Export) -> DataFrame:
    """The records as rows of the table, with the additional columns of `row_columns.HANDLING` and `row_columns.COUNTS`.
    The records may be in any order."""
    return RecordTask(partial(counted, export=export), counted_columns(export)).of(records)


def reduced(decoded: DataFrame) -> DataFrame:
    """The record that decides the row of each key, and all records that cannot be decoded. A row represents `_records`
    records, of which `_nulls` are tombstones. If the rows have digests, the column `_parts` has the same two numbers for
    each partition.
    """
    lone = F.when(F.col("_reason").isNotNull(), F.struct("_partition", "_offset")).alias("_lone")
    sums = [F.sum(each).alias(each) for each in COUNTS.names]
    others = [quoted(name) for name in decoded.columns if name not in ("_key", "_partition", *COUNTS.names)]
    latest = F.max_by(F.struct(*others), "_offset").alias("_latest")
    # All records of a key are in one task, so nothing else is shuffled, and the rows are sorted once.
    by_key = decoded.repartition("_key")
    in_partition = by_key.groupBy("_key", lone, "_partition").agg(latest, *sums)
    has_digests = DIGEST.name in decoded.columns
    parts = [F.collect_list(F.struct("_partition", *COUNTS.names)).alias("_parts")] if has_digests else []
    across = in_partition.groupBy("_key", "_lone").agg(
        F.max_by(F.struct("_partition", "_latest.*"), F.struct("_latest._timestamp", "_partition")).alias("_latest"),
        *sums,
        *parts,
    )
    return across.select("_key", "_latest.*", *COUNTS.names, *(["_parts"] if has_digests else []))


def place() -> Column:
    """The place of a row's record, in the form of `_stale_since`."""
    return F.struct(
        F.col("_partition").alias("partition"), F.col("_offset").alias("offset"), F.col("_timestamp").alias("timestamp")
    )


def deciding(rows: DataFrame) -> DataFrame:
    """The reduced rows that decide the table rows of their keys."""
    return rows.where("_reason IS NULL")


def first_undecodable(rows: DataFrame, table: DataFrame) -> DataFrame:
    """By key, the first record that cannot be decoded and is newer than the row that the key will have.

    Columns: `_key`; `_bad`, the place of that record; `_place`, the place of the record that decides the row of the
        key, or null.

    Args:
        rows: reduced rows.
        table: the table before the export.
    """
    bad = rows.where("_reason IS NOT NULL AND _key IS NOT NULL").select("_key", place().alias("_bad"))
    decides = deciding(rows).select("_key", place().alias("_place"))
    there = table.select("_key", place().alias("_there"))
    newer = (
        bad.join(decides, "_key", "left")
        .join(there, "_key", "left")
        .where(f"_place IS NULL OR {is_newer(of_place('_bad'), of_place('_place'))}")
        .where(f"_there IS NULL OR {is_newer(of_place('_bad'), of_place('_there'))}")
    )
    in_partition = newer.groupBy("_key", "_place", "_bad.partition").agg(F.min_by("_bad", "_bad.offset").alias("_bad"))
    return in_partition.groupBy("_key", "_place").agg(
        F.min_by("_bad", F.struct("_bad.timestamp", "_bad.partition")).alias("_bad")
    )
