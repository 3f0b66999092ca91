"""Writes rows into an exported table. The commit of these rows also contains the position in the log. Writes dead
letters into their own table.

An export writes the new records. A replay writes the records that a corrected model can now decode. Rows are appended
(each record is a row) or merged (one row per key, by the rules of `pipeline.delta.rows.export_rows`). Each row is written
exactly once, because Delta skips a commit with a guard that was committed before (`pipeline.delta.table_history`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.spark.types import quoted, spark_struct
from pipeline.delta.chain.spark_sums import sums_of, sums_of_upsert
from pipeline.delta.dead_letters import append_dead_letters
from pipeline.delta.export_plan import Export
from pipeline.delta.files.appending import write_source
from pipeline.delta.files.table_commits import commit_files, is_plain
from pipeline.delta.rows.export_rows import first_undecodable, place
from pipeline.delta.rows.field_paths import Field
from pipeline.delta.rows.fitted_columns import absent_fields, fitted
from pipeline.delta.rows.newer_sql import is_newer, of_place
from pipeline.delta.rows.row_columns import row_columns, table_columns
from pipeline.delta.rows.upserted_rows import BECOMES_STALE, DECIDES, STALE_AFTER, WINS, upsert_source
from pipeline.delta.table_history import Commit, check_committed, read_head
from pipeline.delta.table_stamp import NextLink, Stamp, TableHead, letters_stamp, perhaps_written


def append_undecodable(
    spark: SparkSession, export: Export, rows: DataFrame, stamp: Stamp, start: Mapping[int, int]
) -> None:
    """Append the dead letters of the rows to their table, except those that are in the table already. If one of those has
    an outcome, it is opened again, because this run does not make a row from its record.

    A killed run, or a run before a RESTORE, may have appended some of the dead letters already. The commits of the
    dead-letter table also have positions. All dead letters in the table are below these positions, so only dead letters
    below these positions are looked up.

    Args:
        rows: at least one of them is a dead letter.
        start: by partition, the first offset that was read.

    Raises:
        ConflictError: Delta skipped the append, because another export appended dead letters meanwhile.
    """
    bad = rows.where("_reason IS NOT NULL")
    head = read_head(export.dead_letters, stamp.table_id)
    repeated = perhaps_written(head, start, stamp.positions)
    reopens = False
    if repeated:
        below = F.lit(False)
        for partition, position in repeated.items():
            below = below | ((F.col("partition") == partition) & (F.col("offset") < position))
        there = letters_of(spark, export, stamp.table_id).where(below)
        open_there, closed = there, there.limit(0)
        if "outcome" in there.columns:
            open_there, closed = there.where("outcome IS NULL"), there.where("outcome IS NOT NULL")
        bad = bad.join(_places(open_there), ["_partition", "_offset"], "left_anti")
        if bad.isEmpty():
            return
        reopens = not bad.join(_places(closed), ["_partition", "_offset"], "left_semi").isEmpty()
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
    stamp = letters_stamp(stamp, head)
    guard, version = (head.next_guard, head.version) if head is not None else (0, -1)
    if reopens:
        _append_and_reopen(spark, export, letters, stamp, guard)
    else:
        append_dead_letters(letters, export.dead_letters, stamp.app_id, guard, stamp.to_json())
    check_committed(export.dead_letters, version, stamp)


def _places(letters: DataFrame) -> DataFrame:
    return letters.select(F.col("partition").alias("_partition"), F.col("offset").alias("_offset"))


def _append_and_reopen(spark: SparkSession, export: Export, letters: DataFrame, stamp: Stamp, guard: int) -> None:
    """In one commit, append the dead letters that are not in the table, and open those again that are. The first step of
    an export must leave no dead letter closed whose record the second step leaves without a row."""
    table = DeltaTable.forPath(_committing(spark, stamp, guard), export.dead_letters)
    same = "l.partition = n.partition AND l.offset = n.offset AND (l.table_id IS NULL OR l.table_id = n.table_id)"
    table.alias("l").merge(letters.alias("n"), same).whenMatchedUpdate(
        set={name: f"n.{name}" for name in ("reason", "detail", "outcome")}
    ).whenNotMatchedInsertAll().execute()


def _committing(spark: SparkSession, stamp: Stamp, guard: int, without: Collection[Field] = ()) -> SparkSession:
    """A session for one MERGE, which reads the guard and the metadata only from the settings of its session. Threads share
    a session, so each MERGE has its own. without: as in Stamp.to_json."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.write.txnAppId", stamp.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(guard))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", stamp.to_json(without=without))
    return session


def letters_of(spark: SparkSession, export: Export, table_id: str) -> DataFrame:
    """The dead letters of one exported table. Dead letters that an older Lakelog wrote do not name a table, so they are
    included for every table."""
    letters = spark.read.format("delta").load(export.dead_letters)
    if "table_id" not in letters.columns:
        return letters
    return letters.where(F.col("table_id").isNull() | (F.col("table_id") == table_id))


def append_rows(
    spark: SparkSession,
    export: Export,
    rows: DataFrame,
    stamp: Stamp,
    link: NextLink | None,
    replaced: str | None = None,
) -> Stamp:
    """Append the rows. Returns the stamp with the chain.

    Args:
        link: continues the chain; None: the rows have no digests.
        replaced: SQL that is true for the rows of the table that are replaced, and for all new rows.
    """
    names = table_columns(export).names
    rows = rows.where("_reason IS NULL").select(*map(quoted, names))
    without = absent_fields(spark.read.format("delta").load(export.table).schema, rows.schema)
    if link is not None:
        went = {}
        if replaced is not None:
            before = spark.read.format("delta").option("versionAsOf", link.head.version).load(export.table)
            went = sums_of(before.where(replaced))
        stamp = link.add_to(stamp, sums_of(rows), went)
    writer = rows.write.format("delta").option("userMetadata", stamp.to_json(without=without))
    writer = writer.option("txnAppId", stamp.app_id).option("txnVersion", stamp.version)
    if replaced is not None:
        writer = writer.mode("overwrite").option("replaceWhere", replaced)
    else:
        writer = writer.mode("append")
    if export.layout.partitions:  # otherwise each task writes a file for each value
        writer = writer.option("optimizeWrite", "true")
    writer.save(export.table)
    return stamp


