"""From the rows of any source to records: the SQL expressions of the settings, evaluated by Spark.

The result has the columns that staging expects, whatever the source was:

    key        binary or null        timestamp  bigint, milliseconds; null: the time of the micro-batch
    value      binary or null        partition  int or null: Kafka's partitioner decides
    headers    array<struct<key string, value binary>> or null
    source     string or null: the file a row came from, for the dead letters

A column for which there is no expression is left out: what Spark does not hand over costs nothing. Headers are never
null, because Spark's Arrow writer takes a time that grows with the square of the batch for a column of null arrays.

A timestamp that cannot be read becomes one that no topic holds, so that its row is a dead letter and does not pass for
one without a time.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.settings import Settings
from storage_engine.config import TopicConfig
from storage_engine.errors import ConfigError
from storage_engine.log.validator import record_limit
from storage_engine.record.columns import HEADERS

ROWS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("source", pa.string()),
    ]
)
"""What staging is given."""

UNREADABLE_TIMESTAMP = -2
_HEADERS_DDL = "array<struct<key:string,value:binary>>"
_ROOM = 4096  # a record this close to the limit is looked at more closely, by the validator


def record_rows(rows: DataFrame, settings: Settings, config: TopicConfig) -> DataFrame:
    """Evaluate the ingest section's expressions over a source's rows.

    Raises:
        ConfigError: an expression does not parse, names a column that is not there, or has the wrong type; names the
            setting and the columns that there are.
    """
    ingest = settings.required_ingest()
    key = _bytes(rows, settings, "ingest.key", ingest.key)
    value = _bytes(rows, settings, "ingest.value", ingest.value)
    timestamp = _timestamp(rows, settings, ingest.timestamp)
    columns = {
        "key": key,
        "value": value,
        "headers": _headers(rows, settings, ingest.headers),
        "timestamp": timestamp,
        "partition": _partition(rows, settings, ingest.partition),
        "source": _source(rows, _may_be_refused(key, value, timestamp, config)),
    }
    return rows.select(*(column.alias(name) for name, column in columns.items() if column is not None))


def _evaluate(rows: DataFrame, settings: Settings, setting: str, expression: str) -> tuple[Column, DataType]:
    try:
        column = F.expr(expression)
        return column, rows.select(column.alias("it")).schema["it"].dataType
    except AnalysisException as error:
        reason = (error.getMessage() or str(error)).split("\n")[0].split(" SQLSTATE")[0]
        raise ConfigError(
            settings.place_of(setting), f"{expression!r} cannot be evaluated: {reason}",
            f"The source has the columns {', '.join(rows.columns)}.",
        ) from error  # fmt: skip


def _wrong_type(settings: Settings, setting: str, expression: str, found: DataType, wanted: str) -> ConfigError:
    return ConfigError(
        settings.place_of(setting), f"{expression!r} gives {found.simpleString()}, expected {wanted}", "Cast it."
    )


def _bytes(rows: DataFrame, settings: Settings, setting: str, expression: str | None) -> Column | None:
    if expression is None:
        return None
    column, found = _evaluate(rows, settings, setting, expression)
    if not isinstance(found, StringType | BinaryType):
        raise _wrong_type(settings, setting, expression, found, "string or binary")
    return column.cast("binary")


def _headers(rows: DataFrame, settings: Settings, expression: str | None) -> Column | None:
    if expression is None:
        return None
    column, found = _evaluate(rows, settings, "ingest.headers", expression)
    pair = found.elementType if isinstance(found, ArrayType) else None
    types = [field.dataType for field in pair.fields] if isinstance(pair, StructType) else []
    if len(types) != 2 or not isinstance(types[0], StringType) or not isinstance(types[1], StringType | BinaryType):
        raise _wrong_type(settings, "ingest.headers", expression, found, _HEADERS_DDL)
    return F.coalesce(column.cast(_HEADERS_DDL), F.array().cast(_HEADERS_DDL))


def _timestamp(rows: DataFrame, settings: Settings, expression: str | None) -> Column | None:
    if expression is None:
        return None
    column, found = _evaluate(rows, settings, "ingest.timestamp", expression)
    if isinstance(found, IntegralType):
        return column.cast("bigint")
    if isinstance(found, TimestampType | TimestampNTZType | DateType):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(found, StringType):
        readable = F.unix_millis(column.try_cast("timestamp"))
        return F.when(column.isNotNull(), F.coalesce(readable, F.lit(UNREADABLE_TIMESTAMP).cast("bigint")))
    raise _wrong_type(settings, "ingest.timestamp", expression, found, "a timestamp, or milliseconds as a whole number")


def _partition(rows: DataFrame, settings: Settings, expression: str | None) -> Column | None:
    if expression is None:
        return None
    column, found = _evaluate(rows, settings, "ingest.partition", expression)
    if not isinstance(found, IntegralType):
        raise _wrong_type(settings, "ingest.partition", expression, found, "a whole number")
    return column.try_cast("int")


def _may_be_refused(key: Column | None, value: Column | None, timestamp: Column | None, config: TopicConfig) -> Column:
    lengths = [F.coalesce(F.octet_length(column), F.lit(0)) for column in (key, value) if column is not None]
    suspect = sum(lengths, F.lit(0)) > record_limit(config) - _ROOM
    if timestamp is not None:
        suspect |= F.coalesce((timestamp < 0) | (timestamp > F.unix_millis(F.now())), F.lit(False))
    if config.compact:
        suspect |= F.lit(True) if key is None else key.isNull()
    return suspect


def _source(rows: DataFrame, wanted: Column) -> Column | None:
    """The row's file, only where it may be needed: a path on each row would cost more than most values."""
    try:
        file = F.col("_metadata.file_path")
        rows.select(file)
    except AnalysisException:
        return None
    return F.when(wanted, file)
