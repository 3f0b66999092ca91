"""Exports into files that Spark's tasks write with Arrow (`pipeline.delta.files.row_files`), and commits these files with the
library deltalake. Upserts have a module of their own (`pipeline.delta.files.upserting`).

This way is for plain tables (`pipeline.delta.without_spark.plain_table`) and for upsert tables with deletion vectors
(`pipeline.delta.vectors.vector_table`). It is used for two kinds of exports:

- an append: one pass over the log reads and decodes the records, and writes, hashes and counts the rows. Only records
  that cannot be decoded leave the tasks, and only their number and the files are known to the driver.
- the first export of an upsert table with very many keys: Spark finds the rows of all keys, and these rows are written.
  There is nothing to merge with.

The commit is the same as the commit of a small export: it fails if another export has committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakelog.spark.splits import RecordTask
from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.chain.stamp_chain import PartitionCounts
from pipeline.delta.dead_letter_share import Counts
from pipeline.delta.export_plan import Export, ExportMode, ExportPlan
from pipeline.delta.files.row_files import LETTER_COLUMNS, RESULT, AppendRecords, WriteRows, Written
from pipeline.delta.rows.row_columns import REASONS, STALE_SINCE, row_columns, table_columns
from pipeline.delta.rows.upserted_rows import DECIDES
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.vectors.vector_table import VectorTable
from pipeline.delta.without_spark.plain_table import PlainTable, conflict
from storage_engine.storage.storage_opening import open_storage


def can_append(export: Export, plan: ExportPlan) -> bool:
    """Whether an append adds rows only, and the table has no partitions, is plain and has all columns, or does not exist
    yet."""
    if export.mode is ExportMode.UPSERT or plan.replaced:
        return False
    return is_plain(export, None if plan.head is None else plan.head.version)


def is_plain(export: Export, version: int | None) -> bool:
    """Whether `open_table` opens the table, and the settings ask for no other layout.

    Args:
        version: None if the table does not exist yet.
    """
    if export.layout.cluster_by or export.layout.partitions:
        return False
    return version is None or open_table(export, version) is not None


def open_table(export: Export, version: int | None, *, knows_files: bool = False) -> PlainTable | VectorTable | None:
    """The table at a version, or at its newest version; None if it is neither plain nor an upsert table with deletion
    vectors, or has other columns than the export, or partitions.

    Args:
        knows_files: the caller has opened a version with the same files before, so their footers are not read again.
    """
    columns, wanted = table_columns(export), export.layout.deletion_vectors
    if not wanted and (plain := PlainTable.open(export.table, version, columns, knows_files=knows_files)) is not None:
        return plain
    if wanted is False or export.mode is not ExportMode.UPSERT:
        return None
    return VectorTable.open(export.table, version, columns, knows_files=knows_files)


def appending(export: Export) -> RecordTask:
    """Writes the rows of records into files. The result has a row for each record that cannot be decoded, and a row for
    each task (`what_was_written`)."""
    return RecordTask(AppendRecords(export), LETTER_COLUMNS)


def what_was_written(rows: DataFrame) -> Written:
    """What the tasks wrote."""
    (name,) = RESULT.names
    found = rows.where(F.col(name).isNotNull()).select(name).collect()
    return reduce(add, (Written.from_json(each[name]) for each in found), Written())


def counts_of(written: Written) -> Counts:
    """The counts of the records."""
    by_partition = written.counts.values()
    totals = {
        name: sum(found.get(name, 0) for found in by_partition)
        for name in ("records", "tombstones", "null_values", *REASONS)
    }
    return Counts(
        totals["records"],
        totals["tombstones"],
        {reason: totals[reason] for reason in REASONS if totals[reason]},
        totals["null_values"],
        {each: _partition_counts(found) for each, found in written.counts.items()},
    )


def _partition_counts(found: Mapping[str, int]) -> PartitionCounts:
    dead_letters = sum(found.get(reason, 0) for reason in REASONS)
    return PartitionCounts(found["records"], found.get("tombstones", 0), dead_letters)


def write_source(export: Export, source: DataFrame) -> Written:
    """Write the rows of an upsert into files. The table has no rows.

    Args:
        source: the result of `upserted_rows.upsert_source`.
    """
    names = [name for name in table_columns(export).names if name in row_columns(export).names]
    rows = source.alias("s").where(f"{DECIDES} AND NOT s._tombstone")
    rows = rows.select(*names, F.col("_bad").alias(STALE_SINCE.name))
    return what_was_written(rows.mapInArrow(WriteRows(export), nullable(spark_struct(RESULT))))


def commit_files(export: Export, written: Written, stamp: Stamp) -> None:
    """Commit the files on the newest version of the table. The guard shows whether another export has committed.

    Raises:
        ConflictError: another writer changed the table.
    """
    table = open_table(export, None)
    if table is None or (export.mode is ExportMode.UPSERT and not table.has_no_rows):
        raise conflict(export.table)
    table.change_files(written.files, stamp)


def delete_files(export: Export, written: Written) -> None:
    """Delete files that no commit names."""
    storage = open_storage(export.table)
    for each in written.files:
        storage.delete(each.name)
