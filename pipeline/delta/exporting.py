"""Exports a topic into a Delta table with Spark, increment by increment, each record exactly once. Small increments
need no Spark (`pipeline.delta.without_spark.small_export`); the rules are the same.

There are two modes:

- **upsert**, the default for compacted topics: the table has one row per key, made from the key's newest record that
  can be decoded. A tombstone (a null value) deletes the row of its key. A newer record that cannot be decoded does not
  change the values of the row, but makes the row stale. Then the column `_stale_since` contains the partition, the
  offset and the timestamp of the first such record. In one partition, the record with the highest offset is the newest.
  After partitions were added, a key can be in several partitions. Then the record with the highest timestamp is the
  newest. If timestamps are equal, the record in the partition with the highest number is the newest.
- **append**, the default for other topics: every record is a row.

The first columns are the fields of the topic's event model, or `value` if the topic has no model. The last columns are
`_key`, `_partition`, `_offset` and `_timestamp`, and in upsert mode also `_stale_since`. A value that does not fit the
model becomes a dead letter, and the export continues, unless there are too many dead letters
(`pipeline.delta.dead_letter_share`).

With two exceptions, the rows of the table are the same, however the log was divided into increments. First exception: a
key is in several partitions, and in one of these partitions, the timestamps of the key decrease while its offsets
increase. Then an increment keeps only the newest record of the key, and later increments do not see the other records
of the increment. But a single export of the whole log could make the row from one of these other records. Second
exception: compaction can remove the record from which a stale row was made. If the topic is then exported into a new
table, the new table does not contain the row.

**Exactly once.** The positions are in the table's own commits (`pipeline.delta.table_stamp`). One run has four steps:

    1. read the position from the table's history, and plan the run (`pipeline.delta.export_plan`); end if nothing is new
    2. read and decode the records; for an upsert, keep the newest one of each key; write the rows into files of the table;
       stop if tombstones may be missing (`pipeline.delta.reads.whole_reads`), or if there are too many dead letters
    3. give the table the columns of the model (`pipeline.delta.table_schema`), and append the dead letters to their
       table; the commits of that table have positions, too
    4. for an upsert, write the files again in which rows are replaced (`pipeline.delta.files.upserting`); commit the files,
       with the new position in the same commit

A crash before step 4 does not change the position, so the next run exports the same records, perhaps together with
newer records. The next run finds the dead letters that step 3 wrote, and does not write them again. After step 4 the
run is complete.

Only plain tables get such files. For all other tables, and for upserts of very many keys, step 2 stores the decoded rows on
the executors, and step 4 is an append or a MERGE of Delta.

**Consumer.** The export is a registered consumer of its topic (storage_engine.topic.readers.consumer_files). The export
registers the position of step 1 before step 2, and the new position after step 4. So cleaning knows which records are
not exported yet. This is true even after a RESTORE of the table has brought back an older position. But in two cases,
tombstones above the position can be missing: if compaction removed them before a RESTORE lowered the position, or if
compaction removed them after consumer.max.hold.ms had passed. Then an upsert reads the partition from its start, and
deletes rows whose keys have no record.

A run can also begin at offsets that are lower than the table's positions. An append then replaces, in one commit, the
table's rows at and above those offsets. An upsert reads the records again, and makes the same rows as a complete
export.

The driver never holds the values of records. In an upsert, it holds the keys and the places of the newest records, up to a
limit. Two exports of one table may run at the same time: Delta accepts only one of the two commits, and refuses the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.splits import RECORDS, RecordTask
from pipeline.delta.chain.stamp_chain import PartitionCounts
from pipeline.delta.dead_letter_share import (
    Counts,
    Place,
    ReasonCount,
    TooManyDeadLettersError,
    recent_after,
    too_many_dead_letters,
)
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
    decide_export,
)
from pipeline.delta.files.appending import appending, can_append, what_was_written
from pipeline.delta.files.file_changes import change_files, commit_changes
from pipeline.delta.files.row_files import Written, counts_of
from pipeline.delta.files.table_commits import commit_files, delete_files, reopened
from pipeline.delta.files.upserting import (
    can_upsert,
    results_of,
    run_tasks,
    upserting,
    what_was_reduced,
)
from pipeline.delta.reads.lost_records import check_nothing_lost
from pipeline.delta.reads.whole_reads import LogChangedError, Newest, check_plan_read, no_other_work
from pipeline.delta.rows.export_rows import decoding, reduced
from pipeline.delta.rows.row_columns import REASONS
from pipeline.delta.table_history import Commit, as_in_table, check_committed
from pipeline.delta.table_layout import check_layout
from pipeline.delta.table_position import look_at_table, stamp_of
from pipeline.delta.table_schema import Notify, check_columns, fit_table
from pipeline.delta.table_stamp import NextLink, Recent, Stamp, TableHead
from pipeline.delta.table_writing import (
    NOTHING_STALE,
    Stale,
    append_rows,
    append_undecodable,
    merge_rows,
    rows_changed,
)
from pipeline.settings.job_keys import DEFAULT_MAX_SHARE

_MOST = 50
"""The largest number of reasons that are collected for the error message."""


class ReadRecords(Protocol):
    """Reads records, with the columns of Spark's Kafka source."""

    def __call__(
        self, first: dict[int, int], end: dict[int, int], required: dict[int, int], then: RecordTask = RECORDS, /
    ) -> DataFrame:
        """
        Args:
            first, end: by partition, the first offset, and the offset after the last one.
            required: by partition, the table's position. Retention may delete records meanwhile. Missing records below
                the table's position are skipped. Any other missing record is an error.
            then: what the tasks that read the records do with them.
        """


