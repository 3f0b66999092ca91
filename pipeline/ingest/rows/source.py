"""Opens the stream that an ingest reads: any source that Spark's readStream knows, as the settings describe it.

Each row carries what its dead letter needs if the row is refused: its place in the source, its bytes, and whether it
fits the columns that the settings give the source. Three kinds of source do this differently:

    lines of text     json and csv: a line that does not fit is stored unchanged. Spark puts it into a column that this
                      module requests and that expressions do not see. If an expression names `_line`, lines are read as
                      text and then parsed by the same parser.
    messages          kafka and lakelog: the schema describes the JSON in `value`; what it parses to is one more column,
                      `event`. A row's bytes are its key, value and headers, its place is topic-partition@offset.
    anything else     a row has the source's own columns; its bytes are the row written as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lakelog.spark.source import LAKELOG, subscribed_topics
from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.settings import Settings
from pipeline.spark.failures import SPARK_ERRORS, planning_reason
from pipeline.topic_model import event_schema
from schemas.columns import arrow_schema
from schemas.event_schema import EventSchema
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
LINE = "_line"
"""The column of the line as it stands in the file, seen where it is named."""
NAMES_LINE = re.compile(rf"\b{LINE}\b", re.IGNORECASE)
_UTF_8 = {"utf-8", "utf8"}
_LINE_OPTIONS: Mapping[str, set[str]] = {
    "multiLine": {"false"},
    "enforceSchema": {"true"},
    "encoding": _UTF_8,
    "charset": _UTF_8,
    "lineSep": set(),
}
"""The values of options with which a row is one line, as it stands in the file."""
_UNPARSED = {
    "sep": "\x01", "delimiter": "\x01", "quote": "\r", "escape": "", "charToEscapeQuoteEscaping": "", "nullValue": "",
    "emptyValue": "", "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false", "maxCharsPerColumn": "-1",
}  # fmt: skip
"""Options with which Spark's source of CSV, which knows of headers and comments, gives each line as one text: no line
holds what is set as quotation mark, and one that holds the separator is malformed, which leaves it whole."""
EVENT = "event"
"""The column of a message's parsed value."""
HEADERS_DDL = "array<struct<key:string,value:binary>>"
"""What headers are on their way to becoming a record's."""


@dataclass(frozen=True)
class SourceRows:
    """A source's rows.

    rows: with a column that expressions do not see, where there is a need for one.
    visible: the same, as expressions see them.
    malformed: whether a row does not fit the source's schema; None if that cannot be.
    key, value, headers: the row's bytes as they came, in the types of pipeline.ingest.rows.record_rows.ROWS.
    place: the row's place in the source. None: the source has no places.
    with_line: visible, and the column `_line`, which `*` does not mean. None: the source does not give it, or nobody asked.
    why_no_line: why the source does not give it, for people.
    """

    rows: DataFrame
    visible: DataFrame
    malformed: Column | None
    key: Column | None
    value: Column
    headers: Column | None
    place: Column | None
    with_line: DataFrame | None = None
    why_no_line: str = ""


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
        latest = (source_option(settings, _STARTING) or "latest").strip().lower() == "latest"
        earliest = {_STARTING: "earliest"} if from_earliest and latest else {}
        messages = _messages(_loaded(spark, settings, None, earliest), schema)
        return replace(messages, why_no_line="a message has no line, its bytes are the column `value`")
    if kind in _LINES and schema is not None and _keeps_malformed_lines(settings, schema):
        why_not = why_no_line(settings, schema)
        if why_not is None and names_line(settings):
            return _raw_lines(spark, settings, kind, schema)
        return replace(_lines(spark, settings, schema), why_no_line=why_not or "")
    rows = _loaded(spark, settings, schema)
    place = _file_of(rows) if kind in _LINES | _COLUMNS_OF_FILES | _WHOLE_FILES else None
    why_not = f"a source of format {kind} has no lines of JSON or CSV"
    if kind in _LINES:
        why_not = f"lines are given with a schema and without the options {_MODE} and {_CORRUPT} only"
    return SourceRows(rows, rows, None, None, _as_json(rows), None, place, why_no_line=why_not)


