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
and the export goes on, unless there are too many (`pipeline.delta.dead_letter_share`). The table does not depend on how the
log was cut into pieces. (The exception is a key that lies in several partitions and whose timestamps fall while its
offsets rise: what lost earlier is not kept to win later. And a log that was compacted no longer has the earlier record
that a stale row was made from: a table made again from it lacks that row.)

**Exactly once.** Positions travel in the table's own commits, see `pipeline.delta.table_stamp`. One run is

    1. read the position from the table's history, and decide (`pipeline.delta.export_plan`); nothing new: done
    2. read, decode, reduce; keep the result on the executors; too many dead letters: stop
    3. give the table the columns of the model (`pipeline.delta.table_schema`); append the dead letters (their table's commits
       carry positions as well)
    4. MERGE or append, with the new position in the same commit

The export is a registered consumer of its topic (storage_engine.topic.readers.groups): the positions found in 1 are put on record
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

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pipeline.delta.dead_letter_share import (
    Place,
    Reason,
    TooManyDeadLettersError,
    followed_by,
    is_too_much,
    too_many_dead_letters,
)
from pipeline.delta.delta_table import check_committed, named_conflicts
from pipeline.delta.export_plan import (
    NO_WISH,
    Export,
    ExportMode,
    ExportPlan,
    ExportResult,
    OffsetRange,
    Wish,
    decide_export,
)
from pipeline.delta.export_rows import REASONS, decode, reduced, with_counts
from pipeline.delta.table_position import look_at_table, stamp_of
from pipeline.delta.table_schema import Tell, check_columns, fit_table
from pipeline.delta.table_stamp import Recent, Stamp
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
    plan = decide_export(export, *look_at_table(spark, export), ranges, wish)
    register(plan.before)
    if not plan.waiting:
        return ExportResult(plan=plan, table_version=plan.table_version)
    check_columns(spark, export)
    rows = _decoded(export, _read(read, plan)).persist()
    try:
        counts = _count(rows)
        recent = _recent_after(export, plan, rows, counts, wish, max_share)
        with named_conflicts(export.table, "export"):
            head = fit_table(spark, export, plan, tell)
            stamp = stamp_of(spark, export, head, plan.positions, recent)
            stale = _write(spark, export, plan, rows, counts, stamp)
    finally:
        rows.unpersist()
    commit = check_committed(spark, export.table, head.version, stamp)
    return _result(plan, counts, stale, commit)


def _read(read: ReadRecords, plan: ExportPlan) -> DataFrame:
    """The records of the partitions that have something new."""
    start = {each: plan.start[each] for each in plan.waiting}
    end = {each: plan.end[each] for each in plan.waiting}
    return read(start, end, plan.required)


def _decoded(export: Export, records: DataFrame) -> DataFrame:
    """What the records decode to: for an upsert, what decides about each key."""
    decoded = decode(records, export)
    return reduced(decoded) if export.mode is ExportMode.UPSERT else with_counts(decoded)


def _write(
    spark: SparkSession, export: Export, plan: ExportPlan, rows: DataFrame, counts: _Counts, stamp: Stamp
) -> Stale:
    """The dead letters first; then the rows and the position, in one commit."""
    if counts.dead_letters:
        append_undecodable(spark, export, rows, stamp)
    if export.mode is ExportMode.UPSERT:
        return merge_rows(spark, export, rows, stamp, plan.rebuilt, with_undecodable=counts.dead_letters > 0)
    append_rows(export, rows, stamp, plan.replaced_rows)
    return NOTHING_STALE


def _result(plan: ExportPlan, counts: _Counts, stale: Stale, commit: Row) -> ExportResult:
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


# --- What there is to write ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counts:
    """Of the records of one run.

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


def _recent_after(
    export: Export, plan: ExportPlan, rows: DataFrame, counts: _Counts, wish: Wish, max_share: float
) -> Recent:
    """The last records once these are exported.

    Raises:
        TooManyDeadLettersError: too many of them do not decode, and the wish does not accept them.
    """
    if wish.up_to is not None:
        return Recent()  # what was accepted is not held against what follows
    if is_too_much(plan.recent, counts.decodable, counts.not_decoded, max_share):
        raise _too_many(export, plan, rows, counts, max_share)
    return followed_by(plan.recent, counts.decodable, counts.not_decoded)


def _too_many(
    export: Export, plan: ExportPlan, rows: DataFrame, counts: _Counts, max_share: float
) -> TooManyDeadLettersError:
    bad = rows.where("_reason IS NOT NULL AND NOT _tombstone")
    by_reason = bad.groupBy("_reason", "_detail").count().orderBy(F.desc("count"), "_reason", "_detail").limit(_MOST)
    places = bad.groupBy("_partition").agg(F.min("_offset"), F.max("_offset"), F.count("*")).orderBy("_partition")
    return too_many_dead_letters(
        export.table, counts.decodable, plan.recent, max_share,
        [Reason(*row) for row in by_reason.collect()],
        [Place(*row) for row in places.collect()],
        {partition: plan.end[partition] for partition in plan.waiting},
    )  # fmt: skip
