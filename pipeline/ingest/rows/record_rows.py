"""Turns the rows of any source into records: Spark evaluates the SQL expressions of the settings.

The result has the columns that staging expects, for every kind of source:

    key        binary or null        timestamp  bigint, milliseconds; null: the time of the micro-batch
    value      binary or null        partition  int; null: Kafka's partitioner chooses
    headers    array<struct<key string, value binary>> or null
    refused    tinyint or null: the Refusal (reason) of a row that is already a dead letter
    source     string or null: the row's place in its source, for the dead letters
    topic      string or null: the topic that the row goes to, if there are several topics
    position, position_of_0, ...   the row's position in its source, if positions are stored (source_positions.py)

If a column has no expression or is always null, the column is omitted, so that Spark does not have to copy it. Headers
are never null: for a column of null arrays, the time of Spark's Arrow writer grows with the square of the batch size.

A row is refused if it does not fit the source's schema, or if an expression fails on the row. The key, value and
headers of a refused row are the original bytes of the row. If a timestamp is text that cannot be parsed, the record
gets a timestamp that no topic accepts. So the row becomes a dead letter, and is not treated as a row without a
timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence

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

from lakelog.spark.types import quoted
from pipeline.delta.dead_letters import Refusal
from pipeline.ingest.rows.guarded_expressions import FIELD, Resolved
from pipeline.ingest.rows.source_rows import HEADERS_DDL, LINE, NAMES_LINE, SourceRows, free_name
from pipeline.ingest.source_positions import POSITION, POSITION_OF
from pipeline.settings import Settings
from pipeline.spark.failures import planning_reason
from storage_engine.config import TopicConfig
from storage_engine.errors import ConfigError
from storage_engine.log.validator import record_limit
from storage_engine.record.record_columns import HEADERS

ROWS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("refused", pa.int8()),
        pa.field("source", pa.string()),
        pa.field("topic", pa.string()),
    ]
)
"""The columns of the rows for staging, without the position columns, whose number depends on the source."""

_NO_PARTITION = -1
_NO_HEADER = "\0"
"""A text that no header has as its key."""
UNREADABLE_TIMESTAMP = -2
_ROOM = 4096  # bytes; a record that is nearer than this to the size limit may be refused; the validator decides
_WAITS_MS = 600_000
"""A row whose timestamp becomes too old within this time may be refused: the tasks compare it with a later clock."""


def record_rows(
    source: SourceRows,
    settings: Settings,
    configs: Sequence[TopicConfig],
    position_columns: Sequence[str] = (),
    partitions: int = 1,
) -> DataFrame:
    """Evaluate the ingest section's expressions over a source's rows.

    Args:
        position_columns: columns of the source; the last one is the position.
        configs: the settings of the topics.
        partitions: the smallest number of partitions that a topic has.

    Raises:
        ConfigError: an expression cannot be parsed, uses a column that does not exist, or has the wrong type. The message
            names the setting and the columns of the source.
    """
    ingest = settings.required_ingest()
    expressions = _Expressions(source, settings)
    key = _bytes(expressions, Refusal.KEY_FAILED, ingest.key)
    value = _bytes(expressions, Refusal.VALUE_FAILED, ingest.value)
    headers = _headers(expressions, ingest.headers)
    timestamp = _timestamp(expressions, ingest.timestamp)
    partition = _partition(expressions, ingest.partition)
    topic = _topic(expressions, ingest.topic_column)
    position = _position(expressions, position_columns)
    rows, refused = expressions.evaluated()
    # With `validate`, the tasks check the values later. So here any row may still be refused.
    may_be_refused = F.lit(True) if ingest.validates else _may_be_refused(key, value, headers, timestamp, configs)
    if partition is not None:
        may_be_refused |= F.coalesce((partition < 0) | (partition >= partitions), F.lit(False))
    if topic is not None:
        may_be_refused |= ~F.coalesce(topic.isin(*ingest.ingest_topics), F.lit(False))
    if refused is not None:
        may_be_refused |= refused.isNotNull()
    for column in position.values():
        may_be_refused |= column.isNull()
    columns = {
        "key": _either(refused, source.key, key),
        "value": _either(refused, source.value, value),
        "headers": _never_null(_either(refused, source.headers, headers)),
        "timestamp": timestamp,
        "partition": partition,
        "refused": refused,
        "source": None if source.place is None else F.when(may_be_refused, source.place),
        "topic": topic,
        **position,
    }
    return rows.select(*(column.alias(name) for name, column in columns.items() if column is not None))


def _either(refused: Column | None, as_it_came: Column | None, evaluated: Column | None) -> Column | None:
    """The original bytes if the row is refused, otherwise the expression's value; None if both are always null."""
    if refused is None:
        return evaluated
    if evaluated is None:
        return None if as_it_came is None else F.when(refused.isNotNull(), as_it_came)
    return F.when(refused.isNull(), evaluated).otherwise(F.lit(None) if as_it_came is None else as_it_came)


