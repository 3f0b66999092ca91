"""The options and columns of the sink. They have the same names and meaning as in Spark's Kafka sink, and the same
inputs are refused. In addition, there are the option `root` and the column `timestamp`.

    value       text or bytes; required. null is a tombstone
    key         text or bytes
    headers     an array of structs of key (text) and value (bytes)
    topic       text; required without the option `topic`, which overrides the column
    partition   int; by default the key determines the partition
    timestamp   a timestamp; null or missing: the time of the write. Kafka's sink has no such column

Other columns are ignored, but a batch with a column of an interval type or VARIANT is refused. The option `root` has
the same meaning as in the source. `kafka.compression.type` is the codec for topics whose compression.type is
`producer`. Other `kafka.` options have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    VarcharType,
)

from lakelog.spark.options.source_options import root_option
from lakelog.spark.options.user_options import LAKELOG, UserOptions, without_spaces, wrong
from storage_engine.errors import ConfigError
from storage_engine.record.compression import Codec

_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
_TYPES: Mapping[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}
_STORED = (
    BinaryType, BooleanType, ByteType, CharType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType,
    NullType, ShortType, StringType, TimestampNTZType, TimestampType, VarcharType,
)  # fmt: skip
"""The types that the columns of a batch may have. Spark allows only these types in a batch write to Kafka. The columns of
a stream may have other types."""
_COMPRESSION = "kafka.compression.type"
_REFUSED = {
    "kafka.key.serializer": "Leave this option out: keys are written as bytes.",
    "kafka.value.serializer": "Leave this option out: values are written as bytes.",
}


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write.

    root: the root's path or URI.
    topic: the topic of all rows; None if the column `topic` names each row's topic.
    compression: for topics whose compression.type is `producer`.
    ignored: `kafka.` options that have no effect.
    """

    root: str
    topic: str | None
    compression: str
    ignored: tuple[str, ...]

    @property
    def warning(self) -> str | None:
        """The warning about ignored options; None if there are none."""
        if not self.ignored:
            return None
        return f"sink {LAKELOG}: options for a connection to Kafka have no effect here: {', '.join(self.ignored)}"


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """
    Raises:
        ConfigError: an option is missing, has a wrong value, or is one that Kafka's sink refuses.
    """
    given = UserOptions(options)
    for name, remedy in _REFUSED.items():
        if given.get(name) is not None:
            raise wrong(name, "is not supported", remedy)
    compression = given.get(_COMPRESSION) or "none"
    known = {"none": "uncompressed"} | {codec.name.lower(): codec.name.lower() for codec in Codec if codec}
    if compression not in known:
        raise wrong(_COMPRESSION, f"found {compression!r:.60}", f"Choose {', '.join(known)}.")
    topic = given.get("topic")
    if topic is not None and not without_spaces(topic):
        raise wrong("topic", f"found {topic!r:.60}, which names no topic", "Name a topic, or leave the option out.")
    used = {_COMPRESSION, "kafka.bootstrap.servers"}
    ignored = tuple(name for name in given if name.startswith("kafka.") and name not in used)
    return SinkOptions(
        root_option(given), None if topic is None else without_spaces(topic), known[compression], ignored
    )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of the rows. As in Kafka's sink, names are case-sensitive.

    Raises:
        ConfigError: a required column is missing, or a column has another type.
    """
    found = {field.name: field.dataType for field in schema.fields}
    if "value" not in found:
        raise ConfigError("column `value`", "is missing", "Select the values of the records under this name.")
    if options.topic is None and "topic" not in found:
        raise ConfigError("option topic", "is missing, and the rows have no column `topic`", "Give one of the two.")
    for name, types in _TYPES.items():
        if name not in found or (name == "topic" and options.topic is not None):
            continue
        if not any(_is_same(found[name], kind) for kind in types):
            expected = " or ".join(kind.simpleString() for kind in types)
            raise ConfigError(
                f"column `{name}`", f"expected {expected}, found {found[name].simpleString()}", "Cast the column."
            )


def check_types(schema: StructType) -> None:
    """Check the columns of a batch, including the columns that the sink ignores.

    Raises:
        ConfigError: Spark would refuse a column's type before a batch write to Kafka.
    """
    for field in schema.fields:
        if not _is_stored(field.dataType):
            raise ConfigError(
                f"column `{field.name}`", f"found {field.dataType.simpleString()}, which a batch write does not support",
                "Leave out the column, or cast the column.",
            )  # fmt: skip


def _is_stored(kind: DataType) -> bool:
    match kind:
        case ArrayType():
            return _is_stored(kind.elementType)
        case MapType():
            return _is_stored(kind.keyType) and _is_stored(kind.valueType)
        case StructType():
            return all(_is_stored(field.dataType) for field in kind.fields)
        case UserDefinedType():
            return _is_stored(kind.sqlType())
    return isinstance(kind, _STORED)


def _is_same(found: DataType, expected: DataType) -> bool:
    """Whether two types are equal. It makes no difference which of their parts may be null."""
    return found.simpleString() == expected.simpleString()
