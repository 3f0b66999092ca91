"""Opens the stream that an ingest reads: any source of Spark's readStream, as the settings describe it.

A row that is refused becomes a dead letter. So each row also has its place in the source, its original bytes, and a
mark that says whether the row fits the source's schema. The kind of source determines how the row gets these three
things:

    lines of text     json and csv: the bytes are the line, unchanged. If a line does not fit the schema, Spark stores it in
                      a column that this module requests and that expressions do not see. If an expression names
                      `_line`, every line is read as text and then parsed by the same parser.
    messages          kafka and lakelog: the schema describes `value`. The parsed value is one more column, `event`. In
                      Avro and Protobuf, it exists only if an expression names it. The bytes are the key, value and
                      headers; the place is topic-partition@offset.
    any other kind    a row has the source's own columns; the bytes are the row as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lakelog.spark.types import nullable, quoted, spark_struct
from pipeline.ingest.rows.event_decoding import DECODED, MALFORMED, event_decoder
from pipeline.ingest.rows.source_options import HEADERS_OPTION, source_option, source_options
from pipeline.settings import Settings
from pipeline.spark.failures import SPARK_ERRORS, planning_reason
from pipeline.spark.kafka_login import JAAS, check_login
from pipeline.topic_model import event_schema, message_schema, source_schema, topic_schemas
from schemas.event_schema import EventSchema
from schemas.writers.wire_format import ID_LENGTHS
from storage_engine.errors import ConfigError

_LINES = {"json", "csv"}
_KAFKA = "kafka"
_COLUMNS_OF_FILES = {"avro", "orc", "parquet", "xml"}
_WHOLE_FILES = {"binaryfile", "text"}
_METADATA, _FILE = "_metadata", "file_path"
"""Spark's metadata column with the file of a row. Sources that read files have this column."""
_MODE = "mode"
_CORRUPT = "columnNameOfCorruptRecord"
LINE = "_line"
"""The column with the unchanged line of the file. This column exists only if an expression names it."""
NAMES_LINE = re.compile(rf"\b{LINE}\b", re.IGNORECASE)
_UTF_8 = {"utf-8", "utf8"}
_LINE_OPTIONS: Mapping[str, set[str]] = {
    "multiLine": {"false"},
    "enforceSchema": {"true"},
    "encoding": _UTF_8,
    "charset": _UTF_8,
    "lineSep": set(),
}
"""Options, each with the values that are allowed. With any other value, a row can be more or less than one line of the
file."""
_UNPARSED = {
    "sep": "\x01", "delimiter": "\x01", "quote": "\r", "escape": "", "charToEscapeQuoteEscaping": "", "nullValue": "",
    "emptyValue": "", "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false", "maxCharsPerColumn": "-1",
}  # fmt: skip
"""Options with which Spark's CSV source returns each line as one text, but still skips headers and comments. The
quotation mark is a character that no line has. A line with the separator is malformed, and Spark stores malformed lines
whole."""
EVENT = "event"
"""The column with the parsed value of a message."""
_NO_COLUMNS = re.compile(rf"""'(\\.|[^'\\])*'|"(\\.|[^"\\])*"|\.\s*`?{EVENT}\b""", re.IGNORECASE | re.DOTALL)
"""Parts of an expression that do not name the column `event`: texts, and fields with the same name."""
_NAMES_EVENT = re.compile(rf"\b{EVENT}\b", re.IGNORECASE)
_MOST_BYTES = 2**31 - 1
HEADERS_DDL = "array<struct<key:string,value:binary>>"
"""The type of the column with the headers, before the rows become records."""


@dataclass(frozen=True)
class SourceRows:
    """A source's rows.

    rows: the rows, perhaps with columns that expressions do not see.
    visible: the same rows with only the columns that expressions see.
    malformed: whether a row does not fit the source's schema; None if every row fits.
    key, value, headers: the row's original bytes, in the types of pipeline.ingest.rows.record_rows.ROWS.
    place: the row's place in the source. None: the source has no places.
    with_line: `visible` with the column `_line`, which `*` does not include. None: no expression names `_line`, or the
        source cannot provide it.
    why_no_line: why the source cannot provide `_line`, for messages.
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
        from_earliest: a new stream of messages begins with the earliest messages, whatever the options say.

    Raises:
        ConfigError: Spark has no such source, refuses its options, or finds nothing at the path. The error names the
            setting.
    """
    try:
        return _source_rows(spark, settings, from_earliest=from_earliest)
    except SPARK_ERRORS as error:
        place = settings.place_of("ingest.source")
        problem = f"Spark cannot read the source: {planning_reason(error)}"
        raise ConfigError(place, problem, "Check format, path, schema and options.") from error


