"""Replays the dead letters of an export: decodes them again after the model was fixed.

The records are read from the log again, from the first open dead letter up to the table's position, which does not
change. In an append table each one that decodes now becomes a row. In an upserted table the rule of every export holds:
per key the newest record that decodes or is a tombstone decides, and an older record never replaces a row. So the table
becomes what one pass over the log with the fixed model would make.

Each open dead letter gets an `outcome`, or stays open:

    replayed      the table's row is made from it
    superseded    a newer record of its key decides, or compaction has removed the record for the sake of one
    gone          retention has removed the record: it can no longer be compared with what came after it
    (null)        it does not decode with this model either

**Exactly once.** First the table gets its rows, then the dead letters their outcomes. If a run is killed between the
two steps, the next run repeats them: an upsert finds its rows there and changes nothing, an append leaves out the
offsets that have a row. Another export at the same time lets one of the two end with a ConflictError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta.delta_table import check_committed, is_table, named_conflicts, read_table_id
from pipeline.delta.export_plan import Export, ExportMode, ExportRefusedError, OffsetRange, decide_export
from pipeline.delta.export_rows import deciding, decode, is_newer, of_place, place, reduced, with_counts
from pipeline.delta.exporting import ReadRecords
from pipeline.delta.table_position import look_at_table, stamp_of
from pipeline.delta.table_schema import Tell, fit_table
from pipeline.delta.table_stamp import Stamp
from pipeline.delta.table_writing import append_rows, letters_of, merge_rows, rows_changed

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
    """Decode the open dead letters of an export again.

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
    head, before = look_at_table(spark, export)
    if head is None:
        raise ExportRefusedError(export.table, "is no table, so nothing can be replayed into it", "Export first.")
    plan = decide_export(export, head, before, ranges)
    table_id = head.table_id or read_table_id(spark, export.table)
    letters = _open_letters(spark, export, table_id, before)
    if letters is None or letters.isEmpty():
        return ReplayResult(table_version=head.version)
    with named_conflicts(export.table, "replay"):
        head = fit_table(spark, export, plan, tell)
    stamp = stamp_of(spark, export, head, before, plan.recent)
    start, end = decide_replay(export.mode, before, ranges, _first_offsets(letters))
    rows = _decoded(export, read(start, end, {}), letters).persist()
    try:
        with named_conflicts(export.table, "replay"):
            _write(spark, export, rows, stamp)
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


def decide_replay(
    mode: ExportMode, before: Mapping[int, int], ranges: Mapping[int, OffsetRange], first_letters: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """From where to where a replay reads: by partition, the first offset and the one after the last.

    Args:
        before: the table's positions, which stay as they are.
        first_letters: by partition, the offset of the first open dead letter.
    """
    start, end = {}, {}
    for partition, position in before.items():
        # A key of an upserted table may have newer records in any partition.
        first = first_letters.get(partition, 0 if mode is ExportMode.UPSERT else position)
        first = max(first, ranges[partition].log_start_offset)
        if first < position:
            start[partition], end[partition] = first, position
    return start, end


def _first_offsets(letters: DataFrame) -> dict[int, int]:
    firsts = letters.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    return {row["partition"]: row["first"] for row in firsts}


def _decoded(export: Export, records: DataFrame, letters: DataFrame) -> DataFrame:
    """What the records decode to: of an upsert those of the dead letters' keys, else the dead letters themselves."""
    if export.mode is ExportMode.UPSERT:
        keys = letters.select("key").where("key IS NOT NULL").distinct()
        return reduced(decode(records.join(F.broadcast(keys), "key", "left_semi"), export))
    wanted = letters.select("partition", "offset")
    return with_counts(decode(records.join(F.broadcast(wanted), ["partition", "offset"], "left_semi"), export))


def _write(spark: SparkSession, export: Export, rows: DataFrame, stamp: Stamp) -> None:
    """The rows into the table. Those of an append that a run before this one has written are there already."""
    if export.mode is ExportMode.UPSERT:
        merge_rows(spark, export, rows, stamp, {}, with_undecodable=True)
    else:
        there = spark.read.format("delta").load(export.table).select("_partition", "_offset")
        append_rows(export, rows.join(there, ["_partition", "_offset"], "left_anti"), stamp)


def _open_letters(spark: SparkSession, export: Export, table_id: str, positions: Mapping[int, int]) -> DataFrame | None:
    """Key, partition, offset and timestamp of those that no replay has dealt with; None if there is no table of them.

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
    fates = _fates(spark, export, letters, rows, log_starts).persist()
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


def _fates(
    spark: SparkSession, export: Export, letters: DataFrame, rows: DataFrame, log_starts: Mapping[int, int]
) -> DataFrame:
    """Partition, offset and outcome of each of these dead letters. The rows are in the table by now."""
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
    return fates.select("_letter.partition", "_letter.offset", outcome.alias("outcome"))
