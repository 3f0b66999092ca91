"""Exports a topic into a Delta table, a piece of the log at a time, each record exactly once.

Two modes, by cleanup.policy:

- **upsert**, for compacted topics: the table holds one row per key, made from the newest record of the key that decodes;
  a tombstone (a null value) deletes the row. A newer record that does not decode leaves the row as it is, and the row
  says so: `_stale_since` is the place of the first such record. Of the records of one key in one partition the highest
  offset is the newest. A key can lie in several partitions, after partitions were added; among those, the larger
  timestamp is the newer, and at equal timestamps the higher partition.
- **append**, for all others: every record is a row.

The columns are the fields of the topic's event model, or `value` where it has none, and then `_key`, `_partition`,
`_offset` and `_timestamp`, and of an upsert `_stale_since`. A value that is no event of the model becomes a dead letter
and the export goes on, unless there are too many (`pipeline.dead_letter_share`). The table does not depend on how the
log was cut into pieces. (The exception is a key that lies in several partitions and whose timestamps fall while its
offsets rise: what lost earlier is not kept to win later. And a log that was compacted no longer has the earlier record
that a stale row was made from: a table made anew from it lacks that row.)

**Exactly once.** Positions travel in the table's own commits, see `pipeline.table_stamp`. One run is

    1. read the position from the table's history; nothing new: done
    2. read, decode, reduce; keep the result on the executors; too many dead letters: stop
    3. give the table the columns of the model (`pipeline.table_schema`); append the dead letters (their table's commits
       carry positions as well)
    4. MERGE or append, with the new position in the same commit

The export is a registered consumer of its topic (storage_engine.topic.groups): the positions found in 1 are put on record
before 2, those of 4 after it. So cleaning knows what has not been read, also after a RESTORE took the position back. Where
compaction may have removed tombstones above the position all the same, as it may before a RESTORE and beyond
consumer.max.hold.ms, an upsert reads that partition from its start, and rows whose keys are not there any more go.

A run can also begin at earlier offsets than the table's position. An append then replaces the rows from there on, in the
one commit; an upsert reads the records again, which leaves each row as a whole pass would make it.

A crash before 4 leaves the position, and the piece is exported again, perhaps together with more. Dead letters that
step 3 wrote are found in their table and left out. A crash after 4 leaves nothing to do. Nothing here is safe to call
from two threads for one table, and nothing breaks: Delta refuses one of them.

Records are never collected on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pipeline.dead_letter_share import (
    Place,
    Reason,
    TooManyDeadLettersError,
    followed_by,
    is_too_much,
    too_many_dead_letters,
)
from pipeline.dead_letters import append_dead_letters
from pipeline.delta_table import check_committed, is_table, named_conflicts, read_head
from pipeline.export_plan import (
    NO_WISH,
    Export,
    ExportMode,
    ExportResult,
    Increment,
    OffsetRange,
    Wish,
    plan_increment,
)
from pipeline.export_rows import (
    REASONS,
    STALE_SINCE,
    deciding,
    decode,
    first_undecodable,
    is_newer,
    of_place,
    of_row,
    reduced,
    row_columns,
    table_columns,
    with_counts,
)
from pipeline.settings.model import DEFAULT_MAX_SHARE
from pipeline.spark_types import nullable, spark_struct
from pipeline.table_position import positions_of_rows, stamp_of
from pipeline.table_schema import Tell, check_columns, fit_table
from pipeline.table_stamp import Recent, Stamp

_MOST = 50
"""So many reasons are fetched to be named."""

Register = Callable[[Mapping[int, int]], None]
"""Puts on record how far the export has read, by partition."""

ReadRecords = Callable[[dict[int, int], dict[int, int], dict[int, int]], DataFrame]
"""Reads partition -> first offset up to partition -> offset after the last, as Spark's Kafka source gives records. What
retention takes away meanwhile is passed over below partition -> the table's position, and an error from there on."""