def _source_rows(spark: SparkSession, settings: Settings, *, from_earliest: bool) -> SourceRows:
    kind = settings.required_ingest().source.format.lower()
    schema = _schema(settings, kind)
    if settings.required_ingest().source.has_messages:
        binary = _binary_schema(settings)
        may_name_schemas = binary is not None and binary.writers is not None
        with_headers = (
            {HEADERS_OPTION: "true"} if may_name_schemas and source_option(settings, HEADERS_OPTION) is None else {}
        )
        read = _loaded(spark, settings, None, with_headers, from_earliest=from_earliest)
        messages = _messages(read, schema, binary)
        return replace(messages, why_no_line="a message has no lines; its bytes are in the column `value`")
    if kind in _LINES and schema is not None and _keeps_malformed_lines(settings, schema):
        why_not = why_no_line(settings, schema)
        if why_not is None and names_line(settings):
            return _raw_lines(spark, settings, kind, schema)
        return replace(_lines(spark, settings, schema), why_no_line=why_not or "")
    rows = _loaded(spark, settings, schema)
    place = _file_of(rows) if kind in _LINES | _COLUMNS_OF_FILES | _WHOLE_FILES else None
    why_not = f"a source of format {kind} has no lines of JSON or CSV"
    if kind in _LINES:
        why_not = (
            f"lines are available only if the source has a schema, and does not set the options {_MODE} and {_CORRUPT}"
        )
    return SourceRows(rows, rows, None, None, _as_json(rows), None, place, why_no_line=why_not)


def names_line(settings: Settings) -> bool:
    """Whether an expression of the settings may name the column `_line`."""
    return any(map(NAMES_LINE.search, _expressions(settings)))


def names_event(settings: Settings) -> bool:
    """Whether an expression of the settings may name the column `event`."""
    return any(_NAMES_EVENT.search(_NO_COLUMNS.sub("''", each)) for each in _expressions(settings))


def _expressions(settings: Settings) -> list[str]:
    ingest = settings.required_ingest()
    given = (ingest.key, ingest.value, ingest.headers, ingest.timestamp, ingest.partition, ingest.topic_column)
    return [each for each in given if each is not None]


def why_no_line(settings: Settings, schema: StructType) -> str | None:
    """Why a source of JSON or CSV cannot provide the column `_line`; None if the source can."""
    if LINE in map(str.lower, schema.names):
        return f"the source already has a column {LINE}"
    for option, allowed in _LINE_OPTIONS.items():
        found = source_option(settings, option)
        if found is not None and found.strip().lower() not in allowed:
            return f"the option {option} is {found}"
    return None


def _raw_lines(spark: SparkSession, settings: Settings, kind: str, schema: StructType) -> SourceRows:
    """The unchanged lines of the files, and the columns that Spark's parser makes of each line."""
    corrupt, parsed = free_name("malformed", schema.names), free_name("parsed", schema.names)
    if kind == "json":
        ours, read_as, more = [LINE], "text", {}
        line = F.col(LINE)
    else:
        ours, read_as, more = [LINE, corrupt], kind, {**_UNPARSED, _CORRUPT: corrupt}
        _expect_other_headers(spark)
        line = F.coalesce(F.col(corrupt), F.col(LINE))
    of_line = [StructField(name, StringType()) for name in ours]
    read = _loaded(spark, settings, StructType(of_line), more, kind=read_as)
    folders = {name.lower(): name for name in read.columns if name not in ours}  # partitions, such as `day=2026-01-01`
    if declared := [field for field in schema if field.name.lower() in folders]:
        # Without these types, Spark derives types from the names of all folders: `08` becomes 8.
        read = _loaded(spark, settings, StructType([*of_line, *declared]), more, kind=read_as)
        folders = {name.lower(): name for name in read.columns if name not in ours}
    if kind == "json":
        read = read.where(line.rlike(r"[^ \t\r]"))  # like Spark's JSON source, which makes no row of a blank line
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
            F.col(quoted(folders[field.name.lower()])).alias(field.name)
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
    """Suppress Spark's warning about file headers. Lines are read as a single column here, so no header ever matches
    this column."""
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


def _messages(rows: DataFrame, schema: StructType | None, binary: EventSchema | None) -> SourceRows:
    """Messages, and their values as events.

    Args:
        schema: the columns of values in JSON, or None.
        binary: the schema of values in Avro or Protobuf, or None.
    """
    headers = F.col("headers").cast(HEADERS_DDL) if "headers" in rows.columns else None
    place = F.concat("topic", F.lit("-"), "partition", F.lit("@"), "offset")
    key, value = F.col("key"), F.col("value")
    parsed = free_name("parsed", rows.columns)
    whole = F.col(parsed)
    if binary is not None:
        of_schemas = F.lit(None).cast(HEADERS_DDL) if headers is None else headers
        rows = rows.withColumn(parsed, event_decoder(binary)(value, of_schemas))
        event, malformed = whole[DECODED], whole[MALFORMED]
    elif schema is not None:
        corrupt = free_name("malformed", schema.names)
        of_json = _with_text(schema, corrupt)
        text = _json_text(value).cast("string")
        rows = rows.withColumn(parsed, F.from_json(text, of_json, {_CORRUPT: corrupt}))
        event = F.when(whole.isNotNull(), F.struct(*(whole[name].alias(name) for name in schema.names)))
        malformed = value.isNotNull() & (whole.isNull() | whole[corrupt].isNotNull())
    else:
        return SourceRows(rows, rows, None, key, value, headers, place)
    rows = rows.withColumn(EVENT, event)
    return SourceRows(rows, rows.drop(parsed), malformed, key, value, headers, place)


