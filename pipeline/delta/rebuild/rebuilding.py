"""Makes an exported table again from the whole log, in one commit (decision 0055).

A rebuild makes changes that an export refuses: another mode, another type of a column, or the removal of a column. All
records of the log are decoded with the current model. The new rows replace all rows of the table. The new table has
exactly the columns of the model and of the mode.

A rebuild has four steps:

    1. read the table's newest version, plan the rebuild, and register the log start offsets as the position of the
       export, so that compaction keeps all tombstones meanwhile
    2. read and decode the log; stop if tombstones may be missing (`pipeline.delta.reads.whole_reads`), if too many
       records cannot be decoded, or if rows would be lost (`pipeline.delta.rebuild.lost_rows`)
    3. append the dead letters that are not in their table yet; then overwrite the table, with the new columns, mode and
       position in the same commit
    4. write the outcomes of open dead letters, as a replay does

Readers see the old table until the commit of step 3, and then the new one. If the process is killed before the commit,
the table has not changed. If the process is killed after the commit, only outcomes of dead letters are missing. Another
rebuild or a replay writes them. Older versions of the table can still be read, until VACUUM deletes their files.

The commit of a rebuild has the same guard against other commits as the commit of an export. So if a rebuild and an
export run at the same time, one of them ends with a ConflictError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from pyspark.sql import DataFrame, SparkSession

from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.delta.chain.spark_sums import sums_of
from pipeline.delta.dead_letter_share import Counts, recent_after
from pipeline.delta.delta_table import named_conflicts
from pipeline.delta.export_plan import (
    NO_BOUNDS,
    Export,
    ExportBounds,
    ExportMode,
    ExportPlan,
    ExportResult,
    PartitionOffsets,
    Register,
    TableSchemaError,
    check_topic,
    check_up_to,
)
from pipeline.delta.exporting import ReadRecords, count_records, decided, too_many
from pipeline.delta.files.skipping_commit import fit_skipping
from pipeline.delta.layout_columns import as_partitioned
from pipeline.delta.reads.whole_reads import Newest, check_plan_read
from pipeline.delta.rebuild.lost_rows import LostRows, check_lost, lost_rows
from pipeline.delta.replaying import mark_letters, open_letters
from pipeline.delta.rows.export_rows import decoding
from pipeline.delta.rows.row_columns import table_columns
from pipeline.delta.rows.upserted_rows import upserted_rows
from pipeline.delta.table_history import DeltaLog, check_committed
from pipeline.delta.table_layout import check_readers, check_rewritable, fit_layout
from pipeline.delta.table_position import check_coordinates, stamp_of
from pipeline.delta.table_stamp import Began, NextLink, Recent, Stamp, TableHead, known_began
from pipeline.delta.table_writing import append_undecodable, rows_changed
from pipeline.settings.job_keys import DEFAULT_MAX_SHARE
from pipeline.spark.failures import SPARK_ERRORS, failure_reason
from storage_engine.errors import LogError


@dataclass(frozen=True)
class RebuildOptions:
    """The options of the command line.

    accepted_lost: the largest number of rows that may be lost.
    bounds: only its end offsets are used.
    """

    accepted_lost: int = 0
    bounds: ExportBounds = NO_BOUNDS
    max_share: float = DEFAULT_MAX_SHARE


@dataclass(frozen=True)
class RebuildResult:
    """The result of a rebuild.

    exported: the records and rows, as in an export.
    before: the number of rows before the rebuild.
    lost: the rows whose records the log no longer has.
    foreign: versions that other writers committed while the log was read. The rebuild replaced their rows, too.
    unfinished: why the outcomes of dead letters could not be written; empty if they were written.
    """

    exported: ExportResult
    before: int
    lost: LostRows
    foreign: tuple[int, ...] = ()
    unfinished: str = ""


def rebuild_table(
    spark: SparkSession,
    export: Export,
    head: TableHead,
    ranges: Mapping[int, PartitionOffsets],
    read: ReadRecords,
    newest: Newest,
    register: Register = lambda _: None,
    options: RebuildOptions = RebuildOptions(),
) -> RebuildResult:
    """Make the table again from the log.

    Args:
        head: the newest version of the table.
        ranges: the offsets of the topic's partitions, from one version of its state.
        read: called once.
        newest: called after the records were read.
        register: called with the log start offsets before any record is read.

    Raises:
        RowsWouldBeLostError: rows would be lost, and the operator did not accept this. Nothing was changed.
        TooManyDeadLettersError: more records than allowed cannot be decoded. Nothing was changed.
        ExportRefusedError: the table belongs to another topic, or must not be rewritten.
        LogChangedError: tombstones may be missing among the records. Nothing was changed.
        ConflictError: another writer changed the table meanwhile. Nothing is lost.
    """
    check_topic(export, head)
    table = spark.read.format("delta").option("versionAsOf", head.version).load(export.table)
    check_coordinates(export, table.columns)
    partitions = _partitions(spark, export, table)
    export = as_partitioned(export, partitions)
    check_readers(spark, export)
    plan = decide_rebuild(export, head, ranges, options.bounds)
    register(plan.before)
    rows = decided(export, read(*plan.to_read, plan.required, decoding(export))).persist()
    try:
        counts = count_records(rows)
        check_plan_read(export, plan, newest)
        recent = recent_after(Recent(), counts, options.max_share, accepted=options.bounds.up_to is not None)
        if recent is None:
            raise too_many(export, replace(plan, head=None), rows, counts, options.max_share)
        before = table.count()
        lost = lost_rows(export, table, rows, ranges, plan.end)
        check_lost(export, before, lost, options.accepted_lost)
        stamp = stamp_of(spark, export, head, plan.positions, recent, plan.began)
        with named_conflicts(export.table, "rebuild"):
            stamp = _write(spark, export, plan, rows, counts, stamp, partitions)
            result = _result(export, plan, counts, head.version, stamp)
            fit_layout(spark, export)  # last: a partitioned table cannot get clustering columns
        unfinished = _finish(spark, export, stamp, rows, newest)
    finally:
        rows.unpersist()
    foreign = _foreign(export.table, head.version, result.table_version or 0)
    return RebuildResult(result, before, lost, foreign, unfinished)


def decide_rebuild(
    export: Export, head: TableHead, ranges: Mapping[int, PartitionOffsets], bounds: ExportBounds
) -> ExportPlan:
    """Decide what a rebuild reads: the whole log, up to the last stable offsets or the accepted end offsets.

    Raises:
        OffsetRefusedError: an accepted end offset is not in the log.
    """
    start = {number: each.log_start_offset for number, each in ranges.items()}
    end = {number: each.last_stable_offset for number, each in ranges.items()}
    if bounds.up_to is not None:
        check_up_to(export, start, end, bounds.up_to)
        end = {number: bounds.up_to.get(number, start[number]) for number in end}
    # The log can still have records from the time when the topic had fewer partitions.
    known = known_began(head)
    began = Began({}, known.partitions if known is not None else 1)
    return ExportPlan(head, start, start, end, began=began, ranges=ranges)


def _partitions(spark: SparkSession, export: Export, table: DataFrame) -> list[str]:
    """The columns by which the new table is partitioned: those of the settings, or else those of the old table."""
    elsewhere = "Nothing was changed. Export to another table."
    partitions = check_rewritable(spark, export, table.schema, "all rows are made again", elsewhere)
    if export.layout.partition_by is not None or export.layout.cluster_by:
        return export.layout.partitions
    for name in partitions:
        if name not in table_columns(export).names:
            raise TableSchemaError(
                export.table, f"is partitioned by the column {name}, which the new table does not have", elsewhere
            )
    return partitions


def _write(
    spark: SparkSession,
    export: Export,
    plan: ExportPlan,
    rows: DataFrame,
    counts: Counts,
    stamp: Stamp,
    partitions: list[str],
) -> Stamp:
    """Write the dead letters, and then all rows and the position, in one commit. Returns the stamp with a new chain."""
    if counts.dead_letters:
        append_undecodable(spark, export, rows, stamp, plan.start)
    columns = nullable(spark_struct(table_columns(export)))
    if export.mode is ExportMode.UPSERT:
        nothing = spark.createDataFrame([], columns)
        made = upserted_rows(export, rows, nothing, with_undecodable=counts.dead_letters > 0)
    else:
        made = rows.where("_reason IS NULL").select(*map(quoted, columns.names))
    if export.digest and plan.head is not None:
        nothing_before = NextLink(replace(plan.head, current=None), plan.to_read[0], counts.by_partition)
        stamp = nothing_before.add_to(stamp, sums_of(made))
    fit_skipping(export.table, table_columns(export), partitions, rebuilt=True)
    writer = made.write.format("delta").mode("overwrite").partitionBy(*partitions)
    writer = writer.option("overwriteSchema", "true").option("partitionOverwriteMode", "static")
    writer = writer.option("txnAppId", stamp.app_id).option("txnVersion", stamp.version)
    writer.option("userMetadata", stamp.to_json(of_rebuild=True)).save(export.table)
    return stamp


def _result(export: Export, plan: ExportPlan, counts: Counts, planned_from: int, stamp: Stamp) -> ExportResult:
    commit = check_committed(export.table, planned_from, stamp)
    written, _ = rows_changed(commit)
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=written,
        reasons=counts.reasons,
        plan=plan,
        table_version=commit.version,
    )


def _finish(
    spark: SparkSession,
    export: Export,
    stamp: Stamp,
    rows: DataFrame,
    newest: Newest,
) -> str:
    """Write the outcomes of all dead letters, also of closed ones: in another mode, such a record can get a row or lose it.
    Returns why this failed, or an empty text: the table is complete without the outcomes."""
    try:
        letters = open_letters(spark, export, stamp.table_id, stamp.positions, with_closed=True)
        if letters is not None and not letters.isEmpty():
            mark_letters(spark, export, stamp.table_id, letters, rows, newest())
    except LogError as error:
        return str(error)
    except SPARK_ERRORS as error:
        return failure_reason(error)
    return ""


def _foreign(table: str, planned_from: int, version: int) -> tuple[int, ...]:
    """The versions between the plan and the rebuild that may have added rows."""
    commits = takewhile(lambda each: each.version > planned_from, DeltaLog(table).commits())
    found = [each for each in commits if each.version < version and each.adds_files and each.operation != "OPTIMIZE"]
    return tuple(sorted(each.version for each in found))