def export_increment(
    spark: SparkSession,
    export: Export,
    ranges: Mapping[int, OffsetRange],
    read: ReadRecords,
    register: Register = lambda _: None,
    wish: Wish = NO_WISH,
    max_share: float = DEFAULT_MAX_SHARE,
    tell: Tell = lambda _: None,
) -> ExportResult:
    """Exports what the table does not hold yet, up to the high watermarks in `ranges`.

    Args:
        spark: the session that `read` uses, too.
        ranges: the partitions of the topic, read from one version of its state.
        read: called at most once, with the partitions that have something new. Its columns: key, value, topic,
            partition, offset, timestamp, timestampType, headers.
        register: called before anything is read, with the positions that the table has.
        wish: what this run is asked beyond that.
        max_share: so many of the records may be dead letters, unless the wish accepts them.
        tell: is told in one line of a rewrite of the table, before it begins.

    Raises:
        ExportRefusedError: if the table does not fit the topic; each kind says what to do.
        TooManyDeadLettersError: more records do not decode than allowed. Nothing was committed.
        ConflictError: if another writer changed the table in the meantime; nothing is lost.
        UnsupportedFieldError: if the model has a field without a column type.
    """
    head = read_head(spark, export.table) if is_table(spark, export.table) else None
    increment = plan_increment(export, head, ranges, wish, lambda: positions_of_rows(spark, export))
    register(increment.before)
    if not increment.waiting:
        return ExportResult(increment=increment, table_version=head.version if head else None)
    check_columns(spark, export)
    waiting = increment.waiting
    records = read(
        {each: increment.start[each] for each in waiting},
        {each: increment.end[each] for each in waiting},
        increment.required,
    )
    before = head.current.recent if head is not None and head.current is not None else Recent()
    decoded = decode(records, export)
    rows = (reduced(decoded) if export.mode is ExportMode.UPSERT else with_counts(decoded)).persist()
    try:
        counts = _count(rows)
        if wish.up_to is not None:
            recent = Recent()  # what was accepted is not held against what follows
        elif is_too_much(before, counts.decodable, counts.not_decoded, max_share):
            raise _too_many(export, rows, counts, before, max_share, increment)
        else:
            recent = followed_by(before, counts.decodable, counts.not_decoded)
        with named_conflicts(export.table, "export"):
            head = fit_table(spark, export, head, increment.before, before, tell)
            stamp = stamp_of(spark, export, head, increment.positions, recent)
            if counts.dead_letters:
                append_undecodable(spark, export, rows, stamp)
            if export.mode is ExportMode.UPSERT:
                began = {each: increment.start[each] for each in (*increment.reread, *increment.replaced)}
                stale = merge_rows(spark, export, rows, stamp, began, with_undecodable=counts.dead_letters > 0)
            else:
                stale = NOTHING_STALE
                append_rows(export, rows, stamp, _replaced(increment))
    finally:
        rows.unpersist()
    commit = check_committed(spark, export.table, head.version, stamp)
    changed, deleted = rows_changed(commit)
    return ExportResult(
        records=counts.records,
        tombstones=counts.tombstones,
        written=changed - stale.rows,
        deleted=deleted,
        became_stale=stale.newly,
        reasons=counts.reasons,
        without_row=stale.without_row,
        increment=increment,
        table_version=commit.version,
    )


# --- What there is to write ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counts:
    """Of an increment's records.

    reasons: how many are dead letters, by reason.
    null_values: dead letters because a null value is no row of an append; they are tombstones all the same.
    """

    records: int
    tombstones: int
    reasons: Mapping[str, int]
    null_values: int

    @property
    def dead_letters(self) -> int:
        return sum(self.reasons.values())

    @property
    def decodable(self) -> int:
        """Records that the share of dead letters is counted over."""
        return self.records - self.tombstones

    @property
    def not_decoded(self) -> int:
        return self.dead_letters - self.null_values


def _count(rows: DataFrame) -> _Counts:
    found = rows.agg(
        F.coalesce(F.sum("_records"), F.lit(0)).alias("records"),
        F.coalesce(F.sum("_nulls"), F.lit(0)).alias("tombstones"),
        F.count_if(F.col("_reason").isNotNull() & F.col("_tombstone")).alias("null_values"),
        *(F.count_if(F.col("_reason") == reason).alias(reason) for reason in REASONS),
    ).first()
    assert found is not None, "an aggregation without grouping has one row"
    reasons = {reason: found[reason] for reason in REASONS if found[reason]}
    return _Counts(found["records"], found["tombstones"], reasons, found["null_values"])


