"""Turns records into rows of an exported table: decodes them, and for an upsert finds the record that decides the row
of each key.

Every record is decoded, even if a newer record of its key follows. So the export finds every record that cannot be
decoded. For each key of an upsert:

    the newest record that can be decoded or is a tombstone decides the row
    a record that cannot be decoded is a dead letter, and does not change the values of the row

So the result does not depend on the increments in which the log was exported (decision 0037). Within a partition, the
record with the higher offset is newer. Between partitions, the record with the higher timestamp is newer. If the
timestamps are equal, the record in the partition with the higher number is newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakelog.spark.types import nullable, spark_struct
from pipeline.delta.dead_letters import EXPORT_DEAD_LETTERS
from pipeline.delta.export_plan import Export, ExportMode
from schemas.event_decoding import decode_values
from schemas.event_schema import EventSchema
from schemas.model_columns import arrow_schema

NO_KEY = "no key"
UNDECODABLE = "undecodable"
NO_VALUE = "no value"
REASONS = (NO_KEY, NO_VALUE, UNDECODABLE)
"""All reasons of a dead letter."""

COORDINATES = pa.schema(
    [
        ("_key", pa.binary()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_PLACE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
STALE_SINCE = pa.field("_stale_since", _PLACE)
"""In upsert mode: the place of the first newer record of the key that could not be decoded. Null: the row is
current."""
_HEADERS = EXPORT_DEAD_LETTERS.field("headers").type
_VALUE = pa.schema([("value", pa.binary())])
# Internal columns of decoded records. No field of a pydantic model begins with an underscore.
_HANDLING = pa.schema(
    [
        ("_reason", pa.string()),  # null: the record becomes a row, or is a tombstone
        ("_detail", pa.string()),
        ("_value", pa.binary()),
        ("_bad_headers", _HEADERS),
        ("_tombstone", pa.bool_()),  # the value is null
    ]
)


def row_columns(export: Export) -> pa.Schema:
    """The columns that are computed from one record."""
    fields = arrow_schema(export.schema.model) if export.schema is not None else _VALUE
    headers = [pa.field("_headers", _HEADERS)] if export.headers else []
    return pa.schema([*(each.with_nullable(True) for each in fields), *COORDINATES, *headers])


def table_columns(export: Export) -> pa.Schema:
    """The columns of the table."""
    columns = row_columns(export)
    return columns.append(STALE_SINCE) if export.mode is ExportMode.UPSERT else columns


def decode(records: DataFrame, export: Export) -> DataFrame:
    """The records as rows of the table, with the additional columns of `_HANDLING`."""
    keyed = export.mode is ExportMode.UPSERT
    records = records.select("key", "value", "partition", "offset", "timestamp", "headers")
    if export.schema is not None:
        columns = pa.schema([*row_columns(export), *_HANDLING])
        decode_batches = partial(_decode_batches, schema=export.schema, keyed=keyed, columns=columns)
        return records.mapInArrow(decode_batches, nullable(spark_struct(columns)))
    lost = F.col("key").isNull() if keyed else F.lit(False)
    coordinates = [F.col(name).alias(f"_{name}") for name in _carried(row_columns(export))]
    return records.select(
        "value",
        *coordinates,
        F.when(lost, F.lit(NO_KEY)).alias("_reason"),
        F.lit(None).cast("string").alias("_detail"),
        F.when(lost, F.col("value")).alias("_value"),
        F.when(lost, F.col("headers")).alias("_bad_headers"),
        F.col("value").isNull().alias("_tombstone"),
    )


def _carried(columns: pa.Schema) -> list[str]:
    """The columns of a record that are copied to the table unchanged."""
    return [name for name in ("key", "partition", "offset", "timestamp", "headers") if f"_{name}" in columns.names]


def _decode_batches(
    batches: Iterator[pa.RecordBatch], schema: EventSchema, keyed: bool, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Decode batches on an executor. A record that cannot be decoded is returned unchanged, for its dead letter."""
    for batch in batches:
        values = batch.column("value").cast(pa.binary())
        decoded = decode_values(schema.model, values)
        reasons: list[str | None] = [None] * batch.num_rows
        details: list[str | None] = [None] * batch.num_rows
        for error in decoded.errors:
            reasons[error.row], details[error.row] = UNDECODABLE, error.reason
        missing = batch.column("key") if keyed else values
        if missing.null_count:
            for row, is_missing in enumerate(missing.is_null().to_pylist()):
                if is_missing:
                    reasons[row], details[row] = (NO_KEY if keyed else NO_VALUE), None
        reason = pa.array(reasons, pa.string())
        bad = reason.is_valid()
        arrays = [
            *decoded.columns.columns,
            *(batch.column(name) for name in _carried(columns)),
            reason,
            pa.array(details, pa.string()),
            _where(bad, values),
            _where(bad, batch.column("headers")),
            values.is_null(),
        ]
        yield pa.record_batch(
            [array.cast(each.type) for array, each in zip(arrays, columns, strict=True)], schema=columns
        )


