"""Finds the position from which an export of a table continues, and makes the stamp with the new position.

The position is in the table's newest stamp (`pipeline.delta.table_stamp`). If the table's history no longer contains
the stamp, the position is computed from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.delta.delta_table import read_table_id
from pipeline.delta.export_plan import Export, ExportMode, TableSchemaError, new_stamp
from pipeline.delta.rows.row_columns import COORDINATES
from pipeline.delta.table_history import check_foreign, read_head
from pipeline.delta.table_stamp import Began, Recent, Stamp, TableHead, known_positions


def look_at_table(spark: SparkSession, export: Export) -> tuple[TableHead | None, Mapping[int, int]]:
    """The table's head and its positions. The head is None if there is no table yet.

    Raises:
        ForeignCommitError: the table has a chain, and another writer changed rows.
    """
    head = read_head(export.table)
    check_foreign(export, head)
    known = known_positions(head)
    return head, known if known is not None else _positions_of_rows(spark, export)


def _positions_of_rows(spark: SparkSession, export: Export) -> dict[int, int]:
    """By partition, the next offset after the table's rows.

    Used if the history no longer has the stamp (delta.logRetentionDuration), or after a RESTORE to a timestamp.
    """
    rows = spark.read.format("delta").load(export.table)
    check_coordinates(export, rows.columns)
    if export.mode is ExportMode.UPSERT:
        return {}  # from the start: merging a record again changes nothing
    last = rows.groupBy("_partition").agg(F.max("_offset").alias("last")).collect()
    return {row["_partition"]: row["last"] + 1 for row in last}


def check_coordinates(export: Export, columns: Sequence[str]) -> None:
    """Check that the rows of a table have the coordinates of their records.

    Raises:
        TableSchemaError: a column is missing.
    """
    if missing := sorted(set(COORDINATES.names) - set(columns)):
        raise TableSchemaError(
            export.table,
            f"is not an exported table: it has no column {', '.join(missing)}",
            "Export to another table, or move this table away.",
        )


def stamp_of(
    spark: SparkSession,
    export: Export,
    head: TableHead,
    positions: Mapping[int, int],
    recent: Recent,
    began: Began | None,
) -> Stamp:
    """The stamp of a commit that follows `head` and sets these positions."""
    return new_stamp(export, head, head.table_id or read_table_id(spark, export.table), positions, recent, began)
