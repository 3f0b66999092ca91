"""The stream that an ingest reads: whatever Spark's readStream knows, as the settings describe it.

Rows come with what their dead letters need, should they be refused: where a row is from, its bytes, and whether it fits
the columns that the settings give the source. Three kinds of source differ in that:

    lines of text     json and csv: a line that does not fit is kept as it stands in the file. Spark puts it into a column
                      that is asked for here and that expressions do not see.
    messages          kafka and lakelog: the schema describes the JSON in `value`; what it parses to is one more column,
                      `event`. A row's bytes are its key, value and headers, its place is topic-partition@offset.
    anything else     a row has the columns that it has; as bytes it is written as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.lakelog_source import LAKELOG, subscribed_topics
from pipeline.settings import Settings
from pipeline.spark_failures import SPARK_ERRORS, planning_reason
from pipeline.spark_types import nullable, spark_schema
from schemas.registry import UnknownSchemaError, model, names
from storage_engine.errors import ConfigError

_LINES = {"json", "csv"}
_MESSAGES = {"kafka", LAKELOG}
_COLUMNS_OF_FILES = {"avro", "orc", "parquet", "xml"}
_WHOLE_FILES = {"binaryfile", "text"}
_METADATA, _FILE = "_metadata", "file_path"
"""The file of a row, which Spark offers for the sources that read files."""
_STARTING = "startingOffsets"
_ISOLATION = "kafka.isolation.level"
_MODE = "mode"
_CORRUPT = "columnNameOfCorruptRecord"
EVENT = "event"
"""The column of a message's parsed value."""
HEADERS_DDL = "array<struct<key:string,value:binary>>"
"""What headers are on their way to becoming a record's."""


@dataclass(frozen=True)
class SourceRows:
    """A source's rows.

    rows: with a column that expressions do not see, where there is a need for one.
    visible: the same, as expressions see them.
    malformed: whether a row does not fit the source's schema; None where that cannot be.
    key, value, headers: the row's bytes as they came, in the types of pipeline.rows.ROWS.
    place: where the row is from. None: the source has no such thing.
    """

    rows: DataFrame
    visible: DataFrame
    malformed: Column | None
    key: Column | None
    value: Column
    headers: Column | None
    place: Column | None


def source_rows(spark: SparkSession, settings: Settings, *, from_earliest: bool = False) -> SourceRows:
    """The source's rows as a streaming DataFrame.

    Args:
        from_earliest: a new stream of messages begins with the earliest there are, where it would with the latest.

    Raises:
        ConfigError: Spark has no such source, refuses its options, or finds nothing at the path; names the setting.
    """
    kind = settings.required_ingest().source.format.lower()
    schema = _schema(settings, kind)
    if kind in _MESSAGES:
        latest = (_option(settings, _STARTING) or "latest").strip().lower() == "latest"
        earliest = {_STARTING: "earliest"} if from_earliest and latest else {}
        return _messages(_loaded(spark, settings, None, earliest), schema)
    if kind in _LINES and schema is not None and _keeps_malformed_lines(settings, schema):
        return _lines(spark, settings, schema)
    rows = _loaded(spark, settings, schema)
    place = _file_of(rows) if kind in _LINES | _COLUMNS_OF_FILES | _WHOLE_FILES else None
    return SourceRows(rows, rows, None, None, _as_json(rows), None, place)


def _lines(spark: SparkSession, settings: Settings, schema: StructType) -> SourceRows:
    corrupt = free_name("malformed", schema.names)
    line = F.col(corrupt)
    rows = _loaded(spark, settings, _with_text(schema, corrupt), {_CORRUPT: corrupt})
    visible = rows.drop(corrupt)
    value = F.coalesce(line.cast("binary"), _as_json(visible))
    return SourceRows(rows, visible, line.isNotNull(), None, value, None, _file_of(rows))


def _messages(rows: DataFrame, schema: StructType | None) -> SourceRows:
    headers = F.col("headers").cast(HEADERS_DDL) if "headers" in rows.columns else None
    place = F.concat("topic", F.lit("-"), "partition", F.lit("@"), "offset")
    key, value = F.col("key"), F.col("value")
    if schema is None:
        return SourceRows(rows, rows, None, key, value, headers, place)
    corrupt = free_name("malformed", schema.names)
    parsed = free_name("parsed", rows.columns)
    rows = rows.withColumn(parsed, F.from_json(value.cast("string"), _with_text(schema, corrupt), {_CORRUPT: corrupt}))
    whole = F.col(parsed)
    event = F.when(whole.isNotNull(), F.struct(*(whole[name].alias(name) for name in schema.names)))
    rows = rows.withColumn(EVENT, event)
    malformed = value.isNotNull() & (whole.isNull() | whole[corrupt].isNotNull())
    return SourceRows(rows, rows.drop(parsed), malformed, key, value, headers, place)


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name for a column of ours that none of these is; capitals do not count, as in Spark."""
    others = {other.lower() for other in taken}
    free = f"_lakelog_{name}"
    while free in others:
        free += "_"
    return free


def quoted(name: str) -> str:
    """A column's name as SQL has it, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"