def _where(mask: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """`array` with null in each row in which `mask` is false. The function uses indices, because if_else does not
    support all nested types."""
    return array.take(pa.array([row if kept else None for row, kept in enumerate(mask.to_pylist())], pa.int64()))


def with_counts(decoded: DataFrame) -> DataFrame:
    """The rows with the columns `_records` and `_nulls`; each row represents one record."""
    return decoded.withColumn("_records", F.lit(1)).withColumn("_nulls", F.col("_tombstone").cast("int"))


def reduced(decoded: DataFrame) -> DataFrame:
    """The record that decides the row of each key, and all records that cannot be decoded. A row represents `_records`
    records, of which `_nulls` are tombstones.
    """
    lone = F.when(F.col("_reason").isNotNull(), F.struct("_partition", "_offset")).alias("_lone")
    others = [name for name in decoded.columns if name not in ("_key", "_partition")]
    in_partition = with_counts(decoded).groupBy("_key", lone, "_partition").agg(
        F.max_by(F.struct(*others), "_offset").alias("_latest"),
        F.sum("_records").alias("_records"),
        F.sum("_nulls").alias("_nulls"),
    )  # fmt: skip
    across = in_partition.groupBy("_key", "_lone").agg(
        F.max_by(F.struct("_partition", "_latest.*"), F.struct("_latest._timestamp", "_partition")).alias("_latest"),
        F.sum("_records").alias("_records"),
        F.sum("_nulls").alias("_nulls"),
    )
    return across.select("_key", "_latest.*", "_records", "_nulls")


def place() -> Column:
    """The place of a row's record, in the form of `_stale_since`."""
    return F.struct(
        F.col("_partition").alias("partition"), F.col("_offset").alias("offset"), F.col("_timestamp").alias("timestamp")
    )


SqlPlace = tuple[str, str, str]
"""SQL expressions of a partition, an offset and a timestamp."""


def of_row(alias: str) -> SqlPlace:
    """The place of a row's record."""
    return f"{alias}._partition", f"{alias}._offset", f"{alias}._timestamp"


def of_place(column: str) -> SqlPlace:
    """The place in a column that has the form of `place`."""
    return f"{column}.partition", f"{column}.offset", f"{column}.timestamp"


def is_newer(one: SqlPlace, other: SqlPlace, within: str = ">") -> str:
    """SQL that is true if the record at `one` is newer than the record at `other`. Both records have the same key.

    within: the operator that compares offsets in one partition. With >=, a record counts as newer than itself.
    """
    partition, offset, timestamp = one
    than_partition, than_offset, than_timestamp = other
    return (
        f"(({partition} = {than_partition} AND {offset} {within} {than_offset}) OR"
        f" ({partition} <> {than_partition} AND ({timestamp} > {than_timestamp} OR"
        f" ({timestamp} = {than_timestamp} AND {partition} > {than_partition}))))"
    )


def deciding(rows: DataFrame) -> DataFrame:
    """The reduced rows that decide the table rows of their keys."""
    return rows.where("_reason IS NULL")


def first_undecodable(rows: DataFrame, table: DataFrame) -> DataFrame:
    """By key, the first record that cannot be decoded and is newer than the row that the key will have.

    Columns: `_key`; `_bad`, the place of that record; `_place`, the place of the record that decides the row of the
        key, or null.

    Args:
        rows: reduced rows.
        table: the table before the export.
    """
    bad = rows.where("_reason IS NOT NULL AND _key IS NOT NULL").select("_key", place().alias("_bad"))
    decides = deciding(rows).select("_key", place().alias("_place"))
    there = table.select("_key", place().alias("_there"))
    newer = (
        bad.join(decides, "_key", "left")
        .join(there, "_key", "left")
        .where(f"_place IS NULL OR {is_newer(of_place('_bad'), of_place('_place'))}")
        .where(f"_there IS NULL OR {is_newer(of_place('_bad'), of_place('_there'))}")
    )
    in_partition = newer.groupBy("_key", "_place", "_bad.partition").agg(F.min_by("_bad", "_bad.offset").alias("_bad"))
    return in_partition.groupBy("_key", "_place").agg(
        F.min_by("_bad", F.struct("_bad.timestamp", "_bad.partition")).alias("_bad")
    )
