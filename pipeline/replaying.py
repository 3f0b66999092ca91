"""Replay: the dead letters of an export are decoded anew, after the model was mended.

The records are read from the log again, from the first open dead letter up to the table's position, which stays as it
is. In an append table each one that decodes now becomes a row. In an upserted table the rule of every export holds: per
key the newest record that decodes or is a tombstone decides, and a row never gives way to an older record. So the table
becomes what one pass with the mended model makes of the log.

Each open dead letter gets an `outcome`, or stays open:

    replayed      the table's row is made from it
    superseded    a newer record of its key decides, or compaction has removed the record for the sake of one
    gone          retention has removed the record: it can no longer be compared with what came after it
    (null)        it does not decode with this model either

**Exactly once.** First the table gets its rows, then the dead letters their outcomes. A run that is killed between the
two is made again: an upsert finds its rows there and changes nothing, an append leaves out the offsets that have a row.
Another export at the same time lets one of the two end with a ConflictError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta_table import check_committed, is_table, named_conflicts, read_head, read_table_id
from pipeline.export_plan import NO_WISH, Export, ExportMode, ExportRefusedError, OffsetRange, plan_increment
from pipeline.export_rows import deciding, decode, is_newer, of_place, place, reduced, with_counts
from pipeline.exporting import ReadRecords, append_rows, letters_of, merge_rows, rows_changed
from pipeline.spark_types import nullable, spark_struct
from pipeline.table_position import positions_of_rows, stamp_of
from pipeline.table_schema import Tell, fit_table
from pipeline.table_stamp import Recent

REPLAYED = "replayed"
SUPERSEDED = "superseded"
GONE = "gone"


@dataclass(frozen=True)
class ReplayResult:
    """What became of the dead letters that were open. written: rows inserted, updated or appended."""

    replayed: int = 0
    superseded: int = 0
    gone: int = 0
    still_open: int = 0
    written: int = 0
    table_version: int | None = None


def replay(
    spark: SparkSession,
    export: Export,
    ranges: Mapping[int, OffsetRange],
    read: ReadRecords,
    log_starts: Callable[[], Mapping[int, int]],
    tell: Tell = lambda _: None,
) -> ReplayResult:
    """Decode the open dead letters of an export anew.

    Args:
        ranges: the partitions of the topic, read from one version of its state.
        read: called at most once.
        log_starts: the partitions' log start offsets as they are by now, asked after the records were read. Retention may
            have removed records since `ranges` were read.
        tell: is told in one line of a rewrite of the table, before it begins.

    Raises:
        ExportRefusedError: nothing was exported to the table, or it does not fit the topic.
        ConflictError: another export changed the table meanwhile; nothing is lost.
    """
    if not is_table(spark, export.table):
        raise ExportRefusedError(export.table, "is no table, so nothing can be replayed into it", "Export first.")
    head = read_head(spark, export.table)
    increment = plan_increment(export, head, ranges, NO_WISH, lambda: positions_of_rows(spark, export))
    table_id = head.table_id or read_table_id(spark, export.table)
    letters = _open_letters(spark, export, table_id, increment.before)
    if letters is None or letters.isEmpty():
        return ReplayResult(table_version=head.version)
    recent = head.current.recent if head.current is not None else Recent()
    with named_conflicts(export.table, "replay"):
        head = fit_table(spark, export, head, increment.before, recent, tell)
    first = {
        row["partition"]: row["first"]
        for row in letters.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    }
    start, end = {}, {}
    for partition, position in increment.before.items():
        # A key of an upserted table may have newer records in any partition.
        begin = first.get(partition, 0 if export.mode is ExportMode.UPSERT else position)
        begin = max(begin, ranges[partition].log_start_offset)
        if begin < position:
            start[partition], end[partition] = begin, position
    stamp = stamp_of(spark, export, head, increment.before, recent)
    records = read(start, end, {})
    if export.mode is ExportMode.UPSERT:
        keys = letters.select("key").where("key IS NOT NULL").distinct()
        rows = reduced(decode(records.join(F.broadcast(keys), "key", "left_semi"), export)).persist()
    else:
        wanted = letters.select("partition", "offset")
        rows = with_counts(
            decode(records.join(F.broadcast(wanted), ["partition", "offset"], "left_semi"), export)
        ).persist()
    try:
        with named_conflicts(export.table, "replay"):
            if export.mode is ExportMode.UPSERT:
                merge_rows(spark, export, rows, stamp, {}, with_undecodable=True)
            else:
                there = spark.read.format("delta").load(export.table).select("_partition", "_offset")
                append_rows(export, rows.join(there, ["_partition", "_offset"], "left_anti"), stamp)
            commit = check_committed(spark, export.table, head.version, stamp)
            counts = _mark(spark, export, table_id, letters, rows, log_starts())
    finally:
        rows.unpersist()
    written, _ = rows_changed(commit)
    return ReplayResult(
        replayed=counts.get(REPLAYED, 0),
        superseded=counts.get(SUPERSEDED, 0),
        gone=counts.get(GONE, 0),
        still_open=counts.get(None, 0),
        written=written,
        table_version=commit.version,
    )


def _open_letters(spark: SparkSession, export: Export, table_id: str, positions: Mapping[int, int]) -> DataFrame | None:
    """Key, partition, offset and timestamp of those that no replay has dealt with; None where there is no table of them.

    Those at or above the table's position were written by a run that was killed: the next export meets their records.
    """
    if not is_table(spark, export.dead_letters):
        return None
    found = spark.read.format("delta").load(export.dead_letters)
    if not {"table_id", "outcome"} <= set(found.columns):  # a table of an older Lakelog
        empty = spark.createDataFrame([], nullable(spark_struct(EXPORT_DEAD_LETTERS)))
        empty.write.format("delta").mode("append").option("mergeSchema", "true").save(export.dead_letters)
    below = F.lit(False)
    for partition, position in positions.items():
        below = below | ((F.col("partition") == partition) & (F.col("offset") < position))
    letters = letters_of(spark, export, table_id).where("outcome IS NULL").where(below)
    return letters.select("key", "partition", "offset", "timestamp").distinct()


def _mark(
    spark: SparkSession,
    export: Export,
    table_id: str,
    letters: DataFrame,
    rows: DataFrame,
    log_starts: Mapping[int, int],
) -> dict[str | None, int]:
    """Give the dead letters their outcomes.

    Args:
        rows: what the records of their keys, or they themselves, were decoded to.
        log_starts: by partition, the log start offset after these were read.

    Returns:
        How many got which; under None those that stay open.
    """
    table = spark.read.format("delta").load(export.table)
    letter = F.struct("partition", "offset", "timestamp").alias("_letter")
    fates = letters.select("key", letter)
    bad = rows.where("_reason IS NOT NULL").select(place().alias("_bad"))
    is_bad = "_bad.partition = _letter.partition AND _bad.offset = _letter.offset"
    fates = fates.join(bad, F.expr(is_bad), "left")
    if export.mode is ExportMode.UPSERT:
        there = table.select(F.col("_key").alias("key"), place().alias("_there"))
        decides = deciding(rows).select(F.col("_key").alias("key"), place().alias("_decides"))
        fates = fates.join(there, "key", "left").join(decides, "key", "left")
        newer = " OR ".join(
            f"coalesce({is_newer(of_place(each), of_place('_letter'))}, false)" for each in ("_there", "_decides")
        )
    else:
        there = table.select(place().alias("_there"))
        fates = fates.join(
            there, F.expr("_there.partition = _letter.partition AND _there.offset = _letter.offset"), "left"
        )
        newer = "false"
    below_start = F.lit(False)
    for partition, log_start in log_starts.items():
        is_gone = (F.col("_letter.partition") == partition) & (F.col("_letter.offset") < log_start)
        below_start = below_start | is_gone
    is_row = "_there.partition = _letter.partition AND _there.offset = _letter.offset"
    outcome = (
        F.when(F.expr(f"coalesce({is_row}, false)"), REPLAYED)
        .when(F.expr(newer), SUPERSEDED)
        .when(
            F.expr("_bad IS NOT NULL OR key IS NULL")
            if export.mode is ExportMode.UPSERT
            else F.expr("_bad IS NOT NULL"),
            None,
        )
        .when(below_start, GONE)
        .otherwise(SUPERSEDED)
    )
    fates = fates.select("_letter.partition", "_letter.offset", outcome.alias("outcome")).persist()
    try:
        counts = {row["outcome"]: row["count"] for row in fates.groupBy("outcome").count().collect()}
        if counts.keys() - {None}:
            same = "l.partition = f.partition AND l.offset = f.offset AND l.outcome IS NULL"
            DeltaTable.forPath(spark, export.dead_letters).alias("l").merge(
                fates.where("outcome IS NOT NULL").alias("f"),
                f"{same} AND (l.table_id IS NULL OR l.table_id = '{table_id}')",
            ).whenMatchedUpdate(set={"outcome": "f.outcome"}).execute()
    finally:
        fates.unpersist()
    return counts