def _never_null(headers: Column | None) -> Column | None:
    return None if headers is None else F.coalesce(headers, F.array().cast(HEADERS_DDL))


class _Expressions:
    """The expressions of the settings over a source's rows: they are collected first, then evaluated in one projection."""

    def __init__(self, source: SourceRows, settings: Settings) -> None:
        self._source = source
        self._settings = settings
        self._evaluated: dict[str, Column] = {}
        self._guards: dict[Refusal, Column] = {}

    def resolved(self, refusal: Refusal, expression: str) -> Resolved:
        """
        Raises:
            ConfigError: the expression cannot be evaluated.
        """
        source = self._source
        found = None
        try:
            if source.with_line is not None and NAMES_LINE.search(expression):
                found = self._resolved_with_line(source.with_line, expression)
            if found is None:
                found = Resolved(source.visible, F.expr(expression))
        except AnalysisException as error:
            problem = f"cannot be evaluated: {planning_reason(error)}"
            if NAMES_LINE.search(expression) and source.with_line is not None:
                problem = (
                    f"has {LINE} and *, but * does not include {LINE}: name the columns instead of *; or it {problem}"
                )
            elif NAMES_LINE.search(expression) and source.why_no_line:
                problem = f"names {LINE}, which this source does not have: {source.why_no_line}"
            raise ConfigError(
                self._settings.place_of(refusal.setting), f"{expression!r} {problem}",
                f"The source has the columns {', '.join(source.visible.columns)}.",
            ) from error  # fmt: skip
        if not found.is_of_one_row():
            raise ConfigError(
                self._settings.place_of(refusal.setting),
                f"{expression!r} does not return exactly one value for each row",
                "Use an expression without aggregate functions, window functions or explode.",
            )  # fmt: skip
        return found

    def _resolved_with_line(self, with_line: DataFrame, expression: str) -> Resolved | None:
        """The expression, resolved with the line as a column; None if the expression has a `*`, because `*` would
        include the line.

        To detect a `*`, one more column is added: only an expression with a `*` refers to this column.
        """
        more = free_name("more", with_line.columns)
        found = Resolved(with_line.withColumn(more, F.lit(None)), F.expr(expression))
        return None if found.refers_to(more) else found

    def wrong_type(self, refusal: Refusal, expression: str, found: DataType, wanted: str) -> ConfigError:
        problem = f"{expression!r} gives {found.simpleString()}, expected {wanted}"
        return ConfigError(self._settings.place_of(refusal.setting), problem, "Cast the expression.")

    def value(self, refusal: Refusal, expression: Resolved) -> Column:
        """The expression's value in the evaluated rows. If the expression fails on a row, the row is refused, and
        `refusal` is the reason."""
        name = free_name(refusal.name.lower(), [*self._source.rows.columns, *self._evaluated])
        if expression.cannot_fail():
            self._evaluated[name] = expression.plain()
            return F.col(name)
        fits = None if self._source.malformed is None else ~self._source.malformed
        self._evaluated[name] = expression.guarded(fits)
        self._guards[refusal] = F.col(name).isNull()
        return F.col(name)[FIELD]

    def copies_headers(self, expression: str) -> bool:
        """Whether the expression is the column with the headers of messages. Their keys are never null."""
        return self._source.headers is not None and expression.strip().lower() == "headers"

    def refuse(self, refusal: Refusal, failed: Column) -> None:
        """Refuse the rows on which this condition is true, also those on which the expression does not fail."""
        guard = self._guards.get(refusal)
        self._guards[refusal] = failed if guard is None else guard | failed

    def evaluated(self) -> tuple[DataFrame, Column | None]:
        """The rows with all values, and the column with the reason why a row is refused; None if no row can be refused.

        First, all expressions are resolved. Then they are evaluated in one projection of the source's rows. So an
        expression cannot use an internal column, or the value of another expression.
        """
        rows = self._source.rows
        if self._evaluated:
            rows = rows.withColumns(self._evaluated)
        reasons = [(failed, refusal) for refusal, failed in self._guards.items()]
        if self._source.malformed is not None:
            reasons.insert(0, (self._source.malformed, Refusal.MALFORMED))
        if not reasons:
            return rows, None
        name = free_name("refused", rows.columns)
        codes = [F.when(met, F.lit(int(refusal))) for met, refusal in reasons]
        return rows.withColumn(name, F.coalesce(*codes).cast("tinyint")), F.col(name)


def _bytes(expressions: _Expressions, refusal: Refusal, expression: str | None) -> Column | None:
    if expression is None:
        return None
    resolved = expressions.resolved(refusal, expression)
    if not isinstance(resolved.type, StringType | BinaryType):
        raise expressions.wrong_type(refusal, expression, resolved.type, "string or binary")
    return expressions.value(refusal, resolved).cast("binary")


