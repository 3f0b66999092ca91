"""Exports a topic into a Delta table, a piece of the log at a time, each record exactly once.

Two modes, by cleanup.policy:

- **upsert**, for compacted topics: the table holds the latest record of each key, and no row for a key whose latest
  record is a tombstone (a null value). Of the records of one key in one partition the highest offset is the latest. A
  key can lie in several partitions, after partitions were added; among those, the larger timestamp wins, and at equal
  timestamps the higher partition. Only one record per key of a piece is decoded and merged.
- **append**, for all others: every record is a row.

The columns are the fields of the topic's event model, or `value` where it has none, and then `_key`, `_partition`,
`_offset` and `_timestamp`. A value that is no event of the model becomes a dead letter and the export goes on; in
upsert mode the key's row is deleted as well. So the table does not depend on how the log was cut into pieces: it never
keeps an older record that a run with another schedule would not have seen. (The exception is a key that lies in several
partitions and whose timestamps fall while its offsets rise: what lost earlier is not kept to win later.)

**Exactly once.** Positions travel in the table's own commits, see `pipeline.delta_table`. One run is

    1. read the position from the table's history; nothing new: done
    2. read, reduce, decode; keep the result on the executors
    3. append the dead letters (their table's commits carry positions as well)
    4. MERGE or append, with the new position in the same commit

The export is a registered consumer of its topic (storage_engine.topic.groups): the positions found in 1 are put on record
before 2, those of 4 after it. So cleaning knows what has not been read, also after a RESTORE took the position back. Where
compaction may have removed tombstones behind the position all the same, as it may before a RESTORE and beyond
consumer.max.hold.ms, an upsert reads that partition from its start, and rows whose keys are not there any more go.

A crash before 4 leaves the position, and the piece is exported again, perhaps together with more. Dead letters that
step 3 wrote then lie below the position of their own table and are left out. A crash after 4 leaves nothing to do.
Nothing here is safe to call from two threads for one table, and nothing breaks: Delta refuses one of them.

Records are never collected on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import pyarrow as pa
from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from pipeline.dead_letters import EXPORT_DEAD_LETTERS, append_dead_letters
from pipeline.delta_table import (
    PLAIN_TABLE_PROPERTIES,
    Stamp,
    TableHead,
    check_committed,
    is_table,
    read_head,
    read_table_id,
)
from pipeline.spark_types import nullable, spark_struct
from schemas.columns import arrow_schema
from schemas.decoding import decode_values
from schemas.event_model import EventModel
from storage_engine.errors import ConflictError, StateError

Register = Callable[[Mapping[int, int]], None]
"""Puts on record how far the export has read, by partition."""

ReadRecords = Callable[[dict[int, int], dict[int, int], dict[int, int]], DataFrame]
"""Reads partition -> first offset up to partition -> offset after the last, as Spark's Kafka source gives records. What
retention takes away meanwhile is passed over below partition -> the table's position, and an error from there on."""


class ExportMode(StrEnum):
    """What a record of the topic means: the new state of its key, or an event beside all others."""

    UPSERT = "upsert"
    APPEND = "append"


@dataclass(frozen=True)
class OffsetRange:
    """What a partition holds for readers of committed records: from the log start offset up to its last stable offset.

    tombstones_end: below it tombstones may have been removed.
    """

    log_start_offset: int
    last_stable_offset: int
    tombstones_end: int = 0


@dataclass(frozen=True)
class Export:
    """One topic and the table that it goes to."""

    topic: str
    topic_id: str
    mode: ExportMode
    model: type[EventModel] | None
    """None: the value is exported as it is, in the binary column `value`."""
    table: str
    """Path or URI of the Delta table."""
    dead_letters: str
    """Path or URI of the Delta table of records that could not be decoded."""


@dataclass(frozen=True)
class Gap:
    """Offsets that retention deleted before they were exported."""

    partition: int
    from_offset: int
    to_offset: int
    """The first offset that was still there."""