def export_increment(
    spark: SparkSession,
    export: Export,
    ranges: Mapping[int, PartitionOffsets],
    read: ReadRecords,
    register: Register = lambda _: None,
    bounds: ExportBounds = NO_BOUNDS,
    max_share: float = DEFAULT_MAX_SHARE,
    notify: Notify = lambda _: None,
    newest: Newest = no_other_work,
) -> ExportResult:
    """Export the new records, up to the last stable offsets in `ranges`.

    Args:
        spark: the session that `read` also uses.
        ranges: the offsets of the topic's partitions, from one version of its state.
        read: called with the partitions that have new records.
        register: called with the table's positions before any record is read.
        bounds: the options of the command line for this run. They can accept more dead letters than max_share allows.
        notify: receives one line before a rewrite of the table.
        newest: called after the records were read.

    Raises:
        ExportRefusedError: the table does not fit the topic. Each subclass has a remedy.
        TooManyDeadLettersError: more records than allowed cannot be decoded. Nothing was committed.
        LogChangedError: tombstones may be missing among the records. Nothing was committed.
        ConflictError: another writer changed the table meanwhile. Nothing is lost.
        UnsupportedFieldError: the model has a field without a column type.
    """
    plan = decide_export(export, *look_at_table(spark, export), ranges, bounds)
    register(plan.before)
    if not plan.waiting:
        return ExportResult(plan=plan, table_version=plan.table_version)
    check_nothing_lost(export, plan, bounds)
    export = as_in_table(export, plan.head)
    accepted = bounds.up_to is not None
    if can_append(export, plan):
        return _append(spark, export, plan, read, max_share, accepted=accepted)
    if can_upsert(export, plan):
        result = _upsert(spark, export, plan, read, max_share, newest, accepted=accepted)
        if result is not None:
            return result
    if plan.head is not None:
        export = check_layout(spark, export)
        check_columns(spark, export)
    rows = decided(export, read(*plan.to_read, plan.required, decoding(export))).persist()
    try:
        counts = count_records(rows)
        check_plan_read(export, plan, newest)
        recent = recent_after(plan.recent, counts, max_share, accepted=accepted)
        if recent is None:
            raise too_many(export, plan, rows, counts, max_share)
        with named_conflicts(export.table, "export"):
            head = fit_table(spark, export, plan, notify)
            stamp = stamp_of(spark, export, head, plan.positions, recent, plan.began)
            stale, stamp = _write(spark, export, plan, rows, counts, stamp, head)
    finally:
        rows.unpersist()
    commit = check_committed(export.table, head.version, stamp)
    return _result(plan, counts, stale, commit)


def _append(
    spark: SparkSession, export: Export, plan: ExportPlan, read: ReadRecords, max_share: float, *, accepted: bool
) -> ExportResult:
    """Append the new records. The tasks that read the records also write the files of the table."""
    rows = read(*plan.to_read, plan.required, appending(export)).persist()
    try:
        written = what_was_written(rows)
        counts, recent = _checked(export, plan, rows, written, max_share, accepted=accepted)
        with named_conflicts(export.table, "export"):
            head, stamp = _begin_commit(spark, export, plan, rows, counts, recent)
            if export.digest:
                stamp = NextLink(head, plan.to_read[0], counts.by_partition).add_to(stamp, written.came)
            commit_files(export, written, stamp)
    finally:
        rows.unpersist()
    return _result(plan, counts, NOTHING_STALE, check_committed(export.table, head.version, stamp))


def _upsert(
    spark: SparkSession,
    export: Export,
    plan: ExportPlan,
    read: ReadRecords,
    max_share: float,
    newest: Newest,
    *,
    accepted: bool,
) -> ExportResult | None:
    """Upsert the new records. The tasks that read the records also write the files of the table. None: there are too many
    keys. Then nothing was written."""
    rows = read(*plan.to_read, plan.required, upserting(export)).persist()
    try:
        written, index = what_was_reduced(results_of(rows))
        if index is None:
            delete_files(export, written)
            return None
        try:
            check_plan_read(export, plan, newest)
        except LogChangedError:
            delete_files(export, written)
            raise
        counts, recent = _checked(export, plan, rows, written, max_share, accepted=accepted)
        with named_conflicts(export.table, "export"):
            head, stamp = _begin_commit(spark, export, plan, rows, counts, recent)
            changed = change_files(run_tasks(spark), export, reopened(export, head.version), written, index)
            decision = changed.decision
            if export.digest:
                link = NextLink(head, plan.to_read[0], counts.by_partition)
                stamp = link.add_to(stamp, changed.came, changed.went, decision.newly_stale)
            commit_changes(export, changed, stamp)
    finally:
        rows.unpersist()
    commit = check_committed(export.table, head.version, stamp)
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=decision.written,
        deleted=decision.deleted,
        became_stale=decision.newly_stale.total(),
        reasons=counts.reasons,
        without_row=decision.without_row,
        plan=plan,
        table_version=commit.version,
    )


