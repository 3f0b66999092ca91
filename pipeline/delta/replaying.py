"""Replays the dead letters of an export: decodes them again with a fixed model.

A replay reads a part of the log again: from the first open dead letter up to the table's position. The table's position
does not change. In an append table, each dead letter that can now be decoded becomes a row. In an upsert table, one
record of each key decides the key's row. It is the newest record that is a tombstone or can be decoded. This rule is
the same in every export. So the result is the same as after a complete export with the corrected model.

Each open dead letter gets an `outcome`, or stays open:

    replayed      the table's row is made from this dead letter
    superseded    a newer record of the same key decides the row; or compaction has removed the dead letter's record
                  because of a newer record
    gone          retention has removed the record, so it can no longer be compared with later records
    (null)        the record still cannot be decoded

**Exactly once.** First the rows are written to the table. Then the outcomes are written to the dead letters. If a run
is killed between the two steps, the next run repeats both steps. In an upsert table, the first step then finds the same
rows and changes nothing. In an append table, the first step skips offsets that have a row. If an export of the same
table runs at the same time, either the replay or the export ends with a ConflictError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta.delta_table import is_table, named_conflicts, read_table_id
from pipeline.delta.export_plan import Export, ExportMode, ExportRefusedError, PartitionOffsets, decide_export
from pipeline.delta.exporting import ReadRecords
from pipeline.delta.reads.whole_reads import Newest, check_read
from pipeline.delta.rows.export_rows import deciding, decode, place, reduced
from pipeline.delta.rows.newer_sql import is_newer, of_place
from pipeline.delta.table_history import as_in_table, check_committed
from pipeline.delta.table_layout import check_layout
from pipeline.delta.table_position import look_at_table, stamp_of
from pipeline.delta.table_schema import Notify, fit_table
from pipeline.delta.table_stamp import NextLink, Stamp, TableHead, known_began
from pipeline.delta.table_writing import append_rows, letters_of, merge_rows, rows_changed

REPLAYED = "replayed"
SUPERSEDED = "superseded"
GONE = "gone"


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay: the numbers of dead letters by outcome. written: the number of rows that were inserted,
    updated or appended."""

    replayed: int = 0
    superseded: int = 0
    gone: int = 0
    still_open: int = 0
    written: int = 0
    table_version: int | None = None


def replay(
    spark: SparkSession,
    export: Export,
    ranges: Mapping[int, PartitionOffsets],
    read: ReadRecords,
    newest: Newest,
    notify: Notify = lambda _: None,
) -> ReplayResult:
    """Decode the open dead letters of an export again.

    Args:
        ranges: the offsets of the topic's partitions, from one version of its state.
        read: called at most once.
        newest: called after the records were read, because other work may have removed records after `ranges` were read.
        notify: receives one line before a rewrite of the table.

    Raises:
        ExportRefusedError: there is no exported table, or the table does not fit the topic.
        LogChangedError: tombstones may be missing among the records. No row was changed.
        ConflictError: another export changed the table meanwhile. Nothing is lost.
    """
    head, before = look_at_table(spark, export)
    if head is None:
        raise ExportRefusedError(
            export.table, "is not a table, so nothing can be replayed into it", "Run an export first."
        )
    export = check_layout(spark, as_in_table(export, head))
    plan = decide_export(export, head, before, ranges)
    table_id = head.table_id or read_table_id(spark, export.table)
    letters = open_letters(spark, export, table_id, before)
    if letters is None or letters.isEmpty():
        return ReplayResult(table_version=head.version)
    with named_conflicts(export.table, "replay"):
        head = fit_table(spark, export, plan, notify)
    stamp = stamp_of(spark, export, head, before, plan.recent, known_began(plan.head))
    start, end = decide_replay(export.mode, before, ranges, _first_offsets(letters))
    rows = _decoded(export, read(start, end, {}), letters).persist()
    try:
        rows.count()  # reads the records
        check_read(export, ranges, start, {}, newest)
        with named_conflicts(export.table, "replay"):
            stamp = _write(spark, export, rows, stamp, head, NextLink(head, start) if export.digest else None)
            commit = check_committed(export.table, head.version, stamp)
            counts = mark_letters(spark, export, table_id, letters, rows, newest())
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
    mode: ExportMode,
    before: Mapping[int, int],
    ranges: Mapping[int, PartitionOffsets],
    first_letters: Mapping[int, int],
) -> tuple[dict[int, int], dict[int, int]]:
    """The records that a replay reads: by partition, the first offset and the offset after the last one.

    Args:
        before: the table's positions, which do not change.
        first_letters: by partition, the offset of the first open dead letter.
    """
    start, end = {}, {}
    for partition, position in before.items():
        first = first_letters.get(partition, position)
        if mode is ExportMode.UPSERT and first_letters.keys() - {partition}:
            first = 0  # a key with a dead letter in another partition may have newer records here
        first = max(first, ranges[partition].log_start_offset)
        if first < position:
            start[partition], end[partition] = first, position
    return start, end


