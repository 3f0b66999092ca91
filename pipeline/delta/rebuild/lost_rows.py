"""Counts the rows of a table that a rebuild would lose, because the log no longer has their records.

If the log still has the record of a row, the row is not lost: the record becomes a row again, a newer record of its key
replaces it, or the record becomes a dead letter. If the record is gone:

    the old or the new table is an upsert table,   not lost: an export would have replaced or deleted the row
    and the log has a newer value or a tombstone
    of the key
    the same, the log has no record of the key,    not lost: the key had a tombstone, and compaction removed both
    and tombstones of this offset may be gone
    the record is beyond the end of the rebuild    lost
    anything else                                  lost

So even a stale row can be lost. A newer record of its key cannot be decoded, and because of this newer record,
compaction may have removed the record from which the row was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.delta.export_plan import Export, ExportMode, ExportRefusedError, PartitionOffsets
from pipeline.delta.rows.row_columns import CHANGE_TYPE, DELETED, STALE_SINCE
from storage_engine.quantities import counted


class RowsWouldBeLostError(ExportRefusedError):
    """A rebuild would lose rows, because the log no longer has their records. Nothing was changed."""


@dataclass(frozen=True)
class LostRows:
    """The number of rows that a rebuild loses, by the reason why their records are not read.

    retention: retention deleted the records.
    compaction: compaction removed the records.
    beyond: the records are at or after the end of the rebuild, because the topic was restored to an older state, or
        because the command line gives lower end offsets.
    """

    retention: int = 0
    compaction: int = 0
    beyond: int = 0

    @property
    def total(self) -> int:
        return self.retention + self.compaction + self.beyond

    def __str__(self) -> str:
        parts = {
            "deleted by retention": self.retention,
            "removed by compaction": self.compaction,
            "beyond the end of the rebuild": self.beyond,
        }
        return ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)


def lost_rows(
    export: Export,
    table: DataFrame,
    rows: DataFrame,
    ranges: Mapping[int, PartitionOffsets],
    end: Mapping[int, int],
) -> LostRows:
    """Count the rows that a rebuild loses.

    Args:
        table: the rows of the table before the rebuild.
        rows: the decoded records of the whole log; for an upsert reduced.
        ranges: the offsets of the topic's partitions when the records were read.
        end: by partition, the end offset of the rebuild.
    """
    is_upsert = export.mode is ExportMode.UPSERT
    if is_upsert and CHANGE_TYPE.name in table.columns:
        table = table.where(F.col(CHANGE_TYPE.name) != DELETED)
    gone = table.select("_key", "_partition", "_offset").join(
        rows.select("_partition", "_offset"), ["_partition", "_offset"], "left_anti"
    )
    if is_upsert or STALE_SINCE.name in table.columns:
        keys = rows.where("_key IS NOT NULL").groupBy("_key").agg(
            F.bool_or(F.col("_reason").isNull() | F.col("_tombstone")).alias("_decided")
        )  # fmt: skip
        tombstones = _of_partition({number: each.tombstones_end for number, each in ranges.items()})
        starts = _of_partition({number: each.log_start_offset for number, each in ranges.items()})
        offset = F.col("_offset")
        is_deleted = F.col("_key").isNotNull() & F.col("_decided").isNull() & (offset >= starts) & (offset < tombstones)
        replaced = F.coalesce(F.col("_decided"), F.lit(False)) | is_deleted
        gone = gone.join(keys, "_key", "left").where((offset >= _of_partition(end)) | ~replaced)
    return _counted(gone, ranges, end)


def _counted(gone: DataFrame, ranges: Mapping[int, PartitionOffsets], end: Mapping[int, int]) -> LostRows:
    starts = _of_partition({number: each.log_start_offset for number, each in ranges.items()})
    is_retained, is_beyond = F.col("_offset") < starts, F.col("_offset") >= _of_partition(end)
    found = gone.agg(
        F.count_if(is_retained & ~is_beyond).alias("retention"),
        F.count_if(~is_retained & ~is_beyond).alias("compaction"),
        F.count_if(is_beyond).alias("beyond"),
    ).first()
    assert found is not None, "an aggregation without grouping has one row"
    return LostRows(**found.asDict())


def _of_partition(offsets: Mapping[int, int]) -> Column:
    """The offset of the row's partition; 0 if there is no such partition."""
    found = F.lit(0)
    for partition, offset in offsets.items():
        found = F.when(F.col("_partition") == partition, offset).otherwise(found)
    return found


def check_lost(export: Export, rows: int, lost: LostRows, accepted: int) -> None:
    """Refuse a rebuild that loses more rows than the operator accepts.

    Args:
        rows: the number of rows of the table.

    Raises:
        RowsWouldBeLostError: too many rows would be lost.
    """
    if lost.total <= accepted:
        return
    only = f"--only {name} " if (name := export.section.partition(".")[2]) else ""
    more = f", and --accept-lost-rows accepts {accepted:,}" if accepted else ""
    raise RowsWouldBeLostError(
        export.table,
        f"a rebuild would lose {lost.total:,} of {counted(rows, 'row')}, because the log no longer has their records"
        f" ({lost}){more}",
        "Nothing was changed. Choose one: (1) keep this table, and make a second table beside it: change"
        f" {export.section}.table; (2) accept the loss once with {only}--rebuild --accept-lost-rows {lost.total}.",
    )