def _headers(expressions: _Expressions, expression: str | None) -> Column | None:
    if expression is None:
        return None
    refusal = Refusal.HEADERS_FAILED
    resolved = expressions.resolved(refusal, expression)
    pair = resolved.type.elementType if isinstance(resolved.type, ArrayType) else None
    types = [field.dataType for field in pair.fields] if isinstance(pair, StructType) else []
    if len(types) != 2 or not isinstance(types[0], StringType) or not isinstance(types[1], StringType | BinaryType):
        raise expressions.wrong_type(refusal, expression, resolved.type, HEADERS_DDL)
    headers = expressions.value(refusal, resolved).cast(HEADERS_DDL)
    if not expressions.copies_headers(expression):
        # The tasks also refuse null headers and null keys, but then the row's original bytes are lost. array_contains is
        # NULL if a key is null and no key is the given text. A lambda function takes ten times as long.
        is_keyless = headers.isNotNull() & F.array_contains(headers["key"], _NO_HEADER).isNull()
        expressions.refuse(refusal, is_keyless)
    return headers


def _timestamp(expressions: _Expressions, expression: str | None) -> Column | None:
    if expression is None:
        return None
    refusal = Refusal.TIMESTAMP_FAILED
    resolved = expressions.resolved(refusal, expression)
    found = resolved.type
    if isinstance(found, IntegralType):
        return expressions.value(refusal, resolved).cast("bigint")
    if isinstance(found, TimestampType):
        return F.unix_millis(expressions.value(refusal, resolved))
    if isinstance(found, TimestampNTZType | DateType):
        return F.unix_millis(expressions.value(refusal, resolved.cast("timestamp")))
    if isinstance(found, StringType):
        text = expressions.value(refusal, resolved)
        readable = F.unix_millis(text.try_cast("timestamp"))
        return F.when(text.isNotNull(), F.coalesce(readable, F.lit(UNREADABLE_TIMESTAMP).cast("bigint")))
    raise expressions.wrong_type(refusal, expression, found, "a timestamp, or milliseconds as a whole number")


def _partition(expressions: _Expressions, expression: str | None) -> Column | None:
    if expression is None:
        return None
    refusal = Refusal.PARTITION_FAILED
    resolved = expressions.resolved(refusal, expression)
    if not isinstance(resolved.type, IntegralType):
        raise expressions.wrong_type(refusal, expression, resolved.type, "a whole number")
    number = expressions.value(refusal, resolved)
    return F.when(number.isNotNull(), F.coalesce(number.try_cast("int"), F.lit(_NO_PARTITION)))


def _topic(expressions: _Expressions, expression: str | None) -> Column | None:
    if expression is None:
        return None
    refusal = Refusal.TOPIC_FAILED
    resolved = expressions.resolved(refusal, expression)
    if not isinstance(resolved.type, StringType):
        raise expressions.wrong_type(refusal, expression, resolved.type, "string")
    return expressions.value(refusal, resolved)


def _position(expressions: _Expressions, names: Sequence[str]) -> dict[str, Column]:
    columns = {}
    for number, name in enumerate(names):
        column = quoted(name)
        resolved = expressions.resolved(Refusal.NO_POSITION, column)
        is_whole = isinstance(resolved.type, IntegralType)
        is_last = number == len(names) - 1
        if is_last and not is_whole:
            raise expressions.wrong_type(Refusal.NO_POSITION, column, resolved.type, "a whole number")
        kind = "bigint" if is_whole else "string"
        columns[POSITION if is_last else f"{POSITION_OF}{number}"] = resolved.plain().cast(kind)
    return columns


def _may_be_refused(
    key: Column | None,
    value: Column | None,
    headers: Column | None,
    timestamp: Column | None,
    configs: Sequence[TopicConfig],
) -> Column:
    """Whether staging may refuse the row. Only such rows get their place in the source, because computing the place
    costs more than most values."""
    lengths = [F.coalesce(F.octet_length(column), F.lit(0)) for column in (key, value) if column is not None]
    suspect = sum(lengths, F.lit(0)) > min(map(record_limit, configs)) - _ROOM
    if headers is not None:
        suspect |= F.size(headers) > 0  # the sum of their sizes would take longer than the place
    if timestamp is not None:
        now = F.unix_millis(F.now())
        earliest = now - min(config.message_timestamp_before_max_ms for config in configs) + _WAITS_MS
        suspect |= F.coalesce((timestamp < F.greatest(earliest, F.lit(0))) | (timestamp > now), F.lit(False))
    if any(config.compact for config in configs):
        suspect |= F.lit(True) if key is None else key.isNull()
    return suspect
