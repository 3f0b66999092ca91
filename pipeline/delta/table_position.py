"""Finds the position from which an export of a table continues, and makes the stamp with the new position.

The position is in the table's newest stamp (`pipeline.delta.table_stamp`). If the table's history no longer contains
the stamp, the position is computed from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.delta.delta_table import read_table_id
from pipeline.delta.export_plan import Export, ExportMode, TableSchemaError
from pipeline.delta.export_rows import COORDINATES
from pipeline.delta.table_history import read_head
from pipeline.delta.table_stamp import Recent, Stamp, TableHead, known_positions
from storage_engine.errors import ConflictError


def look_at_table(spark: SparkSession, export: Export) -> tuple[TableHead | None, Mapping[int, int]]:
    """The table's head and its positions. The head is None if there is no table yet."""
    head = read_head(export.table)
    known = known_positions(head)
    return head, known if known is not None else _positions_of_rows(spark, export)


def _positions_of_rows(spark: SparkSession, export: Export) -> dict[int, int]:
    """By partition, the next offset after the table's rows.

    Used if the history no longer has the stamp (delta.logRetentionDuration), or after a RESTORE to a timestamp.
    """
    rows = spark.read.format("delta").load(export.table)
    if missing := sorted(set(COORDINATES.names) - set(rows.columns)):
        raise TableSchemaError(
            export.table,
            f"is not an exported table: it has no column {', '.join(missing)}",
            "Export to another table, or move this table away.",
        )
    if export.mode is ExportMode.UPSERT:
        return {}  # from the start: merging a record again changes nothing
    last = rows.groupBy("_partition").agg(F.max("_offset").alias("last")).collect()
    return {row["_partition"]: row["last"] + 1 for row in last}


def head_as_before(export: Export, before: TableHead | None) -> TableHead:
    """The table's head after its columns were changed.

    Raises:
        ConflictError: another export moved the positions meanwhile. With the guard of the new head, the records of the old
            plan would be written a second time.
    """
    head = read_head(export.table)
    known = (before.current, before.newest) if before else (None, None)
    if head is None or (head.current, head.newest) != known:
        raise ConflictError(
            export.table, "another export changed the table meanwhile", "Nothing is lost: start this job again."
        )
    return head


def stamp_of(
    spark: SparkSession, export: Export, head: TableHead, positions: Mapping[int, int], recent: Recent
) -> Stamp:
    """The stamp of a commit that follows `head` and sets these positions."""
    return Stamp(
        topic=export.topic,
        topic_id=export.topic_id,
        table_id=head.table_id or read_table_id(spark, export.table),
        mode=export.mode,
        positions=positions,
        version=head.next_guard,
        recent=recent,
    )