@dataclass(frozen=True)
class ExportResult:
    """What one run did."""

    records: int
    """Records read, before a compacted topic is reduced to one per key."""
    upserted: int
    """Rows inserted or updated."""
    deleted: int
    dead_letters: int
    positions_before: Mapping[int, int]
    """Next offset per partition; a partition that was never exported is missing."""
    positions_after: Mapping[int, int]
    table_version: int | None
    """None if there is no table, for want of records."""
    gaps: tuple[Gap, ...]
    reread: tuple[int, ...] = ()
    """Partitions that were read from their start, because tombstones were gone that the table may have lacked."""


class ExportRefusedError(StateError):
    """The table does not fit the topic, and to go on would spoil it."""


class TopicRecreatedError(ExportRefusedError):
    """The table belongs to a topic of the same name that was deleted."""


class ExportModeError(ExportRefusedError):
    """The table was made in the other mode: its rows mean something else."""


class PositionAheadError(ExportRefusedError):
    """The table holds records beyond the end of the log."""


class TableSchemaError(ExportRefusedError):
    """A column of the table has another type than the model says."""


def export_increment(
    spark: SparkSession,
    export: Export,
    ranges: Mapping[int, OffsetRange],
    read: ReadRecords,
    register: Register = lambda _: None,
) -> ExportResult:
    """Exports what the table does not hold yet, up to the high watermarks in `ranges`.

    Args:
        spark: the session that `read` uses, too.
        ranges: the partitions of the topic, read from one version of its state.
        read: called at most once, with the partitions that have something new. Its columns: key, value, topic,
            partition, offset, timestamp, timestampType, headers.
        register: called before anything is read, with the positions that the table has.

    Raises:
        ExportRefusedError: if the table does not fit the topic; each kind says what to do.
        ConflictError: if another writer changed the table in the meantime; nothing is lost.
        UnsupportedFieldError: if the model has a field without a column type.
    """
    head = read_head(spark, export.table) if is_table(spark, export.table) else None
    before = _positions(spark, export, head)
    start, gaps = _starting_offsets(export, before, ranges)
    register(before)
    reread: tuple[int, ...] = ()
    if head is not None and export.mode is ExportMode.UPSERT:
        reread = tuple(
            partition
            for partition, offsets in sorted(ranges.items())
            if before.get(partition, 0) < offsets.tombstones_end
            and offsets.log_start_offset < offsets.last_stable_offset
        )
        start |= {partition: ranges[partition].log_start_offset for partition in reread}
    end = {partition: offsets.last_stable_offset for partition, offsets in ranges.items()}
    waiting = [partition for partition in sorted(ranges) if start[partition] < end[partition]]
    if not waiting:
        return ExportResult(0, 0, 0, 0, before, before, head.version if head else None, gaps)

    if _create_or_extend_table(spark, export) or head is None:
        head = _head_as_before(spark, export, head)
    stamp = Stamp(
        topic=export.topic,
        topic_id=export.topic_id,
        table_id=head.table_id or read_table_id(spark, export.table),
        mode=export.mode,
        positions={**before, **end},
        version=head.next_guard,
    )
    records = read({each: start[each] for each in waiting}, {each: end[each] for each in waiting}, before)
    decoded = _decode(_latest(records) if export.mode is ExportMode.UPSERT else _every(records), export).persist()
    try:
        counts = decoded.agg(
            F.coalesce(F.sum("_records"), F.lit(0)).alias("records"), F.count("_reason").alias("dead")
        ).first()
        assert counts is not None, "an aggregation without grouping has one row"
        if counts["dead"]:
            _append_dead_letters(spark, export, decoded, stamp)
        if export.mode is ExportMode.UPSERT:
            _merge(spark, export, decoded, stamp, {partition: start[partition] for partition in reread})
        else:
            _append(export, decoded, stamp)
    except DeltaConcurrentModificationException as error:
        raise ConflictError(
            export.table, "another writer changed the table during the export", "Nothing is lost: start it again."
        ) from error
    finally:
        decoded.unpersist()
    commit = check_committed(spark, export.table, head.version, stamp)
    upserted, deleted = _rows_changed(commit)
    return ExportResult(
        records=counts["records"],
        upserted=upserted,
        deleted=deleted,
        dead_letters=counts["dead"],
        positions_before=before,
        positions_after=stamp.positions,
        table_version=commit.version,
        gaps=gaps,
        reread=reread,
    )


# --- Where to go on -----------------------------------------------------------------------------------------------