@dataclass(frozen=True)
class Stale:
    """The effect of records that cannot be decoded on an upsert table.

    rows: number of rows in which only `_stale_since` changed.
    newly: number of these rows that were current before.
    without_row: number of keys that have a record that cannot be decoded, but no row.
    by_partition: the number of rows that were current before, by partition of the row.
    """

    rows: int = 0
    newly: int = 0
    without_row: int = 0
    by_partition: Mapping[int, int] = field(default_factory=dict)


NOTHING_STALE = Stale()


def merge_rows(
    spark: SparkSession,
    export: Export,
    rows: DataFrame,
    stamp: Stamp,
    link: NextLink | None,
    head: TableHead,
    began: Mapping[int, int],
    *,
    with_undecodable: bool,
) -> tuple[Stale, Stamp]:
    """Upsert the rows. If the table is new and plain, nothing is merged, and the rows are only written. Returns also the
    stamp with the chain.

    Args:
        rows: reduced rows, which are cached.
        head: the head of the table from which the stamp was made.
        link: continues the chain; None: the rows have no digests.
        began: by partition, the first offset that was read again. A row of the table at or above that offset is deleted
            if its key has no record.
        with_undecodable: whether some of the rows could not be decoded.
    """
    stale, first = NOTHING_STALE, None
    if with_undecodable:
        now = spark.read.format("delta").load(export.table)
        first = first_undecodable(rows, now)
        stale = _stale(first, now)
    source = upsert_source(export, rows, first)
    if head.is_new and is_plain(export, head.version):
        written = write_source(export, source)
        if link is not None:
            stamp = link.add_to(stamp, written.came)
        commit_files(export, written, stamp)
        return stale, stamp
    if link is not None:
        came, went = sums_of_upsert(spark, export.table, link.head.version, source, began)
        stamp = link.add_to(stamp, came, went, stale.by_partition)
    names = row_columns(export).names
    # A column or a field that is no longer in the model becomes null.
    there = spark.read.format("delta").load(export.table).schema
    values = {quoted(name): f"s.{quoted(name)}" if name in names else "NULL" for name in there.names}
    without = absent_fields(there, spark_struct(table_columns(export)))
    source = source.withColumns(
        {name: fitted(F.col(quoted(name)), source.schema[name].dataType, there[name].dataType) for name in names}
    )
    table = DeltaTable.forPath(_committing(spark, stamp, stamp.version, without), export.table)
    merge = (
        table.alias("t")
        .merge(source.alias("s"), "s._key = t._key")
        .whenMatchedDelete(f"{WINS} AND s._tombstone")
        .whenMatchedUpdate(WINS, {**values, "`_stale_since`": STALE_AFTER})
        .whenMatchedUpdate(BECOMES_STALE, {"`_stale_since`": "s._bad"})
        .whenNotMatchedInsert(f"{DECIDES} AND NOT s._tombstone", {**values, "`_stale_since`": "s._bad"})
    )
    for partition, start in began.items():
        merge = merge.whenNotMatchedBySourceDelete(f"t._partition = {partition} AND t._offset >= {start}")
    merge.execute()
    return stale, stamp


def _stale(first: DataFrame, table: DataFrame) -> Stale:
    """The effect of the records that cannot be decoded on rows that no deciding record of the increment replaces."""
    rows = table.select("_key", place().alias("_there"), "_stale_since")
    loses = f"_place IS NULL OR coalesce({is_newer(of_place('_there'), of_place('_place'))}, false)"
    keys = first.join(rows, "_key", "left").select(
        F.expr(loses).alias("undecided"),
        F.col("_there").isNotNull().alias("has_row"),
        F.col("_there.partition").alias("partition"),
        F.col("_stale_since").isNull().alias("current"),
        F.expr(f"_stale_since IS NULL OR {is_newer(of_place('_stale_since'), of_place('_bad'))}").alias("changes"),
    )
    found = (
        keys.groupBy("partition")
        .agg(
            F.count_if(F.expr("undecided AND has_row AND changes")).alias("rows"),
            F.count_if(F.expr("undecided AND has_row AND current")).alias("newly"),
            F.count_if(F.expr("undecided AND NOT has_row")).alias("without_row"),
        )
        .collect()
    )
    return Stale(
        rows=sum(each["rows"] for each in found),
        newly=sum(each["newly"] for each in found),
        without_row=sum(each["without_row"] for each in found),
        by_partition={each["partition"]: each["newly"] for each in found if each["newly"]},
    )


def rows_changed(commit: Commit) -> tuple[int, int]:
    """The number of rows that a commit inserted or updated, and the number that it deleted."""
    metrics = commit.metrics
    if commit.operation == "MERGE":
        upserted = int(metrics["numTargetRowsInserted"]) + int(metrics["numTargetRowsUpdated"])
        return upserted, int(metrics["numTargetRowsDeleted"])
    # The other rows of a rewritten file are only copied, so they do not count.
    return int(metrics["numOutputRows"]) - int(metrics.get("numCopiedRows", 0)), int(metrics.get("numDeletedRows", 0))
