"""Makes a fresh view of an exported table as a DataFrame of Spark.

When the view is made, Spark reads the records of the log, decodes them, and keeps one record for each key. Spark keeps
these records as long as the DataFrame is used. Each query reads the rows of the table, always at the version of the
view. So the view does not change. Queries fail after VACUUM has deleted the files of this version.

The view of an append table is a union of the table's rows and the new rows. The view of an upsert table needs more
work: when the view is made, Spark computes the rows of all keys with new records. These rows replace the table's rows
of the same keys. So Spark can still use the filter of a query to skip files of the table.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.splits import read_topic
from lakelog.spark.types import quoted
from pipeline.delta.export_plan import ExportMode
from pipeline.delta.exporting import decided
from pipeline.delta.fresh.snapshot import ExportedHead, FreshRequest, Snapshot, read_whole, snapshot_of
from pipeline.delta.rows.export_rows import decoding
from pipeline.delta.rows.row_columns import row_columns
from pipeline.delta.rows.upserted_rows import upserted_rows
from pipeline.delta.table_layout import partition_columns
from pipeline.delta.table_schema import as_exported
from pipeline.spark.failures import spark_failures
from storage_engine.progress import NO_PROGRESS


def fresh_frame(spark: SparkSession, request: FreshRequest) -> DataFrame:
    """The rows that the table would have after an export of all committed records.

    Args:
        spark: a session with Delta.

    Raises:
        LostRecordsError: retention deleted records that no export had read.
        ExportRefusedError: there is no such table, or it does not fit the topic or the schema.
        ConfigError: the schema is missing, or names no model.
        ConflictError: the log changed again and again while it was read.
        SparkFailedError: a task failed.
        UnknownTopicError: the topic was deleted.
    """

    def plan(exported: ExportedHead) -> Snapshot:
        columns = _table(spark, request.table, exported.head.version).columns
        return snapshot_of(request, exported, columns, partition_columns(spark, request.table))

    with spark_failures(f"table {request.table}"):
        return read_whole(request, plan, lambda snapshot: _united(spark, request, snapshot))


def _table(spark: SparkSession, path: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(path)


def _united(spark: SparkSession, request: FreshRequest, snapshot: Snapshot) -> DataFrame:
    """The rows of the table together with the rows from the records of the log. Reads the records at once."""
    export, plan = snapshot.export, snapshot.plan
    table = as_exported(_table(spark, request.table, snapshot.head.version), export)
    if not plan.waiting:
        return table
    with spark_failures(f"reading of topic {request.topic}"):
        first, end = plan.to_read
        decoded = read_topic(spark, request.storage, snapshot.state, first, end, first, NO_PROGRESS, decoding(export))
        rows = decided(export, decoded).localCheckpoint()
        if export.mode is not ExportMode.UPSERT:
            new = rows.where("_reason IS NULL").select(*map(quoted, row_columns(export).names))
            return table.unionByName(new, allowMissingColumns=True)
        has_undecodable = not rows.where("_reason IS NOT NULL").isEmpty()
        changed = upserted_rows(export, rows, table, with_undecodable=has_undecodable).localCheckpoint()
    kept = table.join(rows.select("_key"), "_key", "left_anti").select(*map(quoted, table.columns))
    for partition, start in plan.rebuilt.items():
        # The log may have lost tombstones of this partition, so a row without a record was deleted.
        kept = kept.where(~((F.col("_partition") == partition) & (F.col("_offset") >= start)))
    return kept.unionByName(changed)