def _too_many(
    export: Export, rows: DataFrame, counts: _Counts, recent: Recent, max_share: float, increment: Increment
) -> TooManyDeadLettersError:
    bad = rows.where("_reason IS NOT NULL AND NOT _tombstone")
    by_reason = bad.groupBy("_reason", "_detail").count().orderBy(F.desc("count"), "_reason", "_detail").limit(_MOST)
    places = bad.groupBy("_partition").agg(F.min("_offset"), F.max("_offset"), F.count("*")).orderBy("_partition")
    return too_many_dead_letters(
        export.table, counts.decodable, recent, max_share,
        [Reason(*row) for row in by_reason.collect()],
        [Place(*row) for row in places.collect()],
        {partition: increment.end[partition] for partition in increment.waiting},
    )  # fmt: skip


# --- Rows into tables ---------------------------------------------------------------------------------------------


def append_undecodable(spark: SparkSession, export: Export, rows: DataFrame, stamp: Stamp) -> None:
    """Appends the dead letters among the rows that their table does not hold yet.

    An interrupted run, or a run before a RESTORE, has appended those below the position of their table; below it only
    those are looked up that another model, or a re-reading, has brought.
    """
    bad = rows.where("_reason IS NOT NULL")
    guard = 0
    if is_table(spark, export.dead_letters):
        head = read_head(spark, export.dead_letters, stamp.table_id)
        guard = head.next_guard
        there = letters_of(spark, export, stamp.table_id).select(
            F.col("partition").alias("_partition"), F.col("offset").alias("_offset")
        )
        written = head.current.positions if head.current is not None else {}
        below = F.lit(False)
        for partition_id, position in written.items():
            below = below | ((F.col("_partition") == partition_id) & (F.col("_offset") < position))
        old = bad.where(below)
        if not old.isEmpty():
            bad = bad.where(~below).unionByName(old.join(there, ["_partition", "_offset"], "left_anti"))
    letters = bad.select(
        F.col("_reason").alias("reason"),
        F.col("_detail").alias("detail"),
        F.lit(export.topic).alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("timestamp"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
        F.col("_bad_headers").alias("headers"),
        F.lit(stamp.table_id).alias("table_id"),
        F.lit(None).cast("string").alias("outcome"),
    )
    append_dead_letters(letters, export.dead_letters, stamp.app_id, guard, stamp.to_json())


def letters_of(spark: SparkSession, export: Export, table_id: str) -> DataFrame:
    """The dead letters of one exported table. Those of an older Lakelog do not say whose they are, and count for all."""
    letters = spark.read.format("delta").load(export.dead_letters)
    if "table_id" not in letters.columns:
        return letters
    return letters.where(F.col("table_id").isNull() | (F.col("table_id") == table_id))


def append_rows(export: Export, rows: DataFrame, stamp: Stamp, replaced: str | None = None) -> None:
    """Append. replaced: SQL that is true of the rows of the table that these take the place of, and of all of these."""
    rows = rows.where("_reason IS NULL").select(table_columns(export).names)
    writer = rows.write.format("delta").option("userMetadata", stamp.to_json())
    writer = writer.option("txnAppId", stamp.app_id).option("txnVersion", stamp.version)
    if replaced is not None:
        writer = writer.mode("overwrite").option("replaceWhere", replaced)
    else:
        writer = writer.mode("append")
    writer.save(export.table)


def _replaced(increment: Increment) -> str | None:
    """The rows that an append replaces; None where it only adds some."""
    if not increment.replaced:
        return None
    return " OR ".join(f"(_partition = {each} AND _offset >= {increment.start[each]})" for each in increment.waiting)


@dataclass(frozen=True)
class Stale:
    """What records that do not decode meant for an upserted table.

    rows: whose `_stale_since` changed and nothing else. newly: those of them that were current before.
    without_row: keys of such records that have no row.
    """

    rows: int = 0
    newly: int = 0
    without_row: int = 0


NOTHING_STALE = Stale()


def merge_rows(
    spark: SparkSession,
    export: Export,
    rows: DataFrame,
    stamp: Stamp,
    began: Mapping[int, int],
    *,
    with_undecodable: bool,
) -> Stale:
    """Upsert.

    Args:
        rows: reduced, and kept.
        began: partitions that were read again, by the offset from which on: a row from there on whose key was not met was
            deleted.
        with_undecodable: whether some of the rows do not decode.
    """
    # MERGE takes guard and metadata from its session alone, and sessions are shared by threads: so one of its own.
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.write.txnAppId", stamp.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(stamp.version))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", stamp.to_json())
    table = DeltaTable.forPath(session, export.table)
    names = row_columns(export).names
    source = deciding(rows).select(*names, F.col("_tombstone"), F.lit(True).alias("_decides"))
    stale = NOTHING_STALE
    if with_undecodable:
        now = spark.read.format("delta").load(export.table)
        first = first_undecodable(rows, now)
        stale = _stale(first, now)
        # Each key that was met has a row here, also where nothing is newer than its row: none of them was deleted.
        met = rows.where("_reason IS NOT NULL AND _key IS NOT NULL").select("_key").distinct()
        source = source.join(met, "_key", "full_outer").join(first.select("_key", "_bad"), "_key", "left")
    else:
        source = source.withColumn(
            "_bad", F.lit(None).cast(nullable(spark_struct(pa.schema([STALE_SINCE])))[0].dataType)
        )
    # A column that the model no longer has becomes null, as it would be in a table made today.
    values = {f"`{name}`": f"s.`{name}`" if name in names else "NULL" for name in table.toDF().columns}
    there, bad = "t._stale_since", "s._bad"
    stays = f"{there} IS NOT NULL AND {is_newer(of_place(there), of_row('s'))}"
    earlier = f"{there} IS NULL OR {is_newer(of_place(there), of_place(bad))}"
    kept = f"CASE WHEN {stays} AND ({bad} IS NULL OR {is_newer(of_place(bad), of_place(there))}) THEN {there} ELSE {bad} END"
    wins = f"coalesce(s._decides, false) AND {is_newer(of_row('s'), of_row('t'), '>=')}"
    merge = (
        table.alias("t")
        .merge(source.alias("s"), "s._key = t._key")
        .whenMatchedDelete(f"{wins} AND s._tombstone")
        .whenMatchedUpdate(wins, {**values, "`_stale_since`": kept})
        .whenMatchedUpdate(f"{bad} IS NOT NULL AND ({earlier})", {"`_stale_since`": bad})
        .whenNotMatchedInsert("coalesce(s._decides, false) AND NOT s._tombstone", {**values, "`_stale_since`": bad})
    )
    for partition, start in began.items():
        merge = merge.whenNotMatchedBySourceDelete(f"t._partition = {partition} AND t._offset >= {start}")
    merge.execute()
    return stale