def _positions(spark: SparkSession, export: Export, head: TableHead | None) -> dict[int, int]:
    """Next offset per partition according to the table; partitions without one begin at their log start."""
    if head is None:
        return {}
    if head.newest is not None:
        if head.newest.topic_id != export.topic_id:
            raise TopicRecreatedError(
                export.table,
                f"holds topic {head.newest.topic} with id {head.newest.topic_id}; the topic {export.topic} of today "
                f"has id {export.topic_id}, so it was deleted and created again",
                "Export to another table, or move this one away.",
            )
        if head.newest.mode != export.mode:
            raise ExportModeError(
                export.table,
                f"was exported in {head.newest.mode} mode; the cleanup.policy of {export.topic} now asks for "
                f"{export.mode} mode",
                "Export to another table, or move this one away.",
            )
    if head.current is not None:
        return dict(head.current.positions)
    rows = spark.read.format("delta").load(export.table)
    if missing := sorted(set(_COORDINATES.names) - set(rows.columns)):
        raise TableSchemaError(
            export.table,
            f"is no export: it has no column {', '.join(missing)}",
            "Export to another table, or move this one away.",
        )
    if export.mode is ExportMode.UPSERT:
        return {}  # to merge a record again changes nothing
    # The history was cut off (delta.logRetentionDuration) or restored to a timestamp: the rows themselves tell.
    last = rows.groupBy("_partition").agg(F.max("_offset").alias("last")).collect()
    return {row["_partition"]: row["last"] + 1 for row in last}


def _head_as_before(spark: SparkSession, export: Export, before: TableHead | None) -> TableHead:
    """The table's head once its columns are there.

    Raises:
        ConflictError: it has come to other positions meanwhile. With a guard of the new head, rows of the old one's positions
            would be written once more.
    """
    head = read_head(spark, export.table)
    known = (before.current, before.newest) if before else (None, None)
    if (head.current, head.newest) != known:
        raise ConflictError(
            export.table, "another export changed the table meanwhile", "Nothing is lost: start it again."
        )
    return head


def _starting_offsets(
    export: Export, positions: Mapping[int, int], ranges: Mapping[int, OffsetRange]
) -> tuple[dict[int, int], tuple[Gap, ...]]:
    start: dict[int, int] = {}
    gaps: list[Gap] = []
    for partition_id, offsets in sorted(ranges.items()):
        position = positions.get(partition_id, offsets.log_start_offset)
        if position > offsets.last_stable_offset:
            raise PositionAheadError(
                export.table,
                f"holds {export.topic}-{partition_id} up to offset {position}; the log ends at "
                f"{offsets.last_stable_offset}, so it was put back to an older state",
                "Restore the table to a version from before that, or export to another table.",
            )
        if position < offsets.log_start_offset:
            gaps.append(Gap(partition_id, position, offsets.log_start_offset))
        start[partition_id] = max(position, offsets.log_start_offset)
    return start, tuple(gaps)


# --- Records to rows ----------------------------------------------------------------------------------------------


def _every(records: DataFrame) -> DataFrame:
    return records.select("key", "value", "partition", "offset", "timestamp", "headers", F.lit(1).alias("_records"))


def _latest(records: DataFrame) -> DataFrame:
    """One record per key. Records without a key, which a compacted topic refuses, stay apart, to be dead letters."""
    lone = F.when(F.col("key").isNull(), F.struct("partition", "offset")).alias("_lone")
    in_partition = records.groupBy("key", lone, "partition").agg(
        F.max_by(F.struct("value", "offset", "timestamp", "headers"), "offset").alias("_latest"),
        F.count("*").alias("_records"),
    )
    across = in_partition.groupBy("key", "_lone").agg(
        F.max_by(F.struct("partition", "_latest.*"), F.struct("_latest.timestamp", "partition")).alias("_latest"),
        F.sum("_records").alias("_records"),
    )
    return across.select("key", "_latest.*", "_records")