def names_line(settings: Settings) -> bool:
    """Whether an expression may name the column `_line`."""
    ingest = settings.required_ingest()
    expressions = (ingest.key, ingest.value, ingest.headers, ingest.timestamp, ingest.partition, ingest.topic_column)
    return any(NAMES_LINE.search(expression) for expression in expressions if expression is not None)


def why_no_line(settings: Settings, schema: StructType) -> str | None:
    """Why a source of JSON or CSV cannot give the column `_line`; None if it can."""
    if LINE in map(str.lower, schema.names):
        return f"the source has a column {LINE} of its own"
    for option, allowed in _LINE_OPTIONS.items():
        found = source_option(settings, option)
        if found is not None and found.strip().lower() not in allowed:
            return f"the option {option} is {found}"
    return None


def _raw_lines(spark: SparkSession, settings: Settings, kind: str, schema: StructType) -> SourceRows:
    """Lines as they stand in the file, and the columns that Spark's parser makes of each."""
    corrupt, parsed = free_name("malformed", schema.names), free_name("parsed", schema.names)
    if kind == "json":
        read = _loaded(spark, settings, None, kind="text")
        ours = ["value"]
        line = F.col("value")
        read = read.where(line.rlike(r"[^ \t\r]"))  # as Spark's source of JSON: such a line is no row
    else:
        ours = [LINE, corrupt]
        of_line = StructType([StructField(name, StringType()) for name in ours])
        read = _loaded(spark, settings, of_line, {**_UNPARSED, _CORRUPT: corrupt})
        _expect_other_headers(spark)
        line = F.coalesce(F.col(corrupt), F.col(LINE))
    folders = {name.lower(): name for name in read.columns if name not in ours}  # partitions, as `day=2026-01-01`
    of_lines = _with_text(StructType([field for field in schema if field.name.lower() not in folders]), corrupt)
    options = source_options(settings) | {_CORRUPT: corrupt}
    if kind == "json":
        event = F.from_json(line, of_lines, options)
    else:
        ddl = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in of_lines)
        event = F.from_csv(line, ddl, options)
    whole = F.col(parsed)
    rows = read.select(
        line.alias(LINE), event.alias(parsed), *(F.col(quoted(name)) for name in folders.values())
    ).select(
        *(
            F.col(quoted(folders[field.name.lower()])).cast(field.dataType).alias(field.name)
            if field.name.lower() in folders
            else whole[field.name].alias(field.name)
            for field in schema
        ),
        *(F.col(quoted(name)) for lower, name in folders.items() if lower not in map(str.lower, schema.names)),
        LINE, parsed,
    )  # fmt: skip
    malformed = whole.isNull() | whole[corrupt].isNotNull()
    value = F.col(LINE).cast("binary")
    return SourceRows(
        rows, rows.drop(LINE, parsed), malformed, None, value, None, _file_of(rows), with_line=rows.drop(parsed)
    )


def _expect_other_headers(spark: SparkSession) -> None:
    """Spark warns of each file whose header is not the one column that lines are read as here: it never is."""
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001 - Java's logging
    checker = "org.apache.spark.sql.catalyst.csv.CSVHeaderChecker"
    log4j.core.config.Configurator.setLevel(checker, log4j.Level.ERROR)


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


def _loaded(
    spark: SparkSession,
    settings: Settings,
    schema: StructType | None,
    more: Mapping[str, str] | None = None,
    kind: str | None = None,
) -> DataFrame:
    """The source as Spark reads it; as one of another kind where one is given."""
    source = settings.required_ingest().source
    reader = spark.readStream.format(kind or source.format).options(**source_options(settings)).options(**(more or {}))
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
    if level is not None and source_option(settings, _ISOLATION) is None:
        options[_ISOLATION] = level
    if ingest.source.format.lower() == LAKELOG and source_option(settings, "root") is None:
        options["root"] = settings.root
        subscribed = subscribed_topics(source_option(settings, "subscribe") or "")
        for topic in (topic for topic in ingest.fed_topics if topic in subscribed):
            raise ConfigError(
                settings.place_of("ingest.source.options"), f"the topic {topic} would be read into itself",
                "Subscribe to another topic, or give the root of another.",
            )  # fmt: skip
    return options