def _checked(
    export: Export, plan: ExportPlan, rows: DataFrame, written: Written, max_share: float, *, accepted: bool
) -> tuple[Counts, Recent]:
    """The counts of the records of `written`, and the recent records for the next stamp.

    Raises:
        TooManyDeadLettersError: more records than allowed cannot be decoded. The files of `written` were deleted.
    """
    counts = counts_of(written)
    recent = recent_after(plan.recent, counts, max_share, accepted=accepted)
    if recent is None:
        error = too_many(export, plan, rows, counts, max_share)
        delete_files(export, written)
        raise error
    return counts, recent


def _begin_commit(
    spark: SparkSession, export: Export, plan: ExportPlan, rows: DataFrame, counts: Counts, recent: Recent
) -> tuple[TableHead, Stamp]:
    """Create a table that does not exist yet, and write the dead letters. Returns the version of the table and the stamp,
    still without the chain."""
    head = plan.head or fit_table(spark, export, plan)
    stamp = stamp_of(spark, export, head, plan.positions, recent, plan.began)
    if counts.dead_letters:
        append_undecodable(spark, export, rows, stamp, plan.start)
    return head, stamp


def decided(export: Export, decoded: DataFrame) -> DataFrame:
    """The decoded records; for an upsert reduced to the record that decides each key."""
    return reduced(decoded) if export.mode is ExportMode.UPSERT else decoded


def _write(
    spark: SparkSession,
    export: Export,
    plan: ExportPlan,
    rows: DataFrame,
    counts: Counts,
    stamp: Stamp,
    head: TableHead,
) -> tuple[Stale, Stamp]:
    """First write the dead letters. Then write the rows and the position, in one commit. Returns also the stamp with the
    chain."""
    if counts.dead_letters:
        append_undecodable(spark, export, rows, stamp, plan.start)
    link = NextLink(head, plan.to_read[0], counts.by_partition) if export.digest else None
    if export.mode is ExportMode.UPSERT:
        with_undecodable = counts.dead_letters > 0
        return merge_rows(spark, export, rows, stamp, link, head, plan.rebuilt, with_undecodable=with_undecodable)
    return NOTHING_STALE, append_rows(spark, export, rows, stamp, link, plan.replaced_rows)


def _result(plan: ExportPlan, counts: Counts, stale: Stale, commit: Commit) -> ExportResult:
    changed, deleted = rows_changed(commit)
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=changed - stale.rows,
        deleted=deleted,
        became_stale=stale.newly,
        reasons=counts.reasons,
        without_row=stale.without_row,
        plan=plan,
        table_version=commit.version,
    )


# --- Counts and dead letters ------------------------------------------------------------------------------------


def count_records(rows: DataFrame) -> Counts:
    """Count the decoded records."""
    parts = rows
    if "_parts" in rows.columns:  # a row has records of several partitions
        parts = rows.select("_reason", "_tombstone", F.inline("_parts"))
    by_partition = parts.groupBy("_partition").agg(
        F.sum("_records").alias("records"),
        F.sum("_nulls").alias("tombstones"),
        F.count_if(F.col("_reason").isNotNull() & F.col("_tombstone")).alias("null_values"),
        *(F.count_if(F.col("_reason") == reason).alias(reason) for reason in REASONS),
    )
    found = by_partition.collect()
    totals = {name: sum(each[name] for each in found) for name in ("records", "tombstones", "null_values", *REASONS)}
    return Counts(
        totals["records"],
        totals["tombstones"],
        {reason: totals[reason] for reason in REASONS if totals[reason]},
        totals["null_values"],
        {
            each["_partition"]: PartitionCounts(
                each["records"], each["tombstones"], sum(each[reason] for reason in REASONS)
            )
            for each in found
        },
    )


def too_many(
    export: Export, plan: ExportPlan, rows: DataFrame, counts: Counts, max_share: float
) -> TooManyDeadLettersError:
    """The error that names the dead letters of the rows."""
    bad = rows.where("_reason IS NOT NULL AND NOT _tombstone")
    by_reason = bad.groupBy("_reason", "_detail").count().orderBy(F.desc("count"), "_reason", "_detail").limit(_MOST)
    places = bad.groupBy("_partition").agg(F.min("_offset"), F.max("_offset"), F.count("*")).orderBy("_partition")
    return too_many_dead_letters(
        export.table, export.section, counts.decodable, plan.recent, max_share,
        [ReasonCount(*row) for row in by_reason.collect()],
        [Place(*row) for row in places.collect()],
        plan.to_read[1],
    )  # fmt: skip