def _json_text(value: Column) -> Column:
    """A value in JSON, without the id of a schema before it (`schemas.writers.wire_format.json_text`)."""
    text = value
    for magic, length in ID_LENGTHS.items():
        has_id = F.substring(value, 1, 1) == F.lit(bytes([magic]))
        text = F.when(has_id, F.substring(value, length + 1, _MOST_BYTES)).otherwise(text)
    return text


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name for an internal column. It differs from all these names, even if case is ignored, as in Spark."""
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
    *,
    from_earliest: bool = False,
) -> DataFrame:
    """The source as Spark reads it. kind: a format that replaces the format of the settings."""
    source = settings.required_ingest().source
    if source.format.lower() == _KAFKA and (login := source_option(settings, JAAS)) is not None:
        check_login(spark, login, settings.place_of("ingest.source.options"))
    options = source_options(settings, from_earliest=from_earliest)
    reader = spark.readStream.format(kind or source.format).options(**options).options(**(more or {}))
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(source.path) if source.path else reader.load()


def reads_files(settings: Settings) -> bool:
    """Whether the source reads files."""
    return settings.required_ingest().source.format.lower() in _LINES | _COLUMNS_OF_FILES | _WHOLE_FILES


def _keeps_malformed_lines(settings: Settings, schema: StructType) -> bool:
    """Whether malformed lines become dead letters. The answer is no if the options of the source already define how
    malformed lines are treated.

    Raises:
        ConfigError: the options name a column for malformed lines that the schema does not have.
    """
    column = source_option(settings, _CORRUPT)
    if column is not None and column not in schema.names:
        raise ConfigError(
            settings.place_of("ingest.source.options"),
            f"{_CORRUPT} is set to {column}, which is not a column of {settings.source_schema_setting}",
            "Add the column to that schema as a STRING, or remove the option: without the option, malformed lines"
            " become dead letters.",
        )
    return column is None and (source_option(settings, _MODE) or "PERMISSIVE").upper() == "PERMISSIVE"


def _file_of(rows: DataFrame) -> Column:
    """The file of a row, even if the source has a column with the name of Spark's metadata column."""
    return rows.metadataColumn(_METADATA)[_FILE]


def _with_text(schema: StructType, name: str) -> StructType:
    return StructType([*schema.fields, StructField(name, StringType())])


def _as_json(rows: DataFrame) -> Column:
    return F.expr(f"cast(to_json(struct({', '.join(map(quoted, rows.columns))})) AS BINARY)")


def _schema(settings: Settings, kind: str) -> StructType | None:
    """The columns that a model or a DDL string gives the source; None if the source has its own columns.

    If the settings give the source no schema, a source that can use a schema gets the topic's schema.
    """
    source = settings.required_ingest().source
    takes_one = source.has_messages or kind in _LINES | _COLUMNS_OF_FILES
    named = source_schema(settings) if takes_one else source.schema_
    if named is None:
        return None
    if not EventSchema(named).is_ddl:
        schema = event_schema(settings, settings.source_schema_setting, named)
        return nullable(spark_struct(schema.columns))
    columns = _ddl(named)
    if columns is None:
        raise ConfigError(
            settings.place_of(settings.source_schema_setting),
            f"found {named!r}, which is neither a model nor columns in Spark's DDL",
            "Give the name of a model in schemas/, module:Class, or columns such as `id BIGINT, name STRING`.",
        )
    return columns


def _binary_schema(settings: Settings) -> EventSchema | None:
    """The schema in Avro or Protobuf of the source's messages, if an expression needs their events. If the settings give
    the source no schema, its messages have the topic's schema."""
    ingest = settings.required_ingest()
    if not names_event(settings):
        return None
    if ingest.source.schema_ is not None or ingest.topic is None:
        return message_schema(settings)
    schema = topic_schemas(settings, ingest.topic).values
    return schema if schema is not None and schema.is_binary else None


def _ddl(text: str) -> StructType | None:
    try:
        columns = StructType.fromDDL(text)
    except PySparkException:
        return None
    return columns if isinstance(columns, StructType) else None