_COORDINATES = pa.schema(
    [
        ("_key", pa.binary()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_VALUE = pa.schema([("value", pa.binary())])
# Of a record on its way to the table. No field of a pydantic model begins with an underscore.
_HANDLING = pa.schema(
    [
        ("_reason", pa.string()),  # null: it goes into the table
        ("_detail", pa.string()),
        ("_value", pa.binary()),
        ("_headers", EXPORT_DEAD_LETTERS.field("headers").type),
        ("_tombstone", pa.bool_()),
        ("_records", pa.int64()),
    ]
)


def _table_columns(model: type[EventModel] | None) -> pa.Schema:
    fields = arrow_schema(model) if model is not None else _VALUE
    return pa.schema([*(each.with_nullable(True) for each in fields), *_COORDINATES])


def _decode(records: DataFrame, export: Export) -> DataFrame:
    """Rows of the table with `_HANDLING` columns beside them."""
    keyed = export.mode is ExportMode.UPSERT
    columns = pa.schema([*_table_columns(export.model), *_HANDLING])
    if export.model is not None:
        decode = partial(_decode_batches, model=export.model, keyed=keyed, columns=columns)
        return records.mapInArrow(decode, nullable(spark_struct(columns)))
    lost = F.col("key").isNull() if keyed else F.lit(False)
    coordinates = [F.col(name).alias(f"_{name}") for name in ("key", "partition", "offset", "timestamp")]
    return records.select(
        "value",
        *coordinates,
        F.when(lost, F.lit(_NO_KEY)).alias("_reason"),
        F.lit(None).cast("string").alias("_detail"),
        F.when(lost, F.col("value")).alias("_value"),
        F.when(lost, F.col("headers")).alias("_headers"),
        (F.lit(keyed) & F.col("value").isNull()).alias("_tombstone"),
        F.col("_records").cast("long"),
    )


_NO_KEY = "no key"
_UNDECODABLE = "undecodable"
_NO_VALUE = "no value"


def _decode_batches(
    batches: Iterator[pa.RecordBatch], model: type[EventModel], keyed: bool, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Runs on executors. What the table needs of a bad record is its key; the rest goes along for the dead letter."""
    for batch in batches:
        values = batch.column("value").cast(pa.binary())
        decoded = decode_values(model, values)
        reasons: list[str | None] = [None] * batch.num_rows
        details: list[str | None] = [None] * batch.num_rows
        for error in decoded.errors:
            reasons[error.row], details[error.row] = _UNDECODABLE, error.reason
        missing = batch.column("key") if keyed else values
        if missing.null_count:
            for row, is_missing in enumerate(missing.is_null().to_pylist()):
                if is_missing:
                    reasons[row], details[row] = (_NO_KEY if keyed else _NO_VALUE), None
        reason = pa.array(reasons, pa.string())
        bad = reason.is_valid()
        tombstone = values.is_null() if keyed else pa.array([False] * batch.num_rows)
        arrays = [
            *decoded.columns.columns,
            *(batch.column(name) for name in ("key", "partition", "offset", "timestamp")),
            reason,
            pa.array(details, pa.string()),
            _where(bad, values),
            _where(bad, batch.column("headers")),
            tombstone,
            batch.column("_records"),
        ]
        yield pa.record_batch(
            [array.cast(each.type) for array, each in zip(arrays, columns, strict=True)], schema=columns
        )


def _where(mask: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """`array` with null where `mask` is false. By indices, because if_else does not take every nested type."""
    return array.take(pa.array([row if kept else None for row, kept in enumerate(mask.to_pylist())], pa.int64()))


# --- Rows into tables ---------------------------------------------------------------------------------------------


def _append_dead_letters(spark: SparkSession, export: Export, decoded: DataFrame, stamp: Stamp) -> None:
    """Appends those that no earlier, interrupted run or a run before a RESTORE has appended already."""
    written: Mapping[int, int] = {}
    guard = 0
    if is_table(spark, export.dead_letters):
        head = read_head(spark, export.dead_letters, stamp.table_id)
        written = head.current.positions if head.current is not None else {}
        guard = head.next_guard
    new: Column = F.lit(True)
    for partition_id, position in written.items():
        new = new & ~((F.col("_partition") == partition_id) & (F.col("_offset") < position))
    rows = decoded.where(F.col("_reason").isNotNull() & new).select(
        F.col("_reason").alias("reason"),
        F.col("_detail").alias("detail"),
        F.lit(export.topic).alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("timestamp"),
        F.col("_key").alias("key"),
        F.col("_value").alias("value"),
        F.col("_headers").alias("headers"),
    )
    append_dead_letters(rows, export.dead_letters, stamp.app_id, guard, stamp.to_json())


def _append(export: Export, decoded: DataFrame, stamp: Stamp) -> None:
    rows = decoded.where(F.col("_reason").isNull()).select(_table_columns(export.model).names)
    writer = rows.write.format("delta").mode("append").option("userMetadata", stamp.to_json())
    writer.option("txnAppId", stamp.app_id).option("txnVersion", stamp.version).save(export.table)


def _merge(
    spark: SparkSession, export: Export, decoded: DataFrame, stamp: Stamp, whole: Mapping[int, int] = {}
) -> None:
    """Upsert. whole: partitions that were read from their start on, by this offset: a row that came from behind it, and
    whose key was not met, was deleted."""
    # MERGE takes guard and metadata from its session alone, and sessions are shared by threads: so one of its own.
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.write.txnAppId", stamp.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(stamp.version))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", stamp.to_json())
    table = DeltaTable.forPath(session, export.table)
    source = set(_table_columns(export.model).names)
    # A column that the model no longer has becomes null, as it would be in a table made today.
    values = {f"`{name}`": f"s.`{name}`" if name in source else "NULL" for name in table.toDF().columns}
    later = (
        "s._partition = t._partition OR s._timestamp > t._timestamp "
        "OR (s._timestamp = t._timestamp AND s._partition > t._partition)"
    )
    gone = "(s._tombstone OR s._reason IS NOT NULL)"
    rows = decoded.where(F.col("_key").isNotNull())
    merge = (
        table.alias("t")
        .merge(rows.alias("s"), "s._key = t._key")
        .whenMatchedDelete(f"{gone} AND ({later})")
        .whenMatchedUpdate(later, values)  # type: ignore[arg-type]  # Delta's annotation wants str or Column values
        .whenNotMatchedInsert(f"NOT {gone}", values)  # type: ignore[arg-type]
    )
    for partition, start in whole.items():
        merge = merge.whenNotMatchedBySourceDelete(f"t._partition = {partition} AND t._offset >= {start}")
    merge.execute()


def _rows_changed(commit: Row) -> tuple[int, int]:
    metrics: Mapping[str, str] = commit.operationMetrics
    if commit.operation == "MERGE":
        upserted = int(metrics["numTargetRowsInserted"]) + int(metrics["numTargetRowsUpdated"])
        return upserted, int(metrics["numTargetRowsDeleted"])
    return int(metrics["numOutputRows"]), 0


# --- The table's columns ------------------------------------------------------------------------------------------


def _create_or_extend_table(spark: SparkSession, export: Export) -> bool:
    """Makes the table have the model's columns: an append of no rows, and only where something is missing.

    Returns:
        Whether it was.
    """
    wanted = nullable(spark_struct(_table_columns(export.model)))
    if is_table(spark, export.table):
        found = DeltaTable.forPath(spark, export.table).toDF().schema
        if not _lacks(export.table, found, wanted, ""):
            return False
    empty = spark.createDataFrame([], wanted)
    writer = empty.write.format("delta").mode("append").option("mergeSchema", "true")
    writer.options(**PLAIN_TABLE_PROPERTIES).save(export.table)
    return True


def _lacks(table: str, found: StructType, wanted: StructType, outer: str) -> bool:
    """Whether a wanted column is missing, at any depth.

    Raises:
        TableSchemaError: if a column is there with another type.
    """
    types: dict[str, DataType] = {each.name.lower(): each.dataType for each in found.fields}
    lacks = False
    for each in wanted.fields:
        name = f"{outer}{each.name}"
        there = types.get(each.name.lower())
        if there is None:
            lacks = True
        elif isinstance(there, StructType) and isinstance(each.dataType, StructType):
            lacks |= _lacks(table, there, each.dataType, f"{name}.")
        elif there.simpleString() != each.dataType.simpleString():
            raise TableSchemaError(
                table,
                f"column {name} is {there.simpleString()}, and the schema now says {each.dataType.simpleString()}",
                "Take the change back, give the field another name, or export to another table.",
            )
    return lacks