def reads_files(settings: Settings) -> bool:
    """Whether the source is one of files."""
    return settings.required_ingest().source.format.lower() in _LINES | _COLUMNS_OF_FILES | _WHOLE_FILES


def shown_source(settings: Settings) -> str:
    """What an ingest reads, for messages: of options only those that say which topics, and where."""
    source = settings.required_ingest().source
    kind = source.format.lower()
    if kind not in _MESSAGES:
        return f"{source.format} {source.path}" if source.path else source.format
    where = source_option(settings, "kafka.bootstrap.servers") or source_option(settings, "root") or settings.root
    read = [
        f"{option} {found}"
        for option in ("subscribe", "subscribePattern", "assign")
        if (found := source_option(settings, option)) is not None
    ]
    return f"{kind}, {', '.join([*read, f'at {where}'])}"


def isolation(settings: Settings) -> str | None:
    """Which messages of transactions the source gives: committed ones unless the options say otherwise, as `lakelog read`
    does, where Kafka's consumer and Spark would also give aborted ones. None of a source without transactions."""
    if settings.required_ingest().source.format.lower() not in _MESSAGES:
        return None
    return (source_option(settings, _ISOLATION) or "read_committed").strip().lower()


def source_option(settings: Settings, name: str) -> str | None:
    """An option of the source; capitals do not count, as in Spark."""
    options = settings.required_ingest().source.options
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def _keeps_malformed_lines(settings: Settings, schema: StructType) -> bool:
    """Whether lines that do not fit are ours to keep: not where the settings say what becomes of them.

    Raises:
        ConfigError: they name a column for such lines that the schema does not have.
    """
    column = source_option(settings, _CORRUPT)
    if column is not None and column not in schema.names:
        raise ConfigError(
            settings.place_of("ingest.source.options"),
            f"{_CORRUPT} names {column}, which is no column of {settings.source_schema_setting}",
            "Add it there as a STRING, or leave the option out: such lines then become dead letters.",
        )
    return column is None and (source_option(settings, _MODE) or "PERMISSIVE").upper() == "PERMISSIVE"


def _file_of(rows: DataFrame) -> Column:
    """Also where a column of the source's own is called as Spark's is."""
    return rows.metadataColumn(_METADATA)[_FILE]


def _with_text(schema: StructType, name: str) -> StructType:
    return StructType([*schema.fields, StructField(name, StringType())])


def _as_json(rows: DataFrame) -> Column:
    return F.expr(f"cast(to_json(struct({', '.join(map(quoted, rows.columns))})) AS BINARY)")


def _schema(settings: Settings, kind: str) -> StructType | None:
    """The columns that a model or a DDL string gives the source; None if it has its own.

    The topic's schema is taken where the settings give the source none, if it is a source that can do with one.
    """
    takes_one = kind in _LINES | _MESSAGES | _COLUMNS_OF_FILES
    named = settings.source_schema() if takes_one else settings.required_ingest().source.schema_
    if named is None:
        return None
    if not EventSchema(named).is_ddl:
        schema = event_schema(settings, settings.source_schema_setting, named)
        return nullable(spark_struct(arrow_schema(schema.model)))
    columns = _ddl(named)
    if columns is None:
        raise ConfigError(
            settings.place_of(settings.source_schema_setting),
            f"found {named!r}, which is neither a model nor columns in Spark's DDL",
            "Give the name of a model in schemas/, module:Class, or columns such as `id BIGINT, name STRING`.",
        )
    return columns


def _ddl(text: str) -> StructType | None:
    try:
        columns = StructType.fromDDL(text)
    except PySparkException:
        return None
    return columns if isinstance(columns, StructType) else None