def _first_offsets(letters: DataFrame) -> dict[int, int]:
    firsts = letters.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    return {row["partition"]: row["first"] for row in firsts}


def _decoded(export: Export, records: DataFrame, letters: DataFrame) -> DataFrame:
    """The decoded records: for an upsert all records of the dead letters' keys, for an append only the dead letters."""
    if export.mode is ExportMode.UPSERT:
        keys = letters.select("key").where("key IS NOT NULL").distinct()
        return reduced(decode(records.join(F.broadcast(keys), "key", "left_semi"), export))
    wanted = letters.select("partition", "offset")
    return decode(records.join(F.broadcast(wanted), ["partition", "offset"], "left_semi"), export)


def _write(
    spark: SparkSession, export: Export, rows: DataFrame, stamp: Stamp, head: TableHead, link: NextLink | None
) -> Stamp:
    """Write the rows into the table. An append leaves out rows that a killed run has already written. Returns the stamp
    with the chain."""
    if export.mode is ExportMode.UPSERT:
        return merge_rows(spark, export, rows, stamp, link, head, {}, with_undecodable=True)[1]
    there = spark.read.format("delta").load(export.table).select("_partition", "_offset")
    missing = rows.join(there, ["_partition", "_offset"], "left_anti")
    return append_rows(spark, export, missing, stamp, link)


def open_letters(
    spark: SparkSession, export: Export, table_id: str, positions: Mapping[int, int], *, with_closed: bool = False
) -> DataFrame | None:
    """Key, partition, offset and timestamp of the open dead letters; None if there is no dead-letter table.

    Dead letters at or above the table's position are not included. A killed export wrote these dead letters, and the
    next export reads their records again.

    Args:
        with_closed: also those that have an outcome already.
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
    letters = letters_of(spark, export, table_id).where(below)
    letters = letters if with_closed else letters.where("outcome IS NULL")
    return letters.select("key", "partition", "offset", "timestamp").distinct()


def mark_letters(
    spark: SparkSession,
    export: Export,
    table_id: str,
    letters: DataFrame,
    rows: DataFrame,
    newest: Mapping[int, PartitionOffsets],
) -> dict[str | None, int]:
    """Write the outcomes of the dead letters.

    Args:
        rows: the decoded records, as `_decoded` returns them.
        newest: the offsets of the partitions after the records were read.

    Returns:
        By outcome, the number of dead letters. The key None has the number of dead letters that get no outcome.
    """
    fates = _fates(spark, export, letters, rows, newest).persist()
    try:
        counts = {row["outcome"]: row["count"] for row in fates.groupBy("outcome").count().collect()}
        if counts.keys() - {None}:
            same = "l.partition = f.partition AND l.offset = f.offset AND NOT l.outcome <=> f.outcome"
            DeltaTable.forPath(spark, export.dead_letters).alias("l").merge(
                fates.where("outcome IS NOT NULL").alias("f"),
                f"{same} AND (l.table_id IS NULL OR l.table_id = '{table_id}')",
            ).whenMatchedUpdate(set={"outcome": "f.outcome"}).execute()
    finally:
        fates.unpersist()
    return counts


def _fates(
    spark: SparkSession,
    export: Export,
    letters: DataFrame,
    rows: DataFrame,
    newest: Mapping[int, PartitionOffsets],
) -> DataFrame:
    """Partition, offset and outcome of each of these dead letters. The rows must be in the table already."""
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
    for partition, offsets in newest.items():
        is_gone = (F.col("_letter.partition") == partition) & (F.col("_letter.offset") < offsets.log_start_offset)
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