def _loaded(
    spark: SparkSession, settings: Settings, schema: StructType | None, more: Mapping[str, str] | None = None
) -> DataFrame:
    source = settings.required_ingest().source
    reader = spark.readStream.format(source.format).options(**source_options(settings)).options(**(more or {}))
    if schema is not None:
        reader = reader.schema(schema)
    try:
        return reader.load(source.path) if source.path else reader.load()
    except SPARK_ERRORS as error:
        place = settings.place_of("ingest.source")
        problem = f"Spark cannot read it: {planning_reason(error)}"
        raise ConfigError(place, problem, "Check format, path, schema and options.") from error


def source_options(settings: Settings) -> dict[str, str]:
    """The source's options: messages are read as `isolation` says, and a Lakelog topic is looked for under the root of the
    settings where none is given.

    Raises:
        ConfigError: the topic that is written to would be read.
    """
    ingest = settings.required_ingest()
    options = dict(ingest.source.options)
    level = isolation(settings)
    if level is not None and _option(settings, _ISOLATION) is None:
        options[_ISOLATION] = level
    if ingest.source.format.lower() == LAKELOG and _option(settings, "root") is None:
        options["root"] = settings.root
        subscribed = subscribed_topics(_option(settings, "subscribe") or "")
        for topic in (topic for topic in ingest.fed_topics if topic in subscribed):
            raise ConfigError(
                settings.place_of("ingest.source.options"), f"the topic {topic} would be read into itself",
                "Subscribe to another topic, or give the root of another.",
            )  # fmt: skip
    return options


def isolation(settings: Settings) -> str | None:
    """Which messages of transactions the source gives: committed ones unless the options say otherwise, as `lakelog read`
    does, where Kafka's consumer and Spark would also give aborted ones. None of a source without transactions."""
    if settings.required_ingest().source.format.lower() not in _MESSAGES:
        return None
    return (_option(settings, _ISOLATION) or "read_committed").strip().lower()


def _option(settings: Settings, name: str) -> str | None:
    """An option of the source; capitals do not count, as in Spark."""
    options = settings.required_ingest().source.options
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def _keeps_malformed_lines(settings: Settings, schema: StructType) -> bool:
    """Whether lines that do not fit are ours to keep: not where the settings say what becomes of them.

    Raises:
        ConfigError: they name a column for such lines that the schema does not have.
    """
    column = _option(settings, _CORRUPT)
    if column is not None and column not in schema.names:
        raise ConfigError(
            settings.place_of("ingest.source.options"),
            f"{_CORRUPT} names {column}, which is no column of ingest.source.schema",
            "Add it there as a STRING, or leave the option out: such lines then become dead letters.",
        )
    return column is None and (_option(settings, _MODE) or "PERMISSIVE").upper() == "PERMISSIVE"


def _file_of(rows: DataFrame) -> Column:
    """Also where a column of the source's own is called as Spark's is."""
    return rows.metadataColumn(_METADATA)[_FILE]


def _with_text(schema: StructType, name: str) -> StructType:
    return StructType([*schema.fields, StructField(name, StringType())])


def _as_json(rows: DataFrame) -> Column:
    return F.expr(f"cast(to_json(struct({', '.join(map(quoted, rows.columns))})) AS BINARY)")


def _schema(settings: Settings, kind: str) -> StructType | None:
    """The columns that a model in schemas/ or a DDL string gives the source; None where it has its own.

    The topic's schema is taken where the settings give the source none, if it is a source that can do with one.
    """
    takes_one = kind in _LINES | _MESSAGES | _COLUMNS_OF_FILES
    named = settings.source_schema() if takes_one else settings.required_ingest().source.schema_
    if named is None:
        return None
    try:
        return nullable(spark_schema(model(named)))
    except UnknownSchemaError as error:
        columns = _ddl(named)
        if columns is None:
            raise ConfigError(
                settings.place_of("ingest.source.schema"),
                f"found {named!r}, which is neither a model in schemas/ nor columns in Spark's DDL",
                f"The models are {', '.join(names())}; DDL looks like `id BIGINT, name STRING`.",
            ) from error
        return columns


def _ddl(text: str) -> StructType | None:
    try:
        columns = StructType.fromDDL(text)
    except PySparkException:
        return None
    return columns if isinstance(columns, StructType) else None