def _stale(first: DataFrame, table: DataFrame) -> Stale:
    """What will become of the rows. The record that decides, where there is one, is newer than the table's row."""
    keys = first.join(table.select("_key", F.lit(True).alias("_row"), "_stale_since"), "_key", "left").select(
        F.col("_place").isNull().alias("undecided"),
        F.col("_row").isNotNull().alias("has_row"),
        F.col("_stale_since").isNull().alias("current"),
        F.expr(f"_stale_since IS NULL OR {is_newer(of_place('_stale_since'), of_place('_bad'))}").alias("changes"),
    )
    found = keys.agg(
        F.count_if(F.expr("undecided AND has_row AND changes")).alias("rows"),
        F.count_if(F.expr("undecided AND has_row AND current")).alias("newly"),
        F.count_if(F.expr("undecided AND NOT has_row")).alias("without_row"),
    ).first()
    assert found is not None, "an aggregation without grouping has one row"
    return Stale(**found.asDict())


def rows_changed(commit: Row) -> tuple[int, int]:
    """How many rows a commit inserted or updated, and how many it deleted."""
    metrics: Mapping[str, str] = commit.operationMetrics
    if commit.operation == "MERGE":
        upserted = int(metrics["numTargetRowsInserted"]) + int(metrics["numTargetRowsUpdated"])
        return upserted, int(metrics["numTargetRowsDeleted"])
    # What stays of a file of which some rows are replaced is copied.
    return int(metrics["numOutputRows"]) - int(metrics.get("numCopiedRows", 0)), int(metrics.get("numDeletedRows", 0))
